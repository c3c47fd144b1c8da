"""``afjax predict``: predicts the rows of a file."""

import argparse
import os
from typing import Any

from afjax.cli.parsers import add_command, add_model_flags
from afjax.cli.stored_model import load_stored_model
from afjax.data.sources.formats import ENDINGS, FORMATS
from afjax.errors import UserError

EXAMPLE = """\
examples:
  afjax predict --store=runs/quickstart/store --trunk=minilm --fusion=target-fusion --head=target-fusion \\
      --input=rows.jsonl --output=predictions.jsonl
  afjax predict --store=store --trunk=minilm --adapter=reviews --head=reviews --input=reviews.csv --keep=id,review
  zcat reviews.tsv.gz | afjax predict --store=store --trunk=minilm --adapter=reviews --head=reviews --input=- \\
      --input_format=tsv > predictions.jsonl

A row has the columns that the head's task was trained on (its text_a, text_b and choices settings), or {"text": ...},
{"text_a": ..., "text_b": ...}, for multiple choice {"context": ..., "choices": [...]}, for span {"question": ...,
"context": ...}, for tagging {"words": [...]} or {"text": ...}. Each row gives, in order, {"logits": [...],
"label": ..., "probabilities": [...]}. The label of a multi-label row is a list of names. Span rows also give
{"answers": [{"text", "begin", "end", "score", "probability"}]}, best first. For tagging, the label is the list of tags,
logits and probabilities have one list per word, and rows also give {"entities": [{"type", "text", "begin", "end",
"probability"}]}."""


def add(commands: Any) -> None:
    """Adds the command to the parser's commands."""
    parser = add_command(commands, "predict", "predict the rows of a file", EXAMPLE, run=_run)
    add_model_flags(parser)
    parser.add_argument("--max_length", type=int, help="tokens per row; longer rows are cut (as in training)")
    parser.add_argument(
        "--input", required=True, metavar="FILE", help=f"rows: {', '.join(ENDINGS)}; - for standard input"
    )
    parser.add_argument(
        "--input_format",
        choices=tuple(ending[1:] for ending in FORMATS),
        help="format of the input (from the file's name; jsonl for -)",
    )
    parser.add_argument("--output", default="-", metavar="FILE", help="predictions, .jsonl; - for standard output (-)")
    parser.add_argument(
        "--keep",
        default="",
        metavar="COLUMN,COLUMN:FIELD",
        help="columns of the input to copy to the output, under another name after a colon",
    )


def _run(arguments: argparse.Namespace) -> int:
    from afjax.cli.predictions import FIELDS, write_predictions
    from afjax.tasks.prediction_rows import STANDARD, parse_keep, read_prediction_rows

    files = [os.path.realpath(path) for path in (arguments.input, arguments.output) if path != STANDARD]
    if len(files) == 2 and files[0] == files[1]:
        raise UserError(f"--input and --output are both {arguments.input}; give another --output.")
    keep = parse_keep(arguments.keep, FIELDS)
    task_model = load_stored_model(arguments)
    rows = read_prediction_rows(
        arguments.input,
        task_model.task,
        task_model.text_columns,
        keep=keep,
        file_format=arguments.input_format,
    )
    write_predictions(
        arguments.output, task_model, rows, batch_size=arguments.batch_size, max_length=arguments.max_length
    )
    return 0
