"""The commands with their flags and help: one module per command or group of commands."""
