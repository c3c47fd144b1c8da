"""``python -m afjax`` is the ``afjax`` command."""

import sys

from afjax.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
