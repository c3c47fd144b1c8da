"""What workdirs hold, as records: an experiment's config, its runs with their logs, results and what they took."""

import dataclasses
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epath

from afjax import store
from afjax.errors import UserError
from afjax.paths import open_path
from afjax.task_model import TaskModel, load_task_model
from afjax.train.experiment import Result
from afjax.train.usage import read_usage
from afjax.train.workdir import CONFIG, INPUTS, RESULT, TARGET, find_store, settings
from afjax.trunk import Trunk


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
      config: Its config, as JSON has it.
      inputs: Digests of what it read, by what that is.
      runs: That of the target last.
    """

    workdir: epath.Path
    config: Mapping[str, Any]
    inputs: Mapping[str, str]
    runs: tuple[RunRecord, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """The config by dotted path."""
        return settings(self.config)

    @property
    def results(self) -> dict[str, Result]:
        """What the experiment is about, by task: of a task trained in a sequence its last; empty: not finished."""
        return {result.task: result for run in self.runs if run.title == TARGET for result in run.results}

    @property
    def score(self) -> float:
        """The mean of its tasks' main dev metrics."""
        return statistics.fmean(result.metrics[result.main_metric] for result in self.results.values())


def find_experiments(workdir: epath.Path) -> list[ExperimentRecord]:
    """The experiment of a workdir; those of a sweep, or of a folder of workdirs; begun ones too, by their paths.

    Raises:
      UserError: There is none that is finished, or a file that says what it was is damaged.
    """
    workdir = open_path(workdir)
    folders = [workdir]
    if not (workdir / CONFIG).exists():
        folders = [folder for place in (workdir, workdir / "runs") for folder in _folders(place)]
    experiments = [_experiment(folder) for folder in folders if (folder / CONFIG).exists()]
    if not any(experiment.results for experiment in experiments):
        begun = f" ({len(experiments)} begun)" if experiments else ""
        raise UserError(
            f"{workdir} has no finished run{begun}; give --workdir a folder in which afjax train or afjax sweep came "
            "to its end."
        )
    return experiments


def load_result(
    experiment: ExperimentRecord,
    result: Result,
    load_trunk: Callable[[str], Trunk],
    *,
    source: bool = False,
    store_folder: str = "",
    trunk: str = "",
) -> TaskModel:
    """The model that a run of an experiment gave.

    Args:
      experiment: The experiment.
      result: Which of its results.
      load_trunk: As ``afjax.load_trunk``; asked for the same trunk again and again.
      source: Whether the result is a source's of a fusion.
      store_folder: Where it was stored; empty: where the workdir says.
      trunk: What it was trained on; empty: what the config says, or what the experiment itself has trained.

    Raises:
      UserError: The store or the trunk are no longer there, or damaged.
    """
    folder = str(store_folder or find_store(experiment.workdir))
    adapter = fusion = ""
    if source or experiment.config["partition"] in ("adapter", "adapter+trunk"):
        adapter = result.name
    if experiment.config["recipe"] == "fusion" and not source:
        adapter, fusion = "", result.name
    if result.name not in store.names(folder, "heads"):
        raise UserError(f'The store {folder} has no head "{result.name}"; give --store the one that it was saved to.')
    own = experiment.workdir / "trunk"
    name = trunk or (str(own) if own.exists() else experiment.config["trunk"])
    return load_task_model(folder, load_trunk(name), head=result.name, adapter=adapter, fusion=fusion)


def differing_settings(sides: Sequence[Mapping[str, Any]], leave_out: Sequence[str] = ()) -> dict[str, list[Any]]:
    """``{setting: its value on each side}`` of those that differ; one that a side lacks is "not set" there."""
    names = dict.fromkeys(name for side in sides for name in side if name not in leave_out)
    found = {name: [side.get(name, "not set") for side in sides] for name in names}
    return {name: values for name, values in found.items() if any(value != values[0] for value in values)}


def _experiment(folder: epath.Path) -> ExperimentRecord:
    places = [
        *_folders(folder / "sources"),
        # The sequential recipe has a run a task within the target's.
        *(place for place in _folders(folder / TARGET) if (place / "metrics.jsonl").exists()),
        folder / TARGET,
    ]
    runs = []
    for place in places:
        lines, results = _lines(place / "metrics.jsonl"), _results(place / RESULT)
        if lines or results:
            title = place.relative_to(folder).as_posix()
            runs.append(RunRecord(title, lines, results, read_usage(place)))
    config = _read(folder / CONFIG)
    for key in ("recipe", "trunk", "partition", "seed"):
        if key not in config:
            raise UserError(f"{folder / CONFIG} is damaged (it has no {key}); restore it from a copy.")
    inputs = _read(folder / INPUTS) if (folder / INPUTS).exists() else {}
    return ExperimentRecord(folder, config, inputs, tuple(runs))


def _folders(place: epath.Path) -> list[epath.Path]:
    try:
        return sorted(path for path in place.iterdir() if path.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read(path: epath.Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it from a copy.") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged (no JSON object); restore it from a copy.")
    return found


def _lines(path: epath.Path) -> tuple[Mapping[str, Any], ...]:
    """The whole lines of a log; a killed run leaves half a line."""
    if not path.exists():
        return ()
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if isinstance(values, dict) and "step" in values:
            found.append(values)
    return tuple(found)


def _results(path: epath.Path) -> tuple[Result, ...]:
    if not path.exists():
        return ()
    try:
        results = tuple(Result(**values) for values in json.loads(path.read_text(encoding="utf-8")))
        for result in results:
            float(result.metrics[result.main_metric])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}); train this run again.") from None
    return results
