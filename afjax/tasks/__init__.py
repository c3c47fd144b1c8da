"""Kinds of tasks.

Each kind defines how to load and tokenize rows, and to compute losses, predictions and metrics.
"""
