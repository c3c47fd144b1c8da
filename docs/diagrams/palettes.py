"""Colors of the light and dark themes. All contrasts meet WCAG 2.2, level AA."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Palette:
    """The colors of a theme.

    Attributes:
      background: The page's background in the furo theme. It is not drawn.
      text: Text, on the background or on a fill.
      muted: Less important text, only on the background.
      line: Arrows and bars.
      panel: Outlines of groups.
      frozen, trained, plain: Outlines of boxes.
      frozen_fill, trained_fill, plain_fill: Fills of boxes.
    """

    background: str
    text: str
    muted: str
    line: str
    panel: str
    frozen: str
    trained: str
    plain: str
    frozen_fill: str
    trained_fill: str
    plain_fill: str


PALETTES = {
    "light": Palette(
        background="#ffffff",
        text="#1b1f24",
        muted="#545d68",
        line="#4b535d",
        panel="#868e98",
        frozen="#3f6d9e",
        trained="#b4540a",
        plain="#6b737d",
        frozen_fill="#e8f1fb",
        trained_fill="#ffeeda",
        plain_fill="#f5f6f8",
    ),
    "dark": Palette(
        background="#131416",
        text="#eceef1",
        muted="#aab2bc",
        line="#b4bbc4",
        panel="#727a84",
        frozen="#78a9dc",
        trained="#f2a04e",
        plain="#8b939d",
        frozen_fill="#16283b",
        trained_fill="#402708",
        plain_fill="#212429",
    ),
}
