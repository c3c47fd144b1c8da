"""The folder of one experiment: what it belongs to, and files that are written whole or not at all."""

import json
import os
from collections.abc import Mapping
from typing import Any

from etils import epath

from afjax.config import ExperimentConfig
from afjax.dataclass_dicts import to_dict
from afjax.errors import UserError
from afjax.paths import is_remote
from afjax.trees import flatten

CONFIG = "config.json"
INPUTS = "inputs.json"
# The folder of the target's run.
TARGET = "target"
# In a run's folder, when it has been brought to its end.
RESULT = "result.json"
# The sequential recipe's scores of every task after each.
FORGETTING = "forgetting.csv"


def source_folder(workdir: epath.Path, name: str) -> epath.Path:
    """The folder of a source's run."""
    return workdir / "sources" / name


def is_unfinished(folder: epath.Path) -> bool:
    """Whether a run was begun there and not brought to its end."""
    return folder.exists() and not (folder / RESULT).exists()


def check_workdir(workdir: epath.Path, config: ExperimentConfig) -> None:
    """Raises UserError where a workdir holds a run with another config (the difference is shown), or is no folder."""
    path = workdir / CONFIG
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(
            f"The workdir {workdir} cannot be used ({error.strerror or error}); give another --workdir."
        ) from None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); take another --workdir.") from None
    there, here = settings(found), settings(_plain(config))
    differences = [
        f"{key}: {there.get(key, 'not set')!r} there, {here.get(key, 'not set')!r} given"
        for key in sorted(there.keys() | here.keys())
        if there.get(key) != here.get(key)
    ]
    if differences:
        raise UserError(
            f"The workdir {workdir} holds a run with another config ({'; '.join(differences)}); take another "
            "--workdir, or give the same config to go on."
        )


def check_inputs(workdir: epath.Path, inputs: Mapping[str, str]) -> None:
    """Raises UserError where the run that a workdir holds began with other rows or another trunk.

    Args:
      workdir: The experiment's.
      inputs: ``{what: SHA-256}`` of all that it reads and the config does not hold.
    """
    path = workdir / INPUTS
    if not path.exists():
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); take another --workdir.") from None
    changed = sorted(name for name in found.keys() | inputs.keys() if found.get(name) != inputs.get(name))
    if changed:
        raise UserError(
            f"The run in {workdir} began with other data: {', '.join(changed)} changed since; restore what changed to "
            "go on, or take another --workdir."
        )


def claim_workdir(workdir: epath.Path, config: ExperimentConfig, inputs: Mapping[str, str]) -> None:
    """Writes the config, and the digests of :func:`check_inputs`, into a new workdir.

    Raises:
      UserError: It cannot be written.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        # The config last: a workdir that has it has both.
        if not (workdir / CONFIG).exists():
            write_json(workdir / INPUTS, inputs)
            write_json(workdir / CONFIG, _plain(config))
    except OSError as error:
        raise UserError(
            f"The workdir {workdir} cannot be written ({error.strerror or error}); give another --workdir."
        ) from None


def _plain(config: ExperimentConfig) -> dict[str, Any]:
    """The config as its JSON file gives it back."""
    return json.loads(json.dumps(to_dict(config)))


def settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """A config's settings by dotted path, lists of mappings included."""

    def as_tree(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: as_tree(item) for key, item in value.items()}
        if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            return {str(index): as_tree(item) for index, item in enumerate(value)}
        return value

    return {path.replace("/", "."): value for path, value in flatten(as_tree(values)).items()}


def write_json(path: epath.Path, value: Any) -> None:
    """Writes a JSON file whole or not at all."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def write_text(path: epath.Path, text: str) -> None:
    """Writes a file whole or not at all."""
    if is_remote(path):
        path.write_text(text, encoding="utf-8")
        return
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
