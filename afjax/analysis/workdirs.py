"""Reads workdirs: an experiment's config and its runs, with their logs, results, time and memory."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epath

from afjax import store
from afjax.errors import UserError
from afjax.model.loading import load_task_model
from afjax.model.task_model import TaskModel
from afjax.storage.json_files import parse_json, read_json
from afjax.storage.paths import absolute, open_path
from afjax.store import Manifest
from afjax.train.experiment import Result, parse_results, read_results
from afjax.train.record import RECORD, TRAINED, by_path
from afjax.train.usage import read_usage
from afjax.train.workdir import CONFIG, INPUTS, TARGET, find_store
from afjax.trunk.pretrained import Trunk

# The value of a setting on a side of a comparison that does not have the setting.
NOT_SET = "not set"
# Settings in which repeated runs may differ: the seed, the name, and settings that do not affect results.
IGNORED_SETTINGS = ("seed", "name", "mesh", "scan_layers", "remat")
RESTORE = "restore it from a copy"
# The number of levels of folders that are searched for workdirs, as in ``afjax table``.
_DEPTH = 4


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """The record of one run of the training loop.

    Attributes:
      title: The path of the run's folder in the workdir, such as ``sources/rte``.
      lines: The objects in the run's ``metrics.jsonl``, in order.
      results: The results, or empty if the run is not finished.
      usage: The time, memory and devices that the run used, or empty if not recorded.
    """

    title: str
    lines: tuple[Mapping[str, Any], ...]
    results: tuple[Result, ...]
    usage: Mapping[str, Any]

    @property
    def steps(self) -> list[Mapping[str, Any]]:
        """The lines of training steps."""
        return [line for line in self.lines if "loss" in line]

    @property
    def evaluations(self) -> list[Mapping[str, Any]]:
        """The evaluations on the dev split, with the scores by name: ``{"step", "accuracy", ...}``."""
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
      title: The path of that folder relative to the given folder, or the folder's name if it was given itself.
      config: The config as JSON data.
      inputs: Digests of the inputs, by the inputs' names.
      runs: The runs, the target run last.
    """

    workdir: epath.Path
    title: str
    config: Mapping[str, Any]
    inputs: Mapping[str, str]
    runs: tuple[RunRecord, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the config by dotted path."""
        return by_path(self.config)

    @property
    def results(self) -> dict[str, Result]:
        """The target run's results by task, or empty if it is not finished.

        In a sequence, the last result on a task counts.
        """
        return {result.task: result for run in self.runs if run.title == TARGET for result in run.results}

    @property
    def score(self) -> float:
        """The mean of the tasks' main dev metrics, or minus infinity if it is not finite, so that it is never best."""
        mean = statistics.fmean(result.metrics[result.main_metric] for result in self.results.values())
        return mean if math.isfinite(mean) else -math.inf


def find_experiments(workdir: epath.Path) -> list[ExperimentRecord]:
    """Reads the experiment of a workdir, or all experiments in a folder.

    The folder of a sweep has several experiments. They are sorted by path. Unfinished experiments are included.

    Raises:
      UserError: No experiment is finished, or a file of an experiment is damaged.
    """
    workdir = open_path(workdir)
    if (workdir / CONFIG).exists() or (workdir / RECORD).exists():
        experiments = [_experiment(workdir, absolute(workdir).name)]
    else:
        folders = _search(workdir, _DEPTH)
        experiments = [_experiment(folder, folder.relative_to(workdir).as_posix()) for folder in folders]
    if not any(experiment.results for experiment in experiments):
        started = f" ({len(experiments)} started)" if experiments else ""
        raise UserError(
            f"{workdir} has no finished run{started}; give --workdir the folder of a finished run (of afjax train, "
            "afjax sweep, or a recipe called from Python). For a run from Python of an earlier version, call "
            "the recipe again with the same arguments: it does not train again, and writes what reports need."
        )
    return experiments


def by_tasks(finished: Sequence[ExperimentRecord]) -> dict[str, list[ExperimentRecord]]:
    """Groups experiments by their tasks, because scores on different tasks are not comparable."""
    groups: dict[str, list[ExperimentRecord]] = {}
    for experiment in finished:
        groups.setdefault(", ".join(experiment.results), []).append(experiment)
    return groups


def find_best(finished: Sequence[ExperimentRecord]) -> ExperimentRecord:
    """Returns the experiment with the best dev score on the tasks that most experiments have.

    If several tasks have the same number of experiments, the first of them is chosen.
    """
    largest_group = max(by_tasks(finished).values(), key=len)
    return max(largest_group, key=lambda experiment: experiment.score)


def is_of_run(manifest: Manifest, experiment: ExperimentRecord, result: Result, *, source: bool = False) -> bool:
    """Returns whether an artefact was saved by a run. A store may have another run's artefact of the same name.

    Args:
      manifest: The artefact's manifest.
      experiment: The experiment of the run.
      result: The result of the run.
      source: Whether the run is a fusion's source. Its artefacts may come from a store and have another seed.
    """
    # Manifests have None instead of numbers that are not finite.
    metrics = {name: value if math.isfinite(value) else None for name, value in result.metrics.items()}
    return manifest.metrics == metrics and (source or manifest.seed == experiment.config["seed"])


@dataclasses.dataclass(frozen=True)
class Moved:
    """The current store and trunk of a run. Empty if they are still where the workdir says."""

    store_folder: str = ""
    trunk: str = ""


def load_result(
    experiment: ExperimentRecord,
    result: Result,
    load_trunk: Callable[[str], Trunk],
    *,
    source: bool = False,
    moved: Moved = Moved(),
) -> TaskModel:
    """Loads the model that a run of an experiment trained.

    Args:
      experiment: The experiment.
      result: One of the experiment's results.
      load_trunk: Loads a trunk by name, as ``afjax.load_trunk`` does. It is called repeatedly with the same name.
      source: Whether the result is from a fusion's source.
      moved: The current store and trunk of the run, if they were moved.

    Raises:
      UserError: The store or the trunk is missing or damaged, or the store has another run's model of that name.
    """
    folder = str(moved.store_folder or find_store(experiment.workdir))
    adapter = fusion = ""
    if source or experiment.config["partition"] in ("adapter", "adapter+trunk"):
        adapter = result.name
    if experiment.config["recipe"] == "fusion" and not source:
        adapter, fusion = "", result.name
    if result.name not in store.names(folder, "heads"):
        raise UserError(f'The store {folder} has no head "{result.name}"; give --store the one that it was saved to.')
    kinds = ["heads", *(["adapters"] if adapter else []), *(["fusion"] if fusion else [])]
    manifests = [store.read_manifest(folder, kind, result.name) for kind in kinds]
    if not all(is_of_run(manifest, experiment, result, source=source) for manifest in manifests):
        raise UserError(
            f'The store {folder} holds another run\'s model "{result.name}"; give --store the one that '
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
        raise UserError(f"{trunk_folder}, the trunk that this run trained, does not exist; give it with --trunk.")
    name = moved.trunk or (str(trunk_folder) if trunk_folder.exists() else experiment.config["trunk"])
    return load_task_model(folder, load_trunk(name), head=result.name, adapter=adapter, fusion=fusion)


def differing_settings(sides: Sequence[Mapping[str, Any]], leave_out: Sequence[str] = ()) -> dict[str, list[Any]]:
    """Returns the settings that differ, with their value on each side: ``{setting: [value, ...]}``.

    The value is ``NOT_SET`` if a side does not have the setting.

    Args:
      sides: The settings of each side by dotted path.
      leave_out: Settings to ignore, by the first part of their paths.
    """
    names = dict.fromkeys(name for side in sides for name in side if name.partition(".")[0] not in leave_out)
    settings = {name: [side.get(name, NOT_SET) for side in sides] for name in names}
    return {name: values for name, values in settings.items() if any(value != values[0] for value in values)}


def _search(folder: epath.Path, depth: int) -> list[epath.Path]:
    """Returns the workdirs in a folder. The folder may itself be a workdir."""
    # A config.json is not enough: a trunk's folder has one too, but no inputs.
    if (folder / CONFIG).exists() and (folder / INPUTS).exists():
        return [folder]
    if (folder / RECORD).exists():
        return [folder]
    children = [child for child in _folders(folder) if not child.name.startswith(".")] if depth else []
    return [workdir for child in children for workdir in _search(child, depth - 1)]


def _experiment(folder: epath.Path, title: str) -> ExperimentRecord:
    if not (folder / CONFIG).exists():
        return _python_run(folder, title)
    places = [
        *_folders(folder / "sources"),
        # The sequential recipe has one run per task in the target's folder.
        *(place for place in _folders(folder / TARGET) if (place / "metrics.jsonl").exists()),
        folder / TARGET,
    ]
    runs = []
    for place in places:
        lines, results = _lines(place / "metrics.jsonl"), tuple(read_results(place))
        if lines or results:
            runs.append(RunRecord(place.relative_to(folder).as_posix(), lines, results, _usage(place)))
    config = read_json(folder / CONFIG, advice=RESTORE) or {}
    _check_config(config, folder / CONFIG)
    inputs = read_json(folder / INPUTS, advice=RESTORE) or {}
    return ExperimentRecord(folder, title, config, inputs, tuple(runs))


def _python_run(folder: epath.Path, title: str) -> ExperimentRecord:
    """Reads the run of a recipe that was called from Python. Its settings serve as the experiment's config."""
    record = read_json(folder / RECORD, advice=RESTORE) or {}
    settings, inputs = record.get("settings"), record.get("inputs")
    trained = read_json(folder / TRAINED, advice=RESTORE, constants=True) or {}
    trunk, entries = trained.get("trunk", ""), trained.get("results", [])
    if not (isinstance(settings, dict) and isinstance(inputs, dict)):
        raise UserError(f"{folder / RECORD} is damaged (it has no settings or no inputs); {RESTORE}.")
    if not (isinstance(trunk, str) and isinstance(entries, list)):
        raise UserError(f"{folder / TRAINED} is damaged (it has no trunk or no results); {RESTORE}.")
    results = parse_results(entries, folder / TRAINED, RESTORE)
    # The settings of a fusion have no partition, but an experiment's config has the default partition.
    config = {"trunk": trunk, "partition": "adapter", **settings}
    _check_config(config, folder / RECORD)
    # In an experiment's inputs, the names of rows begin with the role of their task, here "task".
    rows = {f"task {name}" if name.endswith(" rows") else name: value for name, value in inputs.items()}
    run = RunRecord(TARGET, _lines(folder / "metrics.jsonl"), tuple(results), _usage(folder))
    return ExperimentRecord(folder, title, config, rows, (run,))


def _check_config(config: Mapping[str, Any], path: epath.Path) -> None:
    """Raises UserError if a config lacks a setting that reports need, or if its type is wrong."""
    for key, kind in {"recipe": str, "trunk": str, "partition": str, "seed": int}.items():
        if not isinstance(config.get(key), kind):
            problem = f"its {key} is {config[key]!r}" if key in config else f"it has no {key}"
            raise UserError(f"{path} is damaged ({problem}); {RESTORE}.")


def _folders(place: epath.Path) -> list[epath.Path]:
    try:
        return sorted(path for path in place.iterdir() if path.is_dir())
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
        raise UserError(f"{path} cannot be read ({error.strerror or error}); restore it from a copy.") from None
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


def _usage(place: epath.Path) -> dict[str, Any]:
    """Returns the recorded usage of a run, without invalid values."""
    usage = read_usage(place)
    return {
        key: value
        for key, value in usage.items()
        if key == "devices" or (_is_number(value) and math.isfinite(value) and value >= 0)
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
