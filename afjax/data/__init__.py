"""From text files, TFDS and built-in tasks to batches of token ids."""
