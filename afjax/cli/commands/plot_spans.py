"""``afjax plot spans``: plots the drop in score without a span of adapters."""

import argparse
from typing import Any

from afjax.cli.evaluation_rows import rows_of
from afjax.cli.parsers import add_command, add_model_flags, add_source_flags, add_split_flag, local_file, print_written
from afjax.cli.stored_model import load_stored_model
from afjax.display.words import counted

EXAMPLE = """\
example:
  afjax plot spans --store=runs/quickstart/store --trunk=minilm --adapter=entail --head=entail \\
      --source=builtin:entail --output=figures/spans

Only adapters are removed; LayerNorms trained with them stay. The command writes OUTPUT.png, OUTPUT.svg and OUTPUT.csv.
The CSV file has every metric for every span."""


def add(plots: Any) -> None:
    """Adds the command to the group ``afjax plot``."""
    summary = "plot the drop in score without the adapters of each span of layers"
    parser = add_command(plots, "spans", summary, EXAMPLE, run=_run)
    add_model_flags(parser)
    add_source_flags(parser)
    add_split_flag(parser)
    parser.add_argument("--metric", default="", help="the metric to plot (the task's main metric)")
    parser.add_argument(
        "--output", required=True, type=local_file, metavar="NAME", help="output path, without a suffix"
    )


def _run(arguments: argparse.Namespace) -> None:
    from afjax.analysis.figures import check_output
    from afjax.analysis.spans import draw_spans, score_spans
    from afjax.tasks.kinds import check_metric

    check_output(arguments.output)
    task_model = load_stored_model(arguments)
    rows = rows_of(task_model, arguments.split, source=arguments.source, data_dir=arguments.data_dir)
    metric = arguments.metric or task_model.task.main_metric
    check_metric(metric, task_model.task.kind, len(task_model.labels))
    scores = score_spans(task_model, rows, batch_size=arguments.batch_size)
    summary = f"{metric} {scores.whole[metric]:.4f} with all adapters, {counted(len(scores.without), 'span')}"
    title = arguments.fusion or arguments.adapter
    paths = draw_spans(scores, metric, arguments.output, title=title)
    print(summary)
    print_written(paths)
