"""The folder of one experiment: what it belongs to, and files that are written whole or not at all."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etils import epath

from afjax.config import ExperimentConfig
from afjax.dataclass_dicts import to_dict
from afjax.errors import UserError
from afjax.hosts import is_first_host, together
from afjax.paths import absolute, is_remote, open_path
from afjax.trees import flatten

CONFIG = "config.json"
INPUTS = "inputs.json"
# Which store the run takes adapters from, and saves to.
STORE = "store.json"
# In the folder of a fusion's run: the digests of the adapters that it fuses.
FUSED = "fused.json"
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
    found = _read_object(workdir / INPUTS)
    if found is None:
        return
    changed = sorted(name for name in found.keys() | inputs.keys() if found.get(name) != inputs.get(name))
    if changed:
        raise UserError(
            f"The run in {workdir} began with other data: {', '.join(changed)} changed since; restore what changed to "
            "go on, or take another --workdir."
        )


def find_store(workdir: epath.Path, given: str | Path | None = None) -> epath.Path:
    """The store of the run that a workdir holds, or will hold: the one given, or that it began with, or its own.

    Args:
      workdir: The experiment's.
      given: The store to use; None: the one that the run began with, ``workdir/store`` where none is noted.

    Raises:
      UserError: The run began with another store than the one given, and that is still there. (One that was moved is
        given anew.)
    """
    found = _read_object(workdir / STORE)
    if found is None:
        return open_path(given) if given else workdir / "store"
    if not isinstance(found.get("store"), str) or not found["store"]:
        raise UserError(f"{workdir / STORE} is damaged (it names no store); delete it and give --store.")
    began = _from_workdir(found["store"], workdir)
    if not given or _same(began, open_path(given)):
        return began
    if began.exists():
        raise UserError(
            f"The run in {workdir} began with the store {began}, not {given}; leave --store out to go on with that, or "
            "take another --workdir."
        )
    return open_path(given)


def claim_workdir(
    workdir: epath.Path, config: ExperimentConfig, inputs: Mapping[str, str], store_folder: epath.Path
) -> None:
    """Writes the config, the digests of :func:`check_inputs`, and which store it uses into a new workdir.

    Raises:
      UserError: It cannot be written.
    """
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        store = {"store": _seen_from_workdir(store_folder, workdir)}
        if _read_object(workdir / STORE) != store:
            write_json(workdir / STORE, store)
        # The config last: a workdir that has it has all.
        if not (workdir / CONFIG).exists():
            write_json(workdir / INPUTS, inputs)
            write_json(workdir / CONFIG, _plain(config))
    except OSError as error:
        raise UserError(
            f"The workdir {workdir} cannot be written ({error.strerror or error}); give another --workdir."
        ) from None


def claim_adapters(folder: epath.Path, digests: Mapping[str, str]) -> None:
    """Writes which adapters a fusion's run fuses into its new folder.

    Args:
      folder: Of the run.
      digests: ``{adapter: SHA-256}``, see ``trees.tree_digest``.

    Raises:
      UserError: The run began with other adapters of these names. Its attention has learned to weigh those.
    """
    with together():
        found = _read_object(folder / FUSED)
        changed = sorted(name for name, digest in digests.items() if found and found.get(name) != digest)
        if changed:
            raise UserError(
                f"The fusion in {folder} began with other adapters: {', '.join(changed)} changed in the store since; "
                "bring back what was there to go on, or take another --workdir."
            )
        if found is None and is_first_host():
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / FUSED, digests)


def _read_object(path: epath.Path) -> dict[str, Any] | None:
    """A JSON object that a workdir may have; None: it has none."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); take another --workdir.") from None
    return found


def _seen_from_workdir(store: epath.Path, workdir: epath.Path) -> str:
    """A store's path from the workdir on, so that a folder that holds both can be moved."""
    if is_remote(store) or is_remote(workdir):
        return str(absolute(store))
    return os.path.relpath(os.path.realpath(store), os.path.realpath(workdir))


def _from_workdir(text: str, workdir: epath.Path) -> epath.Path:
    if is_remote(text) or os.path.isabs(text):
        return open_path(text)
    real = epath.Path(os.path.normpath(os.path.join(os.path.realpath(workdir), text)))
    # Shorter, and what was typed; another folder where the workdir is a link.
    short = epath.Path(os.path.normpath(os.path.join(workdir, text)))
    return short if _same(short, real) else real


def _same(one: epath.Path, other: epath.Path) -> bool:
    if is_remote(one) or is_remote(other):
        return str(one) == str(other)
    return os.path.realpath(one) == os.path.realpath(other)


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
