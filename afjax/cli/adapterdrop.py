"""``afjax adapterdrop`` and ``afjax prune``: what score and speed are with less of a stored model."""

import sys
from collections.abc import Iterable
from pathlib import Path

from afjax.adapters.kinds import adapter_layers
from afjax.analysis.adapterdrop import Point, adapterdrop_curve, most_used, prune_curve, rank_adapters
from afjax.config.values import check_name
from afjax.errors import UserError
from afjax.model.task_model import TaskModel
from afjax.storage.writing import check_output, write_output
from afjax.store import names
from afjax.tasks.load import Rows


def drop(task_model: TaskModel, rows: Rows, *, from_top: bool, batch_size: int, output: Path | None) -> None:
    """Prints AdapterDrop's curve, and writes it as CSV."""
    if output is not None:
        check_output(output)
    points = adapterdrop_curve(task_model, rows, from_top=from_top, batch_size=batch_size)
    _show(points, task_model.task.main_metric, output)


def prune(
    task_model: TaskModel,
    rows: Rows,
    ranking_rows: Rows,
    *,
    batch_size: int,
    output: Path | None,
    keep: int | None,
    name: str,
    store: str,
) -> None:
    """Prints each layer's ranking and the curve, writes it as CSV, and stores the pruned fusion that was asked for.

    Raises:
      UserError: A number without a name or a name without a number, and all that ``prune_curve`` raises.
    """
    if (keep is None) != (not name):
        raise UserError(
            "Give --keep and --name together: how many adapters each layer keeps, and the pruned fusion's name."
        )
    if name:
        check_name(name, "fusion")
        taken = [kind for kind in ("fusion", "heads") if name in names(store, kind)]
        if taken:
            raise UserError(f'The store {store} already has "{name}" in {" and ".join(taken)}; give another --name.')
    if output is not None:
        check_output(output)
    members = [member for member, _ in task_model.model.adapters]
    shares = rank_adapters(task_model, ranking_rows, batch_size=batch_size)
    # Refused before anything is printed, where it cannot be.
    task_model.with_kept(most_used(shares, 1))
    kept = None if keep is None else most_used(shares, keep)
    layers = adapter_layers(task_model.model.adapters[0][1], task_model.trunk.config.num_layers)
    for slot, of_slot in shares.items():
        for layer, share in zip(layers, of_slot, strict=True):
            ranked = sorted(zip(share, members, strict=True), reverse=True)
            print(f"{slot} {layer:2}  " + ", ".join(f"{member} {part:.3f}" for part, member in ranked))
    print()
    _show(prune_curve(task_model, rows, shares, batch_size=batch_size), task_model.task.main_metric, output)
    if kept is not None:
        task_model.with_kept(kept).renamed(name).save(store)
        print(f"\nStored the fusion and head {name}, {keep} of {len(members)} adapters a layer, in {store}")


def _show(points: Iterable[Point], metric: str, output: Path | None) -> None:
    lines, first = [f"what,kept,{metric},rows_per_second,flops_per_row"], 0.0
    for point in points:
        if not first:
            print(f"{'':40} {'kept':>6} {metric:>10} {'rows/s':>10} {'speed':>7} {'MFLOP/row':>10}")
            first = point.rows_per_second
        score, speed, flops = point.scores[metric], point.rows_per_second, point.flops_per_row
        shown = f"{point.what:40} {point.kept:6.0%} {score:10.4f} {speed:10.1f} {speed / first:6.2f}x"
        print(f"{shown} {flops / 1e6:10.1f}", flush=True)
        lines.append(f'"{point.what}",{point.kept:.4f},{score:.6f},{speed:.3f},{flops:.0f}')
    if output is not None:
        write_output(output, "\n".join(lines) + "\n")
        print(f"Written to {output}", file=sys.stderr)
