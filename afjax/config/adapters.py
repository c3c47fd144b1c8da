"""Adapters: one frozen dataclass for each kind, and the papers' own choices as presets.

A bottleneck (:class:`AdapterConfig`) follows a sub-layer; :class:`PalConfig`, :class:`LowRankConfig`,
:class:`ProjectedFfnConfig` and :class:`LhucConfig` are parallel to or follow whole layers; and
:class:`TopAttentionConfig`, :class:`TopFfnConfig` and :class:`TopLayerConfig` follow the encoder. The last seven are
the task modules of Stickland & Murray 2019, who train the trunk along with them.
"""

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Literal

from afjax.config.from_dict import check_fields, settings_repr
from afjax.config.values import Activation, check_dropout
from afjax.errors import UserError

Position = Literal["attention", "ffn", "both"]
LayerNormPlace = Literal["before", "after", "both", "none"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """A bottleneck adapter: every choice of AdapterFusion's search (appendix A.2), and Houlsby's.

    Attributes:
      kind: Tells the kinds of adapters apart in configs and manifests.
      position: After which sub-layers an adapter sits.
      pretrained_layer_norm: Where the trunk's own LayerNorm of that sub-layer is applied: to the
        adapter's input, after the adapter, both, or not at all.
      new_layer_norm: Where a trained LayerNorm is added: before the down- and/or after the
        up-projection.
      residual_from: What the adapter's output is added to: the ``sublayer`` output before the layer's
        residual and LayerNorm, the ``sum`` of that output and the layer's residual, or the adapter's
        own ``input``.
      residual_before_new_layer_norm: Whether that residual is added before the new LayerNorm behind
        the up-projection (which only matters where there is one).
      reduction_factor: The bottleneck's size is ``max(1, hidden_size // reduction_factor)``.
      size: The bottleneck's size itself; takes the place of ``reduction_factor``.
      activation: Between the projections. ``gelu`` is the exact one, ``gelu_tanh`` its approximation.
      init: Distribution of the kernels at the start (truncated: at two standard deviations).
      init_scale: Standard deviation of that distribution. Biases start at zero.
      scaling: A constant factor on the up-projection's output.
      layer_norms: Whether the adapter carries trained copies of every LayerNorm of the trunk
        (Houlsby 2019, section 2.1), which replace the trunk's while the adapter is active.
      layers: Indices of the layers that have an adapter; None: all.
    """

    kind: Literal["bottleneck"] = "bottleneck"
    position: Position = "ffn"
    pretrained_layer_norm: LayerNormPlace = "both"
    new_layer_norm: LayerNormPlace = "none"
    residual_from: Literal["sublayer", "sum", "input"] = "sublayer"
    residual_before_new_layer_norm: bool = False
    reduction_factor: float = 16.0
    size: int | None = None
    activation: Activation = "relu"
    init: Literal["normal", "truncated_normal"] = "normal"
    init_scale: float = 0.02
    scaling: float = 1.0
    layer_norms: bool = False
    layers: tuple[int, ...] | None = None

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        check_fields(self, "adapter")
        if self.size is not None:
            _check_at_least_one(self, "size")
        if not (math.isfinite(self.reduction_factor) and self.reduction_factor > 0):
            raise UserError(f"adapter.reduction_factor is {self.reduction_factor}; it must be above 0.")
        _check_init_scale(self.init_scale)
        if not math.isfinite(self.scaling):
            raise UserError(f"adapter.scaling is {self.scaling}; it must be finite.")
        object.__setattr__(self, "layers", _sorted_layers(self.layers))
        if self.residual_from == "sum" and self.pretrained_layer_norm not in ("before", "both"):
            raise UserError(
                'adapter.residual_from="sum" needs pretrained_layer_norm "before" or "both": only then is '
                "the layer's residual added in front of the adapter."
            )

    @property
    def slots(self) -> tuple[str, ...]:
        """The sub-layers that hold an adapter, in the order they run."""
        return ("attention", "ffn") if self.position == "both" else (self.position,)

    @property
    def linear_output(self) -> bool:
        """Whether what fusion mixes is linear in inner activations: it always is, see :mod:`afjax.fusion.factored`."""
        return True

    def bottleneck_size(self, hidden_size: int) -> int:
        if self.size is not None:
            return self.size
        return max(1, int(hidden_size // self.reduction_factor))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _BesideLayers:
    """What the modules beside whole layers share; the docstrings of those list it.

    The layer with the module gives ``LN2(h + f + TS(x))``, where h is its attention block's output, f its FFN's, and TS
    reads the layer's input x (``parallel``) or, ``serial``, what the layer gives without it, ``LN2(h + f)``.
    """

    placement: Literal["parallel", "serial"] = "parallel"
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_fields(self, "adapter")
        object.__setattr__(self, "layers", _sorted_layers(self.layers))

    @property
    def slots(self) -> tuple[str, ...]:
        """The sub-layers whose slots hold the module."""
        return ("ffn",)

    @property
    def linear_output(self) -> bool:
        """Whether the output is linear in inner activations, so that fusion has a factored form."""
        return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class PalConfig(_BesideLayers):
    """A projected attention layer: ``TS(x) = VD attention(VE x)`` (Stickland & Murray 2019, section 3.3).

    The small attention has query, key and value matrices and no output matrix.

    Attributes:
      size: What VE projects to.
      num_heads: Of the small attention; divides ``size``. The paper has 12, the authors' code 6.
      shared_projections: One VE and one VD for all layers, or each layer its own.
      output_activation: On VD's output. The paper has none, the authors' code ``gelu``.
      dropout: Rate on the small attention's weights; None: the trunk's attention dropout.
      placement: Whether the module reads the layer's input, or stands behind the layer.
      layers: Indices of the layers that have one; None: all.
      init_scale: Standard deviation of the kernels at the start. Biases start at zero.
    """

    kind: Literal["pal"] = "pal"
    size: int = 204
    num_heads: int = 12
    shared_projections: bool = True
    output_activation: Activation | Literal["none"] = "none"
    dropout: float | None = None
    init_scale: float = 0.02

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_heads(self.size, self.num_heads)
        check_dropout("adapter", self.dropout)
        _check_init_scale(self.init_scale)

    @property
    def linear_output(self) -> bool:
        return self.output_activation == "none"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LowRankConfig(_BesideLayers):
    """``TS(x) = VD g(VE x)``, each layer with its own VE and VD (Stickland & Murray 2019, section 3.3).

    Attributes:
      size: What VE projects to.
      activation: g. The paper has the identity (``none``), the authors' code ``gelu``.
      placement, layers, init_scale: As in :class:`PalConfig`.
    """

    kind: Literal["low_rank"] = "low_rank"
    size: int = 100
    activation: Activation | Literal["none"] = "none"
    init_scale: float = 0.02

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_at_least_one(self, "size")
        _check_init_scale(self.init_scale)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProjectedFfnConfig(_BesideLayers):
    """A PAL with a feed-forward network in place of attention (Stickland & Murray 2019, section 3.3).

    ``TS(x) = VD (W2 g(W1 VE x + b1) + b2)``.

    Attributes:
      size: What VE projects to.
      intermediate_size: Of the network; 306 gives as many parameters as a PAL's attention.
      activation: g.
      shared_projections, placement, layers, init_scale: As in :class:`PalConfig`.
    """

    kind: Literal["projected_ffn"] = "projected_ffn"
    size: int = 204
    intermediate_size: int = 306
    activation: Activation = "gelu"
    shared_projections: bool = True
    init_scale: float = 0.02

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("size", "intermediate_size"):
            _check_at_least_one(self, field)
        _check_init_scale(self.init_scale)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LhucConfig(_BesideLayers):
    """Learning hidden unit contributions: the layer's output times ``2 sigmoid(w)``, w zero at the start.

    It scales what the layer gives, so its placement is always ``serial``.

    Attributes:
      layers: As in :class:`PalConfig`.
    """

    kind: Literal["lhuc"] = "lhuc"
    placement: Literal["serial"] = "serial"

    __repr__ = settings_repr

    @property
    def linear_output(self) -> bool:
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OnTop:
    """What the modules on top of the encoder share: they take the place of no slot."""

    init_scale: float = 0.02

    def __post_init__(self) -> None:
        check_fields(self, "adapter")
        _check_init_scale(self.init_scale)

    @property
    def slots(self) -> tuple[str, ...]:
        return ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopAttentionConfig(_OnTop):
    """Projected attention on top: ``VD g(VE x)`` of the last hidden state (Stickland & Murray 2019, section 3.1).

    g is a stack of attention blocks as BERT's, with output matrix, residual and LayerNorm.

    Attributes:
      size: What VE projects to.
      num_layers: Of g.
      num_heads: Divides ``size``.
      init_scale: Standard deviation of the kernels at the start. Biases start at zero, LayerNorms as the identity.
    """

    kind: Literal["top_attention"] = "top_attention"
    size: int = 204
    num_layers: int = 6
    num_heads: int = 12

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_at_least_one(self, "num_layers")
        _check_heads(self.size, self.num_heads)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopFfnConfig(_OnTop):
    """:class:`TopAttentionConfig` with feed-forward blocks: small networks with residual and LayerNorm.

    Attributes:
      size: What VE projects to.
      num_layers: Blocks of g.
      hidden_sizes: Hidden layers of each block's network. One of 408, or two of 252, have as many parameters as an
        attention block of size 204.
      init_scale: As in :class:`TopAttentionConfig`.
    """

    kind: Literal["top_ffn"] = "top_ffn"
    size: int = 204
    num_layers: int = 6
    hidden_sizes: tuple[int, ...] = (408,)

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("size", "num_layers"):
            _check_at_least_one(self, field)
        if not self.hidden_sizes or min(self.hidden_sizes) < 1:
            raise UserError(f"adapter.hidden_sizes is {self.hidden_sizes}; give at least one size, each at least 1.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopLayerConfig(_OnTop):
    """One whole encoder layer more (Stickland & Murray 2019, section 3.1), of the trunk's shape.

    Attributes:
      init_scale: As in :class:`TopAttentionConfig`.
    """

    kind: Literal["top_layer"] = "top_layer"

    __repr__ = settings_repr


BesideLayers = PalConfig | LowRankConfig | ProjectedFfnConfig | LhucConfig
OnTop = TopAttentionConfig | TopFfnConfig | TopLayerConfig
Adapter = AdapterConfig | BesideLayers | OnTop


def _sorted_layers(layers: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if layers is None:
        return None
    if not layers or len(set(layers)) != len(layers) or min(layers) < 0:
        raise UserError(f"adapter.layers is {layers}; give distinct indices from 0 on, or None for all layers.")
    return tuple(sorted(layers))


def _check_init_scale(scale: float) -> None:
    if not (math.isfinite(scale) and scale >= 0):
        raise UserError(f"adapter.init_scale is {scale}; it must be finite and 0 or more.")


def _check_at_least_one(config: object, field: str) -> None:
    if getattr(config, field) < 1:
        raise UserError(f"adapter.{field} is {getattr(config, field)}; it must be at least 1.")


def _check_heads(size: int, num_heads: int) -> None:
    if size < 1 or num_heads < 1 or size % num_heads:
        raise UserError(
            f"adapter.size is {size} and adapter.num_heads {num_heads}; both must be at least 1, and the heads must "
            "divide the size."
        )


ADAPTER_PRESETS: Mapping[str, Adapter] = types.MappingProxyType(
    {
        # AdapterFusion, section 3.1 and appendix A.2 (the search's winner).
        "pfeiffer": AdapterConfig(),
        # Houlsby 2019, section 2.1 and 3.1; size 64 is the default of the authors' code.
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
    }
)
