"""Writes the configs that this version records in workdirs, for testing later versions against them::

    python tests/golden/make_workdir_configs.py tests/golden/workdir_configs.json

The file was written by the last version without multi-label tasks. Do not regenerate it, because it represents users'
existing workdirs.
"""

import json
import sys
from pathlib import Path

from afjax.cli.experiments import load_experiment
from afjax.config.from_dict import to_dict

# Configs that need no data files.
NAMES = ("quickstart", "single:task=entail", "single:task=entail,partition=head")

if __name__ == "__main__":
    configs = {name: to_dict(load_experiment(name, [])) for name in NAMES}
    Path(sys.argv[1]).write_text(json.dumps(configs, indent=1, sort_keys=True) + "\n")
