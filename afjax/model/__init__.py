"""Models of trunk, adapters, fusion and head: setup, inference, storage."""
