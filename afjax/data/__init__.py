"""Turns rows into batches: columns, labels, splits, token ids and padded lengths."""
