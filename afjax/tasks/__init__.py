"""Kinds of tasks: how each one loads rows, tokenizes them, and computes losses, predictions and metrics."""
