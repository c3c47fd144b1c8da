"""LoRA and (IA)³ in DeBERTa match PEFT, including their effect on relative positions."""

import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from afjax.adapters.kinds import dense_slots, merge_adapter
from afjax.config.adapters import Ia3Config, InDenseLayers, LoraConfig
from afjax.trees import Tree
from afjax.trunk.config import TrunkConfig
from afjax.trunk.config_file import trunk_config
from afjax.trunk.encoder import encode
from afjax.trunk.hugging_face import from_hugging_face
from afjax.trunk.layer_masks import encode_under_masks
from afjax.trunk.slots import FilledSlots, LayerSlots

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "golden"
MODULES: Any = ("query", "key", "value")
CONFIGS: dict[str, InDenseLayers] = {
    "lora": LoraConfig(target_modules=MODULES, rank=2, alpha=3.0),
    "ia3": Ia3Config(target_modules=MODULES),
}


@pytest.fixture(scope="module")
def trunk() -> tuple[TrunkConfig, Tree, dict[str, np.ndarray]]:
    """Loads a golden DeBERTa trunk and its inputs, as ``(config, params, batch)``."""
    with np.load(GOLDEN / "encoder_deberta_v2.npz") as file:
        arrays = dict(file)
    config = trunk_config(json.loads(str(arrays["config"])), where="golden")
    state = {name.removeprefix("state/"): array for name, array in arrays.items() if name.startswith("state/")}
    batch = {"tokens": arrays["tokens"], "types": arrays["types"], "mask": arrays["mask"].astype(bool)}
    return config, from_hugging_face(state, config, where="golden"), batch


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "deberta_lora.npz") as file:
        return dict(file)


def adapter_of(name: str, golden: dict[str, np.ndarray], num_layers: int) -> Tree:
    """Loads the golden LoRA or (IA)³ adapter ``name``, with its parameters stacked over layers."""

    def stacked(path: str) -> np.ndarray:
        return np.stack([golden[f"{name}/{layer}/{path}"] for layer in range(num_layers)])

    if name == "ia3":
        return {"attention": {module: {"scale": stacked(module)[..., 0]} for module in MODULES}}
    return {
        "attention": {
            module: {
                leaf: {"kernel": stacked(f"{module}/{matrix}").swapaxes(1, 2)}
                for leaf, matrix in (("down", "A"), ("up", "B"))
            }
            for module in MODULES
        }
    }


def filled_slots(name: str, tree: Tree) -> FilledSlots:
    def make(contents: Tree, shared: None, key: jax.Array | None) -> LayerSlots:
        return LayerSlots(dense_layers=dense_slots(contents, CONFIGS[name], key=key))

    return FilledSlots(layers=(0, 1), contents=tree, make=make)


@pytest.mark.parametrize("name", CONFIGS)
def test_adapters_in_queries_and_keys_equal_peft(name: str, trunk: Any, golden: dict[str, np.ndarray]) -> None:
    config, params, batch = trunk
    tree = adapter_of(name, golden, config.num_layers)
    slots, expected = filled_slots(name, tree), golden[f"{name}/hidden"]

    def check(hidden: Any, tokens: slice = slice(None)) -> None:
        mask = batch["mask"][:, tokens]
        assert np.abs(np.asarray(hidden) - expected[:, tokens])[mask].max() < 1e-4

    run = functools.partial(encode, config=config, batch=batch)
    plain, _ = run(params)
    assert np.abs(plain - expected)[batch["mask"]].max() > 0.1
    check(run(params, slots=slots)[0])
    check(run(params, slots=slots, first_token_only=True)[0], slice(1))
    merged = {**params, "layers": merge_adapter(params["layers"], tree, CONFIGS[name])}
    check(run(merged)[0])
    check(run(merged, first_token_only=True)[0], slice(1))


@pytest.mark.parametrize("first_token_only", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_layer_masks_switch_the_adapters_of_relative_positions(
    name: str, first_token_only: bool, trunk: Any, golden: dict[str, np.ndarray]
) -> None:
    """Evaluates several masks in one batch, so that its rows have different relative-position projections."""
    config, params, batch = trunk
    slots = filled_slots(name, adapter_of(name, golden, config.num_layers))
    run = functools.partial(encode_under_masks, params, config, batch, slots=slots, first_token_only=first_token_only)
    masks = np.array([[False, False], [True, True], [True, False]])
    found = np.asarray(run(masks))
    filled, _ = encode(params, config, batch, slots=slots, first_token_only=first_token_only)
    empty, _ = encode(params, config, batch, first_token_only=first_token_only)
    np.testing.assert_allclose(found[:, 0], empty, atol=1e-4)
    np.testing.assert_allclose(found[:, 1], filled, atol=1e-4)
    np.testing.assert_allclose(found[:, 2], np.asarray(run(masks[2:]))[:, 0], atol=1e-4)


def test_tokens_and_positions_have_their_own_dropout_masks() -> None:
    config = LoraConfig(target_modules=("query",), rank=2, dropout=0.5)
    generator = np.random.default_rng(0)
    down, up = (jnp.asarray(generator.normal(size=shape), jnp.float32) for shape in ((12, 2), (2, 12)))
    params = {"attention": {"query": {"down": {"kernel": down}, "up": {"kernel": up}}}}
    layer = {"kernel": jnp.zeros((12, 12)), "bias": jnp.zeros(12)}
    slot = dense_slots(params, config, key=jax.random.key(3))["attention/query"]
    x = jnp.ones((1, 8, 12))
    assert slot.apply_to_positions is not None
    tokens, positions = slot.apply(layer, x), slot.apply_to_positions(layer, x)
    assert not np.any(np.all(np.asarray(tokens == positions), axis=-1))
    without = dense_slots(params, config)["attention/query"]
    assert without.apply_to_positions is None
