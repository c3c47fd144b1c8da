"""Converts tensors of the original BERT implementations to parameter trees.

A table maps each tensor name to a leaf of the tree, or to a slice of a stacked leaf. Google's TensorFlow code and its
first PyTorch ports share the scopes but spell names differently.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from afjax.display.words import first_of
from afjax.errors import UserError
from afjax.trees import Tree, flatten, unflatten
from afjax.trunk.bert import WEIGHT_NAMES
from afjax.trunk.family import Weight
from afjax.trunk.hugging_face import check_finite


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """The leaf, or slice of a leaf, that a tensor is copied to.

    Attributes:
      path: Path of the leaf.
      index: Index along the leading axis of a stacked leaf, or None for the whole leaf.
      transposed: Whether the tensor has the layout ``[out, in]``.
    """

    path: str
    index: int | None = None
    transposed: bool = False


Table = dict[str, Place]
Tensors = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spelling:
    """Naming conventions of a framework's BERT checkpoints.

    Attributes:
      separator: Separator between scopes.
      layer: Separator between ``layer`` and the layer number.
      kernel: Name of a dense layer's weight matrix.
      table: Name suffix of embedding tables.
      transposed: Whether weight matrices have the layout ``[out, in]``.
    """

    separator: str
    layer: str
    kernel: str
    table: str
    transposed: bool

    def join(self, *scopes: str) -> str:
        return self.separator.join(scope for scope in scopes if scope)

    def layer_scope(self, number: int) -> str:
        """Returns the scope of a trunk layer."""
        return self.join("bert", "encoder", f"layer{self.layer}{number}")


TENSORFLOW = Spelling(separator="/", layer="_", kernel="kernel", table="", transposed=False)
PYTORCH = Spelling(separator=".", layer=".", kernel="weight", table="weight", transposed=True)


def weights_table(
    spelling: Spelling, weights: Mapping[str, Weight], scope: str = "", path: str = "", index: int | None = None
) -> Table:
    """Builds the table entries for tensors with Hugging Face's names.

    Args:
      spelling: The checkpoint's naming conventions.
      weights: The tensors' names in Hugging Face's checkpoints, and their leaves.
      scope: The scope that contains the tensors in the checkpoint.
      path: The path of the subtree that contains the leaves.
      index: The index along the leading axis of stacked leaves, or None.
    """
    table: Table = {}
    for name, weight in weights.items():
        *scopes, leaf = name.split(".")
        if scopes[-1] == "LayerNorm":
            leaf = {"weight": "gamma", "bias": "beta"}[leaf]
        elif leaf == "weight":
            leaf = spelling.kernel if weight.transposed else spelling.table
        table[spelling.join(scope, *scopes, leaf)] = Place(
            path="/".join(filter(None, (path, *weight.paths))),
            index=index,
            transposed=weight.transposed and spelling.transposed,
        )
    return table


def trunk_table(spelling: Spelling, num_layers: int) -> Table:
    """Builds the table for all BERT tensors, including the pooler's."""
    table = weights_table(spelling, {**WEIGHT_NAMES.embeddings, **WEIGHT_NAMES.pooler}, "bert")
    for number in range(num_layers):
        table |= weights_table(spelling, WEIGHT_NAMES.layers, spelling.layer_scope(number), "layers", number)
    return table


def check_names(tensors: Tensors, wanted: Collection[str], *, known: Collection[str] = (), where: str) -> None:
    """Raises UserError, listing the tensors, if any are missing or unknown.

    Tensors in ``known`` are optional.
    """
    missing = sorted(set(wanted) - set(tensors))
    unknown = sorted(set(tensors) - set(wanted) - set(known))
    problems = [f"- {name}" for name in missing] + [f"+ {name}" for name in unknown]
    if problems:
        raise UserError(
            f"{where} does not have the expected variables (- missing, + unknown): {first_of(problems)}; check that "
            "the file was saved by the authors' code, and that its kind and number of layers are correct."
        )


def fill(shapes: Tree, table: Table, tensors: Tensors, *, where: str) -> Tree:
    """Builds a parameter tree (float32) from tensors.

    All tensors in the table must be present.

    Args:
      shapes: The structure of the tree. Leaves can be any objects with a ``shape``.
      table: Maps tensors to the tree's leaves or slices of them. It must cover all leaves.
      tensors: The tensors by name. Tensors that are not in the table are ignored.
      where: The file's name in error messages.

    Raises:
      UserError: Tensors have the wrong shape (the message lists them), or contain NaN or infinity.
    """
    expected = flatten(shapes)
    assert expected.keys() == {place.path for place in table.values()}, "the table does not match the tree"
    wrong = []
    for name, place in table.items():
        shape = expected[place.path].shape if place.index is None else expected[place.path].shape[1:]
        shape = shape[::-1] if place.transposed else shape
        if tensors[name].shape != shape:
            wrong.append(f"{name} is {list(tensors[name].shape)} instead of {list(shape)}")
    if wrong:
        raise UserError(f"{where} has the wrong shapes: {first_of(wrong)}; check that it belongs to this BERT.")
    # Allocate the arrays after the check, because with a wrong config they may not fit in memory.
    leaves = {path: np.empty(leaf.shape, np.float32) for path, leaf in expected.items()}
    for name, place in table.items():
        slice_of(leaves, place)[...] = tensors[name].T if place.transposed else tensors[name]
    check_finite(leaves, where)
    return unflatten(leaves)


def slice_of(leaves: Mapping[str, Any], place: Place) -> Any:
    """Returns the leaf, or slice of a leaf, that ``place`` refers to.

    ``leaves`` is the flattened tree.
    """
    return leaves[place.path] if place.index is None else leaves[place.path][place.index]
