"""``afjax.Encoder`` equals a model's encoder. Its parameters are a trunk's tree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from facts import has_facts
from flax.errors import ScopeParamShapeError

from afjax.adapters.kinds import init_adapter
from afjax.config.adapters import ADAPTER_PRESETS, Adapter, AdapterConfig, PalConfig
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.methods import Method
from afjax.errors import UserError
from afjax.model.encoder_module import Encoder
from afjax.model.setup import Setup, fusion_setup, single_setup
from afjax.trees import Tree, flatten
from afjax.trunk.config import TrunkConfig
from afjax.trunk.encoder import init_trunk

pytestmark = pytest.mark.slow

TRUNK = TrunkConfig(
    family="bert",
    vocab_size=20,
    hidden_size=12,
    num_layers=2,
    num_heads=2,
    intermediate_size=24,
    max_positions=8,
    type_vocab_size=2,
)
TOKENS = jnp.array([[1, 5, 7, 2], [1, 9, 2, 0]])
BATCH = {"tokens": TOKENS, "types": jnp.zeros_like(TOKENS), "mask": TOKENS > 0}
INPUTS = (BATCH["tokens"], BATCH["types"], BATCH["mask"])


def make_params(setup: Setup) -> Tree:
    params = setup.init(jax.random.key(0), init_trunk(jax.random.key(1), TRUNK))
    # New adapters are nearly the identity. Larger values make them change the outputs.
    params["adapters"] = jax.tree.map(lambda leaf: leaf + 0.1, params["adapters"])
    return params


@pytest.mark.parametrize("config", [AdapterConfig(size=3), ADAPTER_PRESETS["houlsby"], ADAPTER_PRESETS["top_layer"]])
@pytest.mark.parametrize("key", [None, jax.random.key(5)], ids=["no dropout", "dropout"])
def test_encoder_with_an_adapter_equals_the_model(config: Adapter, key: jax.Array | None) -> None:
    setup = single_setup(Method(adapter=config), TRUNK, name="a", reads="pooled", num_outputs=2)
    params = make_params(setup)
    expected = setup.model.hidden_states(params, BATCH, key=key)
    encoder = Encoder(TRUNK, adapters=(("a", config),))
    hidden = encoder.apply({"params": params["trunk"]}, *INPUTS, adapters=params["adapters"], key=key)
    np.testing.assert_array_equal(hidden, expected)
    plain = Encoder(TRUNK).apply({"params": params["trunk"]}, *INPUTS, key=key)
    assert not np.allclose(hidden, plain, atol=1e-3)


def test_encoder_with_a_fusion_equals_the_model() -> None:
    config, fusion = AdapterConfig(size=3), FusionConfig(init_scale=0.5)
    adapters = {"a": config, "b": config}
    setup = fusion_setup(adapters, fusion, HeadConfig(), TRUNK, name="mix", reads="pooled", num_outputs=2)
    params = make_params(setup)
    encoder = Encoder(TRUNK, adapters=tuple(adapters.items()), fusion=fusion)
    hidden = encoder.apply(
        {"params": params["trunk"]}, *INPUTS, adapters=params["adapters"], fusion=params["fusion"]["mix"]
    )
    np.testing.assert_array_equal(hidden, setup.model.hidden_states(params, BATCH))


def test_parameters_are_the_trunks_tree_without_the_pooler() -> None:
    variables = jax.eval_shape(lambda: Encoder(TRUNK).init(jax.random.key(0), *INPUTS))
    trunk = jax.eval_shape(lambda: init_trunk(jax.random.key(0), TRUNK))
    shapes = {path: leaf.shape for path, leaf in flatten(variables["params"]).items()}
    assert shapes == {path: leaf.shape for path, leaf in flatten(trunk).items() if not path.startswith("pooler/")}


def test_gradients_reach_adapters_and_trunk() -> None:
    config = AdapterConfig(size=3)
    params = make_params(single_setup(Method(adapter=config), TRUNK, name="a", reads="pooled", num_outputs=2))
    encoder = Encoder(TRUNK, adapters=(("a", config),))

    def loss(trunk: Tree, adapters: Tree) -> jax.Array:
        return jnp.square(encoder.apply({"params": trunk}, *INPUTS, adapters=adapters)).sum()

    for gradients in jax.grad(loss, argnums=(0, 1))(params["trunk"], params["adapters"]):
        used = {path: leaf for path, leaf in flatten(gradients).items() if not path.startswith("pooler/")}
        # The key bias adds a constant to all scores of a query, so its gradient is zero.
        assert all(np.abs(leaf).max() > 0 for path, leaf in used.items() if not path.endswith("key/bias"))


def test_mismatched_parameters_and_layers_are_refused() -> None:
    params = init_trunk(jax.random.key(1), TRUNK)
    wrong = {**params, "embeddings": {**params["embeddings"], "word": params["embeddings"]["word"][:, :6]}}
    with pytest.raises(ScopeParamShapeError):
        Encoder(TRUNK).apply({"params": wrong}, *INPUTS)
    with pytest.raises(UserError) as refused:
        Encoder(TRUNK, adapters=(("a", AdapterConfig(layers=(7,))),)).apply(
            {"params": params}, *INPUTS, adapters={"a": {}}
        )
    assert "7" in str(refused.value)


@pytest.mark.parametrize(
    ("config", "given"),
    [
        (AdapterConfig(size=3, new_layer_norm="before"), AdapterConfig(size=3)),
        (AdapterConfig(size=3, position="both"), AdapterConfig(size=3)),
        (PalConfig(size=4, num_heads=2), AdapterConfig(size=3)),
    ],
)
def test_adapter_that_does_not_match_its_config_is_refused(config: Adapter, given: Adapter) -> None:
    params, tree = init_trunk(jax.random.key(1), TRUNK), init_adapter(jax.random.key(2), given, TRUNK)
    with pytest.raises(UserError) as refused:
        Encoder(TRUNK, adapters=(("a", config),)).apply({"params": params}, *INPUTS, adapters={"a": tree})
    assert has_facts(str(refused.value), '"a"')


@pytest.mark.parametrize(
    ("adapters", "fusion", "given", "facts"),
    [
        ((), None, {"adapters": {"a": {}}}, ("adapters a,", "none;")),
        ((("a", AdapterConfig()),), None, {}, ("adapters none,", "a;")),
        ((("a", AdapterConfig()),), None, {"adapters": {"b": {}}}, ("adapters b,", "a;")),
        ((), None, {"fusion": {}}, ("a fusion,", "no fusion")),
    ],
)
def test_adapters_and_fusion_of_the_call_must_be_the_modules(
    adapters: tuple[tuple[str, Adapter], ...],
    fusion: FusionConfig | None,
    given: dict[str, Tree],
    facts: tuple[str, ...],
) -> None:
    params = init_trunk(jax.random.key(1), TRUNK)
    with pytest.raises(UserError) as refused:
        Encoder(TRUNK, adapters, fusion).apply({"params": params}, *INPUTS, **given)
    assert has_facts(str(refused.value), *facts)
