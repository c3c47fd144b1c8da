"""What the methods of runs are called in tables and figures."""

from typing import Any

from afjax.config.adapters import ADAPTER_PRESETS, Adapter
from afjax.config.experiment import ExperimentConfig

# What tells one architecture of adapters from another; sizes and starts do not.
_ARCHITECTURE: tuple[str, ...] = ("position", "pretrained_layer_norm", "new_layer_norm", "residual_from", "layer_norms")
_ARCHITECTURE += ("shared_projections", "placement")


def method_of(config: ExperimentConfig) -> str:
    """What a run's method is called.

    * One task: ``head``, ``full``, ``layernorm``, ``top-K`` after the partition; adapters after their architecture:
      ``pfeiffer``, ``houlsby`` and the other presets' names, whatever their sizes, activation and start, else
      ``bottleneck``. With the trunk trained as well ``-trunk`` stands behind it.
    * Several tasks at once: the same with ``mt-`` in front (``mt-full`` is *BERT and PALs*' shared BERT); one after the
      other: with ``sequential-``.
    * Fusions: ``fusion`` of Pfeiffer's adapters, else ``fusion-`` and the adapters' name.
    * On a trunk that was trained on several tasks at once, ``-mt`` stands behind it: ``fusion-mt``. That is not for the
      config to tell but for the trunk's digest, see :func:`collect`.
    """
    if config.recipe == "fusion":
        name = architecture_name(config.adapter)
        return "fusion" if name == "pfeiffer" else f"fusion-{name}"
    several = {"multitask": "mt-", "sequential": "sequential-"}.get(config.recipe, "")
    if config.has_adapter:
        alone = "-trunk" if config.partition == "adapter+trunk" and config.recipe != "multitask" else ""
        return several + architecture_name(config.adapter) + alone
    return several + (f"top-{config.top_k}" if config.partition == "top_k" else config.partition)


def architecture_name(adapter: Adapter) -> str:
    """The preset that an adapter is but for its sizes, activation and start; else its kind."""
    same = [name for name, preset in ADAPTER_PRESETS.items() if _architecture(preset) == _architecture(adapter)]
    return same[0] if same else adapter.kind


def _architecture(adapter: Adapter) -> tuple[Any, ...]:
    # One hidden layer or two are two of the presets.
    depth = len(getattr(adapter, "hidden_sizes", ()))
    return (adapter.kind, depth, *(getattr(adapter, field, None) for field in _ARCHITECTURE))
