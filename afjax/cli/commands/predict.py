"""``afjax predict``: predicts the rows of a file."""

import argparse
import os
from typing import Any

from afjax.cli.parsers import add_command, add_length_flag, add_model_flags, flags, local_file_name
from afjax.cli.stored_model import load_stored_model
from afjax.data.sources.formats import ENDINGS, FORMATS
from afjax.errors import UserError

EXAMPLE = """\
examples:
  afjax predict --store=runs/quickstart/store --trunk=minilm --fusion=target-fusion --head=target-fusion \\
      --input=rows.jsonl --output=predictions.jsonl
  afjax predict --store=store --trunk=minilm --adapter=reviews --head=reviews --input=reviews.csv --keep=id,review
  afjax predict --store=store --input=mixed.jsonl --output=predictions.jsonl
  afjax predict --store=store --all=reviews,topics --input=reviews.csv
  zcat reviews.tsv.gz | afjax predict --store=store --trunk=minilm --adapter=reviews --head=reviews --input=- \\
      --input_format=tsv > predictions.jsonl

A row has the columns of the head's training task (its text_a, text_b and choices settings), or {"text": ...},
{"text_a": ..., "text_b": ...}, for multiple choice {"context": ..., "choices": [...]}, for span {"question": ...,
"context": ...}, for tagging {"words": [...]} or {"text": ...}. Each row gives, in order, {"logits": [...],
"label": ..., "probabilities": [...]}. The label of a multi-label row is a list of names. Span rows also give
{"answers": [{"text", "begin", "end", "score", "probability"}]}, best first. For tagging, the label is the list of tags,
logits and probabilities have one list per word, and rows also give {"entities": [{"type", "text", "begin", "end",
"probability"}]}.

Without --adapter, --fusion and --head, each row names its own adapter, fusion or head in the field "adapter". If the
name is null, the row gives {"embedding": [...]}, the trunk's embedding. With --all, each row is predicted with all
adapters and fusions in the store that have a head, or with the listed ones, and gives
{"predictions": {NAME: {...}}}."""


def add(commands: Any) -> None:
    """Adds the command to the parser's commands."""
    parser = add_command(commands, "predict", "predict the rows of a file", EXAMPLE, run=_run)
    add_model_flags(parser)
    add_length_flag(parser, None)
    parser.add_argument(
        "--input",
        required=True,
        type=local_file_name,
        metavar="FILE",
        help=f"the rows: {', '.join(ENDINGS)}; - for standard input",
    )
    parser.add_argument(
        "--input_format",
        choices=tuple(ending[1:] for ending in FORMATS),
        help="input format (inferred from the file name; jsonl for -)",
    )
    parser.add_argument(
        "--output",
        default="-",
        type=local_file_name,
        metavar="FILE",
        help="the predictions, as .jsonl; - for standard output (-)",
    )
    parser.add_argument(
        "--all",
        nargs="?",
        const="",
        metavar="NAME,NAME",
        help="predict each row with all adapters and fusions, or with the listed ones",
    )
    parser.add_argument(
        "--keep",
        default="",
        metavar="COLUMN,COLUMN:FIELD",
        help="input columns to copy to the output, optionally renamed after a colon",
    )


def _run(arguments: argparse.Namespace) -> None:
    from afjax.cli.predictions import FIELDS, write_predictions
    from afjax.tasks.prediction_rows import STANDARD, parse_keep, read_prediction_rows

    files = [os.path.realpath(path) for path in (arguments.input, arguments.output) if path != STANDARD]
    if len(files) == 2 and files[0] == files[1]:
        raise UserError(f"--input and --output are both {arguments.input}; choose a different --output.")
    keep = parse_keep(arguments.keep, FIELDS)
    if arguments.all is not None or not (arguments.adapter or arguments.fusion or arguments.head):
        _predict_many(arguments, keep)
        return
    task_model = load_stored_model(arguments)
    rows = read_prediction_rows(
        arguments.input, task_model.task, task_model.text_columns, keep=keep, file_format=arguments.input_format
    )
    write_predictions(arguments.output, task_model, rows, **flags(arguments, "batch_size", "max_length"))


def _predict_many(arguments: argparse.Namespace, keep: dict[str, str]) -> None:
    """Predicts each row with the adapter it names, or with several (``--all``)."""
    from afjax.cli.routed_predictions import predict_all, predict_routed
    from afjax.storage.writing import check_output
    from afjax.tasks.prediction_rows import STANDARD

    for flag in ("adapter", "fusion", "head", "allow_mismatch", "drop_layers", "without", "added", "max_length"):
        # max_length can be 0.
        if getattr(arguments, flag) not in ("", None) and getattr(arguments, flag) is not False:
            name = "with" if flag == "added" else flag
            raise UserError(
                f"--{name} does not work with several adapters; leave it out, or choose one adapter and no --all."
            )
    if arguments.output != STANDARD:
        check_output(arguments.output)
    (predict_routed if arguments.all is None else predict_all)(arguments, keep)
