"""Averages the outputs or the parameters of trained adapters."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np

from afjax.adapters.kinds import kind_of
from afjax.config.adapters import Adapter
from afjax.errors import UserError
from afjax.trees import Tree, shape_difference

# When parameters are averaged, the weights must sum to 1 within this tolerance.
TOLERANCE = 1e-6


def average_adapters(
    adapters: Sequence[tuple[Adapter, Tree]],
    weights: Sequence[float] | None = None,
    *,
    of: Literal["outputs", "parameters"] = "outputs",
) -> tuple[Adapter, Tree]:
    """Averages adapters of one kind, without training.

    With ``of="outputs"``, the new adapter computes, in each layer, exactly the weighted sum of the adapters' outputs
    for the same input, before the residual and LayerNorm. For bottlenecks and LoRA, its size is the sum of the
    adapters' sizes. A LoRA adapter's rank is at most the hidden size.

    With ``of="parameters"``, each parameter is the weighted mean of the adapters' parameters, as in AdapterSoup
    (Chronopoulou et al. 2023), so the size does not change. This only works for adapters that started from the same
    initialization, because the units of independently initialized adapters do not correspond to each other. Adapters
    with the same name and seed are initialized identically.

    Args:
      adapters: ``(architecture, tree)`` pairs, as returned by :func:`afjax.load_adapter`. All adapters must have been
        trained on the same trunk.
      weights: One number per adapter. Defaults to a uniform average. Weights for outputs can be any finite numbers:
        ``[1.0, -0.5]`` subtracts half of the second adapter's output, similar to task arithmetic (Ilharco et al. 2023),
        which subtracts model parameters. Weights for parameters must sum to 1.
      of: What to average. ``outputs`` supports LoRA, (IA)³, and bottlenecks that do not have their own LayerNorms;
        ``parameters`` supports every kind.

    Returns:
      The new adapter's architecture and tree, with NumPy leaves, for :meth:`afjax.TaskModel.with_adapter`.

    Raises:
      UserError: ``adapters`` is empty; the adapters' kinds, trunks or architectures do not match; no single adapter of
        their kind can compute the average; or ``weights`` or ``of`` is invalid.

    Example:
      >>> import numpy as np
      >>> from afjax import AdapterConfig, average_adapters
      >>> def constant(value):
      ...     down = {"kernel": np.full((2, 8, 4), value), "bias": np.zeros((2, 4))}
      ...     up = {"kernel": np.full((2, 4, 8), value), "bias": np.zeros((2, 8))}
      ...     return AdapterConfig(size=4), {"ffn": {"down": down, "up": up}}
      >>> config, tree = average_adapters([constant(1.0), constant(3.0)])
      >>> config.size, tree["ffn"]["down"]["kernel"].shape
      (8, (2, 8, 8))
      >>> config, tree = average_adapters([constant(1.0), constant(3.0)], of="parameters")
      >>> config.size, tree["ffn"]["down"]["kernel"][0, 0, 0].item()
      (4, 2.0)
    """
    if not adapters:
        raise UserError("There are no adapters to average; pass at least one.")
    if not all(isinstance(adapter, tuple) and len(adapter) == 2 for adapter in adapters):
        raise UserError("Pass a sequence of adapters, such as [load_adapter(...), load_adapter(...)].")
    numbers = _check_weights(weights, len(adapters), of)
    configs, trees = [config for config, _ in adapters], [jax.tree.map(np.asarray, tree) for _, tree in adapters]
    if len({config.kind for config in configs}) > 1:
        raise UserError(
            f"Adapters of different kinds ({', '.join(config.kind for config in configs)}) cannot be averaged; all "
            "must be of the same kind."
        )
    if of == "parameters":
        return configs[0], _mean_parameters(configs, trees, numbers)
    weighted_sum = kind_of(configs[0]).weighted_sum
    if weighted_sum is None:
        raise UserError(
            f"No single adapter can compute the average output of adapters of the kind {configs[0].kind}; use "
            'of="parameters".'
        )
    return weighted_sum(configs, trees, numbers)


def _check_weights(weights: Sequence[float] | None, count: int, of: str) -> list[float]:
    if of not in ("outputs", "parameters"):
        raise UserError(f'of is "{of}"; it must be "outputs" or "parameters".')
    if weights is None:
        return [1 / count] * count
    try:
        numbers = [float(weight) for weight in weights]
    except (TypeError, ValueError):
        raise UserError(f"weights is {weights!r}; it must have one number for each of the {count} adapters.") from None
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        raise UserError(f"weights is {numbers}; it must have one finite number for each of the {count} adapters.")
    if of == "parameters" and abs(math.fsum(numbers) - 1) > TOLERANCE:
        raise UserError(
            f'weights is {numbers}, which sums to {math.fsum(numbers):g}; with of="parameters", the sum must be 1.'
        )
    return numbers


def _mean_parameters(configs: Sequence[Adapter], trees: Sequence[Tree], weights: Sequence[float]) -> Tree:
    if any(config != configs[0] for config in configs):
        raise UserError(
            f"Parameters can only be averaged if all adapters have the same architecture; these differ: "
            f"{', '.join(map(repr, dict.fromkeys(configs)))}."
        )
    for tree in trees[1:]:
        if difference := shape_difference(tree, trees[0]):
            raise UserError(
                f"An adapter's shapes differ from the first adapter's: {difference}. Only average adapters that were "
                "trained on the same trunk."
            )

    def mean(*leaves: Any) -> Any:
        return sum(weight * leaf for weight, leaf in zip(weights, leaves, strict=True)).astype(leaves[0].dtype)

    return jax.tree.map(mean, *trees)
