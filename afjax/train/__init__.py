"""Training: the step, the loop, the recipes, and resumable experiments."""
