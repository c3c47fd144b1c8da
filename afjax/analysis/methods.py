"""Names the methods of runs, for tables and figures."""

from typing import Any

from afjax.config.adapters import ADAPTER_PRESETS, Adapter, InDenseLayers
from afjax.config.experiment import ExperimentConfig

# Fields that define an adapter architecture. Sizes, activation and initialization are not part of it.
_ARCHITECTURE = tuple(
    (
        "position pretrained_layer_norm new_layer_norm residual_from layer_norms shared_projections placement "
        "target_modules"
    ).split()
)


def method_of(config: ExperimentConfig) -> str:
    """Returns the name of a run's method.

    * One task without adapters: the partition, ``head``, ``full``, ``layernorm`` or ``top-K``.
    * One task with adapters: their architecture's name, see :func:`architecture_name`. The suffix ``-trunk`` means
      that the trunk is trained too.
    * Several tasks: the same name with the prefix ``mt-`` for joint training (``mt-full`` is the shared BERT of *BERT
      and PALs*), or ``sequential-`` for training one task after the other.
    * Fusions: ``fusion`` for Pfeiffer adapters, otherwise ``fusion-`` and the architecture's name.

    :func:`afjax.analysis.runs.collect` adds the suffix ``-mt``, as in ``fusion-mt``, if another run has trained the
    trunk on several tasks. It recognizes such a trunk by its digest, which is not in the config.
    """
    if config.recipe == "fusion":
        name = architecture_name(config.adapter)
        return "fusion" if name == "pfeiffer" else f"fusion-{name}"
    prefix = {"multitask": "mt-", "sequential": "sequential-"}.get(config.recipe, "")
    if config.has_adapter:
        suffix = "-trunk" if config.partition == "adapter+trunk" and config.recipe != "multitask" else ""
        return prefix + architecture_name(config.adapter) + suffix
    return prefix + (f"top-{config.top_k}" if config.partition == "top_k" else config.partition)


def architecture_name(adapter: Adapter) -> str:
    """Names an adapter's architecture after its preset, or else after its kind.

    An adapter matches a preset regardless of sizes, activation and initialization. The name of a kind in dense layers
    lists these layers, as in ``lora-query+key``.
    """
    presets = [name for name, preset in ADAPTER_PRESETS.items() if _architecture(preset) == _architecture(adapter)]
    if presets:
        return presets[0]
    return f"{adapter.kind}-{'+'.join(adapter.target_modules)}" if isinstance(adapter, InDenseLayers) else adapter.kind


def _architecture(adapter: Adapter) -> tuple[Any, ...]:
    # The number of hidden layers is part of the architecture, because presets differ in it.
    depth = len(getattr(adapter, "hidden_sizes", ()))
    return (adapter.kind, depth, *(getattr(adapter, field, None) for field in _ARCHITECTURE))
