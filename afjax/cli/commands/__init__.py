"""The commands' flags and help, with one module per command or group of commands."""
