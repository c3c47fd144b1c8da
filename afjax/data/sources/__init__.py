"""Sources of rows: files, archives, official downloads of benchmarks, TFDS, and built-in tasks."""
