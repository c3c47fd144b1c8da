"""Draws AdapterFusion's two stages.

The code is in ``afjax/train/single.py`` and ``afjax/train/fusion.py``.
"""

from drawing import SMALL, Box, Drawing
from palettes import Palette

TASKS = {"1": 8, "2": 178, "N": 390}  # Left edges of the tasks' panels.
PANEL = 162  # Width of a task's panel.
BETWEEN = (TASKS["2"] + PANEL + TASKS["N"]) / 2  # x of the dots for the other tasks.


def draw(palette: Palette) -> str:
    """Returns the diagram as SVG."""
    drawing = Drawing(
        "stages",
        864,
        "The two stages of AdapterFusion",
        "Stage 1 trains one adapter and one head per task. Each task has its own run, and the encoder is frozen. The "
        "adapters and heads are saved in a store. Stage 2 loads N adapters from the store. The encoder and the "
        "adapters are frozen. A fusion, which computes attention over the adapters, and a new head are trained on a "
        "target task. They are saved in the same store.",
        palette,
    )
    drawing.legend(46, 20, plain="data, store")
    drawing.label(8, 64, "Stage 1: one adapter per task", anchor="start", bold=True)
    drawing.label(552, 64, "N separate runs", size=SMALL, anchor="end", color="muted")
    panels = [_task(drawing, number, x) for number, x in TASKS.items()]
    drawing.label(BETWEEN, 204, "…", bold=True)
    _target(drawing, _store(drawing))
    for panel, lid in zip(panels, (378, 374, 378), strict=True):
        drawing.arrow(panel.bottom, (panel.bottom[0], lid))
        drawing.label(panel.bottom[0] + 10, 344, "save", size=SMALL, anchor="start", color="muted")
    return drawing.svg()


def _task(drawing: Drawing, number: str, x: float) -> Box:
    """Draws the training of one task's adapter and head."""
    panel = drawing.panel(x, 82, PANEL, 246)
    data = drawing.box(x + 10, 96, 142, 34, f"task {number}", style="plain")
    encoder = _encoder(drawing, x + 10, 152, 142, 94)
    drawing.box(x + 18, 192, 126, 42, f"adapter {number}", style="trained")
    head = drawing.box(x + 10, 268, 142, 42, f"head {number}", style="trained")
    drawing.arrow(data.bottom, encoder.top)
    drawing.arrow(encoder.bottom, head.top)
    return panel


def _encoder(drawing: Drawing, x: float, y: float, width: float, height: float) -> Box:
    """Draws an encoder with space for modules."""
    box = drawing.box(x, y, width, height, icon=False)
    drawing.icon(x + 19, y + 20, "frozen")
    drawing.label(x + 36, y + 20, "encoder", anchor="start")
    return box


def _members(drawing: Drawing, y: float) -> list[Box]:
    """Draws the frozen adapters of all tasks."""
    drawing.label(BETWEEN, y + 21, "…", bold=True)
    return [drawing.box(x + 18, y, 126, 42, f"adapter {number}") for number, x in TASKS.items()]


def _store(drawing: Drawing) -> Box:
    store = drawing.cylinder(8, 366, 544, 122)
    drawing.label(280, 408, "store: adapters and heads", bold=True)
    _members(drawing, 426)
    return store


def _target(drawing: Drawing, store: Box) -> None:
    """Draws the training of the fusion and the target task's head."""
    drawing.label(8, 530, "Stage 2: a fusion for a target task", anchor="start", bold=True)
    panel = drawing.panel(8, 548, 544, 308)
    data = drawing.box(209, 562, 142, 34, "target task", style="plain")
    encoder = _encoder(drawing, 18, 618, 524, 162)
    members = _members(drawing, 658)
    fusion = drawing.box(26, 722, 508, 44, "fusion: attention over adapters", style="trained")
    head = drawing.box(209, 802, 142, 42, "target head", style="trained")
    drawing.arrow(data.bottom, encoder.top)
    for member in members:
        drawing.arrow(member.bottom, (member.bottom[0], fusion.y))
    drawing.arrow(encoder.bottom, head.top)
    for x, text, ends in ((400, "load", (store.bottom[1], panel.y)), (480, "save", (panel.y, store.bottom[1]))):
        drawing.arrow((x, ends[0]), (x, ends[1]))
        drawing.label(x + 10, 518, text, size=SMALL, anchor="start", color="muted")
