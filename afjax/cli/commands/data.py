"""``afjax data``: shows a task's splits, or lists the known tasks."""

import argparse
import dataclasses
from typing import Any, get_args

from afjax.cli.compilation_cache import use_compilation_cache
from afjax.cli.parsers import add_command, add_length_flag, flags, one_of
from afjax.config.tasks import NAMED_SOURCES, TaskKind
from afjax.errors import UserError

EXAMPLE = """\
examples:
  afjax data show rte --data_dir=DATA --trunk=minilm --max_length=128
  afjax data show builtin:entail --split=dev
  afjax data show reviews.csv --text_a=review --label=stars
  afjax data show names.conll --kind=tagging
  afjax data list

DATA contains one folder per task: a benchmark's download, or a folder with train, dev and test files."""


def add(commands: Any) -> None:
    """Adds the command to the parser's commands."""
    parser = add_command(commands, "data", "show a task's splits, or list the known tasks", EXAMPLE, run=_run)
    parser.add_argument("action", metavar="{show,list}", type=one_of("show", "list"))
    parser.add_argument(
        "task", nargs="?", metavar="TASK", help="a task's name, .toml file, data file, folder or source"
    )
    parser.add_argument("--data_dir", default="", help="the folder that contains the tasks' folders, or tfds:")
    parser.add_argument("--source", default="", help=f"the task's folder or file, {NAMED_SOURCES}")
    for setting in ("text_a", "text_b", "label"):
        parser.add_argument(f"--{setting}", default="", metavar="COLUMN", help=f"the task's {setting} column")
    kinds = get_args(TaskKind)
    parser.add_argument(
        "--kind", default="", metavar="KIND", choices=kinds, help=f"the kind of task: {', '.join(kinds)}"
    )
    parser.add_argument("--trunk", default="minilm", help="trunk whose tokenizer to use (minilm)")
    add_length_flag(parser)
    parser.add_argument("--batch_size", type=int, default=32, help="rows per training step (32)")
    parser.add_argument(
        "--platform", default="cpu", choices=("cpu", "gpu", "tpu"), help="platform to compute padded lengths for (cpu)"
    )
    parser.add_argument("--split", default="", choices=("train", "dev", "test"), help="a single split to show (all)")
    parser.add_argument("--json", action="store_true", help="print JSON on the last line")


def _run(arguments: argparse.Namespace) -> None:
    from afjax.cli import task_lines

    if (arguments.action == "show") != (arguments.task is not None):
        raise UserError('Pass a TASK with "data show", and none with "data list".')
    if arguments.action == "list":
        print("\n".join(task_lines.list_lines(as_json=arguments.json)))
        return
    from afjax.trunk.pretrained import load_trunk

    use_compilation_cache()
    task = task_lines.task_to_show(arguments.task, data_dir=arguments.data_dir, source=arguments.source)
    settings = flags(arguments, "kind", "text_a", "text_b", "label")
    task = dataclasses.replace(task, **{name: value for name, value in settings.items() if value})
    options = flags(arguments, "max_length", "batch_size", "split", "platform")
    lines = task_lines.show_lines(task, load_trunk(arguments.trunk), as_json=arguments.json, **options)
    print("\n".join(lines))
