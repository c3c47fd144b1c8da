"""Compares two models, or two groups of runs, on the same rows.

A comparison consists of the scores, a significance test, counts of the rows that each side predicts correctly, and the
settings that differ.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from afjax.analysis.paired import Paired, paired_bootstrap
from afjax.analysis.sides import Side
from afjax.analysis.workdirs import NOT_SET, differing_settings
from afjax.config.from_dict import check_value, to_dict
from afjax.config.ranges import PositiveInt
from afjax.data.splits import AnyRows
from afjax.display.tables import table_lines
from afjax.display.words import counted
from afjax.errors import UserError
from afjax.model.task_model import TaskModel
from afjax.tasks.kinds import TASK_KINDS, check_metric, fitting_metrics
from afjax.tasks.predictions import Predictions
from afjax.tasks.weighted_scores import Weighted
from afjax.train.record import by_path

# Display names of the row counts.
_ROWS = {
    "both_right": "both correct",
    "only_a": "only A correct",
    "only_b": "only B correct",
    "both_wrong": "both wrong",
    "nearer_a": "A nearer",
    "nearer_b": "B nearer",
    "equal": "equally near",
}


@dataclasses.dataclass(frozen=True)
class Bootstrap:
    """Settings of a paired bootstrap: the number of resamples and the random seed."""

    num_resamples: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        check_value(PositiveInt, self.num_resamples, "num_resamples")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of :func:`compare`.

    Attributes:
      titles: The titles of A's runs and of B's runs.
      task: The task's name.
      main_metric: The metric that decides which side is better.
      num_rows: The number of rows.
      num_resamples: The number of resamples of the bootstrap.
      metrics: Paired scores by metric, for every metric for which higher is better.
      rows: Row counts, averaged over the pairs of runs: ``both_right``, ``only_a``, ``only_b`` and ``both_wrong`` (by
        exact match for span), or ``nearer_a``, ``nearer_b`` and ``equal`` for regression.
      settings: The settings that differ: ``{setting: (values of A's runs, values of B's runs)}``.
    """

    titles: tuple[tuple[str, ...], tuple[str, ...]]
    task: str
    main_metric: str
    num_rows: int
    num_resamples: int
    metrics: Mapping[str, Paired]
    rows: Mapping[str, float]
    settings: Mapping[str, tuple[str, str]]


def compare(
    first: Sequence[Side],
    second: Sequence[Side],
    rows: AnyRows,
    *,
    metric: str = "",
    bootstrap: Bootstrap = Bootstrap(),
    batch_size: int = 32,
    max_length: int | None = None,
) -> Comparison:
    """Evaluates two sides on the same rows, and tests the difference for significance.

    Args:
      first, second: The runs of each side, paired in order.
      rows: Labeled rows.
      metric: The metric that decides which side is better; empty for the task's main metric.
      bootstrap: The number of resamples, and their seed.
      batch_size: Rows per step.
      max_length: Maximum number of tokens per row; longer rows are truncated. None for the length used in training.

    Raises:
      UserError: The sides differ in their number of runs or kind of task, the metric does not apply to the task, or the
        rows' labels are missing or do not match the heads'.
    """
    if len(first) != len(second):
        raise UserError(
            f"A has {counted(len(first), 'run')} and B has {len(second)}; pass the same number of runs for both, "
            "paired in order (for example by seed)."
        )
    kinds = {side.model.task.kind for side in (*first, *second)}
    if len(kinds) > 1:
        raise UserError(
            f"Tasks of different kinds ({', '.join(sorted(kinds))}) cannot be compared; pass runs on the same task."
        )
    task = first[0].model.task
    for side in (*first, *second):
        side.model.check_labels(rows)
    main, num_labels = metric or task.main_metric, len(first[0].model.labels)
    check_metric(main, task.kind, num_labels)

    def scored(side: Side) -> tuple[Weighted, Float[np.ndarray, "rows"]]:
        predictions = side.model.predict_rows(rows, batch_size=batch_size, max_length=max_length)
        return row_scores(side.model, rows, predictions)

    pairs = [(scored(left), scored(right)) for left, right in zip(first, second, strict=True)]
    weighted = [(left[0], right[0]) for left, right in pairs]
    paired = paired_bootstrap(weighted, len(rows), num_resamples=bootstrap.num_resamples, seed=bootstrap.seed)
    counts = [_row_counts(left[1], right[1], numbers=TASK_KINDS[task.kind].has_numbers) for left, right in pairs]
    return Comparison(
        (tuple(side.title for side in first), tuple(side.title for side in second)),
        task.name,
        main,
        len(rows),
        bootstrap.num_resamples,
        {name: paired[name] for name in fitting_metrics(task.kind, num_labels)},
        {name: float(np.mean([pair_counts[name] for pair_counts in counts])) for name in counts[0]},
        _settings_of_both(first, second),
    )


def row_scores(model: TaskModel, rows: AnyRows, predictions: Predictions) -> tuple[Weighted, Float[np.ndarray, "rows"]]:
    """Computes a model's scores as functions of row weights, and its row-wise errors.

    Returns:
      A tuple ``(scores, errors)``. An error is 0 for a correct and 1 for an incorrect prediction, or the absolute error
      for regression.
    """
    assert rows.labels is not None, "checked by check_labels"
    kind = TASK_KINDS[model.task.kind]
    given = predictions, rows.labels, model.task
    return kind.weighted(*given), kind.errors(*given)


def to_lines(comparison: Comparison) -> list[str]:
    """Formats the comparison as the lines that ``afjax compare`` prints."""
    lines = [f"{letter}  {', '.join(titles)}" for letter, titles in zip("AB", comparison.titles, strict=True)]
    num_pairs = len(comparison.titles[0])
    lines += [
        "",
        f"{counted(comparison.num_rows, 'row')} of {comparison.task}"
        + (f", {num_pairs} pairs of runs" if num_pairs > 1 else ""),
    ]
    cells = [["metric", "A", "B", "B - A", "95% interval", "p", *(["std over pairs"] if num_pairs > 1 else [])]]
    # The main metric comes first.
    for name, result in sorted(comparison.metrics.items(), key=lambda item: item[0] != comparison.main_metric):
        scores = [f"{result.first:.4f}", f"{result.second:.4f}", f"{result.difference:+.4f}"]
        spread = [] if result.spread is None else [f"{result.spread:.4f}"]
        interval = f"{result.low:+.4f} to {result.high:+.4f}"
        cells.append([name, *scores, interval, f"{result.p_value:.4f}", *spread])
    lines += table_lines(cells)
    lines += ["", f"{_verdict(comparison)} (paired bootstrap, {counted(comparison.num_resamples, 'resample')})"]
    parts = [f"{_ROWS[name]} {_count(value)}" for name, value in comparison.rows.items()]
    lines += [f"Rows: {', '.join(parts)}"]
    lines += ["", "Settings that differ:" if comparison.settings else "No setting differs."]
    if comparison.settings:
        rows = [
            [f"  {name}", first, second] for name, (first, second) in shortened_settings(comparison.settings).items()
        ]
        lines += table_lines([["", "A", "B"], *rows], num_texts=3)
    return lines


def shortened_settings(settings: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Replaces each section that only A or only B has with its number of settings.

    Such a section is, for example, ``fusion`` or ``sources``. An empty list of sources counts as absent.

    Example:
      >>> shortened_settings({"step": ("1", "2"), "fusion.value": ("not set", "True"), "fusion.name": ("not set", "f")})
      {'step': ('1', '2'), 'fusion': ('not set', '2 settings')}
      >>> shortened_settings({"a": ("not set", "[]"), "a.0.x": ("1", "not set"), "a.0.y": ("2", "not set")})
      {'a': ('2 settings', 'not set')}
    """
    sections: dict[str, list[str]] = {}
    for name in settings:
        sections.setdefault(name.partition(".")[0], []).append(name)
    short: dict[str, tuple[str, str]] = {}
    for section, names in sections.items():
        nested = [name for name in names if name != section]
        own = settings.get(section, (NOT_SET, NOT_SET))
        absent = [
            own[side] in (NOT_SET, "[]") and all(settings[name][side] == NOT_SET for name in nested) for side in (0, 1)
        ]
        if len(nested) > 1 and any(absent):
            texts = [NOT_SET if missing else counted(len(nested), "setting") for missing in absent]
            short[section] = (texts[0], texts[1])
        else:
            short |= {name: settings[name] for name in names}
    return short


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Converts a comparison to a JSON object.

    The main metric's numbers are also at the top level.
    """
    names = {"first": "a", "second": "b"}
    results = {
        name: {names.get(key, key): value for key, value in dataclasses.asdict(result).items()}
        for name, result in comparison.metrics.items()
    }
    return {
        "task": comparison.task,
        "metric": comparison.main_metric,
        **results[comparison.main_metric],
        "rows": comparison.num_rows,
        "pairs": len(comparison.titles[0]),
        "resamples": comparison.num_resamples,
        "models": {letter: list(titles) for letter, titles in zip("ab", comparison.titles, strict=True)},
        "metrics": results,
        "rows_by_who_is_right": dict(comparison.rows),
        "settings": {name: list(values) for name, values in comparison.settings.items()},
    }


def _model_settings(model: TaskModel) -> dict[str, Any]:
    """Returns the settings recorded with a stored model, by dotted path."""
    parts = model.model
    settings: dict[str, Any] = {
        "trunk": model.trunk.name,
        "trunk_dtype": model.trunk.dtype,
        "adapters": [name for name, _ in parts.adapters],
        "head": {"name": parts.head_name, **to_dict(parts.head)},
        "seed": model.seed,
        "max_length": model.max_length,
        "task": to_dict(model.task),
        "step": model.metrics.get("step"),
    }
    if parts.adapters:
        settings["adapter"] = to_dict(parts.adapters[0][1])
    if parts.fusion_name:
        settings["fusion"] = {"name": parts.fusion_name, **to_dict(parts.fusion)}
    return by_path(settings)


def _settings_of_both(first: Sequence[Side], second: Sequence[Side]) -> dict[str, tuple[str, str]]:
    """Finds the settings that differ between A and B, with their values on each side."""
    # Compare configs only if every run has one, because a config and a stored model share few settings.
    configs = all(side.config is not None for side in (*first, *second))
    both_settings = [
        [side.config if configs else _model_settings(side.model) for side in sides] for sides in (first, second)
    ]
    joined = [
        {
            name: ", ".join(dict.fromkeys(str(run.get(name, NOT_SET)) for run in runs if run is not None))
            for name in sorted({name for run in runs if run is not None for name in run})
        }
        for runs in both_settings
    ]
    return {name: (values[0], values[1]) for name, values in differing_settings(joined).items()}


def _row_counts(
    first: Float[np.ndarray, "rows"], second: Float[np.ndarray, "rows"], *, numbers: bool
) -> dict[str, int]:
    if numbers:
        rows = {"nearer_a": first < second, "nearer_b": first > second, "equal": first == second}
    else:
        first_right, second_right = first == 0, second == 0
        rows = {
            "both_right": first_right & second_right,
            "only_a": first_right & ~second_right,
            "only_b": ~first_right & second_right,
            "both_wrong": ~first_right & ~second_right,
        }
    return {name: int(which.sum()) for name, which in rows.items()}


def _verdict(comparison: Comparison) -> str:
    result = comparison.metrics[comparison.main_metric]
    excludes_zero = result.low > 0 or result.high < 0
    # With few resamples, the interval may exclude zero although p is large.
    if excludes_zero and result.p_value < 0.05:
        return f"{'B' if result.low > 0 else 'A'} is better by {abs(result.difference):.4f} {comparison.main_metric}"
    reason = "p is at least 0.05, use more resamples" if excludes_zero else "the interval contains zero"
    return f"No significant difference in {comparison.main_metric}: {reason}"


def _count(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:.1f}"
