"""``afjax import``: imports adapters and trunks from other libraries."""

import argparse
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from afjax.cli.compilation_cache import use_compilation_cache
from afjax.cli.parsers import add_command, add_group, add_length_flag, add_store_flag, flags
from afjax.config.flags import split_names
from afjax.config.tasks import TaskKind
from afjax.display.words import counted
from afjax.errors import UserError

if TYPE_CHECKING:
    from afjax.interop.imported import Imported
    from afjax.model.task_model import TaskModel

IMPORT_ADAPTERHUB_EXAMPLE = """\
examples:
  afjax import adapterhub saved/rte --store=store --trunk=bert-base-uncased
  afjax import adapterhub USER/REPO --store=store --name=rte
  afjax import adapterhub saved/setup --store=store --name=rte-fusion

SOURCE was written by save_adapter, save_adapter_fusion, save_head or save_adapter_setup of the adapters library. A
fusion's adapters must already be in the store, unless SOURCE is a setup, which includes them."""

IMPORT_PEFT_EXAMPLE = """\
examples:
  afjax import peft saved/reviews --store=store --labels=negative,positive
  afjax import peft USER/REPO --store=store --name=reviews --trunk=bert-base-uncased
  afjax import peft saved/topics --store=store --kind=multi_label

SOURCE was written by save_pretrained of a PeftModel with LoRA. The head is imported with the adapter. PEFT's files do
not contain label names, so pass --labels."""

IMPORT_ADAPTER_BERT_EXAMPLE = """\
example:
  afjax import bert uncased_L-12_H-768_A-12 --output=bert --gelu=tanh
  afjax import adapter-bert runs/mrpc/model.ckpt-343 --trunk=bert --store=store --name=mrpc
  afjax eval --store=store --trunk=bert --adapter=mrpc --head=mrpc --data_dir=DATA

The trunk is the pretrained BERT that the adapter was trained on. The checkpoint's frozen weights must match it."""

IMPORT_BERT_EXAMPLE = """\
example:
  afjax import bert uncased_L-12_H-768_A-12 --output=bert
  afjax import bert uncased_L-12_H-768_A-12/bert_model.ckpt --output=gs://BUCKET/bert --gelu=tanh

"gelu" means the tanh approximation in Google's later code and in adapter-bert, but the exact function in Google's
original code and in Hugging Face's copies of the same weights."""

IMPORT_BERT_N_PALS_EXAMPLE = """\
example:
  afjax import bert-n-pals output/best_model.pth --config=configs/pals_config.json --vocab=bert/vocab.txt \\
      --tasks=cola,mrpc,mnli,rte,stsb,sst2,qqp,qnli --output=pals-trunk --store=store
  afjax eval --store=store --trunk=pals-trunk --adapter=rte --head=rte --data_dir=DATA

List the tasks in the order used by the authors' code. If it was run with --tasks=all, use the order above."""


def add(commands: Any) -> None:
    """Adds the commands to the parser's commands."""
    imports = add_group(commands, "import", "import adapters and trunks from other libraries")
    adapterhub = add_command(
        imports,
        "adapterhub",
        "import an artifact from AdapterHub's library",
        IMPORT_ADAPTERHUB_EXAMPLE,
        run=_adapterhub,
    )
    adapterhub.add_argument("source", metavar="SOURCE", help="a folder (or gs://...), or a Hugging Face id")
    adapterhub.add_argument("--name", default="", help="new name of the adapter, or of a setup's fusion (unchanged)")
    adapterhub.add_argument("--trunk", default="", help="the trunk that SOURCE was trained on (recorded in SOURCE)")

    _add_peft(imports)
    _add_adapter_bert(imports)
    _add_bert(imports)
    _add_bert_n_pals(imports)
    for name, parser in imports.choices.items():
        if name != "bert":  # A trunk is not in a store.
            add_store_flag(parser)
        parser.add_argument(
            "--overwrite", action="store_true", help="replace existing artifacts or files of the same name"
        )


def _add_peft(imports: Any) -> None:
    peft = add_command(imports, "peft", "import a LoRA adapter from PEFT", IMPORT_PEFT_EXAMPLE, run=_peft)
    peft.add_argument("source", metavar="SOURCE", help="a folder (or gs://...), or a Hugging Face id")
    peft.add_argument(
        "--name", default="", help="name of the adapter and head in the store (the exported name, or the folder's)"
    )
    peft.add_argument("--trunk", default="", help="the trunk that SOURCE was trained on (the base model in its config)")
    peft.add_argument(
        "--kind", choices=typing.get_args(TaskKind), help="the head's kind of task (inferred from the PEFT model class)"
    )
    peft.add_argument(
        "--labels", default="", metavar="NAME,NAME", help="label names, in output order (LABEL_0,LABEL_1,...)"
    )
    peft.add_argument(
        "--max_length",
        type=int,
        help="maximum tokens per row; longer rows are truncated (128, or the length that afjax exported)",
    )
    peft.add_argument("--no_head", action="store_true", help="leave out the head")


def _add_adapter_bert(imports: Any) -> None:
    summary = "import a checkpoint of Houlsby 2019's code as an adapter and a head"
    adapter = add_command(imports, "adapter-bert", summary, IMPORT_ADAPTER_BERT_EXAMPLE, run=_adapter_bert)
    adapter.add_argument("source", metavar="CHECKPOINT", help="a TensorFlow checkpoint, or its folder")
    adapter.add_argument("--trunk", required=True, help="the pretrained BERT: a folder (or gs://...) or an id")
    adapter.add_argument("--name", required=True, help="name of the adapter and head in the store")
    adapter.add_argument("--task", default="", help="name of the benchmark task (same as --name)")
    adapter.add_argument(
        "--labels", default="", metavar="NAME,NAME", help="label names, in output order (the task's, or 0,1,...)"
    )
    add_length_flag(adapter)


def _add_bert(imports: Any) -> None:
    bert = add_command(imports, "bert", "import Google's BERT checkpoint as a trunk", IMPORT_BERT_EXAMPLE, run=_bert)
    bert.add_argument("source", metavar="CHECKPOINT", help="bert_model.ckpt, or its folder")
    bert.add_argument("--output", required=True, help="the trunk's folder, or gs://...")
    bert.add_argument("--config", metavar="FILE", help="bert_config.json (next to the checkpoint)")
    bert.add_argument("--gelu", default="exact", choices=("exact", "tanh"), help='the meaning of "gelu" (exact)')
    _add_vocabulary_flags(bert, "the checkpoint")


def _add_bert_n_pals(imports: Any) -> None:
    summary = "import a checkpoint of Stickland & Murray 2019's code as a trunk, adapters and heads"
    pals = add_command(imports, "bert-n-pals", summary, IMPORT_BERT_N_PALS_EXAMPLE, run=_bert_n_pals)
    pals.add_argument("source", metavar="FILE", help="best_model.pth, or its tensors as .safetensors")
    pals.add_argument("--config", required=True, metavar="FILE", help="the config that FILE was trained with")
    pals.add_argument("--tasks", required=True, metavar="TASK,TASK", help="the tasks of FILE, in checkpoint order")
    pals.add_argument("--output", required=True, help="the trunk's folder, or gs://...")
    pals.add_argument("--name", default="", help="prefix for the tasks' names in the store: NAME-TASK")
    _add_vocabulary_flags(pals, "--config")
    add_length_flag(pals)


def _add_vocabulary_flags(parser: argparse.ArgumentParser, neighbor: str) -> None:
    parser.add_argument("--vocab", metavar="FILE", help=f"the tokenizer's vocab.txt (next to {neighbor})")
    parser.add_argument(
        "--case", choices=("cased", "uncased"), help="the tokenizer's casing (inferred from the vocabulary)"
    )


def _peft(arguments: argparse.Namespace) -> None:
    from afjax.interop.peft import PeftHead, import_peft
    from afjax.trunk.pretrained import load_trunk

    use_compilation_cache()
    of_head = flags(arguments, "kind", "labels", "max_length")
    if arguments.no_head and (given := [f"--{flag}" for flag, value in of_head.items() if value]):
        raise UserError(f"{', '.join(given)} describe the head, but --no_head skips it; leave one of them out.")
    head = PeftHead(labels=tuple(split_names(arguments.labels)), **flags(arguments, "kind", "max_length"))
    imported = import_peft(
        arguments.source,
        arguments.store,
        trunk=load_trunk(arguments.trunk) if arguments.trunk else None,
        head=None if arguments.no_head else head,
        **flags(arguments, "name", "overwrite"),
    )
    _print_imported(imported)


def _adapterhub(arguments: argparse.Namespace) -> None:
    from afjax.interop.adapterhub import import_adapterhub
    from afjax.trunk.pretrained import load_trunk

    use_compilation_cache()
    trunk = load_trunk(arguments.trunk) if arguments.trunk else None
    options = flags(arguments, "name", "overwrite")
    imported = import_adapterhub(arguments.source, arguments.store, trunk=trunk, **options)
    _print_imported(imported)


def _print_imported(imported: "Sequence[Imported]") -> None:
    """Prints one line per artifact, with its notes."""
    for artifact in imported:
        print("; ".join([f"{artifact.kind}/{artifact.name}", *artifact.notes]))


def _adapter_bert(arguments: argparse.Namespace) -> None:
    from afjax.interop.adapter_bert import import_adapter_bert

    model = import_adapter_bert(
        arguments.source,
        arguments.trunk,
        labels=tuple(split_names(arguments.labels)),
        **flags(arguments, "name", "task", "max_length"),
    )
    model.save(arguments.store, overwrite=arguments.overwrite)
    lines = _stored_lines(model, arguments.store)
    if model.trunk.config.activation != "gelu_tanh":
        lines.append(
            f"The authors' code also uses the tanh approximation of GELU in BERT; the trunk {arguments.trunk} does "
            "not, so logits will differ slightly. To create a matching trunk, use afjax import bert --gelu=tanh."
        )
    print("\n".join(lines))


def _bert(arguments: argparse.Namespace) -> None:
    from afjax.interop.google_bert import import_bert

    options = flags(arguments, "config", "vocab", "case", "gelu", "overwrite")
    trunk = import_bert(arguments.source, arguments.output, **options)
    layers = counted(trunk.config.num_layers, "layer")
    print(f"trunk {arguments.output}: {layers} of {trunk.config.hidden_size}, {trunk.sha256}")


def _bert_n_pals(arguments: argparse.Namespace) -> None:
    from afjax.interop.bert_n_pals import PalsFiles, import_bert_n_pals

    models = import_bert_n_pals(
        PalsFiles(checkpoint=arguments.source, **flags(arguments, "config", "vocab", "case")),
        tasks=tuple(split_names(arguments.tasks)),
        store_folder=arguments.store,
        **flags(arguments, "output", "name", "max_length", "overwrite"),
    )
    print(f"trunk {arguments.output}: {models[0].trunk.sha256}")
    print("\n".join(line for model in models for line in _stored_lines(model, arguments.store)))


def _stored_lines(model: "TaskModel", store: str) -> list[str]:
    """Returns one line per artifact of a stored model."""
    from afjax.model.saving import artifacts

    labels = f"labels {', '.join(model.labels)}" if model.labels else model.task.kind
    return [f"{store}/{kind}/{name}: {model.task.name}, {labels}" for kind, name in artifacts(model)]
