"""A partition trains the right parameters.

Frozen leaves do not change, and they add no optimizer state and no gradient computation.
"""

import dataclasses
import functools
import re
import typing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from facts import has_facts

from afjax.adapters.kinds import init_adapter
from afjax.config.adapters import AdapterConfig
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.training import TrainConfig
from afjax.config.values import Partition
from afjax.errors import UserError
from afjax.fusion.parameters import init_fusion
from afjax.model.heads import init_head
from afjax.model.model import Model
from afjax.model.partition import Rule, label, preset, split, split_layers
from afjax.model.setup import Setup
from afjax.train.optimizer import make_optimizer, step_settings
from afjax.train.run_params import split_params
from afjax.train.step import init_state, make_train_step
from afjax.trees import Tree, count, flatten, merge, tree_digest
from afjax.trunk.config import TrunkConfig
from afjax.trunk.encoder import init_trunk
from afjax.trunk.layers import join_layers, unstack_layers

pytestmark = pytest.mark.slow

TRUNK = TrunkConfig(
    family="bert",
    vocab_size=30,
    hidden_size=8,
    num_layers=2,
    num_heads=2,
    intermediate_size=16,
    max_positions=16,
    type_vocab_size=2,
)
PRESETS = typing.get_args(Partition)


def make_model(name: str, trunk: TrunkConfig = TRUNK, num_adapters: int = 2) -> Model:
    adapters = {
        "adapter": ("a0",),
        "adapter+trunk": ("a0",),
        "fusion": tuple(f"a{n}" for n in range(num_adapters)),
    }.get(name, ())
    return Model(
        trunk=trunk,
        head_name="task",
        adapters=tuple((adapter, AdapterConfig(reduction_factor=4.0)) for adapter in adapters),
        fusion_name="mix" if name == "fusion" else "",
    )


def init_params(model: Model) -> Tree:
    key = jax.random.key(0)
    trunk = init_trunk(key, model.trunk)
    size = {"hidden_size": model.trunk.hidden_size, "num_layers": model.trunk.num_layers}
    fusion = [model.fusion_name] if model.fusion_name else []
    return {
        "trunk": trunk,
        "adapters": {name: init_adapter(key, config, model.trunk) for name, config in model.adapters},
        "fusion": {name: init_fusion(key, FusionConfig(), model.adapters[0][1], **size) for name in fusion},
        "heads": {"task": init_head(key, model.head, 2, trunk=trunk)},
    }


@functools.cache
def cached_params(name: str) -> Tree:
    params = jax.jit(init_params, static_argnums=0)(make_model(name))
    return {**params, "trunk": split_layers(params["trunk"], 1)} if name == "top_k" else params


# Tests of the presets.

HEAD = {f"heads/task/{layer}/{leaf}" for layer in ("pooler", "output") for leaf in ("kernel", "bias")}
NORMS = {
    f"trunk/{part}/norm/{leaf}"
    for part in ("embeddings", "layers/attention", "layers/ffn")
    for leaf in ("scale", "bias")
}
TRAINED = {
    "adapter": {f"adapters/a0/ffn/{layer}/{leaf}" for layer in ("down", "up") for leaf in ("kernel", "bias")} | HEAD,
    "fusion": {
        "fusion/mix/ffn/key/bias",
        "fusion/mix/ffn/key/kernel",
        "fusion/mix/ffn/query/bias",
        "fusion/mix/ffn/query/kernel",
        "fusion/mix/ffn/value/kernel",
    }
    | HEAD,
    "head": HEAD,
    "layernorm": NORMS | HEAD,
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_label_every_leaf_once(name: str) -> None:
    params = cached_params(name)
    labels = label(params, preset(name))
    assert sorted(labels) == sorted(flatten(params))
    trained = {path for path, train in labels.items() if train}
    if name == "full":
        expected = {path for path in labels if not path.startswith("trunk/pooler")}
    elif name == "adapter+trunk":
        expected = TRAINED["adapter"] | {path for path in labels if re.match("trunk/(embeddings|layers)/", path)}
    elif name == "top_k":
        expected = {path for path in labels if path.startswith("trunk/top_layers/")} | HEAD
    else:
        expected = TRAINED[name]
    assert trained == expected


@pytest.mark.parametrize("name", PRESETS)
def test_presets_label_stacked_and_unstacked_layers_alike(name: str) -> None:
    stacked = cached_params(name)
    groups = [group for group in ("layers", "top_layers") if group in stacked["trunk"]]
    trunk = {**stacked["trunk"], **{group: unstack_layers(stacked["trunk"][group]) for group in groups}}
    params = {**stacked, "trunk": trunk}
    before, after = (split(tree, label(tree, preset(name)))[0] for tree in (stacked, params))
    assert count(before) == count(after)


@pytest.mark.parametrize("name", ["full", "top_k"])
def test_a_shared_pooler_is_trained_with_the_trunk(name: str) -> None:
    params = cached_params(name)
    head = HeadConfig(pooler="trunk")
    assert label(params, preset(name, head))["trunk/pooler/kernel"]
    without = {**params, "trunk": {key: tree for key, tree in params["trunk"].items() if key != "pooler"}}
    assert "trunk/pooler/kernel" not in label(without, preset(name, head))


def test_errors_name_the_leaves_and_the_rules() -> None:
    params = {"heads": {"a": jnp.zeros(1), "b": jnp.zeros(1)}, "trunk": {"x": jnp.zeros(1)}}
    rules = (Rule("heads/.*", True), Rule("heads/b", False), Rule("adapters/.*", True), Rule("fusion/.*", True, True))
    with pytest.raises(UserError) as raised:
        label(params, rules)
    message = str(raised.value)
    assert has_facts(message, "heads/b ", "two rules; ", 'rule "adapters/.*"', "no leaf; ", "trunk/x ", "no rule")
    assert message.count("; ") == 2


def test_errors_list_some_leaves_and_count_the_rest() -> None:
    with pytest.raises(UserError, match=r"leaf5 .*no rule; .*4 more"):
        label({f"leaf{index}": jnp.zeros(1) for index in range(10)}, ())


def test_rules_match_entire_paths() -> None:
    with pytest.raises(UserError, match=r'rule "head" .*no leaf; heads/a .*no rule'):
        label({"heads": {"a": jnp.zeros(1)}}, (Rule("head", True),))


# Tests of splitting parameters into a trained and a frozen tree.


@pytest.mark.parametrize("name", PRESETS)
def test_merge_undoes_split(name: str) -> None:
    params = cached_params(name)
    trained, frozen = split(params, label(params, preset(name)))
    assert not flatten(trained).keys() & flatten(frozen).keys()
    assert tree_digest(merge(trained, frozen)) == tree_digest(params)


@pytest.mark.parametrize("top_k", [1, 2])
def test_join_undoes_split_layers(top_k: int) -> None:
    trunk = cached_params("head")["trunk"]
    parts = split_layers(trunk, top_k)
    assert ("layers" in parts) == (top_k < 2)
    assert parts["top_layers"]["ffn"]["output"]["kernel"].shape == (top_k, 16, 8)
    assert tree_digest(join_layers(parts)) == tree_digest(trunk)
    assert join_layers(trunk) is trunk


@pytest.mark.parametrize("top_k", [0, 3, -1])
def test_invalid_top_k_is_refused(top_k: int) -> None:
    with pytest.raises(UserError, match=f"top_k is {top_k}, .*2 layers.* 1 to 2"):
        split_layers(cached_params("head")["trunk"], top_k)


# Tests of the training step.


def make_batch(model: Model, rows: int, length: int) -> dict[str, jax.Array]:
    tokens = jax.random.randint(jax.random.key(1), (rows, length), 1, model.trunk.vocab_size)
    return {
        "tokens": tokens,
        "types": jnp.zeros_like(tokens),
        "mask": jnp.ones(tokens.shape, bool),
        "labels": jnp.arange(rows) % 2,
        "weights": jnp.ones(rows),
    }


def make_step(model: Model, params: Tree, trained_paths: dict[str, bool]) -> tuple[Any, Any, Tree]:
    """Makes the training step, the inputs of its state, and the frozen tree.

    If ``params`` are shapes, the trees in the result are shapes too.
    """
    trained, frozen = split(params, trained_paths)
    optimizer = make_optimizer(TrainConfig(), trained)
    return make_train_step(model, optimizer, "classification", dropout=False), (trained, optimizer), frozen


@pytest.mark.parametrize("name", PRESETS)
def test_frozen_leaves_have_no_optimizer_state_and_are_not_returned(name: str) -> None:
    model, params = make_model(name), cached_params(name)
    before = tree_digest(params)
    step, (trained, optimizer), frozen = make_step(model, params, label(params, preset(name)))
    state = init_state(trained, optimizer)
    moments = [leaf for leaf in jax.tree.leaves(state["optimizer"]) if leaf.ndim]
    assert sum(leaf.size for leaf in moments) == 2 * count(trained)

    inputs = (state, frozen, make_batch(model, 2, 4), jax.random.key(0), step_settings(TrainConfig(), 0.1))
    new, metrics = jax.jit(step)(*inputs)
    assert not new["failed"]
    assert new["step"] == 1
    assert new.keys() == state.keys()
    assert metrics.keys() == {"loss", "gradient_norm", "failed"}
    assert flatten(new["trained"]).keys() == flatten(trained).keys()
    kernels = [path for path in flatten(trained) if path.startswith("heads/task/output") or "/up/" in path]
    assert all(not np.array_equal(flatten(new["trained"])[path], flatten(trained)[path]) for path in kernels)
    assert tree_digest(merge(trained, frozen)) == before


def test_frozen_adapters_of_a_fusion_are_stored_once_in_a_bank() -> None:
    model, params = make_model("fusion"), cached_params("fusion")
    trained, frozen = split_params(Setup(model=model, rules=preset("fusion"), num_outputs=2), params)
    assert (trained.keys(), frozen.keys()) == ({"fusion", "heads"}, {"trunk", "bank"})
    assert count(frozen["bank"]) == count(params["adapters"])
    assert len(jax.tree.leaves(frozen["bank"])) == 4 * TRUNK.num_layers


# Tests of the compiled step's floating-point operations.

LARGE = dataclasses.replace(TRUNK, num_layers=4, hidden_size=256, num_heads=4, intermediate_size=1024, max_positions=64)
ROWS, LENGTH, ADAPTERS = 8, 64, 3


@functools.cache
def compiled_flops(name: str, *, everything: bool = False) -> float:
    """Returns XLA's FLOP count for one training step, which is only compiled."""
    model = make_model(name, LARGE, ADAPTERS)
    params = jax.eval_shape(lambda: init_params(model))
    params["trunk"]["layers"] = jax.eval_shape(unstack_layers, params["trunk"]["layers"])
    labels = dict.fromkeys(flatten(params), True) if everything else label(params, preset(name))
    step, (trained, optimizer), frozen = make_step(model, params, labels)
    state = jax.eval_shape(lambda: init_state(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), trained), optimizer))
    batch = jax.eval_shape(lambda: make_batch(model, ROWS, LENGTH))
    inputs = (state, frozen, batch, jax.eval_shape(lambda: jax.random.key(0)), step_settings(TrainConfig(), 0.1))
    return jax.jit(step).lower(*inputs).compile().cost_analysis()["flops"]


def matmul(rows: int, *sizes: int) -> int:
    """Returns the FLOPs of ``[rows, sizes[0]] @ [sizes[0], sizes[1]]``."""
    return 2 * rows * sizes[0] * sizes[1]


def expected_flops(name: str) -> int:
    """Counts the FLOPs of the matrix products that a training step needs.

    The step needs the forward products, the gradients with respect to trained weights, and the gradients with respect
    to activations that have trained leaves below them. The last layer computes only the first token.
    """
    hidden, inner, tokens = LARGE.hidden_size, LARGE.intermediate_size, ROWS * LENGTH
    full_layers = LARGE.num_layers - 1  # all layers except the last

    def dense_layers(rows: int) -> int:
        return 4 * matmul(rows, hidden, hidden) + 2 * matmul(rows, hidden, inner)

    def slot(rows: int) -> tuple[int, int]:
        """Counts a slot's FLOPs.

        Returns:
          The FLOPs without the gradient with respect to the slot's input, and the FLOPs of this gradient.
        """
        num = 1 if name == "adapter" else ADAPTERS
        down = up = matmul(rows, hidden, num * hidden // 4)
        if name == "adapter":
            return 2 * (down + up) + up, down
        biases, square = matmul(rows, hidden, num), matmul(rows, hidden, hidden)
        # The matrices are query, key and value. With many rows, query and key are first multiplied with each other.
        matrices, joining = (2, 3 * matmul(hidden, hidden, hidden)) if rows > hidden else (3, 0)
        # The products with up-projections and biases occur twice: in the scores and in the outputs.
        forward = down + 2 * up + 2 * biases + matrices * square
        weights = matrices * square + joining
        return forward + weights + 2 * up + 2 * biases + (matrices - 1) * square, down + square

    # Attention has two products: the scores and the weighted sum of values. Both operands are activations, so the
    # backward pass has two products for each.
    attention = 2 * matmul(tokens, LENGTH, hidden)
    last_attention = 2 * matmul(ROWS * LARGE.num_heads, LENGTH, hidden)
    # The lowest layer needs no gradient with respect to its input, because nothing below it is trained.
    trunk = full_layers * (dense_layers(tokens) + attention)
    trunk += (full_layers - 1) * (dense_layers(tokens) + 2 * attention)
    trunk += 2 * dense_layers(ROWS) + 3 * last_attention
    slots = full_layers * slot(tokens)[0] + (full_layers - 1) * slot(tokens)[1] + sum(slot(ROWS))
    head = 3 * (matmul(ROWS, hidden, hidden) + matmul(ROWS, hidden, 2))
    return trunk + slots + head


@pytest.mark.parametrize("name", ["adapter", "fusion"])
def test_step_computes_no_gradients_for_frozen_weights(name: str) -> None:
    assert compiled_flops(name) == pytest.approx(expected_flops(name), rel=0.03)
    assert compiled_flops(name) < 0.8 * compiled_flops(name, everything=True)


@functools.cache
def flops_of_top(top_k: int) -> float:
    """Returns XLA's FLOP count for one training step of the ``top_k`` upper layers.

    If ``top_k`` is 0, only the head is trained.
    """
    name = "top_k" if top_k else "head"
    model = make_model(name, LARGE)
    params = jax.eval_shape(lambda: init_params(model))
    if top_k:
        params["trunk"] = jax.eval_shape(lambda trunk: split_layers(trunk, top_k), params["trunk"])
    for group in ("layers", "top_layers"):
        if group in params["trunk"]:
            params["trunk"][group] = jax.eval_shape(unstack_layers, params["trunk"][group])
    # The trunk's embeddings are always frozen here, even if all layers are trained.
    rules = tuple(dataclasses.replace(rule, optional=True) for rule in preset(name))
    step, (trained, optimizer), frozen = make_step(model, params, label(params, rules))
    state = jax.eval_shape(lambda: init_state(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), trained), optimizer))
    batch = jax.eval_shape(lambda: make_batch(model, ROWS, LENGTH))
    inputs = (state, frozen, batch, jax.eval_shape(lambda: jax.random.key(0)), step_settings(TrainConfig(), 0.1))
    return jax.jit(step).lower(*inputs).compile().cost_analysis()["flops"]


def test_backward_pass_stops_at_the_lowest_trained_layer() -> None:
    tokens, hidden, inner = ROWS * LENGTH, LARGE.hidden_size, LARGE.intermediate_size
    dense_layers = 4 * matmul(tokens, hidden, hidden) + 2 * matmul(tokens, hidden, inner)
    attention = 2 * matmul(tokens, LENGTH, hidden)
    forward = (LARGE.num_layers - 1) * (dense_layers + attention)
    # If only the head is trained, the trunk has no backward pass, and its last layer computes only the first token.
    assert flops_of_top(0) == pytest.approx(forward, rel=0.1)
    # Training the last layer is cheap, because it computes only the first token. Every additional trained layer adds
    # its backward pass.
    assert flops_of_top(1) - flops_of_top(0) < 0.1 * dense_layers
    for top_k in (2, 3, 4):
        backward = 2 * dense_layers + 2 * attention
        # The lowest trained layer needs no gradient with respect to its input, which saves the products for query, key
        # and value.
        unneeded = 3 * matmul(tokens, hidden, hidden) if top_k == 2 else 0
        assert flops_of_top(top_k) - flops_of_top(top_k - 1) == pytest.approx(backward - unneeded, rel=0.05), top_k
