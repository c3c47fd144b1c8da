"""AdapterFusion (Pfeiffer 2021, section 3.2), computed in a factored form.

A fusion's tree; every leaf is stacked over the layers that have it::

    <slot>/query/{kernel [d, d], bias [d]}
    <slot>/key/{kernel [d, d], bias [d]}
    <slot>/value/{kernel [d, d]}            only with a value matrix

With ``z`` the adapters' input and ``u_n`` the output of adapter n before its residual, the paper computes::

    score_n = (Q z + bq) · (K u_n + bk)        attention = softmax(dropout(score) / T)
    output  = sum_n attention_n V u_n

which projects N vectors of size d through K and V. But ``u_n = W_n a_n + c_n`` is linear in the adapter's inner
activations ``a_n`` (of size r), so the same numbers come from

    qk      = Kᵀ (Q z + bq)
    score_n = (W_nᵀ qk) · a_n + qk · c_n + (Q z + bq) · bk
    output  = V (sum_n attention_n (W_n a_n + c_n))

with the N adapters side by side in one matrix: ``3 d² + 3 N r d`` multiply-adds a token in place of
``d² + 2 N d² + 2 N r d``, and nothing of size N·d kept for the backward pass.

The matrices that meet, ``Wᵀ Kᵀ Q`` and ``V W``, can also be multiplied first: then ``3 N r d`` a token are left, and
``3 N r d²`` once. Inference always folds them so, training where that saves (:func:`folding_pays`); where it does not,
``Kᵀ Q`` alone may be multiplied first (:func:`joining_pays`).

Modules of whole layers (:mod:`afjax.adapters.placement`) are fused in the same way: ``a_n`` are their inner
activations, ``W_n`` the decoder, and ``z`` the layer's output without them. If an output is not linear (LHUC, an
activation after the decoder), the paper's formula is computed from the N outputs.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from afjax.adapters.bottleneck import NEW_NORM_EPSILON, adapter_input, adapter_output
from afjax.adapters.kind import SlotKind
from afjax.adapters.kinds import adapter_layers, kind_of, slot_kind
from afjax.adapters.placement import add_output, plain_output
from afjax.config.adapters import Adapter, AdapterConfig, BesideLayers, OnTop
from afjax.config.fusion import FusionConfig
from afjax.distributed.sharding import num_parts
from afjax.errors import UserError
from afjax.nn.layers import (
    ACTIVATIONS,
    check_dense,
    dense,
    dropout,
    keep,
    normalise,
    softmax,
    split_key,
    wide_matmul,
)
from afjax.trees import Tree, named_key
from afjax.trunk.encoder import Sublayer, for_every_layer

# Training folds from as many tokens a step and device on. Smaller steps stay factored, where folding would save as well
# with few adapters; what a step costs then grows little from few adapters to many.
FOLDING_TOKENS = 2048

# How many adapters' units are summed, or spread to, by one matmul with a matrix of zeros and ones. It takes 2 R BLOCK
# operations a token, few beside the 2 R d of the others; one matmul for all of a thousand adapters would take more.
BLOCK = 64


@dataclasses.dataclass(frozen=True)
class BankLayout:
    """How the adapters lie in a bank (static).

    Attributes:
      sizes: The adapters' bottleneck sizes, in order.
      runs: ``(number of inner units, activation, whether a LayerNorm stands before)`` of consecutive
        adapters that share the latter two: each run is one matmul.
    """

    sizes: tuple[int, ...]
    runs: tuple[tuple[int, str, bool], ...]


def bank_layout(configs: Sequence[AdapterConfig], hidden_size: int) -> BankLayout:
    """The layout of a bank of these adapters, in this order."""
    sizes = tuple(config.bottleneck_size(hidden_size) for config in configs)
    kinds = [(config.activation, config.new_layer_norm in ("before", "both")) for config in configs]
    runs = []
    for kind, members in itertools.groupby(range(len(configs)), key=lambda index: kinds[index]):
        runs.append((sum(sizes[index] for index in members), *kind))
    return BankLayout(sizes, tuple(runs))


def check_fusible(configs: Mapping[str, Adapter], num_layers: int) -> None:
    """Raises UserError unless the adapters share their slots, layers and place among the LayerNorms."""
    (first, reference), *others = configs.items()
    for name, config in configs.items():
        if isinstance(config, OnTop):
            raise UserError(
                f'Adapter "{name}" is of the kind {config.kind}, which sits on top of the encoder, where there is '
                "nothing to fuse; fuse adapters in the layers."
            )
        if isinstance(config, AdapterConfig) and config.layer_norms:
            raise UserError(
                f'Adapter "{name}" carries LayerNorms of its own, which change the trunk for every other adapter; only '
                "adapters trained with adapter.layer_norms=False can be fused."
            )
    for name, config in others:
        kind, wanted_kind = kind_of(config), kind_of(reference)
        assert isinstance(kind, SlotKind), "modules on top are refused above"
        assert isinstance(wanted_kind, SlotKind), "modules on top are refused above"
        if kind.family != wanted_kind.family:
            raise UserError(
                f'Adapters "{first}" and "{name}" add to the layers in different ways (they are of the kinds '
                f"{reference.kind} and {config.kind}); fuse adapters of one kind."
            )
        for field in kind.layout:
            given, wanted = getattr(config, field), getattr(reference, field)
            if given != wanted:
                raise UserError(
                    f'Adapters "{first}" and "{name}" sit in different slots ({field} "{wanted}" and "{given}"); '
                    "fuse adapters of one layout."
                )
        if adapter_layers(config, num_layers) != adapter_layers(reference, num_layers):
            raise UserError(
                f'Adapters "{first}" and "{name}" sit in different layers ({_layers(reference)} and {_layers(config)}; '
                "None means all); fuse adapters of the same layers."
            )


def check_subset(config: FusionConfig, num_adapters: int) -> None:
    """Raises UserError where each training step is to fuse more adapters than there are."""
    if config.subset is not None and config.subset > num_adapters:
        raise UserError(
            f"fusion.subset is {config.subset}, but only {num_adapters} adapters are fused; take at most as many."
        )


def _layers(config: Adapter) -> tuple[int, ...] | None:
    return None if isinstance(config, OnTop) else config.layers


def is_factored(configs: Sequence[Adapter]) -> bool:
    """Whether the fusion of these adapters has a factored form: every one's output is linear in inner activations."""
    return all(not isinstance(config, OnTop) and config.linear_output for config in configs)


def make_bank(adapters: Sequence[Tree], configs: Sequence[Adapter]) -> tuple[Tree, Tree]:
    """Lays adapters side by side, slot by slot.

    Returns:
      ``{slot: tree}`` twice: leaves stacked over the layers, and leaves that are the same for all layers.
      Bottlenecks give ``{"down": {"kernel" [d, R], "bias" [R]}, "up": {"kernel" [R, d], "bias" [N, d]}}`` behind the
      layers' axis, where R is the sum of the N adapters' bottleneck sizes; a LayerNorm before an adapter is folded
      into its down-projection but for the normalisation itself, and the constant scaling into the up-projection.
      Modules beside the layers give ``{"members": {"0": tree, "1": tree, ...}, "up"}``, ``up`` being their decoders
      (without it where there is no factored form).
    """
    bottlenecks = [config for config in configs if isinstance(config, AdapterConfig)]
    if bottlenecks:
        assert len(bottlenecks) == len(configs), "check_fusible lets no mixture through"
        return _bottleneck_bank(adapters, bottlenecks), {}
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


def _bottleneck_bank(adapters: Sequence[Tree], configs: Sequence[AdapterConfig]) -> Tree:
    return {slot: _slot_bank([adapter[slot] for adapter in adapters], configs) for slot in configs[0].slots}


def _slot_bank(members: Sequence[Tree], configs: Sequence[AdapterConfig]) -> Tree:
    """Bottlenecks side by side, of one slot: of one layer, or of all, stacked."""
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


def init_fusion(key: Array, config: FusionConfig, adapter: Adapter, *, hidden_size: int, num_layers: int) -> Tree:
    """A fusion's parameters at the start, float32: Q, K ~ N(0, init_scale), V the identity plus tiny noise."""
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


def inner_activations(down: Tree, z: Array, layout: BankLayout) -> Array:
    """``activation(down(z))`` of all adapters, side by side: ``[..., d]`` to ``[..., R]``."""
    inputs = {norm: normalise(z, NEW_NORM_EPSILON) if norm else z for _, _, norm in layout.runs}
    parts, begin = [], 0
    for units, activation, norm in layout.runs:
        columns = slice(begin, begin + units)
        part = dense({"kernel": down["kernel"][:, columns], "bias": down["bias"][columns]}, inputs[norm])
        parts.append(ACTIVATIONS[activation](part))
        begin += units
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, -1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def sum_per_adapter(units: Array, sizes: tuple[int, ...]) -> Array:
    """Sums each adapter's own units: ``[..., R]`` to ``[..., N]``."""

    def by_matmul(units: Array) -> Array:
        parts = [_multiply(units[..., first:last], owners) for first, last, owners in _blocks(sizes)]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, -1)

    def by_reshape(units: Array) -> Array:
        return units.reshape(*units.shape[:-1], len(sizes), sizes[0]).sum(-1)

    return _for_platform(by_matmul, by_reshape, units, sizes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def spread_per_adapter(values: Array, sizes: tuple[int, ...]) -> Array:
    """Repeats each adapter's value for its units: ``[..., N]`` to ``[..., R]``."""

    def by_matmul(values: Array) -> Array:
        blocks = jnp.split(values, list(range(BLOCK, len(sizes), BLOCK)), -1)
        parts = [_multiply(block, owners.T) for block, (_, _, owners) in zip(blocks, _blocks(sizes), strict=True)]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, -1)

    def by_reshape(values: Array) -> Array:
        wide = jnp.broadcast_to(values[..., None], (*values.shape, sizes[0]))
        return wide.reshape(*values.shape[:-1], sum(sizes))

    return _for_platform(by_matmul, by_reshape, values, sizes)


# Each is the other's derivative, and keeps nothing for it: by JAX's rules a loop over the layers would keep the
# matrices of zeros and ones, of every layer.
sum_per_adapter.defvjp(
    lambda units, sizes: (sum_per_adapter(units, sizes), None),
    lambda sizes, _, to_sums: (spread_per_adapter(to_sums, sizes),),
)
spread_per_adapter.defvjp(
    lambda values, sizes: (spread_per_adapter(values, sizes), None),
    lambda sizes, _, to_units: (sum_per_adapter(to_units, sizes),),
)


def _for_platform(
    by_matmul: Callable[[Array], Array], by_reshape: Callable[[Array], Array], x: Array, sizes: Sequence[int]
) -> Array:
    """The form that is faster where it runs; of different sizes there is the matmul alone.

    A TPU's arrays lie in tiles of 128 columns: to cut rows into adapters at other places moves whole arrays about.
    """
    if len(set(sizes)) > 1:
        return by_matmul(x)
    return jax.lax.platform_dependent(x, tpu=by_matmul, default=by_reshape)


def _blocks(sizes: Sequence[int]) -> Iterator[tuple[int, int, np.ndarray]]:
    """Of each block of adapters the first unit, the last + 1, and which unit is whose, bool ``[units, adapters]``."""
    first = 0
    for begin in range(0, len(sizes), BLOCK):
        block = sizes[begin : begin + BLOCK]
        owners = np.repeat(np.arange(len(block)), block)
        yield first, first + len(owners), owners[:, None] == np.arange(len(block))
        first += len(owners)


def _multiply(rows: Array, owners: np.ndarray) -> Array:
    return wide_matmul(rows, jnp.asarray(owners, rows.dtype)).astype(rows.dtype)


def fuse(
    params: Tree,
    adapters: Sequence[Tree],
    z: Array,
    configs: Sequence[AdapterConfig],
    config: FusionConfig = FusionConfig(),
    *,
    dropout_rate: float = 0.0,
    key: Array | None = None,
) -> tuple[Array, Array]:
    """AdapterFusion of bottleneck adapters in one layer's slot.

    A pure function (Pfeiffer 2021, section 3.2) that needs no model of afjax's, computed in the factored form of
    :mod:`afjax.fusion.factored`. The adapters are laid side by side first, once a call, which is one copy of them.

    Args:
      params: ``{"query", "key"[, "value"]}`` of that layer and slot, as :func:`afjax.layer_params` gives.
      adapters: ``{"down", "up"[, "norm_before"]}`` of every adapter, of the same layer and slot.
      z: The adapters' input and the query, ``[..., hidden_size]``, of any float dtype; matrices are applied in that
        dtype.
      configs: The adapters' architectures, in the same order (activation, size, scaling and LayerNorm are read).
      config: The fusion's (temperature and dropout are read).
      dropout_rate: Of the scores, where the fusion has no rate of its own; acts only with a key.
      key: Dropout's key; None: no dropout.

    Returns:
      The fused output ``[..., hidden_size]``, before the residual, and the attention over adapters ``[..., N]``.

    Raises:
      UserError: No adapters, not as many as architectures, adapters of another kind, parameters of several layers, of
        something else, or for another hidden size.
    """
    if not adapters or len(adapters) != len(configs):
        raise UserError(
            f"{len(adapters)} adapters and {len(configs)} architectures were given; give one architecture for each of "
            "at least one adapter."
        )
    for number, (member, architecture) in enumerate(zip(adapters, configs, strict=True)):
        if not isinstance(architecture, AdapterConfig):
            raise UserError(f"Adapter {number} is of the kind {architecture.kind}; fuse takes bottlenecks alone.")
        check_dense(member, "down", z.shape[-1])
        size = member["down"]["kernel"].shape[-1]
        if size != architecture.bottleneck_size(z.shape[-1]):
            raise UserError(
                f"Adapter {number} has the bottleneck size {size}, its architecture "
                f"{architecture.bottleneck_size(z.shape[-1])}; give both in the same order."
            )
    check_dense(params, "query", z.shape[-1])
    rate = dropout_rate if config.dropout is None else config.dropout
    layout = bank_layout(configs, z.shape[-1])
    bank = _slot_bank(adapters, configs)
    return fuse_bank(params, bank, z, layout=layout, temperature=config.temperature, dropout_rate=rate, key=key)


def fuse_bank(
    params: Tree,
    bank: Tree,
    z: Array,
    *,
    layout: BankLayout,
    temperature: float = 1.0,
    dropout_rate: float = 0.0,
    key: Array | None = None,
) -> tuple[Array, Array]:
    """:func:`fuse` of a bank, which is laid once for all layers.

    Args:
      params: ``{"query", "key"[, "value"]}`` of that layer and slot.
      bank: ``{"down", "up"}`` of that layer and slot, of :func:`make_bank`.
      z: The adapters' input ``[..., d]``.
      layout: Of :func:`bank_layout`.
      temperature: Divides the scores.
      dropout_rate: Of the scores; acts only with a key.
      key: Dropout's key.

    Returns:
      The fused output ``[..., d]`` (before the residual), and the attention over adapters ``[..., N]``.
    """
    inner = inner_activations(bank["down"], z, layout)  # [..., R]
    return fuse_units(
        params,
        bank["up"],
        z,
        inner,
        sizes=layout.sizes,
        temperature=temperature,
        dropout_rate=dropout_rate,
        key=key,
    )


def num_tokens(z: Array) -> int:
    """Of ``[..., d]``, on one device: each multiplies the matrices that meet first for its own tokens."""
    return z.size // z.shape[-1] // num_parts()


def joining_pays(tokens: int, hidden_size: int) -> bool:
    """Whether a training step of the factored form multiplies query and key first.

    With the gradients counted along that takes ``3 d²`` multiply-adds a token and ``3 d³`` once; apart they take
    ``6 d²`` a token.
    """
    return tokens > hidden_size


def folding_pays(tokens: int, sizes: Sequence[int], hidden_size: int, *, value: bool = True) -> bool:
    """Whether a training step multiplies all matrices that meet first.

    With R inner units in all, and the gradients counted along, the factored form takes ``3 d² + 6 R d`` multiply-adds a
    token beside what query and key take (:func:`joining_pays`). The folded one takes ``8 R d``, as its matrices have
    gradients of their own, and ``7 d² (R + N)`` once. Without a value matrix these are ``6 R d``, ``7 R d`` and
    ``5 d² (R + N)``.

    Args:
      tokens: Of the step, on one device.
      sizes: How many inner units each adapter has.
      hidden_size: d.
      value: Whether the fusion has a value matrix.
    """
    units, d = sum(sizes), hidden_size
    query_key = tokens * 3 * d**2 + 3 * d**3 if joining_pays(tokens, d) else tokens * 6 * d**2
    factored = query_key + tokens * (3 * d**2 * value + 6 * units * d)
    folded = tokens * (7 + value) * units * d + (7 if value else 5) * d**2 * (units + len(sizes))
    return tokens >= FOLDING_TOKENS and folded < factored


def fuse_units(
    params: Tree,
    up: Tree,
    z: Array,
    inner: Array,
    *,
    sizes: tuple[int, ...],
    temperature: float = 1.0,
    dropout_rate: float = 0.0,
    key: Array | None = None,
    drawn: Array | None = None,
) -> tuple[Array, Array]:
    """:func:`fuse_bank` from the adapters' inner activations.

    Args:
      params: ``{"query", "key"[, "value"]}`` of one layer and slot.
      up: ``{"kernel" [R, d], "bias" [N, d]}``: what maps inner activations to the adapters' outputs.
      z: The query ``[..., d]``.
      inner: The adapters' inner activations side by side, ``[..., R]``.
      sizes: How many of them each adapter has.
      temperature, dropout_rate, key: As in :func:`fuse_bank`.
      drawn: bool ``[N]``: the adapters that take part; None: all.
    """
    if folding_pays(num_tokens(z), sizes, z.shape[-1], value="value" in params):
        return fuse_folded(
            fold_layer(params, up),
            z,
            inner,
            sizes=sizes,
            temperature=temperature,
            dropout_rate=dropout_rate,
            key=key,
            drawn=drawn,
        )
    projected, constant = _project_query(params, z)  # [..., d], [..., 1]
    along_units = dense({"kernel": up["kernel"].T}, projected)  # [..., R]
    scores = sum_per_adapter(along_units * inner, sizes) + dense({"kernel": up["bias"].T}, projected)
    if key is not None and dropout_rate:
        # The same for every adapter: the softmax would ignore it, dropout does not.
        scores = scores + constant
    attention = _attention(scores, temperature, dropout_rate, key, drawn)  # [..., N]
    output = _weigh(up["kernel"], attention, inner, sizes) + dense({"kernel": up["bias"]}, attention)
    return (dense(params["value"], output) if "value" in params else output), attention


def fuse_outputs(
    params: Tree,
    outputs: Array,
    z: Array,
    *,
    temperature: float = 1.0,
    dropout_rate: float = 0.0,
    key: Array | None = None,
    drawn: Array | None = None,
) -> tuple[Array, Array]:
    """:func:`fuse_bank` as the paper writes it, from the adapters' outputs ``[..., N, d]``, whatever made them.

    Of its projections only that of the keys is turned round, as ``(Kᵀ query) · u``: N vectors fewer to project.
    """
    projected, constant = _project_query(params, z)
    scores = (outputs * projected[..., None, :]).sum(-1)  # [..., N]
    if key is not None and dropout_rate:
        scores = scores + constant
    attention = _attention(scores, temperature, dropout_rate, key, drawn)
    output = (outputs * attention[..., None]).sum(-2)  # [..., d]
    return (dense(params["value"], output) if "value" in params else output), attention


def _project_query(params: Tree, z: Array) -> tuple[Array, Array]:
    """``Kᵀ(Q z + bq)`` ``[..., d]``, which meets the adapters' outputs in scores; ``(Q z + bq) · bk`` ``[..., 1]``."""
    query, key = params["query"], params["key"]
    if not joining_pays(num_tokens(z), z.shape[-1]):
        projected = dense(query, z)
        return dense({"kernel": key["kernel"].T}, projected), dense({"kernel": key["bias"][:, None]}, projected)
    joined = {name: keep(query[name] @ key["kernel"].T) for name in ("kernel", "bias")}
    constant = {"kernel": (query["kernel"] @ key["bias"])[:, None], "bias": (query["bias"] @ key["bias"])[None]}
    return dense(joined, z), dense(constant, z)


@functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=3)
def _weigh(kernel: Array, attention: Array, inner: Array, sizes: tuple[int, ...]) -> Array:
    """The units, weighted by their adapters' attention, through a matrix: ``[..., R]`` to ``[..., d]``.

    A loop over the layers keeps none of the weighted units for its backward pass, which makes them again.
    """
    return dense({"kernel": kernel}, spread_per_adapter(attention, sizes) * inner)


def _attention(scores: Array, temperature: float, rate: float, key: Array | None, drawn: Array | None) -> Array:
    wide = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    wide = dropout(key, wide, rate) / temperature
    if drawn is not None:
        # Added, as the backward pass of a choice between the two would keep a mask and zeros of every token.
        wide = wide + jnp.where(drawn, 0.0, -jnp.inf).astype(wide.dtype).reshape((1,) * (wide.ndim - 1) + (-1,))
    return softmax(wide, scores.dtype)


def fold_fusion(fusion: Tree, bank: Tree, shared: Tree) -> Tree:
    """What inference needs of a fusion and a bank: the bank with :func:`fold_layer` in place of ``up``, stacked."""
    folded = {}
    for slot, tree in bank.items():
        if "up" in tree:
            matrices = jax.vmap(fold_layer)(fusion[slot], tree["up"])
        else:
            matrices = jax.vmap(fold_layer, in_axes=(0, None))(fusion[slot], shared[slot]["up"])
        folded[slot] = {**{name: part for name, part in tree.items() if name != "up"}, "folded": matrices}
    return folded


def fold_layer(params: Tree, up: Tree) -> Tree:
    """Multiplies the matrices of one layer's slot that no activation stands between, for :func:`fuse_folded`.

    Returns:
      ``{"score": {"kernel" [d, R], "bias" [R]}, "constant_score": {"kernel" [d, N], "bias" [N]},
      "output": {"kernel" [R, d]}, "constant_output": {"kernel" [N, d]}}``. Where dropout acts, so does the key's bias:
      it is in ``constant_score``.
    """
    matrix, constants, query = up["kernel"], up["bias"], params["query"]
    key_up = keep(params["key"]["kernel"].T @ matrix.T)  # [d, R]
    # The same addend for every adapter: the softmax would ignore it, dropout does not.
    key_constants = keep(params["key"]["kernel"].T @ constants.T) + params["key"]["bias"][:, None]  # [d, N]
    if "value" in params:
        matrix, constants = (keep(left @ params["value"]["kernel"]) for left in (matrix, constants))
    return {
        "score": {"kernel": keep(query["kernel"] @ key_up), "bias": query["bias"] @ key_up},
        "constant_score": {"kernel": keep(query["kernel"] @ key_constants), "bias": query["bias"] @ key_constants},
        "output": {"kernel": matrix},
        "constant_output": {"kernel": constants},
    }


def fuse_folded(
    folded: Tree,
    z: Array,
    inner: Array,
    *,
    sizes: tuple[int, ...],
    temperature: float = 1.0,
    dropout_rate: float = 0.0,
    key: Array | None = None,
    drawn: Array | None = None,
) -> tuple[Array, Array]:
    """:func:`fuse_units` from what :func:`fold_layer` gives."""
    scores = sum_per_adapter(dense(folded["score"], z) * inner, sizes) + dense(folded["constant_score"], z)
    attention = _attention(scores, temperature, dropout_rate, key, drawn)  # [..., N]
    output = _weigh(folded["output"]["kernel"], attention, inner, sizes)
    return output + dense(folded["constant_output"], attention), attention


def fused_slot(
    params: Tree,
    configs: Sequence[Adapter],
    config: FusionConfig,
    sublayer: Sublayer,
    *,
    dropout_rate: float,
    key: Array | None,
    drawn: Array | None = None,
) -> tuple[Array, Array]:
    """A slot that holds a fusion.

    Args:
      params: One layer's slot of a bank (leaves of all layers included) with ``"fusion"``, that layer's fusion; or,
        of :func:`fold_fusion`, with ``"folded"``.
      configs: The adapters' architectures, in order.
      config: The fusion's.
      sublayer: Where the slot is.
      dropout_rate: The trunk's attention dropout: of the scores, and of modules with attention, where they have no
        rate of their own.
      key: Dropout's key; None: no dropout.
      drawn: bool ``[N]``: the adapters that take part in this step; None: all.

    Returns:
      The next hidden state ``[batch, queries, d]``, and the attention over adapters ``[batch, queries, N]``.
    """
    rate = dropout_rate if config.dropout is None else config.dropout
    first = configs[0]
    if isinstance(first, AdapterConfig):
        bottlenecks = [member for member in configs if isinstance(member, AdapterConfig)]
        z, skip = adapter_input(first, sublayer.output, sublayer.residual, sublayer.norm)
        layout = bank_layout(bottlenecks, z.shape[-1])
        inner = inner_activations(params["down"], z, layout)
        output, attention = _mix(params, z, inner, layout.sizes, config.temperature, rate, key, drawn)
        return adapter_output(first, output + skip, sublayer.residual, sublayer.norm), attention
    scores_key, *keys = split_key(key, 1 + len(configs))
    members = [
        (params["members"][str(number)], member, member_key)
        for number, (member, member_key) in enumerate(zip(configs, keys, strict=True))
        if isinstance(member, BesideLayers)
    ]
    assert isinstance(first, BesideLayers), "check_fusible lets no module on top through"
    assert len(members) == len(configs), "check_fusible lets no mixture through"
    z = plain_output(sublayer)
    if is_factored(configs):
        parts = []
        for tree, member, member_key in members:
            units = slot_kind(member).units
            assert units is not None, "modules whose output is linear have units"
            parts.append(units(tree, member, sublayer, dropout_rate=dropout_rate, key=member_key))
        sizes = tuple(part.shape[-1] for part in parts)
        inner = jnp.concatenate(parts, -1)
        output, attention = _mix(params, z, inner, sizes, config.temperature, rate, scores_key, drawn)
    else:
        outputs = []
        for tree, member, member_key in members:
            added = slot_kind(member).output
            assert added is not None, "modules of whole layers have outputs"
            outputs.append(added(tree, member, sublayer, dropout_rate=dropout_rate, key=member_key))
        output, attention = fuse_outputs(
            params["fusion"],
            jnp.stack(outputs, -2),
            z,
            temperature=config.temperature,
            dropout_rate=rate,
            key=scores_key,
            drawn=drawn,
        )
    return add_output(first, output, sublayer), attention


def _mix(
    params: Tree,
    z: Array,
    inner: Array,
    sizes: tuple[int, ...],
    temperature: float,
    rate: float,
    key: Array | None,
    drawn: Array | None,
) -> tuple[Array, Array]:
    """:func:`fuse_units`, or :func:`fuse_folded` where the slot holds folded matrices."""
    given: dict[str, Any] = {"sizes": sizes, "temperature": temperature, "dropout_rate": rate, "key": key}
    # Tokens in one axis: between matmuls of rows, arrays of three axes make the TPU's compiler choose other layouts.
    leading, z, inner = z.shape[:-1], z.reshape(-1, z.shape[-1]), inner.reshape(-1, inner.shape[-1])
    if "folded" in params:
        output, attention = fuse_folded(params["folded"], z, inner, drawn=drawn, **given)
    else:
        output, attention = fuse_units(params["fusion"], params["up"], z, inner, drawn=drawn, **given)
    return output.reshape(*leading, -1), attention.reshape(*leading, -1)


def value_penalty(fusion: Tree) -> Array:
    """``sum over layers and slots of ||V - I||²_F`` (the paper's appendix; weight: ``FusionConfig.regularization``)."""
    penalty = jnp.zeros(())
    for params in fusion.values():
        if "value" in params:
            kernel = params["value"]["kernel"]
            penalty = penalty + jnp.square(kernel - jnp.eye(kernel.shape[-1], dtype=kernel.dtype)[None]).sum()
    return penalty
