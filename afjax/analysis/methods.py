"""Names the methods of runs, for tables and figures."""

from typing import Any

from afjax.config.adapters import ADAPTER_PRESETS, Adapter
from afjax.config.experiment import ExperimentConfig

# The fields that define an architecture of adapters. Sizes, activation and initialization are not among them.
_ARCHITECTURE: tuple[str, ...] = ("position", "pretrained_layer_norm", "new_layer_norm", "residual_from", "layer_norms")
_ARCHITECTURE += ("shared_projections", "placement")


def method_of(config: ExperimentConfig) -> str:
    """Returns the name of a run's method.

    * One task without adapters: the partition, ``head``, ``full``, ``layernorm`` or ``top-K``.
    * One task with adapters: the name of their architecture, see :func:`architecture_name`. The suffix ``-trunk`` means
      that the trunk is trained too.
    * Several tasks: the same with the prefix ``mt-`` if they are trained jointly (``mt-full`` is the shared BERT of
      *BERT and PALs*), or ``sequential-`` if they are trained one after the other.
    * Fusions: ``fusion`` for Pfeiffer's adapters, otherwise ``fusion-`` and the name of the adapters' architecture.

    :func:`afjax.analysis.runs.collect` adds the suffix ``-mt`` to runs on a trunk that another run has trained on
    several tasks, as in ``fusion-mt``. It recognizes such a trunk by its digest, which is not in the config.
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
    """Returns the name of an adapter's architecture: its preset's name, or its kind.

    Presets are compared without their sizes, activation and initialization.
    """
    presets = [name for name, preset in ADAPTER_PRESETS.items() if _architecture(preset) == _architecture(adapter)]
    return presets[0] if presets else adapter.kind


def _architecture(adapter: Adapter) -> tuple[Any, ...]:
    # The number of hidden layers belongs to the architecture, because presets differ in it.
    depth = len(getattr(adapter, "hidden_sizes", ()))
    return (adapter.kind, depth, *(getattr(adapter, field, None) for field in _ARCHITECTURE))
