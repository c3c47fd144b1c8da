"""Runs a slot of the encoder that holds a fusion."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from afjax.adapters.bottleneck import adapter_input, adapter_output
from afjax.adapters.kinds import slot_kind
from afjax.adapters.placement import add_output, plain_output
from afjax.config.adapters import Adapter, AdapterConfig, BesideLayers
from afjax.config.fusion import FusionConfig
from afjax.fusion.attention import ScoreOptions
from afjax.fusion.bank import bank_layout, inner_activations
from afjax.fusion.checks import is_factored
from afjax.fusion.factored import fuse_outputs, fuse_units
from afjax.fusion.folded import FoldedMatrices, fuse_folded
from afjax.nn.layers import split_key
from afjax.trees import Tree
from afjax.trunk.slots import Sublayer


def fused_slot(
    params: Tree,
    configs: Sequence[Adapter],
    config: FusionConfig,
    sublayer: Sublayer,
    *,
    key: PRNGKeyArray | None,
    drawn: Bool[Array, "num_adapters"] | None = None,
) -> tuple[Float[Array, "batch queries hidden"], Float[Array, "batch queries num_adapters"]]:
    """Runs a slot that holds a fusion.

    Args:
      params: One layer's slot of a bank, including leaves shared by all layers, and ``"fusion"``: the layer's fusion
        or its :class:`FoldedMatrices`.
      configs: The adapters' architectures, in order.
      config: The fusion's architecture.
      sublayer: The slot's inputs.
      key: The dropout key, or None for no dropout.
      drawn: bool ``[N]``, the adapters to fuse in this step, or None for all.

    Returns:
      The next hidden state ``[batch, queries, d]``, and the attention over adapters ``[batch, queries, N]``.
    """
    rate = sublayer.attention_dropout if config.dropout is None else config.dropout
    first = configs[0]
    if isinstance(first, AdapterConfig):
        bottlenecks = [member for member in configs if isinstance(member, AdapterConfig)]
        z, skip = adapter_input(first, sublayer)
        layout = bank_layout(bottlenecks, z.shape[-1])
        scores = ScoreOptions(temperature=config.temperature, dropout_rate=rate, key=key, drawn=drawn)
        inner = inner_activations(params["down"], z, layout)
        output, attention = _mix(params, z, inner, layout.sizes, scores)
        return adapter_output(first, output + skip, sublayer), attention
    scores_key, *keys = split_key(key, 1 + len(configs))
    scores = ScoreOptions(temperature=config.temperature, dropout_rate=rate, key=scores_key, drawn=drawn)
    assert isinstance(first, BesideLayers), "check_fusible rejects modules on top"
    z, factored, parts = plain_output(sublayer), is_factored(configs), []
    for number, (member, member_key) in enumerate(zip(configs, keys, strict=True)):
        assert isinstance(member, BesideLayers), "check_fusible rejects mixed kinds"
        kind = slot_kind(member)
        compute = kind.units if factored else kind.output
        assert compute is not None, "modules have outputs, and units if their output is linear"
        parts.append(compute(params["members"][str(number)], member, sublayer, member_key))
    if factored:
        sizes = tuple(part.shape[-1] for part in parts)
        output, attention = _mix(params, z, jnp.concatenate(parts, -1), sizes, scores)
    else:
        output, attention = fuse_outputs(params["fusion"], jnp.stack(parts, -2), z, options=scores)
    return add_output(first, output, sublayer), attention


def _mix(
    params: Tree,
    z: Float[Array, "*batch hidden"],
    inner: Float[Array, "*batch units"],
    sizes: tuple[int, ...],
    options: ScoreOptions,
) -> tuple[Float[Array, "*batch hidden"], Float[Array, "*batch num_adapters"]]:
    """Applies :func:`fuse_units`, or :func:`fuse_folded` if the fusion is folded."""
    # Flatten the tokens into one axis. With three axes, the TPU compiler changes layouts between the matmuls.
    leading, z, inner = z.shape[:-1], z.reshape(-1, z.shape[-1]), inner.reshape(-1, inner.shape[-1])
    fusion = params["fusion"]
    if isinstance(fusion, FoldedMatrices):
        output, attention = fuse_folded(fusion, z, inner, sizes=sizes, options=options)
    else:
        output, attention = fuse_units(fusion, params["up"], z, inner, sizes=sizes, options=options)
    return output.reshape(*leading, -1), attention.reshape(*leading, -1)
