"""Where rows come from: files, archives, official downloads of benchmarks, TFDS, and built-in tasks."""
