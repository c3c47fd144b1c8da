"""Draws an encoder layer and its slots.

The code is in ``afjax/trunk/post_norm_layer.py`` and ``afjax/adapters/``.
"""

import itertools

from drawing import SMALL, Box, Drawing
from palettes import Palette

LEFT, SIZE = 42, 280  # Left edge and width of the trunk's column.
CENTER = LEFT + SIZE / 2
RESIDUALS = 14  # x of the lines around the sub-layers.
RIGHT = 344  # Left edge of the modules' column.
PANELS = 692  # Upper edge of the two panels.


def draw(palette: Palette) -> str:
    """Returns the diagram as SVG."""
    drawing = Drawing(
        "encoder",
        1092,
        "Where adapters act in an encoder layer",
        "The layer's input x passes self-attention with its query, key, value and output matrices. The residual x is "
        "added, and a LayerNorm gives h. The feed-forward network (FFN) has two dense layers. The residual h is added, "
        "and a second LayerNorm gives the output y. All of this is frozen. Trained modules act in four places. Houlsby "
        "adapters follow the attention and the FFN. A Pfeiffer adapter follows only the FFN. A projected attention "
        "layer (PAL) reads x and is added before the second LayerNorm; BERT is then trained too. LoRA and (IA)³ change "
        "the outputs of dense layers, and LHUC scales y. A Houlsby adapter computes u from the sub-layer's output s. "
        "The slot's output is LN(r + s + u), with the residual r and a trained LayerNorm. A Pfeiffer adapter computes "
        "u from z = LN(h + f). The layer's output is LN(h + f + u), with the same frozen LayerNorm.",
        palette,
    )
    drawing.legend(46, 20)
    _layer(drawing)
    _houlsby(drawing, 8)
    _pfeiffer(drawing, 288)
    return drawing.svg()


def _layer(drawing: Drawing) -> None:
    third = (SIZE - 16) / 3
    starts = [LEFT + number * (third + 8) for number in range(3)]
    query, key, value = (
        _dense(drawing, x, 108, third, name) for x, name in zip(starts, ("query", "key", "value"), strict=True)
    )
    attention = drawing.box(LEFT, 164, SIZE, 36, "attention over tokens", style="plain")
    output = _dense(drawing, LEFT, 218, SIZE, "attention output")
    after_attention = drawing.box(LEFT, 274, SIZE, 50, "adapter after attention", "Houlsby", style="trained")
    norm1 = drawing.box(LEFT, 342, SIZE, 38, "add x, LayerNorm")
    intermediate = _dense(drawing, LEFT, 416, SIZE, "FFN intermediate, GELU")
    ffn = _dense(drawing, LEFT, 472, SIZE, "FFN output")
    after_ffn = drawing.box(LEFT, 534, SIZE, 50, "adapter after the FFN", "Houlsby or Pfeiffer", style="trained")
    norm2 = drawing.box(LEFT, 602, SIZE, 38, "add h, LayerNorm")

    drawing.label(CENTER, 58, "x", bold=True)
    drawing.arrow((CENTER, 70), key.top)
    for box in (query, value):
        drawing.arrow((CENTER, 90), (box.top[0], 90), box.top)
    for box in (query, key, value):
        drawing.arrow(box.bottom, (box.bottom[0], attention.y))
    column = (attention, output, after_attention, norm1, intermediate, ffn, after_ffn, norm2)
    for upper, lower in itertools.pairwise(column):
        drawing.arrow(upper.bottom, lower.top)
    drawing.label(CENTER + 12, 390, "h", bold=True, anchor="start")
    drawing.label(CENTER + 12, 521, "f", bold=True, anchor="start")
    drawing.arrow((CENTER, 79), (RESIDUALS, 79), (RESIDUALS, norm1.left[1]), norm1.left)
    drawing.arrow((CENTER, 398), (RESIDUALS, 398), (RESIDUALS, norm2.left[1]), norm2.left)

    drawing.arrow(norm2.bottom, (CENTER, 678))
    _mark(drawing, CENTER, 656)
    drawing.label(CENTER + 18, 657, "y", bold=True, anchor="start")
    drawing.label(CENTER + 38, 657, "LHUC: scales y", size=SMALL, anchor="start")

    _mark(drawing, RIGHT + 10, 118)
    drawing.label(RIGHT + 27, 118, "in dense layers", anchor="start", bold=True)
    lines = ["LoRA: query and value,", "or all six", "(IA)³: key, value and", "FFN output"]
    drawing.labels(RIGHT + 2, 143, lines, size=SMALL, anchor="start")
    _pal(drawing, norm2)


def _pal(drawing: Drawing, norm: Box) -> None:
    """Draws a module in parallel with the layer, added before ``norm``."""
    center = 448
    drawing.label(RIGHT + 2, 266, "in parallel: PAL", anchor="start", bold=True)
    lines = ["or low-rank, or an FFN;", "BERT is trained too", "LN(h + f + PAL(x))"]
    drawing.labels(RIGHT + 2, 291, lines, size=SMALL, anchor="start")
    lines = ["down", "attention", "up"]
    pal = drawing.bottleneck(center - 80, 386, 160, 108, *lines, style="trained", waist=92)
    drawing.icon(center - 63, 440, "trained")
    drawing.arrow((CENTER, 79), (546, 79), (546, 362), (center, 362), pal.top)
    drawing.arrow(pal.bottom, (center, norm.right[1]), norm.right)


def _houlsby(drawing: Drawing, x: float) -> None:
    panel = drawing.panel(x, PANELS, 264, 392)
    center = x + 120
    drawing.label(panel.top[0], PANELS + 24, "Houlsby", bold=True)
    lines = ["after both sub-layers", "s: the sub-layer's output", "r: its residual, x or h"]
    drawing.labels(panel.top[0], PANELS + 46, lines, size=SMALL, color="muted")
    drawing.label(center, PANELS + 122, "s", bold=True)
    adapter = _bottleneck(drawing, center, "GELU")
    plus = drawing.plus(center, PANELS + 284)
    norm = drawing.box(x + 26, PANELS + 312, 188, 38, "add r, LayerNorm", style="trained")
    drawing.arrow((center, PANELS + 132), adapter.top)
    drawing.arrow(adapter.bottom, plus.top)
    drawing.label(center - 10, PANELS + 261, "u", bold=True, anchor="end")
    drawing.arrow((center, PANELS + 146), (x + 226, PANELS + 146), (x + 226, plus.right[1]), plus.right)
    drawing.arrow(plus.bottom, norm.top)
    drawing.arrow((x + 240, norm.right[1]), norm.right)
    drawing.label(x + 248, norm.right[1], "r", bold=True)
    drawing.label(panel.top[0], PANELS + 372, "LN(r + s + u)")


def _pfeiffer(drawing: Drawing, x: float) -> None:
    panel = drawing.panel(x, PANELS, 264, 392)
    center = x + 132
    drawing.label(panel.top[0], PANELS + 24, "Pfeiffer", bold=True)
    drawing.label(panel.top[0], PANELS + 46, "after the FFN", size=SMALL, color="muted")
    drawing.label(center, PANELS + 70, "f", bold=True)
    norm1 = drawing.box(x + 38, PANELS + 100, 188, 38, "add h, LayerNorm")
    adapter = _bottleneck(drawing, center, "ReLU")
    plus = drawing.plus(center, PANELS + 284)
    norm2 = drawing.box(x + 38, PANELS + 312, 188, 38, "add h, LayerNorm")
    drawing.arrow((center, PANELS + 80), norm1.top)
    drawing.arrow(norm1.bottom, adapter.top)
    drawing.label(center + 10, PANELS + 150, "z", bold=True, anchor="start")
    drawing.arrow(adapter.bottom, plus.top)
    drawing.label(center + 10, PANELS + 261, "u", bold=True, anchor="start")
    drawing.arrow((center, PANELS + 87), (x + 18, PANELS + 87), (x + 18, plus.left[1]), plus.left)
    drawing.arrow(plus.bottom, norm2.top)
    side = x + 248
    drawing.label(side, PANELS + 92, "h", bold=True)
    drawing.arrow((side, PANELS + 104), (side, norm1.right[1]), norm1.right)
    drawing.arrow((side, PANELS + 104), (side, norm2.right[1]), norm2.right)
    drawing.label(panel.top[0], PANELS + 372, "LN(h + f + u)")


def _bottleneck(drawing: Drawing, center: float, activation: str) -> Box:
    """Draws the adapter in a panel."""
    lines = ["down", activation, "up"]
    box = drawing.bottleneck(center - 70, PANELS + 166, 140, 84, *lines, style="trained", waist=72)
    drawing.icon(center - 53, PANELS + 208, "trained")
    return box


def _dense(drawing: Drawing, x: float, y: float, width: float, text: str) -> Box:
    """Draws a frozen dense layer with a mark for its slot."""
    box = drawing.box(x, y, width, 38, text)
    _mark(drawing, x + width - 2, y + 1)
    return box


def _mark(drawing: Drawing, x: float, y: float) -> None:
    """Marks a trained part of a layer with a small square, centered at ``(x, y)``."""
    drawing.box(x - 8, y - 8, 16, 16, style="trained", icon=False)
