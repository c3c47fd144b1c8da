"""Draws AdapterFusion in one encoder layer (``afjax/fusion/textbook.py``)."""

from drawing import SMALL, Box, Drawing
from palettes import Palette

ADAPTERS = {"1": 216, "2": 332, "N": 474}  # Centers of the adapters.
QUERY, KEY, VALUE = 104, 250, 440  # Centers of the matrices.
RESIDUAL_H, RESIDUAL_F = 20, 546  # x of the lines around the fusion.


def draw(palette: Palette) -> str:
    """Returns the diagram as SVG."""
    drawing = Drawing(
        "fusion",
        826,
        "AdapterFusion in one encoder layer",
        "The layer's feed-forward network gives f. With the residual h, z = LN(h + f) is the input of the query matrix "
        "Q and of N adapters. The outputs of the adapters, before their residuals, are u_1 to u_N. They are the inputs "
        "of the key matrix K and the value matrix V. The score of adapter n is q · k_n. A softmax over the N adapters, "
        "after dropout and with the temperature T, gives the attention s_n. The output o is the sum of s_n v_n. Then f "
        "and h are added, and the same LayerNorm gives the layer's output y = LN(h + f + o). Q, K and V are trained. "
        "The adapters and the LayerNorm are frozen.",
        palette,
    )
    drawing.legend(46, 20)
    drawing.label(280, 58, "f", bold=True)
    norm1 = drawing.box(170, 88, 220, 38, "add h, LayerNorm")
    drawing.arrow((280, 68), norm1.top)
    drawing.label(RESIDUAL_H, 107, "h", bold=True)
    drawing.arrow((RESIDUAL_H + 11, 107), norm1.left)

    query = drawing.box(QUERY - 56, 322, 112, 38, "query Q", style="trained")
    key = drawing.box(KEY - 56, 322, 112, 38, "key K", style="trained")
    value = drawing.box(VALUE - 56, 322, 112, 38, "value V", style="trained")
    _adapters(drawing, norm1, query, (key, value))

    scores = drawing.box(query.x, 394, KEY + 56 - query.x, 36, "scores q · k_{n}", style="plain")
    for box, name in ((query, "q"), (key, "k_{n}")):
        drawing.arrow(box.bottom, (box.bottom[0], scores.y))
        drawing.label(box.bottom[0] + 10, 377, name, bold=True, anchor="start")
    attention = _attention(drawing, scores)
    mix = drawing.box(VALUE - 84, 486, 168, 58, "weighted sum", "Σ s_{n} v_{n}", style="plain")
    drawing.arrow(value.bottom, mix.top)
    drawing.label(VALUE + 10, 420, "v_{n}", bold=True, anchor="start")
    drawing.arrow((attention.right[0], mix.left[1]), mix.left)
    drawing.label(331, 499, "s_{n}", bold=True)

    plus = drawing.plus(VALUE, 594)
    norm2 = drawing.box(170, 628, 220, 38, "add h, LayerNorm")
    drawing.arrow(mix.bottom, plus.top)
    drawing.label(VALUE + 10, 564, "o", bold=True, anchor="start")
    drawing.arrow((280, 75), (RESIDUAL_F, 75), (RESIDUAL_F, plus.right[1]), plus.right)
    drawing.arrow(plus.bottom, (VALUE, norm2.right[1]), norm2.right)
    drawing.arrow((RESIDUAL_H, 119), (RESIDUAL_H, norm2.left[1]), norm2.left)
    drawing.arrow(norm2.bottom, (280, 694))
    drawing.label(292, 682, "y", bold=True, anchor="start")

    drawing.label(280, 722, "u_{n}: output of adapter n before its residual", size=SMALL, color="muted")
    for x, formula in ((96, "q = Q z + b_{Q}"), (282, "k_{n} = K u_{n} + b_{K}"), (468, "v_{n} = V u_{n}")):
        drawing.label(x, 752, formula)
    drawing.label(280, 780, "s_{n} = softmax(dropout(q · k_{n}) / T)")
    drawing.label(280, 808, "y = LN(h + f + Σ s_{n} v_{n})")
    return drawing.svg()


def _adapters(drawing: Drawing, norm: Box, query: Box, readers: tuple[Box, Box]) -> None:
    """Draws the adapters, from z to the matrices applied to their outputs."""
    boxes = []
    for number, center in ADAPTERS.items():
        adapter = drawing.bottleneck(center - 50, 176, 100, 88, "adapter", "", number, style="frozen", waist=56)
        drawing.icon(center, 220, "frozen")
        drawing.label(center + 8, 279, f"u_{{{number}}}", bold=True, anchor="start")
        boxes.append(adapter)
    first, second, last = boxes
    drawing.label(403, 220, "…")

    above, below = 152, 296  # y of the lines that split and join.
    drawing.label(292, 138, "z", bold=True, anchor="start")
    drawing.arrow(norm.bottom, (280, above), head=False)
    drawing.arrow((280, above), (query.top[0], above), query.top)
    drawing.arrow((280, above), (last.top[0], above), last.top)
    for box in (first, second):
        drawing.arrow((box.top[0], above), box.top)
    drawing.arrow(first.bottom, (first.bottom[0], below), (last.bottom[0], below), last.bottom, head=False)
    drawing.arrow(second.bottom, (second.bottom[0], below), head=False)
    for box in readers:
        drawing.arrow((box.top[0], below), box.top)


def _attention(drawing: Drawing, scores: Box) -> Box:
    """Draws the softmax, with an example of attention over the adapters."""
    box = drawing.box(scores.x, 454, scores.width, 122, style="plain")
    drawing.arrow(scores.bottom, box.top)
    drawing.label(box.top[0], 474, "softmax over adapters")
    floor = 548
    for name, offset, height in (("s_{1}", -75, 18), ("s_{2}", -25, 52), ("s_{N}", 75, 30)):
        center = box.top[0] + offset
        color = drawing.color("line")
        drawing.element("rect", x=center - 13, y=floor - height, width=26, height=height, fill=color)
        drawing.label(center, floor + 13, name, size=SMALL)
    drawing.label(box.top[0] + 25, floor + 11, "…", size=SMALL)
    drawing.arrow((box.x + 30, floor), (box.x + box.width - 30, floor), head=False, width=1.4)
    return box
