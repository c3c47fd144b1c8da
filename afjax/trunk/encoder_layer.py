"""Initializes and runs one encoder layer of any family."""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from afjax.trees import AnyArray, Tree
from afjax.trunk.config import TrunkConfig
from afjax.trunk.post_norm_layer import (
    NO_DROPOUT,
    AttentionBlock,
    FeedForwardBlock,
    LayerKeys,
    attention_bias,
    relative_embeddings,
)
from afjax.trunk.pre_norm_layer import (
    COMPLETE,
    GatedFeedForwardBlock,
    LayerForm,
    Positions,
    RotaryAttentionBlock,
    layer_positions,
)
from afjax.trunk.slots import EMPTY_LAYER, LayerSlots, Sublayer


class SharedInputs(NamedTuple):
    """The inputs that all layers share.

    Attributes:
      mask: bool ``[batch, length]``, False at padding.
      bias: The bias of the attention scores. None if the family has no attention bias.
      relative: The embeddings of relative positions, ``[entries, hidden_size]``. None if the family has no
        disentangled attention.
      positions: The rotary positions and the window of local attention. None for families with ``post_norm`` layers.
    """

    mask: AnyArray
    bias: Array | None = None
    relative: Array | None = None
    positions: Positions | None = None


def shared_inputs(trunk: Tree, config: TrunkConfig, mask: Bool[AnyArray, "batch length"], dtype: Any) -> SharedInputs:
    """Computes the inputs that all layers share.

    Args:
      trunk: The trunk's tree.
      config: The trunk's architecture.
      mask: bool ``[batch, length]``, False at padding.
      dtype: The dtype of the hidden states.
    """
    length = mask.shape[1]
    bias, relative = attention_bias(trunk, config, length), relative_embeddings(trunk, config, length, dtype)
    return top_layer_inputs(config, mask, dtype)._replace(bias=bias, relative=relative)


def top_layer_inputs(config: TrunkConfig, mask: Bool[AnyArray, "batch length"], dtype: Any) -> SharedInputs:
    """Computes the shared inputs of an additional layer on top of the encoder.

    An additional layer has no attention bias and no relative positions.

    Args:
      config: The trunk's architecture.
      mask: bool ``[batch, length]``, False at padding.
      dtype: The dtype of the hidden states.
    """
    return SharedInputs(mask, positions=layer_positions(config, mask.shape[1], dtype))


class EncoderLayer(nn.Module):
    """One Transformer layer of any family, with its slots."""

    config: TrunkConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch length hidden"],
        shared: SharedInputs,
        *,
        form: LayerForm | None = None,
        slots: LayerSlots = EMPTY_LAYER,
        dropout_keys: LayerKeys = NO_DROPOUT,
        first_token_only: bool = False,
    ) -> tuple[Float[Array, "batch queries hidden"], dict[str, Float[Array, "batch queries num_adapters"]]]:
        """Runs the layer.

        Args:
          x: The layer's input, ``[batch, length, hidden_size]``.
          shared: The inputs that all layers share.
          form: The layer's slice of :func:`afjax.trunk.pre_norm_layer.layer_forms`. None for a layer on top of the
            encoder.
          slots: The layer's filled slots.
          dropout_keys: The layer's dropout keys; no dropout by default.
          first_token_only: Whether to compute only the first token's outputs.

        Returns:
          The next hidden state, and ``{slot: attention over adapters}`` for the slots with a fusion.
        """
        config, mask = self.config, shared.mask
        options: Any = {"slots": slots, "dropout_keys": dropout_keys, "first_token_only": first_token_only}
        ffn_block: FeedForwardBlock | GatedFeedForwardBlock
        if config.encoder_family.layer == "post_norm":
            attention_block = AttentionBlock(config, name="attention")
            between, first = attention_block(x, mask, bias=shared.bias, relative=shared.relative, **options)
            ffn_block = FeedForwardBlock(config, name="ffn")
        else:
            assert shared.positions is not None, "pre_norm layers have rotary positions"
            form = COMPLETE if form is None else form
            rotary_block = RotaryAttentionBlock(config, name="attention")
            between, first = rotary_block(x, mask, form=form, positions=shared.positions, **options)
            ffn_block = GatedFeedForwardBlock(config, name="ffn")
        sublayer = functools.partial(Sublayer, layer_input=x, mask=mask, attention_dropout=config.attention_dropout)
        output, second = ffn_block(between, slots=slots, sublayer=sublayer, key=dropout_keys.ffn)
        maps = {"attention": first, "ffn": second}
        return output, {name: attention for name, attention in maps.items() if attention is not None}


def init_layer(key: PRNGKeyArray, config: TrunkConfig) -> Tree:
    """Initializes a layer at random.

    Kernels are drawn from N(0, init_scale²), and biases are 0.
    """
    x, mask = jnp.zeros((1, 2, config.hidden_size)), jnp.ones((1, 2), bool)
    params: Tree = EncoderLayer(config).init(key, x, top_layer_inputs(config, mask, x.dtype))["params"]
    return params
