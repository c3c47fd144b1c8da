"""Analysis of trained models: the papers' figures and tables, comparisons, and reports of runs."""
