"""The encoder as a Flax module, for your own models."""

from collections.abc import Mapping

import flax.linen as nn
from jax import Array
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from afjax.config.adapters import Adapter
from afjax.config.fusion import FusionConfig
from afjax.errors import UserError
from afjax.model.model import Model
from afjax.model.setup import wrong_leaf
from afjax.trees import AnyArray, Tree
from afjax.trunk.config import TrunkConfig
from afjax.trunk.encoder import init_trunk

_FUSION = "fusion"


class Encoder(nn.Module):
    """A BERT-family encoder as a Linen module.

    Only the trunk's parameters belong to the module, so optimizers and checkpoints of the surrounding module include
    them. Adapters and a fusion are arguments of the call. You decide where they come from, and whether to compute
    gradients with respect to them.

    Attributes:
      config: The trunk's architecture.
      adapters: ``(name, architecture)`` for each adapter in the encoder: none, one, or the fused adapters in order.
      fusion: The fusion's architecture, if several adapters are fused.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from afjax import Encoder
      >>> from afjax.trunk.config import TrunkConfig
      >>> sizes = {"hidden_size": 8, "num_layers": 2, "num_heads": 2, "intermediate_size": 16}
      >>> config = TrunkConfig(family="bert", vocab_size=30, max_positions=16, type_vocab_size=2, **sizes)
      >>> inputs = (jnp.ones((1, 4), int), jnp.zeros((1, 4), int), jnp.ones((1, 4), bool))
      >>> variables = jax.jit(Encoder(config).init)(jax.random.key(0), *inputs)
      >>> sorted(variables["params"]), jax.jit(Encoder(config).apply)(variables, *inputs).shape
      (['embeddings', 'layers'], (1, 4, 8))
    """

    config: TrunkConfig
    adapters: tuple[tuple[str, Adapter], ...] = ()
    fusion: FusionConfig | None = None

    @nn.compact
    def __call__(
        self,
        tokens: Int[AnyArray, "batch length"],
        types: Int[AnyArray, "batch length"],
        mask: Bool[AnyArray, "batch length"],
        *,
        adapters: Mapping[str, Tree] | None = None,
        fusion: Tree | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "batch length hidden"]:
        """Computes the last hidden states.

        Args:
          tokens: int32 ``[batch, length]``, token ids.
          types: int32 ``[batch, length]``, token types: 0 for the first text and 1 for the second.
          mask: bool ``[batch, length]``, False at padding.
          adapters: The adapters' trees by name; :func:`afjax.load_adapter` loads one.
          fusion: The fusion's tree, if the module has a fusion.
          key: The dropout key, or None for no dropout. Linen's ``rngs`` are not used.

        Returns:
          ``[batch, length, hidden_size]``, in the dtype of the trunk's word embeddings.

        Raises:
          UserError: The names of ``adapters`` differ from the module's, or only one of the module and the call has a
            fusion; an adapter does not match its config or is in a layer that the trunk does not have; the adapters
            cannot be fused; or the rows have more tokens than the trunk has positions.
        """
        expected, given = sorted(name for name, _ in self.adapters), sorted(adapters or {})
        if expected != given:
            raise UserError(
                f"The call has the adapters {', '.join(given) or 'none'}, but the Encoder was created with "
                f"{', '.join(expected) or 'none'}; pass one tree for each adapter of the Encoder."
            )
        if (fusion is None) != (self.fusion is None):
            given_fusion, own_fusion = ("no" if part is None else "a" for part in (fusion, self.fusion))
            raise UserError(
                f"The call has {given_fusion} fusion, but the Encoder was created with {own_fusion} fusion."
            )
        # A pretrained trunk has the same tree, plus a pooler that is not used here.
        norm = ("norm",) if self.config.encoder_family.layer == "pre_norm" else ()
        trunk = {
            name: self.param(name, lambda rng, name=name: init_trunk(rng, self.config)[name])
            for name in ("embeddings", "layers", *norm)
        }
        for name, config in self.adapters:
            if problem := wrong_leaf(config, (adapters or {})[name], self.config, trunk):
                raise UserError(f'The adapter "{name}" does not fit the Encoder: {problem}.')
        model = Model(
            trunk=self.config,
            head_name="",
            adapters=self.adapters,
            fusion_name=_FUSION if self.fusion is not None else "",
            fusion=self.fusion or FusionConfig(),
        )
        params = {"trunk": trunk, "adapters": adapters or {}, "fusion": {_FUSION: fusion}}
        return model.hidden_states(params, {"tokens": tokens, "types": types, "mask": mask}, key=key)
