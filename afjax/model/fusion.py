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
``3 N r d²`` once. Inference always folds them so, training where a step has many more tokens than the adapters have
inner units.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from afjax.config import AdapterConfig, FusionConfig
from afjax.errors import UserError
from afjax.model.bottleneck import NEW_NORM_EPSILON, adapter_layers
from afjax.model.layers import ACTIVATIONS, dense, dropout, normalise
from afjax.trees import Tree, named_key

# Tokens a step for every inner unit from which on training folds. It saves operations from about one on. Eight keeps
# small batches factored, where a step's cost then grows little from few adapters to many, and folds those of training
# at scale.
FOLDING_TOKENS_PER_UNIT = 8


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


def check_fusible(configs: Mapping[str, AdapterConfig], num_layers: int) -> None:
    """Raises UserError unless the adapters share their slots, layers and place among the LayerNorms."""
    (first, reference), *others = configs.items()
    for name, config in configs.items():
        if config.layer_norms:
            raise UserError(
                f'Adapter "{name}" carries LayerNorms of its own, which change the trunk for every other adapter; only '
                "adapters trained with adapter.layer_norms=False can be fused."
            )
    for name, config in others:
        for field in ("position", "pretrained_layer_norm", "residual_from"):
            given, wanted = getattr(config, field), getattr(reference, field)
            if given != wanted:
                raise UserError(
                    f'Adapters "{first}" and "{name}" sit in different slots ({field} "{wanted}" and "{given}"); '
                    "fuse adapters of one layout."
                )
        if adapter_layers(config, num_layers) != adapter_layers(reference, num_layers):
            raise UserError(
                f'Adapters "{first}" and "{name}" sit in different layers ({reference.layers} and {config.layers}; '
                "None means all); fuse adapters of the same layers."
            )


def make_bank(adapters: Sequence[Tree], configs: Sequence[AdapterConfig]) -> Tree:
    """Lays adapters side by side, slot by slot; leaves stay stacked over the layers.

    A LayerNorm before an adapter is folded into its down-projection but for the normalisation itself, and the
    constant scaling into the up-projection.

    Returns:
      ``{slot: {"down": {"kernel" [d, R], "bias" [R]}, "up": {"kernel" [R, d], "bias" [N, d]}}}`` behind the
      layers' axis, where R is the sum of the N adapters' bottleneck sizes.
    """
    bank: Tree = {}
    for slot in configs[0].slots:
        kernels, biases, ups, constants = [], [], [], []
        for adapter, config in zip(adapters, configs, strict=True):
            params = adapter[slot]
            kernel, bias = params["down"]["kernel"], params["down"]["bias"]
            if "norm_before" in params:
                norm = params["norm_before"]
                bias = bias + jnp.einsum("ld,ldr->lr", norm["bias"], kernel)
                kernel = norm["scale"][:, :, None] * kernel
            kernels.append(kernel)
            biases.append(bias)
            ups.append(params["up"]["kernel"] * config.scaling)
            constants.append(params["up"]["bias"] * config.scaling)
        bank[slot] = {
            "down": {"kernel": jnp.concatenate(kernels, -1), "bias": jnp.concatenate(biases, -1)},
            "up": {"kernel": jnp.concatenate(ups, -2), "bias": jnp.stack(constants, -2)},
        }
    return bank


def init_fusion(key: Array, config: FusionConfig, adapter: AdapterConfig, *, hidden_size: int, num_layers: int) -> Tree:
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
    inputs = {norm: normalise(z, NEW_NORM_EPSILON).astype(z.dtype) if norm else z for _, _, norm in layout.runs}
    parts, begin = [], 0
    for units, activation, norm in layout.runs:
        columns = slice(begin, begin + units)
        part = dense({"kernel": down["kernel"][:, columns], "bias": down["bias"][columns]}, inputs[norm])
        parts.append(ACTIVATIONS[activation](part))
        begin += units
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, -1)


def sum_per_adapter(units: Array, sizes: Sequence[int]) -> Array:
    """Sums each adapter's own units: ``[..., R]`` to ``[..., N]``."""
    if len(set(sizes)) == 1:
        return units.reshape(*units.shape[:-1], len(sizes), sizes[0]).sum(-1)
    ends = list(itertools.accumulate(sizes))
    return jnp.stack([units[..., end - size : end].sum(-1) for size, end in zip(sizes, ends, strict=True)], -1)


def spread_per_adapter(values: Array, sizes: Sequence[int]) -> Array:
    """Repeats each adapter's value for its units: ``[..., N]`` to ``[..., R]``."""
    if len(set(sizes)) == 1:
        wide = jnp.broadcast_to(values[..., None], (*values.shape, sizes[0]))
        return wide.reshape(*values.shape[:-1], sum(sizes))
    parts = [jnp.broadcast_to(values[..., [n]], (*values.shape[:-1], size)) for n, size in enumerate(sizes)]
    return jnp.concatenate(parts, -1)


def fuse(
    params: Tree,
    bank: Tree,
    z: Array,
    *,
    layout: BankLayout,
    temperature: float = 1.0,
    dropout_rate: float = 0.0,
    key: Array | None = None,
) -> tuple[Array, Array]:
    """Fuses the adapters of a bank in one layer's slot.

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
    if z.size // z.shape[-1] >= FOLDING_TOKENS_PER_UNIT * sum(layout.sizes):
        folded = fold_layer(params, bank)
        return fuse_folded(folded, z, layout=layout, temperature=temperature, dropout_rate=dropout_rate, key=key)
    inner = inner_activations(bank["down"], z, layout)  # [..., R]
    query = dense(params["query"], z)
    projected = dense({"kernel": params["key"]["kernel"].T}, query)  # Kᵀ(Q z + bq), [..., d]
    along_units = dense({"kernel": bank["up"]["kernel"].T}, projected)  # [..., R]
    scores = sum_per_adapter(along_units * inner, layout.sizes) + dense({"kernel": bank["up"]["bias"].T}, projected)
    if key is not None and dropout_rate:
        # The same for every adapter: the softmax would ignore it, dropout does not.
        scores = scores + dense({"kernel": params["key"]["bias"][:, None]}, query)
    attention = _attention(scores, temperature, dropout_rate, key)  # [..., N]
    weighted = spread_per_adapter(attention, layout.sizes) * inner
    output = dense({"kernel": bank["up"]["kernel"]}, weighted) + dense({"kernel": bank["up"]["bias"]}, attention)
    return (dense(params["value"], output) if "value" in params else output), attention


def _attention(scores: Array, temperature: float, rate: float, key: Array | None) -> Array:
    wide = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    return jax.nn.softmax(dropout(key, wide, rate) / temperature).astype(scores.dtype)


def fold_fusion(fusion: Tree, bank: Tree) -> Tree:
    """:func:`fold_layer` of every slot and layer, for inference; leaves stay stacked over the layers."""
    return {slot: jax.vmap(fold_layer)(fusion[slot], bank[slot]) for slot in bank}


def fold_layer(params: Tree, bank: Tree) -> Tree:
    """Multiplies the matrices of one layer's slot that no activation stands between, for :func:`fuse_folded`.

    Returns:
      ``{"down", "score": {"kernel" [d, R], "bias" [R]}, "constant_score": {"kernel" [d, N], "bias" [N]},
      "output": {"kernel" [R, d]}, "constant_output": {"kernel" [N, d]}}``. Where dropout acts, so does the key's bias:
      it is in ``constant_score``.
    """
    up, constants, query = bank["up"]["kernel"], bank["up"]["bias"], params["query"]
    key_up = params["key"]["kernel"].T @ up.T  # [d, R]
    # The same addend for every adapter: the softmax would ignore it, dropout does not.
    key_constants = params["key"]["kernel"].T @ constants.T + params["key"]["bias"][:, None]  # [d, N]
    if "value" in params:
        up, constants = up @ params["value"]["kernel"], constants @ params["value"]["kernel"]
    return {
        "down": bank["down"],
        "score": {"kernel": query["kernel"] @ key_up, "bias": query["bias"] @ key_up},
        "constant_score": {"kernel": query["kernel"] @ key_constants, "bias": query["bias"] @ key_constants},
        "output": {"kernel": up},
        "constant_output": {"kernel": constants},
    }


def fuse_folded(
    folded: Tree,
    z: Array,
    *,
    layout: BankLayout,
    temperature: float = 1.0,
    dropout_rate: float = 0.0,
    key: Array | None = None,
) -> tuple[Array, Array]:
    """:func:`fuse` from what :func:`fold_layer` gives."""
    inner = inner_activations(folded["down"], z, layout)  # [..., R]
    scores = sum_per_adapter(dense(folded["score"], z) * inner, layout.sizes) + dense(folded["constant_score"], z)
    attention = _attention(scores, temperature, dropout_rate, key)  # [..., N]
    weighted = spread_per_adapter(attention, layout.sizes) * inner
    return dense(folded["output"], weighted) + dense(folded["constant_output"], attention), attention


def value_penalty(fusion: Tree) -> Array:
    """``sum over layers and slots of ||V - I||²_F`` (the paper's appendix; weight: ``FusionConfig.regularization``)."""
    penalty = jnp.zeros(())
    for params in fusion.values():
        if "value" in params:
            kernel = params["value"]["kernel"]
            penalty = penalty + jnp.square(kernel - jnp.eye(kernel.shape[-1], dtype=kernel.dtype)[None]).sum()
    return penalty
