"""The flags of every command, and the examples in their help."""

import argparse
from pathlib import Path
from typing import Any

from etils import epath

TRAIN_EXAMPLE = """\
examples:
  afjax train --config=configs/quickstart.py --workdir=runs/quickstart
  afjax train --config=configs/single.py:task=rte,data=DATA/rte --workdir=runs/rte --store=store \\
      --config.train.learning_rate=3e-4 --config.seed=1

A run that was stopped goes on when the same command is given again.

All devices are used, as --config.mesh.data, --config.mesh.fsdp and --config.mesh.tensor say. The hosts of a Cloud TPU
slice find each other; elsewhere start the same command on each, with its own --process_id:
  afjax train ... --workdir=gs://BUCKET/run --coordinator_address=HOST0:8476 --num_processes=2 --process_id=0

Exit codes: 0 done; 1 Cloud Storage failed for a while; 2 a mistake to put right; 75 stopped by SIGTERM, all steps
saved; 76 another host was lost."""

SWEEP_EXAMPLE = """\
examples:
  afjax sweep --config=configs/single.py:task=rte,data=DATA/rte --workdir=runs/sweep-rte --seeds=0,1,2 \\
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
example:
  afjax predict --store=runs/quickstart/store --trunk=minilm --fusion=target-fusion --head=target-fusion \\
      --input=rows.jsonl --output=predictions.jsonl

A row is {"text": ...} or {"text_a": ..., "text_b": ...}, of multiple choice {"context": ..., "choices": [...]}, of span
{"question": ..., "context": ...}; each gives, in order, {"logits": [...], "label": ..., "probabilities": [...]}."""

DROP_EXAMPLE = """\
example:
  afjax adapterdrop --store=runs/quickstart/store --trunk=minilm --adapter=entail --head=entail \\
      --source=builtin:entail --output=adapterdrop.csv"""

PRUNE_EXAMPLE = """\
example:
  afjax prune --store=runs/quickstart/store --trunk=minilm --fusion=target-fusion --head=target-fusion \\
      --source=builtin:target --output=prune.csv --keep=1 --name=target-pruned

Adapters are ranked, layer by layer, by their share of the fusion's attention over rows of the train split."""

IMPORT_ADAPTERHUB_EXAMPLE = """\
examples:
  afjax import adapterhub saved/rte --store=store --trunk=bert-base-uncased
  afjax import adapterhub USER/REPO --store=store --name=rte
  afjax import adapterhub saved/setup --store=store --name=rte-fusion

SOURCE is what the adapters library's save_adapter, save_adapter_fusion, save_head or save_adapter_setup wrote. A fusion
alone needs its adapters in the store; a setup brings them."""

EXPORT_ADAPTERHUB_EXAMPLE = """\
examples:
  afjax export adapterhub entail --store=runs/quickstart/store --output=entail
  afjax export adapterhub target-fusion --store=runs/quickstart/store --output=target-fusion --weights=bin

An adapter goes with the head of its name, a fusion with its adapters and the head of its name. In Python:
  model.load_adapter("entail", use_safetensors=True)
  model.load_adapter_setup("target-fusion", set_active=True)"""

STORE_EXAMPLE = """\
examples:
  afjax store ls --store=store
  afjax store show rte --store=store
  afjax store verify --store=store
  afjax store pack rte --store=store --output=rte.tar"""

SHARE_EXAMPLE = """\
examples:
  afjax store pack rte --store=store --output=rte.tar --license=apache-2.0
  afjax store unpack rte.tar --store=other
  afjax store push rte --store=store --repo=USER/REPO --license=apache-2.0 --private
  afjax store pull USER/REPO --store=other --name=their-rte

An adapter takes the head of its name along, a fusion its adapters and its head. A model card is written; paths of this
machine are cut to their last part. What comes in is checked wholly before any of it enters the store."""

DATA_EXAMPLE = """\
examples:
  afjax data show rte --data_dir=DATA --trunk=minilm --max_length=128
  afjax data show entail --source=builtin:entail --split=dev
  afjax data list

DATA is the folder that holds the tasks' folders: benchmarks' own downloads, or folders of train, dev and test files."""

SUBMIT_EXAMPLE = """\
examples:
  afjax submit glue --store=store --trunk=minilm --data_dir=DATA --output=submission
  afjax submit glue --store=store --trunk=minilm --data_dir=DATA --output=submission --names={task}-fusion --partial
  afjax submit superglue --store=store --trunk=minilm --data_dir=DATA --output=submission --tasks=boolq,rte
  afjax submit squad --store=store --trunk=minilm --data_dir=DATA --output=submission --tasks=squad_v2

A task's head is the store's of its name (see --names), with the fusion of that name, else the adapter, else alone."""

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

STABLEHLO_EXAMPLE = """\
example:
  afjax export stablehlo --store=runs/quickstart/store --trunk=minilm --fusion=target-fusion --head=target-fusion \\
      --output=target.stablehlo --platforms=cpu,tpu

The file holds weights and program; it takes tokens, types and mask of any batch size and any length up to --max_length,
and gives logits. FILE.json beside it says what they are, and how to run it with JAX alone."""

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

BENCH_EXAMPLE = """\
example:
  afjax bench --trunk=bert-base --method=fusion --mode=train --num_adapters=16 --batch_size=8 --max_length=128 --json"""


TPU_EXAMPLE = """\
examples:
  afjax tpu --topology=v5e:2x4 --trunk=bert-base --method=fusion --num_adapters=16 --batch_size=256 --max_length=128
  afjax tpu --topology=v5p:2x2x1 --config=configs/adapter.py --config.trunk=bert-large --config.scan_layers=True

Nothing is run: the TPU's own compiler (pip install 'afjax[tpu]') compiles the real steps for that slice. The layers are
one loop, as is best on TPUs, unless --unrolled is given; of a config as it says. The batch is that of all chips."""

IMPORT_ADAPTER_BERT_EXAMPLE = """\
example:
  afjax import bert uncased_L-12_H-768_A-12 --output=bert --gelu=tanh
  afjax import adapter-bert runs/mrpc/model.ckpt-343 --trunk=bert --store=store --name=mrpc
  afjax eval --store=store --trunk=bert --adapter=mrpc --head=mrpc --data_dir=DATA

The trunk is the pretrained BERT that the adapter was trained from; the checkpoint's frozen weights must be its own."""

IMPORT_BERT_EXAMPLE = """\
example:
  afjax import bert uncased_L-12_H-768_A-12 --output=bert
  afjax import bert uncased_L-12_H-768_A-12/bert_model.ckpt --output=gs://BUCKET/bert --gelu=tanh

By "gelu" Google's later code, and adapter-bert's, means the tanh approximation; Hugging Face's copies of the same
weights, and Google's first code, the exact one."""

IMPORT_BERT_N_PALS_EXAMPLE = """\
example:
  afjax import bert-n-pals output/best_model.pth --config=configs/pals_config.json --vocab=bert/vocab.txt \\
      --tasks=cola,mrpc,mnli,rte,stsb,sst2,qqp,qnli --output=pals-trunk --store=store
  afjax eval --store=store --trunk=pals-trunk --adapter=rte --head=rte --data_dir=DATA

The tasks stand in the order in which the authors' code has them, which for --tasks=all is the one above."""


TABLE_EXAMPLE = """\
examples:
  afjax table adapterfusion --runs=runs
  afjax table houlsby --runs=runs/rte-full,runs/rte-sizes,runs/store --by_size --format=markdown
  afjax table arrows --runs=runs --format=latex --output=arrows.tex

Layouts: adapterfusion (tasks by methods), arrows and differences (AdapterFusion's table 2 and figure 3), pals (methods
and samplers), houlsby (parameters, scores). Below the table stand the commands that train what it lacks."""

TRADEOFF_EXAMPLE = """\
examples:
  afjax plot tradeoff --runs=runs --output=tradeoff
  afjax plot tradeoff --runs=runs --task=rte --output=rte

Over all tasks: the median and the 20th and 80th percentiles of the scores minus full fine-tuning's; of one task: mean
and standard deviation over seeds."""

ROBUSTNESS_EXAMPLE = """\
example:
  afjax sweep --config=configs/baselines.py:method=houlsby,task=rte,data=DATA/rte --workdir=runs/rte-scales \\
      --grid.train.learning_rate=3e-4 --grid.adapter.init_scale=1e-7,1e-5,1e-3,1e-2,1e-1,1.0 --seeds=0,1,2
  afjax plot robustness --runs=runs/rte-scales --output=robustness"""

SEARCH_EXAMPLE = """\
example:
  afjax sweep --config=configs/pfeiffer_search.py:task=rte,data=DATA --workdir=runs/search
  afjax plot search --runs=runs/search --output=search"""

DIFFERENCES_EXAMPLE = """\
example:
  afjax plot differences --runs=runs --output=differences"""


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands; it gives ``command``, the name of the one that was called, with its flags."""
    parser = argparse.ArgumentParser(
        prog="afjax", description="Adapters on BERT-family encoders: train, fuse, store, predict.", allow_abbrev=False
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = _command(commands, "train", "run an experiment's config, or go on with it", TRAIN_EXAMPLE)
    train.add_argument(
        "--config", required=True, metavar="FILE.py[:key=value,...]", help="the experiment; or a workdir's config.json"
    )
    train.add_argument("--workdir", required=True, type=epath.Path, help="the run's own folder, or gs://...")
    train.add_argument("--store", help="where adapters, fusions and heads are kept, or gs://... (WORKDIR/store)")
    train.add_argument("--coordinator_address", default="", metavar="HOST:PORT", help="of the first of several hosts")
    train.add_argument("--num_processes", type=int, help="how many hosts there are")
    train.add_argument("--process_id", type=int, help="this host's number, from 0")
    train.add_argument(
        "--config.SETTING",
        dest="_",
        metavar="VALUE",
        help="overrides one setting, as in --config.train.epochs=3",
    )

    sweep = _command(commands, "sweep", "run a config over settings and seeds, choose on dev", SWEEP_EXAMPLE)
    sweep.add_argument("--config", required=True, metavar="FILE.py[:key=value,...]", help="the experiment")
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

    evaluate = _command(commands, "eval", "score a stored model on labelled rows", EVAL_EXAMPLE)
    _add_model_flags(evaluate)
    evaluate.add_argument("--max_length", type=int, help="tokens a row; longer rows are cut (as in training)")
    _add_source_flags(evaluate)
    evaluate.add_argument("--split", default="dev", choices=("train", "dev", "test"), help="which split (dev)")

    predict = _command(commands, "predict", "predict the rows of a file", PREDICT_EXAMPLE)
    _add_model_flags(predict)
    _add_length_flag(predict)
    predict.add_argument("--input", required=True, type=Path, help="rows, .jsonl or .jsonl.gz")
    predict.add_argument("--output", required=True, type=Path, help="predictions, .jsonl")

    drop = _command(
        commands,
        "adapterdrop",
        "score and speed without the adapters of more and more layers",
        DROP_EXAMPLE,
    )
    _add_model_flags(drop)
    _add_curve_flags(drop)
    drop.add_argument("--from_top", action="store_true", help="the last layers go first (the first do)")

    prune = _command(commands, "prune", "score and speed with fewer adapters in each layer's fusion", PRUNE_EXAMPLE)
    _add_model_flags(prune)
    _add_curve_flags(prune)
    prune.add_argument("--rank_rows", type=int, default=1000, help="train rows to rank the adapters over (1000)")
    prune.add_argument("--keep", type=int, help="how many adapters each layer of the stored fusion keeps")
    prune.add_argument("--name", default="", help="under which name the pruned fusion and its head are stored")

    _add_store_commands(_group(commands, "store", "list, check or share what a store holds", STORE_EXAMPLE, "ACTION"))

    imports = _group(commands, "import", "bring in adapters and trunks of other code")
    adapterhub = _command(
        imports, "adapterhub", "take over what AdapterHub's library saved", IMPORT_ADAPTERHUB_EXAMPLE, group="import"
    )
    adapterhub.add_argument("source", metavar="SOURCE", help="a folder (or gs://...), or a Hugging Face id")
    adapterhub.add_argument("--store", required=True, help="the store's folder, or gs://...")
    adapterhub.add_argument("--name", default="", help="of the adapter, or of a setup's fusion (their own)")
    adapterhub.add_argument("--trunk", default="", help="what it was trained on (what it says)")
    adapterhub.add_argument("--overwrite", action="store_true", help="replace what has the name already")

    _add_paper_imports(imports)

    exports = _group(commands, "export", "write what a store holds for other programs")
    adapterhub = _command(
        exports, "adapterhub", "write an artefact for AdapterHub's library", EXPORT_ADAPTERHUB_EXAMPLE, group="export"
    )
    adapterhub.add_argument("name", metavar="NAME", help="of an adapter, a fusion or a head")
    adapterhub.add_argument("--store", required=True, help="the store's folder, or gs://...")
    adapterhub.add_argument("--output", required=True, type=Path, help="the folder to make")
    adapterhub.add_argument("--kind", choices=("adapter", "fusion", "head"), help="where several have the name")
    adapterhub.add_argument(
        "--weights", default="safetensors", choices=("safetensors", "bin"), help="bin needs PyTorch (safetensors)"
    )
    adapterhub.add_argument("--num_choices", type=int, help="choices a row, where a head does not name them")

    stablehlo = _command(
        exports, "stablehlo", "write a model as one file that JAX runs without afjax", STABLEHLO_EXAMPLE, group="export"
    )
    _add_stored_model_flags(stablehlo)
    stablehlo.add_argument("--output", required=True, metavar="FILE", help="the file; FILE.json describes it")
    stablehlo.add_argument("--max_length", type=int, default=128, help="the most tokens a row may have (128)")
    stablehlo.add_argument(
        "--platforms", default="cpu,cuda,tpu", metavar="NAME,...", help="what it is to run on (cpu,cuda,tpu)"
    )

    plots = _group(commands, "plot", "draw the papers' figures from what was trained", metavar="FIGURE")
    _add_model_plots(plots)
    _add_run_plots(plots)

    data = _command(commands, "data", "show a task's splits, or list the known tasks", DATA_EXAMPLE)
    data.add_argument("action", choices=("show", "list"))
    data.add_argument("task", nargs="?", metavar="TASK", help="of what to show: a name or a .toml file")
    data.add_argument("--data_dir", default="", help="the folder that holds the tasks' folders, or tfds:")
    data.add_argument("--source", default="", help="a task's own folder, builtin:NAME or tfds:NAME, for --data_dir")
    data.add_argument("--trunk", default="minilm", help="whose tokens to count (minilm)")
    _add_length_flag(data)
    data.add_argument("--batch_size", type=int, default=32, help="rows a training step (32)")
    data.add_argument("--split", default="", choices=("train", "dev", "test"), help="one split (all)")
    data.add_argument("--json", action="store_true", help="print JSON on the last line")

    submit = _command(commands, "submit", "predict a benchmark's test sets for its server", SUBMIT_EXAMPLE)
    submit.add_argument("benchmark", choices=("glue", "superglue", "squad"))
    submit.add_argument("--store", required=True, help="the store's folder, or gs://...")
    submit.add_argument("--trunk", required=True, help="minilm, a folder (or gs://...) or a Hugging Face id")
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

    table = _command(commands, "table", "the papers' tables, from finished runs", TABLE_EXAMPLE)
    table.add_argument("layout", metavar="LAYOUT", help="adapterfusion, arrows, differences, pals or houlsby")
    _add_runs_flags(table)
    table.add_argument("--methods", default="", metavar="NAME,...", help="which, in this order (all)")
    table.add_argument("--seeds", default="", metavar="SEED,...", help="what each cell should have (what any has)")
    table.add_argument("--by_size", action="store_true", help="adapters of each size are a method of their own")
    table.add_argument("--format", default="text", metavar="NAME", help="text, markdown, latex or csv (text)")
    table.add_argument("--output", type=Path, help="the file (the terminal)")

    tpu = _command(commands, "tpu", "what a run takes on a TPU slice, without one", TPU_EXAMPLE)
    tpu.add_argument("--topology", required=True, metavar="NAME", help="a slice, as in v5e:2x4 or v5p:2x2x1")
    tpu.add_argument("--config", metavar="FILE.py[:key=value,...]", help="an experiment; else a method:")
    tpu.add_argument("--config.SETTING", dest="_", metavar="VALUE", help="overrides one setting of the experiment")
    tpu.add_argument("--trunk", default="bert-base", help="a size's name or a folder with a config.json (bert-base)")
    methods = ("adapter", "fusion", "full", "head", "houlsby", "pals", "pfeiffer")
    tpu.add_argument("--method", choices=methods, help="what is trained; adapter: a Pfeiffer adapter")
    tpu.add_argument("--num_adapters", type=int, default=16, help="how many adapters are fused (16)")
    tpu.add_argument("--num_tasks", type=int, default=8, help="how many tasks have PALs (8)")
    tpu.add_argument("--batch_size", type=int, default=256, help="rows a step of all chips (256)")
    tpu.add_argument("--max_length", type=int, default=128, help="tokens a row (128)")
    tpu.add_argument("--trunk_dtype", default="bfloat16", choices=("float32", "bfloat16"), help="(bfloat16)")
    tpu.add_argument("--remat", default="none", choices=("none", "matmuls", "layers"), help="computed again (none)")
    tpu.add_argument("--fsdp", type=int, default=1, help="devices that share the parameters (1)")
    tpu.add_argument("--tensor", type=int, default=1, help="devices that share each layer's units (1)")
    tpu.add_argument("--unrolled", action="store_true", help="compile the layers as straight-line code")
    tpu.add_argument("--no_fit", action="store_true", help="do not look for the largest batch that fits (quicker)")
    tpu.add_argument("--json", action="store_true", help="print JSON on the last line")

    _add_report_commands(commands)

    bench = _command(commands, "bench", "time one step on random weights", BENCH_EXAMPLE)
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


def _add_report_commands(commands: Any) -> None:
    report = _command(commands, "report", "all about a workdir's runs, as one HTML page", REPORT_EXAMPLE)
    report.add_argument("--workdir", required=True, type=epath.Path, help="a run's or a sweep's folder, or gs://...")
    report.add_argument("--output", required=True, type=Path, metavar="FILE.html", help="the page")
    report.add_argument("--store", default="", help="where the runs saved what they trained (WORKDIR/store)")
    report.add_argument("--trunk", default="", help="what they were trained on (as the config says)")
    _add_source_flags(report, required=False)
    report.add_argument("--mistakes", type=int, default=20, help="how many of the rows it got wrong to show (20)")
    report.add_argument("--batch_size", type=int, default=32, help="rows a step (32)")

    compare = _command(commands, "compare", "test whether B is better than A on the same rows", COMPARE_EXAMPLE)
    compare.add_argument("a", metavar="A", help="a model of --store, as in adapter:rte, or a workdir; or several")
    compare.add_argument("b", metavar="B", help="likewise")
    compare.add_argument("--store", default="", help="of models; of workdirs where it is not their own")
    compare.add_argument("--trunk", default="", help="of models; of workdirs where it is not their own")
    compare.add_argument("--task", default="", help="which task of a run on several")
    _add_source_flags(compare, required=False)
    compare.add_argument("--split", default="dev", choices=("train", "dev", "test"), help="the rows to score (dev)")
    compare.add_argument("--metric", default="", help="what to decide by (as early stopping did)")
    compare.add_argument("--resamples", type=int, default=10_000, help="of the bootstrap (10000)")
    compare.add_argument("--seed", type=int, default=0, help="of the bootstrap's draws (0)")
    compare.add_argument("--max_length", type=int, help="tokens a row; longer rows are cut (as in training)")
    compare.add_argument("--batch_size", type=int, default=32, help="rows a step (32)")
    compare.add_argument("--json", action="store_true", help="print JSON on the last line")


def _add_model_plots(plots: Any) -> None:
    """Figures of stored models."""
    summary = "what fusions listen to, over a split or at every token of a text"
    activations = _command(plots, "activations", summary, ACTIVATIONS_EXAMPLE, group="plot")
    activations.add_argument("--store", required=True, help="the store's folder, or gs://...")
    activations.add_argument("--trunk", required=True, help="minilm, a folder (or gs://...) or a Hugging Face id")
    activations.add_argument("--fusion", required=True, metavar="NAME,NAME", help="one fusion, or one a target task")
    activations.add_argument("--head", default="", metavar="NAME,NAME", help="their heads (of the same names)")
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
    spans = _command(plots, "spans", summary, SPANS_EXAMPLE, group="plot")
    _add_model_flags(spans)
    _add_source_flags(spans)
    spans.add_argument("--split", default="dev", choices=("train", "dev", "test"), help="the rows to score (dev)")
    spans.add_argument("--metric", default="", help="the one that is drawn (the task's)")
    spans.add_argument("--output", required=True, type=Path, metavar="NAME", help="the files' common name")


def _add_paper_imports(imports: Any) -> None:
    """The checkpoints of the papers' own code."""
    summary = "Houlsby 2019's own checkpoint, as an adapter and a head"
    adapter = _command(imports, "adapter-bert", summary, IMPORT_ADAPTER_BERT_EXAMPLE, group="import")
    adapter.add_argument("source", metavar="CHECKPOINT", help="a TensorFlow checkpoint, or a folder that has one")
    adapter.add_argument("--trunk", required=True, help="the pretrained BERT: a folder (or gs://...) or an id")
    adapter.add_argument("--store", required=True, help="the store's folder, or gs://...")
    adapter.add_argument("--name", required=True, help="of the adapter and the head in the store")
    adapter.add_argument("--task", default="", help="the benchmark's task (as --name)")
    adapter.add_argument("--labels", default="", metavar="NAME,NAME", help="of the outputs (the task's, or 0,1,...)")
    _add_length_flag(adapter)
    _add_overwrite_flag(adapter)

    bert = _command(imports, "bert", "Google's own BERT, as a trunk's folder", IMPORT_BERT_EXAMPLE, group="import")
    bert.add_argument("source", metavar="CHECKPOINT", help="bert_model.ckpt, or the folder that has it")
    bert.add_argument("--output", required=True, help="the trunk's folder, or gs://...")
    bert.add_argument("--config", metavar="FILE", help="bert_config.json (that beside the checkpoint)")
    bert.add_argument("--gelu", default="exact", choices=("exact", "tanh"), help='what "gelu" is (exact)')
    _add_vocabulary_flags(bert, "the checkpoint")
    _add_overwrite_flag(bert)

    summary = "Stickland & Murray 2019's own checkpoint, as a trunk, adapters and heads"
    pals = _command(imports, "bert-n-pals", summary, IMPORT_BERT_N_PALS_EXAMPLE, group="import")
    pals.add_argument("source", metavar="FILE", help="best_model.pth, or its tensors as .safetensors")
    pals.add_argument("--config", required=True, metavar="FILE", help="the config it was trained with")
    pals.add_argument("--tasks", required=True, metavar="TASK,TASK", help="its tasks, in its order")
    pals.add_argument("--output", required=True, help="the trunk's folder, or gs://...")
    pals.add_argument("--store", required=True, help="the store's folder, or gs://...")
    pals.add_argument("--name", default="", help="stands before each task's name in the store: NAME-TASK")
    _add_vocabulary_flags(pals, "--config")
    _add_length_flag(pals)
    _add_overwrite_flag(pals)


def _add_runs_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", required=True, metavar="DIR,...", help="workdirs, sweeps, stores, or folders of them")
    parser.add_argument("--tasks", default="", metavar="NAME,...", help="which, in this order (all)")
    parser.add_argument("--metric", default="", help="in place of each task's main metric, where a task has it")


def _add_run_plots(plots: Any) -> None:
    """The figures that are drawn from several finished runs."""
    of = {
        "differences": ("scores minus full fine-tuning's, a task a group", DIFFERENCES_EXAMPLE),
        "tradeoff": ("score against trained parameters", TRADEOFF_EXAMPLE),
        "robustness": ("score against the adapters' start and size, from a sweep", ROBUSTNESS_EXAMPLE),
        "search": ("the search for the adapter's architecture, from its sweep", SEARCH_EXAMPLE),
    }
    for name, (summary, example) in of.items():
        plot = _command(plots, name, summary, example, group="plot")
        _add_runs_flags(plot)
        plot.add_argument("--output", required=True, type=Path, help="the name of the files .png, .svg and .csv")
        if name == "differences":
            plot.add_argument("--methods", default="", metavar="NAME,...", help="which, in this order (all)")
        if name == "tradeoff":
            plot.add_argument("--task", default="", help="one task, in place of percentiles over all")


def _group(commands: Any, name: str, summary: str, example: str | None = None, metavar: str = "FORMAT") -> Any:
    """A command that is a family of commands, each with flags of its own; its name stands before theirs."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser.add_subparsers(required=True, metavar=metavar)


def _command(commands: Any, name: str, summary: str, example: str, *, group: str = "") -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(command=f"{group} {name}".strip())
    return parser


def _add_store_commands(group: Any) -> None:
    for action, summary in (
        ("ls", "list what a store holds"),
        ("show", "all about the artefacts of one name"),
        ("verify", "read all that a store holds and check it"),
    ):
        look = _command(group, action, summary, STORE_EXAMPLE, group="store")
        look.set_defaults(action=action)
        look.add_argument("name", nargs="?", help="of what to show")
    pack = _command(group, "pack", "write an artefact and what belongs to it to one file", SHARE_EXAMPLE, group="store")
    push = _command(group, "push", "put an artefact on the Hugging Face hub", SHARE_EXAMPLE, group="store")
    for out in (pack, push):
        out.add_argument("name", metavar="NAME", help="of what to share")
        out.add_argument("--kind", default="", choices=("adapters", "fusion", "heads"), help="where two have that name")
        out.add_argument("--license", default="", metavar="ID", help="for the model card, as in apache-2.0 (unknown)")
    pack.add_argument("--output", required=True, metavar="FILE.tar", help="the file, replaced where it is there")
    push.add_argument("--repo", required=True, metavar="USER/REPO", help="the repository, made where it is missing")
    push.add_argument("--private", action="store_true", help="a new repository is private")
    unpack = _command(group, "unpack", "check a packed file, and put it into a store", SHARE_EXAMPLE, group="store")
    unpack.add_argument("file", metavar="FILE.tar", help="what afjax store pack wrote")
    pull = _command(group, "pull", "put what is on the Hugging Face hub into a store", SHARE_EXAMPLE, group="store")
    pull.add_argument("repo", metavar="USER/REPO", help="what afjax store push wrote")
    pull.add_argument("--revision", default="", help="a branch, tag or commit (the newest)")
    for incoming in (unpack, pull):
        incoming.add_argument("--name", default="", help="a new name for it and its head (its own)")
        incoming.add_argument("--overwrite", action="store_true", help="replace what has these names")
    for parser in group.choices.values():
        parser.add_argument("--store", required=True, help="the store's folder, or gs://...")


def _add_model_flags(parser: argparse.ArgumentParser) -> None:
    _add_stored_model_flags(parser)
    parser.add_argument("--batch_size", type=int, default=32, help="rows a step (32)")


def _add_stored_model_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", required=True, help="the store's folder, or gs://...")
    parser.add_argument("--trunk", required=True, help="minilm, a folder (or gs://...) or a Hugging Face id")
    parser.add_argument("--adapter", default="", help="an adapter's name")
    parser.add_argument("--fusion", default="", help="a fusion's name, in place of an adapter's")
    parser.add_argument("--head", required=True, help="the head's name")
    parser.add_argument("--drop_layers", default="", metavar="0,1", help="layers to leave out the adapters of")
    parser.add_argument("--without", default="", metavar="NAME,NAME", help="adapters to leave out of the fusion")
    parser.add_argument("--with", dest="added", default="", metavar="NAME,NAME", help="adapters to add to the fusion")


def _add_length_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max_length", type=int, default=128, help="tokens a row; longer rows are cut (128)")


def _add_source_flags(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    source = parser.add_mutually_exclusive_group(required=required)
    source.add_argument(
        "--source", help="a folder, a file, a task's .toml, official:NAME:FOLDER, builtin:NAME or tfds:NAME"
    )
    source.add_argument("--data_dir", help="the folder of all tasks, where the head's task is found by its name")


def _add_curve_flags(parser: argparse.ArgumentParser) -> None:
    _add_source_flags(parser)
    parser.add_argument("--split", default="dev", choices=("train", "dev", "test"), help="the rows to score (dev)")
    parser.add_argument("--output", type=Path, help="the curve as CSV")


def _add_vocabulary_flags(parser: argparse.ArgumentParser, beside: str) -> None:
    parser.add_argument("--vocab", metavar="FILE", help=f"the tokenizer's vocab.txt (that beside {beside})")
    parser.add_argument("--case", choices=("cased", "uncased"), help="of the tokenizer (as the vocabulary is)")


def _add_overwrite_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")
