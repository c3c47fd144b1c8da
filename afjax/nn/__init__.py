"""Pure functions for the parts of a Transformer, without models and configs."""
