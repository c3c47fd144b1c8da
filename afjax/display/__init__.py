"""Human-readable output: terminal text, progress bars and HTML."""
