"""Training: the step, the loop, the recipes, and whole experiments that can be resumed."""
