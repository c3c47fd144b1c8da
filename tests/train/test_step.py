"""Tests the schedule, optimizer, loss, padding and failures of a training step."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from afjax.adapters.kinds import init_adapter
from afjax.config.adapters import AdapterConfig
from afjax.config.training import TrainConfig
from afjax.data.batches import Batching
from afjax.data.over_rows import over_rows
from afjax.data.tokenization import TokenizedRows
from afjax.distributed.sharding import local_mesh
from afjax.model import partition
from afjax.model.heads import init_head
from afjax.model.model import Model
from afjax.train.loss import task_loss
from afjax.train.optimizer import learning_rate, make_clipping, make_optimizer, step_settings
from afjax.train.step import State, TrainStep, init_state, make_train_step
from afjax.trees import Tree, flatten, tree_digest, unflatten
from afjax.trunk.pretrained import Trunk


def test_learning_rate_decays_linearly_to_zero() -> None:
    config = TrainConfig(learning_rate=0.8)
    assert [learning_rate(config, step, 4) for step in range(5)] == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.0])


def test_learning_rate_rises_from_zero_during_warmup() -> None:
    config = TrainConfig(learning_rate=1.0, warmup=0.5)
    rates = [learning_rate(config, step, 8) for step in range(9)]
    assert rates == pytest.approx([0, 0.25, 0.5, 0.75, 1, 0.75, 0.5, 0.25, 0])


def test_learning_rate_stays_at_zero_after_the_last_step() -> None:
    assert learning_rate(TrainConfig(learning_rate=1.0), 12, 10) == 0.0


def test_last_step_is_trained_at_the_full_rate_if_all_others_are_warmup() -> None:
    config = TrainConfig(learning_rate=1.0, warmup=0.95)
    assert [learning_rate(config, step, 5) for step in range(6)] == pytest.approx([0, 0.25, 0.5, 0.75, 1, 0])
    from_start = dataclasses.replace(config, decay_from="start")
    assert [learning_rate(from_start, step, 5) for step in range(6)] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 0])
    assert learning_rate(config, 0, 1) == learning_rate(from_start, 0, 1) == 1.0


@pytest.mark.parametrize("settings", [{"weight_decay_on": "weights"}, {"clip_by": "tensor"}])
def test_trees_with_other_leaf_names_can_be_trained(settings: dict[str, Any]) -> None:
    trained = {"w": jnp.array([[3.0], [4.0]]), "mine": {"v": jnp.ones(2)}}
    optimizer = make_optimizer(TrainConfig(clip_norm=1.0, **settings), trained)
    directions, _ = optimizer.update(trained, optimizer.init(trained), trained)
    assert jax.tree.structure(directions) == jax.tree.structure(trained)
    clipped, _ = make_clipping(TrainConfig(clip_norm=1.0, clip_by="tensor")).update(trained, optimizer.init(trained))
    np.testing.assert_allclose(clipped["w"], [[0.6], [0.8]], rtol=1e-6)
    # Parts of a tree can be masked.
    masked = optax.masked(make_clipping(TrainConfig(clip_norm=1.0, clip_by="tensor")), {"w": True, "mine": False})
    clipped, _ = masked.update(trained, masked.init(trained))
    np.testing.assert_allclose(clipped["mine"]["v"], [1.0, 1.0])


def test_weight_decay_only_applies_to_kernels() -> None:
    trained = {"dense": {"kernel": jnp.full(3, 2.0), "bias": jnp.full(3, 2.0)}, "norm": {"scale": jnp.full(3, 2.0)}}
    optimizer = make_optimizer(TrainConfig(weight_decay=0.1), trained)
    gradients = jax.tree.map(jnp.zeros_like, trained)
    directions, _ = optimizer.update(gradients, optimizer.init(trained), trained)
    found = {path: float(leaf[0]) for path, leaf in flatten(directions).items()}
    assert found == pytest.approx({"dense/kernel": 0.2, "dense/bias": 0.0, "norm/scale": 0.0})


DECAYS = {
    "trunk/embeddings/word": "weights",
    "trunk/embeddings/position": "weights",
    "trunk/embeddings/type": "weights",
    "trunk/embeddings/norm/scale": "",
    "trunk/embeddings/norm/bias": "",
    "trunk/layers/attention/query/kernel": "kernels, weights",
    "trunk/layers/attention/query/bias": "",
    "trunk/layers/ffn/norm/scale": "",
    "trunk/pooler/kernel": "kernels, weights",
    "adapters/rte/ffn/scale": "weights",
    # "norm" is the name of an adapter here, so the leaf does not belong to a LayerNorm.
    "adapters/norm/weights": "weights",
    "adapters/rte/ffn/down/kernel": "kernels, weights",
    "adapters/rte/ffn/up/bias": "",
    "adapters/rte/ffn/norm_after/scale": "",
    "adapters/rte/layer_norms/attention/scale": "",
    "adapters/rte/top/layers/ffn/norm/scale": "",
    "fusion/mix/ffn/value/kernel": "kernels, weights",
    "heads/rte/output/kernel": "kernels, weights",
    "heads/rte/output/bias": "",
}


@pytest.mark.parametrize("which", ["kernels", "weights"])
def test_weight_decay_applies_to_the_configured_leaves(which: Any) -> None:
    trained = unflatten({path: jnp.full(3, 2.0) for path in DECAYS})
    optimizer = make_optimizer(TrainConfig(weight_decay=0.1, weight_decay_on=which), trained)
    directions, _ = optimizer.update(jax.tree.map(jnp.zeros_like, trained), optimizer.init(trained), trained)
    decayed = {path for path, leaf in flatten(directions).items() if float(leaf[0]) == pytest.approx(0.2)}
    assert decayed == {path for path, kinds in DECAYS.items() if which in kinds}


@pytest.mark.parametrize(("clip_norm", "expected"), [(1.0, (0.6, 0.8)), (0.0, (30.0, 40.0)), (100.0, (30.0, 40.0))])
def test_clipping_uses_the_global_norm(clip_norm: float, expected: tuple[float, float]) -> None:
    trained = {"a": {"kernel": jnp.zeros(1)}, "b": {"bias": jnp.zeros(1)}}
    # With a very large epsilon, Adam's first update is nearly the gradient divided by epsilon.
    optimizer = make_optimizer(TrainConfig(clip_norm=clip_norm, adam_epsilon=1e6, weight_decay=0.0), trained)
    gradients = {"a": {"kernel": jnp.full(1, 30.0)}, "b": {"bias": jnp.full(1, 40.0)}}
    directions, _ = optimizer.update(gradients, optimizer.init(trained), trained)
    found = [float(leaf[0]) * 1e6 for leaf in flatten(directions).values()]
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("clip_by", ["all", "tensor"])
def test_weight_decay_and_clipping_can_be_inputs_of_an_update(clip_by: Any) -> None:
    trained = {"a": {"kernel": jnp.full((1, 2), 2.0)}, "b": {"bias": jnp.full(1, 2.0)}}
    gradients = {"a": {"kernel": jnp.array([[3.0, -1.0]])}, "b": {"bias": jnp.full(1, 40.0)}}
    config = TrainConfig(clip_norm=7.0, clip_by=clip_by, weight_decay=0.25, adam_epsilon=1.0)
    optimizer = make_optimizer(TrainConfig(clip_norm=1.0, clip_by=clip_by, adam_epsilon=1.0), trained)
    # Use jit, because a training step also traces these inputs.
    update = jax.jit(lambda inputs: optimizer.update(gradients, optimizer.init(trained), trained, **inputs))
    given, _ = update({"clip_norm": 7.0, "weight_decay": 0.25})
    own = make_optimizer(config, trained)
    expected, _ = own.update(gradients, own.init(trained), trained)
    for leaf, other in zip(jax.tree.leaves(given), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-6)


def test_clipping_by_tensor_treats_layers_of_a_stacked_leaf_separately() -> None:
    kernels = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    biases = np.array([[3.0, 4.0], [0.3, 0.4]], np.float32)
    gradients = {"layers": {"kernel": jnp.asarray(kernels), "bias": jnp.asarray(biases)}}
    clip = make_clipping(TrainConfig(clip_norm=2.0, clip_by="tensor"))
    clipped, _ = clip.update(gradients, clip.init(gradients))
    for before, after in zip(kernels, clipped["layers"]["kernel"], strict=True):
        norm = np.linalg.norm(before)
        np.testing.assert_allclose(after, before * min(1.0, 2.0 / norm), rtol=1e-6)
    np.testing.assert_allclose(clipped["layers"]["bias"], [[1.2, 1.6], [0.3, 0.4]], rtol=1e-6)


def test_regression_loss_is_the_weighted_mean_of_squared_errors() -> None:
    logits = jnp.array([[1.0], [2.0], [30.0]])
    loss = task_loss(
        logits, {"labels": jnp.array([0.0, 5.0, 0.0]), "weights": jnp.array([1.0, 1.0, 0.0])}, "regression"
    )
    assert float(loss) == pytest.approx((1 + 9) / 2)


def test_classification_loss_is_the_weighted_mean_of_cross_entropies() -> None:
    logits = jnp.log(jnp.array([[0.25, 0.75], [0.5, 0.5], [0.9, 0.1]]))
    batch = {"labels": jnp.array([1, 0, 1]), "weights": jnp.array([1.0, 1.0, 0.0])}
    loss = task_loss(logits, batch, "classification")
    assert float(loss) == pytest.approx(-(np.log(0.75) + np.log(0.5)) / 2)


@pytest.fixture(scope="module")
def step_and_params(tiny_trunk: Trunk) -> tuple[TrainStep, State, Tree]:
    """Compiles a training step of an adapter, without dropout.

    Returns:
      ``(step, state, frozen)``. ``state`` is the initial state, and ``frozen`` are the frozen parameters.
    """
    config = AdapterConfig(reduction_factor=4.0, init_scale=0.5)
    model = Model(trunk=tiny_trunk.config, head_name="task", adapters=(("task", config),), scan_layers=True)
    adapter = init_adapter(jax.random.key(1), config, tiny_trunk.config)
    head = init_head(jax.random.key(2), model.head, 3, trunk=tiny_trunk.params)
    params = {"trunk": tiny_trunk.params, "adapters": {"task": adapter}, "heads": {"task": head}}
    trained, frozen = partition.split(params, partition.label(params, partition.preset("adapter")))
    trained = jax.tree.map(jnp.asarray, trained)
    optimizer = make_optimizer(TrainConfig(), trained)
    step = jax.jit(make_train_step(model, optimizer, "classification", dropout=False))
    return step, init_state(trained, optimizer), jax.tree.map(jnp.asarray, frozen)


def make_batch(num_rows: int, *, padded_rows: int = 6) -> dict[str, np.ndarray]:
    """Makes a batch with ``num_rows`` rows, padded to ``padded_rows`` rows."""
    draw = np.random.default_rng(0)
    tokens = draw.integers(5, 300, (padded_rows, 8), dtype=np.int32)
    tokens[num_rows:] = 7
    mask = np.ones((padded_rows, 8), bool)
    mask[num_rows:] = False
    labels = draw.integers(0, 3, padded_rows, dtype=np.int32)
    return {
        "tokens": tokens,
        "types": np.zeros((padded_rows, 8), np.int32),
        "mask": mask,
        "labels": labels,
        "weights": (np.arange(padded_rows) < num_rows).astype(np.float32),
    }


def run(step_and_params: tuple[TrainStep, State, Tree], batch: dict, state: State | None = None) -> tuple[State, dict]:
    step, first, frozen = step_and_params
    return step(first if state is None else state, frozen, batch, jax.random.key(0), step_settings(TrainConfig(), 0.1))


def test_rows_with_zero_weight_change_neither_loss_nor_gradients(
    step_and_params: tuple[TrainStep, State, Tree],
) -> None:
    unpadded = {name: array[:4] for name, array in make_batch(4).items()}
    state, scalars = run(step_and_params, unpadded)
    padded_state, padded_scalars = run(step_and_params, make_batch(4))
    assert float(padded_scalars["loss"]) == pytest.approx(float(scalars["loss"]), rel=1e-5)
    assert float(padded_scalars["gradient_norm"]) == pytest.approx(float(scalars["gradient_norm"]), rel=1e-4)
    other = make_batch(4)
    other["labels"][4:] = 2 - other["labels"][4:]
    other["tokens"][4:] = 9
    other_state, other_scalars = run(step_and_params, other)
    assert float(other_scalars["loss"]) == float(padded_scalars["loss"])
    assert tree_digest(other_state["trained"]) == tree_digest(padded_state["trained"])
    # After the first step, Adam's moments are proportional to the gradients and their squares.
    for found, expected in zip(jax.tree.leaves(padded_state), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)


def test_rows_that_pad_a_batch_are_not_returned() -> None:
    lengths = np.array([3, 5, 4, 2, 8, 1, 6])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.repeat(np.arange(7), lengths).astype(np.int32)
    data = TokenizedRows(tokens, np.zeros_like(tokens, np.int8), offsets, None, 0)
    logits = over_rows(
        lambda params, batch: batch["tokens"][:, :1],
        {},
        data,
        batching=Batching(batch_size=4, lengths=(4, 8), pad_id=99),
        mesh=local_mesh(),
    )
    assert logits[:, 0].tolist() == list(range(7))


def test_non_finite_loss_keeps_the_state(step_and_params: tuple[TrainStep, State, Tree]) -> None:
    before, _ = run(step_and_params, make_batch(6))
    bad = make_batch(6)
    bad["weights"] = np.full(6, np.inf, np.float32)
    after, scalars = run(step_and_params, bad, before)
    assert scalars["failed"]
    assert not np.isfinite(scalars["loss"])
    for state in (after, run(step_and_params, make_batch(6), after)[0]):
        assert state["failed"]
        assert int(state["step"]) == 1
        for name in ("trained", "optimizer"):
            for found, expected in zip(jax.tree.leaves(state[name]), jax.tree.leaves(before[name]), strict=True):
                np.testing.assert_array_equal(found, expected)


def test_frozen_leaves_have_no_optimizer_state(step_and_params: tuple[TrainStep, State, Tree]) -> None:
    _, state, _ = step_and_params
    trained = sorted(leaf.shape for leaf in jax.tree.leaves(state["trained"]))
    moments = sorted(leaf.shape for leaf in jax.tree.leaves(state["optimizer"]) if leaf.shape)
    assert moments == sorted([*trained, *trained])


def test_adam_without_bias_correction_equals_hand_computed_updates() -> None:
    config = TrainConfig(adam_bias_correction=False, adam_b1=0.9, adam_b2=0.99, adam_epsilon=0.5, weight_decay=0.1)
    trained = {"a": {"kernel": jnp.array([2.0]), "bias": jnp.array([2.0])}}
    optimizer = make_optimizer(dataclasses.replace(config, clip_norm=0.0), trained)
    state = optimizer.init(trained)
    mu = nu = 0.0
    for gradient in (3.0, -1.0):
        mu, nu = 0.9 * mu + 0.1 * gradient, 0.99 * nu + 0.01 * gradient**2
        direction = mu / (np.sqrt(nu) + 0.5)
        given = jax.tree.map(lambda leaf, by=gradient: jnp.full_like(leaf, by), trained)
        directions, state = optimizer.update(given, state, trained)
        np.testing.assert_allclose(directions["a"]["kernel"], [direction + 0.1 * 2.0], rtol=1e-6)
        np.testing.assert_allclose(directions["a"]["bias"], [direction], rtol=1e-6)


def test_decay_can_start_at_step_zero_like_bert() -> None:
    config = TrainConfig(learning_rate=1.0, warmup=0.2, decay_from="start")
    rates = [learning_rate(config, step, 10) for step in range(11)]
    assert rates == pytest.approx([0.0, 0.5, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0])
