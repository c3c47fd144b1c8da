"""Adds commands and shared flags to the parser."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from afjax.config.tasks import NAMED_SOURCES
from afjax.errors import UserError, did_you_mean
from afjax.storage.paths import expanded, is_remote


def file_name(text: str) -> str:
    """Expands ``~`` in a flag's file name. ``-`` means standard input or output."""
    return str(expanded(text)) if text.startswith("~") else text


def local_file(text: str) -> Path:
    """Parses a flag's path, which must be local, and expands ``~``."""
    if is_remote(text):
        raise argparse.ArgumentTypeError(f"{text} is not a local path, which this flag needs.")
    try:
        return expanded(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def local_file_name(text: str) -> str:
    """Parses a flag's file name like :func:`file_name`. The file must be local."""
    local_file(text)
    return file_name(text)


def add_group(commands: Any, name: str, summary: str, example: str | None = None, metavar: str = "FORMAT") -> Any:
    """Adds a group of commands, such as ``store`` for ``store ls``.

    Returns:
      The subparsers action to add the group's commands to.
    """
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
    run: Callable[[argparse.Namespace], int | None],
    dotted: Sequence[str] = (),
) -> argparse.ArgumentParser:
    """Adds a command to the main parser or to a group.

    Args:
      commands: The subparsers action of the main parser or of a group.
      name: The command's name.
      summary: A one-line summary for the help.
      example: The text at the end of the command's help.
      run: Runs the command and returns the exit code. None means 0.
      dotted: Prefixes of flags that end with a setting's name, such as ``--config.`` for ``--config.train.epochs=3``.

    Returns:
      The command's parser, to add its flags to.
    """
    parser = _add_parser(commands, name, summary, example)
    parser.set_defaults(run=run, parser=parser, dotted=tuple(dotted))
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
    """Creates an argparse ``type`` that only accepts these names.

    The error for any other value suggests a similar name, if there is one.
    """

    def check(name: str) -> str:
        if name not in names:
            raise argparse.ArgumentTypeError(f'"{name}" is not one of {", ".join(names)}.{did_you_mean(name, names)}')
        return name

    return check


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    add_stored_model_flags(parser)
    add_batch_flag(parser)


def add_batch_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch_size", type=int, default=32, help="rows per step (32)")


def add_split_flag(parser: argparse.ArgumentParser, purpose: str = "score") -> None:
    parser.add_argument("--split", default="dev", choices=("train", "dev", "test"), help=f"the rows to {purpose} (dev)")


def add_store_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", required=True, help="the store's folder, or gs://...")


def add_stored_model_flags(parser: argparse.ArgumentParser) -> None:
    add_store_flag(parser)
    add_trunk_flag(parser)
    parser.add_argument("--adapter", default="", help="name of the adapter")
    parser.add_argument("--fusion", default="", help="name of the fusion, instead of an adapter")
    parser.add_argument("--head", default="", help="name of the head (the one trained with the adapter or fusion)")
    add_mismatch_flag(parser)
    parser.add_argument("--drop_layers", default="", metavar="0,1", help="layers whose adapters to drop")
    parser.add_argument("--without", default="", metavar="NAME,NAME", help="adapters to leave out of the fusion")
    parser.add_argument("--with", dest="added", default="", metavar="NAME,NAME", help="adapters to add to the fusion")


def add_trunk_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trunk", default="", help="minilm, a folder (or gs://...) or a Hugging Face id (as recorded in the store)"
    )


def add_mismatch_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow_mismatch",
        action="store_true",
        help="allow a head with an adapter or fusion that it was not trained with (its scores may then differ)",
    )


def add_length_flag(parser: argparse.ArgumentParser, default: int | None = 128) -> None:
    """Adds the flag for the length of rows. The default None means the length used in training."""
    description = (
        "maximum tokens per row; longer rows are truncated, or split into windows for span and tagging "
        f"({default or 'as in training'})"
    )
    parser.add_argument("--max_length", type=int, default=default, help=description)


def add_source_flags(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    source = parser.add_mutually_exclusive_group(required=required)
    source.add_argument("--source", help=f"a folder, a data file, a task's .toml file, {NAMED_SOURCES}")
    source.add_argument("--data_dir", help="the folder with all tasks' folders; the head's task is found by name")


def flags(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Returns the values of some flags, to pass them on as arguments of the same names."""
    return {name: getattr(arguments, name) for name in names}


def split_numbers(text: str, flag: str) -> list[int]:
    """Parses a flag's comma-separated numbers. An empty text has none.

    Raises:
      UserError: A part of the text is not a non-negative integer.
    """
    numbers = text.split(",") if text else []
    if not all(number.strip().isdecimal() and len(number) < 10 for number in numbers):
        raise UserError(f"{flag} is {text}; use comma-separated numbers, such as 0,1,2.")
    return [int(number) for number in numbers]


def print_written(paths: Iterable[Path]) -> None:
    """Prints the paths of the files that a command wrote."""
    print(f"Written: {', '.join(map(str, paths))}")
