"""How a command is added to the parser, and flags that several commands have."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from afjax.errors import did_you_mean


def add_group(commands: Any, name: str, summary: str, example: str | None = None, metavar: str = "FORMAT") -> Any:
    """Adds a command that is a group of commands (``store ls``); returns what its commands are added to."""
    parser = _add_parser(commands, name, summary, example)
    group = parser.add_subparsers(required=True, metavar=metavar)
    parser.set_defaults(actions=group.choices)
    return group


def add_command(
    commands: Any,
    name: str,
    summary: str,
    example: str,
    *,
    run: Callable[[argparse.Namespace], int],
    group: str = "",
    dotted: Sequence[str] = (),
) -> argparse.ArgumentParser:
    """Adds a command.

    Args:
      commands: What it is added to: the parser's commands, or a group's.
      name: Its name.
      summary: Its line in the help.
      example: The end of its help.
      run: Runs it and returns the exit code.
      group: The group's name, if it is in one.
      dotted: Prefixes of flags that end with a setting's name, as in ``--config.train.epochs=3``.
    """
    parser = _add_parser(commands, name, summary, example)
    parser.set_defaults(run=run, parser=parser, dotted=tuple(dotted), command=f"{group} {name}".strip())
    return parser


def _add_parser(commands: Any, name: str, summary: str, example: str | None) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    return parser


def one_of(*names: str) -> Callable[[str], str]:
    """An argument's ``type`` that takes these names only, and suggests the nearest of them for another word."""

    def check(word: str) -> str:
        if word not in names:
            raise argparse.ArgumentTypeError(f'"{word}" is not one of {", ".join(names)}.{did_you_mean(word, names)}')
        return word

    return check


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    add_stored_model_flags(parser)
    parser.add_argument("--batch_size", type=int, default=32, help="rows a step (32)")


def add_stored_model_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", required=True, help="the store's folder, or gs://...")
    add_trunk_flag(parser)
    parser.add_argument("--adapter", default="", help="an adapter's name")
    parser.add_argument("--fusion", default="", help="a fusion's name, in place of an adapter's")
    parser.add_argument("--head", default="", help="the head's name (the one trained with the adapter or fusion)")
    add_mismatch_flag(parser)
    parser.add_argument("--drop_layers", default="", metavar="0,1", help="layers to leave out the adapters of")
    parser.add_argument("--without", default="", metavar="NAME,NAME", help="adapters to leave out of the fusion")
    parser.add_argument("--with", dest="added", default="", metavar="NAME,NAME", help="adapters to add to the fusion")


def add_trunk_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trunk", default="", help="minilm, a folder (or gs://...) or a Hugging Face id (the one that the store names)"
    )


def add_mismatch_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow_mismatch",
        action="store_true",
        help="use a head with another adapter or fusion than it was trained with (its scores are then not its own)",
    )


def add_length_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max_length", type=int, default=128, help="tokens a row; longer rows are cut (128)")


def add_source_flags(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    source = parser.add_mutually_exclusive_group(required=required)
    source.add_argument(
        "--source", help="a folder, a file, a task's .toml, official:NAME:FOLDER, builtin:NAME or tfds:NAME"
    )
    source.add_argument("--data_dir", help="the folder of all tasks, where the head's task is found by its name")


def add_overwrite_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")


def print_written(paths: Iterable[Path]) -> None:
    """Prints which files a command has written."""
    print(f"Written: {', '.join(map(str, paths))}")
