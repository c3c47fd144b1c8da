"""The results of a forward pass."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from afjax.trees import AnyArray


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Outputs:
    """The results of a forward pass.

    This is a pytree, so jitted functions can return it.

    Attributes:
      logits: ``[batch, num_outputs]``, in float32 or wider. For token heads, ``[batch, length, num_outputs]``. For
        multiple choice, ``[batch, choices]``, where missing choices have the lowest number of the dtype.
      fusion_attention: If requested, the attention over adapters in each slot with a fusion,
        ``[layers with the fusion, batch, length, num_adapters]``; otherwise empty. For multiple choice, a row's choices
        are concatenated along the length axis.
    """

    logits: Float[Array, "batch ..."]
    fusion_attention: dict[str, Float[Array, "filled_layers batch length num_adapters"]]

    def row_attention(
        self, mask: Bool[AnyArray, "batch *length"]
    ) -> dict[str, Float[Array, "batch filled_layers num_adapters"]]:
        """Averages the attention over adapters across each row's tokens.

        Args:
          mask: The batch's ``mask``, False at padding.

        Returns:
          ``{slot: [batch, layers, num_adapters]}``.
        """
        tokens = mask.astype(bool).reshape(mask.shape[0], -1)  # For multiple choice, the tokens of all choices.
        present = tokens / jnp.maximum(tokens.sum(-1, keepdims=True), 1)
        return {
            slot: jnp.einsum("lbtn,bt->bln", attention, present) for slot, attention in self.fusion_attention.items()
        }
