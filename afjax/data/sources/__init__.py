"""Data sources: files, official downloads, TFDS, Hugging Face and built-in tasks."""
