"""Measures score and speed with dropped adapters or pruned fusions.

As in AdapterDrop (Rücklé 2021), adapters are dropped layer by layer, and fusions are pruned to the most used adapters
of each layer.
"""

import dataclasses
import timeit
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from afjax.adapters.kinds import adapter_layers
from afjax.data.splits import AnyRows
from afjax.data.tokenization import TokenizedRows
from afjax.errors import UserError
from afjax.model.task_model import TaskModel
from afjax.tasks.scores import split_scores

# Number of timed passes over the rows. The fastest one is reported.
TIMED_PASSES = 3


@dataclasses.dataclass(frozen=True)
class CurvePoint:
    """One point of a curve: a model without some of its adapters.

    Attributes:
      what: A description of the removed adapters.
      kept: The fraction of adapters that remain, over all layers.
      scores: Every metric on the rows.
      rows_per_second: Throughput of the fastest of three passes, excluding tokenization and compilation.
      flops_per_row: Floating-point operations per row of ``max_length`` tokens, or per choice of a multiple-choice row,
        as counted by XLA.
    """

    what: str
    kept: float
    scores: dict[str, float]
    rows_per_second: float
    flops_per_row: float


def layers_with_adapters(task_model: TaskModel) -> tuple[int, ...]:
    """Returns the layers whose adapters can be dropped.

    Raises:
      UserError: The model has no adapters in its layers.
    """
    if not task_model.model.adapters:
        raise UserError(f'The head "{task_model.model.head_name}" is used without adapters; none can be removed.')
    config = task_model.model.adapters[0][1]
    layers = adapter_layers(config, task_model.trunk.config.num_layers)
    if not layers:
        raise UserError(f"An adapter of the kind {config.kind} is on top of the encoder, so no layer has any.")
    return layers


def adapterdrop_curve(
    task_model: TaskModel, rows: AnyRows, *, from_top: bool = False, batch_size: int = 32
) -> Iterator[CurvePoint]:
    """Evaluates a model as adapters are dropped from more and more layers.

    Args:
      task_model: A model with an adapter or a fusion.
      rows: Labeled rows.
      from_top: Whether to start dropping at the last layer instead of the first.
      batch_size: Rows per step.

    Yields:
      One point for each number of dropped layers, from zero to all but one.

    Raises:
      UserError: The model has no adapters in its layers, or the rows' labels are missing or do not match the head's.
    """
    layers = layers_with_adapters(task_model)
    task_model.check_labels(rows)
    ordered, data = (layers[::-1] if from_top else layers), task_model.tokenized(rows)
    for number in range(len(layers)):
        smaller = task_model.without_layers(ordered[:number]) if number else task_model
        dropped = ", ".join(map(str, sorted(ordered[:number]))) or "none"
        yield _point(f"layers dropped: {dropped}", 1 - number / len(layers), smaller, rows, data, batch_size)


def rank_adapters(
    task_model: TaskModel, rows: AnyRows, *, batch_size: int = 32
) -> dict[str, Float[np.ndarray, "filled_layers num_adapters"]]:
    """Averages a fusion's attention to each adapter over rows and tokens.

    Returns:
      ``{slot: mean attention}``.

    Raises:
      UserError: The model has no fusion, or the fusion has been pruned.
    """
    if not task_model.model.fusion_name:
        raise UserError(f'The head "{task_model.model.head_name}" is used without a fusion: there is nothing to rank.')
    if task_model.model.fusion.kept is not None:
        raise UserError("This fusion has been pruned layer by layer; rank the adapters of the original fusion.")
    attention = task_model.predict_rows(rows, batch_size=batch_size, fusion_attention=True).fusion_attention
    return {slot: slot_attention.mean(0) for slot, slot_attention in attention.items()}


def most_used(
    shares: dict[str, Float[np.ndarray, "filled_layers num_adapters"]], num_kept: int
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Selects the adapters with the highest attention in each slot and layer.

    Returns:
      A value for ``FusionConfig.kept``: sorted adapter indices for each slot and layer.

    Raises:
      UserError: ``num_kept`` is less than one or more than the number of adapters.
    """
    num_adapters = next(iter(shares.values())).shape[-1]
    if not 0 < num_kept <= num_adapters:
        raise UserError(
            f"{num_kept} adapters cannot be kept; keep 1 to {num_adapters}, because the fusion has {num_adapters}."
        )
    return tuple(
        tuple(tuple(sorted(np.argsort(-layer, kind="stable")[:num_kept].tolist())) for layer in slot_shares)
        for slot_shares in shares.values()
    )


def prune_curve(
    task_model: TaskModel,
    rows: AnyRows,
    shares: dict[str, Float[np.ndarray, "filled_layers num_adapters"]],
    *,
    batch_size: int = 32,
) -> Iterator[CurvePoint]:
    """Evaluates a fusion as its layers are pruned to fewer of the most used adapters.

    Args:
      task_model: A model with a fusion of adapters that share one architecture.
      rows: Labeled rows.
      shares: The result of :func:`rank_adapters`, preferably on different rows.
      batch_size: Rows per step.

    Yields:
      One point for each number of kept adapters, from all to one.

    Raises:
      UserError: The fusion cannot be pruned, or the rows' labels are missing or do not match the head's.
    """
    task_model.check_labels(rows)
    num_adapters, data = next(iter(shares.values())).shape[-1], task_model.tokenized(rows)
    for num_kept in range(num_adapters, 0, -1):
        smaller = task_model if num_kept == num_adapters else task_model.with_kept(most_used(shares, num_kept))
        yield _point(f"adapters kept: {num_kept}", num_kept / num_adapters, smaller, rows, data, batch_size)


def _point(
    removed: str, kept: float, task_model: TaskModel, rows: AnyRows, data: TokenizedRows, batch_size: int
) -> CurvePoint:
    # Computing the scores also compiles the program, so the timed passes exclude compilation.
    scores = split_scores(task_model.logits(data, batch_size=batch_size), data, task_model.task)
    seconds = min(timeit.repeat(lambda: task_model.logits(data, batch_size=batch_size), number=1, repeat=TIMED_PASSES))
    return CurvePoint(removed, kept, scores, len(rows) / seconds, task_model.flops_per_row())
