"""The complete model: a trunk, adapters in its slots, their fusion, and a head.

The caller passes the parameters as one tree with four roots::

    {"trunk": {...}, "adapters": {<name>: {...}}, "fusion": {<name>: {...}}, "heads": {<name>: {...}}}

A fusion of frozen adapters runs faster if its parameters are converted first: by :meth:`Model.with_bank` for training,
or by :meth:`Model.fold` for inference.
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from afjax.adapters.kinds import adapter_layers, dense_slots, reads_all_tokens, slot_kind, top_kind
from afjax.config.adapters import Adapter, AdapterConfig, BesideLayers, InDenseLayers, OnTop
from afjax.config.from_dict import check_value
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.values import Remat, TrunkDtype
from afjax.errors import UserError
from afjax.fusion.bank import make_bank
from afjax.fusion.checks import check_fusible, is_factored
from afjax.fusion.folded import FoldedFusion, fold_fusion
from afjax.fusion.parameters import value_penalty
from afjax.fusion.pruning import check_kept, keep_adapters, kept_config
from afjax.fusion.slot import fused_slot
from afjax.model.heads import apply_head
from afjax.model.outputs import Outputs
from afjax.nn.layers import split_key
from afjax.tasks.kind import Reads
from afjax.trees import AnyArray, Tree, merge, named_key
from afjax.trunk.config import TrunkConfig
from afjax.trunk.encoder import EncoderOptions, check_complete, encode
from afjax.trunk.layer_masks import encode_under_masks
from afjax.trunk.layers import Layers, map_parts, same_form, stack_layers, unstack_layers
from afjax.trunk.post_norm_layer import RELATIVE
from afjax.trunk.slots import FilledSlots, LayerSlots, Sublayer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A model without its parameters.

    A model is hashable, so it can be a static argument of jitted functions.

    Attributes:
      trunk: The encoder's architecture.
      head_name: The name of the head that computes the logits.
      head: The head's architecture. If its pooling is not set, the first token is used.
      reads: Whether the head's input is one pooled vector per row or every token.
      adapters: ``(name, architecture)`` for each active adapter: none, one, or the fused adapters in order.
      fusion_name: The name of the fusion; empty if there is none.
      fusion: The fusion's architecture.
      dtype: The dtype of the activations; None for the dtype of the trunk's word embeddings.
      scan_layers: Whether to compile one loop over the layers instead of straight-line code.
      remat: Which of a layer's activations the backward pass rematerializes: ``none``, all except the outputs of matrix
        products and the dropout masks (``matmuls``), or all (``layers``).

    Raises:
      UserError: ``dtype`` or ``remat`` has an unknown value, an adapter is in a layer that the trunk does not have, the
        adapters cannot be fused, or ``fusion.kept`` is not valid for them.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from afjax import Method, single_setup
      >>> from afjax.trunk.config import TrunkConfig
      >>> from afjax.trunk.encoder import init_trunk
      >>> sizes = {"hidden_size": 8, "num_layers": 2, "num_heads": 2, "intermediate_size": 16}
      >>> config = TrunkConfig(family="bert", vocab_size=30, max_positions=16, type_vocab_size=2, **sizes)
      >>> setup = single_setup(Method(), config, name="reviews", reads="pooled", num_outputs=2)
      >>> trunk = jax.jit(init_trunk, static_argnums=1)(jax.random.key(1), config)
      >>> params = setup.init(jax.random.key(0), trunk)
      >>> batch = {"tokens": jnp.ones((1, 4), int), "types": jnp.zeros((1, 4), int), "mask": jnp.ones((1, 4), bool)}
      >>> jax.jit(setup.model)(params, batch).logits.shape
      (1, 2)
    """

    trunk: TrunkConfig
    head_name: str
    head: HeadConfig = HeadConfig(pooling="first")
    reads: Reads = "pooled"
    adapters: tuple[tuple[str, Adapter], ...] = ()
    fusion_name: str = ""
    fusion: FusionConfig = FusionConfig()
    dtype: TrunkDtype | None = None
    scan_layers: bool = False
    remat: Remat = "none"

    def __post_init__(self) -> None:
        check_value(Reads, self.reads, "reads")
        check_value(Remat, self.remat, "remat")
        check_value(TrunkDtype | None, self.dtype, "dtype")
        object.__setattr__(self, "head", self.head.with_pooling("first"))
        for _, config in self.adapters:
            adapter_layers(config, self.trunk.num_layers)
        if self.fusion_name:
            check_fusible(dict(self.adapters), self.trunk.num_layers)
            check_kept(self.fusion, [config for _, config in self.adapters], self.trunk.num_layers)
        elif len(self.adapters) > 1:
            names = ", ".join(name for name, _ in self.adapters)
            raise UserError(f"There are several adapters ({names}) but no fusion; add a fusion, or pass one adapter.")

    def __call__(
        self,
        params: Tree,
        batch: Mapping[str, AnyArray],
        *,
        key: PRNGKeyArray | None = None,
        fusion_attention: bool = False,
    ) -> Outputs:
        """Runs the model.

        Activations have the model's dtype, but softmax, LayerNorm and the head are computed in float32 or wider.

        Args:
          params: The tree with four roots. Other adapters, fusions and heads in it are ignored.
          batch: ``tokens`` and ``types`` int32, ``mask`` bool, each ``[batch, length]``; for multiple choice each
            ``[batch, choices, length]``.
          key: The dropout key, or None for no dropout.
          fusion_attention: Whether to return the attention over adapters. If not, and if only the first token's hidden
            state is used, the last layer is computed for the first token only.

        Returns:
          :class:`~afjax.model.outputs.Outputs`: the logits, in float32 or wider, ``[batch, num_outputs]``
          (``[batch, length, num_outputs]`` for token heads, ``[batch, choices]`` for multiple choice), and the
          attention if it was requested.

        Raises:
          UserError: The rows have more tokens than the trunk has positions.
        """
        check_complete(batch)
        if batch["tokens"].ndim == 3:
            return self._run_choices(params, batch, key, fusion_attention)
        trunk_key, head_key = split_key(key, 2)
        trunk = self._trunk_with_layer_norms(params)
        hidden, attention = self._encode(
            params,
            trunk,
            batch,
            trunk_key,
            key,
            first_token_only=self.first_token_only and not fusion_attention,
            first_token_read=self.pools_first_token,
        )
        return Outputs(self._apply_head(params, trunk, hidden, batch["mask"].astype(bool), head_key), attention)

    def hidden_states(
        self, params: Tree, batch: Mapping[str, AnyArray], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch length hidden"]:
        """Computes the last hidden states.

        Args:
          params: The tree with four roots; heads are not used.
          batch: ``tokens`` and ``types`` int32, ``mask`` bool, each ``[batch, length]``.
          key: The dropout key, or None for no dropout.

        Returns:
          ``[batch, length, hidden_size]`` in the model's dtype, after any modules on top of the encoder.

        Raises:
          UserError: The rows have more tokens than the trunk has positions.
        """
        trunk = self._trunk_with_layer_norms(params)
        trunk_key, _ = split_key(key, 2)
        return self._encode(params, trunk, batch, trunk_key, key, first_token_only=False, first_token_read=False)[0]

    def _encode(
        self,
        params: Tree,
        trunk: Tree,
        batch: Mapping[str, AnyArray],
        trunk_key: PRNGKeyArray | None,
        key: PRNGKeyArray | None,
        *,
        first_token_only: bool,
        first_token_read: bool,
    ) -> tuple[Array, dict[str, Array]]:
        """Runs the encoder with its slots, then any module on top.

        Args:
          params, batch, key: See ``__call__``.
          trunk: The trunk's tree, with its LayerNorms replaced by the adapter's if there are any.
          trunk_key: The encoder's dropout key.
          first_token_only: Whether to compute the encoder's last layer for the first token only.
          first_token_read: Whether the head only uses the first token.
        """
        hidden, attention = encode(
            trunk,
            self.trunk,
            batch,
            slots=self.filled_slots(params, self._draw_adapters(key)),
            key=trunk_key,
            options=EncoderOptions(dtype=self.dtype, scan_layers=self.scan_layers, remat=self.remat),
            first_token_only=first_token_only,
        )
        for name, config in self.adapters:
            if isinstance(config, OnTop):
                # Use a separate key, so that a module on top leaves the head's dropout masks unchanged.
                top_key = None if key is None else named_key(key, "top")
                hidden = top_kind(config).top(
                    params["adapters"][name]["top"],
                    config,
                    self.trunk,
                    hidden,
                    batch["mask"].astype(bool),
                    key=top_key,
                    first_token_only=first_token_read,
                )
        return hidden, attention

    def under_masks(
        self, params: Tree, batch: Mapping[str, AnyArray], layer_masks: Bool[np.ndarray, "masks num_layers"]
    ) -> Float[Array, "batch masks ..."]:
        """Computes logits with the adapters active in some layers only.

        Many subsets of layers are evaluated at once. Subsets that agree on the first layers share their computation;
        see :func:`afjax.trunk.layer_masks.encode_under_masks`.

        Args:
          params: The tree with four roots.
          batch: ``tokens`` and ``types`` int32, ``mask`` bool, each ``[batch, length]``; for multiple choice each
            ``[batch, choices, length]``.
          layer_masks: bool ``[masks, num_layers]``. If False, the layer runs with empty slots but keeps the adapter's
            own LayerNorms. Entries for layers without adapters are ignored.

        Returns:
          ``[batch, masks, ...]``, in float32 or wider; for the other axes see :class:`Outputs`.

        Raises:
          UserError: The rows have more tokens than the trunk has positions.
        """
        assert not any(isinstance(config, OnTop) for _, config in self.adapters), "modules on top are not in a layer"
        if batch["tokens"].ndim == 3:
            logits = self.under_masks(params, _choices_as_rows(batch), layer_masks)[..., 0]
            rows, choices, _ = batch["tokens"].shape
            return _mask_missing_choices(jnp.swapaxes(logits.reshape(rows, choices, -1), 1, 2), batch)
        trunk = self._trunk_with_layer_norms(params)
        hidden = encode_under_masks(
            trunk,
            self.trunk,
            batch,
            layer_masks,
            slots=self.filled_slots(params),
            dtype=self.dtype,
            first_token_only=self.first_token_only,
        )
        mask = jnp.repeat(batch["mask"].astype(bool), len(layer_masks), axis=0)  # [batch * masks, length]
        logits = self._apply_head(params, trunk, hidden.reshape(-1, *hidden.shape[2:]), mask, None)
        return logits.reshape(*hidden.shape[:2], *logits.shape[1:])

    @property
    def pools_first_token(self) -> bool:
        """Whether the head only uses the first token."""
        return self.reads == "pooled" and self.head.pooling == "first"

    @property
    def first_token_only(self) -> bool:
        """Whether only the first token's last hidden state is used."""
        all_tokens = any(reads_all_tokens(config, self.trunk.num_layers) for _, config in self.adapters)
        return self.pools_first_token and not all_tokens

    def _apply_head(self, params: Tree, trunk: Tree, hidden: Array, mask: AnyArray, key: PRNGKeyArray | None) -> Array:
        rate = self.head.dropout
        if rate is None:
            rate = self.trunk.hidden_dropout if self.reads == "pooled" else 0.0
        head = params["heads"][self.head_name]
        config = dataclasses.replace(self.head, dropout=rate)
        return apply_head(head, config, trunk, hidden, mask, reads=self.reads, key=key)

    def _run_choices(
        self, params: Tree, batch: Mapping[str, AnyArray], key: PRNGKeyArray | None, fusion_attention: bool
    ) -> Outputs:
        """Runs each choice as a separate row, whose first output is the choice's logit."""
        if self.reads == "tokens":
            raise UserError(
                "The tokens have three axes, but this model's head reads every token; pass [batch, length]."
            )
        num_rows, num_choices, length = batch["tokens"].shape
        outputs = self(params, _choices_as_rows(batch), key=key, fusion_attention=fusion_attention)
        logits = outputs.logits[:, 0].reshape(num_rows, 1, num_choices)
        attention = {
            slot: slot_attention.reshape(slot_attention.shape[0], num_rows, num_choices * length, -1)
            for slot, slot_attention in outputs.fusion_attention.items()
        }
        return Outputs(_mask_missing_choices(logits, batch)[:, 0], attention)

    def fold(self, params: Tree) -> Tree:
        """Folds a fusion and its adapters for inference.

        One :class:`FoldedFusion` replaces the fusion and the adapters. The model is faster and has the same outputs,
        but it cannot be trained.

        Args:
          params: The tree with four roots, or the result of :meth:`with_bank`.

        Returns:
          The tree without adapters, and with the folded fusion under its name in ``fusion``. If there is no fusion, or
          it has no factored form, ``params`` itself is returned.
        """
        if not self.fusion_name or not is_factored(self.fused_configs()):
            return params
        roots = ("adapters", "bank")
        members = {root: params[root] for root in roots if root in params}
        folded = self._fold_fusion(params["fusion"][self.fusion_name], members)
        folded = FoldedFusion({**folded, "layers": self._contents_form(folded["layers"])})
        other_roots = {root: tree for root, tree in params.items() if root not in roots}
        return {**other_roots, "adapters": {}, "fusion": {self.fusion_name: folded}}

    @functools.partial(jax.jit, static_argnums=0)
    def _fold_fusion(self, fusion: Tree, members: Tree) -> FoldedFusion:
        bank = self._stacked_bank(members)
        return FoldedFusion({"layers": fold_fusion(fusion, bank["layers"], bank["shared"]), "shared": bank["shared"]})

    def with_bank(self, params: Tree) -> Tree:
        """Replaces ``adapters`` with a ``bank``, to train a fusion of frozen adapters.

        The bank contains the concatenated adapters and yields the same outputs. Without it, the model would build
        the bank in every step, and keep the bank and the adapters in memory.

        Args:
          params: The tree with four roots.

        Returns:
          The tree with the root ``bank`` instead of ``adapters``.
        """
        bank = self._stacked_bank(params)
        other_roots = {root: tree for root, tree in params.items() if root != "adapters"}
        return {**other_roots, "bank": {**bank, "layers": self._contents_form(bank["layers"])}}

    def _contents_form(self, contents: Tree) -> Layers:
        """Unstacks the contents of the slots, unless the layers run in a compiled loop."""
        return contents if self.scan_layers else _unstack_layers(contents)

    def penalty(self, params: Tree) -> Float[Array, ""] | float:
        """Computes the penalty that keeps a fusion's value matrices near the identity.

        Args:
          params: The tree with four roots; only ``fusion`` is used.

        Returns:
          A scalar in float32 or wider, or 0 without a fusion.
        """
        if not self.fusion_name:
            return 0.0
        return self.fusion.regularization * value_penalty(params["fusion"][self.fusion_name])

    def _trunk_with_layer_norms(self, params: Tree) -> Tree:
        """Replaces the trunk's LayerNorms with the adapter's (Houlsby 2019), if any."""
        trunk = params["trunk"]
        if not self.adapters:
            return trunk
        name, config = self.adapters[0]
        if not (isinstance(config, AdapterConfig) and config.layer_norms):
            return trunk
        return with_layer_norms(trunk, params["adapters"][name]["layer_norms"])

    def _num_fused(self) -> int:
        """Counts the adapters that each layer fuses."""
        return len(self.adapters) if self.fusion.kept is None else len(self.fusion.kept[0][0])

    def fused_configs(self) -> list[Adapter]:
        """Lists the adapters that each layer fuses.

        Returns:
          Their architectures, in order. In a pruned fusion, each layer fuses fewer adapters than the model has.
        """
        configs = [config for _, config in self.adapters]
        if self.fusion.kept is None:
            return configs
        return [kept_config(configs[0])] * self._num_fused()

    def _stacked_bank(self, params: Tree) -> Tree:
        """Returns the bank ``{"layers", "shared"}``, and builds it if necessary.

        ``layers`` contains the stacked contents of the slots, and ``shared`` the leaves shared by all layers.
        """
        if "bank" in params:
            return {"shared": {}, **params["bank"], "layers": stack_layers(params["bank"]["layers"])}
        adapters = [params["adapters"][name] for name, _ in self.adapters]
        if self.fusion.kept is not None:
            adapters = keep_adapters(adapters, self.adapters[0][1], self.fusion.kept)
        stacked, shared = make_bank(adapters, self.fused_configs())
        return {"layers": stacked, "shared": shared}

    def _draw_adapters(self, key: PRNGKeyArray | None) -> Bool[Array, "num_adapters"] | None:
        """Samples the adapters to fuse in this training step, or returns None for all."""
        if not self.fusion_name or key is None or self.fusion.subset is None:
            return None
        order = jax.random.permutation(named_key(key, "subset"), self._num_fused())
        return order < self.fusion.subset

    def filled_slots(self, params: Tree, drawn: Bool[Array, "num_adapters"] | None = None) -> FilledSlots:
        """Fills the encoder's slots with the adapter or the fusion.

        Args:
          params: The tree with four roots; trunk and heads are not used.
          drawn: bool ``[N]``, the adapters to fuse in this training step, or None for all.

        Returns:
          The filled slots, for :func:`afjax.trunk.encoder.encode`.
        """
        contents, shared = self._slot_contents(params)
        return FilledSlots(
            layers=adapter_layers(self.adapters[0][1], self.trunk.num_layers) if self.adapters else (),
            contents=contents,
            shared=(shared, drawn),
            make=self.layer_slots,
        )

    def _slot_contents(self, params: Tree) -> tuple[Layers, Tree]:
        """Returns the slots' contents by layer, and the leaves shared by all layers."""
        if not self.adapters:
            return {}, {}
        if not self.fusion_name:
            (name, config), *_ = self.adapters
            tree = params["adapters"][name]
            stacked = {slot: tree[slot] for slot in config.slots}
            return stacked, {slot: tree["shared"] for slot in config.slots if "shared" in tree}
        fusion = params["fusion"][self.fusion_name]
        if isinstance(fusion, FoldedFusion):
            return fusion["layers"], fusion["shared"]
        if "bank" in params:
            bank = {"shared": {}, **params["bank"]}
        else:
            bank = self._stacked_bank(params)
            bank["layers"] = self._contents_form(bank["layers"])
        return map_parts(_with_fusion, bank["layers"], same_form(fusion, bank["layers"])), bank["shared"]

    def layer_slots(
        self, contents: Tree, shared: tuple[Tree, Bool[Array, "num_adapters"] | None], key: PRNGKeyArray | None
    ) -> LayerSlots:
        """Builds one layer's slots, as the ``make`` function of :meth:`filled_slots`.

        Args:
          contents: The layer's part of ``FilledSlots.contents``.
          shared: The leaves shared by all layers, and the adapters to fuse in this training step, or None for all.
          key: The dropout key, or None for no dropout.

        Returns:
          The slots.
        """
        leaves, drawn = shared
        config = self.adapters[0][1]
        if isinstance(config, InDenseLayers):
            return LayerSlots(dense_layers=dense_slots(contents, config, key=key))
        sublayers = {
            slot: functools.partial(self._run_slot, merge(params, leaves.get(slot, {})), slot_key, drawn)
            for (slot, params), slot_key in zip(contents.items(), split_key(key, len(contents)), strict=True)
        }
        return LayerSlots(sublayers=sublayers)

    def _run_slot(
        self, params: Tree, key: Array | None, drawn: Array | None, sublayer: Sublayer
    ) -> tuple[Array, Array | None]:
        if self.fusion_name:
            return fused_slot(params, self.fused_configs(), self.fusion, sublayer, key=key, drawn=drawn)
        config = self.adapters[0][1]
        assert isinstance(config, AdapterConfig | BesideLayers), "other kinds do not fill slots after sub-layers"
        return slot_kind(config).slot(params, config, sublayer, key), None


def _choices_as_rows(batch: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    rows, choices, length = batch["tokens"].shape
    return {name: batch[name].reshape(rows * choices, length) for name in ("tokens", "types", "mask")}


def _mask_missing_choices(logits: Array, batch: Mapping[str, AnyArray]) -> Array:
    """Sets the logits of missing choices to the lowest number of the dtype.

    The logits are ``[batch, n, choices]``, where n is 1 or the number of layer masks.
    """
    present = jnp.any(batch["mask"], -1)  # [batch, choices]
    return jnp.where(present[:, None], logits, jnp.finfo(logits.dtype).min)


# Compiled as one program, so that leaves that are sharded across several hosts are not sliced one by one.
_unstack_layers = jax.jit(unstack_layers)


def _with_fusion(bank: Tree, fusion: Tree) -> Tree:
    """Adds the fusion's parameters to a bank's slots, for one layer or stacked."""
    return {slot: {**adapters, "fusion": fusion[slot]} for slot, adapters in bank.items()}


def _with_norms(layers: Tree, norms: Tree) -> Tree:
    """Replaces the LayerNorms in one layer or in stacked layers."""
    return {block: {**layers[block], "norm": norms[block]} for block in layers}


def with_layer_norms(trunk: Tree, norms: Tree) -> Tree:
    """Replaces a trunk's LayerNorms with those in ``norms``.

    ``norms`` has the same structure as the result of :func:`trunk_layer_norms`.
    """
    layer_norms = same_form({block: norms[block] for block in ("attention", "ffn")}, trunk["layers"])
    embeddings = {**trunk["embeddings"], "norm": norms["embeddings"]}
    if RELATIVE in norms:
        embeddings[RELATIVE] = {**embeddings[RELATIVE], "norm": norms[RELATIVE]}
    final = {"norm": norms["final"]} if "final" in norms else {}
    layers = map_parts(_with_norms, trunk["layers"], layer_norms)
    return {**trunk, "embeddings": embeddings, "layers": layers, **final}


def trunk_layer_norms(trunk: Tree) -> Tree:
    """Copies a trunk's LayerNorms, to initialize an adapter's ``layer_norms``.

    Returns:
      ``{embeddings, attention, ffn}``, plus ``relative`` if the trunk has disentangled attention, and ``final`` if a
      LayerNorm follows the top layer.
    """
    layer_norms = map_parts(lambda layers: {block: params["norm"] for block, params in layers.items()}, trunk["layers"])
    final = {"final": trunk["norm"]} if "norm" in trunk else {}
    embeddings = trunk["embeddings"]
    norms = {"embeddings": embeddings["norm"], **stack_layers(layer_norms), **final}
    if RELATIVE in embeddings:
        norms[RELATIVE] = embeddings[RELATIVE]["norm"]
    return jax.tree.map(lambda leaf: leaf.copy(), norms)
