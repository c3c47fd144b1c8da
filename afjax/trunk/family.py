"""The differences between encoder families such as BERT and RoBERTa."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from afjax.trees import AnyArray


class Weight(NamedTuple):
    """Describes how a checkpoint's tensor is converted to leaves of a trunk's tree.

    Attributes:
      paths: The leaves' paths in the trunk's tree, relative to ``layers`` if the tensor belongs to a layer. If there
        are several leaves, the tensor is split into equal parts along its first axis.
      transposed: Whether the tensor is ``[out, in]``, as in torch; our kernels are ``[in, out]``.
      if_set: The field of ``TrunkConfig`` that says whether the encoder has the tensor. None if all encoders of the
        family have it.
      first_layer: If the first layer does not have the tensor, the number that fills the first layer's leaf, a vector
        with the size of the hidden states. The encoder does not use it. None if the first layer has the tensor.
    """

    paths: tuple[str, ...]
    transposed: bool = False
    if_set: str | None = None
    first_layer: float | None = None


def dense_weights(name: str, *paths: str, bias_if_set: str | None = None) -> dict[str, Weight]:
    """Returns the tensors of a dense layer that is called ``name`` in a checkpoint.

    A checkpoint can store several dense layers as one. They then have several paths in the trunk's tree.

    Args:
      name: The name in a checkpoint.
      *paths: The paths of the dense layers in the trunk's tree.
      bias_if_set: The field of ``TrunkConfig`` that says whether the dense layers have biases. None if they always do.
    """
    kernels, biases = (tuple(f"{path}/{leaf}" for path in paths) for leaf in ("kernel", "bias"))
    return {f"{name}.weight": Weight(kernels, transposed=True), f"{name}.bias": Weight(biases, if_set=bias_if_set)}


def norm_weights(
    name: str, path: str, *, bias_if_set: str | None = None, in_first_layer: bool = True
) -> dict[str, Weight]:
    """Returns the tensors of a LayerNorm that is called ``name`` in a checkpoint.

    Args:
      name: The name in a checkpoint.
      path: The path in the trunk's tree.
      bias_if_set: The field of ``TrunkConfig`` that says whether the LayerNorm has a bias. None if it always does.
      in_first_layer: Whether the first layer has the LayerNorm.
    """
    scale, bias = (None, None) if in_first_layer else (1.0, 0.0)
    return {
        f"{name}.weight": Weight((f"{path}/scale",), first_layer=scale),
        f"{name}.bias": Weight((f"{path}/bias",), if_set=bias_if_set, first_layer=bias),
    }


def table_weights(name: str, path: str) -> dict[str, Weight]:
    """Returns the tensor of an embedding table, called ``name`` in a checkpoint."""
    return {f"{name}.weight": Weight((path,))}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightNames:
    """The names of a family's tensors in Hugging Face's checkpoints.

    Attributes:
      prefix: The prefix of the encoder's tensors in a checkpoint that also has a head.
      embeddings: The tensors of the embeddings, and others that do not belong to a layer.
      projection: The tensors of the dense layer from the embeddings to the first layer. A checkpoint has them if its
        embeddings do not have the size of the hidden states.
      layer: The prefix of a layer's tensors, such as ``encoder.layer``. The layer's number follows it.
      layers: The tensors of a layer, by the part of their names after the layer's number.
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
        """The first components of all tensors' names after the prefix, such as ``embeddings``."""
        names = (*self.embeddings, *self.projection, self.layer, *self.pooler)
        return frozenset(name.partition(".")[0] for name in names)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelativeBias:
    """A learned bias of the attention scores, which depends on the tokens' distance.

    All layers share it.

    Attributes:
      num_entries: The rows of the table ``embeddings/relative_position``, ``[num_entries, num_heads]``.
      entry: Maps distances (the key's position minus the query's), int32 ``[distances]``, to rows of the table.
    """

    num_entries: int
    entry: Callable[[AnyArray], AnyArray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderFamily:
    """A family of encoders. Each is defined by a module of this package (``FAMILY``).

    Attributes:
      name: The ``model_type`` in Hugging Face's ``config.json``.
      config_names: Maps fields of ``TrunkConfig`` to their names in ``config.json``. A field without a name has its
        value in ``constants``, or its default.
      constants: Values of fields of ``TrunkConfig`` that all encoders of the family have.
      defaults: Values of fields of ``TrunkConfig`` that ``config.json`` may lack, if they differ from BERT's.
      required: Fields of ``config.json`` with the only value that the family's code supports. They may be missing.
      plain_config: Converts other versions of ``config.json`` to the one that ``config_names`` describes. It takes the
        contents, and the file's name for error messages. None if there is only one version.
      declared: Fields of ``config.json`` that may not be missing, each with the values that the family's code supports.
        All values of a field mean the same.
      implied: Fields of ``config.json`` that may be missing, each with the field or property of ``TrunkConfig`` that it
        must equal.
      weight_names: The names of the tensors.
      default_pad_id: The padding token's id if ``config.json`` does not specify it.
      first_position: Maps the padding token's id to the position of a row's first token.
      position_embeddings: Maps the table ``[max_positions, size]``, tokens ``[batch, length]`` and the padding token's
        id to the position embeddings ``[batch, length, size]``. None if the family has no table of positions.
      relative_bias: The bias of the attention scores, or None.
      layer: The form of the layers: ``post_norm`` (:mod:`afjax.trunk.encoder_layer`), or ``pre_norm``
        (:mod:`afjax.trunk.pre_norm_layer`). A LayerNorm follows the top layer of the latter.
      pooling_field: The field of ``config.json`` with the pooling of classifiers, ``cls`` or ``mean``. None if there is
        no such field, and classifiers pool the first token.
    """

    name: str
    config_names: Mapping[str, str]
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    required: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    plain_config: Callable[[Mapping[str, Any], str], Mapping[str, Any]] | None = None
    declared: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    implied: Mapping[str, str] = dataclasses.field(default_factory=dict)
    weight_names: WeightNames
    default_pad_id: int
    first_position: Callable[[int], int]
    position_embeddings: Callable[[AnyArray, AnyArray, int], AnyArray] | None
    relative_bias: RelativeBias | None = None
    layer: Literal["post_norm", "pre_norm"] = "post_norm"
    pooling_field: str | None = None

    @property
    def has_pooler(self) -> bool:
        """Whether checkpoints of the family can have a pooler."""
        return bool(self.weight_names.pooler)
