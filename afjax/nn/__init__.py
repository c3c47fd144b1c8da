"""Pure functions for the parts of a Transformer, independent of models and configs."""
