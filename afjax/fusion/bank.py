"""The bank: a fusion's adapters, concatenated.

One matmul computes the inner activations of all adapters.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from afjax.adapters.bottleneck import NEW_NORM_EPSILON
from afjax.config.adapters import Adapter, AdapterConfig
from afjax.fusion.checks import is_factored
from afjax.nn.layers import ACTIVATIONS, dense, normalize
from afjax.trees import AnyArray, Tree
from afjax.trunk.layers import for_every_layer


@dataclasses.dataclass(frozen=True)
class BankLayout:
    """The static layout of a bank.

    Attributes:
      sizes: The adapters' bottleneck sizes, in order.
      runs: ``(number of inner units, activation, whether a LayerNorm comes first)`` for each run. A run is a sequence
        of consecutive adapters that share an activation and either all have or all lack this LayerNorm. Each run takes
        one matmul.
    """

    sizes: tuple[int, ...]
    runs: tuple[tuple[int, str, bool], ...]


def bank_layout(configs: Sequence[AdapterConfig], hidden_size: int) -> BankLayout:
    """Computes the layout of a bank from its adapters, in order."""
    sizes = tuple(config.bottleneck_size(hidden_size) for config in configs)
    kinds = [(config.activation, config.new_layer_norm in ("before", "both")) for config in configs]
    runs = []
    for kind, members in itertools.groupby(range(len(configs)), key=lambda index: kinds[index]):
        runs.append((sum(sizes[index] for index in members), *kind))
    return BankLayout(sizes, tuple(runs))


def make_bank(adapters: Sequence[Tree], configs: Sequence[Adapter]) -> tuple[Tree, Tree]:
    """Concatenates adapters, slot by slot.

    Returns:
      Two trees ``{slot: tree}``: leaves stacked over the layers, and leaves shared by all layers.

      For bottlenecks, a slot's tree is
      ``{"down": {"kernel" [d, R], "bias" [R]}, "up": {"kernel" [R, d], "bias" [N, d]}}`` with a leading axis for the
      layers, where R is the sum of the N adapters' bottleneck sizes. The scale and bias of a LayerNorm before an
      adapter are folded into the down-projection (the normalization itself is not), and the constant scaling is folded
      into the up-projection.

      For modules that act on an entire layer, a slot's tree is ``{"members": {"0": tree, "1": tree, ...}, "up"}``,
      where ``up`` holds their concatenated decoders. ``up`` is missing if the fusion has no factored form.
    """
    bottlenecks = [config for config in configs if isinstance(config, AdapterConfig)]
    if bottlenecks:
        assert len(bottlenecks) == len(configs), "check_fusible rejects mixed kinds"
        slots = bottlenecks[0].slots
        return {slot: slot_bank([adapter[slot] for adapter in adapters], bottlenecks) for slot in slots}, {}
    numbered = {str(number): tree for number, tree in enumerate(adapters)}
    stacked: Tree = {"members": {number: tree["ffn"] for number, tree in numbered.items()}}
    shared: Tree = {"members": {number: tree["shared"] for number, tree in numbered.items() if "shared" in tree}}
    if is_factored(configs):
        all_shared = all("shared" in tree for tree in adapters)
        depth = jax.tree.leaves(stacked)[0].shape[0]
        decoders = [
            tree["ffn"]["decode"]
            if "shared" not in tree
            else tree["shared"]["decode"]
            if all_shared
            else for_every_layer(tree["shared"]["decode"], depth)
            for tree in adapters
        ]
        up = {
            "kernel": jnp.concatenate([decoder["kernel"] for decoder in decoders], -2),
            "bias": jnp.stack([decoder["bias"] for decoder in decoders], -2),
        }
        (shared if all_shared else stacked)["up"] = up
    return {"ffn": stacked}, {"ffn": shared}


def slot_bank(members: Sequence[Tree], configs: Sequence[AdapterConfig]) -> Tree:
    """Concatenates the bottlenecks in one slot, for one layer or stacked over layers."""
    kernels, biases, ups, constants = [], [], [], []
    for params, config in zip(members, configs, strict=True):
        kernel, bias = params["down"]["kernel"], params["down"]["bias"]
        if "norm_before" in params:
            norm = params["norm_before"]
            bias = bias + jnp.einsum("...d,...dr->...r", norm["bias"], kernel)
            kernel = norm["scale"][..., None] * kernel
        kernels.append(kernel)
        biases.append(bias)
        ups.append(params["up"]["kernel"] * config.scaling)
        constants.append(params["up"]["bias"] * config.scaling)
    return {
        "down": {"kernel": jnp.concatenate(kernels, -1), "bias": jnp.concatenate(biases, -1)},
        "up": {"kernel": jnp.concatenate(ups, -2), "bias": jnp.stack(constants, -2)},
    }


def inner_activations(
    down: Tree, z: Float[AnyArray, "*batch hidden"], layout: BankLayout
) -> Float[Array, "*batch units"]:
    """Computes ``activation(down(z))`` for all adapters, concatenated."""
    inputs = {norm: normalize(z, NEW_NORM_EPSILON) if norm else z for _, _, norm in layout.runs}
    parts, begin = [], 0
    for units, activation, norm in layout.runs:
        columns = slice(begin, begin + units)
        part = dense({"kernel": down["kernel"][:, columns], "bias": down["bias"][columns]}, inputs[norm])
        parts.append(ACTIVATIONS[activation](part))
        begin += units
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, -1)
