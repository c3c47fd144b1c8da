"""Data pipeline: from rows to padded batches of token ids."""
