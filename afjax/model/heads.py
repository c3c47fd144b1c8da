"""Task heads, which classify either one pooled vector per row or every token.

A head's tree has these leaves::

    pooler/{kernel [d, d], bias [d]}      only if the head has its own pooler
    hidden/<0, 1, ...>/{kernel [d, d], bias [d]}      only if the head has hidden layers
    output/{kernel [d, num_outputs], bias [num_outputs]}
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from afjax.config.heads import HeadConfig
from afjax.errors import UserError
from afjax.nn.layers import ACTIVATIONS, dense, dropout, normal_dense
from afjax.nn.pooling import apply_pooler, pool
from afjax.tasks.kind import Reads
from afjax.trees import AnyArray, Tree, named_key
from afjax.trunk.encoder import hidden_size


def init_head(
    key: PRNGKeyArray,
    config: HeadConfig,
    num_outputs: int,
    *,
    trunk: Tree,
    reads: Reads = "pooled",
    output_bias: Float[AnyArray, "outputs"] | None = None,
    init_scale: float = 0.02,
) -> Tree:
    """Initializes a head's parameters in float32.

    Args:
      key: A random key that is only used for this head.
      config: The architecture.
      num_outputs: Number of labels; 1 for regression and multiple choice, 2 for span.
      trunk: The trunk's tree. If the trunk has a pooler, the head's own pooler is initialized as a copy of it.
      reads: Whether the head's input is one pooled vector per row or every token. Token heads have no pooler.
      output_bias: The initial bias of the outputs. None for zeros.
      init_scale: Standard deviation of randomly initialized kernels.

    Raises:
      UserError: The config uses the trunk's pooler but the trunk has none, or ``output_bias`` has the wrong shape.
    """
    if output_bias is not None and output_bias.shape != (num_outputs,):
        raise UserError(f"output_bias has the shape {output_bias.shape}; it must be ({num_outputs},).")
    size = hidden_size(trunk)
    head: Tree = {"output": normal_dense(named_key(key, "output"), init_scale, (size, num_outputs))}
    if output_bias is not None:
        head["output"]["bias"] = jnp.asarray(output_bias, jnp.float32)
    for layer in map(str, range(config.hidden_layers)):
        hidden = normal_dense(named_key(key, "hidden", layer), init_scale, (size, size))
        head.setdefault("hidden", {})[layer] = hidden
    if reads == "tokens":
        return head
    check_pooler(config, trunk)
    if config.pooler != "head":
        return head
    if "pooler" in trunk:
        # A step that donates the head must not delete the trunk's arrays.
        head["pooler"] = jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32, copy=True), trunk["pooler"])
    else:
        head["pooler"] = normal_dense(named_key(key, "pooler"), init_scale, (size, size))
    return head


def check_pooler(config: HeadConfig, trunk: Tree) -> None:
    """Raises UserError if the config uses the trunk's pooler but the trunk has none."""
    if config.pooler == "trunk" and "pooler" not in trunk:
        raise UserError('This trunk has no pooler; set head.pooler to "head" to train one with the head.')


def apply_head(
    head: Tree,
    config: HeadConfig,
    trunk: Tree,
    hidden: Float[Array, "batch queries hidden"],
    mask: Bool[AnyArray, "batch length"],
    *,
    reads: Reads,
    key: PRNGKeyArray | None,
) -> Float[Array, "batch num_outputs"] | Float[Array, "batch length num_outputs"]:
    """Computes logits from the last hidden states.

    Args:
      head: The head's parameters.
      config: The head's architecture; ``dropout`` and ``pooling`` must not be None.
      trunk: The trunk's parameters, for heads that use the trunk's pooler.
      hidden: The last hidden states of all tokens. First-token pooling only needs the first token's.
      mask: bool ``[batch, length]``, False at padding.
      reads: Whether the head's input is one pooled vector per row or every token.
      key: The dropout key, or None for no dropout.

    Returns:
      ``[batch, num_outputs]``, or ``[batch, length, num_outputs]`` for token heads, in float32 or wider.
    """
    assert config.dropout is not None, "the model chooses the rate"
    assert config.pooling is not None, "the recipe chooses the pooling"
    hidden = hidden.astype(jnp.promote_types(hidden.dtype, jnp.float32))
    if reads == "pooled":
        hidden = pool(hidden, mask, config.pooling)  # [batch, hidden_size]
        if config.pooler != "none":
            hidden = apply_pooler((head if config.pooler == "head" else trunk)["pooler"], hidden)
    for layer in map(str, range(config.hidden_layers)):
        layer_key = None if key is None else named_key(key, "hidden", layer)
        hidden = dense(head["hidden"][layer], dropout(layer_key, hidden, config.dropout))
        hidden = ACTIVATIONS[config.activation](hidden)
    return dense(head["output"], dropout(key, hidden, config.dropout))
