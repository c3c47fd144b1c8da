"""The command line. The commands are in :mod:`afjax.cli.commands`; the modules here do their work."""
