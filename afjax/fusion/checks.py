"""Checks whether adapters can be fused."""

from collections.abc import Mapping, Sequence

from afjax.adapters.kind import SlotKind
from afjax.adapters.kinds import adapter_layers, kind_of
from afjax.config.adapters import Adapter, AdapterConfig, InDenseLayers, OnTop
from afjax.config.fusion import FusionConfig
from afjax.display.words import counted
from afjax.errors import UserError


def check_fusible(configs: Mapping[str, Adapter], num_layers: int) -> None:
    """Raises UserError unless the adapters can be fused.

    They must belong to the same family, fill the same slots and layers, and have the same position relative to
    LayerNorms.
    """
    if not configs:
        raise UserError("A fusion needs at least one adapter; pass the adapters to fuse.")
    (first, reference), *others = configs.items()
    for name, config in configs.items():
        if isinstance(config, OnTop):
            raise UserError(
                f'Adapter "{name}" is of the kind {config.kind}, which is on top of the encoder and cannot be fused; '
                "fuse adapters inside the encoder's layers."
            )
        if isinstance(config, InDenseLayers):
            raise UserError(
                f'Adapter "{name}" is of the kind {config.kind}, which modifies the trunk\'s dense layers and has no '
                "separate output for a fusion to weight. Fuse adapters of a different kind, such as the presets "
                "pfeiffer or pals."
            )
        if isinstance(config, AdapterConfig) and config.layer_norms:
            raise UserError(
                f'Adapter "{name}" has its own LayerNorms, which would change the trunk for all other adapters; only '
                "adapters trained with adapter.layer_norms=False can be fused."
            )
    for name, config in others:
        kind, wanted_kind = kind_of(config), kind_of(reference)
        assert isinstance(kind, SlotKind), "other kinds are rejected above"
        assert isinstance(wanted_kind, SlotKind), "other kinds are rejected above"
        if kind.family != wanted_kind.family:
            raise UserError(
                f'Adapters "{first}" and "{name}" cannot be fused because of their kinds ({reference.kind} and '
                f"{config.kind}); fuse adapters of the same kind."
            )
        for field in kind.layout:
            given, wanted = getattr(config, field), getattr(reference, field)
            if given != wanted:
                raise UserError(
                    f'Adapters "{first}" and "{name}" fill different slots ({field} "{wanted}" and "{given}"); fuse '
                    f"adapters with the same {field}."
                )
        if adapter_layers(config, num_layers) != adapter_layers(reference, num_layers):
            raise UserError(
                f'Adapters "{first}" and "{name}" are in different layers ({_layers(reference)} and {_layers(config)}; '
                "None means all); fuse adapters in the same layers."
            )


def check_subset(config: FusionConfig, num_adapters: int) -> None:
    """Raises UserError if ``fusion.subset`` is greater than the number of adapters."""
    if config.subset is not None and config.subset > num_adapters:
        raise UserError(
            f"fusion.subset is {config.subset}, but the fusion has only {counted(num_adapters, 'adapter')}; choose at "
            f"most {num_adapters}."
        )


def _layers(config: Adapter) -> tuple[int, ...] | None:
    return None if isinstance(config, OnTop) else config.layers


def is_factored(configs: Sequence[Adapter]) -> bool:
    """Whether the fusion has a factored form.

    This requires that each adapter's output is linear in its inner activations.
    """
    return all(not isinstance(config, OnTop | InDenseLayers) and config.linear_output for config in configs)
