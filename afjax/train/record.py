"""The record of a run's settings and inputs, in the run's folder.

It ensures that a run is only resumed with the same settings and inputs.

A run's folder holds ``run.json``::

    {"settings": {...}, "inputs": {"the trunk": SHA-256, "rte's train rows": SHA-256, ...}, "lengths": [16, 32],
     "dev_lengths": [32]}

``settings`` holds all arguments that the result depends on, and ``inputs`` holds digests of everything that the run
reads. ``lengths`` and ``dev_lengths`` are the padded lengths of train and dev batches. A later version of afjax may
choose different lengths for the same rows, but a resumed run keeps the recorded ones.
"""

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from afjax.config.defaults import FORMER_POOLING
from afjax.data.lengths import PaddedLengths
from afjax.distributed.hosts import all_hosts_or_raise, is_first_host
from afjax.distributed.notes import note
from afjax.errors import UserError
from afjax.storage.json_files import json_digest, read_json
from afjax.storage.locking import only_holder
from afjax.storage.paths import file_error, is_remote
from afjax.storage.writing import write_json
from afjax.trunk.pretrained import Trunk

RECORD = "run.json"
# The trunk's name and the results of a finished run. Reports use it for runs outside an experiment.
TRAINED = "trained.json"
# The record of fusion runs before run.json existed: {adapter name: SHA-256}.
FORMER_RECORD = "fused.json"
CHECKPOINTS = "checkpoints"
# The key for the digest of the array shapes in a checkpoint's inputs.
SHAPES = "the arrays' shapes"
# The key for the digest of run.json in a checkpoint's inputs.
RECORD_DIGEST = "the run's record"
# Everything that training writes into a run's folder.
_FILES = ("metrics.jsonl", "usage.json", "scores.json", "result.json", TRAINED, FORMER_RECORD, RECORD)
_FOLDERS = (CHECKPOINTS, "tensorboard")

# Settings that earlier versions did not have, with values that reproduce their behavior. In those versions, every task
# had a dev split and no task was multi-label, so dev_share and multi_label do not affect their runs.
FORMER_SETTINGS: Mapping[str, Any] = {
    "train.weight_decay_on": "kernels",
    "head.pooling": FORMER_POOLING,
    "train.class_weights": "",
    "train.label_smoothing": 0.0,
    "dev_share": 0.1,
    "multi_label.separator": "|",
    "multi_label.threshold": 0.5,
    "multi_label.tune_threshold": False,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSpec:
    """Everything that a run's result depends on.

    Attributes:
      settings: The run's arguments, as nested mappings of JSON values.
      inputs: ``{name: digest or value}`` of everything that the run reads: the trunk, the rows, a fusion's adapters.
    """

    settings: Mapping[str, Any]
    inputs: Mapping[str, str]


def check_run(folder: epath.Path, spec: RunSpec) -> PaddedLengths | None:
    """Checks that a folder's run can be resumed with these settings and inputs.

    Args:
      folder: The run's folder, which need not exist.
      spec: The settings and inputs of this call.

    Returns:
      The padded lengths that the run began with. None for a new run, or if an earlier version did not record them.

    Raises:
      UserError: The run began with different settings or inputs, or its record is damaged. The message lists every
        difference, with both values unless they are digests.
    """
    if not has_checkpoint(folder):
        return None
    lengths, unchecked = _compare(folder, spec)
    note_unchecked(folder, unchecked)
    return lengths


def _compare(folder: epath.Path, spec: RunSpec) -> tuple[PaddedLengths | None, list[str]]:
    """Compares a folder's run with a call, like :func:`check_run`.

    Returns:
      The result of :func:`check_run`, and the names of settings and inputs that an earlier version did not record.
    """
    record = _read_record(folder)
    differences = setting_differences(record["settings"], spec.settings) if record["settings"] else []
    changed, unchecked = input_differences(record["inputs"], spec.inputs)
    if differences or changed:
        raise UserError(
            f"The folder {folder} holds a run with different settings or inputs "
            f"({'; '.join([*differences, *changed])}). Use the same ones to resume it, choose another workdir, or "
            "discard the run with options=RunOptions(overwrite=True) (in Python)."
        )
    if record["settings"]:
        # Every version that writes run.json records these inputs.
        lost = [name for name in unchecked if name == "the trunk" or name.endswith(" rows") or "adapter" in name]
        if lost:
            raise UserError(
                f"{folder / RECORD} is damaged (it lacks {', '.join(lost)}). Delete {folder} to train again."
            )
    if not record["settings"]:
        unchecked = ["its settings", *unchecked]
    if not record["lengths"]:
        return None, [*unchecked, "its padded lengths"]
    # An earlier version used the same lengths for train and dev rows.
    return PaddedLengths(tuple(record["lengths"]), tuple(record.get("dev_lengths", record["lengths"]))), unchecked


def recorded_settings(folder: epath.Path, *, overwrite: bool) -> dict[str, Any]:
    """Reads the settings of the run to resume, by dotted path.

    All hosts must call this.

    Args:
      folder: The run's folder, which need not exist.
      overwrite: Whether an existing run will be discarded.

    Returns:
      The settings, or an empty dictionary if no run will be resumed. If the run predates the setting ``head.pooling``,
      its former value is filled in.

    Raises:
      UserError: The record is damaged.
    """
    with all_hosts_or_raise():
        if overwrite or not has_checkpoint(folder):
            return {}
        return with_former_pooling(_read_record(folder)["settings"])


def with_former_pooling(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flattens recorded settings to dotted paths, and adds ``head.pooling``.

    Runs that predate this setting used its former value.
    """
    return {"head.pooling": FORMER_SETTINGS["head.pooling"], **by_path(settings)}


def claim_run(folder: epath.Path, spec: RunSpec, lengths: PaddedLengths, *, overwrite: bool) -> dict[str, str]:
    """Writes the record of a run that is about to train. All hosts must call this.

    If another process has trained in the folder since :func:`check_run`, its run is compared again.

    Args:
      folder: The run's folder. It is created if it does not exist.
      spec: The run's settings and inputs, already checked by :func:`check_run`.
      lengths: The padded lengths of the run's batches.
      overwrite: Whether to discard an existing run in the folder.

    Returns:
      The inputs to store in the run's checkpoints: ``spec.inputs`` and the digest of the record.

    Raises:
      UserError: The folder cannot be written, another process is training in it, or it now holds a different run.
    """
    record = {
        "settings": plain(spec.settings),
        "inputs": dict(spec.inputs),
        "lengths": lengths.train,
        "dev_lengths": lengths.dev,
    }
    # Take the lock first: if another process is training here, its run must not be discarded or its record replaced.
    with only_process(folder):
        with all_hosts_or_raise():
            if is_first_host():
                # Convert the error inside the block, so that every host reports the same message.
                try:
                    if overwrite:
                        discard_run(folder)
                    if has_checkpoint(folder):
                        # A run that began without a record, in an earlier version, gets none: its settings are unknown.
                        recorded, _ = _compare(folder, spec)
                        if recorded not in (None, lengths):
                            raise UserError(
                                f"Another process has meanwhile trained in {folder}; start this run again to resume it."
                            )
                    else:
                        folder.mkdir(parents=True, exist_ok=True)
                        write_json(folder / RECORD, record)
                except OSError as error:
                    raise folder_error(folder, error) from None
        with all_hosts_or_raise():
            return {**spec.inputs, **_record_digest(folder)}


def check_record(folder: epath.Path, inputs: Mapping[str, str]) -> None:
    """Checks that a run's record is the one that :func:`claim_run` wrote or compared. All hosts must call this.

    Args:
      folder: The run's folder, which this process has locked.
      inputs: The result of :func:`claim_run`.

    Raises:
      UserError: Another process has replaced the record since.
    """
    with all_hosts_or_raise():
        if inputs.get(RECORD_DIGEST) != _record_digest(folder).get(RECORD_DIGEST):
            raise UserError(f"Another process has meanwhile begun a different run in {folder}; choose another workdir.")


def has_run(folder: epath.Path) -> bool:
    """Whether a folder holds a run, finished or not."""
    return has_checkpoint(folder) or (folder / RECORD).exists()


def discard_run(folder: epath.Path) -> None:
    """Deletes the files that training wrote into a run's folder, and nothing else.

    A folder without a run is left unchanged, because its files may be the user's. The record is deleted last: if the
    process is killed meanwhile, no checkpoint is left without its record.
    """
    if not has_run(folder):
        return
    failed = [entry.name for entry in folder.iterdir() if entry.name.startswith("not_finite_step_")]
    for name in (*_FOLDERS, *failed):
        if (folder / name).exists():
            (folder / name).rmtree()
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)


def has_checkpoint(folder: epath.Path) -> bool:
    """Whether the run in a folder has a checkpoint.

    A run without a checkpoint starts from the beginning.
    """
    return bool(_steps(folder))


@contextlib.contextmanager
def only_process(folder: epath.Path) -> Iterator[Callable[[], None]]:
    """Locks the folder within the block, so that no other process trains in it.

    On several hosts, the first host holds the lock. Object stores have no locks, so users must avoid concurrent runs.

    Yields:
      A function that raises a UserError on the first host if the folder has been moved, deleted or replaced since. It
      does not wait for other hosts, so it can be called after an error on one of them.

    Raises:
      UserError: Another process holds the lock, or the folder cannot be written.
    """
    is_in_place: Callable[[], bool] | None = None

    def check() -> None:
        if is_in_place is not None and not is_in_place():
            raise UserError(
                f"The folder {folder} was moved, deleted or replaced while a run was training in it, so the run has "
                "stopped. Move the folder back, or use its new path, and start the run again to resume it."
            )

    with contextlib.ExitStack() as stack:
        with all_hosts_or_raise():
            if is_first_host() and not is_remote(folder):
                message = f"Another process is training in {folder}; wait until it ends, or choose another workdir."
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                    is_in_place = stack.enter_context(only_holder(folder / ".lock", message))
                except OSError as error:
                    raise folder_error(folder, error) from None
        yield check


def _record_digest(folder: epath.Path) -> dict[str, str]:
    """Returns the digest of a run's record, as an input of its checkpoints.

    Checkpoints of another run with the same inputs, but with other settings, are then refused. Empty if there is no
    record, as for a run that began in an earlier version.
    """
    record = read_json(folder / RECORD, advice="delete the folder to train again")
    if record is None:
        return {}
    return {RECORD_DIGEST: json_digest(record)}


def folder_error(folder: epath.Path, error: OSError) -> UserError:
    """Creates the error for a run's folder that cannot be written."""
    return file_error(
        f"The run's folder {folder} cannot be written",
        error,
        advice="Free up space there or choose another workdir, then start the run again.",
    )


# The name of the input with the digests that earlier versions recorded for the same tokenizer.
_FORMER = "the tokenizer in earlier versions"


def trunk_inputs(trunk: Trunk) -> dict[str, str]:
    """Returns a trunk's inputs: its weights, architecture and tokenizer."""
    identity = trunk.identity()
    inputs = {"the trunk": identity["sha256"]}
    inputs |= {f"the trunk's {field}": str(value) for field, value in (identity.get("architecture") or {}).items()}
    if identity.get("tokenizer") is None:
        return inputs
    inputs |= {f"the tokenizer's {part}": str(digest) for part, digest in identity["tokenizer"].items()}
    former = {f"the tokenizer's {part}": digest for part, digest in identity["former_tokenizer"].items()}
    return inputs | {_FORMER: json.dumps(former, sort_keys=True)}


def adapter_input(name: str) -> str:
    """Returns the key of a stored adapter in a run's inputs."""
    return f"the adapter {name}"


def setting_differences(recorded: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Describes each difference: ``"train.epochs: 3.0 recorded, 5.0 given"``.

    Settings that an earlier version did not record take their values from ``FORMER_SETTINGS``.
    """
    recorded_values, given_values = by_path(recorded), by_path(plain(given))
    for key in given_values.keys() - recorded_values.keys():
        for ending, value in FORMER_SETTINGS.items():
            if key == ending or key.endswith(f".{ending}"):
                recorded_values[key] = value
    recorded_order, given_order = _adapter_order(recorded), _adapter_order(given)
    if recorded_order != given_order and sorted(recorded_order) == sorted(given_order):
        recorded_values["adapters"], given_values["adapters"] = recorded_order, given_order
    return [
        f"{key}: {recorded_values.get(key, 'not set')!r} recorded, {given_values.get(key, 'not set')!r} given"
        for key in sorted(recorded_values.keys() | given_values.keys())
        if recorded_values.get(key) != given_values.get(key)
    ]


def _adapter_order(settings: Mapping[str, Any]) -> list[str]:
    """Returns the names of a run's adapters in order.

    The indices in ``FusionConfig.kept`` refer to this order, which ``by_path`` does not preserve.
    """
    adapters = settings.get("adapters")
    return list(adapters) if isinstance(adapters, Mapping) else []


def input_differences(recorded: Mapping[str, str], given: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Compares a run's recorded inputs with the inputs of this call.

    Returns:
      A description of each input that differs, and the names of the inputs that an earlier version did not record.
    """

    def phrase(name: str) -> str:
        recorded_value, given_value = recorded.get(name), given.get(name)
        if given_value is None:
            return f"{name} is not given"
        if any(re.fullmatch("[0-9a-f]{64}", value) for value in (str(recorded_value), given_value)):
            return f"{name} changed since then"
        return f"{name}: {recorded_value} recorded, {given_value} given"

    # Records of this version contain _FORMER, but do not need it, because they contain the tokenizer's current digests.
    former = {} if _FORMER in recorded else json.loads(given.get(_FORMER, "{}"))
    different = [name for name in sorted(recorded) if recorded[name] != given.get(name) and name != _FORMER]
    changed = [phrase(name) for name in different if recorded[name] != former.get(name)]
    reread = [f"{name} as afjax reads it now" for name in different if recorded[name] == former.get(name)]
    return changed, [*sorted(given.keys() - recorded.keys() - {_FORMER}), *reread]


def by_path(values: Mapping[str, Any]) -> dict[str, Any]:
    """Flattens nested settings to ``{dotted path: value}``.

    Lists of mappings are flattened too.
    """

    found: dict[str, Any] = {}

    def visit(value: Any, path: tuple[str, ...]) -> None:
        if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            value = {str(index): item for index, item in enumerate(value)}
        if isinstance(value, Mapping):
            for key in sorted(value):
                visit(value[key], (*path, key))
        else:
            found[".".join(path)] = value

    visit(values, ())
    return found


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Converts settings to JSON types, with lists instead of tuples."""
    return json.loads(json.dumps(values))


def note_unchecked(folder: epath.Path, unchecked: Sequence[str]) -> None:
    """Prints which settings and inputs cannot be checked.

    An earlier version did not record them.
    """
    if unchecked:
        note(f"The run in {folder} was started by an earlier version, which did not record: {', '.join(unchecked)}.")


def _read_record(folder: epath.Path) -> dict[str, Any]:
    """Reads the record of a run with checkpoints.

    Fields that an earlier version did not write are empty.
    """
    advice = f"delete {folder} to train again, or choose another workdir"
    empty: dict[str, Any] = {"settings": {}, "inputs": {}, "lengths": []}
    record = read_json(folder / RECORD, advice=advice)
    if record is None:
        return {**empty, "inputs": _former_inputs(folder, advice)}
    valid = (
        record.keys() - {"dev_lengths"} == empty.keys()
        and isinstance(record["settings"], dict)
        and isinstance(record["inputs"], dict)
        and all(_are_lengths(record[field]) for field in ("lengths", "dev_lengths") if field in record)
    )
    if not valid:
        raise UserError(f"{folder / RECORD} is damaged (it must hold {', '.join(empty)}); {advice}.")
    return record


def _are_lengths(value: Any) -> bool:
    return (
        isinstance(value, list)
        and all(type(length) is int and length > 0 for length in value)
        and value == sorted(set(value))
    )


def _former_inputs(folder: epath.Path, advice: str) -> dict[str, str]:
    """Reads the inputs that earlier versions recorded.

    They are in ``fused.json`` and in each checkpoint.
    """
    adapters = read_json(folder / FORMER_RECORD, advice=advice) or {}
    newest = folder / CHECKPOINTS / str(max(_steps(folder)))
    saved = (read_json(newest / "progress" / "metadata", advice=advice) or {}).get("inputs", {})
    if not isinstance(saved, dict):
        raise UserError(f"{newest} is damaged (its inputs are invalid); {advice}.")
    # The shapes are checked when the checkpoint is restored.
    inputs = {key: digest for key, digest in saved.items() if key not in (SHAPES, RECORD_DIGEST)}
    return {**{adapter_input(name): digest for name, digest in adapters.items()}, **inputs}


def _steps(folder: epath.Path) -> list[int]:
    """Lists the steps of the checkpoints in a run's folder."""
    checkpoints = folder / CHECKPOINTS
    if not checkpoints.exists():
        return []
    entries = [entry for entry in checkpoints.iterdir() if entry.name.isdecimal()]
    return [int(entry.name) for entry in entries if (entry / "progress").exists()]
