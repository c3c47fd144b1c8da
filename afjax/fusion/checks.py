"""Checks whether adapters can be fused with each other."""

from collections.abc import Mapping, Sequence

from afjax.adapters.kind import SlotKind
from afjax.adapters.kinds import adapter_layers, kind_of
from afjax.config.adapters import Adapter, AdapterConfig, InDenseLayers, OnTop
from afjax.config.fusion import FusionConfig
from afjax.display.words import counted
from afjax.errors import UserError


def check_fusible(configs: Mapping[str, Adapter], num_layers: int) -> None:
    """Raises UserError unless the adapters can be fused.

    They must be of the same family, in the same slots and layers, and at the same position relative to LayerNorms.
    """
    (first, reference), *others = configs.items()
    for name, config in configs.items():
        if isinstance(config, OnTop):
            raise UserError(
                f'Adapter "{name}" is of the kind {config.kind}, which sits on top of the encoder, where there is '
                "nothing to fuse; fuse adapters in the layers."
            )
        if isinstance(config, InDenseLayers):
            raise UserError(
                f'Adapter "{name}" is of the kind {config.kind}, which changes the trunk\'s dense layers and has no '
                "output of its own that a fusion could weigh. Fuse adapters of another kind, such as the presets "
                "pfeiffer or pals."
            )
        if isinstance(config, AdapterConfig) and config.layer_norms:
            raise UserError(
                f'Adapter "{name}" carries LayerNorms of its own, which change the trunk for every other adapter; only '
                "adapters trained with adapter.layer_norms=False can be fused."
            )
    for name, config in others:
        kind, wanted_kind = kind_of(config), kind_of(reference)
        assert isinstance(kind, SlotKind), "other kinds are refused above"
        assert isinstance(wanted_kind, SlotKind), "other kinds are refused above"
        if kind.family != wanted_kind.family:
            raise UserError(
                f'Adapters "{first}" and "{name}" add to the layers in different ways (their kinds are '
                f"{reference.kind} and {config.kind}); fuse adapters of one kind."
            )
        for field in kind.layout:
            given, wanted = getattr(config, field), getattr(reference, field)
            if given != wanted:
                raise UserError(
                    f'Adapters "{first}" and "{name}" sit in different slots ({field} "{wanted}" and "{given}"); '
                    "fuse adapters of one layout."
                )
        if adapter_layers(config, num_layers) != adapter_layers(reference, num_layers):
            raise UserError(
                f'Adapters "{first}" and "{name}" sit in different layers ({_layers(reference)} and {_layers(config)}; '
                "None means all); fuse adapters of the same layers."
            )


def check_subset(config: FusionConfig, num_adapters: int) -> None:
    """Raises UserError if ``fusion.subset`` is greater than the number of adapters."""
    if config.subset is not None and config.subset > num_adapters:
        raise UserError(
            f"fusion.subset is {config.subset}, but the fusion has {counted(num_adapters, 'adapter')}; take "
            "at most as many."
        )


def _layers(config: Adapter) -> tuple[int, ...] | None:
    return None if isinstance(config, OnTop) else config.layers


def is_factored(configs: Sequence[Adapter]) -> bool:
    """Whether the fusion has a factored form.

    It does if each adapter's output is linear in its inner activations.
    """
    return all(not isinstance(config, OnTop | InDenseLayers) and config.linear_output for config in configs)
