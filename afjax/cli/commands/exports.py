"""``afjax export``: exports stored models for other programs."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from afjax.cli.parsers import add_command, add_group, add_store_flag, add_stored_model_flags, flags, local_file
from afjax.cli.stored_model import load_stored_model
from afjax.config.flags import split_names

EXPORT_ADAPTERHUB_EXAMPLE = """\
examples:
  afjax export adapterhub entail --store=runs/quickstart/store --output=entail
  afjax export adapterhub target-fusion --store=runs/quickstart/store --output=target-fusion --weights=bin

An adapter is exported with its head, and a fusion also with its adapters. To load them in Python:
  model.load_adapter("entail", use_safetensors=True)
  model.load_adapter_setup("target-fusion", set_active=True)"""

EXPORT_PEFT_EXAMPLE = """\
example:
  afjax export peft reviews --store=runs/reviews/store --output=reviews

The adapter is exported with its head. To load it in Python:
  base = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=2)
  model = PeftModel.from_pretrained(base, "reviews")"""

STABLEHLO_EXAMPLE = """\
example:
  afjax export stablehlo --store=runs/quickstart/store --trunk=minilm --fusion=target-fusion --head=target-fusion \\
      --output=target.stablehlo --platforms=cpu,tpu

The file contains the weights and the program. Its inputs are tokens, types and mask, with any batch size and any length
up to --max_length. Its outputs are logits. FILE.json describes the inputs and outputs, and how to run the
file with only JAX."""


def add(commands: Any) -> None:
    """Adds the commands to the parser's commands."""
    exports = add_group(commands, "export", "export stored models for other programs")
    adapterhub = add_command(
        exports, "adapterhub", "export an artifact to AdapterHub's library", EXPORT_ADAPTERHUB_EXAMPLE, run=_adapterhub
    )
    adapterhub.add_argument("name", metavar="NAME", help="name of an adapter, a fusion or a head")
    add_store_flag(adapterhub)
    adapterhub.add_argument("--output", required=True, type=local_file, help="the folder to create")
    adapterhub.add_argument(
        "--kind", choices=("adapter", "fusion", "head"), help="the artifact's kind, if several share the name"
    )
    adapterhub.add_argument(
        "--weights",
        default="safetensors",
        choices=("safetensors", "bin"),
        help="format of the weights; bin needs PyTorch (safetensors)",
    )
    adapterhub.add_argument("--num_choices", type=int, help="choices per row, if the head does not record it")
    _add_head_flags(adapterhub, "adapter or fusion")

    peft = add_command(exports, "peft", "export a LoRA adapter to PEFT", EXPORT_PEFT_EXAMPLE, run=_peft)
    peft.add_argument("name", metavar="NAME", help="name of a LoRA adapter")
    add_store_flag(peft)
    peft.add_argument("--output", required=True, type=local_file, help="the folder to create")
    _add_head_flags(peft, "adapter")

    stablehlo = add_command(
        exports,
        "stablehlo",
        "export a model as one file that JAX can run without afjax",
        STABLEHLO_EXAMPLE,
        run=_stablehlo,
    )
    add_stored_model_flags(stablehlo)
    stablehlo.add_argument("--output", required=True, metavar="FILE", help="the output file; FILE.json describes it")
    stablehlo.add_argument(
        "--max_length", type=int, help="maximum tokens per row; longer rows are refused (as in training)"
    )
    stablehlo.add_argument(
        "--platforms", default="cpu,cuda,tpu", metavar="NAME,...", help="platforms to export for (cpu,cuda,tpu)"
    )


def _add_head_flags(parser: argparse.ArgumentParser, trained_with: str) -> None:
    heads = parser.add_mutually_exclusive_group()
    heads.add_argument(
        "--head", default="", metavar="NAME", help=f"the head to export (the one trained with the {trained_with})"
    )
    heads.add_argument("--no_head", action="store_true", help=f"leave out the head of the {trained_with}")


def _head(arguments: argparse.Namespace) -> str | None:
    """Returns the head to export. Empty for the artifact's own head, None for no head."""
    return None if arguments.no_head else arguments.head


def _adapterhub(arguments: argparse.Namespace) -> None:
    from afjax.interop.adapterhub import export_adapterhub

    options = flags(arguments, "kind", "weights", "num_choices")
    written = export_adapterhub(arguments.store, arguments.name, arguments.output, head=_head(arguments), **options)
    _print_parts(written)


def _peft(arguments: argparse.Namespace) -> None:
    from afjax.interop.peft import export_peft

    written = export_peft(arguments.store, arguments.name, arguments.output, head=_head(arguments))
    _print_parts(written)


def _print_parts(written: Sequence[tuple[str, Path]]) -> None:
    for description, path in written:
        print(f"{path}: {description}")


def _stablehlo(arguments: argparse.Namespace) -> None:
    from afjax.interop.stablehlo import check_platforms, description_path, export_stablehlo

    platforms = check_platforms(split_names(arguments.platforms))
    description = export_stablehlo(
        load_stored_model(arguments), arguments.output, max_length=arguments.max_length, platforms=platforms
    )
    size, names = description["file"]["bytes"] / 1e6, ", ".join(description["platforms"])
    print(f"{arguments.output}: {size:.1f} MB, for {names}; {description_path(arguments.output)} says how to run it.")
