"""The command line. :mod:`afjax.cli.commands` defines the commands; the modules here implement them."""
