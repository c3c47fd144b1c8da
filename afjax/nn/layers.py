"""Dense layers, LayerNorm, dropout and activations, as pure functions."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Bool, Float, PRNGKeyArray, Shaped

from afjax.errors import UserError
from afjax.nn.random_bits import random_bits
from afjax.trees import AnyArray, Tree

# The checkpoint name of arrays marked by :func:`saveable`.
SAVEABLE = "kept"


def saveable(x: Shaped[AnyArray, "*shape"]) -> Shaped[Array, "*shape"]:
    """Marks an array to be stored for the backward pass instead of rematerialized.

    This only matters if other activations are rematerialized (``remat`` of :mod:`afjax.trunk.encoder`). Results of
    matrix products and dropout masks are marked, because they are small and expensive to recompute.
    """
    # Outside of jit, checkpoint_name would return a NumPy array unchanged.
    marked: Array = checkpoint_name(jnp.asarray(x), SAVEABLE)
    return marked


@jax.custom_jvp
def gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Computes the exact GELU, with a custom derivative rule that stores only ``x``.

    It uses ``erf``, which is much faster on CPU than the ``erfc`` in ``jax.nn.gelu``.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return (wide * 0.5 * (1.0 + jax.lax.erf(wide * (2.0**-0.5)))).astype(x.dtype)


@gelu.defjvp
def _gelu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    # This equals the 1 + erf(x) of the forward pass, but is written as 1 - erf(-x). With identical expressions, XLA
    # would share erf(x) between the two, and store that array until the backward pass.
    below = 0.5 * (1.0 - jax.lax.erf(wide * -(2.0**-0.5)))
    density = jnp.exp(-0.5 * jnp.square(wide)) * (2.0 * math.pi) ** -0.5
    return gelu(x), (below + wide * density).astype(x.dtype) * tangent


@jax.custom_vjp
def relu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Computes ``max(x, 0)``.

    Its custom derivative rule stores only the mask ``x > 0``. JAX's rule would also store an array of zeros.
    """
    return jnp.maximum(x, 0)


relu.defvjp(lambda x: (relu(x), x > 0), lambda above, cotangent: (jnp.where(above, cotangent, 0),))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": relu,
    "leaky_relu": jax.nn.leaky_relu,
    "swish": jax.nn.swish,
    "gelu": gelu,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "tanh": jnp.tanh,
}


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def gated(x: Float[Array, "*batch twice"], activation: str) -> Float[Array, "*batch half"]:
    """Activates the first half of the features and multiplies it by the second half.

    Its custom derivative rule stores only ``x``. JAX's rule would also store the activations.

    Args:
      x: ``[..., 2 * size]``.
      activation: A name in :data:`ACTIVATIONS`.

    Returns:
      ``[..., size]``.

    Reference:
      Shazeer 2020, *GLU Variants Improve Transformer*, section 2.
    """
    activated, gate = jnp.split(x, 2, -1)
    return ACTIVATIONS[activation](activated) * gate


def _gated_backward(activation: str, x: Array, cotangent: Array) -> tuple[Array]:
    activated, gate = jnp.split(x, 2, -1)
    activations, backward = jax.vjp(ACTIVATIONS[activation], activated)
    return (jnp.concatenate([*backward(cotangent * gate), cotangent * activations], -1),)


gated.defvjp(lambda x, activation: (gated(x, activation), x), _gated_backward)


def dense(params: Tree, x: Float[AnyArray, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
    """Applies a dense layer, ``x @ kernel + bias``, to the last axis.

    The leading axes are flattened, because on CPU the backward pass takes twice as long if the kernel's gradient
    contracts over two axes.

    Args:
      params: ``{"kernel": [in, out], "bias": [out]}``. The bias is optional.
      x: ``[..., in]``. The matmul's operands are cast to its dtype.

    Returns:
      ``[..., out]`` in the dtype of ``x``.
    """
    rows = matmul(x.reshape(-1, x.shape[-1]), params["kernel"])
    if "bias" in params:
        rows = rows + params["bias"].astype(rows.dtype)[None]
    return rows.reshape(*x.shape[:-1], rows.shape[-1])


def normal_dense(key: PRNGKeyArray, scale: float, shape: tuple[int, ...]) -> Tree:
    """Initializes a dense layer: kernel ~ N(0, scale²), bias 0.

    Args:
      key: The kernel's random key.
      scale: The kernel's standard deviation.
      shape: The kernel's shape ``[..., inputs, outputs]``.
    """
    kernel = scale * jax.random.normal(key, shape)
    return {"kernel": kernel, "bias": jnp.zeros((*shape[:-2], shape[-1]))}


def check_dense(params: Tree, name: str, inputs: int, outputs: int | None = None) -> None:
    """Raises UserError unless ``params[name]`` is one dense layer of the given sizes.

    A stack of layers is rejected. If ``outputs`` is None, any output size is accepted.
    """
    kernel = params.get(name, {}).get("kernel")
    if kernel is None:
        raise UserError(
            f'The parameters contain {", ".join(sorted(params)) or "nothing"}, but no "{name}/kernel"; select one '
            "layer and slot of the tree with afjax.layer_params."
        )
    if kernel.ndim != 2:
        raise UserError(
            f'The leaf "{name}/kernel" has the shape {kernel.shape}, but a single layer\'s kernel has two axes; select '
            "one layer of the tree with afjax.layer_params."
        )
    if kernel.shape[0] != inputs:
        raise UserError(
            f'The leaf "{name}/kernel" has input size {kernel.shape[0]}, but the inputs have size {inputs}; use '
            "parameters that were trained for this hidden size."
        )
    if outputs is not None and kernel.shape[1] != outputs:
        raise UserError(
            f'The leaf "{name}/kernel" has output size {kernel.shape[1]}, but size {outputs} is required; use '
            "parameters that were trained for this hidden size."
        )


def matmul(
    rows: Float[AnyArray, "rows inputs"], kernel: Float[AnyArray, "inputs outputs"]
) -> Float[Array, "rows outputs"]:
    """Computes ``rows @ kernel`` in the rows' dtype, accumulated in float32 or wider.

    The kernel's gradient has the kernel's dtype, even if the rows are bfloat16 or float16.
    """
    return saveable(
        _narrow_matmul(rows, kernel) if rows.dtype in (jnp.bfloat16, jnp.float16) else rows @ kernel.astype(rows.dtype)
    )


def wide_matmul(
    left: Float[AnyArray, "... inputs"], right: Float[AnyArray, "... inputs outputs"]
) -> Float[Array, "... outputs"]:
    """Computes ``left @ right``, accumulated and returned in float32 or wider."""
    return jnp.matmul(left, right, preferred_element_type=jnp.promote_types(left.dtype, jnp.float32))


def _wide_dot(left: Array, right: Array, *, contract: tuple[int, int]) -> Array:
    numbers = (((contract[0],), (contract[1],)), ((), ()))
    return jax.lax.dot_general(left, right, numbers, preferred_element_type=jnp.float32)


@jax.custom_vjp
def _narrow_matmul(rows: Array, kernel: Array) -> Array:
    return _wide_dot(rows, kernel.astype(rows.dtype), contract=(1, 0)).astype(rows.dtype)


def _narrow_matmul_forward(rows: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _narrow_matmul(rows, kernel), (rows, kernel)


def _narrow_matmul_backward(residuals: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    # JAX's rule would use a float32 cotangent, and therefore a float32 matmul.
    rows, kernel = residuals
    grad_rows = _wide_dot(cotangent, kernel.astype(rows.dtype), contract=(1, 1)).astype(rows.dtype)
    grad_kernel = _wide_dot(rows, cotangent, contract=(0, 0)).astype(kernel.dtype)
    return grad_rows, grad_kernel


_narrow_matmul.defvjp(_narrow_matmul_forward, _narrow_matmul_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def softmax(x: Float[Array, "*shape"], dtype: Any) -> Float[Array, "*shape"]:
    """Computes a softmax over the last axis in x's dtype, then casts it to ``dtype``.

    Its custom derivative rule stores only the returned array for the backward pass. JAX's rule would also store the
    result in the dtype of ``x``.
    """
    return jax.nn.softmax(x).astype(dtype)


def _softmax_forward(x: Array, dtype: Any) -> tuple[Array, tuple[Array, Array]]:
    output = saveable(softmax(x, dtype))
    # The empty array records the dtype of x.
    return output, (output, x[..., :0])


def _softmax_backward(dtype: Any, residuals: tuple[Array, Array], cotangent: Array) -> tuple[Array]:
    output, empty = residuals
    weights, cotangent = output.astype(empty.dtype), cotangent.astype(empty.dtype)
    return (weights * (cotangent - (weights * cotangent).sum(-1, keepdims=True)),)


softmax.defvjp(_softmax_forward, _softmax_backward)


def layer_norm(params: Tree, x: Float[AnyArray, "*batch hidden"], epsilon: float) -> Float[Array, "*batch hidden"]:
    """Applies LayerNorm to the last axis.

    Args:
      params: ``{"scale": [d], "bias": [d]}``. The bias is optional.
      x: ``[..., d]``. The computation is in float32 or wider.
      epsilon: Added to the variance.

    Returns:
      ``[..., d]`` in the dtype of ``x``.
    """
    scale = params["scale"]
    bias = params["bias"] if "bias" in params else jnp.zeros(scale.shape, scale.dtype)
    return _layer_norm(x, scale, bias, epsilon)


def normalize(x: Float[AnyArray, "*batch hidden"], epsilon: float) -> Float[Array, "*batch hidden"]:
    """Normalizes the last axis to zero mean and unit variance.

    The computation is in float32 or wider. The result has the dtype of ``x``.
    """
    return _layer_norm(x, jnp.ones(x.shape[-1]), jnp.zeros(x.shape[-1]), epsilon)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _layer_norm(x: Array, scale: Array, bias: Array, epsilon: float) -> Array:
    """Computes LayerNorm with a custom derivative rule.

    For the backward pass, the rule stores x and each row's mean and inverse standard deviation. JAX's rule would store
    the normalized x in float32 and, in a loop over layers, the parameters broadcast to all rows.
    """
    return _layer_norm_forward(x, scale, bias, epsilon)[0]


def _layer_norm_forward(
    x: Array, scale: Array, bias: Array, epsilon: float
) -> tuple[Array, tuple[Array, Array, Array, Array, Array]]:
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = wide.mean(-1, keepdims=True)
    inverse_deviation = jax.lax.rsqrt(jnp.square(wide - mean).mean(-1, keepdims=True) + epsilon)
    factor, addend = (jnp.broadcast_to(params, x.shape) for params in (scale, bias))
    output = (wide - mean) * inverse_deviation * factor + addend
    return output.astype(x.dtype), (x, mean, inverse_deviation, scale, bias)


def _layer_norm_backward(
    epsilon: float, residuals: tuple[Array, Array, Array, Array, Array], cotangent: Array
) -> tuple[Array, Array, Array]:
    x, mean, inverse_deviation, scale, bias = residuals
    wide = cotangent.astype(mean.dtype)
    normalized = (x.astype(mean.dtype) - mean) * inverse_deviation
    grad_normalized = wide * jnp.broadcast_to(scale, x.shape)
    along = (normalized * grad_normalized).mean(-1, keepdims=True)
    grad_x = inverse_deviation * (grad_normalized - grad_normalized.mean(-1, keepdims=True) - normalized * along)

    def sum_over_rows(by_entry: Array, like: Array) -> Array:
        return by_entry.reshape(-1, by_entry.shape[-1]).sum(0).astype(like.dtype)

    return grad_x.astype(x.dtype), sum_over_rows(wide * normalized, scale), sum_over_rows(wide, bias)


_layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)


@jax.custom_vjp
def scale_features(
    x: Float[Array, "*batch features"], scale: Float[Array, "features"]
) -> Float[Array, "*batch features"]:
    """Multiplies each feature by its scale.

    The product is computed in float32 or wider, and cast to the dtype of ``x``. The custom derivative rule stores ``x``
    in its original dtype. JAX's rule would store it in float32, which takes twice the memory if ``x`` is bfloat16.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return (wide * jnp.broadcast_to(scale, x.shape)).astype(x.dtype)


def _scale_features_backward(residuals: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    x, scale = residuals
    wide = cotangent.astype(jnp.promote_types(x.dtype, jnp.float32))
    products = (wide * x.astype(wide.dtype)).reshape(-1, x.shape[-1])
    return scale_features(cotangent, scale), products.sum(0).astype(scale.dtype)


scale_features.defvjp(lambda x, scale: (scale_features(x, scale), (x, scale)), _scale_features_backward)


def dropout_mask(key: PRNGKeyArray | None, shape: Sequence[int], rate: float) -> Bool[Array, "..."] | None:
    """Draws a mask that is True with probability ``1 - rate``.

    Returns None (no dropout) if the key is None or the rate is 0.
    """
    if key is None or rate == 0.0:
        return None
    # Without the barrier, the TPU compiler would draw the bits again for every use of the mask, including its storage
    # for the backward pass.
    return saveable(
        jax.lax.optimization_barrier(random_bits(key, shape) >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1)))
    )


def dropout(key: PRNGKeyArray | None, x: Float[Array, "*shape"], rate: float) -> Float[Array, "*shape"]:
    """Zeroes entries with probability ``rate``; divides the others by ``1 - rate``.

    Returns ``x`` unchanged if the key is None or the rate is 0.
    """
    keep_mask = dropout_mask(key, x.shape, rate)
    return x if keep_mask is None else _apply_dropout_mask(x, keep_mask, rate)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _apply_dropout_mask(x: Array, keep_mask: Array, rate: float) -> Array:
    """Zeroes entries where ``keep_mask`` is False; divides the others by ``1 - rate``.

    The function is linear in ``x``, and its custom derivative rule applies it to the cotangent. JAX's rule would also
    store an array of zeros for the backward pass.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return jnp.where(keep_mask, wide / (1.0 - rate), 0.0).astype(x.dtype)


_apply_dropout_mask.defvjp(
    lambda x, keep_mask, rate: (_apply_dropout_mask(x, keep_mask, rate), keep_mask),
    lambda rate, keep_mask, cotangent: (_apply_dropout_mask(cotangent, keep_mask, rate), None),
)


def split_key(key: PRNGKeyArray | None, num: int) -> list[PRNGKeyArray] | list[None]:
    """Splits a PRNG key into ``num`` keys, or returns ``num`` Nones if it is None."""
    return [None] * num if key is None else list(jax.random.split(key, num))


class Dense(nn.Module):
    """The trunk's dense layer: a module with the parameters of :func:`dense`.

    The argument ``apply`` of a call may use different parameters for each row of the batch. An input with one row then
    yields one output row per row of the batch.

    Attributes:
      features: Size of the output.
      init_scale: Standard deviation of the kernel's initializer.
      use_bias: Whether the layer has a bias.
    """

    features: int
    init_scale: float = 0.02
    use_bias: bool = True

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch inputs"], apply: Callable[[Tree, Array], Array] = dense
    ) -> Float[Array, "*rows outputs"]:
        kernel = self.param("kernel", nn.initializers.normal(self.init_scale), (x.shape[-1], self.features))
        params = {"kernel": kernel}
        if self.use_bias:
            params["bias"] = self.param("bias", nn.initializers.zeros, (self.features,))
        return apply(params, x)


class LayerNorm(nn.Module):
    """The trunk's LayerNorm: a module with the parameters of :func:`layer_norm`.

    Attributes:
      epsilon: Added to the variance.
      use_bias: Whether the LayerNorm has a bias.
    """

    epsilon: float
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "*batch hidden"]) -> Float[Array, "*batch hidden"]:
        params = {"scale": self.param("scale", nn.initializers.ones, (x.shape[-1],))}
        if self.use_bias:
            params["bias"] = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        return layer_norm(params, x, self.epsilon)
