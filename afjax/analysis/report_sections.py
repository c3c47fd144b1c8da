"""Builds the longer sections of HTML reports."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from afjax.analysis import report_figures as draw
from afjax.analysis.dev_rows import DevEvaluation, Mistake
from afjax.analysis.page import image
from afjax.analysis.workdirs import ExperimentRecord, WorkdirRun
from afjax.display.html import Content, Markup, scrolling, table, tag
from afjax.display.terminal import duration
from afjax.display.words import counted, cut
from afjax.store import Manifest
from afjax.train.results import Result
from afjax.train.workdir import TARGET

# Longer texts are truncated to keep the page readable.
_TEXT = 800
# With more classes than this, the most confused pairs are listed instead of the whole confusion matrix.
_CLASSES = 40


def curves(experiment: ExperimentRecord, main_metrics: Mapping[str, str]) -> list[Markup]:
    """Plots every run's loss, learning rate and dev metrics.

    The plots of a fusion's sources are collapsed.
    """
    runs = [run for run in reversed(experiment.runs) if run.steps]
    if not runs:
        return [tag("p", "The workdir has no logs of training steps.")]
    parts = []
    for run in runs:
        run_metrics = {result.task: result.main_metric for result in run.results} or main_metrics
        figures = _run_figures(run, run_metrics)
        if run.title.startswith(TARGET):
            parts += [*([tag("h3", run.title)] if len(runs) > 1 else []), figures]
        else:
            parts.append(tag("details", tag("summary", run.title), figures))
    return parts


def _run_figures(run: WorkdirRun, main_metrics: Mapping[str, str]) -> Markup:
    first, last = run.steps[0], run.steps[-1]
    best = next((result.metrics.get("step") for result in run.results), None)
    falls = f"from {first['loss']:.4g} at step {first['step']} to {last['loss']:.4g} at step {last['step']}"
    loss = f"Training loss of {run.title} by step: {falls}."
    figures = [image(draw.loss_figure(run), loss, "Training loss: mean and range over a few steps")]
    if run.evaluations:
        all_names = draw.shown_metrics(run, main_metrics)
        names = all_names[: draw.MOST_LINES]
        left_out = f"; {len(all_names) - len(names)} more are in metrics.jsonl" if len(all_names) > len(names) else ""
        lines_of = {name: _sample([line for line in run.evaluations if name in line]) for name in names}
        scores = "; ".join(
            f"{name} {', '.join(f'{line[name]:.4g}' for line in lines)}" for name, lines in lines_of.items()
        )
        caption = "Dev scores" + ("" if best is None else f"; the parameters of step {best} were kept") + left_out
        alternative = f"Dev scores of {run.title} by step: {scores}."
        figures.append(image(draw.evaluation_figure(run, names, best), alternative, caption))
    # Lines of a damaged log may lack the learning rate.
    rated = [line for line in run.steps if "learning_rate" in line]
    if rated:
        rates = [line["learning_rate"] for line in rated]
        falls = f"at most {max(rates):.3g}, {rates[-1]:.3g} at the end"
        figures.append(
            image(draw.rate_figure(rated), f"Learning rate of {run.title} by step: {falls}.", "Learning rate")
        )
    return tag("div", *figures, class_="figures")


def _sample(evaluations: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Samples at most twelve evaluations, because screen readers read alt texts aloud."""
    if len(evaluations) <= 12:
        return evaluations
    return [evaluations[place] for place in np.linspace(0, len(evaluations) - 1, 12).round().astype(int)]


def activations(result: Result, evaluation: DevEvaluation | None) -> list[Markup]:
    """Shows a fusion's mean attention to its adapters as a heatmap and as a table."""
    if evaluation is None:
        return [
            tag("p", f"{result.name} was not evaluated on its dev rows, so its attention over adapters is unknown.")
        ]
    if not evaluation.activations:
        return [tag("p", f"{result.name} is not a fusion, so it has no attention over adapters.")]
    figures, tables = [], []
    for slot, means in evaluation.activations.items():
        # In a fusion that was pruned layer by layer, a column is a different adapter in each layer.
        members = (
            evaluation.members if means.shape[1] == len(evaluation.members) else [str(n) for n in range(means.shape[1])]
        )
        highest = [
            f"layer {layer}: {members[layer_means.argmax()]} {layer_means.max():.2f}"
            for layer, layer_means in zip(evaluation.layers, means, strict=True)
        ]
        figures.append(
            image(
                draw.activation_figure(evaluation.layers, members, means),
                f"Mean attention of {result.name} over its adapters. Highest in each layer: {'; '.join(highest)}.",
                f"{result.name}, after {slot}: mean attention of each layer over {evaluation.num_rows} dev rows "
                "(averaged first over each row's tokens, excluding padding, then over rows)",
            )
        )
        rows: list[list[Content]] = [
            [str(layer), *(f"{share:.4f}" for share in layer_means)]
            for layer, layer_means in zip(evaluation.layers, means, strict=True)
        ]
        rows.append(["mean", *(f"{share:.4f}" for share in means.mean(0))])
        numbers = tuple(range(1, len(members) + 1))
        tables.append(table(["layer", *members], rows, numbers=numbers, caption=f"after {slot}"))
    return [
        tag("div", *figures, class_="figures wide"),
        tag("details", tag("summary", f"Numbers for {result.name}"), *tables),
    ]


def confusion(result: Result, evaluation: DevEvaluation) -> list[Markup]:
    """Shows the confusion matrix, or predicted against true values for regression."""
    if evaluation.values is not None:
        labels, predicted = evaluation.values
        scores = ", ".join(f"{name} {value:.4f}" for name, value in evaluation.scores.items())
        alternative = f"Predicted against true values of {result.name}: {scores}."
        figure = image(draw.values_figure(labels, predicted), alternative, "Predicted and true values")
        return [tag("div", figure, class_="figures")]
    counts = evaluation.confusion
    if counts is None:
        text = f"The rows of {result.task} do not have one label from a fixed set, so there is no confusion matrix."
        return [tag("p", text)]
    if len(evaluation.labels) > _CLASSES:
        off = np.where(np.eye(len(counts), dtype=bool), 0, counts)
        worst = [divmod(int(place), len(counts)) for place in np.argsort(-off, axis=None, kind="stable")[:30]]
        rows = [[evaluation.labels[i], evaluation.labels[j], f"{off[i, j]}"] for i, j in worst if off[i, j]]
        caption = f"The most frequent confusions of {result.name}, out of {counted(len(counts), 'label')}."
        return [table(["true", "predicted", "rows"], rows, numbers=(2,), caption=caption)]
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    head = tag(
        "tr",
        tag("th", "true ↓ predicted →", scope="col"),
        *(tag("th", name, scope="col") for name in evaluation.labels),
    )
    body = []
    for right, (name, row_counts) in enumerate(zip(evaluation.labels, counts, strict=True)):
        cells = [
            tag(
                "td",
                f"{amount:,}",
                Markup("<br>"),
                tag("small", f"{shares[right, given]:.0%}"),
                style=f"background: rgba(var(--cell), {0.55 * shares[right, given]:.3f})",
                class_="diagonal" if right == given else "",
            )
            for given, amount in enumerate(row_counts)
        ]
        body.append(tag("tr", tag("th", name, scope="row", dir="auto"), *cells))
    caption = (
        f"{result.name} on {evaluation.num_rows:,} dev rows. Percentages are relative to the rows with that true "
        "label. Correct predictions are outlined."
    )
    return [scrolling(tag("table", tag("thead", head), tag("tbody", *body), class_="heat"), caption)]


def mistakes(result: Result, evaluation: DevEvaluation) -> list[Markup]:
    """Shows the worst mistakes as cards, because a table would be too wide on a phone."""
    if not evaluation.num_wrong:
        return [tag("p", f"{result.name} gets all {counted(evaluation.num_rows, 'dev row')} right.")]
    share = evaluation.num_wrong / evaluation.num_rows
    shown, rows = len(evaluation.mistakes), f"{evaluation.num_rows:,} dev rows"
    which = "This is the one" if shown == 1 else f"These are the {shown}"
    if evaluation.values is not None:
        sentence = f"{which} of {rows} on which {result.name} has the largest {'error' if shown == 1 else 'errors'}."
    else:
        verb = "is" if evaluation.num_wrong == 1 else "are"
        sentence = f"{evaluation.num_wrong:,} of {rows} {verb} wrong ({share:.1%})."
        if shown:
            sentence += f" {which} that {result.name} was most confident about."
    cards = (tag("li", _card(mistake, is_value=evaluation.values is not None)) for mistake in evaluation.mistakes)
    return [tag("p", sentence), *([tag("ol", *cards, class_="mistakes")] if evaluation.mistakes else [])]


def _card(mistake: Mistake, *, is_value: bool) -> Markup:
    sure = f"off by {mistake.confidence:.4g}" if is_value else f"{mistake.confidence:.1%} sure"
    pairs: list[tuple[str, Content]] = [("row", str(mistake.row))]
    pairs += [(name, cut(text, _TEXT)) for name, text in mistake.texts]
    predicted = tag("span", cut(mistake.predicted, _TEXT), " ", tag("span", f"({sure})", class_="quiet"))
    pairs += [("true", cut(mistake.right, _TEXT)), ("predicted", predicted)]
    return tag("dl", *(part for name, text in pairs for part in (tag("dt", name), tag("dd", text, dir="auto"))))


def cost(experiments: Sequence[ExperimentRecord]) -> list[Markup]:
    """Tabulates the runs' time, devices and memory, if they recorded them."""
    rows: list[list[Content]] = []
    total = 0.0
    for experiment in experiments:
        place = f"{experiment.title}/" if len(experiments) > 1 else ""
        for run in experiment.runs:
            usage = run.usage
            if usage:
                seconds = usage.get("seconds")
                total += seconds or 0.0
                times = ["–", "–"]
                if seconds is not None:
                    times = [duration(seconds), f"{seconds / max(1, usage.get('step', 1)):.3g} s"]
                machine = [str(usage.get("starts", 1)), str(usage.get("devices", "–"))]
                memory = [_memory(usage.get(name)) for name in ("host_memory", "device_memory")]
                rows.append([f"{place}{run.title}", *times, *machine, *memory])
    if not rows:
        return [
            tag("p", "These runs did not record time and memory, because an earlier version of afjax trained them.")
        ]
    if len(rows) > 1:
        rows.append(["all", duration(total), "", "", "", "", ""])
    header = ["run", "time", "time per step", "starts", "devices", "host memory", "device memory"]
    caption = (
        "Wall time up to the last checkpoint, including compilation and dev evaluations. Memory is the peak of the "
        "process (over all its runs so far) and of the fullest device, if the system reports it."
    )
    return [table(header, rows, numbers=(1, 2, 3, 5, 6), caption=caption)]


def settings_table(experiment: ExperimentRecord) -> Markup:
    """Tabulates all settings, collapsed because there are many."""
    rows: list[list[Content]] = [[name, str(value)] for name, value in experiment.settings.items()]
    settings = table(["setting", "value"], rows)
    return tag("details", tag("summary", f"All {len(rows)} settings"), settings)


def versions(experiment: ExperimentRecord, manifests: Sequence[Manifest]) -> list[Markup]:
    """Lists package versions, and the digests of stored artifacts and inputs."""
    used = dict.fromkeys(tuple(manifest.versions.items()) for manifest in manifests)
    lines = [", ".join(f"{name} {version}" for name, version in package_versions) for package_versions in used]
    parts = [tag("p", f"Trained with {'; '.join(lines)}.")] if lines else []
    if manifests:
        rows: list[list[Content]] = [
            [
                f"{manifest.kind}/{manifest.name}",
                f"{manifest.num_parameters:,}",
                str(manifest.seed),
                manifest.created.partition(".")[0].replace("T", " "),
                tag("span", manifest.digest, class_="code"),
            ]
            for manifest in manifests
        ]
        caption = "Stored artifacts, with the SHA-256 digest of their parameters."
        parts.append(
            table(["artifact", "parameters", "seed", "saved (UTC)", "digest"], rows, numbers=(1, 2), caption=caption)
        )
    else:
        parts.append(
            tag("p", "The store no longer has the artifacts of these runs; set --store to their current store.")
        )
    if experiment.inputs:
        digests: list[list[Content]] = [
            [name, tag("span", str(digest), class_="code")] for name, digest in experiment.inputs.items()
        ]
        caption = "Inputs of the runs, with the SHA-256 digest of their contents, or their value if it is short."
        parts.append(table(["input", "digest or value"], digests, caption=caption))
    return parts


def _memory(size: Any) -> str:
    return f"{size / 2**30:.2f} GiB" if size else "–"
