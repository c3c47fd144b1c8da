"""Ablates the adapters of each span of layers (Houlsby 2019, section 3.6).

The trained adapters of a contiguous span of layers are removed, and the model is evaluated without further training. A
single program evaluates all spans: each span is a mask over the layers, and leading layers on which masks agree are
computed once. As in the paper, only adapters are removed, while LayerNorms trained with the adapters stay in all
layers.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from afjax.analysis.adapterdrop import layers_with_adapters
from afjax.analysis.figures import AMOUNTS, COLUMN_WIDTH, PAGE_WIDTH, new_figure, save_figure, style
from afjax.data.splits import AnyRows
from afjax.errors import UserError
from afjax.model.model import Model
from afjax.model.task_model import TaskModel
from afjax.tasks.scores import split_scores
from afjax.trees import Tree

# Limits the rows per step so that the hidden states of all masks have about this many tokens in total. This keeps an
# accelerator busy, and takes 0.1 GB for BERT-base's widest activations. On CPUs, larger steps are a third slower.
TOKENS_PER_STEP = 8192


@dataclasses.dataclass(frozen=True)
class SpanScores:
    """Scores without the adapters of each span of layers.

    Attributes:
      layers: The trunk layers that have adapters.
      whole: Every metric with all adapters.
      without: Every metric without the adapters of each span. A span is ``(first, last)``, both inclusive.
    """

    layers: tuple[int, ...]
    whole: Mapping[str, float]
    without: Mapping[tuple[int, int], Mapping[str, float]]

    def relative_change(self, metric: str) -> Float[np.ndarray, "first_layers last_layers"]:
        """Computes ``(without - whole) / |whole|`` for a metric.

        Entries whose last layer precedes the first are NaN.

        Raises:
          UserError: The score with all adapters is 0 or not finite.
        """
        full_score = self.whole[metric]
        if not full_score or not np.isfinite(full_score):
            raise UserError(
                f"With all adapters, the model has {metric} of {full_score:g}, so relative changes are undefined; "
                "choose a better-trained model or, if the task has several metrics, another metric."
            )
        change = np.full((len(self.layers), len(self.layers)), np.nan)
        for (first, last), scores in self.without.items():
            indices = self.layers.index(first), self.layers.index(last)
            change[indices] = (scores[metric] - full_score) / abs(full_score)
        return change


def layer_spans(layers: Sequence[int]) -> list[tuple[int, int]]:
    """Lists all contiguous spans of layers as sorted pairs ``(first, last)``."""
    return [(first, last) for index, first in enumerate(layers) for last in layers[index:]]


def score_spans(task_model: TaskModel, rows: AnyRows, *, batch_size: int = 32) -> SpanScores:
    """Evaluates a model without the adapters of each contiguous span of layers.

    Args:
      task_model: A model with an adapter or a fusion. A layer's fusion is removed with its adapters.
      rows: Labeled rows.
      batch_size: Maximum number of rows per step. ``TOKENS_PER_STEP`` may reduce it.

    Raises:
      UserError: The model has no adapters in its layers, or the rows' labels are missing or do not match the head's.
    """
    layers, depth = layers_with_adapters(task_model), task_model.trunk.config.num_layers
    task_model.check_labels(rows)
    data, spans = task_model.tokenized(rows), layer_spans(layers)
    everywhere = np.ones(depth, bool)
    span_masks = [(np.arange(depth) < first) | (np.arange(depth) > last) for first, last in spans]
    masks = tuple(tuple(mask.tolist()) for mask in (everywhere, *span_masks))
    allowed = max(1, TOKENS_PER_STEP // (len(masks) * data.num_choices * task_model.max_length))
    step = functools.partial(_step_under_masks, masks)
    logits = task_model.over_rows(step, data, batch_size=min(batch_size, allowed)) * np.float32(task_model.task.scale)
    full_scores, *scores = (split_scores(logits[:, number], data, task_model.task) for number in range(len(masks)))
    return SpanScores(layers, full_scores, dict(zip(spans, scores, strict=True)))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _step_under_masks(
    masks: tuple[tuple[bool, ...], ...], model: Model, params: Tree, batch: Mapping[str, Any]
) -> Float[jax.Array, "batch masks ..."]:
    """Computes the logits under each mask."""
    return model.under_masks(params, batch, np.array(masks))


@style()
def draw_spans(scores: SpanScores, metric: str, output: str | Path, *, title: str = "") -> list[Path]:
    """Draws a metric's relative change when each span's adapters are removed.

    The CSV has all metrics for all spans.

    Args:
      scores: The result of :func:`score_spans`.
      metric: The metric to draw.
      output: The output path; each file gets its format's suffix.
      title: The title of the figure.

    Returns:
      The paths of the PNG, SVG and CSV files.

    Raises:
      UserError: The score with all adapters is 0 or not finite, or a file cannot be written.
    """
    change, count = 100 * scores.relative_change(metric), len(scores.layers)
    width = COLUMN_WIDTH if count <= 12 else PAGE_WIDTH
    figure, (axes,) = new_figure(width, 0.86 * width)
    # The bright end of the color map means no loss.
    low, high = min(float(np.nanmin(change)), -1.0), max(float(np.nanmax(change)), 0.0)
    image = axes.imshow(change, cmap=AMOUNTS, vmin=low, vmax=high)
    axes.set(
        xticks=range(count),
        yticks=range(count),
        xticklabels=scores.layers,
        yticklabels=scores.layers,
        xlabel="last layer without adapters",
        ylabel="first layer without adapters",
    )
    axes.set_title(title, fontsize=8)
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    bar = figure.colorbar(image, ax=axes, shrink=0.85)
    bar.set_label(f"relative change of {metric.replace('_', ' ')} (%)", size=8)
    bar.ax.tick_params(labelsize=7)
    size = min(7.0, 7.0 * (width / COLUMN_WIDTH) * 9 / count)
    for first, last in zip(*np.nonzero(np.isfinite(change)), strict=True):
        value = change[first, last]
        ink = "white" if value < (low + high) / 2 else "black"
        axes.text(last, first, f"{value:.0f}".replace("-0", "0"), ha="center", va="center", color=ink, fontsize=size)
    names = list(scores.whole)
    header = ["first_layer", "last_layer", f"relative_change_{metric}", *names]
    lines: list[list[object]] = [["", "", 0.0, *scores.whole.values()]]
    for (first, last), values in scores.without.items():
        relative = (values[metric] - scores.whole[metric]) / abs(scores.whole[metric])
        lines.append([first, last, relative, *(values[name] for name in names)])
    return save_figure(figure, output, header, lines)
