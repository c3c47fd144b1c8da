"""Adapters: one module per kind, and the code that all kinds share."""
