"""Pooling selects the first token's hidden state or the mean over all tokens."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from afjax.adapters.kinds import init_adapter
from afjax.config.adapters import ADAPTER_PRESETS
from afjax.config.heads import HeadConfig
from afjax.config.tasks import TaskConfig
from afjax.config.values import Pooling
from afjax.errors import UserError
from afjax.interop.adapterhub.heads import write_head
from afjax.model.heads import apply_head, init_head
from afjax.model.model import Model
from afjax.nn.pooling import pool
from afjax.tpu.minimum_flops import minimum_flops
from afjax.trees import Tree
from afjax.trunk.encoder import encode
from afjax.trunk.pretrained import Trunk

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
LENGTHS = np.array([6, 3, 5, 1])


@pytest.fixture(scope="module")
def batch(tiny_trunk: Trunk) -> dict[str, jax.Array]:
    tokens = jax.random.randint(KEY, (4, 6), 5, tiny_trunk.config.vocab_size)
    mask = jnp.arange(6)[None] < jnp.asarray(LENGTHS)[:, None]
    return {"tokens": tokens, "types": jnp.zeros_like(tokens), "mask": mask}


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_pool_agrees_with_a_loop_over_rows_in_value_and_gradient(pooling: Pooling) -> None:
    generator = np.random.default_rng(0)
    hidden, upstream = generator.normal(size=(4, 6, 3)), generator.normal(size=(4, 3))
    expected, gradient = np.zeros((4, 3)), np.zeros_like(hidden)
    for row, length in enumerate(LENGTHS):
        used = 1 if pooling == "first" else length
        for token in range(used):
            expected[row] += hidden[row, token] / used
            gradient[row, token] = upstream[row] / used
    with jax.enable_x64(True):
        mask = jnp.arange(6)[None] < jnp.asarray(LENGTHS)[:, None]
        value, pullback = jax.vjp(lambda x: pool(x, mask, pooling), jnp.asarray(hidden))
        (pulled_back,) = pullback(jnp.asarray(upstream))
    assert value.dtype == np.float64
    np.testing.assert_allclose(value, expected, rtol=1e-14)
    np.testing.assert_allclose(pulled_back, gradient, rtol=1e-14)


def test_mean_of_a_row_of_padding_is_zero() -> None:
    assert pool(jnp.ones((1, 4, 2)), jnp.zeros((1, 4), bool), "mean").tolist() == [[0.0, 0.0]]


def make_params(trunk: Trunk, model: Model) -> Tree:
    head = init_head(KEY, model.head, 3, trunk=trunk.params, reads=model.reads, init_scale=0.5)
    adapters = {name: init_adapter(KEY, config, trunk.config) for name, config in model.adapters}
    # New adapters are nearly the identity. Larger weights make them change the outputs.
    adapters = jax.tree.map(lambda leaf: leaf * 20, adapters)
    trunk_params = jax.tree.map(jnp.asarray, trunk.params)
    return {"trunk": trunk_params, "adapters": adapters, "fusion": {}, "heads": {"task": head}}


@pytest.mark.parametrize("preset", ["", "pfeiffer", "top_attention", "pals"])
@pytest.mark.parametrize("pooler", ["none", "head", "trunk"])
def test_mean_pooling_reads_all_tokens_except_padding(
    preset: str, pooler: str, tiny_trunk: Trunk, batch: dict[str, jax.Array]
) -> None:
    adapters = (("own", ADAPTER_PRESETS[preset]),) if preset else ()
    head = HeadConfig(pooling="mean", pooler=pooler)  # type: ignore[arg-type]
    model = Model(trunk=tiny_trunk.config, head_name="task", head=head, adapters=adapters)
    params = make_params(tiny_trunk, model)
    logits = model(params, batch).logits
    hidden = model.hidden_states(params, batch)
    if not preset:
        np.testing.assert_array_equal(hidden, encode(params["trunk"], tiny_trunk.config, batch)[0])
    rows = np.stack([np.asarray(hidden[row, :length]).mean(0) for row, length in enumerate(LENGTHS)])
    if pooler != "none":
        pooler_params = (params["heads"]["task"] if pooler == "head" else params["trunk"])["pooler"]
        rows = np.tanh(rows @ pooler_params["kernel"] + pooler_params["bias"][None])
    output = params["heads"]["task"]["output"]
    np.testing.assert_allclose(logits, rows @ output["kernel"] + output["bias"][None], rtol=1e-5, atol=1e-5)
    # Changing a padding token does not change the logits. Changing any other token does.
    changed = {**batch, "tokens": batch["tokens"].at[1, 4].set(7)}
    np.testing.assert_array_equal(model(params, changed).logits, logits)
    changed = {**batch, "tokens": batch["tokens"].at[1, 2].set(7)}
    assert np.abs(model(params, changed).logits - logits)[1].max() > 1e-6


def test_masked_layers_with_mean_pooling_equal_separate_models(tiny_trunk: Trunk, batch: dict[str, jax.Array]) -> None:
    adapters = (("own", ADAPTER_PRESETS["pfeiffer"]),)
    model = Model(trunk=tiny_trunk.config, head_name="task", head=HeadConfig(pooling="mean"), adapters=adapters)
    params = make_params(tiny_trunk, model)
    both = model.under_masks(params, batch, np.array([[True, True], [False, False]]))
    without = dataclasses.replace(model, adapters=())
    np.testing.assert_allclose(both[:, 0], model(params, batch).logits, atol=1e-5)
    np.testing.assert_allclose(both[:, 1], without(params, batch).logits, atol=1e-5)
    assert np.abs(both[:, 0] - both[:, 1]).max() > 1e-3


def test_first_token_pooling_skips_the_other_tokens_of_the_last_layer(tiny_trunk: Trunk) -> None:
    def flops(pooling: Pooling) -> int:
        model = Model(trunk=tiny_trunk.config, head_name="task", head=HeadConfig(pooling=pooling))
        return minimum_flops(model, "nothing", batch_size=2, length=8, num_outputs=2)

    token_model = Model(trunk=tiny_trunk.config, head_name="task", head=HeadConfig(pooling="mean"), reads="tokens")
    d = tiny_trunk.config.hidden_size
    # A token head has no pooler, and computes two outputs for each of the 16 tokens. A head with mean pooling computes
    # a pooler and two outputs for each of the two rows.
    token_flops = minimum_flops(token_model, "nothing", batch_size=2, length=8, num_outputs=2)
    assert flops("mean") == token_flops + 2 * (2 * d * d + 2 * d * 2 - 16 * d * 2)
    assert flops("first") < flops("mean")


def test_apply_head_ignores_pooling_if_the_head_reads_tokens(tiny_trunk: Trunk) -> None:
    hidden, mask = jnp.ones((1, 3, tiny_trunk.config.hidden_size)), jnp.array([[True, True, False]])
    logits = []
    for pooling in ("first", "mean"):
        config = HeadConfig(pooling=pooling, dropout=0.0)  # type: ignore[arg-type]
        head = init_head(KEY, config, 2, trunk=tiny_trunk.params, reads="tokens")
        arguments = {"reads": "tokens", "key": None}
        logits.append(apply_head(head, config, tiny_trunk.params, hidden, mask, **arguments))  # type: ignore[arg-type]
    assert logits[0].shape == (1, 3, 2)
    np.testing.assert_array_equal(*logits)


def test_mean_pooling_cannot_be_exported_to_adapterhub(tiny_trunk: Trunk) -> None:
    config = HeadConfig(pooling="mean")
    head = init_head(KEY, config, 2, trunk=tiny_trunk.params)
    with pytest.raises(UserError, match=r"head\.pooling"):
        write_head(config, head, "task", TaskConfig(name="task"), ("no", "yes"), None)


def test_unknown_pooling_is_refused() -> None:
    with pytest.raises(UserError, match="first"):
        HeadConfig(pooling="max")  # type: ignore[arg-type]
