"""``afjax plot activations``: plots the attention of fusions to their adapters."""

import argparse
from typing import Any

from afjax.cli.compilation_cache import use_compilation_cache
from afjax.cli.evaluation_rows import rows_of
from afjax.cli.parsers import (
    add_batch_flag,
    add_command,
    add_mismatch_flag,
    add_split_flag,
    add_store_flag,
    add_trunk_flag,
    local_file,
    print_written,
    split_numbers,
)
from afjax.cli.stored_model import load_recorded_trunk
from afjax.config.flags import split_names
from afjax.display.terminal import print_line
from afjax.errors import UserError

EXAMPLE = """\
examples:
  afjax plot activations --store=runs/quickstart/store --trunk=minilm --fusion=target-fusion --by_label \\
      --output=figures/target
  afjax plot activations --store=store --trunk=minilm --fusion=rte-fusion,mrpc-fusion --data_dir=DATA --layers=0,3,5 \\
      --output=figures/targets
  afjax plot activations --store=runs/quickstart/store --trunk=minilm --fusion=target-fusion \\
      --text="All cats sleep." --text_b="Some cats sleep." --output=figures/sentence

The heatmap has layers x adapters for one fusion, fusions x adapters (one heatmap per layer) for several, and adapters x
tokens for a text. The command writes OUTPUT.png, OUTPUT.svg and OUTPUT.csv."""


def add(plots: Any) -> None:
    """Adds the command to the group ``afjax plot``."""
    summary = "plot fusions' attention to their adapters, over a split or per token of a text"
    parser = add_command(plots, "activations", summary, EXAMPLE, run=_run)
    add_store_flag(parser)
    add_trunk_flag(parser)
    parser.add_argument("--fusion", required=True, metavar="NAME,NAME", help="one fusion, or one per target task")
    parser.add_argument("--head", default="", metavar="NAME,NAME", help="the fusions' heads (those trained with them)")
    add_mismatch_flag(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--source", metavar="SOURCE,SOURCE", help="the rows for each fusion, as in afjax eval (its own task's)"
    )
    source.add_argument("--data_dir", help="the folder with all tasks' folders; each head's task is found by name")
    source.add_argument("--text", help="a single text instead of a split")
    parser.add_argument("--text_b", help="the second text of a pair")
    add_split_flag(parser, "use")
    parser.add_argument("--layers", default="", metavar="0,1", help="the layers to show (all)")
    parser.add_argument("--by_label", action="store_true", help="also plot each label's rows separately")
    add_batch_flag(parser)
    parser.add_argument(
        "--output", required=True, type=local_file, metavar="NAME", help="output path, without a suffix"
    )


def _run(arguments: argparse.Namespace) -> None:
    from afjax import store
    from afjax.analysis.activation_figures import check_layers, draw_activations, draw_token_activations
    from afjax.analysis.activations import mean_activations, token_activations
    from afjax.analysis.figures import check_output
    from afjax.model.loading import load_task_model
    from afjax.model.stored import recorded_head

    use_compilation_cache()
    check_output(arguments.output)
    fusions = split_names(arguments.fusion)
    if not fusions:
        raise UserError("--fusion is empty; name a fusion.")
    for name in fusions:
        if fusions.count(name) > 1:
            raise UserError(f'--fusion lists "{name}" twice; list each fusion once.')
    heads = _one_per_fusion(arguments.head, fusions, "--head")
    sources = _one_per_fusion(arguments.source or "", fusions, "--source")
    layers = split_numbers(arguments.layers, "--layers")
    if arguments.text is None and arguments.text_b is not None:
        raise UserError("--text_b is the second text of a pair; pass --text too.")
    if arguments.text is not None and (len(fusions) > 1 or arguments.by_label):
        raise UserError("--text works with a single --fusion and without --by_label, because a text has no label.")
    for flag, text in (("--text", arguments.text), ("--text_b", arguments.text_b)):
        if text is not None and not text.strip():
            raise UserError(f"{flag} is blank; pass a text whose tokens the figure can show.")
    heads = [
        head or recorded_head(arguments.store, "fusion", fusion) for head, fusion in zip(heads, fusions, strict=True)
    ]
    for name in fusions:
        # Check the fusions before loading heads, so that the error for a wrong name is about the fusion.
        store.read_manifest(arguments.store, "fusion", name)
    trunk = load_recorded_trunk(arguments.trunk, arguments.store, "fusion", fusions[0])
    check_layers(layers, trunk.config.num_layers)
    models = [
        load_task_model(arguments.store, trunk, head=head, fusion=fusion, allow_mismatch=arguments.allow_mismatch)
        for head, fusion in zip(heads, fusions, strict=True)
    ]
    if arguments.text is not None:
        activations = token_activations(models[0], arguments.text, arguments.text_b)
        print_written(draw_token_activations(activations, arguments.output, layers=layers))
        if len(activations.tokens) < activations.num_tokens:
            counts = f"{len(activations.tokens)} of its {activations.num_tokens}"
            print_line(f"The text was truncated to {counts} tokens, as in training.")
        return
    splits = [
        rows_of(model, arguments.split, source=source, data_dir=arguments.data_dir)
        for model, source in zip(models, sources, strict=True)
    ]
    means = [
        mean_activations(model, rows, by_label=arguments.by_label, batch_size=arguments.batch_size)
        for model, rows in zip(models, splits, strict=True)
    ]
    print_written(draw_activations(means, arguments.output, layers=layers))


def _one_per_fusion(given: str, fusions: list[str], flag: str) -> list[str]:
    """Parses a flag with one entry per fusion. Without the flag, the entries are empty."""
    names = split_names(given)
    if names and len(names) != len(fusions):
        raise UserError(
            f"{flag} lists {len(names)} entries and --fusion lists {len(fusions)}; list one entry per fusion, in order."
        )
    return names or [""] * len(fusions)
