"""What trained models look like: the papers' figures and tables, comparisons, and a report of a run."""
