"""Pure functions for the parts of a Transformer. They know no model and no configuration of one."""
