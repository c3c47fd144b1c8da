"""The ``afjax`` command."""

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from afjax import __version__
from afjax.cli.explain import explain
from afjax.display.terminal import print_line, warnings_in_one_line
from afjax.errors import did_you_mean

# The modules of the commands in afjax.cli.commands, in the order of the help.
COMMANDS = tuple(
    "train configs sweep eval predict serve adapterdrop prune store imports exports plot table report compare data "
    "submit tpu bench".split()
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      argv: The command-line arguments; None for the arguments of this process.

    Returns:
      The exit code. 0: done. 1: some runs of a sweep failed, or Cloud Storage failed temporarily. 2: an error that the
      user can correct (its message is printed), or ``afjax store verify`` found a damaged artifact. 130: Ctrl-C. 141:
      the program reading the output has exited. ``PREEMPTED``: training was stopped by SIGTERM and saved a checkpoint
      to resume from. If training loses a host, the process exits with ``HOST_LOST`` before this returns.
    """
    # The streams are None if the caller has closed them.
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    # If TensorFlow is installed, epath would use it for gs:// and raise TensorFlow errors, which afjax does not handle.
    os.environ.setdefault("EPATH_USE_TF", "false")
    argv = sys.argv[1:] if argv is None else argv
    parser, commands = make_parser()
    if not argv:
        parser.print_help()
        return 2
    if problem := _unknown_command(argv, commands) or _empty_flag(argv):
        print_line(f"afjax: {problem}")
        return 2
    arguments, unparsed = parser.parse_known_args(argv)
    if unknown := [argument for argument in unparsed if not argument.startswith(arguments.dotted)]:
        flag, flags = unknown[0].partition("=")[0], re.findall(r"--\w+", arguments.parser.format_help())
        suggestion = did_you_mean(flag, flags) if flag.startswith("-") else _missing_equals_sign(unparsed, unknown[0])
        arguments.parser.error(f"unknown arguments: {' '.join(unknown)}.{suggestion}")
    arguments.overrides = [
        argument.removeprefix("--config.") for argument in unparsed if argument.startswith("--config.")
    ]
    arguments.grid = [argument.removeprefix("--grid.") for argument in unparsed if argument.startswith("--grid.")]
    with warnings_in_one_line():
        return _exit_code(arguments)


def make_parser() -> tuple[argparse.ArgumentParser, Any]:
    """Builds the parser and its commands.

    Returns:
      The parser, and its subparsers action. The action's ``choices`` maps command names to parsers.
    """
    parser = argparse.ArgumentParser(
        prog="afjax", description="Adapters on BERT-family encoders: train, fuse, store, predict.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"afjax {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        importlib.import_module(f"afjax.cli.commands.{command}").add(commands)
    return parser, commands


def _unknown_command(argv: Sequence[str], commands: Any) -> str | None:
    """Returns the error for an unknown command (``stor``, ``store lst``), or None."""
    if not argv or argv[0].startswith("-"):
        return None
    names = commands.choices
    if argv[0] not in names:
        return f'"{argv[0]}" is not a command; choose from {", ".join(names)}.{did_you_mean(argv[0], names)}'
    actions = [f"{argv[0]} {action}" for action in names[argv[0]].get_default("actions") or ()]
    given = " ".join(argv[:2])
    if not actions or len(argv) == 1 or argv[1].startswith("-") or given in actions:
        return None
    return f'"{given}" is not a command; choose from {", ".join(actions)}.{did_you_mean(given, actions)}'


def _missing_equals_sign(arguments: Sequence[str], unknown: str) -> str:
    """Returns advice if an unknown argument is the value of a setting without "=", as in ``--config.seed 3``."""
    setting = arguments[max(arguments.index(unknown) - 1, 0)]
    return f" Write {setting}={unknown}." if setting.startswith("--") and "=" not in setting else ""


def _empty_flag(argv: Sequence[str]) -> str | None:
    """Returns the error message for the first flag with an empty value, or None.

    This catches mistakes such as ``--adapter=$NAME`` with an unset variable. Settings (``--config.SETTING=``) may be
    empty.
    """
    for argument, following in zip(argv, [*argv, None][1:], strict=True):
        flag, equals, value = argument.partition("=")
        if flag.startswith("--") and "." not in flag and (not value if equals else following == ""):
            return f"{flag} is empty; give it a value, or leave it out."
    return None


def _exit_code(arguments: argparse.Namespace) -> int:
    """Runs the command, and prints the message of any error that the user can correct."""
    try:
        code: int | None = arguments.run(arguments)
        sys.stdout.flush()
        return code or 0
    except BaseException as error:
        explained = explain(error)
        if explained is None:
            raise
        if isinstance(error, BrokenPipeError):
            # The reader (head, less) has exited. Python would report the broken pipe again when it closes the stream.
            for stream in (sys.stdout, sys.stderr):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        else:
            print_line(f"afjax: {explained[1]}")
        return explained[0]


if __name__ == "__main__":
    sys.exit(main())
