"""The flags of every command, and the examples in their help."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afjax import __version__
from afjax.cli.flags_analysis import add_plots, add_report_commands, add_table
from afjax.cli.flags_exchange import add_exports, add_imports, add_store_commands
from afjax.cli.parsers import (
    add_command,
    add_length_flag,
    add_mismatch_flag,
    add_model_flags,
    add_source_flags,
    one_of,
)
from afjax.cli.settings_help import settings_text

TRAIN_EXAMPLE = """\
examples:
  afjax train --config=quickstart --workdir=runs/quickstart
  afjax train --config=single:task=rte,data=DATA/rte --workdir=runs/rte --store=store \\
      --config.train.learning_rate=3e-4 --config.seed=1

NAME is a built-in config (afjax configs lists them), FILE.py one of your own.
To resume a stopped run, give the same command again.

All devices are used, as --config.mesh.data, --config.mesh.fsdp and --config.mesh.tensor say. The hosts of a Cloud TPU
slice find each other; elsewhere start the same command on each, with its own --process_id:
  afjax train ... --workdir=gs://BUCKET/run --coordinator_address=HOST0:8476 --num_processes=2 --process_id=0

Exit codes: 0 done; 1 Cloud Storage failed for a while; 2 a mistake to put right; 75 stopped by SIGTERM, all steps
saved; 76 another host was lost."""

CONFIGS_EXAMPLE = """\
examples:
  afjax configs
  afjax configs single"""

SWEEP_EXAMPLE = """\
examples:
  afjax sweep --config=single:task=rte,data=DATA/rte --workdir=runs/sweep-rte --seeds=0,1,2 \\
      --grid.train.learning_rate=1e-4,3e-4,1e-3 --grid.adapter.reduction_factor=16.0,64.0
  afjax sweep --config=experiment.py --workdir=runs/sweep --config.train.epochs=3

Without --grid the config file says what to sweep, in get_sweep() -> {"train.learning_rate": [1e-4, 3e-4]}.
A sweep that was stopped goes on when the same command is given again, and so does one to which values or seeds are
added; runs that failed are tried again. It exits with 1 where a run failed."""

EVAL_EXAMPLE = """\
example:
  afjax eval --store=runs/quickstart/store --trunk=minilm --fusion=target-fusion --head=target-fusion \\
      --source=builtin:target --split=test
  afjax eval --store=store --trunk=minilm --adapter=csqa --head=csqa --data_dir=DATA"""

PREDICT_EXAMPLE = """\
examples:
  afjax predict --store=runs/quickstart/store --trunk=minilm --fusion=target-fusion --head=target-fusion \\
      --input=rows.jsonl --output=predictions.jsonl
  afjax predict --store=store --trunk=minilm --adapter=reviews --head=reviews --input=reviews.csv --keep=id,review
  zcat reviews.tsv.gz | afjax predict --store=store --trunk=minilm --adapter=reviews --head=reviews --input=- \\
      --input_format=tsv > predictions.jsonl

A row has the columns that the head's task was trained on (its text_a, text_b and choices settings), or {"text": ...},
{"text_a": ..., "text_b": ...}, for multiple choice {"context": ..., "choices": [...]}, for span {"question": ...,
"context": ...}. Each row gives, in order, {"logits": [...], "label": ..., "probabilities": [...]}."""

DROP_EXAMPLE = """\
example:
  afjax adapterdrop --store=runs/quickstart/store --trunk=minilm --adapter=entail --head=entail \\
      --source=builtin:entail --output=adapterdrop.csv"""

PRUNE_EXAMPLE = """\
example:
  afjax prune --store=runs/quickstart/store --trunk=minilm --fusion=target-fusion --head=target-fusion \\
      --source=builtin:target --output=prune.csv --keep=1 --name=target-pruned

Adapters are ranked, layer by layer, by their share of the fusion's attention over rows of the train split."""

DATA_EXAMPLE = """\
examples:
  afjax data show rte --data_dir=DATA --trunk=minilm --max_length=128
  afjax data show entail --source=builtin:entail --split=dev
  afjax data show reviews.csv --text_a=review --label=stars
  afjax data list

DATA is the folder that holds the tasks' folders: benchmarks' own downloads, or folders of train, dev and test files."""

SUBMIT_EXAMPLE = """\
examples:
  afjax submit glue --store=store --data_dir=DATA --output=submission
  afjax submit glue --store=store --data_dir=DATA --output=submission --names={task}-fusion --partial
  afjax submit superglue --store=store --data_dir=DATA --output=submission --tasks=boolq,rte
  afjax submit squad --store=store --data_dir=DATA --output=submission --tasks=squad_v2

A task's head is the store's of its name (see --names), with the fusion of that name, else the adapter, else alone."""

BENCH_EXAMPLE = """\
example:
  afjax bench --trunk=bert-base --method=fusion --mode=train --num_adapters=16 --batch_size=8 --max_length=128 --json"""

TPU_EXAMPLE = """\
examples:
  afjax tpu --topology=v5e:2x4 --trunk=bert-base --method=fusion --num_adapters=16 --batch_size=256 --max_length=128
  afjax tpu --topology=v5p:2x2x1 --config=adapter --config.trunk=bert-large --config.scan_layers=True

Nothing is run: the TPU's own compiler (pip install 'afjax[tpu]') compiles the real steps for that slice. The layers are
one loop, which takes less than half the time to compile, unless --unrolled is given; of a config as it says. The batch
is that of all chips."""

# Of ``afjax tpu --method``. A config has settings of its own, so there these flags are refused; that they were given
# shows only where the parser has no defaults.
TPU_DEFAULTS: Mapping[str, Any] = {
    "trunk": "bert-base",
    "num_adapters": 16,
    "num_tasks": 8,
    "batch_size": 256,
    "max_length": 128,
    "trunk_dtype": "bfloat16",
    "remat": "none",
    "fsdp": 1,
    "tensor": 1,
    "unrolled": False,
}


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands; it gives ``command``, the name of the one that was called, with its flags."""
    parser = argparse.ArgumentParser(
        prog="afjax", description="Adapters on BERT-family encoders: train, fuse, store, predict.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"afjax {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    example = f"{TRAIN_EXAMPLE}\n\n{settings_text()}"
    train = add_command(commands, "train", "run an experiment's config, or resume its run", example)
    train.add_argument(
        "--config",
        required=True,
        metavar="NAME[:key=value,...]",
        help="the experiment: a built-in config, FILE.py, or WORKDIR/config.json",
    )
    train.add_argument("--workdir", required=True, help="the run's own folder, or gs://...")
    train.add_argument("--store", help="where what is trained is kept, or gs://... (as it began; WORKDIR/store)")
    train.add_argument("--coordinator_address", default="", metavar="HOST:PORT", help="of the first of several hosts")
    train.add_argument("--num_processes", type=int, help="how many hosts there are")
    train.add_argument("--process_id", type=int, help="this host's number, from 0")
    train.add_argument(
        "--config.SETTING",
        dest="_",
        metavar="VALUE",
        help="overrides one setting, as in --config.train.epochs=3 (see the list below)",
    )

    configs = add_command(commands, "configs", "list the built-in configs and their arguments", CONFIGS_EXAMPLE)
    configs.add_argument("config", nargs="?", metavar="NAME", help="show one: a built-in config, or FILE.py")

    sweep = add_command(commands, "sweep", "run a config over settings and seeds, choose on dev", SWEEP_EXAMPLE)
    sweep.add_argument(
        "--config", required=True, metavar="NAME[:key=value,...]", help="the experiment: a built-in config or FILE.py"
    )
    sweep.add_argument("--workdir", required=True, help="the sweep's own folder; its runs are within")
    sweep.add_argument("--seeds", default="0", metavar="SEED,...", help="every setting is run with each (0)")
    sweep.add_argument(
        "--grid.SETTING",
        dest="_",
        metavar="VALUE,...",
        help="the values of one setting, as in --grid.train.epochs=3,10",
    )
    sweep.add_argument("--adapters", default="", metavar="STORE", help="a store whose adapters every run starts with")
    sweep.add_argument("--config.SETTING", dest="_", metavar="VALUE", help="overrides one setting of every run")

    evaluate = add_command(commands, "eval", "score a stored model on labelled rows", EVAL_EXAMPLE)
    add_model_flags(evaluate)
    evaluate.add_argument("--max_length", type=int, help="tokens a row; longer rows are cut (as in training)")
    add_source_flags(evaluate)
    evaluate.add_argument("--split", default="dev", choices=("train", "dev", "test"), help="which split (dev)")
    evaluate.add_argument(
        "--confusion",
        action="store_true",
        help="also give the confusion matrix of a classification task, as a table and in the JSON object",
    )

    predict = add_command(commands, "predict", "predict the rows of a file", PREDICT_EXAMPLE)
    add_model_flags(predict)
    predict.add_argument("--max_length", type=int, help="tokens per row; longer rows are cut (as in training)")
    predict.add_argument(
        "--input", required=True, metavar="FILE", help="rows: .jsonl, .tsv or .csv, also .gz; - for the standard input"
    )
    predict.add_argument(
        "--input_format", choices=("jsonl", "tsv", "csv"), help="of the input (as its name says; - is jsonl)"
    )
    predict.add_argument(
        "--output", default="-", metavar="FILE", help="predictions, .jsonl; - for the standard output (-)"
    )
    predict.add_argument(
        "--keep",
        default="",
        metavar="COLUMN,COLUMN:FIELD",
        help="columns of the input to copy to the output, under another name after a colon",
    )

    drop = add_command(
        commands,
        "adapterdrop",
        "score and speed without the adapters of more and more layers",
        DROP_EXAMPLE,
    )
    add_model_flags(drop)
    _add_curve_flags(drop)
    drop.add_argument("--from_top", action="store_true", help="the last layers go first (the first do)")

    prune = add_command(commands, "prune", "score and speed with fewer adapters in each layer's fusion", PRUNE_EXAMPLE)
    add_model_flags(prune)
    _add_curve_flags(prune)
    prune.add_argument("--rank_rows", type=int, default=1000, help="train rows to rank the adapters over (1000)")
    prune.add_argument("--keep", type=int, help="how many adapters each layer of the stored fusion keeps")
    prune.add_argument("--name", default="", help="under which name the pruned fusion and its head are stored")

    add_store_commands(commands)
    add_imports(commands)
    add_exports(commands)
    add_plots(commands)
    add_table(commands)
    add_report_commands(commands)

    data = add_command(commands, "data", "show a task's splits, or list the known tasks", DATA_EXAMPLE)
    data.add_argument("action", metavar="{show,list}", type=one_of("show", "list"))
    data.add_argument("task", nargs="?", metavar="TASK", help="what to show: a name, a .toml file or a file of rows")
    data.add_argument("--data_dir", default="", help="the folder that holds the tasks' folders, or tfds:")
    data.add_argument("--source", default="", help="a task's own folder or file, builtin:NAME or tfds:NAME")
    for setting in ("text_a", "text_b", "label"):
        data.add_argument(f"--{setting}", default="", metavar="COLUMN", help=f"the task's {setting} column")
    data.add_argument("--trunk", default="minilm", help="whose tokens to count (minilm)")
    add_length_flag(data)
    data.add_argument("--batch_size", type=int, default=32, help="rows a training step (32)")
    data.add_argument("--split", default="", choices=("train", "dev", "test"), help="one split (all)")
    data.add_argument("--json", action="store_true", help="print JSON on the last line")

    submit = add_command(commands, "submit", "predict a benchmark's test sets for its server", SUBMIT_EXAMPLE)
    submit.add_argument("benchmark", metavar="{glue,superglue,squad}", type=one_of("glue", "superglue", "squad"))
    submit.add_argument("--store", required=True, help="the store's folder, or gs://...")
    submit.add_argument(
        "--trunk",
        default="",
        help="minilm, a folder (or gs://...) or a Hugging Face id (the one that the store records)",
    )
    submit.add_argument("--data_dir", required=True, type=Path, help="the folder that holds the tasks' folders")
    submit.add_argument("--output", required=True, type=Path, help="a folder for the files")
    submit.add_argument("--names", default="{task}", help="what each task's head is called ({task})")
    submit.add_argument("--tasks", default="", metavar="TASK,TASK", help="the tasks to predict (the benchmark's)")
    submit.add_argument("--split", choices=("dev", "test"), help="of squad (dev); the others have test alone")
    submit.add_argument("--batch_size", type=int, default=32, help="rows a step (32)")
    submit.add_argument("--max_length", type=int, help="tokens a row; longer rows are cut (as the head was trained)")
    submit.add_argument(
        "--partial", action="store_true", help="go on without missing heads and test sets; their scores mean nothing"
    )
    add_mismatch_flag(submit)

    tpu = add_command(commands, "tpu", "what a run takes on a TPU slice, without one", TPU_EXAMPLE)
    tpu.add_argument("--topology", required=True, metavar="NAME", help="a slice, as in v5e:2x4 or v5p:2x2x1")
    tpu.add_argument("--config", metavar="NAME[:key=value,...]", help="an experiment; else a method:")
    tpu.add_argument("--config.SETTING", dest="_", metavar="VALUE", help="overrides one setting of the experiment")
    tpu.add_argument("--trunk", help="a size's name or a folder with a config.json (bert-base)")
    methods = ("adapter", "fusion", "full", "head", "houlsby", "pals", "pfeiffer")
    tpu.add_argument("--method", choices=methods, help="what is trained; adapter: a Pfeiffer adapter")
    tpu.add_argument("--num_adapters", type=int, help="how many adapters are fused (16)")
    tpu.add_argument("--num_tasks", type=int, help="how many tasks have PALs (8)")
    tpu.add_argument("--batch_size", type=int, help="rows a step of all chips (256)")
    tpu.add_argument("--max_length", type=int, help="tokens a row (128)")
    tpu.add_argument("--trunk_dtype", choices=("float32", "bfloat16"), help="(bfloat16)")
    tpu.add_argument("--remat", choices=("none", "matmuls", "layers"), help="computed again (none)")
    tpu.add_argument("--fsdp", type=int, help="devices that share the parameters (1)")
    tpu.add_argument("--tensor", type=int, help="devices that share each layer's units (1)")
    tpu.add_argument("--unrolled", action="store_true", default=None, help="compile the layers as straight-line code")
    tpu.add_argument("--no_fit", action="store_true", help="do not look for the largest batch that fits (quicker)")
    tpu.add_argument("--json", action="store_true", help="print JSON on the last line")

    bench = add_command(commands, "bench", "time one step on random weights", BENCH_EXAMPLE)
    bench.add_argument("--trunk", default="bert-base", help="a size's name or a folder with a config.json (bert-base)")
    bench.add_argument("--method", required=True, choices=("adapter", "fusion", "full"))
    bench.add_argument("--mode", required=True, choices=("train", "eval"))
    bench.add_argument("--num_adapters", type=int, default=1, help="how many adapters are fused (1)")
    bench.add_argument("--batch_size", type=int, default=8, help="rows a step (8)")
    bench.add_argument("--max_length", type=int, default=128, help="tokens a row (128)")
    bench.add_argument("--num_steps", type=int, default=5, help="timed steps (5)")
    bench.add_argument("--scan_layers", action="store_true", help="compile the layers as one loop")
    bench.add_argument(
        "--trunk_dtype", default="float32", choices=("float32", "bfloat16"), help="of the frozen trunk (float32)"
    )
    bench.add_argument("--json", action="store_true", help="print JSON on the last line")

    return parser


def _add_curve_flags(parser: argparse.ArgumentParser) -> None:
    add_source_flags(parser)
    parser.add_argument("--split", default="dev", choices=("train", "dev", "test"), help="the rows to score (dev)")
    parser.add_argument("--output", type=Path, help="the curve as CSV")
