"""The commands, one module each: its flags, its help, and what it runs."""
