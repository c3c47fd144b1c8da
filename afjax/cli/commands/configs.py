"""``afjax configs``: lists the built-in configs with their arguments."""

import argparse
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from afjax.cli.parsers import add_command
from afjax.cli.settings_help import default_text
from afjax.display.terminal import fitted, page_width, terminal_width, wrapped

EXAMPLE = """\
examples:
  afjax configs
  afjax configs single"""


def add(commands: Any) -> None:
    """Adds the command to the parser's commands."""
    parser = add_command(commands, "configs", "list the built-in configs and their arguments", EXAMPLE, run=_run)
    parser.add_argument("config", nargs="?", metavar="NAME", help="a built-in config or FILE.py to show")


def _run(arguments: argparse.Namespace) -> None:
    lines = show_lines(arguments.config) if arguments.config else list_lines()
    print("\n".join(lines))


def list_lines() -> list[str]:
    """Lists the built-in configs with their descriptions and arguments."""
    from afjax.cli.config_files import builtin_configs

    lines = []
    for name in builtin_configs():
        _, docstring, arguments = _described(name)
        lines += fitted(f"{name}: {docstring.splitlines()[0]}", sys.stdout)
        lines += _wrapped(arguments)
    lines += ["", "afjax train --config=NAME:argument=value,... --workdir=DIR", "afjax configs NAME shows one of them."]
    return lines


def show_lines(given: str) -> list[str]:
    """Shows a config: its docstring, its arguments with their defaults, and its file.

    Raises:
      UserError: The config does not exist or fails.
    """
    path, docstring, arguments = _described(given)
    return [*_paragraphs(docstring), "", "arguments:", *_wrapped(arguments), "", f"file: {path}"]


def _described(given: str) -> tuple[Path, str, list[str]]:
    """Returns a config's file, its docstring, and its arguments as ``name=default``."""
    from afjax.cli.config_files import config_function

    path, get_config = config_function(given)
    arguments = []
    for name, parameter in inspect.signature(get_config).parameters.items():
        default = parameter.default
        arguments.append(name if default is inspect.Parameter.empty else f"{name}={default_text(default)}")
    return path, inspect.cleandoc(get_config.__globals__.get("__doc__") or "(no docstring)"), arguments


def _paragraphs(docstring: str) -> list[str]:
    """Splits a docstring into lines that fit the terminal.

    On a narrow terminal, prose is rewrapped, but commands and tables are not.
    """
    width = terminal_width(sys.stdout)
    if width is None or max(map(len, docstring.splitlines())) <= width:
        return docstring.splitlines()
    lines: list[str] = []
    for paragraph in docstring.split("\n\n"):
        # Double spaces separate the columns of tables.
        is_prose = not any(line.startswith(("afjax ", " ")) or "  " in line for line in paragraph.splitlines())
        lines += ["", *(wrapped(paragraph, width, "") if is_prose else paragraph.splitlines())]
    return lines[1:]


def _wrapped(items: Sequence[str]) -> list[str]:
    return wrapped(f"    {', '.join(items)}", page_width(), "    ")
