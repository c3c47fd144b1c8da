"""AdapterFusion (Pfeiffer 2021, section 3.2), computed in a factored form.

A fusion's tree has these leaves, each stacked over the layers that have the fusion::

    <slot>/query/{kernel [d, d], bias [d]}
    <slot>/key/{kernel [d, d], bias [d]}
    <slot>/value/{kernel [d, d]}            only if the fusion has a value matrix

Let ``z`` be the adapters' input and ``u_n`` the output of adapter n before its residual. The paper computes::

    score_n = (Q z + bq) · (K u_n + bk)        attention = softmax(dropout(score) / T)
    output  = sum_n attention_n V u_n

This projects N vectors of size d through K and V. But ``u_n = W_n a_n + c_n`` is linear in the adapter's inner
activations ``a_n`` (of size r), so an equivalent form is::

    qk      = Kᵀ (Q z + bq)
    score_n = (W_nᵀ qk) · a_n + qk · c_n + (Q z + bq) · bk
    output  = V (sum_n attention_n (W_n a_n + c_n))

With all N adapters concatenated into one matrix, the factored form takes ``3 d² + 3 N r d`` multiply-adds per token
instead of ``d² + 2 N d² + 2 N r d``, and stores nothing of size N·d for the backward pass.

The folded form multiplies the adjacent matrices ``Wᵀ Kᵀ Q`` and ``V W`` first. It takes ``3 N r d`` multiply-adds per
token, plus ``3 N r d²`` for the products. Models always use it for inference. Training uses it if it saves work
(:func:`folding_pays`); otherwise, training may still multiply ``Kᵀ Q`` first (:func:`joining_pays`).

Modules that act on an entire layer (:mod:`afjax.adapters.placement`) are fused in the same way: ``a_n`` are their inner
activations, ``W_n`` is the decoder, and ``z`` is the layer's output without the modules. If an output is not linear in
the inner activations (LHUC, or an activation after the decoder), the paper's formula is applied to the N outputs.
"""

from collections.abc import Sequence

from jax import Array
from jaxtyping import Float, PRNGKeyArray

from afjax.adapters.bottleneck import check_bottleneck
from afjax.config.adapters import AdapterConfig
from afjax.config.fusion import FusionConfig
from afjax.errors import UserError
from afjax.fusion.attention import ScoreOptions, attention_over_adapters, weigh
from afjax.fusion.bank import bank_layout, inner_activations, slot_bank
from afjax.fusion.cost import folding_pays, joining_pays, num_tokens
from afjax.fusion.folded import fold_layer, fuse_folded
from afjax.fusion.per_adapter import sum_per_adapter
from afjax.nn.layers import check_dense, dense, saveable
from afjax.trees import AnyArray, Tree


def fuse(
    params: Tree,
    adapters: Sequence[Tree],
    z: Float[AnyArray, "*batch hidden"],
    configs: Sequence[AdapterConfig],
    config: FusionConfig = FusionConfig(),
    *,
    dropout_rate: float = 0.0,
    key: PRNGKeyArray | None = None,
) -> tuple[Float[Array, "*batch hidden"], Float[Array, "*batch num_adapters"]]:
    """Fuses bottleneck adapters in one layer's slot (AdapterFusion).

    This is a pure function, so it can be used without an afjax model. It uses the factored form described in
    :mod:`afjax.fusion.factored`. Each call concatenates the adapters, which copies them.

    Args:
      params: One layer's slot of a fusion, as returned by :func:`afjax.layer_params`: ``query`` and ``key``, each
        ``{kernel [hidden_size, hidden_size], bias [hidden_size]}``, and optionally
        ``value/kernel [hidden_size, hidden_size]``.
      adapters: Each adapter's parameters for the same layer and slot, as for :func:`afjax.bottleneck`.
      z: The adapters' input, which is also the query: ``[..., hidden_size]``, in any float dtype. The matmuls use the
        same dtype.
      configs: The adapters' architectures, in the same order. Only activation, size, scaling and the LayerNorm before
        the down-projection are used. As in AdapterHub, a fusion reads the adapters' outputs before a new LayerNorm
        after the up-projection.
      config: The fusion's architecture. Only temperature and dropout are used.
      dropout_rate: Dropout rate of the scores, unless ``config.dropout`` is set. Ignored without a key.
      key: The dropout key, or None for no dropout.

    Returns:
      The fused output ``[..., hidden_size]``, before the residual, and the attention over adapters ``[..., N]``, both
      in the dtype of ``z``.

    Raises:
      UserError: ``adapters`` is empty or its length differs from ``configs``; an adapter is not a bottleneck, or its
        size or LayerNorm does not match its architecture; or parameters belong to several layers, to a different module
        or to a different hidden size.

    Example:
      >>> import jax.numpy as jnp
      >>> from afjax import AdapterConfig, fuse
      >>> down = {"kernel": jnp.ones((8, 2)), "bias": jnp.zeros(2)}
      >>> adapter = {"down": down, "up": {"kernel": jnp.ones((2, 8)), "bias": jnp.zeros(8)}}
      >>> square = {"kernel": jnp.eye(8), "bias": jnp.zeros(8)}
      >>> params = {"query": square, "key": square, "value": {"kernel": jnp.eye(8)}}
      >>> fused, attention = fuse(params, [adapter] * 2, jnp.ones((1, 8)), [AdapterConfig(size=2)] * 2)
      >>> fused.shape, attention.tolist()
      ((1, 8), [[0.5, 0.5]])

    Reference:
      Pfeiffer et al. 2021, *AdapterFusion*, section 3.2.
    """
    if not adapters or len(adapters) != len(configs):
        raise UserError(
            f"fuse got {len(adapters)} adapters and {len(configs)} architectures; pass at least one adapter, and one "
            "architecture per adapter."
        )
    for number, (member, architecture) in enumerate(zip(adapters, configs, strict=True)):
        if not isinstance(architecture, AdapterConfig):
            raise UserError(f"Adapter {number} is of the kind {architecture.kind}; fuse only supports bottlenecks.")
        check_bottleneck(member, z.shape[-1])
        size = member["down"]["kernel"].shape[-1]
        if size != architecture.bottleneck_size(z.shape[-1]):
            raise UserError(
                f"Adapter {number} has the bottleneck size {size}, but its architecture has "
                f"{architecture.bottleneck_size(z.shape[-1])}; pass adapters and architectures in the same order."
            )
        if ("norm_before" in member) != (architecture.new_layer_norm in ("before", "both")):
            raise UserError(
                f'Adapter {number} has {"a" if "norm_before" in member else "no"} LayerNorm "norm_before", but its '
                f'architecture has new_layer_norm="{architecture.new_layer_norm}"; pass its own architecture.'
            )
    for name in ("query", "key", *(("value",) if "value" in params else ())):
        check_dense(params, name, z.shape[-1], z.shape[-1])
    rate = dropout_rate if config.dropout is None else config.dropout
    layout = bank_layout(configs, z.shape[-1])
    bank = slot_bank(adapters, configs)
    options = ScoreOptions(temperature=config.temperature, dropout_rate=rate, key=key)
    inner = inner_activations(bank["down"], z, layout)  # [..., R]
    return fuse_units(params, bank["up"], z, inner, sizes=layout.sizes, options=options)


def fuse_units(
    params: Tree,
    up: Tree,
    z: Float[AnyArray, "*batch hidden"],
    inner: Float[Array, "*batch units"],
    *,
    sizes: tuple[int, ...],
    options: ScoreOptions = ScoreOptions(),
) -> tuple[Float[Array, "*batch hidden"], Float[Array, "*batch num_adapters"]]:
    """Computes :func:`fuse` from the adapters' inner activations.

    Args:
      params: ``{"query", "key"[, "value"]}`` of one layer and slot.
      up: ``{"kernel" [R, d], "bias" [N, d]}``, which maps inner activations to the adapters' outputs.
      z: The query ``[..., d]``.
      inner: The adapters' inner activations, concatenated: ``[..., R]``.
      sizes: Number of inner activations per adapter.
      options: Temperature, dropout and the adapters to fuse.
    """
    if folding_pays(num_tokens(z), sizes, z.shape[-1], value="value" in params):
        return fuse_folded(fold_layer(params, up), z, inner, sizes=sizes, options=options)
    projected, constant = _project_query(params, z)  # [..., d], [..., 1]
    along_units = dense({"kernel": up["kernel"].T}, projected)  # [..., R]
    scores = sum_per_adapter(along_units * inner, sizes) + dense({"kernel": up["bias"].T}, projected)
    if options.has_dropout:
        # The constant is the same for every adapter, so the softmax ignores it. It only matters with dropout.
        scores = scores + constant
    attention = attention_over_adapters(scores, options)  # [..., N]
    output = weigh(up["kernel"], attention, inner, sizes) + dense({"kernel": up["bias"]}, attention)
    return (dense(params["value"], output) if "value" in params else output), attention


def fuse_outputs(
    params: Tree,
    outputs: Float[Array, "*batch num_adapters hidden"],
    z: Float[Array, "*batch hidden"],
    *,
    options: ScoreOptions = ScoreOptions(),
) -> tuple[Float[Array, "*batch hidden"], Float[Array, "*batch num_adapters"]]:
    """Applies the paper's formula to the outputs of adapters of any kind.

    Scores are computed as ``(Kᵀ query) · u_n``, which projects one vector instead of N.
    """
    projected, constant = _project_query(params, z)
    scores = (outputs * projected[..., None, :]).sum(-1)  # [..., N]
    if options.has_dropout:
        scores = scores + constant
    attention = attention_over_adapters(scores, options)
    output = (outputs * attention[..., None]).sum(-2)  # [..., d]
    return (dense(params["value"], output) if "value" in params else output), attention


def _project_query(
    params: Tree, z: Float[AnyArray, "*batch hidden"]
) -> tuple[Float[Array, "*batch hidden"], Float[Array, "*batch 1"]]:
    """Computes the parts of the scores that only depend on the query.

    They are ``Kᵀ (Q z + bq)``, ``[..., d]``, and ``(Q z + bq) · bk``, ``[..., 1]``.
    """
    query, key = params["query"], params["key"]
    if not joining_pays(num_tokens(z), z.shape[-1]):
        projected = dense(query, z)
        return dense({"kernel": key["kernel"].T}, projected), dense({"kernel": key["bias"][:, None]}, projected)
    joined = {name: saveable(query[name] @ key["kernel"].T) for name in ("kernel", "bias")}
    constant = {"kernel": (query["kernel"] @ key["bias"])[:, None], "bias": (query["bias"] @ key["bias"])[None]}
    return dense(joined, z), dense(constant, z)
