"""Data sources: files, archives, official benchmark downloads, TFDS, Hugging Face and built-in tasks."""
