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
      transposed: Whether the tensor is ``[out, in]``, as in torch. Kernels in the trunk's tree are ``[in, out]``.
      if_set: The field of ``TrunkConfig`` that specifies whether the encoder has the tensor. None if all encoders of
        the family have it.
      first_layer: None if the first layer has the tensor. Otherwise the number that fills the first layer's entry of
        the leaf, ``[hidden_size]``. The encoder does not use this entry.
    """

    paths: tuple[str, ...]
    transposed: bool = False
    if_set: str | None = None
    first_layer: float | None = None


def dense_weights(name: str, *paths: str, bias_if_set: str | None = None) -> dict[str, Weight]:
    """Returns the tensors of a dense layer that is called ``name`` in a checkpoint.

    Args:
      name: The name in a checkpoint.
      *paths: The paths of the dense layer in the trunk's tree. There are several paths if the checkpoint stores several
        dense layers as one.
      bias_if_set: The field of ``TrunkConfig`` that specifies whether the dense layers have biases. None if they always
        do.

    Returns:
      ``{name: weight}``, with the tensors' names in the checkpoint.
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
      bias_if_set: The field of ``TrunkConfig`` that specifies whether the LayerNorm has a bias. None if it always does.
      in_first_layer: Whether the first layer has the LayerNorm.

    Returns:
      ``{name: weight}``, with the tensors' names in the checkpoint.
    """
    scale, bias = (None, None) if in_first_layer else (1.0, 0.0)
    return {
        f"{name}.weight": Weight((f"{path}/scale",), first_layer=scale),
        f"{name}.bias": Weight((f"{path}/bias",), if_set=bias_if_set, first_layer=bias),
    }


def table_weights(name: str, path: str) -> dict[str, Weight]:
    """Returns the tensor of a table that is called ``name`` in a checkpoint."""
    return {f"{name}.weight": Weight((path,))}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightNames:
    """The names of a family's tensors in Hugging Face's checkpoints.

    Attributes:
      prefix: The prefix of the encoder's tensors in a checkpoint that also has a head.
      embeddings: The tensors of the embeddings, and other tensors that do not belong to a layer.
      projection: The tensors of the dense layer from the embeddings to the first layer. A checkpoint has these tensors
        if its embeddings and hidden states differ in size.
      layer: The prefix of a layer's tensors, such as ``encoder.layer``. In a name, the layer's number follows it.
      layers: The tensors of a layer. Their names lack the prefix and the layer's number.
      pooler: The tensors of the pooler. Empty if the family has no pooler.
      unused: The names of other tensors that a checkpoint may have. The encoder does not read these tensors.
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
        """The first parts of all tensors' names after the prefix, such as ``embeddings``."""
        names = (*self.embeddings, *self.projection, self.layer, *self.pooler)
        return frozenset(name.partition(".")[0] for name in names)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelativeBias:
    """A learned bias of the attention scores.

    The bias depends on the distance of two tokens. All layers share it.

    Attributes:
      num_entries: The number of rows of the table ``embeddings/relative_position``, ``[num_entries, num_heads]``.
      entry: Maps distances to rows of the table. A distance is the key's position minus the query's position, int32
        ``[distances]``.
    """

    num_entries: int
    entry: Callable[[AnyArray], AnyArray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderFamily:
    """A family of encoders.

    Each family is the ``FAMILY`` of a module in this package.

    Attributes:
      name: The ``model_type`` in Hugging Face's ``config.json``.
      config_names: Maps fields of ``TrunkConfig`` to their names in ``config.json``. A field without a name has the
        value in ``constants``, or else the default of ``TrunkConfig``.
      constants: Fields of ``TrunkConfig`` that have the same value for all encoders of the family.
      defaults: The family's defaults for fields of ``TrunkConfig``, where they differ from BERT's defaults. They apply
        if ``config.json`` lacks the field.
      required: Fields of ``config.json`` that must have the given value, because the family's code supports no other
        value. They may be missing.
      plain_config: Converts other versions of ``config.json`` to the fields of ``config_names``. The arguments are the
        contents and the file's name, which is for error messages. None if there is only one version.
      declared: Fields that ``config.json`` must have, each with the supported values. All values of a field have the
        same meaning.
      implied: Fields of ``config.json`` that may be missing, each with the field or property of ``TrunkConfig`` that it
        must equal.
      weight_names: The names of the tensors.
      default_pad_id: The padding token's id if ``config.json`` does not specify it.
      first_position: Maps the padding token's id to the position of a row's first token.
      position_embeddings: Maps the table ``[max_positions, size]``, tokens ``[batch, length]`` and the padding token's
        id to the position embeddings ``[batch, length, size]``. None if the family has no table of positions.
      relative_bias: The bias of the attention scores, or None.
      layer: The form of the layers: ``post_norm`` (:mod:`afjax.trunk.post_norm_layer`) or ``pre_norm``
        (:mod:`afjax.trunk.pre_norm_layer`). An encoder with ``pre_norm`` layers has a LayerNorm after the top layer.
      attention_output_dropout: Whether ``post_norm`` layers apply dropout to the attention block's output. They always
        apply it to the feed-forward network's output.
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
    attention_output_dropout: bool = True
    pooling_field: str | None = None

    @property
    def has_pooler(self) -> bool:
        """Whether checkpoints of the family can have a pooler."""
        return bool(self.weight_names.pooler)
