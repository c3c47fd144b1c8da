"""From rows to batches: columns, labels, splits, token ids, padded lengths."""
