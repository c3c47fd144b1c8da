"""The flags of figures, tables, reports and comparisons."""

import argparse
from pathlib import Path
from typing import Any

from etils import epath

from afjax.cli.parsers import (
    add_command,
    add_group,
    add_mismatch_flag,
    add_model_flags,
    add_source_flags,
    add_trunk_flag,
)

ACTIVATIONS_EXAMPLE = """\
examples:
  afjax plot activations --store=runs/quickstart/store --trunk=minilm --fusion=target-fusion --by_label \\
      --output=figures/target
  afjax plot activations --store=store --trunk=minilm --fusion=rte-fusion,mrpc-fusion --data_dir=DATA --layers=0,3,5 \\
      --output=figures/targets
  afjax plot activations --store=runs/quickstart/store --trunk=minilm --fusion=target-fusion \\
      --text="All cats sleep." --text_b="Some cats sleep." --output=figures/sentence

One fusion gives layers x adapters, several give fusions x adapters of each layer, a text gives adapters x tokens.
Written are OUTPUT.png, OUTPUT.svg and OUTPUT.csv."""

SPANS_EXAMPLE = """\
example:
  afjax plot spans --store=runs/quickstart/store --trunk=minilm --adapter=entail --head=entail \\
      --source=builtin:entail --output=figures/spans

Adapters alone are removed: LayerNorms that were trained with them stay. Written are OUTPUT.png, OUTPUT.svg and
OUTPUT.csv, which has every metric of every span."""

DIFFERENCES_EXAMPLE = """\
example:
  afjax plot differences --runs=runs --output=differences"""

TRADEOFF_EXAMPLE = """\
examples:
  afjax plot tradeoff --runs=runs --output=tradeoff
  afjax plot tradeoff --runs=runs --task=rte --output=rte

Over all tasks: the median and the 20th and 80th percentiles of the scores minus full fine-tuning's; of one task: mean
and standard deviation over seeds."""

ROBUSTNESS_EXAMPLE = """\
example:
  afjax sweep --config=baselines:method=houlsby,task=rte,data=DATA/rte --workdir=runs/rte-scales \\
      --grid.train.learning_rate=3e-4 --grid.adapter.init_scale=1e-7,1e-5,1e-3,1e-2,1e-1,1.0 --seeds=0,1,2
  afjax plot robustness --runs=runs/rte-scales --output=robustness"""

SEARCH_EXAMPLE = """\
example:
  afjax sweep --config=pfeiffer_search:task=rte,data=DATA --workdir=runs/search
  afjax plot search --runs=runs/search --output=search"""

TABLE_EXAMPLE = """\
examples:
  afjax table adapterfusion --runs=runs
  afjax table houlsby --runs=runs/rte-full,runs/rte-sizes,runs/store --by_size --format=markdown
  afjax table arrows --runs=runs --format=latex --output=arrows.tex

Layouts: adapterfusion (tasks by methods), arrows and differences (AdapterFusion's table 2 and figure 3), pals (methods
and samplers), houlsby (parameters, scores). Below the table stand the commands that train what it lacks."""

REPORT_EXAMPLE = """\
examples:
  afjax report --workdir=runs/quickstart --output=report.html
  afjax report --workdir=runs/sweep-rte --data_dir=DATA --output=report.html --mistakes=50

The page is one file that needs no network. A sweep's folder, or one with several workdirs in it, is reported as a
whole: scores with their spread over seeds, and the rows of its best run."""

COMPARE_EXAMPLE = """\
examples:
  afjax compare adapter:target fusion:target-fusion --store=runs/quickstart/store --trunk=minilm \\
      --source=builtin:target
  afjax compare runs/rte-0,runs/rte-1,runs/rte-2 runs/fusion-0,runs/fusion-1,runs/fusion-2 --data_dir=DATA --json

A and B are models of a store (adapter:NAME, fusion:NAME, head:NAME, with :HEAD behind where the head has another name)
or workdirs, with commas between several runs, which are paired in order. A sweep of one setting stands for its runs."""


def add_plots(commands: Any) -> None:
    """The papers' figures."""
    plots = add_group(commands, "plot", "draw the papers' figures from what was trained", metavar="FIGURE")
    _add_model_plots(plots)
    _add_run_plots(plots)


def _add_model_plots(plots: Any) -> None:
    """Figures of stored models."""
    summary = "what fusions listen to, over a split or at every token of a text"
    activations = add_command(plots, "activations", summary, ACTIVATIONS_EXAMPLE, group="plot")
    activations.add_argument("--store", required=True, help="the store's folder, or gs://...")
    add_trunk_flag(activations)
    activations.add_argument("--fusion", required=True, metavar="NAME,NAME", help="one fusion, or one a target task")
    activations.add_argument("--head", default="", metavar="NAME,NAME", help="their heads (those trained with them)")
    add_mismatch_flag(activations)
    source = activations.add_mutually_exclusive_group()
    source.add_argument("--source", metavar="SOURCE,SOURCE", help="each one's rows, as for eval (those it trained on)")
    source.add_argument("--data_dir", help="the folder of all tasks, where each head's task is found by its name")
    source.add_argument("--text", help="one text in place of rows")
    activations.add_argument("--text_b", help="the second text of a pair")
    activations.add_argument("--split", default="dev", choices=("train", "dev", "test"), help="which rows (dev)")
    activations.add_argument("--layers", default="", metavar="0,1", help="the layers to show (all)")
    activations.add_argument("--by_label", action="store_true", help="also over the rows of each label")
    activations.add_argument("--batch_size", type=int, default=32, help="rows a step (32)")
    activations.add_argument("--output", required=True, type=Path, metavar="NAME", help="the files' common name")

    summary = "what is lost without the adapters of each span of layers"
    spans = add_command(plots, "spans", summary, SPANS_EXAMPLE, group="plot")
    add_model_flags(spans)
    add_source_flags(spans)
    spans.add_argument("--split", default="dev", choices=("train", "dev", "test"), help="the rows to score (dev)")
    spans.add_argument("--metric", default="", help="the one that is drawn (the task's)")
    spans.add_argument("--output", required=True, type=Path, metavar="NAME", help="the files' common name")


def _add_run_plots(plots: Any) -> None:
    """The figures that are drawn from several finished runs."""
    of = {
        "differences": ("scores minus full fine-tuning's, a task a group", DIFFERENCES_EXAMPLE),
        "tradeoff": ("score against trained parameters", TRADEOFF_EXAMPLE),
        "robustness": ("score against the adapters' start and size, from a sweep", ROBUSTNESS_EXAMPLE),
        "search": ("the search for the adapter's architecture, from its sweep", SEARCH_EXAMPLE),
    }
    for name, (summary, example) in of.items():
        plot = add_command(plots, name, summary, example, group="plot")
        _add_runs_flags(plot)
        plot.add_argument("--output", required=True, type=Path, help="the name of the files .png, .svg and .csv")
        if name == "differences":
            plot.add_argument("--methods", default="", metavar="NAME,...", help="which, in this order (all)")
        if name == "tradeoff":
            plot.add_argument("--task", default="", help="one task, in place of percentiles over all")


def add_table(commands: Any) -> None:
    """The papers' tables."""
    table = add_command(commands, "table", "the papers' tables, from finished runs", TABLE_EXAMPLE)
    table.add_argument("layout", metavar="LAYOUT", help="adapterfusion, arrows, differences, pals or houlsby")
    _add_runs_flags(table)
    table.add_argument("--methods", default="", metavar="NAME,...", help="which, in this order (all)")
    table.add_argument("--seeds", default="", metavar="SEED,...", help="what each cell should have (what any has)")
    table.add_argument("--by_size", action="store_true", help="adapters of each size are a method of their own")
    table.add_argument("--format", default="text", metavar="NAME", help="text, markdown, latex or csv (text)")
    table.add_argument("--output", type=Path, help="the file (the terminal)")


def add_report_commands(commands: Any) -> None:
    """One run as a page, and two models on the same rows."""
    report = add_command(commands, "report", "all about a workdir's runs, as one HTML page", REPORT_EXAMPLE)
    report.add_argument("--workdir", required=True, type=epath.Path, help="a run's or a sweep's folder, or gs://...")
    report.add_argument("--output", required=True, type=Path, metavar="FILE.html", help="the page")
    report.add_argument("--store", default="", help="where the runs saved what they trained, if moved")
    report.add_argument("--trunk", default="", help="what they were trained on (as the config says)")
    add_source_flags(report, required=False)
    report.add_argument("--mistakes", type=int, default=20, help="how many of the rows it got wrong to show (20)")
    report.add_argument("--batch_size", type=int, default=32, help="rows a step (32)")

    compare = add_command(commands, "compare", "test whether B is better than A on the same rows", COMPARE_EXAMPLE)
    compare.add_argument("a", metavar="A", help="a model of --store, as in adapter:rte, or a workdir; or several")
    compare.add_argument("b", metavar="B", help="likewise")
    compare.add_argument("--store", default="", help="of models; of workdirs where it was moved")
    compare.add_argument("--trunk", default="", help="of models and workdirs whose trunk was moved")
    compare.add_argument("--task", default="", help="which task of a run on several")
    add_mismatch_flag(compare)
    add_source_flags(compare, required=False)
    compare.add_argument("--split", default="dev", choices=("train", "dev", "test"), help="the rows to score (dev)")
    compare.add_argument("--metric", default="", help="what to decide by (as early stopping did)")
    compare.add_argument("--resamples", type=int, default=10_000, help="of the bootstrap (10000)")
    compare.add_argument("--seed", type=int, default=0, help="of the bootstrap's draws (0)")
    compare.add_argument("--max_length", type=int, help="tokens a row; longer rows are cut (as in training)")
    compare.add_argument("--batch_size", type=int, default=32, help="rows a step (32)")
    compare.add_argument("--json", action="store_true", help="print JSON on the last line")


def _add_runs_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", required=True, metavar="DIR,...", help="workdirs, sweeps, stores, or folders of them")
    parser.add_argument("--tasks", default="", metavar="NAME,...", help="which, in this order (all)")
    parser.add_argument("--metric", default="", help="in place of each task's main metric, where a task has it")
