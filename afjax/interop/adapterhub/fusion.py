"""Converts fusion settings and tensors between AdapterHub's format and afjax's."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from afjax.adapters.kinds import adapter_layers
from afjax.config.adapters import AdapterConfig
from afjax.config.from_dict import check_value, from_dict, to_dict
from afjax.config.fusion import FusionConfig
from afjax.config.ranges import Proportion
from afjax.display.words import first_of
from afjax.errors import UserError
from afjax.interop.adapterhub.families import LibraryFamily
from afjax.interop.adapterhub.files import OWN, Part, module_tensors, stacked
from afjax.trees import Tree, unflatten
from afjax.trunk.config import TrunkConfig

_MODULES = ("adapter_fusion_layer",)
# Settings that are fixed in afjax. Any other value is rejected.
_FIXED: Mapping[str, bool] = {"key": True, "query": True, "residual_before": False}
# Settings that do not change a trained fusion's output or are handled elsewhere.
_KNOWN = tuple(
    "value query_before_ln regularization temperature value_before_softmax value_initialized dropout_prob".split()
)
_NAMED: Mapping[str, Mapping[str, Any]] = {"static": {"value": False}, "dynamic": {"value": True}}
_REGULARIZATION = 0.01


def member_names(envelope: Mapping[str, Any], where: str) -> list[str]:
    """Returns the names of the fused adapters.

    Files from 2020 only list them in the fusion's name.

    Raises:
      UserError: ``adapter_names`` is not a list of names.
    """
    names = envelope.get("adapter_names") or str(envelope.get("name") or "")
    names = names.split(",") if isinstance(names, str) else names
    if not isinstance(names, Sequence) or not all(isinstance(name, str) and name for name in names):
        raise UserError(f"{where} has adapter_names={names!r}; it must be a list of names.")
    return list(names)


def read_fusion(
    part: Part, members: Sequence[AdapterConfig], trunk: TrunkConfig
) -> tuple[FusionConfig, Tree, list[str]]:
    """Converts a fusion from the library's format.

    Args:
      part: The fusion.
      members: The configs of the fused adapters, already checked by ``check_fusible``.
      trunk: The trunk's config.

    Returns:
      The fusion config, its parameters (float32) and notes for the user.

    Raises:
      UserError: afjax does not support the settings, or the tensors do not match the settings and the trunk.
    """
    settings = _settings(part, members[-1])
    config = _own_config(part) or _config(settings, part.where)
    d = trunk.hidden_size
    layers = adapter_layers(members[-1], trunk.num_layers)
    modules = module_tensors(part, _MODULES)
    # The library also saves fusion weights for layers without adapters.
    modules = {(slot, layer): tensors for (slot, layer), tensors in modules.items() if layer in layers}
    shapes = {leaf: ((d, d) if leaf.endswith("weight") else (d,)) for leaf in _table(config.value).values()}
    expected_shapes = {(slot, layer): shapes for slot in members[-1].slots for layer in layers}
    arrays = stacked(part, modules, expected_shapes)
    leaves = {
        f"{slot}/{path}": arrays[slot, leaf].swapaxes(1, 2) if path.endswith("kernel") else arrays[slot, leaf]
        for slot in members[-1].slots
        for path, leaf in _table(config.value).items()
    }
    tree = unflatten({path: np.ascontiguousarray(leaf) for path, leaf in leaves.items()})
    notes = []
    if settings.get("temperature"):
        notes.append("its temperature is set to 1: AdapterHub anneals it to 1 as the model runs and does not store it")
    return config, tree, notes


def write_fusion(
    config: FusionConfig, tree: Tree, name: str, member: AdapterConfig, *, family: LibraryFamily, num_layers: int
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Converts a fusion to the library's settings and tensors.

    A constant temperature is folded into the query projection, which gives the same attention scores.

    Args:
      config: The fusion's config.
      tree: The fusion's parameters.
      name: The fusion's name in the library: its adapters' names, joined with commas.
      member: The config of any of the fused adapters.
      family: The library's names for the trunk's family.
      num_layers: The trunk's number of layers.

    Raises:
      UserError: The library does not support the fusion's architecture.
    """
    settings = fusion_settings(config, name)
    tensors = {}
    for slot in member.slots:
        for place, layer in enumerate(adapter_layers(member, num_layers)):
            module = f"{family.module(layer, slot)}.adapter_fusion_layer.{name}"
            for path, leaf in _table(config.value).items():
                owner, kind = path.split("/")
                tensor = np.asarray(tree[slot][owner][kind])[place].T
                if owner == "query" and config.temperature != 1.0:
                    tensor = tensor / np.float32(config.temperature)
                tensors[f"{module}.{leaf}"] = tensor
    return settings, tensors


def fusion_settings(config: FusionConfig, name: str) -> dict[str, Any]:
    """Converts a fusion config to the library's settings.

    Raises:
      UserError: The fusion has been pruned, which the library does not support.
    """
    if config.kept is not None:
        raise UserError(
            f'The fusion "{name}" has been pruned layer by layer (fusion.kept), but AdapterHub fuses the same '
            "adapters in every layer; export the fusion it was pruned from."
        )
    return {
        **_FIXED,
        "value": config.value,
        "query_before_ln": False,
        "regularization": config.value and config.regularization > 0,
        "temperature": False,
        "value_before_softmax": True,
        "value_initialized": config.value,
        "dropout_prob": config.dropout,
    }


def own_fusion(config: FusionConfig, name: str) -> dict[str, Any]:
    """Returns afjax's extra fields in a fusion's file, for :func:`read_fusion`.

    The temperature is 1, because :func:`write_fusion` folds the actual one into the query projection.
    """
    return {"name": name, "config": {**to_dict(config), "temperature": 1.0}}


def _settings(part: Part, last: AdapterConfig) -> Mapping[str, Any]:
    """Validates a fusion's settings.

    ``last`` is the config of the last fused adapter. It determines the position of the LayerNorms.

    Raises:
      UserError: A setting is unknown or not supported by afjax.
    """
    given = part.envelope.get("config")
    given = _NAMED.get(given, given) if isinstance(given, str) else given
    if not isinstance(given, Mapping):
        raise UserError(f"{part.where} has no fusion config; download it again.")
    for setting, value in _FIXED.items():
        if bool(given.get(setting, value)) != value:
            raise UserError(f"{part.where} has {setting}={given[setting]}; afjax only supports {value}.")
    # query_before_ln computes the query from the input of the trunk's LayerNorm. It makes no difference unless that
    # LayerNorm comes before the adapters.
    if given.get("query_before_ln") and last.pretrained_layer_norm in ("before", "both"):
        raise UserError(
            f"{part.where} has query_before_ln=true; afjax only supports queries computed after the LayerNorm, from "
            "the adapters' input."
        )
    unknown = [str(setting) for setting, value in given.items() if setting not in (*_FIXED, *_KNOWN) and value]
    if unknown:
        raise UserError(f"{part.where} has unknown settings: {first_of(unknown)}.")
    return given


def _config(settings: Mapping[str, Any], where: str) -> FusionConfig:
    value = bool(settings.get("value", True))
    return FusionConfig(
        value=value,
        # In the library, 0 stands for the trunk's dropout rate.
        dropout=check_value(Proportion | None, settings.get("dropout_prob"), f"{where}: dropout_prob") or None,
        regularization=_REGULARIZATION if value and settings.get("regularization", True) else 0.0,
    )


def _own_config(part: Part) -> FusionConfig | None:
    """Loads the fusion config that afjax stored in the file.

    Returns None if another program wrote the file.

    Raises:
      UserError: The stored config contradicts the library's settings in the file.
    """
    if not part.own:
        return None
    config = from_dict(FusionConfig, part.own.get("config", {}), f"{part.where}: {OWN}.config")
    if fusion_settings(config, part.name) != part.envelope["config"]:
        raise UserError(f'{part.where}: config and {OWN}.config disagree; remove "{OWN}" if config is correct.')
    return config


def _table(value: bool) -> dict[str, str]:
    """Maps parameter paths within a slot to suffixes of the library's tensor names."""
    table = {
        f"{module}/{leaf}": f"{module}.{suffix}"
        for module in ("query", "key")
        for leaf, suffix in (("kernel", "weight"), ("bias", "bias"))
    }
    return {**table, "value/kernel": "value.weight"} if value else table
