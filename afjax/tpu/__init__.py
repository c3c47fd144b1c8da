"""Estimates the cost of a step on a TPU from its compiled program.

No TPU is needed.
"""
