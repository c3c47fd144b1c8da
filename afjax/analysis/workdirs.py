"""What workdirs hold, as records: an experiment's config, its runs with their logs, results and what they took."""

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

# Settings on which results do not depend, or that only name them.
NO_MATTER = ("seed", "name", "mesh", "scan_layers", "remat")
RESTORE = "restore it from a copy"
# Folders below one that was given are looked through to this depth, as ``afjax table`` does.
_DEPTH = 4


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """One run of the training loop.

    Attributes:
      title: Its folder's place in the workdir, as in ``sources/rte``.
      lines: The objects of its ``metrics.jsonl``, in order.
      results: What it gave; empty where it is not at its end.
      usage: What it took; empty where it was not recorded.
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
    def looks(self) -> list[Mapping[str, Any]]:
        """The lines of looks at the dev split, scores by name: ``{"step", "accuracy", ...}``."""
        return [
            {key.removeprefix("dev/"): value for key, value in line.items()}
            for line in self.lines
            if any(key.startswith("dev/") for key in line)
        ]


@dataclasses.dataclass(frozen=True)
class ExperimentRecord:
    """One experiment.

    Attributes:
      workdir: Its folder.
      title: That folder as seen from the one that was given.
      config: Its config, as JSON has it.
      inputs: Digests of what it read, by what that is.
      runs: That of the target last.
    """

    workdir: epath.Path
    title: str
    config: Mapping[str, Any]
    inputs: Mapping[str, str]
    runs: tuple[RunRecord, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """The config by dotted path."""
        return by_path(self.config)

    @property
    def results(self) -> dict[str, Result]:
        """What the experiment is about, by task: of a task trained in a sequence its last; empty: not finished."""
        return {result.task: result for run in self.runs if run.title == TARGET for result in run.results}

    @property
    def score(self) -> float:
        """The mean of its tasks' main dev metrics; minus infinity where one is no number, so that it is never best."""
        mean = statistics.fmean(result.metrics[result.main_metric] for result in self.results.values())
        return mean if math.isfinite(mean) else -math.inf


def find_experiments(workdir: epath.Path) -> list[ExperimentRecord]:
    """The experiment of a workdir; those in a folder, such as a sweep's, by their paths; begun ones too.

    Raises:
      UserError: There is none that is finished, or a file that says what it was is damaged.
    """
    workdir = open_path(workdir)
    if (workdir / CONFIG).exists() or (workdir / RECORD).exists():
        experiments = [_experiment(workdir, absolute(workdir).name)]
    else:
        folders = _search(workdir, _DEPTH)
        experiments = [_experiment(folder, folder.relative_to(workdir).as_posix()) for folder in folders]
    if not any(experiment.results for experiment in experiments):
        begun = f" ({len(experiments)} begun)" if experiments else ""
        raise UserError(
            f"{workdir} has no finished run{begun}; give --workdir the folder of a finished run (of afjax train, "
            "afjax sweep, or a recipe called from Python). For a run from Python of an earlier version, call "
            "the recipe again with the same arguments: it does not train again, and writes what reports need."
        )
    return experiments


def by_tasks(finished: Sequence[ExperimentRecord]) -> dict[str, list[ExperimentRecord]]:
    """Experiments by the tasks that they are about: scores on other tasks are not comparable."""
    groups: dict[str, list[ExperimentRecord]] = {}
    for experiment in finished:
        groups.setdefault(", ".join(experiment.results), []).append(experiment)
    return groups


def find_best(finished: Sequence[ExperimentRecord]) -> ExperimentRecord:
    """The one that is best on dev, of those on the task that has most (the first such task)."""
    most = max(by_tasks(finished).values(), key=len)
    return max(most, key=lambda experiment: experiment.score)


def is_of_run(manifest: Manifest, experiment: ExperimentRecord, result: Result, *, source: bool = False) -> bool:
    """Whether an artefact is what a run saved: a store may have another run's of the same name.

    Args:
      manifest: The artefact's.
      experiment: The experiment.
      result: What the run gave.
      source: Whether the result is a source's of a fusion, which may have come from the store, with a seed of its own.
    """
    # Manifests have None for what is no finite number.
    metrics = {name: value if math.isfinite(value) else None for name, value in result.metrics.items()}
    return manifest.metrics == metrics and (source or manifest.seed == experiment.config["seed"])


@dataclasses.dataclass(frozen=True)
class Moved:
    """Where the store and the trunk of a run are now; empty for where the workdir says."""

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
    """The model that a run of an experiment gave.

    Args:
      experiment: The experiment.
      result: Which of its results.
      load_trunk: As ``afjax.load_trunk``; asked for the same trunk again and again.
      source: Whether the result is a source's of a fusion.
      moved: Where the run's store and trunk are now, if they were moved.

    Raises:
      UserError: The store or the trunk are no longer there, or damaged, or the store has another run's model.
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
    own = experiment.workdir / "trunk"
    began = experiment.inputs.get("the trunk")
    if not moved.trunk and not own.exists() and began and manifests[0].trunk.get("sha256") != began:
        raise UserError(f"{own}, the trunk that this run has trained, is not there; give it with --trunk.")
    name = moved.trunk or (str(own) if own.exists() else experiment.config["trunk"])
    return load_task_model(folder, load_trunk(name), head=result.name, adapter=adapter, fusion=fusion)


def differing_settings(sides: Sequence[Mapping[str, Any]], leave_out: Sequence[str] = ()) -> dict[str, list[Any]]:
    """``{setting: its value on each side}`` of those that differ; one that a side lacks is "not set" there.

    Args:
      sides: Settings by dotted path.
      leave_out: Settings, or what their paths begin with, that may differ.
    """
    names = dict.fromkeys(name for side in sides for name in side if name.partition(".")[0] not in leave_out)
    found = {name: [side.get(name, "not set") for side in sides] for name in names}
    return {name: values for name, values in found.items() if any(value != values[0] for value in values)}


def _search(folder: epath.Path, depth: int) -> list[epath.Path]:
    """The workdirs in a folder, which may be one itself; a trunk's folder has a ``config.json`` too, but no inputs."""
    if (folder / CONFIG).exists() and (folder / INPUTS).exists():
        return [folder]
    if (folder / RECORD).exists():
        return [folder]
    children = [child for child in _folders(folder) if not child.name.startswith(".")] if depth else []
    return [found for child in children for found in _search(child, depth - 1)]


def _experiment(folder: epath.Path, title: str) -> ExperimentRecord:
    if not (folder / CONFIG).exists():
        return _python_run(folder, title)
    places = [
        *_folders(folder / "sources"),
        # The sequential recipe has a run a task within the target's.
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
    """The run of a recipe that was called from Python: its settings take the place of an experiment's config."""
    record = read_json(folder / RECORD, advice=RESTORE) or {}
    settings, inputs = record.get("settings"), record.get("inputs")
    trained = read_json(folder / TRAINED, advice=RESTORE, constants=True) or {}
    trunk, entries = trained.get("trunk", ""), trained.get("results", [])
    if not (isinstance(settings, dict) and isinstance(inputs, dict)):
        raise UserError(f"{folder / RECORD} is damaged (it has no settings or no inputs); {RESTORE}.")
    if not (isinstance(trunk, str) and isinstance(entries, list)):
        raise UserError(f"{folder / TRAINED} is damaged (it has no trunk or no results); {RESTORE}.")
    results = parse_results(entries, folder / TRAINED, RESTORE)
    # A fusion has no partition of its own; the configs of experiments have the default one.
    config = {"trunk": trunk, "partition": "adapter", **settings}
    _check_config(config, folder / RECORD)
    # Experiments name rows by the task's role as well.
    rows = {f"task {name}" if name.endswith(" rows") else name: value for name, value in inputs.items()}
    run = RunRecord(TARGET, _lines(folder / "metrics.jsonl"), tuple(results), _usage(folder))
    return ExperimentRecord(folder, title, config, rows, (run,))


def _check_config(config: Mapping[str, Any], path: epath.Path) -> None:
    """Raises UserError unless a config has the settings that reports need."""
    for key, kind in {"recipe": str, "trunk": str, "partition": str, "seed": int}.items():
        if not isinstance(config.get(key), kind):
            found = f"its {key} is {config[key]!r}" if key in config else f"it has no {key}"
            raise UserError(f"{path} is damaged ({found}); {RESTORE}.")


def _folders(place: epath.Path) -> list[epath.Path]:
    try:
        return sorted(path for path in place.iterdir() if path.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _lines(path: epath.Path) -> tuple[Mapping[str, Any], ...]:
    """The numbers of a log's whole lines; a killed run leaves half a line, and a bad disk worse."""
    if not path.exists():
        return ()
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}); restore it from a copy.") from None
    found = []
    for line in text.splitlines():
        try:
            values = parse_json(line, str(path), constants=True)
        except UserError:
            continue
        numbers = {key: value for key, value in values.items() if _is_number(value)}
        if math.isfinite(numbers.get("step", math.nan)):
            found.append(numbers)
    return tuple(found)


def _usage(place: epath.Path) -> dict[str, Any]:
    """What was recorded of what a run took, as far as it is of the kind that it should be."""
    found = read_usage(place)
    return {
        key: value
        for key, value in found.items()
        if key == "devices" or (_is_number(value) and math.isfinite(value) and value >= 0)
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
