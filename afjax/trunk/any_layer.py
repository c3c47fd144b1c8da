"""Initializes and runs one encoder layer of any family."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from afjax.trees import AnyArray, Tree
from afjax.trunk import pre_norm_layer
from afjax.trunk.config import TrunkConfig
from afjax.trunk.encoder_layer import NO_DROPOUT, EncoderLayer, LayerKeys, attention_bias, relative_embeddings
from afjax.trunk.pre_norm_layer import COMPLETE, LayerForm, Positions, PreNormLayer
from afjax.trunk.slots import EMPTY_LAYER, LayerSlots


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


def shared_inputs(trunk: Tree, config: TrunkConfig, mask: AnyArray, dtype: Any) -> SharedInputs:
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


def top_layer_inputs(config: TrunkConfig, mask: AnyArray, dtype: Any) -> SharedInputs:
    """Computes the shared inputs of an additional layer on top of the encoder.

    An additional layer has no attention bias and no relative positions.

    Args:
      config: The trunk's architecture.
      mask: bool ``[batch, length]``, False at padding.
      dtype: The dtype of the hidden states.
    """
    if config.encoder_family.layer == "post_norm":
        return SharedInputs(mask)
    return SharedInputs(mask, positions=pre_norm_layer.layer_positions(config, mask.shape[1], dtype))


def layer_forms(config: TrunkConfig) -> LayerForm | None:
    """Returns the form of every layer, stacked over the layers.

    Returns None for families with ``post_norm`` layers, because all their layers have the same form.
    """
    return pre_norm_layer.layer_forms(config) if config.encoder_family.layer == "pre_norm" else None


def complete_form(config: TrunkConfig) -> LayerForm | None:
    """Returns the form of an additional layer on top of the encoder.

    Returns None for families with ``post_norm`` layers, because all their layers have the same form.
    """
    return COMPLETE if config.encoder_family.layer == "pre_norm" else None


def init_layer(key: PRNGKeyArray, config: TrunkConfig) -> Tree:
    """Initializes a layer at random.

    Kernels are drawn from N(0, init_scale²), and biases are 0.
    """
    x, mask = jnp.zeros((1, 2, config.hidden_size)), jnp.ones((1, 2), bool)
    module, options = _module(config, top_layer_inputs(config, mask, x.dtype), complete_form(config))
    params: Tree = module.init(key, x, mask, **options)["params"]
    return params


def run_layer(
    params: Tree,
    config: TrunkConfig,
    x: Float[Array, "batch length hidden"],
    shared: SharedInputs,
    form: LayerForm | None,
    *,
    slots: LayerSlots = EMPTY_LAYER,
    dropout_keys: LayerKeys = NO_DROPOUT,
    first_token_only: bool = False,
) -> tuple[Float[Array, "batch queries hidden"], dict[str, Float[Array, "batch queries num_adapters"]]]:
    """Runs a layer.

    Args:
      params: The layer's parameters.
      config: The trunk's architecture.
      x: The layer's input, ``[batch, length, hidden_size]``.
      shared: The inputs that all layers share.
      form: The layer's slice of :func:`layer_forms`, or :func:`complete_form` for a layer on top of the encoder.
      slots: The layer's filled slots.
      dropout_keys: The layer's dropout keys; no dropout by default.
      first_token_only: Whether to compute only the first token's outputs.

    Returns:
      The next hidden state, and ``{slot: attention over adapters}`` for the slots with a fusion.
    """
    module, options = _module(config, shared, form)
    options |= {"slots": slots, "dropout_keys": dropout_keys, "first_token_only": first_token_only}
    output, attention = module.apply({"params": params}, x, shared.mask, **options)
    return output, attention


def _module(config: TrunkConfig, shared: SharedInputs, form: LayerForm | None) -> tuple[Any, dict[str, Any]]:
    """Returns a layer's Linen module and the arguments that are specific to it."""
    if config.encoder_family.layer == "pre_norm":
        return PreNormLayer(config), {"form": form, "positions": shared.positions}
    return EncoderLayer(config), {"bias": shared.bias, "relative": shared.relative}
