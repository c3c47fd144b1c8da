"""The compiled program of a routed model.

It runs each row with its own adapter or fusion, and its own head. The program for one row selects the row's parameters
from the banks, and ``vmap`` applies it to all rows. Because the trunk's matrices are the same for all rows, each
product with them remains a single matmul for the entire batch.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int, PRNGKeyArray

from afjax.adapters.kinds import reads_all_tokens, top_kind
from afjax.config.adapters import DENSE_LAYERS, InDenseLayers, OnTop
from afjax.config.values import Pooling
from afjax.model.heads import apply_head
from afjax.model.model import trunk_layer_norms, with_layer_norms
from afjax.model.outputs import Outputs
from afjax.nn.pooling import pool
from afjax.serve.forms import HeadForm, SlotForm
from afjax.trees import Tree
from afjax.trunk.config import TrunkConfig
from afjax.trunk.encoder import encode
from afjax.trunk.layers import UnstackedLayers
from afjax.trunk.slots import PLAIN_DENSE_SLOT, DenseSlot, FilledSlots, LayerSlots, Slot, Sublayer, plain_slot


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoutedPlan:
    """The static part of the program, a hashable static argument for ``jax.jit``.

    Attributes:
      trunk: The encoder's architecture.
      slots: The forms of adapters and fusions, one per bank.
      heads: The forms of heads, one per bank.
      pooling: The pooling for embeddings.
      normalize: Whether embeddings are scaled to unit norm.
    """

    trunk: TrunkConfig
    slots: tuple[SlotForm, ...]
    heads: tuple[HeadForm, ...]
    pooling: Pooling
    normalize: bool

    @property
    def num_fused(self) -> dict[str, int]:
        """Adapters per fusion for each bank of fusions, keyed by bank number as a string."""
        return {str(n): form.num_adapters for n, form in enumerate(self.slots) if form.model.fusion_name}

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers in which any task has an adapter or a fusion, in ascending order."""
        return tuple(sorted({layer for form in self.slots for layer in form.layers}))

    @property
    def num_shared_layers(self) -> int:
        """The number of layers below the first adapter or fusion in any task."""
        return min(self.layers, default=self.trunk.num_layers)

    @property
    def first_token_only(self) -> bool:
        """Whether only the first token's last hidden state is used."""
        pools_first = all(head.reads == "pooled" and head.config.pooling == "first" for head in self.heads)
        attends = any(reads_all_tokens(config, self.trunk.num_layers) for form in self.slots for config in form.configs)
        return self.pooling == "first" and pools_first and not attends


def routed_outputs(
    plan: RoutedPlan, params: Tree, batch: dict[str, Array], places: Int[Array, "batch banks"]
) -> dict[str, Any]:
    """Runs each row with its own adapter or fusion, and its own head.

    Args:
      plan: The static part of the program.
      params: ``trunk``, with unstacked layers, and ``banks``, with one tree per form in ``plan.slots``, followed by one
        per form in ``plan.heads``. The first axis of a bank's leaves is the place. Place 0 is empty.
      batch: ``tokens`` and ``types`` int32, ``mask`` bool, each ``[batch, length]``.
      places: Each row's place in each bank, int32. A row with place 0 does not use the bank.

    Returns:
      ``embedding`` ``[batch, hidden_size]``, and ``heads``, a list with one array per bank of heads, ``[batch,
      num_outputs]`` or ``[batch, length, num_outputs]``. Both are in float32 or wider.
    """
    used = (places > 0).any(0)

    def run_row(row: Tree, row_places: Array) -> dict[str, Any]:
        return _run_row(plan, params, row, row_places, used)

    return jax.vmap(run_row)(batch, places)


def all_outputs(
    plan: RoutedPlan, params: Tree, batch: dict[str, Array], places: Int[Array, "tasks banks"]
) -> dict[str, Any]:
    """Runs each row with several tasks.

    The layers below the first adapter do not depend on the task, so they are computed once per row.

    Args:
      plan, params, batch: As in :func:`routed_outputs`.
      places: Each task's place in each bank, int32.

    Returns:
      The same outputs as :func:`routed_outputs`, with a task axis after the batch axis.
    """
    used = (places > 0).any(0)

    def run_row(row: Tree) -> dict[str, Any]:
        return jax.vmap(lambda task_places: _run_row(plan, params, row, task_places, used))(places)

    return jax.vmap(run_row)(batch)


def attention_outputs(
    plan: RoutedPlan, params: Tree, batch: dict[str, Array], places: Int[Array, "batch banks"]
) -> dict[str, Any]:
    """Computes each row's attention over adapters.

    Args:
      plan, params, batch, places: As in :func:`routed_outputs`.

    Returns:
      ``{slot: [batch, layers, adapters]}``, averaged over the row's tokens. The second axis covers the layers in which
      any task has an adapter or a fusion, in ascending order. The adapters of all fusion banks are concatenated, in the
      order of the banks. For banks that a row does not use, the attention is zero.
    """
    used = (places > 0).any(0)

    def run_row(row: Tree, row_places: Array) -> dict[str, Any]:
        _, _, attention = _encode_row(plan, params, row, row_places, used, fusion_attention=True)
        averages = Outputs(jnp.zeros(1), attention).row_attention(row["mask"][None])
        return {slot: average[0] for slot, average in averages.items()}

    return jax.vmap(run_row)(batch, places)


def _run_row(plan: RoutedPlan, params: Tree, row: Tree, places: Array, used: Array) -> dict[str, Any]:
    """Runs one row with the adapter or fusion, and the head, at its places.

    Args:
      plan, params: As in :func:`routed_outputs`.
      row: The row's ``tokens``, ``types`` and ``mask``, each ``[length]``.
      places: int32 ``[banks]``, the row's places.
      used: bool ``[banks]``, whether any row of the batch uses the bank.
    """
    trunk, hidden, _ = _encode_row(plan, params, row, places, used)
    mask = row["mask"][None]
    outputs = []
    for number, form in enumerate(plan.heads, start=len(plan.slots)):
        head = _pick(params["banks"][number], places[number])
        outputs.append(apply_head(head, form.config, trunk, hidden, mask, reads=form.reads, key=None)[0])
    embedding = pool(hidden.astype(jnp.promote_types(hidden.dtype, jnp.float32)), mask, plan.pooling)[0]
    if plan.normalize:
        # Trunk.embed has the same minimum norm.
        embedding = embedding / jnp.maximum(jnp.linalg.norm(embedding), 1e-12)
    return {"embedding": embedding, "heads": outputs}


def _encode_row(
    plan: RoutedPlan, params: Tree, row: Tree, places: Array, used: Array, *, fusion_attention: bool = False
) -> tuple[Tree, Array, dict[str, Array]]:
    """Runs the encoder, and any module on top of it, for one row.

    Args:
      plan, params, row, places, used: As in :func:`_run_row`.
      fusion_attention: Whether to return the attention over adapters.

    Returns:
      The trunk with the row's LayerNorms, the last hidden states ``[1, length, hidden_size]`` (or the first token's
      only), and the attention over adapters ``{slot: [layers, 1, length, adapters]}``.
    """
    inputs = {name: values[None] for name, values in row.items()}  # [1, length]
    members = [
        _Member(form, bank, places[number], used[number] if len(plan.slots) > 1 else None)
        for number, (form, bank) in enumerate(zip(plan.slots, params["banks"], strict=False))
    ]
    trunk = _with_own_norms(params["trunk"], members)
    first_token_only = plan.first_token_only and not fusion_attention
    slots = _routed_slots(members, plan.num_fused if fusion_attention else {})
    hidden, attention = encode(trunk, plan.trunk, inputs, slots=slots, first_token_only=first_token_only)
    for member in members:
        if isinstance(member.form.configs[0], OnTop):
            run = functools.partial(_run_on_top, plan, member, hidden, inputs["mask"])
            hidden = member.if_used(run, hidden)
    return trunk, hidden, attention


@dataclasses.dataclass(frozen=True)
class _Member:
    """A bank of adapters or fusions, and a row's place in it.

    Attributes:
      form: The form of the bank's entries.
      bank: The bank, or one layer of it.
      place: The row's place.
      used: Whether any row in the batch uses the bank. None if there is only one bank, which needs no branch.
    """

    form: SlotForm
    bank: Tree
    place: Array
    used: Array | None

    def if_used(self, compute: Callable[[], Any], otherwise: Any) -> Any:
        """Runs ``compute`` if the bank is used, and otherwise returns ``otherwise``."""
        return compute() if self.used is None else jax.lax.cond(self.used, compute, lambda: otherwise)

    def layer_slots(self) -> tuple[Array, LayerSlots]:
        """Fills one layer's slots, and returns whether the row has contents for them."""
        own = _pick(self.bank["layer"], self.place)
        shared = _pick(self.bank["shared"], self.place)
        return (self.place > 0) & own["present"], self.form.model.layer_slots(own["contents"], shared, None)


def _run_on_top(plan: RoutedPlan, member: _Member, hidden: Array, mask: Array) -> Array:
    """Runs the row's module on top of the encoder, if any."""
    config = member.form.configs[0]
    assert isinstance(config, OnTop), "other forms are in the layers"
    own = _pick(member.bank["top"], member.place)
    output = top_kind(config).top(
        own, config, plan.trunk, hidden, mask, key=None, first_token_only=plan.first_token_only
    )
    return jnp.where(member.place > 0, output, hidden)


def _pick(bank: Any, place: Array) -> Any:
    """Selects a row's entry from a bank, which is a gather inside ``vmap``."""
    return jax.tree.map(lambda leaf: leaf[place], bank)


def _with_own_norms(trunk: Tree, members: Sequence[_Member]) -> Tree:
    """Replaces the trunk's LayerNorms with those in the row's adapter, if any."""
    with_norms = [member for member in members if "norms" in member.bank]
    if not with_norms:
        return trunk
    norms = trunk_layer_norms(trunk)
    for member in with_norms:
        own, is_own = _pick(member.bank["norms"], member.place), member.place > 0
        norms = jax.tree.map(lambda new, old, is_own=is_own: jnp.where(is_own, new, old), own, norms)
    return with_layer_norms(trunk, norms)


def _routed_slots(members: Sequence[_Member], num_fused: Mapping[str, int]) -> FilledSlots:
    """Fills the encoder's slots with the contents of all banks.

    Args:
      members: All banks of adapters and fusions, and a row's places in them.
      num_fused: ``RoutedPlan.num_fused`` if the attention over adapters is returned, otherwise empty.
    """
    numbered = {str(number): member for number, member in enumerate(members)}
    layers = sorted({layer for member in members for layer in member.form.layers})
    forms = {name: member.form for name, member in numbered.items()}
    attention_slots = {slot for name in num_fused for slot in forms[name].configs[0].slots}

    def make(contents: Tree, shared: Tree, key: PRNGKeyArray | None) -> LayerSlots:
        layer_members = {}
        for name, layer in contents.items():
            bank = {"layer": layer, "shared": shared[name]["shared"]}
            layer_members[name] = _Member(forms[name], bank, shared[name]["place"], shared[name]["used"])
        return _combined(layer_members, num_fused, attention_slots)

    contents = {
        str(position): {
            name: member.bank["layers"][str(layer)] for name, member in numbered.items() if layer in member.form.layers
        }
        for position, layer in enumerate(layers)
    }
    shared = {
        name: {"shared": member.bank["shared"], "place": member.place, "used": member.used}
        for name, member in numbered.items()
    }
    return FilledSlots(layers=tuple(layers), contents=UnstackedLayers(contents), shared=shared, make=make)


def _combined(
    members: Mapping[str, _Member], num_fused: Mapping[str, int], attention_slots: Collection[str]
) -> LayerSlots:
    """Combines the members' slots in one layer.

    A combined slot outputs the result of the member that the row uses, or the plain encoder's output if there is none.

    Args:
      members: The members that have contents in this layer.
      num_fused: As in :func:`_routed_slots`.
      attention_slots: The slots that return the attention over adapters, in all layers.
    """
    sublayers: dict[str, dict[str, _Member]] = {slot: {} for slot in sorted(attention_slots)}
    dense_layers: dict[str, list[_Member]] = {}
    for name, member in members.items():
        config = member.form.configs[0]
        if isinstance(config, InDenseLayers):
            for module in config.target_modules:
                dense_layers.setdefault("/".join(DENSE_LAYERS[module]), []).append(member)
        else:
            for slot in config.slots:
                sublayers.setdefault(slot, {})[name] = member
    return LayerSlots(
        sublayers={
            slot: _combined_sublayer(slot, own, num_fused if slot in attention_slots else {})
            for slot, own in sublayers.items()
        },
        dense_layers={path: _combined_dense_layer(path, own) for path, own in dense_layers.items()},
    )


def _combined_sublayer(slot: str, members: Mapping[str, _Member], num_fused: Mapping[str, int]) -> Slot:
    def run(sublayer: Sublayer) -> tuple[Array, Array | None]:
        hidden, _ = plain_slot(sublayer)
        attention = {name: jnp.zeros((*hidden.shape[:2], number), hidden.dtype) for name, number in num_fused.items()}

        def with_member(member: _Member, hidden: Array, attention: Array | None) -> tuple[Array, Array | None]:
            is_filled, slots = member.layer_slots()
            new_hidden, new_attention = slots.sublayers[slot](sublayer)
            if attention is not None and new_attention is not None:
                attention = jnp.where(is_filled, new_attention.astype(attention.dtype), attention)
            return jnp.where(is_filled, new_hidden, hidden), attention

        for name, member in members.items():
            before = hidden, attention.get(name)
            hidden, own_attention = member.if_used(functools.partial(with_member, member, *before), before)
            if own_attention is not None:
                attention[name] = own_attention
        return hidden, jnp.concatenate(list(attention.values()), -1) if attention else None

    return run


def _combined_dense_layer(path: str, members: Sequence[_Member]) -> DenseSlot:
    def apply(layer: Tree, x: Array) -> Array:
        # Unused members are not skipped with a branch. Every member also computes the trunk's dense layer, and the
        # compiler can only merge these computations if there are no branches.
        outputs = PLAIN_DENSE_SLOT.apply(layer, x)
        for member in members:
            is_filled, slots = member.layer_slots()
            outputs = jnp.where(is_filled, slots.dense_layers[path].apply(layer, x), outputs)
        return outputs

    # Merging would copy the trunk's matrix for each row.
    return DenseSlot(apply, merge=None)
