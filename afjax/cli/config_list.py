"""What ``afjax configs`` prints: the built-in configs with their arguments."""

import inspect
import textwrap
from collections.abc import Sequence
from pathlib import Path

from afjax.cli.configs import builtin_configs, config_function
from afjax.cli.settings_help import default_text

WIDTH = 120


def list_lines() -> list[str]:
    """The built-in configs: name, first line of the docstring, and arguments with their defaults."""
    lines = []
    for name in builtin_configs():
        _, about, arguments = _described(name)
        lines.append(f"{name}: {about.splitlines()[0]}")
        lines += _wrapped(arguments)
    lines += ["", "afjax train --config=NAME:argument=value,... --workdir=DIR", "afjax configs NAME shows one of them."]
    return lines


def show_lines(given: str) -> list[str]:
    """One config, built-in or a file: its docstring, its arguments with their defaults, and its file.

    Raises:
      UserError: There is no such config, or it fails.
    """
    path, about, arguments = _described(given)
    return [*about.splitlines(), "", "arguments:", *_wrapped(arguments), "", f"file: {path}"]


def _described(given: str) -> tuple[Path, str, list[str]]:
    """A config's file, its docstring, and its arguments as ``name=default``."""
    path, get_config = config_function(given)
    arguments = []
    for name, parameter in inspect.signature(get_config).parameters.items():
        default = parameter.default
        arguments.append(name if default is inspect.Parameter.empty else f"{name}={default_text(default)}")
    return path, inspect.cleandoc(get_config.__globals__.get("__doc__") or "(no docstring)"), arguments


def _wrapped(words: Sequence[str]) -> list[str]:
    text = ", ".join(words)
    return textwrap.wrap(
        text, WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
    )
