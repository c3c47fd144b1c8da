"""``afjax prune``: measures score and speed with fewer adapters per fusion layer."""

import argparse
import dataclasses
from typing import Any

from afjax.cli.curves import add_curve_flags, show_curve
from afjax.cli.evaluation_rows import is_other_file, rows_of
from afjax.cli.parsers import add_command, add_model_flags
from afjax.cli.stored_model import load_stored_model
from afjax.config.from_dict import check_value
from afjax.config.ranges import PositiveInt
from afjax.config.values import check_name
from afjax.display.terminal import print_line
from afjax.errors import UserError
from afjax.storage.writing import check_output

EXAMPLE = """\
example:
  afjax prune --store=runs/quickstart/store --trunk=minilm --fusion=target-fusion --head=target-fusion \\
      --source=builtin:target --output=prune.csv --keep=1 --name=target-pruned

In each layer, adapters are ranked by their mean fusion attention over train rows.
With --split=dev, the pruned fusion is stored with its own scores."""


def add(commands: Any) -> None:
    """Adds the command to the parser's commands."""
    parser = add_command(
        commands, "prune", "measure score and speed with fewer adapters per fusion layer", EXAMPLE, run=_run
    )
    add_model_flags(parser)
    add_curve_flags(parser)
    parser.add_argument(
        "--rank_rows", type=int, default=1000, help="number of train rows for ranking the adapters (1000)"
    )
    parser.add_argument("--keep", type=int, help="store a fusion with this many adapters per layer")
    parser.add_argument("--name", default="", help="name of the stored pruned fusion and its head")


def _run(arguments: argparse.Namespace) -> None:
    from afjax.adapters.kinds import adapter_layers
    from afjax.analysis.adapterdrop import most_used, prune_curve, rank_adapters
    from afjax.store import names

    keep, name, store, output = arguments.keep, arguments.name, arguments.store, arguments.output
    check_value(PositiveInt, arguments.rank_rows, "--rank_rows")
    if name and arguments.drop_layers:
        raise UserError(
            "--drop_layers cannot be stored with a pruned fusion; leave out --drop_layers, or --keep and --name."
        )
    if (keep is None) != (not name):
        raise UserError(
            "Pass --keep and --name together: the number of adapters to keep per layer, and the pruned fusion's name."
        )
    if name:
        check_name(name, "fusion")
        existing = [kind for kind in ("fusion", "heads") if name in names(store, kind)]
        if existing:
            raise UserError(f'The store {store} already has "{name}" in {" and ".join(existing)}; choose a new --name.')
    if output is not None:
        check_output(output)
    task_model = load_stored_model(arguments)
    data = {"source": arguments.source, "data_dir": arguments.data_dir}
    rows = rows_of(task_model, arguments.split, **data)
    ranking = data
    if is_other_file(task_model, arguments.source):
        # All rows of the file are scored, so adapters are ranked on the model's own train rows.
        if task_model.task.source or task_model.task.train:
            ranking = {}
        else:
            print_line(
                f"Note: The adapters are ranked on the rows of {arguments.source}, which are also scored, because the "
                "store does not record the train rows."
            )
    ranking_rows = rows_of(task_model, "train", **ranking).every(arguments.rank_rows)
    members = [member for member, _ in task_model.model.adapters]
    shares = rank_adapters(task_model, ranking_rows, batch_size=arguments.batch_size)
    # Raise an error before printing anything if the fusion cannot be pruned.
    task_model.with_kept(most_used(shares, 1))
    kept = None if keep is None else most_used(shares, keep)
    layers = adapter_layers(task_model.model.adapters[0][1], task_model.trunk.config.num_layers)
    for slot, slot_shares in shares.items():
        for layer, share in zip(layers, slot_shares, strict=True):
            ranked = sorted(zip(share, members, strict=True), reverse=True)
            print(f"{slot} {layer:2}  " + ", ".join(f"{member} {part:.3f}" for part, member in ranked))
    print()
    curve = prune_curve(task_model, rows, shares, batch_size=arguments.batch_size)
    points = show_curve(curve, task_model.task.main_metric, output)
    if kept is not None:
        # The curve begins with all adapters. A store only records dev scores.
        scores = points[len(members) - len(kept[0][0])].scores if arguments.split == "dev" else {}
        dataclasses.replace(task_model.with_kept(kept).renamed(name), metrics=scores).save(store)
        print(f"\nStored the fusion and head {name} in {store}, with {keep} of {len(members)} adapters per layer")
