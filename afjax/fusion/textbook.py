"""AdapterFusion exactly as in the paper (Pfeiffer 2021, section 3.2).

Models use the faster forms in :mod:`afjax.fusion.factored`. The tests check that the results agree.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from afjax.nn.layers import dropout
from afjax.trees import AnyArray, Tree


def textbook_fusion(
    params: Tree,
    outputs: Float[AnyArray, "*batch num_adapters hidden"],
    z: Float[AnyArray, "*batch hidden"],
    *,
    temperature: float = 1.0,
    dropout_rate: float = 0.0,
    key: PRNGKeyArray | None = None,
) -> tuple[Float[Array, "*batch hidden"], Float[Array, "*batch num_adapters"]]:
    """Fuses the outputs of N adapters by attention.

    Let ``z`` be the adapters' input and ``u_n`` the output of adapter n before its residual. Then::

        score_n     = (Q z + bq) · (K u_n + bk)
        attention_n = softmax over n (dropout(score_n) / temperature)
        output      = sum over n of attention_n V u_n

    Args:
      params: One layer's fusion: ``query/{kernel [d, d], bias [d]}``, ``key/{kernel [d, d], bias [d]}`` and optionally
        ``value/kernel [d, d]``. Without ``value``, V is the identity.
      outputs: ``u``, the adapters' outputs before the residual, ``[..., N, d]``.
      z: The adapters' input ``[..., d]``.
      temperature: Divides the scores.
      dropout_rate: Dropout rate of the scores. Ignored without a key.
      key: The dropout key, or None for no dropout.

    Returns:
      The fused output ``[..., d]`` before the residual, and the attention over adapters ``[..., N]``.

    Example:
      >>> import jax.numpy as jnp
      >>> from afjax.fusion.textbook import textbook_fusion
      >>> identity = {"kernel": jnp.eye(2), "bias": jnp.zeros(2)}
      >>> params = {"query": identity, "key": identity}
      >>> outputs = jnp.array([[[1.0, 0.0], [0.0, 1.0]]])  # [1 token, 2 adapters, d = 2]
      >>> fused, attention = textbook_fusion(params, outputs, jnp.array([[100.0, 0.0]]))
      >>> attention.tolist()
      [[1.0, 0.0]]
      >>> fused.tolist()
      [[1.0, 0.0]]

    Reference:
      Pfeiffer et al. 2021, *AdapterFusion: Non-Destructive Task Composition for Transfer Learning*, section 3.2.
    """
    query = _linear(params["query"], z)  # [..., d]
    keys = _linear(params["key"], outputs)  # [..., N, d]
    values = outputs @ params["value"]["kernel"] if "value" in params else outputs  # [..., N, d]
    scores = jnp.einsum("...d,...nd->...n", query, keys)
    attention = jax.nn.softmax(dropout(key, scores, dropout_rate) / temperature)  # [..., N]
    return jnp.einsum("...n,...nd->...d", attention, values), attention


def _linear(params: Tree, x: Float[AnyArray, "*batch hidden"]) -> Float[AnyArray, "*batch hidden"]:
    return x @ params["kernel"] + params["bias"].reshape((1,) * (x.ndim - 1) + (-1,))
