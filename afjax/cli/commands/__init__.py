"""The commands, one module each, with their flags and help."""
