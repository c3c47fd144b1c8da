"""A report of a workdir: one page with all that is known of its runs, and what the best of them does on dev rows."""

import dataclasses
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from afjax import __version__, partition
from afjax.analysis.dev_rows import DevLook, look_at
from afjax.analysis.page import Content, Markup, page, section, table, tag
from afjax.analysis.report_sections import (
    activations,
    confusion,
    cost,
    curves,
    duration,
    mistakes,
    settings_table,
    versions,
)
from afjax.analysis.workdirs import ExperimentRecord, differing_settings, find_experiments, load_result
from afjax.architecture import HeadConfig
from afjax.data.splits import AnyRows
from afjax.errors import UserError
from afjax.store import Manifest, names, read_manifest
from afjax.task_model import TaskModel
from afjax.train.experiment import Result
from afjax.train.workdir import TARGET, write_text
from afjax.trees import count, flatten
from afjax.trunk import Trunk

SECTIONS = {
    "trained": "What was trained",
    "scores": "Scores",
    "curves": "Training curves",
    "activations": "Fusion activations",
    "confusion": "What is taken for what",
    "mistakes": "Rows it got wrong",
    "cost": "Time and memory",
    "config": "Config",
    "versions": "Versions and digests",
}


@dataclasses.dataclass(frozen=True)
class Looked:
    """A result, its model and its dev rows, as far as they are still there.

    Attributes:
      result: What the run gave.
      parameters: (trained, all) numbers of parameters; None: the model cannot be loaded.
      look: What the model makes of its dev rows; None: they, or the model, are not there.
      missing: Why not, in a sentence.
    """

    result: Result
    parameters: tuple[int, int] | None = None
    look: DevLook | None = None
    missing: str = ""


def write_report(
    workdir: epath.Path,
    output: Path,
    *,
    rows_of: Callable[[TaskModel], AnyRows],
    load_trunk: Callable[[str], Trunk],
    store_folder: str = "",
    trunk: str = "",
    num_mistakes: int = 20,
    batch_size: int = 32,
) -> None:
    """Writes the report of a workdir as one HTML file.

    Args:
      workdir: Of an experiment, of a sweep, or a folder with several workdirs in it.
      output: The file; its folder is made where it is missing.
      rows_of: The labelled dev rows of a model's task.
      load_trunk: As ``afjax.load_trunk``; asked for the same trunk again and again.
      store_folder: Where the runs saved what they trained; empty: each workdir's own store.
      trunk: What they were trained on; empty: as their configs say.
      num_mistakes: How many of the rows that a model got wrong to show.
      batch_size: Rows a step.

    Raises:
      UserError: No finished run, or a file that cannot be written. Rows, trunks and artefacts that are no longer there
        are told of in the page.
    """
    check_page(output)
    experiments = find_experiments(workdir)
    finished = [experiment for experiment in experiments if experiment.results]
    best = max(finished, key=lambda experiment: experiment.score)
    looked = [
        _looked(best, result, rows_of, load_trunk, store_folder, trunk, num_mistakes, batch_size)
        for result in best.results.values()
    ]
    contents = make_page(experiments, best, looked, store_folder or str(best.workdir / "store"))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_text(epath.Path(output), contents)
    except OSError as error:
        raise UserError(f"{output} cannot be written ({error.strerror or error}); give another --output.") from None


def check_page(output: Path) -> None:
    """Raises UserError where the page cannot be written there, before anything long is computed."""
    if output.is_dir():
        raise UserError(f"{output} is a folder; give --output a file's name, as in {output / 'report.html'}.")
    folder = output.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(f"{output} cannot be written: {folder} is no folder that can be written to.")


def make_page(
    experiments: Sequence[ExperimentRecord], best: ExperimentRecord, looked: Sequence[Looked], store_folder: str
) -> str:
    """The page, from all that was found."""
    finished = [experiment for experiment in experiments if experiment.results]
    manifests = _manifests(best, store_folder)
    title = best.workdir.name if len(experiments) == 1 else best.workdir.parent.name
    if title == "runs":
        title = best.workdir.parent.parent.name
    several = [tag("p", f"Of the run that is best on dev: {best.workdir.name}.")] if len(finished) > 1 else []
    main = {result.task: result.main_metric for result in best.results.values()}
    bodies: dict[str, list[Markup]] = {
        "trained": [*several, _trained(best, looked, manifests)],
        "scores": [*_scores(finished, looked), *_other_rows(best, looked)],
        "curves": [*several, *curves(best, main)],
        "activations": [*several, *(part for each in looked for part in activations(each.result, each.look))],
        "confusion": [*several, *_of_looks(looked, confusion)],
        "mistakes": [*several, *_of_looks(looked, mistakes)],
        "cost": cost(finished),
        "config": [*several, settings_table(best)],
        "versions": versions(best, manifests),
    }
    links = (tag("li", tag("a", words, href=f"#{name}")) for name, words in SECTIONS.items())
    return page(
        f"{title}: afjax report",
        tag(
            "header",
            tag("h1", title),
            tag("p", _summary(experiments, best)),
            _key_numbers(finished, best, looked),
            tag("nav", tag("ul", *links), aria_label="Sections"),
        ),
        tag("main", *(section(name, words, *bodies[name]) for name, words in SECTIONS.items())),
        tag("footer", tag("p", f"Written by afjax {__version__}.", class_="quiet")),
    )


def _looked(
    experiment: ExperimentRecord,
    result: Result,
    rows_of: Callable[[TaskModel], AnyRows],
    load_trunk: Callable[[str], Trunk],
    store_folder: str,
    trunk: str,
    num_mistakes: int,
    batch_size: int,
) -> Looked:
    try:
        model = load_result(experiment, result, load_trunk, store_folder=store_folder, trunk=trunk)
    except UserError as error:
        return Looked(result, missing=str(error))
    parameters = _parameters(experiment, model)
    try:
        look = look_at(model, rows_of(model), num_mistakes=num_mistakes, batch_size=batch_size)
    except (UserError, OSError) as error:
        return Looked(result, parameters, missing=str(error))
    return Looked(result, parameters, look)


def _parameters(experiment: ExperimentRecord, model: TaskModel) -> tuple[int, int]:
    """How many parameters a model has that were trained with it, and how many in all."""
    config = experiment.config
    name = "fusion" if model.model.fusion_name else config["partition"]
    head = model.model.head if model.model.reads == "pooled" else HeadConfig()
    trunk = partition.split_layers(model.trunk.params, config["top_k"]) if name == "top_k" else model.trunk.params
    params = {"trunk": trunk, **model.params}
    labels, leaves = partition.label(params, partition.preset(name, head)), flatten(params)
    return sum(int(leaf.size) for path, leaf in leaves.items() if labels[path]), count(params)


def _manifests(experiment: ExperimentRecord, store_folder: str) -> list[Manifest]:
    """Of what the experiment's runs saved, and of what its fusions use; what is not there is left out."""
    found: dict[tuple[str, str], Manifest] = {}

    def add(kind: str, name: str) -> None:
        try:
            if (kind, name) not in found and name in names(store_folder, kind):
                found[kind, name] = read_manifest(store_folder, kind, name)
        except UserError:
            return

    for run in experiment.runs:
        for result in run.results:
            for kind in ("adapters", "fusion", "heads"):
                add(kind, result.name)
            for member in found[fusion].adapters if (fusion := ("fusion", result.name)) in found else ():
                add("adapters", member["name"])
    return list(found.values())


def _summary(experiments: Sequence[ExperimentRecord], best: ExperimentRecord) -> str:
    finished = sum(bool(experiment.results) for experiment in experiments)
    recipes = ", ".join(dict.fromkeys(str(experiment.config["recipe"]) for experiment in experiments))
    trunks = ", ".join(dict.fromkeys(str(experiment.config["trunk"]) for experiment in experiments))
    runs = "" if len(experiments) == 1 else f"; {finished} of {len(experiments)} runs are finished"
    return f"Recipe {recipes} on the trunk {trunks}, for {', '.join(best.results)}{runs}."


def _key_numbers(finished: Sequence[ExperimentRecord], best: ExperimentRecord, looked: Sequence[Looked]) -> Markup:
    metrics = dict.fromkeys(result.main_metric for result in best.results.values())
    what = next(iter(metrics)) if len(metrics) == 1 else "main metrics"
    mean = "mean " if len(best.results) > 1 else ""
    of = "of the best run, " if len(finished) > 1 else ""
    pairs = [(f"dev {mean}{what} {of}".strip(" ,"), f"{best.score:.4f}")]
    # Of several tasks each has its own, in the table below.
    if len(looked) == 1 and looked[0].parameters:
        trained, total = looked[0].parameters
        pairs += [("trained parameters", f"{trained:,}"), ("of all parameters", f"{trained / total:.2%}")]
    seconds = [run.usage.get("seconds") for experiment in finished for run in experiment.runs]
    if seconds and all(seconds):
        pairs.append(("training time", duration(sum(filter(None, seconds)))))
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs), class_="key")


def _trained(best: ExperimentRecord, looked: Sequence[Looked], manifests: Sequence[Manifest]) -> Markup:
    sizes = {(manifest.kind, manifest.name): manifest.num_parameters for manifest in manifests}
    fused = {m.name: ", ".join(str(member["name"]) for member in m.adapters) for m in manifests if m.kind == "fusion"}
    known = {id(each.result): each.parameters for each in looked}
    totals = [each.parameters[1] for each in looked if each.parameters]
    rows: list[list[Content]] = []
    for run in best.runs:
        for result in run.results if run.title != TARGET else best.results.values():
            trained, total = known.get(id(result)) or (None, None)
            if trained is None and run.title != TARGET and ("heads", result.name) in sizes:
                # A source trains its adapter and its head.
                trained = sizes.get(("adapters", result.name), 0) + sizes["heads", result.name]
            share = f"{trained / total:.2%}" if trained and total else "–"
            task = _task(best.config, result.task)
            of = f" of {fused[result.name]}" if result.kind == "fusion" and result.name in fused else ""
            rows.append(
                [
                    result.name,
                    f"{result.kind}{of}",
                    result.task,
                    str(task.get("source", "")),
                    _whole(trained),
                    _whole(total),
                    share,
                    _whole(result.metrics.get("step")),
                ]
            )
    header = ["name", "kind", "task", "data", "trained parameters", "all parameters", "share", "kept from step"]
    shown = table(header, rows, numbers=(4, 5, 6, 7))
    if totals:
        return shown
    return Markup(shown.html + tag("p", f"All parameters are not known: {looked[0].missing}").html)


def _scores(finished: Sequence[ExperimentRecord], looked: Sequence[Looked]) -> list[Markup]:
    parts = []
    if len(finished) > 1:
        varying = differing_settings([experiment.settings for experiment in finished], ("seed",))
        groups: dict[tuple[str, ...], list[ExperimentRecord]] = {}
        for place, experiment in enumerate(finished):
            groups.setdefault(tuple(str(values[place]) for values in varying.values()), []).append(experiment)
        rows = [
            [*(values or ("all runs",)), task, metric, spread, seeds]
            for values, of_group in sorted(groups.items(), key=lambda item: -statistics.fmean(e.score for e in item[1]))
            for task, metric, spread, seeds in _spreads(of_group)
        ]
        header = [*(varying or ("setting",)), "task", "dev metric", "mean ± std", "seeds"]
        caption = "Main dev metric over seeds, the best setting first; std is the sample standard deviation."
        parts.append(table(header, rows, numbers=(len(header) - 2,), caption=caption))
    rows = []
    names = list(dict.fromkeys(name for each in looked for name in each.result.metrics if name != "step"))
    for each in looked:
        result = each.result
        rows.append([result.name, result.main_metric, *(_score(result.metrics.get(name)) for name in names)])
        if each.look:
            scores = [_score(each.look.scores.get(name)) for name in names]
            rows.append([f"{result.name}, scored again", f"on {each.look.num_rows} rows", *scores])
    caption = (
        "Every dev metric of the kept parameters, as in training, and as the stored model scores its dev rows now."
    )
    parts.append(table(["name", "main metric", *names], rows, numbers=tuple(range(2, len(names) + 2)), caption=caption))
    return parts


def _other_rows(best: ExperimentRecord, looked: Sequence[Looked]) -> list[Markup]:
    """Tells of dev rows that are not those of training."""
    parts = []
    for each in looked:
        known = best.inputs.get(f"task {each.result.task}'s dev rows")
        if each.look and known and known != each.look.digest:
            words = f"The dev rows of {each.result.task} are not those that training chose by: their digests differ."
            parts.append(tag("p", tag("strong", words)))
    return parts


def _spreads(experiments: Sequence[ExperimentRecord]) -> list[tuple[str, str, str, str]]:
    """Task, main metric, mean ± std and the seeds, of runs of one setting."""
    found = []
    for task, result in experiments[0].results.items():
        of_task = [(each, each.results[task]) for each in experiments if task in each.results]
        scores = [float(of.metrics[of.main_metric]) for _, of in of_task]
        spread = f" ± {statistics.stdev(scores):.4f}" if len(scores) > 1 else ""
        seeds = ", ".join(str(seed) for seed in sorted(each.config["seed"] for each, _ in of_task))
        found.append((task, result.main_metric, f"{statistics.fmean(scores):.4f}{spread}", seeds))
    return found


def _of_looks(looked: Sequence[Looked], show: Callable[[Result, DevLook], list[Markup]]) -> list[Markup]:
    """What there is to show of each result, or why there is nothing."""
    parts: list[Markup] = []
    for each in looked:
        parts += [tag("h3", each.result.name)] if len(looked) > 1 else []
        if each.look is None:
            parts.append(tag("p", f"The dev rows cannot be looked at: {each.missing}"))
        else:
            parts += show(each.result, each.look)
    return parts


def _task(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The settings of a task by its name."""
    sources = (source.get("task") for source in config.get("sources") or ())
    tasks = [config.get("task"), *(config.get("tasks") or ()), *sources]
    return next((task for task in tasks if task and task.get("name") == name), {})


def _whole(value: Any) -> str:
    return "–" if value is None else f"{int(value):,}"


def _score(value: Any) -> str:
    return "–" if value is None else f"{value:.4f}"
