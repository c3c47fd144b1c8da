"""Rows, token ids, losses, metrics and predictions of each kind of task."""
