"""Tests tree paths and digests, and random keys derived from names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afjax.errors import UserError
from afjax.trees import (
    Node,
    array_digest,
    count,
    flatten,
    map_with_path,
    merge,
    named_key,
    register_node,
    select,
    tree_digest,
    unflatten,
)

PINNED_ARRAY = "90ff15c65b0e4ac6c224eb5ffe2891684a9cbdd2ebf50f5f3a07cedaf7d813c4"
PINNED_TREE = "2935951fb1bf0a6628f707b2fd8d282ccf8b4193d8c6f3b7474dc513809892ee"

names = st.text(st.characters(blacklist_characters="/"), min_size=1, max_size=3)
tree_strategy = st.dictionaries(
    names, st.recursive(st.integers(), lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3))
)


@given(tree_strategy)
def test_unflatten_inverts_flatten(tree: dict) -> None:
    assert unflatten(flatten(tree)) == tree


def test_paths_are_sorted_and_empty_subtrees_vanish() -> None:
    tree = {"b": {"y": 1, "x": 2}, "a": 3, "c": {}, "d": {"e": {}}}
    assert list(flatten(tree).items()) == [("a", 3), ("b/x", 2), ("b/y", 1)]


def test_merge_joins_trees_and_refuses_duplicate_leaves() -> None:
    assert merge({"a": {"x": 1}}, {"a": {"y": 2}, "b": 3}, {}) == {"a": {"x": 1, "y": 2}, "b": 3}
    with pytest.raises(UserError, match="a/x"):
        merge({"a": {"x": 1}}, {"a": {"x": 1}})


def test_map_with_path() -> None:
    assert map_with_path(lambda path, leaf: f"{path}={leaf}", {"a": {"b": 1}, "c": 2}) == {
        "a": {"b": "a/b=1"},
        "c": "c=2",
    }


def test_select_keeps_the_chosen_leaves() -> None:
    tree = {"a": {"x": 1, "y": 2}, "b": {"x": 3}}
    assert select(tree, lambda path: path.endswith("y")) == {"a": {"y": 2}}
    assert select(tree, lambda path: False) == {}


# Subclasses of dict.


@register_node
class Kept(Node):
    """A registered dict subclass for these tests only."""


def test_dict_types_are_preserved() -> None:
    tree = {"a": Kept({"2": 1, "10": {"x": 2}})}
    for same in (
        jax.tree.map(lambda leaf: leaf, tree),
        map_with_path(lambda _, leaf: leaf, tree),
        select(tree, lambda _: True),
        merge({"a": Kept({"2": 1})}, {"a": Kept({"10": {"x": 2}})}),
        jax.jit(lambda tree: tree)(tree),
    ):
        assert same == tree
        assert type(same["a"]) is Kept
    assert flatten(tree) == {"a/10/x": 2, "a/2": 1}


def test_typed_dicts_have_the_leaf_order_and_paths_of_plain_dicts() -> None:
    # Leaf order determines the summation order in a global norm, and paths are the names in checkpoints.
    plain = {str(index): index for index in range(12)}
    assert jax.tree.leaves(Kept(plain)) == jax.tree.leaves(plain)
    assert jax.tree_util.tree_leaves_with_path(Kept(plain)) == jax.tree_util.tree_leaves_with_path(plain)


def test_merge_refuses_different_types_for_one_subtree() -> None:
    with pytest.raises(UserError, match="Kept"):
        merge({"a": Kept({"x": 1})}, {"a": {"y": 2}})


def test_count() -> None:
    assert count({"a": np.zeros((2, 3)), "b": {"c": jax.ShapeDtypeStruct((), jnp.float32)}}) == 7
    assert count({}) == 0


# Digests.


def test_digests_are_pinned() -> None:
    # These digests are recorded in stores and trunk identities, so they must never change.
    assert array_digest(np.arange(3, dtype=np.float32)) == PINNED_ARRAY
    assert tree_digest({"b": np.arange(3, dtype=np.float32), "a": {"c": np.int32(1)}}) == PINNED_TREE


def test_digests_do_not_depend_on_memory_layout() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for same in (jnp.asarray(array), np.asfortranarray(array), array.astype(">f4"), np.stack([array, array])[::2][0]):
        assert array_digest(same) == array_digest(array)


def test_digests_distinguish_bits_shapes_dtypes_and_names() -> None:
    array = np.arange(6, dtype=np.float32)
    flipped = array.copy()
    flipped.view(np.uint32)[3] ^= 1
    others = [flipped, array.reshape(2, 3), array.astype(np.float16), array.view(np.int32), -array]
    digests = {array_digest(other) for other in [array, *others]}
    assert len(digests) == 6
    assert array_digest(np.float32(0.0)) != array_digest(np.float32(-0.0))
    trees = [{"a": array}, {"b": array}, {"a": {"b": array}}, {"a": array, "b": array}]
    assert len({tree_digest(tree) for tree in trees}) == 4


def test_digests_do_not_depend_on_key_order() -> None:
    one, two = np.float32(1), np.float32(2)
    assert tree_digest({"a": one, "b": two}) == tree_digest({"b": two, "a": one})


# Named keys.


def test_named_keys_depend_only_on_key_and_names() -> None:
    def bits(seed: int, *path: str) -> tuple[int, ...]:
        return tuple(jax.random.key_data(named_key(jax.random.key(seed), *path)).tolist())

    assert bits(0, "a", "b") == bits(0, "a", "b")
    assert len({bits(0, "a"), bits(0, "b"), bits(1, "a"), bits(0, "a", "b"), bits(0, "b", "a")}) == 5
