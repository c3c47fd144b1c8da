"""BERT-family encoders with slots for adapters.

A trunk's tree has these leaves. Leaves under ``layers`` are stacked along a leading axis of size ``num_layers``::

    embeddings/word                         [vocab_size, input_size]
    embeddings/position                     [entries, input_size], if the family adds positions to the embeddings
    embeddings/type                         [entries, input_size], if the family has token types
    embeddings/norm/{scale, bias}
    embeddings/projection/{kernel, bias}    if the embeddings and the hidden states differ in size
    embeddings/relative_position            [entries, num_heads], if the family has an attention bias
    embeddings/relative/position            [entries, hidden_size], if the family has disentangled attention
    embeddings/relative/norm/{scale, bias}  if the family has disentangled attention
    layers/attention/{query, key, value, output}/{kernel, bias}
    layers/attention/norm/{scale, bias}
    layers/ffn/{intermediate, output}/{kernel, bias}
    layers/ffn/norm/{scale, bias}
    norm/{scale, bias}                      if the family has ``pre_norm`` layers; applied after the top layer
    pooler/{kernel, bias}                   if the checkpoint has a pooler

In ``pre_norm`` layers, ``ffn/intermediate`` has twice as many outputs as the network's inner size, biases are optional,
and the first layer's entries of ``attention/norm`` are not used (:mod:`afjax.trunk.pre_norm_layer`).
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from afjax.config.values import Remat
from afjax.display.words import counted
from afjax.distributed.sharding import shard_rows
from afjax.errors import UserError
from afjax.nn.layer_loop import loop_over_layers
from afjax.nn.layers import SAVEABLE, layer_norm, split_key
from afjax.trees import AnyArray, Tree, map_with_path, named_key
from afjax.trunk.config import TrunkConfig
from afjax.trunk.encoder_layer import EncoderLayer, SharedInputs, init_layer, shared_inputs
from afjax.trunk.layers import Layers, LoopedLayers, UnstackedLayers, each_layer, layer_groups, num_layers, stacks
from afjax.trunk.post_norm_layer import NO_DROPOUT, RELATIVE_POSITION, Embeddings, LayerKeys, layer_keys
from afjax.trunk.pre_norm_layer import LayerForm, layer_forms
from afjax.trunk.slots import EMPTY_LAYER, NO_SLOTS, FilledSlots


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderOptions:
    """Options for running an encoder.

    The options affect the results only through rounding.

    Attributes:
      dtype: The dtype of the activations; None for the dtype of the word embeddings.
      scan_layers: Whether to compile one loop over the layers instead of straight-line code.
      remat: Which activations of a layer the backward pass rematerializes. ``none`` rematerializes none of them,
        ``matmuls`` all except the outputs of matrix products and the dropout masks, and ``layers`` all of them.
    """

    dtype: str | None = None
    scan_layers: bool = False
    remat: Remat = "none"


def init_trunk(key: PRNGKeyArray, config: TrunkConfig, *, stacked: bool = True) -> Tree:
    """Initializes a trunk at random, for benchmarks and tests.

    Kernels are drawn from N(0, init_scale²), and biases are 0.

    Args:
      key: The random key.
      config: The architecture.
      stacked: Whether to stack the layers. If not, they are :class:`UnstackedLayers`.
    """
    tokens = jnp.zeros((1, 2), jnp.int32)
    embeddings = Embeddings(config).init(named_key(key, "embeddings"), tokens, tokens, key=None)

    init_one = jax.jit(functools.partial(init_layer, config=config))
    keys = jax.random.split(named_key(key, "layers"), config.num_layers)
    layers = (
        jax.vmap(init_one)(keys)
        if stacked
        else UnstackedLayers({str(index): init_one(layer_key) for index, layer_key in enumerate(keys)})
    )
    tree: Tree = {"embeddings": embeddings["params"], "layers": layers}
    if config.encoder_family.layer == "pre_norm":
        norm = {"scale": jnp.ones(config.hidden_size), "bias": jnp.zeros(config.hidden_size)}
        tree["norm"] = norm if config.norm_bias else {"scale": norm["scale"]}
    if not config.encoder_family.has_pooler:
        return tree
    kernel = jax.random.normal(named_key(key, "pooler"), (config.hidden_size, config.hidden_size)) * config.init_scale
    return {**tree, "pooler": {"kernel": kernel, "bias": jnp.zeros(config.hidden_size)}}


def trunk_shapes(config: TrunkConfig) -> Tree:
    """Builds a trunk's parameter tree with shapes and dtypes instead of arrays."""
    shapes: Tree = jax.eval_shape(lambda: init_trunk(jax.random.key(0), config))
    return shapes


def hidden_size(trunk: Tree) -> int:
    """Returns the size of a trunk's hidden states."""
    embeddings = trunk["embeddings"]
    last = embeddings["projection"]["kernel"] if "projection" in embeddings else embeddings["word"]
    return int(last.shape[-1])


def cast_trunk(trunk: Tree, dtype: str) -> Tree:
    """Casts a trunk's weights to a dtype, ``float32`` or ``bfloat16``.

    The encoder's activations then have this dtype too. The weights of LayerNorms, the pooler and the attention bias are
    not cast, because these are computed in float32.
    """

    def cast(path: str, leaf: Any) -> Any:
        keeps_dtype = "norm/" in path or path.startswith("pooler/") or path == f"embeddings/{RELATIVE_POSITION}"
        return leaf if keeps_dtype else leaf.astype(jnp.dtype(dtype), copy=False)

    return map_with_path(cast, trunk)


def embed(
    trunk: Tree,
    config: TrunkConfig,
    batch: Mapping[str, AnyArray],
    *,
    key: PRNGKeyArray | None = None,
    dtype: str | None = None,
) -> Float[Array, "batch length hidden"]:
    """Computes the first layer's input.

    Args:
      trunk: The trunk's tree.
      config: The trunk's architecture.
      batch: ``tokens`` and ``types`` int32, ``mask`` bool (False at padding), each ``[batch, length]``.
      key: The dropout key, or None for no dropout.
      dtype: The dtype of the activations; None for the dtype of the word embeddings.

    Raises:
      UserError: An array is missing, or has the wrong shape or dtype, or the rows have more tokens than the trunk has
        positions.
    """
    _check_batch(batch)
    tokens = batch["tokens"]
    if tokens.shape[-1] > config.max_length:
        raise UserError(
            f"The rows have {tokens.shape[-1]} tokens, but the trunk has {config.max_length} positions; "
            "truncate the rows."
        )
    embeddings = Embeddings(config, dtype)
    embedded: Any = embeddings.apply({"params": trunk["embeddings"]}, tokens, batch["types"], key=key)
    return embedded


def check_complete(batch: Mapping[str, AnyArray]) -> None:
    """Raises UserError if a batch lacks an input of the encoder."""
    for name in ("tokens", "types", "mask"):
        if name not in batch:
            raise UserError(f"The batch has no {name}; it needs tokens, types and mask, each [batch, length].")


def _check_batch(batch: Mapping[str, AnyArray]) -> None:
    """Checks shapes and dtypes. Otherwise wrong arrays would be broadcast, or a mask of floats would be inverted."""
    check_complete(batch)
    for name in ("tokens", "types", "mask"):
        shape, allowed = batch[name].shape, (np.integer,) if name != "mask" else (np.bool_, np.integer)
        if len(shape) != 2 or 0 in shape or shape != batch["tokens"].shape:
            raise UserError(
                f'batch["{name}"] has the shape {shape}, and batch["tokens"] has {batch["tokens"].shape}; tokens, '
                "types and mask must have the same shape [batch, length], with at least one row and one token."
            )
        if not any(jnp.issubdtype(batch[name].dtype, kind) for kind in allowed):
            raise UserError(
                f'batch["{name}"] has the dtype {batch[name].dtype}; tokens and types must be integers, and mask must '
                "be bool (False at padding) or integers (0 at padding)."
            )


def encode(
    trunk: Tree,
    config: TrunkConfig,
    batch: Mapping[str, AnyArray],
    *,
    slots: FilledSlots = NO_SLOTS,
    key: PRNGKeyArray | None = None,
    options: EncoderOptions = EncoderOptions(),
    first_token_only: bool = False,
) -> tuple[Float[Array, "batch queries hidden"], dict[str, Float[Array, "filled_layers batch length num_adapters"]]]:
    """Runs the encoder.

    Args:
      trunk: The trunk's tree. Its upper layers can be stored separately, under ``top_layers``. If only ``top_layers``
        is trained, the backward pass stops at its lowest layer.
      config: The trunk's architecture.
      batch: ``tokens`` and ``types`` int32, ``mask`` bool (False at padding), each ``[batch, length]``.
      slots: The contents of the slots.
      key: The dropout key, or None for no dropout.
      options: Dtype, loop and rematerialization.
      first_token_only: Whether only the first token's last hidden state is needed. If so, the last layer is computed
        only for this token (after the loop, if there is one), and no attention over adapters is returned.

    Returns:
      The last hidden state ``[batch, length, hidden_size]`` (length 1 with ``first_token_only``), and
      ``{slot: attention over adapters}`` for the slots with a fusion. Each attention is
      ``[len(slots.layers), batch, length, num_adapters]``.

    Raises:
      UserError: An array of the batch is missing, or has the wrong shape or dtype; the rows have more tokens than the
        trunk has positions; or the slots' contents have another number of layers than the slots.
    """
    embeddings_key, layers_key = split_key(key, 2)
    # Split the key for all layers at once. Otherwise the code of the loop and the code of the last layer would each
    # contain the random number generator.
    keys = NO_DROPOUT if layers_key is None else _keys_of_layers(jax.random.split(layers_key, config.num_layers))
    x = embed(trunk, config, batch, key=embeddings_key, dtype=options.dtype)
    encoder_layer: Any = EncoderLayer(config)
    forms = layer_forms(config)
    shared = (shared_inputs(trunk, config, batch["mask"].astype(bool), x.dtype), slots.shared)

    def run(
        x: Array,
        layer_inputs: tuple[Tree, Tree, LayerKeys, LayerForm | None],
        shared: tuple[SharedInputs, Any],
        *,
        filled: bool,
        first_token_only: bool = False,
    ) -> tuple[Array, dict[str, Array]]:
        (params, contents, layer_keys, form), (layers_shared, slots_shared) = layer_inputs, shared
        output, attention = encoder_layer.apply(
            {"params": params},
            x,
            layers_shared,
            form=form,
            slots=slots.make(contents, slots_shared, layer_keys.slots) if filled else EMPTY_LAYER,
            dropout_keys=layer_keys,
            first_token_only=first_token_only,
        )
        return shard_rows(output), attention

    def compiled_layer(*, looped: bool, filled: bool, first_token_only: bool = False) -> Any:
        one_layer = functools.partial(run, filled=filled, first_token_only=first_token_only)
        return rematerialized(one_layer, options.remat, looped=looped)

    attention_maps: list[dict[str, Array]] = []
    check_layers(trunk, config)
    for segment in _segments(trunk, slots, looped=options.scan_layers):
        if segment.looped:
            one_layer = compiled_layer(looped=True, filled=segment.filled)
            keys_and_forms = _slice((keys, forms), segment.first, segment.first + segment.depth)
            x, stacked = loop_over_layers(one_layer, x, (segment.params, segment.contents, *keys_and_forms), shared)
            attention_maps.append(stacked)
            continue
        layers = zip(segment.params, segment.contents, strict=True)
        for index, (params, contents) in enumerate(layers, start=segment.first):
            last = index == config.num_layers - 1
            one_layer = compiled_layer(looped=False, filled=segment.filled, first_token_only=first_token_only and last)
            keys_and_form = jax.tree.map(lambda leaf, i=index: leaf[i], (keys, forms))
            x, attention = one_layer(x, (params, contents, *keys_and_form), shared)
            attention_maps.append({name: slot_attention[None] for name, slot_attention in attention.items()})
    if first_token_only:
        return final_norm(trunk, config, x[:, :1]), {}
    return final_norm(trunk, config, x), _concatenate(attention_maps)


def final_norm(trunk: Tree, config: TrunkConfig, x: Float[Array, "*batch hidden"]) -> Float[Array, "*batch hidden"]:
    """Applies the LayerNorm after the top layer, if the family has one."""
    return layer_norm(trunk["norm"], x, config.layer_norm_epsilon) if config.encoder_family.layer == "pre_norm" else x


def _keys_of_layers(keys: Array) -> LayerKeys:
    """Derives the dropout keys of every layer, stacked, from one key per layer."""

    def keys_of_layer(key: Array) -> LayerKeys:
        trunk_key, slots_key = split_key(key, 2)
        return layer_keys(trunk_key, slots_key)

    return jax.vmap(keys_of_layer)(keys)


def rematerialized(run_layer: Any, remat: Remat, *, looped: bool) -> Any:
    """Makes the backward pass of a layer's function rematerialize activations.

    Args:
      run_layer: Runs one layer.
      remat: Which activations are rematerialized. With ``none``, ``run_layer`` is returned unchanged.
      looped: Whether ``run_layer`` is the body of a compiled loop.
    """
    if remat == "none":
        return run_layer
    policies = jax.checkpoint_policies
    policy = policies.save_only_these_names(SAVEABLE) if remat == "matmuls" else policies.nothing_saveable
    # In straight-line code, common subexpression elimination (CSE) would undo the rematerialization. With a loop this
    # cannot happen, because the forward and the backward pass are separate loops.
    return jax.checkpoint(run_layer, policy=policy, prevent_cse=not looped)


@dataclasses.dataclass(frozen=True)
class _Segment:
    """Consecutive layers that run in the same way.

    Attributes:
      first: The index of the segment's first layer.
      depth: The number of layers.
      filled: Whether the layers' slots are filled.
      looped: Whether the layers run in a loop.
      params, contents: The layers' parameters and the contents of their slots. They are stacked if the layers run in a
        loop. Otherwise they are lists with one entry per layer.
    """

    first: int
    depth: int
    filled: bool
    looped: bool
    params: Any
    contents: Any


def check_layers(trunk: Tree, config: TrunkConfig) -> None:
    """Raises UserError if the trunk's tree has another number of layers than its config."""
    depth = sum(map(num_layers, layer_groups(trunk)))
    if depth != config.num_layers:
        raise UserError(
            f"The trunk's tree has {counted(depth, 'layer')}, but its config has {config.num_layers}; pass a tree and "
            "a config that belong together."
        )


def _segments(trunk: Tree, slots: FilledSlots, *, looped: bool) -> Iterator[_Segment]:
    """Yields the encoder's segments, from the bottom up.

    A new segment begins where slots change between filled and empty, and where the trunk's layers continue in another
    tree, such as ``top_layers``.
    """
    slots.check_depth()
    first = num_filled = 0
    for group in layer_groups(trunk):
        for layers in [group] if isinstance(group, UnstackedLayers) else stacks(group):
            depth = num_layers(layers)
            in_loop = looped and depth > 1
            layer_params = [] if in_loop else each_layer(layers)
            for begin, end, filled in _runs(first, first + depth, slots.layers):
                contents: Any = _layer_range(slots.contents, num_filled, num_filled + end - begin) if filled else {}
                num_filled += end - begin if filled else 0
                if in_loop:
                    params: Any = _slice(layers, begin - first, end - first)
                else:
                    params = layer_params[begin - first : end - first]
                    contents = each_layer(contents) if filled else [{}] * (end - begin)
                yield _Segment(begin, end - begin, filled, in_loop, params, contents)
            first += depth


def _runs(first: int, last: int, layers: Sequence[int]) -> list[tuple[int, int, bool]]:
    """Splits ``range(first, last)`` into runs of layers with filled or empty slots.

    Args:
      first, last: The range of layers.
      layers: The indices of the layers with filled slots.

    Returns:
      ``(begin, end, filled)`` for each run.
    """
    filled = set(layers)
    cuts = [i for i in range(first, last) if i == first or (i in filled) != (i - 1 in filled)] + [last]
    return [(begin, end, begin in filled) for begin, end in itertools.pairwise(cuts)]


def _layer_range(layers: Layers, begin: int, end: int) -> Layers:
    """Returns the layers ``[begin:end]``, unstacked or stacked like ``layers``."""
    if isinstance(layers, UnstackedLayers):
        return UnstackedLayers({str(index): layers[str(begin + index)] for index in range(end - begin)})
    assert not isinstance(layers, LoopedLayers), "contents of slots are stacked or unstacked"
    sliced: Tree = _slice(layers, begin, end)
    return sliced


def _slice(tree: Any, begin: int, end: int) -> Any:
    """Slices every leaf to ``[begin:end]``, without a copy if this is the entire leaf."""
    return jax.tree.map(lambda leaf: leaf if (begin, end) == (0, leaf.shape[0]) else leaf[begin:end], tree)


def _concatenate(attention_maps: Sequence[dict[str, Array]]) -> dict[str, Array]:
    filled = [maps for maps in attention_maps if maps]
    names = filled[0] if filled else {}
    return {name: jnp.concatenate([maps[name] for maps in filled]) for name in names}
