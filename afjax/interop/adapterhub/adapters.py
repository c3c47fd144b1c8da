"""Converts bottleneck adapter tensors between AdapterHub's layout and afjax's.

Each layer's adapter module has two linear layers, ``adapter_down.0`` and ``adapter_up``. It may also have its own
LayerNorms, ``adapter_norm_before`` and ``adapter_norm_after``. ``adapter_norm_before`` is saved twice: its second copy
is ``adapter_down.0``, and the down-projection becomes ``adapter_down.1``.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from afjax.adapters.kinds import adapter_layers
from afjax.config.adapters import AdapterConfig
from afjax.config.from_dict import to_dict
from afjax.errors import UserError
from afjax.interop.adapterhub.adapter_settings import (
    adapter_settings,
    bottleneck_sizes,
    is_learned,
    own_config,
    read_config,
    read_settings,
)
from afjax.interop.adapterhub.families import LibraryFamily
from afjax.interop.adapterhub.files import Part, module_tensors, stacked
from afjax.trees import Tree, unflatten
from afjax.trunk.config import TrunkConfig

# Names of adapter modules: the current name, followed by the names of task and language adapters in 2020.
_MODULES = (
    "adapters",
    "layer_text_task_adapters",
    "layer_text_lang_adapters",
    "attention_text_task_adapters",
    "attention_text_lang_adapters",
)
_INVERTIBLE = ("invertible_adapters", "invertible_lang_adapters")


def read_adapter(part: Part, trunk: TrunkConfig) -> tuple[AdapterConfig, Tree, list[str]]:
    """Converts an adapter from the library's format.

    Returns:
      The adapter config, its parameters (float32) and notes for the user.

    Raises:
      UserError: afjax does not support the settings, or the tensors do not match the settings and the trunk.
    """
    settings = read_settings(part)
    sizes = bottleneck_sizes(settings, trunk, part.where)
    config = own_config(part, trunk) or read_config(settings, sizes, trunk, part.where)
    d, layers = trunk.hidden_size, adapter_layers(config, trunk.num_layers)
    tensors = {key: tensor for key, tensor in part.tensors.items() if not _is_invertible(key)}
    dropped = len(tensors) < len(part.tensors)
    _check_invertible(part, settings, has_tensors=dropped)
    modules = module_tensors(dataclasses.replace(part, tensors=tensors), _MODULES)
    norm_before, norm_after = (config.new_layer_norm in (place, "both") for place in ("before", "after"))
    if norm_before:
        _drop_duplicate_norms(modules, part)
    learned = {"learned": (1,), "channel": (d,)}.get(settings["scaling"]) if is_learned(settings) else None
    expected_shapes: dict[tuple[str, int], dict[str, tuple[int, ...]]] = {}
    for slot in config.slots:
        for layer in layers:
            shapes = _shapes(sizes[layer], d, norm_before, norm_after)
            expected_shapes[slot, layer] = shapes if learned is None else {**shapes, "scaling": learned}
    # Pad narrower bottlenecks with zero units, which do not change the output.
    widest = max(sizes[layer] for layer in layers)
    _pad_bottlenecks(modules, expected_shapes, widest)
    arrays = stacked(part, modules, expected_shapes)
    leaves = {}
    for slot in config.slots:
        for path, leaf in _table(norm_before, norm_after).items():
            array = arrays[slot, leaf]
            leaves[f"{slot}/{path}"] = array.swapaxes(1, 2) if path.endswith("kernel") else array
        if learned is not None:
            factor = arrays[slot, "scaling"]  # [layers, 1 or d]
            leaves[f"{slot}/up/kernel"] = leaves[f"{slot}/up/kernel"] * factor[:, None]
            leaves[f"{slot}/up/bias"] = leaves[f"{slot}/up/bias"] * factor
    tree = unflatten({path: np.ascontiguousarray(leaf) for path, leaf in leaves.items()})
    notes = _notes(settings, sizes, layers)
    return (
        config,
        tree,
        [*notes, "its invertible adapter, which task adapters do not use, is dropped"] if dropped else notes,
    )


def write_adapter(
    config: AdapterConfig, tree: Tree, name: str, *, family: LibraryFamily, hidden_size: int, num_layers: int
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Converts an adapter to the library's settings and tensors.

    Raises:
      UserError: The library does not support the adapter's architecture.
    """
    settings = adapter_settings(config, name, hidden_size=hidden_size, num_layers=num_layers)
    norm_before, norm_after = (config.new_layer_norm in (place, "both") for place in ("before", "after"))
    tensors = {}
    for slot in config.slots:
        for place, layer in enumerate(adapter_layers(config, num_layers)):
            module = f"{family.module(layer, slot)}.adapters.{name}"
            for path, leaf in _table(norm_before, norm_after).items():
                owner, kind = path.split("/")
                tensors[f"{module}.{leaf}"] = np.asarray(tree[slot][owner][kind])[place].T
            if norm_before:
                for kind in ("weight", "bias"):
                    tensors[f"{module}.adapter_down.0.{kind}"] = tensors[f"{module}.adapter_norm_before.{kind}"]
    return settings, tensors


def own_adapter(config: AdapterConfig) -> dict[str, Any]:
    """Returns afjax's extra fields in an adapter's file, for :func:`read_adapter`."""
    return {"config": to_dict(config)}


def _table(norm_before: bool, norm_after: bool) -> dict[str, str]:
    """Maps parameter paths within a slot to suffixes of the library's tensor names."""
    table: dict[str, str] = {}
    modules = {"down": f"adapter_down.{int(norm_before)}", "up": "adapter_up"}
    for module, prefix in modules.items():
        table |= {f"{module}/kernel": f"{prefix}.weight", f"{module}/bias": f"{prefix}.bias"}
    for place, has_norm in (("before", norm_before), ("after", norm_after)):
        if has_norm:
            prefix = f"adapter_norm_{place}"
            table |= {f"norm_{place}/scale": f"{prefix}.weight", f"norm_{place}/bias": f"{prefix}.bias"}
    return table


def _shapes(size: int, hidden_size: int, norm_before: bool, norm_after: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "down/kernel": (size, hidden_size),
        "down/bias": (size,),
        "up/kernel": (hidden_size, size),
    }
    return {leaf: shapes.get(path, (hidden_size,)) for path, leaf in _table(norm_before, norm_after).items()}


def _drop_duplicate_norms(modules: Mapping[tuple[str, int], dict[str, np.ndarray]], part: Part) -> None:
    """Removes the second copy of each LayerNorm, in place.

    Raises:
      UserError: The two copies of a LayerNorm differ.
    """
    for (slot, layer), tensors in modules.items():
        for kind in ("weight", "bias"):
            twin, norm = tensors.pop(f"adapter_down.0.{kind}", None), tensors.get(f"adapter_norm_before.{kind}")
            if twin is not None and norm is not None and not np.array_equal(twin, norm):
                raise UserError(
                    f"{part.where}: the weights hold two copies of the LayerNorm before the adapter in layer {layer} "
                    f"{part.family.sublayers[slot]}, adapter_norm_before and adapter_down.0, but the copies differ; "
                    "download them again."
                )


def _pad_bottlenecks(
    modules: Mapping[tuple[str, int], dict[str, np.ndarray]],
    expected_shapes: Mapping[tuple[str, int], dict[str, tuple[int, ...]]],
    widest: int,
) -> None:
    """Zero-pads bottlenecks to ``widest``, and updates ``expected_shapes``.

    Both arguments are changed in place. Tensors with an unexpected shape are not padded; the caller reports them.
    """
    for place, shapes in expected_shapes.items():
        for leaf, shape in shapes.items():
            # Only linear layers are padded: the down-projection's rows and bias, and the up-projection's columns.
            axis = {"adapter_down": 0, "adapter_up": 1}.get(leaf.partition(".")[0])
            tensor = modules.get(place, {}).get(leaf)
            if axis is None or axis >= len(shape) or tensor is None or tensor.shape != shape or shape[axis] == widest:
                continue
            filling = [(0, widest - size if number == axis else 0) for number, size in enumerate(shape)]
            modules[place][leaf] = np.pad(tensor, filling)
            shapes[leaf] = modules[place][leaf].shape


def _is_invertible(key: str) -> bool:
    return any(f"{module}." in key for module in _INVERTIBLE)


def _check_invertible(part: Part, settings: Mapping[str, Any], *, has_tensors: bool) -> None:
    """Raises UserError if there is an invertible adapter that the library uses.

    Task adapters from 2020 may include one, but the library never used it.
    """
    declared = settings.get("inv_adapter") or settings.get("invertible_adapter")
    if (has_tensors or declared) and part.envelope.get("type") != "text_task":
        raise UserError(
            f"{part.where} has an invertible adapter after the embeddings (inv_adapter), as language adapters do; "
            "afjax does not support invertible adapters."
        )


def _notes(settings: Mapping[str, Any], sizes: Mapping[int, int], layers: tuple[int, ...]) -> list[str]:
    notes = []
    for setting in ("dropout", "stochastic_depth"):
        if settings.get(setting):
            notes.append(f"its {setting} of {settings[setting]}, which only matters during training, is dropped")
    if is_learned(settings):
        notes.append("its learned scaling factor is folded into the up-projection")
    if len({sizes[layer] for layer in layers}) > 1:
        notes.append("its bottleneck sizes differ between layers, so all are zero-padded to the widest")
    return notes
