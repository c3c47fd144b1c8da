"""Sphinx directives for the reference pages, and a check of their completeness.

- ``{command} store ls`` documents a command from its parser.
- ``{config} single`` documents a built-in config from its file.
- ``{settings}`` lists the settings of an experiment with their defaults.

A public name, command or config without an entry causes a warning, which fails the build.
"""

import argparse
import importlib
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from afjax.cli.commands.configs import show_lines
from afjax.cli.config_files import builtin_configs
from afjax.cli.main import make_parser
from afjax.cli.settings_help import settings_text

# Packages with public names, as listed in docs/architecture.md.
PACKAGES = ("afjax", "afjax.store", "afjax.share", "afjax.interop.adapterhub", "afjax.interop.peft")

logger = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the directives and the check."""
    app.add_directive("command", CommandDirective)
    app.add_directive("config", ConfigDirective)
    app.add_directive("settings", SettingsDirective)
    app.connect("env-check-consistency", _check_complete)
    return {"version": "1", "env_version": 1, "parallel_read_safe": False}


def command_parsers() -> dict[str, argparse.ArgumentParser]:
    """Returns the parser of each command, by name, such as ``train`` or ``store ls``."""
    _, commands = make_parser()
    parsers = {}
    for name, parser in commands.choices.items():
        actions = parser.get_default("actions")
        if actions:
            parsers |= {f"{name} {action}": action_parser for action, action_parser in actions.items()}
        else:
            parsers[name] = parser
    return parsers


class CommandDirective(SphinxDirective):
    """Documents one command with its summary, arguments and examples."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        parsers = command_parsers()
        if name not in parsers:
            raise self.error(f"{name} is not a command; the commands are {', '.join(parsers)}")
        _entries(self.env, "commands").add(name)
        return self.parse_text_to_nodes("\n".join(command_lines(name, parsers[name])))


def command_lines(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yields a command's documentation as Markdown."""
    yield parser.description or ""
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if not isinstance(action, argparse._HelpAction)]
        if not actions:
            continue
        yield ""
        for action in actions:
            yield f"`{_usage(action)}`{' (required)' if action.option_strings and action.required else ''}"
            yield f": {_plain(_help(parser, action))}"
            yield ""
    # The settings are listed in docs/reference/configs.md instead.
    if epilog := (parser.epilog or "").replace(settings_text(), "").rstrip():
        yield ""
        yield ":::::{container} help"
        yield "````text"
        yield from epilog.splitlines()
        yield "````"
        yield ":::::"


def _usage(action: argparse.Action) -> str:
    """Formats an argument as on a command line: ``--output FILE``, ``NAME``."""
    if action.choices is not None:
        value = "{" + ",".join(str(choice) for choice in action.choices) + "}"
    else:
        value = str(action.metavar or (action.dest.upper() if action.option_strings else action.dest))
    if not action.option_strings:
        return str(action.metavar or value)
    return action.option_strings[0] if action.nargs == 0 else f"{action.option_strings[0]} {value}"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return parser._get_formatter()._expand_help(action) if action.help else ""


def _plain(text: str) -> str:
    """Escapes characters that Markdown would interpret."""
    return "".join(f"\\{character}" if character in "\\`*_{}[]<>#|$~" else character for character in text)


class ConfigDirective(SphinxDirective):
    """Documents one built-in config with the output of ``afjax configs NAME``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        _entries(self.env, "configs").add(name)
        lines = show_lines(name)
        # The last two lines show the file's local path.
        return [_text("\n".join(lines[:-2]))]


class SettingsDirective(SphinxDirective):
    """Lists all settings of an experiment, as at the end of ``afjax train --help``."""

    def run(self) -> list[nodes.Node]:
        return [_text(settings_text())]


def _text(text: str) -> nodes.Node:
    return nodes.container("", nodes.literal_block(text, text, language="text"), classes=["help"])


def _entries(env: BuildEnvironment, kind: str) -> set[str]:
    """Returns the commands or configs that have been documented so far."""
    if not hasattr(env, "afjax_entries"):
        env.afjax_entries = {}
    entries: set[str] = env.afjax_entries.setdefault(kind, set())
    return entries


def _check_complete(app: Sphinx, env: BuildEnvironment) -> None:
    documented = set(env.get_domain("py").objects)
    public = {f"{package}.{name}" for package in PACKAGES for name in importlib.import_module(package).__all__}
    for kind, wanted, found in (
        ("public name", public, documented),
        ("command", set(command_parsers()), _entries(env, "commands")),
        ("config", set(builtin_configs()), _entries(env, "configs")),
    ):
        for name in sorted(wanted - found):
            logger.warning("the %s %s has no entry in the reference", kind, name)
