"""Heatmaps of fusion activations from :mod:`afjax.analysis.activations`."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from afjax.analysis.activations import ALL, Activations, TokenActivations
from afjax.analysis.figures import AMOUNTS, PAGE_WIDTH, new_figure, save_figure, style
from afjax.distributed.notes import note
from afjax.errors import UserError

# Heatmaps with at most this many columns are annotated with their values.
_TOKENS_WITH_NUMBERS = 24
# Number of tokens that fit legibly across a page. Longer inputs are wrapped, up to _MAX_LINES lines per figure.
_TOKENS_PER_LINE = 40
_MAX_LINES = 24
# The maximum number of lines in a figure of means with labels. Each heatmap needs three additional lines.
_MAX_LINES_OF_MEANS = 500


@dataclasses.dataclass(frozen=True)
class _Panel:
    """One heatmap. Missing cells are NaN."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    amounts: Float[np.ndarray, "rows columns"]


def check_layers(layers: Sequence[int], num_layers: int) -> None:
    """Raises UserError if a layer does not exist or is listed twice."""
    for layer in layers:
        if layers.count(layer) > 1:
            raise UserError(f"The layer {layer} is listed twice; list each layer once.")
        if not 0 <= layer < num_layers:
            raise UserError(f"There is no layer {layer}; the trunk has layers 0 to {num_layers - 1}.")


def draw_activations(found: Sequence[Activations], output: str | Path, *, layers: Sequence[int] = ()) -> list[Path]:
    """Draws mean activations as heatmaps and writes the values as CSV.

    A single fusion is drawn as layers x adapters. Several fusions are drawn as fusions x adapters, with one heatmap per
    layer.

    Args:
      found: The activations of one or more fusions from the same store. Cells are blank if a fusion lacks the adapter.
      output: The output path; each file gets its format's suffix.
      layers: Trunk layers to show, in this order. Empty for all.

    Returns:
      The paths of the PNG, SVG and CSV files.

    Raises:
      UserError: A layer does not exist or is listed twice, the layers have no adapters, or a file cannot be written.
    """
    assert found, "at least one fusion is needed"
    depth = len(next(iter(found[0].means.values()))[ALL])
    check_layers(layers, depth)
    layers = layers or range(depth)
    panels = _mean_panels(found, layers)
    num_lines = sum(len(panel.rows) + 3 for panel in panels)
    if num_lines > _MAX_LINES_OF_MEANS and any(len(activations.num_rows) > 1 for activations in found):
        panels = _mean_panels([_without_labels(activations) for activations in found], layers)
        note(
            f"The figure shows the means over all rows only, because it would need {num_lines} lines for all labels; "
            "the CSV file has the means for each label. To draw them too, select fewer --layers."
        )
    lines = [
        [activations.fusion, group, activations.num_rows[group], slot, layer, name, float(amount)]
        for activations in found
        for slot, groups in activations.means.items()
        for group, means in groups.items()
        for layer in layers
        for name, amount in zip(activations.adapters, means[layer], strict=True)
        if np.isfinite(amount)
    ]
    header = ("fusion", "rows", "num_rows", "slot", "layer", "adapter", "mean_activation")
    labels = ("adapter", "layer" if len(found) == 1 else "fusion")
    return _draw(panels, output, header, lines, labels=labels, amount="mean activation", cell=(0.42, 0.22))


def _mean_panels(found: Sequence[Activations], layers: Sequence[int]) -> list[_Panel]:
    """Makes the heatmaps of mean activations; see :func:`draw_activations`."""
    adapters = list(dict.fromkeys(name for activations in found for name in activations.adapters))
    slots = list(dict.fromkeys(slot for activations in found for slot in activations.means))
    panels: list[_Panel] = []
    for slot in slots:
        slot_suffix = f", {slot}" if len(slots) > 1 else ""
        if len(found) == 1:
            for group, amounts in found[0].means[slot].items():
                title = f"{group} ({found[0].num_rows[group]}){slot_suffix}"
                panels.append(_Panel(title, list(map(str, layers)), adapters, amounts[list(layers)]))
            continue
        for layer in layers:
            rows: list[str] = []
            shares: list[list[float]] = []
            for activations in found:
                # All panels have the same rows, because they share an axis. A fusion without the slot has no shares.
                for group in activations.num_rows:
                    rows.append(activations.fusion if group == ALL else f"{activations.fusion}: {group}")
                    means = activations.means.get(slot, {}).get(group)
                    own = {} if means is None else dict(zip(activations.adapters, means[layer], strict=True))
                    shares.append([own.get(name, np.nan) for name in adapters])
            panels.append(_Panel(f"layer {layer}{slot_suffix}", rows, adapters, np.array(shares)))
    return panels


def _without_labels(activations: Activations) -> Activations:
    """Keeps only the means over all rows."""
    return dataclasses.replace(
        activations,
        num_rows={ALL: activations.num_rows[ALL]},
        means={slot: {ALL: groups[ALL]} for slot, groups in activations.means.items()},
    )


def draw_token_activations(found: TokenActivations, output: str | Path, *, layers: Sequence[int] = ()) -> list[Path]:
    """Draws the activations for one input as heatmaps and writes the values as CSV.

    Each layer has a heatmap of adapters x tokens, which is wrapped into several heatmaps if the input is long. See
    :func:`draw_activations` for ``output`` and ``layers``.

    Raises:
      UserError: A layer does not exist or is listed twice, the layers have no adapters, the input needs more lines than
        a figure can show, or a file cannot be written.
    """
    depth = len(next(iter(found.weights.values())))
    check_layers(layers, depth)
    layers = layers or range(depth)
    lines_per_layer = math.ceil(len(found.tokens) / _TOKENS_PER_LINE)
    parts = np.array_split(np.arange(len(found.tokens)), lines_per_layer)
    panels = [
        _Panel(
            f"layer {layer}"
            + (f", {slot}" if len(found.weights) > 1 else "")
            + (f", tokens {part[0]} to {part[-1]}" if len(parts) > 1 else ""),
            found.adapters,
            [found.tokens[position] for position in part],
            weights[layer, part].T,
        )
        for slot, weights in found.weights.items()
        for layer in layers
        if np.isfinite(weights[layer]).any()
        for part in parts
    ]
    if len(parts) > 1 and len(panels) > _MAX_LINES:
        raise UserError(
            f"The text has {len(found.tokens)} tokens, which need {len(panels)} lines for all layers, but a figure "
            f"shows at most {_MAX_LINES}; select fewer --layers, or shorten the text."
        )
    lines = [
        [found.fusion, slot, layer, position, token, name, float(amount)]
        for slot, weights in found.weights.items()
        for layer in layers
        for position, token in enumerate(found.tokens)
        for name, amount in zip(found.adapters, weights[layer, position], strict=True)
        if np.isfinite(amount)
    ]
    header = ("fusion", "slot", "layer", "position", "token", "adapter", "activation")
    cell = (min(0.34, 5.2 / len(parts[0])), 0.18)
    labels = ("token", "adapter")
    return _draw(panels, output, header, lines, labels=labels, amount="activation", cell=cell)


@style()
def _draw(
    panels: Sequence[_Panel],
    output: str | Path,
    header: Sequence[str],
    lines: Sequence[Sequence[object]],
    *,
    labels: tuple[str, str],
    amount: str,
    cell: tuple[float, float],
) -> list[Path]:
    """Draws heatmaps with shared row labels and color scale, and writes all files.

    Args:
      panels: The heatmaps.
      output: The output path; each file gets its format's suffix.
      header: The column names of the CSV.
      lines: The rows of the CSV.
      labels: The x-axis and y-axis labels.
      amount: The color bar's label.
      cell: The width and height of a heatmap cell, in inches.
    """
    if not lines:
        raise UserError("The requested layers have no adapters, so there is nothing to show.")
    first = panels[0]
    longest = max(map(len, first.rows)), max(len(name) for panel in panels for name in panel.columns)
    margin = 0.35 + 0.06 * longest[0]
    # A panel is at least as wide as its title.
    width = max(cell[0] * len(first.columns), 0.062 * max(len(panel.title) for panel in panels))
    height = cell[1] * len(first.rows)
    # Rotate names that are wider than a column.
    upright = longest[1] * 0.06 > width / len(first.columns)
    across = max(1, min(len(panels), int((PAGE_WIDTH - margin - 0.7) / (width + 0.15))))
    down = math.ceil(len(panels) / across)
    across = math.ceil(len(panels) / down)
    # The lines of a wrapped input have different tokens, so each needs its own labels.
    shared = all(panel.columns == first.columns for panel in panels)
    names = 0.06 * longest[1] if upright else 0.15
    figure, axes = new_figure(
        margin + across * (width + 0.15) + 0.7,
        down * (height + 0.28) + 0.35 + names * (1 if shared else down),
        rows=down,
        columns=across,
        sharex=shared,
        sharey=True,
    )
    highest = max(float(np.nanmax(panel.amounts)) for panel in panels if np.isfinite(panel.amounts).any())
    for index, (panel, panel_axes) in enumerate(zip(panels, axes, strict=False)):
        image = panel_axes.imshow(panel.amounts, cmap=AMOUNTS, vmin=0.0, vmax=highest, aspect="auto")
        panel_axes.set_title(panel.title, fontsize=8)
        panel_axes.set_facecolor("0.88")
        panel_axes.spines[["left", "bottom"]].set_visible(False)
        panel_axes.set_xticks(range(len(panel.columns)), panel.columns, rotation=90 if upright else 0)
        panel_axes.set_yticks(range(len(panel.rows)), panel.rows)
        panel_axes.tick_params(length=0)
        if index % across == 0:
            panel_axes.set_ylabel(labels[1])
        if index >= len(panels) - across:
            # The last row may be incomplete, so panels above its empty cells need labels too.
            panel_axes.tick_params(labelbottom=True)
            panel_axes.set_xlabel(labels[0])
        for row, column in np.ndindex(panel.amounts.shape):
            value = panel.amounts[row, column]
            if len(panel.columns) <= _TOKENS_WITH_NUMBERS:
                ink = "black" if not np.isfinite(value) or value > 0.5 * highest else "white"
                text = f"{value:.2f}".removeprefix("0") if np.isfinite(value) else "\N{EN DASH}"
                panel_axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=6)
    for panel_axes in axes[len(panels) :]:
        panel_axes.set_visible(False)
    bar = figure.colorbar(image, ax=axes, aspect=30 if down > 1 else 15, fraction=0.05)
    bar.set_label(amount, size=8)
    bar.ax.tick_params(labelsize=7)
    return save_figure(figure, output, header, lines)
