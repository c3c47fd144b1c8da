"""Messages, pages and tables fit terminals of various widths and are not wrapped in files."""

import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from afjax.cli import store_lines
from afjax.cli.commands import configs
from afjax.display.tables import fitting_table
from afjax.display.terminal import fitted, page_width, print_line, progress_bar, shows_bars, terminal_width

# Creates a terminal with the given number of columns, and returns a function that reads its output lines.
Terminal = Callable[[int], Callable[[], list[str]]]

MESSAGE = "Note: The run in /a/folder/with-a/long-name is finished; to train it again, choose another --workdir."


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """Returns a function that replaces stdout and stderr with a terminal of a given width."""
    screen, device = pty.openpty()
    stream = open(device, "w", encoding="utf-8")  # noqa: SIM115 (closed below)

    def replace(columns: int) -> Callable[[], list[str]]:
        fcntl.ioctl(device, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, stream)

        def lines() -> list[str]:
            stream.flush()
            return os.read(screen, 65536).decode().splitlines()

        return lines

    yield replace
    stream.close()
    os.close(screen)


@pytest.mark.parametrize("columns", [40, 80])
def test_messages_are_wrapped_between_words_on_terminals(terminal: Terminal, columns: int) -> None:
    lines = terminal(columns)
    print_line(MESSAGE)
    shown = lines()
    assert len(shown) > 1
    assert all(len(line) <= columns for line in shown)
    assert all(line.startswith("  ") for line in shown[1:])
    assert " ".join(line.strip() for line in shown) == MESSAGE


def test_messages_that_fit_are_not_changed(terminal: Terminal) -> None:
    lines = terminal(200)
    print_line(MESSAGE)
    assert lines() == [MESSAGE]


def test_paths_are_not_broken(terminal: Terminal) -> None:
    lines = terminal(20)
    print_line(MESSAGE)
    assert "  /a/folder/with-a/long-name" in lines()


def test_messages_in_files_and_pipes_are_one_line(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # stdout is a terminal and stderr is a file. Messages go to stderr, so they are not wrapped.
    terminal(40)
    path = tmp_path / "log"
    with path.open("w") as file:
        monkeypatch.setattr(sys, "stderr", file)
        print_line(MESSAGE)
    assert path.read_text() == f"{MESSAGE}\n"
    receiver, sender = os.pipe()
    with open(sender, "w") as pipe:
        assert terminal_width(pipe) is None
    os.close(receiver)


def test_messages_in_notebooks_are_one_line(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(40)
    # ipykernel's streams report the file descriptor of Jupyter's terminal, but are not terminals themselves.
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    assert terminal_width(sys.stderr) is None
    assert fitted(MESSAGE, sys.stderr) == [MESSAGE]


def test_pages_have_at_most_120_columns(terminal: Terminal) -> None:
    assert page_width() == 120
    for columns, width in ((80, 80), (200, 120)):
        terminal(columns)
        assert page_width() == width


def test_configs_wrap_prose_but_not_commands(terminal: Terminal) -> None:
    unchanged = configs.show_lines("single")
    terminal(60)
    lines = configs.show_lines("single")
    commands = [line for line in unchanged if line.startswith("afjax ")]
    assert commands == [line for line in lines if line.startswith("afjax ")]
    assert all(len(line) <= 60 for line in lines if line not in commands and not line.startswith("file: "))
    assert " ".join(lines).split() == " ".join(unchanged).split()


def test_tables_take_two_lines_per_row_only_on_narrow_terminals() -> None:
    rows = [("name", "kind", "about"), ("cola", "text", "Whether a sentence is acceptable English.")]
    one_line = [
        "name  kind  about                                    ",
        "cola  text  Whether a sentence is acceptable English.",
    ]
    for width in (None, 53):
        assert [line.rstrip() for line in fitting_table(rows, width, first=2)] == [line.rstrip() for line in one_line]
    assert fitting_table(rows, 45, first=2) == [
        "name  kind",
        "  about",
        "cola  text",
        "  Whether a sentence is acceptable English.",
    ]


def test_bars_can_be_turned_off(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = terminal(80)
    assert shows_bars()
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert not shows_bars()
    with progress_bar("rows", 3, unit="row") as bar:
        bar.update(3)
    print_line("The end.")
    assert lines() == ["The end."]


def test_bars_with_a_delay_are_not_shown_before_it(terminal: Terminal) -> None:
    lines = terminal(80)
    with progress_bar("rows", 3, unit="row", delay=3600, leave=False) as bar:
        bar.update(3)
    print_line("The end.")
    assert lines() == ["The end."]


def test_sizes_have_a_fitting_unit() -> None:
    assert [store_lines._size(size) for size in (1_296, 3_600_000)] == ["1.3 kB", "3.60 MB"]
