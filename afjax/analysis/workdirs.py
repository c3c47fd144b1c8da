"""Reads workdirs: an experiment's config, and its runs' logs, results and usage."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from afjax import store
from afjax.errors import UserError
from afjax.model.loading import load_task_model
from afjax.model.task_model import TaskModel
from afjax.storage.json_files import parse_json, read_json
from afjax.storage.paths import absolute, check_readable, error_text, is_remote, open_path
from afjax.store import Manifest
from afjax.train.record import RECORD, TRAINED, by_path
from afjax.train.results import Result, parse_results, read_results
from afjax.train.sweep_files import RUNS_TABLE
from afjax.train.usage import read_usage
from afjax.train.workdir import CONFIG, INPUTS, TARGET, find_store
from afjax.trunk.pretrained import Trunk

# The value shown in a comparison for a side that lacks the setting.
NOT_SET = "not set"
# Settings that may differ between repetitions of a run: the seed, the name, and settings that do not affect results.
IGNORED_SETTINGS = ("seed", "name", "mesh", "scan_layers", "remat")
RESTORE = "restore it from a copy"


@dataclasses.dataclass(frozen=True)
class WorkdirRun:
    """The record of one run of the training loop.

    Attributes:
      title: The run's folder relative to the workdir, such as ``sources/rte``.
      lines: The objects in the run's ``metrics.jsonl``, in order.
      results: The results, or empty if the run is not finished.
      usage: The run's time, memory and devices; empty if not recorded.
    """

    title: str
    lines: tuple[Mapping[str, Any], ...]
    results: tuple[Result, ...]
    usage: Mapping[str, Any]

    @property
    def steps(self) -> list[Mapping[str, Any]]:
        """The log lines of training steps."""
        return [line for line in self.lines if "loss" in line]

    @property
    def evaluations(self) -> list[Mapping[str, Any]]:
        """The dev evaluations, with scores by name: ``{"step", "accuracy", ...}``."""
        return [
            {key.removeprefix("dev/"): value for key, value in line.items()}
            for line in self.lines
            if any(key.startswith("dev/") for key in line)
        ]


@dataclasses.dataclass(frozen=True)
class ExperimentRecord:
    """The record of one experiment.

    Attributes:
      workdir: The experiment's folder.
      title: The folder's path relative to the searched folder, or its name if it is that folder.
      config: The config as JSON data.
      inputs: Digests of the inputs by name.
      runs: The runs, with the target run last.
    """

    workdir: epath.Path
    title: str
    config: Mapping[str, Any]
    inputs: Mapping[str, str]
    runs: tuple[WorkdirRun, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the config by dotted path."""
        return by_path(self.config)

    @property
    def conditions(self) -> dict[str, Any]:
        """Everything that repetitions of a run share: its settings, and the digests of its trunk, rows and adapters."""
        settings = {
            name: value for name, value in self.settings.items() if name.partition(".")[0] not in IGNORED_SETTINGS
        }
        digests = {
            name: str(digest)[:12]
            for name, digest in self.inputs.items()
            if name == "the trunk" or name.endswith(" rows") or name.startswith("the adapter ")
        }
        return {**settings, **digests}

    @property
    def tasks(self) -> str:
        """The names of the tasks, with main metrics other than accuracy."""
        metrics = {task: result.main_metric for task, result in self.results.items()}
        return ", ".join(task if metric == "accuracy" else f"{task} ({metric})" for task, metric in metrics.items())

    @property
    def results(self) -> dict[str, Result]:
        """The target run's results by task, or empty if it is not finished.

        In sequential training, the last result on a task counts.
        """
        return {result.task: result for run in self.runs if run.title == TARGET for result in run.results}

    @property
    def score(self) -> float:
        """The mean of the tasks' main dev metrics.

        A mean that is not finite becomes minus infinity, so that it is never the best.
        """
        mean = statistics.fmean(result.metrics[result.main_metric] for result in self.results.values())
        return mean if math.isfinite(mean) else -math.inf


def find_folders(folder: epath.Path, depth: int = 4) -> Iterator[tuple[str, epath.Path]]:
    """Finds workdirs, runs trained from Python, sweeps and stores in a folder.

    Args:
      folder: The folder, which may itself be one of these.
      depth: The maximum depth of the search. A sweep's runs are two levels below its folder.

    Yields:
      ``(kind, folder)``, sorted by path, with the kind ``workdir``, ``python``, ``sweep`` or ``store``. A folder may
      have several kinds. The only other folder in a workdir is its own store.
    """
    # A config.json is not enough: a trunk's folder has one too, but no inputs.
    if (folder / CONFIG).exists() and (folder / INPUTS).exists():
        yield "workdir", folder
        if (folder / "store").is_dir():
            yield "store", folder / "store"
        return
    if (folder / RECORD).exists() or (folder / TRAINED).exists():
        yield "python", folder
    if (folder / RUNS_TABLE).exists():
        yield "sweep", folder
    children = [child for child in _folders(folder) if not child.name.startswith(".")]
    # Folders of runs may have the names of kinds too, such as runs/adapters.
    if any(child.name in store.KINDS and store.names(folder, child.name) for child in children):
        yield "store", folder
        children = [child for child in children if child.name not in store.KINDS]
    for child in children if depth else ():
        yield from find_folders(child, depth - 1)


def find_experiments(workdir: epath.Path) -> list[ExperimentRecord]:
    """Reads the experiment of a workdir, or all experiments in a folder.

    Experiments in a folder, such as a sweep's, are sorted by path and include unfinished ones.

    Raises:
      UserError: No experiment is finished, or a file of an experiment is damaged.
    """
    workdir = open_path(workdir)
    if is_remote(workdir):
        check_readable(workdir, "workdir")
    if (workdir / CONFIG).exists() or (workdir / RECORD).exists():
        experiments = [_experiment(workdir, absolute(workdir).name)]
    else:
        folders: list[epath.Path] = []
        for kind, folder in find_folders(workdir):
            is_run = kind == "workdir" or (kind == "python" and (folder / RECORD).exists())
            # A Python run's folder also has the folders of its parts.
            if is_run and not any(folder.is_relative_to(outer) for outer in folders):
                folders.append(folder)
        experiments = [_experiment(folder, folder.relative_to(workdir).as_posix()) for folder in folders]
    if not any(experiment.results for experiment in experiments):
        started = f" ({len(experiments)} started)" if experiments else ""
        raise UserError(
            f"{workdir} has no finished run{started}; set --workdir to the folder of a finished run (of afjax train, "
            "afjax sweep, or a recipe called from Python). If the run is from a recipe of an earlier version of afjax, "
            "call the recipe again with the same arguments: without retraining, it writes the files that reports need."
        )
    return experiments


def by_tasks(finished: Sequence[ExperimentRecord]) -> dict[str, list[ExperimentRecord]]:
    """Groups experiments by tasks and main metrics.

    Scores on different tasks or with different metrics are not comparable.
    """
    groups: dict[str, list[ExperimentRecord]] = {}
    for experiment in finished:
        groups.setdefault(experiment.tasks, []).append(experiment)
    return groups


def find_best(finished: Sequence[ExperimentRecord]) -> ExperimentRecord:
    """Returns the experiment with the best dev score on the most common tasks.

    In case of a tie, the first of the most common tasks is used.
    """
    largest_group = max(by_tasks(finished).values(), key=len)
    return max(largest_group, key=lambda experiment: experiment.score)


def is_of_run(manifest: Manifest, experiment: ExperimentRecord, result: Result, *, source: bool = False) -> bool:
    """Checks whether the given run saved an artifact.

    Args:
      manifest: The manifest of an artifact with the result's name.
      experiment: The run's experiment.
      result: The run's result.
      source: Whether the run is a fusion's source, whose artifacts may come from a store and have a different seed.
    """
    # Manifests store None for numbers that are not finite.
    metrics = {name: value if math.isfinite(value) else None for name, value in result.metrics.items()}
    return manifest.metrics == metrics and (source or manifest.seed == experiment.config["seed"])


@dataclasses.dataclass(frozen=True)
class Moved:
    """The new locations of a run's store and trunk; empty if they were not moved."""

    store_folder: str = ""
    trunk: str = ""


def load_result(
    experiment: ExperimentRecord, result: Result, load_trunk: Callable[[str], Trunk], *, moved: Moved = Moved()
) -> TaskModel:
    """Loads the model that an experiment's target run trained.

    Args:
      experiment: The experiment.
      result: One of the experiment's results.
      load_trunk: Loads a trunk by name, like ``afjax.load_trunk``. It may be called repeatedly with the same name.
      moved: The run's current store and trunk, if they were moved.

    Raises:
      UserError: The store or the trunk is missing or damaged, or the store has a different run's model of that name.
    """
    folder = str(moved.store_folder or find_store(experiment.workdir))
    adapter = fusion = ""
    if experiment.config["recipe"] == "fusion":
        fusion = result.name
    elif experiment.config["partition"] in ("adapter", "adapter+trunk"):
        adapter = result.name
    if result.name not in store.names(folder, "heads"):
        raise UserError(f'The store {folder} has no head "{result.name}"; set --store to the store that has it.')
    kinds = ["heads", *(["adapters"] if adapter else []), *(["fusion"] if fusion else [])]
    manifests = [store.read_manifest(folder, kind, result.name) for kind in kinds]
    if not all(is_of_run(manifest, experiment, result) for manifest in manifests):
        raise UserError(
            f'The store {folder} has another run\'s model "{result.name}"; set --store to the store that '
            f"{experiment.workdir} saved to."
        )
    trunk_folder = experiment.workdir / "trunk"
    initial_trunk = experiment.inputs.get("the trunk")
    if (
        not moved.trunk
        and not trunk_folder.exists()
        and initial_trunk
        and manifests[0].trunk.get("sha256") != initial_trunk
    ):
        raise UserError(
            f"{trunk_folder}, the trunk that this run trained, does not exist; set --trunk to its current path."
        )
    name = moved.trunk or (str(trunk_folder) if trunk_folder.exists() else experiment.config["trunk"])
    return load_task_model(folder, load_trunk(name), head=result.name, adapter=adapter, fusion=fusion)


def differing_settings(sides: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Finds settings that differ, with each side's value: ``{setting: [value, ...]}``.

    The value is ``NOT_SET`` if a side lacks the setting.

    Args:
      sides: The settings of each side by dotted path.
    """
    names = dict.fromkeys(name for side in sides for name in side)
    settings = {name: [side.get(name, NOT_SET) for side in sides] for name in names}
    return {name: values for name, values in settings.items() if any(value != values[0] for value in values)}


def _experiment(folder: epath.Path, title: str) -> ExperimentRecord:
    if not (folder / CONFIG).exists():
        return _python_run(folder, title)
    run_folders = [
        *_folders(folder / "sources"),
        # The sequential recipe has one run per task in the target's folder.
        *(child for child in _folders(folder / TARGET) if (child / "metrics.jsonl").exists()),
        folder / TARGET,
    ]
    runs = []
    for run_folder in run_folders:
        lines, results = _lines(run_folder / "metrics.jsonl"), tuple(read_results(run_folder))
        if lines or results:
            runs.append(WorkdirRun(run_folder.relative_to(folder).as_posix(), lines, results, read_usage(run_folder)))
    config = read_json(folder / CONFIG, advice=RESTORE) or {}
    _check_config(config, folder / CONFIG)
    inputs = read_json(folder / INPUTS, advice=RESTORE) or {}
    return ExperimentRecord(folder, title, config, inputs, tuple(runs))


def _python_run(folder: epath.Path, title: str) -> ExperimentRecord:
    """Reads the run of a recipe that was called from Python.

    The recipe's settings become the experiment's config.
    """
    record = read_json(folder / RECORD, advice=RESTORE) or {}
    settings, inputs = record.get("settings"), record.get("inputs")
    trained = read_json(folder / TRAINED, advice=RESTORE, constants=True) or {}
    trunk, entries = trained.get("trunk", ""), trained.get("results", [])
    if not (isinstance(settings, dict) and isinstance(inputs, dict)):
        raise UserError(f"{folder / RECORD} is damaged (it has no settings or no inputs); {RESTORE}.")
    if not (isinstance(trunk, str) and isinstance(entries, list)):
        raise UserError(f"{folder / TRAINED} is damaged (it has no trunk or no results); {RESTORE}.")
    results = parse_results(entries, folder / TRAINED, RESTORE)
    # A fusion's settings have no partition, but an experiment's config has the default one.
    config = {"trunk": trunk, "partition": "adapter", **settings}
    _check_config(config, folder / RECORD)
    # In an experiment's inputs, the names of rows begin with their task's role, here "task".
    rows = {f"task {name}" if name.endswith(" rows") else name: value for name, value in inputs.items()}
    run = WorkdirRun(TARGET, _lines(folder / "metrics.jsonl"), tuple(results), read_usage(folder))
    return ExperimentRecord(folder, title, config, rows, (run,))


def _check_config(config: Mapping[str, Any], path: epath.Path) -> None:
    """Raises UserError if a setting that reports need is missing or of the wrong type."""
    for key, kind in {"recipe": str, "trunk": str, "partition": str, "seed": int}.items():
        if not isinstance(config.get(key), kind):
            problem = f"its {key} is {config[key]!r}" if key in config else f"it has no {key}"
            raise UserError(f"{path} is damaged ({problem}); {RESTORE}.")


def _folders(folder: epath.Path) -> list[epath.Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _lines(path: epath.Path) -> tuple[Mapping[str, Any], ...]:
    """Reads the numbers on each line of a log.

    Damaged lines are skipped, because a killed run may leave an incomplete line.
    """
    if not path.exists():
        return ()
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error_text(error)}); restore it from a copy.") from None
    lines = []
    for line in text.splitlines():
        try:
            values = parse_json(line, str(path), constants=True)
        except UserError:
            continue
        numbers = {key: value for key, value in values.items() if _is_number(value)}
        if math.isfinite(numbers.get("step", math.nan)):
            lines.append(numbers)
    return tuple(lines)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
