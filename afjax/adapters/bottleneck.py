"""Bottleneck adapters (Houlsby 2019; Pfeiffer 2021, section 3.1 and appendix A.2).

An adapter's tree has the leaves below. Leaves under a slot are stacked over the adapted layers. Leaves under
``layer_norms`` have the same shapes as the trunk's LayerNorms and cover all of its layers::

    <slot>/down/{kernel [d, r], bias [r]}        slot: attention and/or ffn
    <slot>/up/{kernel [r, d], bias [d]}
    <slot>/norm_before/{scale, bias}             only with a new LayerNorm before the adapter
    <slot>/norm_after/{scale, bias}              only with a new LayerNorm after the adapter
    layer_norms/{embeddings, attention, ffn}/{scale, bias}   only if the adapter trains copies of the trunk's LayerNorms
    layer_norms/final/{scale, bias}              with these copies, if a LayerNorm follows the trunk's top layer
    layer_norms/relative/{scale, bias}           with these copies, if the trunk has disentangled attention
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from afjax.adapters.checks import check_equal, check_same_trunk
from afjax.adapters.kind import SlotKind, Widening, chain_counter
from afjax.config.adapters import AdapterConfig
from afjax.errors import UserError
from afjax.nn.layers import ACTIVATIONS, check_dense, dense, layer_norm
from afjax.trees import AnyArray, Tree, named_key, pad_axis
from afjax.trunk.config import TrunkConfig
from afjax.trunk.slots import Sublayer

# Epsilon of the adapters' own LayerNorms, as in the reference library.
NEW_NORM_EPSILON = 1e-5


def init(key: PRNGKeyArray, config: AdapterConfig, trunk: TrunkConfig, depth: int) -> Tree:
    """Initializes an adapter's parameters, except ``layer_norms``.

    See :class:`afjax.adapters.kind.Init`. The ``layer_norms`` start as copies of the trunk's LayerNorms.
    """
    hidden_size = trunk.hidden_size
    size = config.bottleneck_size(hidden_size)

    def kernel(slot: str, name: str, shape: tuple[int, int]) -> Array:
        leaf_key = named_key(key, slot, name)
        if config.init == "truncated_normal":
            return config.init_scale * jax.random.truncated_normal(leaf_key, -2.0, 2.0, (depth, *shape))
        return config.init_scale * jax.random.normal(leaf_key, (depth, *shape))

    def norm() -> Tree:
        return {"scale": jnp.ones((depth, hidden_size)), "bias": jnp.zeros((depth, hidden_size))}

    tree: Tree = {}
    for slot in config.slots:
        tree[slot] = {
            "down": {"kernel": kernel(slot, "down", (hidden_size, size)), "bias": jnp.zeros((depth, size))},
            "up": {"kernel": kernel(slot, "up", (size, hidden_size)), "bias": jnp.zeros((depth, hidden_size))},
        }
        if config.new_layer_norm in ("before", "both"):
            tree[slot]["norm_before"] = norm()
        if config.new_layer_norm in ("after", "both"):
            tree[slot]["norm_after"] = norm()
    return tree


def check_bottleneck(params: Tree, hidden_size: int) -> None:
    """Raises UserError unless ``params`` belong to one bottleneck of this hidden size.

    These are the parameters for one slot in one layer.
    """
    check_dense(params, "down", hidden_size)
    check_dense(params, "up", params["down"]["kernel"].shape[1], hidden_size)


def bottleneck(
    params: Tree, x: Float[AnyArray, "*batch hidden"], config: AdapterConfig
) -> Float[Array, "*batch hidden"]:
    """Applies a bottleneck adapter: ``scaling * up(activation(down(x)))``.

    The output does not include the residual or a LayerNorm after the adapter. This is a pure function, so it can be
    used without an afjax model.

    Args:
      params: One layer's slot of an adapter, as returned by :func:`afjax.layer_params`:
        ``down/{kernel [hidden_size, size], bias [size]}``, ``up/{kernel [size, hidden_size], bias [hidden_size]}`` and
        optionally ``norm_before/{scale, bias}``, each ``[hidden_size]``.
      x: The adapter's input ``[..., hidden_size]``, in any float dtype. The matmuls use the same dtype.
      config: The architecture. Only the activation and the scaling are used.

    Returns:
      ``[..., hidden_size]``, in the dtype of ``x``.

    Raises:
      UserError: The parameters belong to several layers, to a different module or to a different hidden size, or
        ``x`` has an integer dtype.

    Example:
      >>> import jax.numpy as jnp
      >>> from afjax import AdapterConfig, bottleneck
      >>> down = {"kernel": jnp.ones((8, 2)), "bias": jnp.zeros(2)}
      >>> up = {"kernel": jnp.ones((2, 8)), "bias": jnp.zeros(8)}
      >>> output = bottleneck({"down": down, "up": up}, jnp.ones((1, 3, 8)), AdapterConfig(size=2))
      >>> output.shape, output[0, 0, 0].item()
      ((1, 3, 8), 16.0)

    Reference:
      Houlsby et al. 2019, *Parameter-Efficient Transfer Learning for NLP*, section 2.1; Pfeiffer et al. 2021,
      *AdapterFusion*, section 3.1.
    """
    check_bottleneck(params, x.shape[-1])
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise UserError(f"x has the dtype {x.dtype}, which would round the weights; convert it to a float dtype.")
    if "norm_before" in params:
        x = layer_norm(params["norm_before"], x, NEW_NORM_EPSILON)
    inner = ACTIVATIONS[config.activation](dense(params["down"], x))
    output = dense(params["up"], inner)
    return output if config.scaling == 1.0 else output * config.scaling


def adapter_input(
    config: AdapterConfig, sublayer: Sublayer
) -> tuple[Float[Array, "batch queries hidden"], Float[Array, "batch queries hidden"]]:
    """Computes the input and the residual of a slot's adapters.

    Both have the shape ``[batch, queries, hidden_size]``.
    """
    if config.pretrained_layer_norm in ("before", "both"):
        total = sublayer.output + sublayer.residual
        inputs = sublayer.norm(total)
    else:
        total = inputs = sublayer.output
    return inputs, {"sublayer": sublayer.output, "sum": total, "input": inputs}[config.residual_from]


def adapter_output(
    config: AdapterConfig, output: Float[Array, "batch queries hidden"], sublayer: Sublayer
) -> Float[Array, "batch queries hidden"]:
    """Computes the slot's output from the adapters' output.

    If ``config.pretrained_layer_norm`` is ``after`` or ``both``, adds the sub-layer's input and applies the trunk's
    LayerNorm.
    """
    if config.pretrained_layer_norm in ("after", "both"):
        return sublayer.norm(output + sublayer.residual)
    return output


def slot(
    params: Tree, config: AdapterConfig, sublayer: Sublayer, key: PRNGKeyArray | None = None
) -> Float[Array, "batch queries hidden"]:
    """Runs a slot that holds a bottleneck.

    Bottlenecks have no dropout. See :class:`afjax.adapters.kind.InSlot`.
    """
    inputs, skip = adapter_input(config, sublayer)
    output = bottleneck(params, inputs, config)
    if "norm_after" in params:
        if config.residual_before_new_layer_norm:
            output = layer_norm(params["norm_after"], output + skip, NEW_NORM_EPSILON)
        else:
            output = layer_norm(params["norm_after"], output, NEW_NORM_EPSILON) + skip
    else:
        output = output + skip
    return adapter_output(config, output, sublayer)


def weighted_sum(
    configs: Sequence[AdapterConfig], trees: Sequence[Tree], weights: Sequence[float]
) -> tuple[AdapterConfig, Tree]:
    """Concatenates bottlenecks into one bottleneck that computes their weighted sum.

    See :class:`afjax.adapters.kind.WeightedSum`.
    """
    check_equal(configs, ("position", "pretrained_layer_norm", "residual_from", "activation", "layers"))
    if any(config.layer_norms or config.new_layer_norm != "none" for config in configs):
        raise UserError(
            "One bottleneck cannot compute the average output of bottlenecks that have their own LayerNorms; average "
            'adapters with layer_norms=False and new_layer_norm="none".'
        )
    factors = [weight * config.scaling for weight, config in zip(weights, configs, strict=True)]
    total: Tree = {}
    for slot in configs[0].slots:
        downs, ups = [tree[slot]["down"] for tree in trees], [tree[slot]["up"] for tree in trees]
        check_same_trunk([up["bias"].shape for up in ups])  # [layers, hidden_size]
        total[slot] = {
            "down": {leaf: np.concatenate([down[leaf] for down in downs], axis=-1) for leaf in ("kernel", "bias")},
            "up": {
                "kernel": np.concatenate(
                    [factor * up["kernel"] for factor, up in zip(factors, ups, strict=True)], axis=-2
                ),
                "bias": sum(factor * up["bias"] for factor, up in zip(factors, ups, strict=True)),
            },
        }
    size = total[configs[0].slots[0]]["down"]["bias"].shape[-1]
    return dataclasses.replace(configs[0], size=size, scaling=1.0), total


def _wide_config(config: AdapterConfig, size: int) -> AdapterConfig:
    default = AdapterConfig()
    reset = {field: getattr(default, field) for field in ("reduction_factor", "init", "init_scale", "scaling")}
    return dataclasses.replace(config, size=size, **reset)


def _wide_tree(config: AdapterConfig, tree: Tree, size: int) -> Tree:
    wide = dict(tree)
    for slot in config.slots:
        down, up = tree[slot]["down"], tree[slot]["up"]
        wide[slot] = {
            **tree[slot],
            "down": {"kernel": pad_axis(down["kernel"], -1, size), "bias": pad_axis(down["bias"], -1, size)},
            # The added units have zero rows in ``up``, so they contribute nothing even if activation(0) is not 0.
            "up": {
                "kernel": config.scaling * pad_axis(up["kernel"], -2, size),
                "bias": config.scaling * np.asarray(up["bias"]),
            },
        }
    return wide


KIND = SlotKind(
    config=AdapterConfig,
    init=init,
    slot=slot,
    family="bottleneck",
    layout=("position", "pretrained_layer_norm", "residual_from"),
    size=AdapterConfig.bottleneck_size,
    count_units=chain_counter(lambda config, hidden_size: (hidden_size, config.bottleneck_size(hidden_size))),
    weighted_sum=weighted_sum,
    widening=Widening(size=AdapterConfig.bottleneck_size, config=_wide_config, tree=_wide_tree),
)
