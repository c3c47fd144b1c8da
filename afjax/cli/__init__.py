"""The command line: commands are in :mod:`afjax.cli.commands`, implemented here."""
