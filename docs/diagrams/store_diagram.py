"""Draws a store's folders and the digests in its manifests (``afjax/store/``)."""

from drawing import SMALL, Box, Drawing
from palettes import Palette

STORE = {
    "adapters": ("entail", "paraphrase"),
    "fusion": ("target-fusion",),
    "heads": ("entail", "paraphrase", "target-fusion"),
}
TOP, ROW = 86, 40  # Upper edge of the store, and height of a row.
BOTTOM = 504  # Lower edge of the store.


def draw(palette: Palette) -> str:
    """Returns the diagram as SVG."""
    drawing = Drawing(
        "store",
        798,
        "The folders and digests of a store",
        "A store has the folders adapters, fusion and heads, with one folder per artifact. Each artifact has a "
        "manifest.json and a folder params. In the example, the adapters are entail and paraphrase, the fusion is "
        "target-fusion, and each of these has a head of the same name. The fusion's manifest lists the digests of the "
        "two adapters. Each head's manifest has the digest of the adapter or fusion that it was trained with. Every "
        "manifest has the SHA-256 of the trunk's weights; the trunk is not in the store.",
        palette,
    )
    drawing.panel(8, TOP, 544, BOTTOM - TOP)
    manifests = _tree(drawing)
    _references(drawing, manifests)
    trunk = drawing.box(412, 12, 140, 38, "trunk", style="plain")
    drawing.arrow((trunk.bottom[0], TOP), trunk.bottom)
    lines = ["every manifest has the SHA-256", "of the trunk's weights"]
    drawing.labels(402, 21, lines, size=SMALL, anchor="end", color="muted")
    _key(drawing)
    _contents(drawing)
    return drawing.svg()


def _tree(drawing: Drawing) -> dict[str, Box]:
    """Draws the folders, and returns the boxes of the manifests."""
    manifests = {}
    y = root = TOP + 24
    drawing.label(22, y, "store/", bold=True, mono=True, anchor="start")
    for kind, names in STORE.items():
        y += ROW
        parent = y
        drawing.label(50, y, f"{kind}/", bold=True, mono=True, anchor="start", size=16)
        for name in names:
            y += ROW
            drawing.label(78, y, f"{name}/", mono=True, anchor="start", size=SMALL)
            drawing.file(224, y - 15, 76, "params/")
            manifests[f"{kind}/{name}"] = drawing.file(306, y - 15, 130, "manifest.json")
            drawing.arrow((58, parent + 12), (58, y), (72, y), head=False, color="panel")
        drawing.arrow((30, root + 12), (30, parent), (44, parent), head=False, color="panel")
    return manifests


def _references(drawing: Drawing, manifests: dict[str, Box]) -> None:
    """Draws arrows from manifests to the artifacts whose digests they contain."""

    def right(artifact: str, shift: float = 0) -> tuple[float, float]:
        x, y = manifests[artifact].right
        return x, y + shift

    # If a manifest has several arrows, they are shifted up or down.
    for adapter in ("adapters/paraphrase", "adapters/entail"):
        start, end = right("fusion/target-fusion", -6), right(adapter, 6)
        drawing.arrow(start, (464, start[1]), (464, end[1]), end)
    for start, end, lane in (
        (right("heads/entail"), right("adapters/entail", -6), 488),
        (right("heads/paraphrase"), right("adapters/paraphrase", -6), 512),
        (right("heads/target-fusion"), right("fusion/target-fusion", 6), 536),
    ):
        drawing.arrow(start, (lane, start[1]), (lane, end[1]), end, dashed=True)


def _key(drawing: Drawing) -> None:
    """Draws a legend for the arrows."""
    for field, text, y in (
        ("adapters", "digests of a fusion's adapters", BOTTOM + 28),
        ("trained_with", "digest of a head's adapter, fusion or trunk", BOTTOM + 54),
    ):
        drawing.arrow((10, y), (60, y), dashed=field == "trained_with")
        drawing.label(72, y, field, size=SMALL, mono=True, anchor="start")
        drawing.label(190, y, text, size=SMALL, anchor="start")
    drawing.label(72, BOTTOM + 80, "A digest is a SHA-256 over all leaves.", size=SMALL, anchor="start", color="muted")


def _contents(drawing: Drawing) -> None:
    """Draws the contents of one artifact."""
    y = BOTTOM + 106
    manifest, params = drawing.panel(8, y, 316, 182), drawing.panel(336, y, 216, 182)
    for panel, name in ((manifest, "manifest.json"), (params, "params/")):
        drawing.label(panel.x + 14, y + 22, name, bold=True, mono=True, anchor="start", size=16)
    lines = [
        "kind, name, config, task, labels",
        "trunk: SHA-256, architecture",
        "leaves: shapes, dtypes, SHA-256",
        "files: SHA-256",
        "metrics, seed, versions, run",
        "a checksum of the manifest",
    ]
    drawing.labels(manifest.x + 14, y + 50, lines, leading=22, size=SMALL, anchor="start")
    lines = ["an Orbax checkpoint", "of one tree, such as"]
    drawing.labels(params.x + 14, y + 50, lines, leading=22, size=SMALL, anchor="start")
    leaves = ["ffn/down/kernel", "ffn/down/bias", "ffn/up/kernel", "ffn/up/bias"]
    drawing.labels(params.x + 14, y + 94, leaves, leading=22, size=SMALL, mono=True, anchor="start")
