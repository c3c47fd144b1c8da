"""Writes the configs that this version records in workdirs. Tests compare later versions with them::

    python tests/golden/make_workdir_configs.py tests/golden/workdir_configs.json

The file was made by the last version without multi-label tasks. Do not make it again, because it represents the
workdirs that users have.
"""

import json
import sys
from pathlib import Path

from afjax.cli.configs import load_experiment
from afjax.config.from_dict import to_dict

# Configs that need no data files.
NAMES = ("quickstart", "single:task=entail", "single:task=entail,partition=head")

if __name__ == "__main__":
    configs = {name: to_dict(load_experiment(name, [])) for name in NAMES}
    Path(sys.argv[1]).write_text(json.dumps(configs, indent=1, sort_keys=True) + "\n")
