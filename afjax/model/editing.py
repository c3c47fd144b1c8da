"""Edits trained models.

The edits include dropping layers, adding or removing fused adapters, merging an adapter and renaming. The functions
take a model and, if they change parameters, its trees ``{"adapters", "fusion", "heads"}``. They return edited copies.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import jax

from afjax.adapters.kinds import adapter_layers, merge_adapter
from afjax.config.adapters import Adapter, InDenseLayers
from afjax.config.values import check_name
from afjax.errors import UserError, did_you_mean
from afjax.fusion.pruning import drop_layers, remaining_layers, take_layers
from afjax.model import names as model_names
from afjax.model.model import Model
from afjax.model.setup import wrong_leaf
from afjax.trees import Tree


def without_layers(model: Model, params: Tree, layers: Collection[int]) -> tuple[Model, Tree]:
    """Drops the adapter or the fusion from some layers (AdapterDrop).

    Raises:
      UserError: The model has no adapter, one of the layers has no adapter, or no adapter would remain.
    """
    if not model.adapters:
        raise UserError(f'The head "{model.head_name}" is used without adapters, so there are no layers to drop.')
    depth, params = model.trunk.num_layers, dict(params)
    configs, adapters = [], dict(params["adapters"])
    for name, config in model.adapters:
        adapters[name], smaller = drop_layers(adapters[name], config, layers, depth)
        configs.append((name, smaller))
    changes: dict[str, Any] = {"adapters": tuple(configs)}
    if name := model.fusion_name:
        remaining, kept = remaining_layers(model.adapters[0][1], layers, depth), model.fusion.kept
        params["fusion"] = {name: take_layers(params["fusion"][name], remaining)}
        if kept is not None:
            kept = tuple(tuple(slot_layers[position] for position in remaining) for slot_layers in kept)
            changes["fusion"] = dataclasses.replace(model.fusion, kept=kept)
    return dataclasses.replace(model, **changes), {**params, "adapters": adapters}


def without_adapters(model: Model, names: Collection[str]) -> Model:
    """Removes adapters from the fusion.

    In each layer, the softmax is then over the remaining adapters.

    Raises:
      UserError: The model has no fusion, a name is not fused, no adapter would remain, or the fusion has been pruned.
    """
    members = fused_adapters(model)
    if unknown := sorted(set(names) - set(members)):
        raise UserError(
            f'"{unknown[0]}" is not fused; the fusion has {", ".join(members)}.{did_you_mean(unknown[0], members)}'
        )
    if model.fusion.kept is not None:
        raise UserError("This fusion has been pruned layer by layer; remove adapters from the original fusion.")
    remaining = tuple((name, config) for name, config in model.adapters if name not in names)
    if not remaining:
        raise UserError("This would remove every adapter from the fusion; keep at least one.")
    return dataclasses.replace(model, adapters=remaining)


def with_adapters(
    model: Model, params: Tree, added: Mapping[str, tuple[Adapter, Tree]], trunk_params: Tree
) -> tuple[Model, Tree]:
    """Adds adapters to the fusion without retraining it.

    Args:
      model: The model.
      params: The model's trees.
      added: ``{name: (architecture, tree)}``, for example from :func:`afjax.model.loading.load_adapters`.
      trunk_params: The trunk's parameters.

    Raises:
      UserError: The model has no fusion, the fusion has been pruned, a name is already fused, or an adapter does not
        fit the trunk or the others.
    """
    members = fused_adapters(model)
    if repeated := sorted(set(added) & set(members)):
        raise UserError(f'"{repeated[0]}" is already fused; the fusion has {", ".join(members)}.')
    if model.fusion.kept is not None:
        raise UserError("This fusion has been pruned layer by layer; add adapters to the original fusion.")
    for name, (config, tree) in added.items():
        if wrong := wrong_leaf(config, tree, model.trunk, trunk_params):
            raise UserError(f'The adapter "{name}" does not fit this model: {wrong}.')
    configs = (*model.adapters, *((name, config) for name, (config, _) in added.items()))
    trees = {**params["adapters"], **{name: tree for name, (_, tree) in added.items()}}
    return dataclasses.replace(model, adapters=configs), {**params, "adapters": trees}


def with_adapter(model: Model, params: Tree, adapter: tuple[Adapter, Tree], trunk_params: Tree) -> tuple[Model, Tree]:
    """Replaces the adapter and keeps the head.

    Raises:
      UserError: The model has a fusion or no adapter, or the new adapter does not fit the trunk.
    """
    if model.fusion_name or len(model.adapters) != 1:
        raise UserError(
            f'The head "{model.head_name}" is used with {"a fusion" if model.fusion_name else "no adapter"}; only the '
            "adapter of a model with one adapter can be replaced."
        )
    ((name, _),) = model.adapters
    config, tree = adapter
    if wrong := wrong_leaf(config, tree, model.trunk, trunk_params):
        raise UserError(f"The adapter does not fit this model: {wrong}.")
    return dataclasses.replace(model, adapters=((name, config),)), {**params, "adapters": {name: tree}}


def with_kept(model: Model, kept: tuple[tuple[tuple[int, ...], ...], ...]) -> Model:
    """Prunes the fusion, so that each layer keeps only the adapters in ``kept``.

    See ``FusionConfig.kept``.

    Raises:
      UserError: The model has no fusion, or ``kept`` is not valid for it.
    """
    fused_adapters(model)
    return dataclasses.replace(model, fusion=dataclasses.replace(model.fusion, kept=kept))


def merged(model: Model, params: Tree, trunk_params: Tree) -> tuple[Model, Tree, Tree]:
    """Merges the adapter into the trunk's dense layers.

    Returns:
      The model without the adapter, its trees, and the merged trunk's tree.

    Raises:
      UserError: The model has no adapter, or its adapter cannot be merged.
    """
    if not can_merge(model):
        kinds = ", ".join(f'"{name}" (kind {config.kind})' for name, config in model.adapters)
        raise UserError(
            f"Only lora and ia3 adapters can be merged into the trunk; the adapters of this model: {kinds or 'none'}."
        )
    ((name, config),) = model.adapters
    assert isinstance(config, InDenseLayers), "checked above"
    layers = jax.device_get(merge_adapter(trunk_params["layers"], params["adapters"][name], config))
    return dataclasses.replace(model, adapters=()), {**params, "adapters": {}}, {**trunk_params, "layers": layers}


def can_merge(model: Model) -> bool:
    """Whether the model has an adapter that can be merged into the trunk."""
    return any(isinstance(config, InDenseLayers) for _, config in model.adapters)


def renamed(model: Model, params: Tree, name: str) -> tuple[Model, Tree]:
    """Renames the head and its fusion or adapter. Fused adapters keep their names.

    Raises:
      UserError: The name cannot be used.
    """
    check_name(name, "model")
    new_names = {
        "adapters": {adapter: adapter if model.fusion_name else name for adapter, _ in model.adapters},
        "fusion": {model.fusion_name: name} if model.fusion_name else {},
        "heads": {model.head_name: name},
    }
    return model_names.with_names(model, new_names), model_names.renamed(params, new_names)


def attention_axes(model: Model) -> tuple[dict[str, tuple[tuple[str, ...], ...]], tuple[int, ...]]:
    """Labels the axes of a fusion's attention over adapters.

    Returns:
      ``{slot: adapter names for each layer}``, and the indices of the layers.

    Raises:
      UserError: The model has no fusion.
    """
    members, first = fused_adapters(model), model.adapters[0][1]
    layers = tuple(adapter_layers(first, model.trunk.num_layers))
    if model.fusion.kept is None:
        return dict.fromkeys(first.slots, (tuple(members),) * len(layers)), layers
    names = {
        slot: tuple(tuple(members[number] for number in layer_numbers) for layer_numbers in slot_numbers)
        for slot, slot_numbers in zip(first.slots, model.fusion.kept, strict=True)
    }
    return names, layers


def fused_adapters(model: Model) -> list[str]:
    """Returns the names of a fusion's adapters.

    Raises:
      UserError: The model has no fusion.
    """
    if not model.fusion_name:
        raise UserError(f'The head "{model.head_name}" is used without a fusion; select a fusion.')
    return [name for name, _ in model.adapters]
