"""AdapterFusion: the paper's formula, faster equivalent forms, and pruning."""
