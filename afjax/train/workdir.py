"""The folder of an experiment: its config, its inputs and its store's path."""

import contextlib
import os
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from etils import epath

from afjax.config.experiment import ExperimentConfig
from afjax.config.from_dict import to_dict
from afjax.errors import UserError
from afjax.storage.json_files import read_json
from afjax.storage.paths import absolute, error_text, is_remote, open_path
from afjax.storage.writing import write_json
from afjax.store.manifest import KINDS
from afjax.train.record import (
    adapter_input,
    input_differences,
    note_unchecked,
    plain,
    setting_differences,
    with_former_pooling,
)

CONFIG = "config.json"
INPUTS = "inputs.json"
RESTORE_ADVICE = "restore it, or choose another --workdir"
# The path of the run's store.
STORE = "store.json"
# The folder of the target's run.
TARGET = "target"
# The file with the results, in the folder of a finished run.
RESULT = "result.json"
# The sequential recipe's scores of all tasks so far, after each task.
FORGETTING = "forgetting.csv"


def source_folder(workdir: epath.Path, name: str) -> epath.Path:
    """Returns the folder of a source's run."""
    return workdir / "sources" / name


def is_unfinished(folder: epath.Path) -> bool:
    """Whether the folder holds a run that has not finished."""
    return folder.exists() and not (folder / RESULT).exists()


def recorded_config(workdir: epath.Path) -> dict[str, Any]:
    """Reads the config of a workdir's run, by dotted path; empty for a new workdir.

    Raises:
      UserError: The file is damaged.
    """
    settings = read_json(workdir / CONFIG, advice=RESTORE_ADVICE)
    return {} if settings is None else with_former_pooling(settings)


def check_workdir(workdir: epath.Path, config: ExperimentConfig) -> None:
    """Raises UserError if a workdir holds a run with a different config.

    The message lists all differences. If a source's adapter came from the store, its task and training settings are not
    compared, because they are unused.
    """
    recorded = read_json(workdir / CONFIG, advice=RESTORE_ADVICE)
    if recorded is None:
        return
    stored = stored_inputs(read_inputs(workdir) or {})
    differences = setting_differences(_compared(recorded, stored), _compared(to_dict(config), stored))
    if differences:
        raise UserError(
            f"The workdir {workdir} holds a run with a different config ({'; '.join(differences)}). Use the same "
            "config to resume it, or choose another --workdir."
        )


def _compared(config: Mapping[str, Any], stored: Collection[str]) -> dict[str, Any]:
    """Reduces sources whose adapters came from the store to their names."""
    sources = config.get("sources")
    if not isinstance(sources, list):
        return dict(config)

    def compared(source: Any) -> Any:
        task = source.get("task") if isinstance(source, Mapping) else None
        name = task.get("name") if isinstance(task, Mapping) else None
        return {"task": {"name": name}} if isinstance(name, str) and name in stored else source

    return {**config, "sources": [compared(source) for source in sources]}


def read_inputs(workdir: epath.Path) -> dict[str, str] | None:
    """Reads the recorded inputs of the run in a workdir; None for a new workdir.

    Raises:
      UserError: The file is damaged.
    """
    return read_json(workdir / INPUTS, advice=RESTORE_ADVICE)


def stored_inputs(inputs: Mapping[str, str]) -> list[str]:
    """Lists the names of the stored adapters in a run's inputs."""
    prefix = adapter_input("")
    return [name.removeprefix(prefix) for name in inputs if name.startswith(prefix)]


def check_inputs(workdir: epath.Path, recorded: Mapping[str, str] | None, inputs: Mapping[str, str]) -> None:
    """Raises UserError if a workdir's run began with different rows or trunk.

    Args:
      workdir: The experiment's folder.
      recorded: The inputs that the run began with; None for a new run.
      inputs: ``{name: digest or value}`` of everything that the experiment reads, except its config.
    """
    if recorded is None:
        return
    changed, unchecked = input_differences(recorded, inputs)
    # Every version has recorded these inputs.
    lost = [name for name in unchecked if name == "the trunk" or name.endswith(" rows")]
    if lost:
        raise UserError(f"{workdir / INPUTS} is damaged (it lacks {', '.join(lost)}); {RESTORE_ADVICE}.")
    if changed:
        raise UserError(
            f"The run in {workdir} began with different inputs: {'; '.join(changed)}. Restore them to resume the run, "
            "delete its folder to train it from the start, or choose another --workdir."
        )
    note_unchecked(workdir, unchecked)


def find_store(workdir: epath.Path, given: str | Path | None = None) -> epath.Path:
    """Returns the store of the run in a workdir.

    Args:
      workdir: The experiment's folder.
      given: The store to use. None means the store that the run began with, or ``workdir/store`` for a new run.

    Raises:
      UserError: The run began with a different store, which still exists (if the store was moved, pass its new path),
        or the recorded path is an existing folder that is not a store. In the second case, the workdir may be from
        another person, who must not decide where files are written.
    """
    record = _read_store(workdir)
    if not record:
        return open_path(given) if given else workdir / "store"
    store = _from_workdir(record["store"], workdir)
    if given and not _same_folder(store, open_path(given)):
        if store.exists():
            raise UserError(
                f"The run in {workdir} began with the store {store}, not {given}. Omit --store to use the "
                "original store, or choose another --workdir."
            )
        return open_path(given)
    if not given and not _may_be_store(store):
        raise UserError(
            f"{workdir / STORE} names {store}, which exists but is not a store. To write artifacts there, pass "
            f"--store={store}. Otherwise, choose another --store."
        )
    return store


def run_identifier(workdir: epath.Path) -> str:
    """Returns the identifier of a workdir's run; empty if it has not been claimed."""
    return str(_read_store(workdir).get("run", ""))


def claim_workdir(
    workdir: epath.Path, config: ExperimentConfig, inputs: Mapping[str, str], store_folder: epath.Path
) -> bool:
    """Writes an experiment's records into a new workdir.

    They are the config, the inputs, the store's path and a run identifier. In an existing workdir, only ``store.json``
    is updated, if the store has changed.

    Args:
      workdir: The experiment's folder.
      config: The experiment.
      inputs: As in :func:`check_inputs`.
      store_folder: The store.

    Returns:
      Whether the workdir was new.

    Raises:
      UserError: The workdir cannot be written, or holds a run with a different config or store.
    """
    is_new = not is_claimed(workdir)
    if not is_new:
        # Another process may have claimed it since the first check.
        check_workdir(workdir, config)
        find_store(workdir, store_folder)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        recorded = _read_store(workdir)
        store = {"store": _relative_to_workdir(store_folder, workdir), "run": recorded.get("run") or uuid.uuid4().hex}
        if recorded != store:
            write_json(workdir / STORE, store)
        # Write the config last, so that a workdir with a config is complete.
        if is_new:
            write_json(workdir / INPUTS, inputs)
            write_json(workdir / CONFIG, plain(to_dict(config)))
    except OSError as error:
        raise UserError(
            f"The workdir {workdir} cannot be written ({error_text(error)}); choose another --workdir."
        ) from error
    return is_new


def release_workdir(workdir: epath.Path) -> None:
    """Undoes :func:`claim_workdir` in a workdir that was new."""
    for name in (CONFIG, INPUTS, STORE):
        (workdir / name).unlink(missing_ok=True)
    # Object stores have no folders. A folder with other files is kept.
    if not is_remote(workdir):
        with contextlib.suppress(OSError):
            workdir.rmdir()


def is_claimed(workdir: epath.Path) -> bool:
    """Whether a run has begun in a workdir.

    The config is written last, so a workdir without it holds at most the files of a process that was killed.
    """
    return (workdir / CONFIG).exists()


def _read_store(workdir: epath.Path) -> dict[str, Any]:
    record = read_json(workdir / STORE, advice="delete it and pass --store") if is_claimed(workdir) else None
    if record is None:
        return {}
    # isprintable also rejects text that the file system cannot encode.
    valid = all(isinstance(value, str) and value.isprintable() for value in record.values())
    if not valid or not record.get("store"):
        raise UserError(f"{workdir / STORE} is damaged (it does not name a store); delete it and pass --store.")
    return record


def _may_be_store(folder: epath.Path) -> bool:
    """Whether a folder is a store, or can become one because it is empty or missing."""
    if not folder.exists():
        return True
    return folder.is_dir() and {entry.name for entry in folder.iterdir() if entry.name[0] != "."} <= set(KINDS)


def _relative_to_workdir(store: epath.Path, workdir: epath.Path) -> str:
    """Returns the store's path relative to the workdir.

    A folder that holds both can therefore be moved.
    """
    if is_remote(store) or is_remote(workdir):
        return str(absolute(store))
    return os.path.relpath(os.path.realpath(store), os.path.realpath(workdir))


def _from_workdir(text: str, workdir: epath.Path) -> epath.Path:
    if is_remote(text) or os.path.isabs(text):
        return open_path(text)
    real = epath.Path(os.path.normpath(os.path.join(os.path.realpath(workdir), text)))
    # Prefer the shorter path that the user typed, unless a symbolic link makes it a different folder.
    short = epath.Path(os.path.normpath(os.path.join(workdir, text)))
    return short if _same_folder(short, real) else real


def _same_folder(first: epath.Path, second: epath.Path) -> bool:
    if is_remote(first) or is_remote(second):
        return str(first) == str(second)
    return os.path.realpath(first) == os.path.realpath(second)
