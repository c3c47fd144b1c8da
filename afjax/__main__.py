"""Runs the ``afjax`` command as ``python -m afjax``."""

import sys

from afjax.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
