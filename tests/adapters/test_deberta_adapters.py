"""LoRA and (IA)³ in DeBERTa match PEFT, including their effect on relative positions."""

import functools
import json
from pathlib import Path
from typing import Any

import jax
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
from afjax.trunk.slots import NO_SLOTS, FilledSlots, LayerSlots

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

    @functools.partial(jax.jit, static_argnames=("filled", "first_token_only"))
    def run(trunk: Tree, *, filled: bool = False, first_token_only: bool = False) -> jax.Array:
        used = slots if filled else NO_SLOTS
        return encode(trunk, config, batch, slots=used, first_token_only=first_token_only)[0]

    assert np.abs(run(params) - expected)[batch["mask"]].max() > 0.1
    check(run(params, filled=True))
    check(run(params, filled=True, first_token_only=True), slice(1))
    merged = {**params, "layers": merge_adapter(params["layers"], tree, CONFIGS[name])}
    check(run(merged))
    check(run(merged, first_token_only=True), slice(1))


@pytest.mark.parametrize("first_token_only", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_layer_masks_switch_the_adapters_of_relative_positions(
    name: str, first_token_only: bool, trunk: Any, golden: dict[str, np.ndarray]
) -> None:
    """Evaluates several masks in one batch, so that its rows have different relative-position projections."""
    config, params, batch = trunk
    slots = filled_slots(name, adapter_of(name, golden, config.num_layers))
    masks = np.array([[False, False], [True, True], [True, False]])

    @jax.jit
    def run(trunk: Tree) -> tuple[jax.Array, ...]:
        masked = functools.partial(encode_under_masks, trunk, config, batch, slots=slots)
        plain = functools.partial(encode, trunk, config, batch, first_token_only=first_token_only)
        found, alone = (masked(part, first_token_only=first_token_only) for part in (masks, masks[2:]))
        return found, plain()[0], plain(slots=slots)[0], alone[:, 0]

    found, *expected = run(params)
    for number, hidden in enumerate(expected):
        np.testing.assert_allclose(found[:, number], hidden, atol=1e-4)
