"""The differences between encoder families such as BERT and RoBERTa."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from afjax.trees import AnyArray


class Weight(NamedTuple):
    """The leaf that a tensor of a checkpoint is converted to.

    Attributes:
      path: The leaf's path in the trunk's tree. Below ``layers`` if the tensor belongs to a layer.
      transposed: Whether the tensor is ``[out, in]``, as in torch; our kernels are ``[in, out]``.
    """

    path: str
    transposed: bool = False


def dense_weights(name: str, path: str) -> dict[str, Weight]:
    """The tensors of a dense layer that is called ``name`` in a checkpoint."""
    return {f"{name}.weight": Weight(f"{path}/kernel", transposed=True), f"{name}.bias": Weight(f"{path}/bias")}


def norm_weights(name: str, path: str) -> dict[str, Weight]:
    """The tensors of a LayerNorm that is called ``name`` in a checkpoint."""
    return {f"{name}.weight": Weight(f"{path}/scale"), f"{name}.bias": Weight(f"{path}/bias")}


def table_weights(name: str, path: str) -> dict[str, Weight]:
    """The tensor of an embedding table that is called ``name`` in a checkpoint."""
    return {f"{name}.weight": Weight(path)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightNames:
    """The names of a family's tensors in Hugging Face's checkpoints.

    Attributes:
      prefix: The first part of all names in a checkpoint that also has a head.
      embeddings: The tensors of the embeddings, and others that do not belong to a layer.
      projection: The tensors of the dense layer from the embeddings to the first layer. A checkpoint has them if its
        embeddings do not have the size of the hidden states.
      layer: The first parts of the names of a layer's tensors. The layer's number follows.
      layers: The tensors of a layer, by the rest of their names.
      pooler: The tensors of the pooler. Empty if the family has no pooler.
      unused: Other tensors that checkpoints may have and the encoder does not read.
    """

    prefix: str
    embeddings: Mapping[str, Weight]
    projection: Mapping[str, Weight] = dataclasses.field(default_factory=dict)
    layer: str
    layers: Mapping[str, Weight]
    pooler: Mapping[str, Weight] = dataclasses.field(default_factory=dict)
    unused: frozenset[str] = frozenset()

    @property
    def scopes(self) -> frozenset[str]:
        """The first parts of all names, such as ``embeddings``, without the prefix."""
        names = (*self.embeddings, *self.projection, self.layer, *self.pooler)
        return frozenset(name.partition(".")[0] for name in names)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelativeBias:
    """A learned bias of the attention scores that depends on the distance of two tokens. All layers share it.

    Attributes:
      num_entries: The rows of the table ``embeddings/relative_position``, ``[num_entries, num_heads]``.
      entry: Maps distances (the key's position minus the query's), int32 ``[distances]``, to rows of the table.
    """

    num_entries: int
    entry: Callable[[AnyArray], AnyArray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderFamily:
    """A family of encoders. Each family is a module of this package with a ``FAMILY``.

    Attributes:
      name: The ``model_type`` in Hugging Face's ``config.json``.
      config_names: The names in ``config.json`` of the fields of ``TrunkConfig``. A field without a name has the value
        in ``constants``, or its default.
      constants: Values of fields of ``TrunkConfig`` that all encoders of the family have.
      required: Fields of ``config.json`` with the only value that the family's code supports. They may be missing.
      declared: Fields of ``config.json`` that may not be missing, with the values that the family's code supports. All
        values of a field mean the same.
      implied: Fields of ``config.json`` that may be missing, each with the field or property of ``TrunkConfig`` that it
        must equal.
      weight_names: The names of the tensors.
      default_pad_id: The padding token's id if ``config.json`` does not specify it.
      first_position: Maps the padding token's id to the position of a row's first token.
      position_embeddings: Maps the table ``[max_positions, size]``, tokens ``[batch, length]`` and the padding token's
        id to the position embeddings ``[batch, length, size]``. None if the family has no such table.
      relative_bias: The bias of the attention scores, or None.
    """

    name: str
    config_names: Mapping[str, str]
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    required: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    declared: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    implied: Mapping[str, str] = dataclasses.field(default_factory=dict)
    weight_names: WeightNames
    default_pad_id: int
    first_position: Callable[[int], int]
    position_embeddings: Callable[[AnyArray, AnyArray, int], AnyArray] | None
    relative_bias: RelativeBias | None = None

    @property
    def has_pooler(self) -> bool:
        """Whether checkpoints of the family can have a pooler."""
        return bool(self.weight_names.pooler)
