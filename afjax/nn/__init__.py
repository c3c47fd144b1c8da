"""Pure functions for the parts of a Transformer, independent of any model and its config."""
