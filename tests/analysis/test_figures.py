"""Figures are saved as images and as data, and the same data gives identical files."""

from pathlib import Path

import pytest
from facts import has_facts

from afjax.analysis.figures import check_output, draw_spread, new_figure, save_figure
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


def test_dots_in_a_name_are_kept(tmp_path: Path) -> None:
    assert draw(tmp_path / "rate-0.5", [("a", 1.0)])[0].name == "rate-0.5.png"


def test_bad_outputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to show"):
        draw(tmp_path / "empty", [])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="is a folder"):
        check_output(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is not a folder"):
        check_output(tmp_path / "file" / "picture")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".csv"])
def test_output_path_that_is_a_folder_is_refused_before_writing(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"z{suffix}").mkdir()
    with pytest.raises(UserError, match=rf"z\{suffix} is a folder"):
        check_output(tmp_path / "z")
    with pytest.raises(UserError, match=rf"z\{suffix} is a folder.*--output"):
        draw(tmp_path / "z", [("a", 1.0)])
    assert [path.name for path in tmp_path.iterdir()] == [f"z{suffix}"]


def test_characters_missing_from_the_font_are_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, told in (("北京", 1), ("Zürich", 0)):
        figure, (axes,) = new_figure()
        axes.set_xticks([0, 1], [name, f"{name}!"])
        paths = save_figure(figure, tmp_path / "picture", ("name",), [(name,)])
        err = capsys.readouterr().err
        assert err.count("\n") == told
        assert has_facts(err, "PNG", "font", "CSV") == bool(told)
        assert all(name in path.read_text(encoding="utf-8") for path in paths[1:])


def test_a_spread_has_gaps() -> None:
    """Adjacent points form a band, a point between gaps becomes a bar, and a single-seed point has neither."""
    _, (axes,) = new_figure()
    draw_spread(axes, [1, 2, 3, 4, 5], [0.0, 1.0, None, 2.0, None], [2.0, 5.0, None, 4.0, None], "black")
    band, bar = axes.collections
    (outline,) = (path.vertices for path in band.get_paths())
    assert (outline[:, 0].min(), outline[:, 0].max(), outline[:, 1].max()) == (1, 2, 5)
    assert [path.vertices.tolist() for path in bar.get_paths()] == [[[4, 2], [4, 4]]]
