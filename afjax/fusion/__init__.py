"""Fusion of adapters: the paper's formula, its faster forms, and pruning."""
