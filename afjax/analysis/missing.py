"""Commands that train a table's missing runs, as variations of finished runs."""

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from afjax.analysis.cells import Cell
from afjax.analysis.run_records import Collection, RunRecord
from afjax.config.experiment import ExperimentConfig
from afjax.config.flags import value_text
from afjax.config.from_dict import from_dict, to_dict
from afjax.config.tasks import TaskConfig
from afjax.errors import UserError
from afjax.storage.json_files import read_json
from afjax.train.sweep_files import SWEEP_RECORD
from afjax.train.workdir import CONFIG, source_folder

# The methods of configs/baselines.py, in addition to top-K. Their commands do not need a finished run as a template.
BASELINES = ("head", "full", "layernorm", "pfeiffer", "houlsby")


def command(
    collection: Collection, cells: Mapping[tuple[str, str], Cell], task: str, method: str, seed: int
) -> str | None:
    """Returns the command that trains a missing run, or None if there is no template.

    The command is the first of these that applies:

    * resume the run, if it was started,
    * repeat a run of the method on the same task, with the new seed,
    * repeat a run of the method on a different task, with the task replaced,
    * train the method with ``configs/baselines.py``.
    """
    for unfinished_run in collection.unfinished:
        if (unfinished_run.task, unfinished_run.method, unfinished_run.seed) == (task, method, seed):
            return _line([f"--config={unfinished_run.folder / CONFIG}", f"--workdir={unfinished_run.folder}"])
    method_cells = [cells[task, method]] if (task, method) in cells else []
    method_cells += [cell for (_, name), cell in cells.items() if name == method]
    donors = [record for cell in method_cells for record in cell.records if record.config is not None]
    example = next(record for record in collection.records if record.task == task)
    if donors:
        return _donor_command(donors[0], example.task_config, method, seed)
    if not is_baseline(method):
        return None
    with_config = [record for record in collection.records if record.config is not None]
    return _baseline_command(example, with_config[0].config if with_config else None, method, seed)


def is_baseline(method: str) -> bool:
    """Returns whether ``configs/baselines.py`` trains a method."""
    return method in BASELINES or (method.startswith("top-") and method[4:].isdecimal())


def overrides(current: ExperimentConfig, wanted: ExperimentConfig) -> list[str]:
    """Returns the ``--config.a.b=value`` flags that turn ``current`` into ``wanted``.

    ``wanted`` must not have sources that ``current`` lacks.
    """
    flags = []
    old, new = _by_name(current), _by_name(wanted)
    if old["sources"] and not new["sources"]:
        flags.append("--config.sources=()")
        old["sources"] = {}
    for name in new["tasks"].keys() - old["tasks"].keys():
        old["tasks"][name] = to_dict(TaskConfig(name=name))
    return flags + _flags(_changes(_leaves(old), _leaves(new)))


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    return {path: value for path, value in new.items() if old.get(path, ...) != value}


def _flags(settings: Mapping[str, Any]) -> list[str]:
    return [f"--config.{path}={value_text(value)}" for path, value in settings.items()]


def _donor_command(donor: RunRecord, task: TaskConfig, method: str, seed: int) -> str:
    assert donor.config is not None
    path = donor.folder / CONFIG
    donor_config: ExperimentConfig = from_dict(ExperimentConfig, read_json(path) or {})
    config = dataclasses.replace(donor.config, seed=seed)
    name = f"{task.name}-{method}"
    if task.name in [other.name for other in config.tasks]:
        # The run covers all its tasks, so its workdir is named only after the method.
        name = method
    elif config.tasks:
        config = dataclasses.replace(config, tasks=(*config.tasks, task))
    elif config.task != task and donor.task != task.name:
        config = dataclasses.replace(config, task=task, name=rename_task(config.name, donor.task, task.name))
    flags: list[str] = []
    source_folders = [source_folder(donor.folder, source.task.name) for source in config.sources]
    loaded_from_store = not any(folder.exists() for folder in source_folders)
    if config.recipe == "fusion" and donor.store and (loaded_from_store or seed == donor.seed):
        # The store has the adapters to fuse. Fuse them again under a new name.
        flags = [f"--store={donor.store}"]
        config = dataclasses.replace(config, name=f"{config.artifact_name(config.target)}-seed{seed}")
    workdir = _new_workdir(donor.folder, f"{name}-seed{seed}")
    return _line([f"--config={path}", *overrides(donor_config, config), f"--workdir={workdir}", *flags])


def rename_task(name: str, old_task: str, new_task: str) -> str:
    """Replaces a task in an artifact's name, such as ``rte`` in ``rte-fusion``, but not within ``start``."""
    return re.sub(rf"(?<![^\W_]){re.escape(old_task)}(?![^\W_])", lambda _: new_task, name)


def _baseline_command(example: RunRecord, known_config: ExperimentConfig | None, method: str, seed: int) -> str:
    name, layers = ("top_k", f",top_k={method[4:]}") if method.startswith("top-") else (method, "")
    plain, task = (
        _leaves({"task": to_dict(config)}) for config in (TaskConfig(name=example.task), example.task_config)
    )
    # Always pass the source, even if it is empty, because the config file has a default source.
    settings = {"task.source": task["task.source"], **_changes(plain, task)}
    settings["trunk"] = known_config.trunk if known_config else example.trunk_name
    if known_config:
        settings["train.max_length"] = known_config.train.max_length
    workdir = _new_workdir(example.folder, f"{example.task}-{method}-seed{seed}")
    config = f"--config=configs/baselines.py:method={name},task={example.task}{layers}"
    return _line([config, *_flags({**settings, "seed": seed}), f"--workdir={workdir}"])


def _new_workdir(workdir: epath.Path, name: str) -> epath.Path:
    """Finds an unused path next to a workdir, or next to the sweep that contains it."""
    parent = workdir.parent
    if parent.name == "runs" and (parent.parent / SWEEP_RECORD).exists():
        parent = parent.parent.parent
    name = name.replace("1/", "r").replace(":", "-")
    names = [name, *(f"{name}-{number}" for number in range(2, 1000))]
    for candidate in names:
        if not (parent / candidate).exists():
            return parent / candidate
    raise UserError(f"{parent} already has a thousand folders named like {name}; move these runs elsewhere.")


def _by_name(config: ExperimentConfig) -> dict[str, Any]:
    values = to_dict(config)
    values["tasks"] = {task["name"]: task for task in values["tasks"]}
    values["sources"] = {source["task"]["name"]: source for source in values["sources"]}
    return values


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        # Class weights are one setting, although their value is a mapping.
        is_section = isinstance(value, Mapping) and key != "class_weights"
        leaves |= _leaves(value, f"{prefix}{key}.") if is_section else {f"{prefix}{key}": value}
    return leaves


def _line(arguments: Sequence[str]) -> str:
    return shlex.join(["afjax", "train", *arguments])
