"""Estimates the cost of a step on a TPU from its compiled program, without a TPU."""
