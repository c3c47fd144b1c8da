"""Initializes a fusion's parameters and computes the penalty on value matrices."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from afjax.adapters.kinds import adapter_layers
from afjax.config.adapters import Adapter
from afjax.config.fusion import FusionConfig
from afjax.trees import Tree, named_key


def init_fusion(
    key: PRNGKeyArray, config: FusionConfig, adapter: Adapter, *, hidden_size: int, num_layers: int
) -> Tree:
    """Initializes a fusion's parameters in float32.

    Q, K ~ N(0, init_scale²), V = I + N(0, value_init_scale²), biases 0.
    """
    depth = len(adapter_layers(adapter, num_layers))
    shape = (depth, hidden_size, hidden_size)
    tree: Tree = {}
    for slot in adapter.slots:
        tree[slot] = {
            name: {
                "kernel": config.init_scale * jax.random.normal(named_key(key, slot, name), shape),
                "bias": jnp.zeros(shape[:2]),
            }
            for name in ("query", "key")
        }
        if config.value:
            noise = config.value_init_scale * jax.random.normal(named_key(key, slot, "value"), shape)
            tree[slot]["value"] = {"kernel": jnp.eye(hidden_size)[None] + noise}
    return tree


def value_penalty(fusion: Tree) -> Float[Array, ""]:
    """Computes ``sum over layers and slots of ||V - I||²_F`` (the paper's appendix).

    ``FusionConfig.regularization`` is its weight in the loss.
    """
    penalty = jnp.zeros(())
    for params in fusion.values():
        if "value" in params:
            kernel = params["value"]["kernel"]
            penalty = penalty + jnp.square(kernel - jnp.eye(kernel.shape[-1], dtype=kernel.dtype)[None]).sum()
    return penalty
