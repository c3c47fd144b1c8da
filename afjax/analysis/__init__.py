"""Analysis of trained models: the papers' figures and tables, and reports."""
