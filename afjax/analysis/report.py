"""Writes HTML reports on workdirs: run records, and an evaluation of the best run."""

from collections.abc import Callable, Sequence
from pathlib import Path

from etils import epath

from afjax import __version__
from afjax.analysis.dev_rows import DevEvaluation, evaluate_dev_rows
from afjax.analysis.page import page, section
from afjax.analysis.report_sections import activations, confusion, cost, curves, mistakes, settings_table, versions
from afjax.analysis.report_tables import (
    EvaluatedResult,
    forgetting_table,
    other_rows,
    score,
    score_tables,
    trained_table,
    unfinished_table,
)
from afjax.analysis.unfinished import UnfinishedRun, count_planned, find_unfinished
from afjax.analysis.workdirs import (
    ExperimentRecord,
    Moved,
    by_tasks,
    find_best,
    find_experiments,
    is_of_run,
    load_result,
)
from afjax.config.heads import HeadConfig
from afjax.data.splits import AnyRows
from afjax.display.html import Markup, tag
from afjax.display.terminal import duration
from afjax.errors import UserError
from afjax.model import partition
from afjax.model.task_model import TaskModel
from afjax.storage.paths import absolute, open_path
from afjax.storage.writing import check_output, write_output
from afjax.store import Manifest, names, read_manifest
from afjax.train.results import Result
from afjax.train.workdir import TARGET, find_store
from afjax.trees import count
from afjax.trunk.pretrained import Trunk

SECTIONS = {
    "trained": "What was trained",
    "scores": "Scores",
    "curves": "Training curves",
    "activations": "Fusion activations",
    "confusion": "Confusion matrix",
    "mistakes": "Misclassified rows",
    "cost": "Time and memory",
    "config": "Config",
    "versions": "Versions and digests",
}


def write_report(
    workdir: epath.Path,
    output: Path,
    *,
    rows_of: Callable[[TaskModel], AnyRows],
    load_trunk: Callable[[str], Trunk],
    moved: Moved = Moved(),
    num_mistakes: int = 20,
    batch_size: int = 32,
) -> None:
    """Writes a report on a workdir as a single HTML file.

    Args:
      workdir: The workdir of an experiment, the folder of a sweep, or a folder of workdirs.
      output: The HTML file. A missing folder is created.
      rows_of: Returns the labeled dev rows of a model's task.
      load_trunk: Loads a trunk by the name in a config. It may be called repeatedly with the same name.
      moved: The runs' current store and trunk, if they were moved.
      num_mistakes: The maximum number of misclassified rows to show per model.
      batch_size: Rows per step.

    Raises:
      UserError: There is no finished run, a file of a run is damaged, the given store does not exist, or the HTML file
        cannot be written. Missing rows, trunks and artifacts are reported on the page instead.
    """
    check_output(output, make_folder=True)
    if moved.store_folder and not open_path(moved.store_folder).is_dir():
        raise UserError(f"There is no store at {moved.store_folder}; set --store to the folder that the run saved to.")
    experiments = find_experiments(workdir)
    finished = [experiment for experiment in experiments if experiment.results]
    best = find_best(finished)

    def evaluate(result: Result) -> EvaluatedResult:
        try:
            model = load_result(best, result, load_trunk, moved=moved)
        except UserError as error:
            return EvaluatedResult(result, missing=str(error))
        parameters = _parameters(best, model)
        try:
            evaluation = evaluate_dev_rows(model, rows_of(model), num_mistakes=num_mistakes, batch_size=batch_size)
        except (UserError, OSError) as error:
            return EvaluatedResult(result, parameters, missing=str(error))
        return EvaluatedResult(result, parameters, evaluation)

    contents = make_page(
        absolute(workdir).name,
        experiments,
        best,
        [evaluate(result) for result in best.results.values()],
        str(moved.store_folder or find_store(best.workdir)),
        unfinished=find_unfinished(workdir, experiments),
        planned=count_planned(workdir),
    )
    write_output(output, contents, make_folder=True)


def make_page(
    title: str,
    experiments: Sequence[ExperimentRecord],
    best: ExperimentRecord,
    evaluated_results: Sequence[EvaluatedResult],
    store_folder: str,
    *,
    unfinished: Sequence[UnfinishedRun],
    planned: int = 0,
) -> str:
    """Builds the HTML page from the records and evaluations.

    Args:
      title: The page's heading.
      experiments: All experiments, including unfinished experiments.
      best: The experiment to show in detail.
      evaluated_results: The results of ``best``, with their evaluations.
      store_folder: The store of ``best``.
      unfinished: The runs without a result. Failed runs may be missing from ``experiments``.
      planned: The number of runs that a sweep plans; 0 if unknown.
    """
    finished = [experiment for experiment in experiments if experiment.results]
    manifests = _manifests(best, store_folder)
    on_tasks = f" on {best.tasks}" if len(by_tasks(finished)) > 1 else ""
    several = [tag("p", f"For the run{on_tasks} with the best dev score: {best.title}.")] if len(finished) > 1 else []
    main = {result.task: result.main_metric for result in best.results.values()}
    bodies: dict[str, list[Markup]] = {
        "trained": [*several, trained_table(best, evaluated_results, manifests)],
        "scores": [
            *score_tables(finished, evaluated_results),
            *forgetting_table(best),
            *unfinished_table(unfinished),
            *other_rows(best, evaluated_results),
        ],
        "curves": [*several, *curves(best, main)],
        "activations": [
            *several,
            *(part for evaluated in evaluated_results for part in activations(evaluated.result, evaluated.evaluation)),
        ],
        "confusion": [*several, *_render_evaluated(evaluated_results, confusion)],
        "mistakes": [*several, *_render_evaluated(evaluated_results, mistakes)],
        "cost": cost(finished),
        "config": [*several, settings_table(best)],
        "versions": versions(best, manifests),
    }
    links = (tag("li", tag("a", heading, href=f"#{name}")) for name, heading in SECTIONS.items())
    return page(
        f"{title}: afjax report",
        tag(
            "header",
            tag("h1", title),
            tag("p", _summary(experiments, unfinished, planned)),
            *_which_task(finished, best),
            _key_numbers(finished, best, evaluated_results),
            tag("nav", tag("ul", *links), aria_label="Sections"),
        ),
        tag("main", *(section(name, heading, *bodies[name]) for name, heading in SECTIONS.items())),
        tag("footer", tag("p", f"Written by afjax {__version__}.", class_="quiet")),
    )


def _parameters(experiment: ExperimentRecord, model: TaskModel) -> tuple[int, int]:
    """Counts a model's trained parameters, and all of its parameters."""
    config = experiment.config
    name = "fusion" if model.model.fusion_name else config["partition"]
    head = model.model.head if model.model.reads == "pooled" else HeadConfig()
    trunk = partition.split_layers(model.trunk.params, config["top_k"]) if name == "top_k" else model.trunk.params
    params = {"trunk": trunk, **model.params}
    trained, _ = partition.split(params, partition.label(params, partition.preset(name, head)))
    return count(trained), count(params)


def _manifests(experiment: ExperimentRecord, store_folder: str) -> list[Manifest]:
    """Reads the manifests of the artifacts that an experiment's runs saved or used.

    Artifacts that are missing or belong to a different run are left out.
    """
    manifests: dict[tuple[str, str], Manifest] = {}

    def read(kind: str, name: str) -> Manifest | None:
        try:
            return read_manifest(store_folder, kind, name) if name in names(store_folder, kind) else None
        except UserError:
            return None

    for run in experiment.runs:
        source = run.title != TARGET
        # In sequential training, the saved artifacts belong to the last result on a task.
        for result in run.results if source else experiment.results.values():
            for kind in ("adapters", "fusion", "heads"):
                manifest = read(kind, result.name)
                if manifest and is_of_run(manifest, experiment, result, source=source):
                    manifests.setdefault((kind, result.name), manifest)
            for member in manifests[fusion].adapters if (fusion := ("fusion", result.name)) in manifests else ():
                manifest = read("adapters", member["name"])
                if manifest and manifest.digest == member["sha256"]:
                    manifests.setdefault(("adapters", member["name"]), manifest)
    return list(manifests.values())


def _summary(experiments: Sequence[ExperimentRecord], unfinished: Sequence[UnfinishedRun], planned: int) -> str:
    finished = sum(bool(experiment.results) for experiment in experiments)
    total = max(planned, finished + len(unfinished))
    failed = sum(run.failed for run in unfinished)
    recipes = ", ".join(dict.fromkeys(str(experiment.config["recipe"]) for experiment in experiments))
    trunks = ", ".join(dict.fromkeys(str(experiment.config["trunk"]) for experiment in experiments))
    tasks = ", ".join(dict.fromkeys(task for experiment in experiments for task in experiment.results))
    others = [f"{failed} failed"] if failed else []
    if waiting := total - finished - len(unfinished):
        others.append(f"{waiting} {'has' if waiting == 1 else 'have'} not started")
    details = f", {' and '.join(others)}" if others else ""
    runs = "" if total == 1 else f"; {finished} of {total} runs are finished{details}"
    return f"Recipe {recipes} on the trunk {trunks}, trained on {tasks}{runs}."


def _which_task(finished: Sequence[ExperimentRecord], best: ExperimentRecord) -> list[Markup]:
    """Explains which task the page is about, if the runs differ in tasks or main metrics."""
    groups = by_tasks(finished)
    if len(groups) == 1:
        return []
    numbers = [len(group) for group in groups.values()]
    first = "the first of the tasks with the" if numbers.count(max(numbers)) > 1 else "the task with the"
    sentence = (
        "These runs differ in tasks or main metrics, so their scores are not comparable. Scores and times cover all "
        f"runs. The rest covers the best run on {best.tasks}, {first} most runs ({max(numbers)}). For a report on "
        "another run, set --workdir to its folder."
    )
    return [tag("p", sentence)]


def _key_numbers(
    finished: Sequence[ExperimentRecord], best: ExperimentRecord, evaluated: Sequence[EvaluatedResult]
) -> Markup:
    metrics = dict.fromkeys(result.main_metric for result in best.results.values())
    metric = next(iter(metrics)) if len(metrics) == 1 else "main metrics"
    mean = "mean " if len(best.results) > 1 else ""
    on_tasks = f" on {best.tasks}" if len(by_tasks(finished)) > 1 else ""
    of_best_run = f" of the best run{on_tasks}" if len(finished) > 1 else ""
    pairs = [(f"dev {mean}{metric}{of_best_run}", score(best.score))]
    # With several tasks, the numbers differ by task and are in the table below.
    if len(evaluated) == 1 and evaluated[0].parameters:
        trained, total = evaluated[0].parameters
        pairs += [("trained parameters", f"{trained:,}"), ("fraction of all parameters", f"{trained / total:.2%}")]
    seconds = [run.usage.get("seconds") for experiment in finished for run in experiment.runs]
    if seconds and all(seconds):
        pairs.append(("training time", duration(sum(filter(None, seconds)))))
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs), class_="key")


def _render_evaluated(
    results: Sequence[EvaluatedResult], show: Callable[[Result, DevEvaluation], list[Markup]]
) -> list[Markup]:
    """Renders results with ``show``, or explains why they were not evaluated."""
    parts: list[Markup] = []
    for evaluated in results:
        parts += [tag("h3", evaluated.result.name)] if len(results) > 1 else []
        if evaluated.evaluation is None:
            failure = (
                "The model cannot be evaluated on its dev rows"
                if evaluated.parameters
                else "The model cannot be loaded"
            )
            parts.append(tag("p", f"{failure}: {evaluated.missing}"))
        else:
            parts += show(evaluated.result, evaluated.evaluation)
    return parts
