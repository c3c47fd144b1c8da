"""Adapter configs: a frozen dataclass per kind, and the papers' presets.

- A bottleneck adapter (:class:`AdapterConfig`) follows a sub-layer.
- :class:`PalConfig`, :class:`LowRankConfig`, :class:`ProjectedFfnConfig` and :class:`LhucConfig` run in parallel with
  an entire layer or after it.
- :class:`TopAttentionConfig`, :class:`TopFfnConfig` and :class:`TopLayerConfig` follow the encoder.
- :class:`LoraConfig` and :class:`Ia3Config` modify the trunk's dense layers.

The second and third groups are the task modules of Stickland & Murray 2019, who train them together with the trunk.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

from afjax.config.from_dict import Settings
from afjax.config.ranges import FiniteFloat, NonNegativeFloat, PositiveFloat, PositiveInt, Proportion
from afjax.config.values import Activation
from afjax.errors import UserError

Position = Literal["attention", "ffn", "both"]
# Dense layers in an encoder layer. "attention_output" is the attention block's output projection, and "output" is the
# feed-forward network's output layer.
DenseLayer = Literal["query", "key", "value", "attention_output", "intermediate", "output"]
# Path of each dense layer within an encoder layer's parameter tree. The first component is also the slot's name.
DENSE_LAYERS: Mapping[DenseLayer, tuple[str, str]] = {
    "query": ("attention", "query"),
    "key": ("attention", "key"),
    "value": ("attention", "value"),
    "attention_output": ("attention", "output"),
    "intermediate": ("ffn", "intermediate"),
    "output": ("ffn", "output"),
}
LayerNormPlace = Literal["before", "after", "both", "none"]


class _InLayers(Settings, name="adapter"):
    """Base class of adapters with parameters in some layers. Checks and sorts the indices of these layers."""

    layers: tuple[int, ...] | None

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = self.layers
        if layers is not None:
            if not layers or len(set(layers)) != len(layers) or min(layers) < 0:
                raise UserError(f"adapter.layers is {layers}; the indices must be distinct and at least 0, or None.")
            object.__setattr__(self, "layers", tuple(sorted(layers)))

    @property
    def linear_output(self) -> bool:
        """Whether the output is linear in the inner activations. If it is, a fusion can be factored."""
        return True


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class AdapterConfig(_InLayers):
    """A bottleneck adapter.

    The options cover AdapterFusion's search space (Pfeiffer 2021, appendix A.2) and Houlsby 2019.

    Attributes:
      kind: The kind of adapter in configs and manifests.
      position: Which sub-layers an adapter follows.
      pretrained_layer_norm: Where to apply the sub-layer's pretrained LayerNorm: before the adapter, after it, both, or
        none. The layer's residual is added just before this LayerNorm. Pre-norm encoders such as ModernBERT only add
        the residual.
      new_layer_norm: Where to insert a new, trained LayerNorm: before the down-projection, after the up-projection,
        both, or none.
      residual_from: The residual added to the adapter's output: the ``sublayer`` output before the layer's residual and
        LayerNorm, the ``sum`` of this output and the layer's residual, or the adapter's ``input``.
      residual_before_new_layer_norm: Whether the residual is added before the new LayerNorm after the up-projection.
        Ignored if there is no such LayerNorm.
      reduction_factor: The bottleneck size is ``max(1, hidden_size // reduction_factor)``.
      size: The bottleneck size; overrides ``reduction_factor``.
      activation: Activation between the projections. ``gelu`` is exact, ``gelu_tanh`` is the tanh approximation.
      init: Initial distribution of the kernels. ``truncated_normal`` is truncated at two standard deviations.
      init_scale: Standard deviation of the initial kernels. Biases are initialized to zero.
      scaling: Constant scaling factor for the up-projection's output.
      layer_norms: Whether the adapter includes trained copies of all the trunk's LayerNorms, which replace the
        originals while the adapter is active (Houlsby 2019, section 2.1).
      layers: Indices of the layers with an adapter; None for all layers.

    Raises:
      UserError: A field has the wrong type or an invalid value, or ``residual_from="sum"`` is set without a pretrained
        LayerNorm before the adapter.

    Example:
      >>> from afjax import AdapterConfig
      >>> config = AdapterConfig(position="both", reduction_factor=8.0)
      >>> config.slots, config.bottleneck_size(hidden_size=768)
      (('attention', 'ffn'), 96)

    Reference:
      Houlsby et al. 2019, *Parameter-Efficient Transfer Learning for NLP*, section 2.1; Pfeiffer et al. 2021,
      *AdapterFusion*, section 3.1 and appendix A.2.
    """

    kind: Literal["bottleneck"] = "bottleneck"
    position: Position = "ffn"
    pretrained_layer_norm: LayerNormPlace = "both"
    new_layer_norm: LayerNormPlace = "none"
    residual_from: Literal["sublayer", "sum", "input"] = "sublayer"
    residual_before_new_layer_norm: bool = False
    reduction_factor: PositiveFloat = 16.0
    size: PositiveInt | None = None
    activation: Activation = "relu"
    init: Literal["normal", "truncated_normal"] = "normal"
    init_scale: NonNegativeFloat = 0.02
    scaling: FiniteFloat = 1.0
    layer_norms: bool = False
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.residual_from == "sum" and self.pretrained_layer_norm not in ("before", "both"):
            raise UserError(
                'adapter.residual_from="sum" needs pretrained_layer_norm "before" or "both": only then is '
                "the layer's residual added before the adapter."
            )

    @property
    def slots(self) -> tuple[str, ...]:
        """The sub-layers with an adapter, in execution order."""
        return ("attention", "ffn") if self.position == "both" else (self.position,)

    def bottleneck_size(self, hidden_size: int) -> int:
        if self.size is not None:
            return self.size
        return max(1, int(hidden_size // self.reduction_factor))


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class _BesideLayers(_InLayers):
    """Base class of modules that act on entire layers. Subclasses document the fields.

    A layer with a module ``TS`` computes ``LN2(h + f + TS(z))``, where ``h`` is the attention block's output and ``f``
    is the FFN's. With ``parallel`` placement, ``z`` is the layer's input. With ``serial`` placement, ``z`` is the
    layer's output without the module, ``LN2(h + f)``.
    """

    placement: Literal["parallel", "serial"] = "parallel"
    layers: tuple[int, ...] | None = None
    # The slots occupied by the module.
    slots: ClassVar[tuple[str, ...]] = ("ffn",)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class PalConfig(_BesideLayers):
    """A projected attention layer (PAL).

    Computes ``TS(x) = VD attention(VE x)``. The attention has query, key and value projections but no output
    projection.

    Attributes:
      kind: The kind of adapter in configs and manifests.
      size: Output size of VE.
      num_heads: Number of attention heads; must divide ``size``. The paper uses 12, the authors' code 6.
      shared_projections: Whether all layers share VE and VD.
      output_activation: Activation applied to VD's output. The paper uses ``none``, the authors' code ``gelu``.
      dropout: Dropout rate for the attention weights. None uses the trunk's attention dropout.
      placement: Whether the module takes the layer's input (``parallel``) or its output (``serial``).
      layers: Indices of the layers with a module; None for all layers.
      init_scale: Standard deviation of the initial kernels. Biases are initialized to zero.

    Raises:
      UserError: A field has the wrong type or an invalid value, or ``num_heads`` does not divide ``size``.

    Example:
      >>> from afjax import PalConfig
      >>> PalConfig(num_heads=6, output_activation="gelu")  # as in the authors' code
      PalConfig(num_heads=6, output_activation='gelu')

    Reference:
      Stickland & Murray 2019, *BERT and PALs*, section 3.3.
    """

    kind: Literal["pal"] = "pal"
    size: PositiveInt = 204
    num_heads: PositiveInt = 12
    shared_projections: bool = True
    output_activation: Activation | Literal["none"] = "none"
    dropout: Proportion | None = None
    init_scale: NonNegativeFloat = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_heads(self.size, self.num_heads)

    @property
    def linear_output(self) -> bool:
        return self.output_activation == "none"


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class LowRankConfig(_BesideLayers):
    """A low-rank module: ``TS(x) = VD g(VE x)``.

    See Stickland & Murray 2019, section 3.3. Each layer has its own VE and VD.

    Attributes:
      size: Output size of VE.
      activation: The activation g. The paper uses ``none`` (the identity), the authors' code ``gelu``.
      placement, layers, init_scale: See :class:`PalConfig`.
    """

    kind: Literal["low_rank"] = "low_rank"
    size: PositiveInt = 100
    activation: Activation | Literal["none"] = "none"
    init_scale: NonNegativeFloat = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ProjectedFfnConfig(_BesideLayers):
    """A PAL with a feed-forward network instead of attention.

    See Stickland & Murray 2019, section 3.3. Computes ``TS(x) = VD (W2 g(W1 VE x + b1) + b2)``.

    Attributes:
      size: Output size of VE.
      intermediate_size: Hidden size of the network. The default of 306 matches the parameter count of a PAL's
        attention.
      activation: The activation g.
      shared_projections, placement, layers, init_scale: See :class:`PalConfig`.
    """

    kind: Literal["projected_ffn"] = "projected_ffn"
    size: PositiveInt = 204
    intermediate_size: PositiveInt = 306
    activation: Activation = "gelu"
    shared_projections: bool = True
    init_scale: NonNegativeFloat = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class LhucConfig(_BesideLayers):
    """Learning hidden unit contributions (LHUC).

    The layer's output is scaled by ``2 sigmoid(w)``. ``w`` is initialized to zero, for an initial scale of 1. The
    placement is always ``serial`` because the module scales the layer's output.

    Attributes:
      layers: See :class:`PalConfig`.
    """

    kind: Literal["lhuc"] = "lhuc"
    placement: Literal["serial"] = "serial"

    @property
    def linear_output(self) -> bool:
        return False


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class _OnTop(Settings, name="adapter"):
    """Base class of modules on top of the encoder, which do not occupy any slots."""

    init_scale: NonNegativeFloat = 0.02
    slots: ClassVar[tuple[str, ...]] = ()


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TopAttentionConfig(_OnTop):
    """Projected attention on the last hidden states: ``VD g(VE x)``.

    See Stickland & Murray 2019, section 3.1. ``g`` is a stack of BERT attention blocks, each with an output projection,
    a residual and a LayerNorm.

    Attributes:
      size: Output size of VE.
      num_layers: Number of attention blocks.
      num_heads: Number of heads per block; must divide ``size``.
      init_scale: Standard deviation of the initial kernels. Biases are initialized to zero, and LayerNorms to the
        identity.
    """

    kind: Literal["top_attention"] = "top_attention"
    size: PositiveInt = 204
    num_layers: PositiveInt = 6
    num_heads: PositiveInt = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_heads(self.size, self.num_heads)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TopFfnConfig(_OnTop):
    """Projected feed-forward blocks on the last hidden states: ``VD g(VE x)``.

    This is :class:`TopAttentionConfig` with feed-forward blocks instead of attention blocks. Each block is a small
    network with a residual and a LayerNorm.

    Attributes:
      size: Output size of VE.
      num_layers: Number of feed-forward blocks.
      hidden_sizes: Sizes of each block's hidden layers. One layer of 408 or two layers of 252 match the parameter count
        of an attention block of size 204.
      init_scale: See :class:`TopAttentionConfig`.
    """

    kind: Literal["top_ffn"] = "top_ffn"
    size: PositiveInt = 204
    num_layers: PositiveInt = 6
    hidden_sizes: tuple[PositiveInt, ...] = (408,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hidden_sizes:
            raise UserError("adapter.hidden_sizes is empty; it must have one or more sizes.")


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TopLayerConfig(_OnTop):
    """An extra encoder layer with the trunk's sizes.

    See Stickland & Murray 2019, section 3.1.

    Attributes:
      init_scale: See :class:`TopAttentionConfig`.
    """

    kind: Literal["top_layer"] = "top_layer"


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class _InDenseLayers(_InLayers):
    """Base class of adapters that modify the trunk's dense layers.

    Subclasses document the fields. After training, the adapter can be merged into the layers' weights.
    """

    target_modules: tuple[DenseLayer, ...] = ()
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        names = self.target_modules
        if not names or len(set(names)) != len(names):
            raise UserError(
                f"adapter.target_modules is {list(names)}; it must have one or more distinct names from: "
                f"{', '.join(DENSE_LAYERS)}."
            )

    @property
    def slots(self) -> tuple[str, ...]:
        """The blocks (attention, ffn) that contain a target dense layer, in execution order."""
        blocks = {DENSE_LAYERS[name][0] for name in self.target_modules}
        return tuple(block for block in ("attention", "ffn") if block in blocks)

    @property
    def has_dropout(self) -> bool:
        """Whether the adapter applies dropout during training."""
        return False


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class LoraConfig(_InDenseLayers):
    """Low-rank adaptation (LoRA) of the trunk's dense layers.

    A layer ``x W + b`` becomes ``x W + b + alpha / rank * dropout(x) A B``. B is initialized to zero, so training
    starts from the pretrained encoder.

    Attributes:
      kind: The kind of adapter in configs and manifests.
      target_modules: The dense layers to adapt: ``query``, ``key``, ``value``, ``attention_output`` (the attention
        block's output projection), ``intermediate`` and ``output`` (both in the feed-forward network).
      rank: Rank of the product A B; at most the trunk's hidden size.
      alpha: Scales the adapter's output by ``alpha / rank``.
      dropout: Dropout rate for the adapter's input.
      layers: Indices of the layers with an adapter; None for all layers.

    Raises:
      UserError: A field has the wrong type or an invalid value.

    Example:
      >>> from afjax import LoraConfig
      >>> config = LoraConfig(target_modules=("query", "value", "output"), rank=4)
      >>> config.slots, config.scaling
      (('attention', 'ffn'), 2.0)

    Reference:
      Hu et al. 2022, *LoRA: Low-Rank Adaptation of Large Language Models*, section 4.1.
    """

    kind: Literal["lora"] = "lora"
    target_modules: tuple[DenseLayer, ...] = ("query", "value")
    rank: PositiveInt = 8
    alpha: PositiveFloat = 8.0
    dropout: Proportion = 0.0

    @property
    def has_dropout(self) -> bool:
        return self.dropout > 0

    @property
    def scaling(self) -> float:
        """The scaling factor of the adapter's output, ``alpha / rank``."""
        return self.alpha / self.rank


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Ia3Config(_InDenseLayers):
    """(IA)³: learned scaling vectors for keys, values and feed-forward activations.

    The vectors are initialized to one, so training starts from the pretrained encoder.

    Attributes:
      kind: The kind of adapter in configs and manifests.
      target_modules: The dense layers to scale. A vector scales the layer's outputs, except for ``output``, whose
        inputs (the feed-forward network's activations) are scaled instead.
      layers: Indices of the layers with an adapter; None for all layers.

    Raises:
      UserError: A field has the wrong type or an invalid value.

    Example:
      >>> from afjax import Ia3Config
      >>> Ia3Config(target_modules=("key", "value")).slots
      ('attention',)

    Reference:
      Liu et al. 2022, *Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than In-Context Learning*,
      section 3.3.
    """

    kind: Literal["ia3"] = "ia3"
    target_modules: tuple[DenseLayer, ...] = ("key", "value", "output")


BesideLayers = PalConfig | LowRankConfig | ProjectedFfnConfig | LhucConfig
OnTop = TopAttentionConfig | TopFfnConfig | TopLayerConfig
InDenseLayers = LoraConfig | Ia3Config
Adapter = AdapterConfig | BesideLayers | OnTop | InDenseLayers


def _check_heads(size: int, num_heads: int) -> None:
    if size % num_heads:
        raise UserError(f"adapter.size is {size} and adapter.num_heads is {num_heads}; num_heads must divide size.")


# Architectures by name, with the papers' settings.
ADAPTER_PRESETS: Mapping[str, Adapter] = {
    # Pfeiffer 2021 (AdapterFusion), section 3.1 and appendix A.2: the best architecture of the search.
    "pfeiffer": AdapterConfig(),
    # Houlsby 2019, sections 2.1 and 3.1. Size 64 is the default of the authors' code.
    "houlsby": AdapterConfig(
        position="both",
        pretrained_layer_norm="after",
        residual_from="sublayer",
        size=64,
        activation="gelu_tanh",
        init="truncated_normal",
        init_scale=1e-2,
        layer_norms=True,
    ),
    # Stickland & Murray 2019, sections 3.1 to 3.3 and table 3.
    "pals": PalConfig(),
    "pals_unshared": PalConfig(size=84, shared_projections=False),
    "low_rank": LowRankConfig(),
    "projected_ffn": ProjectedFfnConfig(),
    "lhuc": LhucConfig(),
    "top_attention": TopAttentionConfig(),
    "top_ffn": TopFfnConfig(),
    "top_ffn_2": TopFfnConfig(hidden_sizes=(252, 252)),
    "top_layer": TopLayerConfig(),
    # Hu et al. 2022, section 5.1: query and value matrices, rank 8.
    "lora": LoraConfig(),
    "lora_all": LoraConfig(target_modules=tuple(DENSE_LAYERS)),
    # Liu et al. 2022, section 3.3.
    "ia3": Ia3Config(),
}
