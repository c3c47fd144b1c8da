"""Replaces task-specific names, so that models can share compiled programs."""

import dataclasses
from collections.abc import Mapping

from afjax.model.model import Model
from afjax.trees import Tree

# The new names of adapters, fusions and heads: {root: {name: new name}}.
Names = Mapping[str, Mapping[str, str]]


def common_names(model: Model) -> Names:
    """Returns task-independent names for a model's adapters, fusion and head.

    Adapters are numbered in the model's order.
    """
    return {
        "adapters": {name: str(number) for number, (name, _) in enumerate(model.adapters)},
        "fusion": {model.fusion_name: "fusion"} if model.fusion_name else {},
        "heads": {model.head_name: "head"},
    }


def with_common_names(model: Model) -> Model:
    """Renames the model's parts to its :func:`common_names`."""
    return with_names(model, common_names(model))


def with_names(model: Model, names: Names) -> Model:
    """Renames the adapters, the fusion and the head of a model."""
    return dataclasses.replace(
        model,
        adapters=tuple((names["adapters"][name], config) for name, config in model.adapters),
        fusion_name=names["fusion"].get(model.fusion_name, ""),
        head_name=names["heads"][model.head_name],
    )


def renamed(tree: Tree, names: Names) -> Tree:
    """Renames the adapters, fusions and heads of a tree.

    Args:
      tree: A tree with some of the four roots.
      names: The new names. Adapters, fusions and heads without a new name are dropped.

    Returns:
      A tree with the same roots. The trunk and a fusion's bank of adapters are unchanged.
    """
    return {
        root: {new: parts[name] for name, new in names[root].items() if name in parts} if root in names else parts
        for root, parts in tree.items()
    }


def reversed_names(names: Names) -> Names:
    """Inverts a renaming."""
    return {root: {new: old for old, new in pairs.items()} for root, pairs in names.items()}
