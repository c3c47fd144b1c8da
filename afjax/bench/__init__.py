"""Times single steps, for ``afjax bench``."""
