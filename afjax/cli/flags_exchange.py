"""The flags of what enters a store and leaves it: ``store``, ``import`` and ``export``."""

import argparse
from pathlib import Path
from typing import Any

from afjax.cli.parsers import add_command, add_group, add_length_flag, add_overwrite_flag, add_stored_model_flags

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

IMPORT_ADAPTERHUB_EXAMPLE = """\
examples:
  afjax import adapterhub saved/rte --store=store --trunk=bert-base-uncased
  afjax import adapterhub USER/REPO --store=store --name=rte
  afjax import adapterhub saved/setup --store=store --name=rte-fusion

SOURCE is what the adapters library's save_adapter, save_adapter_fusion, save_head or save_adapter_setup wrote. A fusion
alone needs its adapters in the store; a setup brings them."""

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

EXPORT_ADAPTERHUB_EXAMPLE = """\
examples:
  afjax export adapterhub entail --store=runs/quickstart/store --output=entail
  afjax export adapterhub target-fusion --store=runs/quickstart/store --output=target-fusion --weights=bin

An adapter goes with the head of its name, a fusion with its adapters and the head of its name. In Python:
  model.load_adapter("entail", use_safetensors=True)
  model.load_adapter_setup("target-fusion", set_active=True)"""

STABLEHLO_EXAMPLE = """\
example:
  afjax export stablehlo --store=runs/quickstart/store --trunk=minilm --fusion=target-fusion --head=target-fusion \\
      --output=target.stablehlo --platforms=cpu,tpu

The file holds weights and program; it takes tokens, types and mask of any batch size and any length up to --max_length,
and gives logits. FILE.json beside it says what they are, and how to run it with JAX alone."""


def add_store_commands(commands: Any) -> None:
    """What a store holds, and how it is shared."""
    actions = add_group(commands, "store", "list, check or share what a store holds", STORE_EXAMPLE, "ACTION")
    for action, summary in (
        ("ls", "list what a store holds"),
        ("show", "all about the artefacts of one name"),
        ("verify", "read all that a store holds and check it"),
    ):
        look = add_command(actions, action, summary, STORE_EXAMPLE, group="store")
        look.set_defaults(action=action)
        look.add_argument("name", nargs="?", help="of what to show")
    pack = add_command(
        actions, "pack", "write an artefact and what belongs to it to one file", SHARE_EXAMPLE, group="store"
    )
    push = add_command(actions, "push", "put an artefact on the Hugging Face hub", SHARE_EXAMPLE, group="store")
    for out in (pack, push):
        out.add_argument("name", metavar="NAME", help="of what to share")
        out.add_argument("--kind", default="", choices=("adapters", "fusion", "heads"), help="where two have that name")
        out.add_argument("--license", default="", metavar="ID", help="for the model card, as in apache-2.0 (unknown)")
    pack.add_argument("--output", required=True, metavar="FILE.tar", help="the file, replaced where it is there")
    push.add_argument("--repo", required=True, metavar="USER/REPO", help="the repository, made where it is missing")
    push.add_argument("--private", action="store_true", help="a new repository is private")
    unpack = add_command(
        actions, "unpack", "check a packed file, and put it into a store", SHARE_EXAMPLE, group="store"
    )
    unpack.add_argument("file", metavar="FILE.tar", help="what afjax store pack wrote")
    pull = add_command(
        actions, "pull", "put what is on the Hugging Face hub into a store", SHARE_EXAMPLE, group="store"
    )
    pull.add_argument("repo", metavar="USER/REPO", help="what afjax store push wrote")
    pull.add_argument("--revision", default="", help="a branch, tag or commit (the newest)")
    for incoming in (unpack, pull):
        incoming.add_argument("--name", default="", help="a new name for it and its head (its own)")
        incoming.add_argument("--overwrite", action="store_true", help="replace what has these names")
    for parser in actions.choices.values():
        parser.add_argument("--store", required=True, help="the store's folder, or gs://...")


def add_imports(commands: Any) -> None:
    """What other code has trained."""
    imports = add_group(commands, "import", "bring in adapters and trunks of other code")
    adapterhub = add_command(
        imports, "adapterhub", "take over what AdapterHub's library saved", IMPORT_ADAPTERHUB_EXAMPLE, group="import"
    )
    adapterhub.add_argument("source", metavar="SOURCE", help="a folder (or gs://...), or a Hugging Face id")
    adapterhub.add_argument("--store", required=True, help="the store's folder, or gs://...")
    adapterhub.add_argument("--name", default="", help="of the adapter, or of a setup's fusion (their own)")
    adapterhub.add_argument("--trunk", default="", help="what it was trained on (what it says)")
    adapterhub.add_argument("--overwrite", action="store_true", help="replace what has the name already")

    _add_paper_imports(imports)


def _add_paper_imports(imports: Any) -> None:
    """The checkpoints of the papers' own code."""
    summary = "Houlsby 2019's own checkpoint, as an adapter and a head"
    adapter = add_command(imports, "adapter-bert", summary, IMPORT_ADAPTER_BERT_EXAMPLE, group="import")
    adapter.add_argument("source", metavar="CHECKPOINT", help="a TensorFlow checkpoint, or a folder that has one")
    adapter.add_argument("--trunk", required=True, help="the pretrained BERT: a folder (or gs://...) or an id")
    adapter.add_argument("--store", required=True, help="the store's folder, or gs://...")
    adapter.add_argument("--name", required=True, help="of the adapter and the head in the store")
    adapter.add_argument("--task", default="", help="the benchmark's task (as --name)")
    adapter.add_argument("--labels", default="", metavar="NAME,NAME", help="of the outputs (the task's, or 0,1,...)")
    add_length_flag(adapter)
    add_overwrite_flag(adapter)

    bert = add_command(imports, "bert", "Google's own BERT, as a trunk's folder", IMPORT_BERT_EXAMPLE, group="import")
    bert.add_argument("source", metavar="CHECKPOINT", help="bert_model.ckpt, or the folder that has it")
    bert.add_argument("--output", required=True, help="the trunk's folder, or gs://...")
    bert.add_argument("--config", metavar="FILE", help="bert_config.json (that beside the checkpoint)")
    bert.add_argument("--gelu", default="exact", choices=("exact", "tanh"), help='what "gelu" is (exact)')
    _add_vocabulary_flags(bert, "the checkpoint")
    add_overwrite_flag(bert)

    summary = "Stickland & Murray 2019's own checkpoint, as a trunk, adapters and heads"
    pals = add_command(imports, "bert-n-pals", summary, IMPORT_BERT_N_PALS_EXAMPLE, group="import")
    pals.add_argument("source", metavar="FILE", help="best_model.pth, or its tensors as .safetensors")
    pals.add_argument("--config", required=True, metavar="FILE", help="the config it was trained with")
    pals.add_argument("--tasks", required=True, metavar="TASK,TASK", help="its tasks, in its order")
    pals.add_argument("--output", required=True, help="the trunk's folder, or gs://...")
    pals.add_argument("--store", required=True, help="the store's folder, or gs://...")
    pals.add_argument("--name", default="", help="stands before each task's name in the store: NAME-TASK")
    _add_vocabulary_flags(pals, "--config")
    add_length_flag(pals)
    add_overwrite_flag(pals)


def add_exports(commands: Any) -> None:
    """What other programs are to use."""
    exports = add_group(commands, "export", "write what a store holds for other programs")
    adapterhub = add_command(
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

    stablehlo = add_command(
        exports, "stablehlo", "write a model as one file that JAX runs without afjax", STABLEHLO_EXAMPLE, group="export"
    )
    add_stored_model_flags(stablehlo)
    stablehlo.add_argument("--output", required=True, metavar="FILE", help="the file; FILE.json describes it")
    stablehlo.add_argument("--max_length", type=int, default=128, help="the most tokens a row may have (128)")
    stablehlo.add_argument(
        "--platforms", default="cpu,cuda,tpu", metavar="NAME,...", help="what it is to run on (cpu,cuda,tpu)"
    )


def _add_vocabulary_flags(parser: argparse.ArgumentParser, beside: str) -> None:
    parser.add_argument("--vocab", metavar="FILE", help=f"the tokenizer's vocab.txt (that beside {beside})")
    parser.add_argument("--case", choices=("cased", "uncased"), help="of the tokenizer (as the vocabulary is)")
