"""A head reads one vector per row or per choice, or every token's hidden state."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from facts import has_facts

from afjax.adapters.kinds import init_adapter
from afjax.config.adapters import ADAPTER_PRESETS, TopFfnConfig
from afjax.config.heads import HeadConfig
from afjax.config.methods import Method
from afjax.config.tasks import TaskKind
from afjax.errors import UserError
from afjax.model.heads import init_head
from afjax.model.model import Model
from afjax.model.setup import single_setup
from afjax.tasks.kinds import TASK_KINDS
from afjax.train.loss import task_loss
from afjax.trees import Tree, merge
from afjax.trunk.encoder import encode
from afjax.trunk.pretrained import Trunk

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def batch(tiny_trunk: Trunk) -> dict[str, jax.Array]:
    tokens = jax.random.randint(KEY, (4, 6), 5, tiny_trunk.config.vocab_size)
    mask = jnp.arange(6)[None] < jnp.array([6, 3, 5, 1])[:, None]
    return {"tokens": tokens, "types": jnp.zeros_like(tokens), "mask": mask}


def make_params(trunk: Trunk, model: Model, outputs: int) -> Tree:
    head = init_head(KEY, model.head, outputs, trunk=trunk.params, reads=model.reads, init_scale=0.5)
    return {"trunk": jax.tree.map(jnp.asarray, trunk.params), "adapters": {}, "fusion": {}, "heads": {"task": head}}


@pytest.mark.parametrize(
    ("kind", "reads", "outputs"),
    [
        ("classification", "pooled", 3),
        ("regression", "pooled", 1),
        ("multiple_choice", "pooled", 1),
        ("span", "tokens", 2),
    ],
)
def test_number_of_outputs_for_each_kind_of_task(kind: TaskKind, reads: str, outputs: int) -> None:
    assert TASK_KINDS[kind].reads == reads
    assert TASK_KINDS[kind].num_outputs(("a", "b", "c") if kind != "regression" else ()) == outputs


def test_token_head_gives_logits_for_every_token(tiny_trunk: Trunk, batch: dict[str, jax.Array]) -> None:
    model = Model(trunk=tiny_trunk.config, head_name="task", reads="tokens")
    params = make_params(tiny_trunk, model, 2)
    assert params["heads"]["task"].keys() == {"output"}
    logits = jax.jit(lambda *inputs: model(*inputs).logits)(params, batch)
    hidden, _ = encode(params["trunk"], tiny_trunk.config, batch)
    output = params["heads"]["task"]["output"]
    assert logits.shape == (4, 6, 2)
    assert np.allclose(logits, hidden @ output["kernel"] + output["bias"][None, None], atol=1e-5)


def test_a_model_can_be_jitted(tiny_trunk: Trunk, batch: dict[str, jax.Array]) -> None:
    model = Model(trunk=tiny_trunk.config, head_name="task")
    params = make_params(tiny_trunk, model, 3)
    outputs, expected = jax.jit(model)(params, batch), model(params, batch)
    assert outputs.logits.shape == (4, 3)
    assert np.allclose(outputs.logits, expected.logits, atol=1e-5)
    assert outputs.fusion_attention == {}


@pytest.mark.parametrize("partition", ["full", "adapter+trunk"])
def test_gradient_of_a_jitted_loss_is_the_jitted_gradient(tiny_trunk: Trunk, partition: str) -> None:
    """A layout constraint in the embeddings made the first one wrong on the CPU (JAX 0.10.2)."""
    setup = single_setup(Method(partition=partition), tiny_trunk.config, name="task", reads="pooled", num_outputs=2)
    trained, frozen = setup.split(setup.init(KEY, tiny_trunk.params))
    tokens = np.arange(36, dtype=np.int32).reshape(4, 9) % 20
    batch = {"tokens": tokens, "types": np.zeros_like(tokens), "mask": np.ones_like(tokens, bool)}
    batch |= {"labels": np.array([0, 1, 0, 1], np.int32), "weights": np.ones(4, np.float32)}

    def loss(trained: Any) -> Any:
        return task_loss(setup.model(merge(trained, frozen), batch, key=KEY).logits, batch, "classification")

    outer, inner = jax.grad(jax.jit(loss))(trained), jax.jit(jax.grad(loss))(trained)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), outer, inner)


def test_module_on_top_outputs_every_token_for_a_token_head(tiny_trunk: Trunk, batch: dict[str, jax.Array]) -> None:
    # Feed-forward networks on top do not mix tokens, so a pooled head does not need their outputs for all tokens. A
    # token head needs all of these outputs.
    config = TopFfnConfig(size=8, num_layers=1, hidden_sizes=(8,))
    for name, adapter in (("ffn", config), ("layer", ADAPTER_PRESETS["top_layer"])):
        model = Model(trunk=tiny_trunk.config, head_name="task", reads="tokens", adapters=((name, adapter),))
        params = make_params(tiny_trunk, model, 2)
        params["adapters"] = {name: init_adapter(KEY, adapter, tiny_trunk.config)}
        assert jax.eval_shape(lambda *inputs, m=model: m(*inputs).logits, params, batch).shape == (4, 6, 2)


def test_choices_are_computed_like_separate_rows(tiny_trunk: Trunk, batch: dict[str, jax.Array]) -> None:
    model = Model(trunk=tiny_trunk.config, head_name="task")
    params = make_params(tiny_trunk, model, 1)
    run = jax.jit(lambda *inputs: model(*inputs).logits)
    separate = run(params, batch)[:, 0]
    # Make two rows of two choices. The last choice is missing.
    mask = batch["mask"].at[3].set(False)
    choices = {name: leaf.reshape(2, 2, 6) for name, leaf in {**batch, "mask": mask}.items()}
    logits = run(params, choices)
    assert np.allclose(logits.ravel()[:3], separate[:3], atol=1e-6)
    assert logits[1, 1] == jnp.finfo(jnp.float32).min


def test_output_bias_needs_one_entry_per_output(tiny_trunk: Trunk) -> None:
    options: dict[str, Any] = {"name": "t", "reads": "pooled", "num_outputs": 3}
    setup = single_setup(Method(partition="head"), tiny_trunk.config, **options)
    params = setup.init(jax.random.key(0), tiny_trunk.params, output_bias=np.arange(3.0))
    assert params["heads"]["t"]["output"]["bias"].tolist() == [0, 1, 2]
    for wrong in (np.zeros(1), np.zeros(2)):
        with pytest.raises(UserError) as refused:
            setup.init(jax.random.key(0), tiny_trunk.params, output_bias=wrong)
        assert has_facts(str(refused.value), f"{wrong.shape}", "(3,)")


def test_token_head_needs_no_pooler(tiny_trunk: Trunk) -> None:
    trunk = {name: tree for name, tree in tiny_trunk.params.items() if name != "pooler"}
    with pytest.raises(UserError, match="no pooler"):
        init_head(KEY, HeadConfig(pooler="trunk"), 2, trunk=trunk)
    assert init_head(KEY, HeadConfig(pooler="trunk"), 2, trunk=trunk, reads="tokens").keys() == {"output"}
