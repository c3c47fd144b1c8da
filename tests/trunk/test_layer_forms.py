"""Layers can be converted between their forms, and each form has its own type."""

import jax
import jax.numpy as jnp
import pytest

from afjax.trees import Tree, tree_digest
from afjax.trunk.layers import (
    LoopedLayers,
    UnstackedLayers,
    each_layer,
    fastest_form,
    loop_layers,
    map_parts,
    num_layers,
    same_form,
    stack_layers,
    stacks,
    unstack_layers,
)

STACKED: Tree = {"ffn": {"kernel": jnp.arange(24.0).reshape(3, 4, 2), "bias": jnp.arange(6.0).reshape(3, 2)}}


@pytest.mark.parametrize("scan", [False, True])
def test_fastest_form_has_the_same_layers(scan: bool) -> None:
    layers = fastest_form(STACKED, scan=scan)
    assert type(layers) is (LoopedLayers if scan else UnstackedLayers)
    assert num_layers(layers) == num_layers(STACKED) == 3
    assert tree_digest(stack_layers(layers)) == tree_digest(STACKED)
    for index, layer in enumerate(each_layer(layers)):
        assert layer["ffn"]["bias"].tolist() == STACKED["ffn"]["bias"][index].tolist()
    assert tree_digest(same_form(STACKED, layers)) == tree_digest(layers)
    doubled = map_parts(lambda part: jax.tree.map(lambda leaf: 2 * leaf, part), layers)
    assert type(doubled) is type(layers)
    assert tree_digest(stack_layers(doubled)) == tree_digest(jax.tree.map(lambda leaf: 2 * leaf, STACKED))


def test_form_is_determined_by_the_type_and_not_by_the_keys() -> None:
    """A plain tree is stacked, even if its keys look like the keys of another form."""
    lookalike = {"0": {"bias": jnp.zeros((3, 2))}, "last": {"bias": jnp.zeros((3, 2))}}
    assert num_layers(lookalike) == 3
    assert stack_layers(lookalike) is lookalike
    assert stacks(lookalike) == [lookalike]


def test_single_layer_has_no_loop() -> None:
    one = jax.tree.map(lambda leaf: leaf[:1], STACKED)
    assert list(loop_layers(one)) == ["last"]
    assert num_layers(loop_layers(one)) == num_layers(unstack_layers(one)) == 1
    assert each_layer({}) == []


def test_gradient_of_unstacking_is_one_concatenation() -> None:
    """Indexing would give a sum of zero-padded arrays, each as large as the stack."""
    like = unstack_layers(STACKED)

    def total(stacked: Tree) -> jax.Array:
        layers = each_layer(same_form(stacked, like))
        return sum(jnp.sin(leaf).sum() for layer in layers for leaf in jax.tree.leaves(layer))

    program = str(jax.make_jaxpr(jax.grad(total))(STACKED))
    assert "concatenate" in program
    assert " pad[" not in program
