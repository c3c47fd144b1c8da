"""Figures are kept as a picture and as data, the same bytes for the same data."""

from pathlib import Path

import pytest

from afjax.analysis.figures import check_output, new_figure, save_figure
from afjax.errors import UserError


def draw(output: Path, rows: list[tuple[str, float]]) -> list[Path]:
    figure, (axes,) = new_figure()
    axes.plot([number for _, number in rows])
    axes.set_xlabel("layer")
    return save_figure(figure, output, ("name", "value"), rows)


@pytest.mark.parametrize("name", ["picture", "picture.png", "picture.svg", "picture.csv"])
def test_files(tmp_path: Path, name: str) -> None:
    paths = draw(tmp_path / "new" / name, [("a,b", 1 / 3), ("c", 2.0)])
    assert [path.name for path in paths] == ["picture.png", "picture.svg", "picture.csv"]
    png, svg, table = (path.read_bytes() for path in paths)
    assert png.startswith(b"\x89PNG")
    assert b">layer</text>" in svg
    assert table == b'name,value\n"a,b",0.3333333333333333\nc,2.0\n'
    again = [path.read_bytes() for path in draw(tmp_path / "again" / name, [("a,b", 1 / 3), ("c", 2.0)])]
    assert [png, svg, table] == again


def test_dots_in_a_name_stay(tmp_path: Path) -> None:
    assert draw(tmp_path / "rate-0.5", [("a", 1.0)])[0].name == "rate-0.5.png"


def test_bad_outputs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to show"):
        draw(tmp_path / "empty", [])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="is a folder"):
        check_output(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="no folder that can be written to"):
        check_output(tmp_path / "file" / "picture")
