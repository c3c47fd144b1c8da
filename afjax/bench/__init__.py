"""Timing of single steps, for ``afjax bench``."""
