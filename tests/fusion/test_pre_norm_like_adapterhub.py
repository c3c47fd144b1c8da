"""In pre-norm layers, adapters and fusions match AdapterHub's PyTorch library."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from afjax.config.adapters import AdapterConfig
from afjax.config.fusion import FusionConfig
from afjax.model.model import Model
from afjax.trees import Tree, unflatten
from afjax.trunk.config_file import trunk_config
from afjax.trunk.hugging_face import from_hugging_face
from tests.fusion.test_fusion_like_adapterhub import adapter_config

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "golden"
LIMIT = 1e-4
ADAPTERS = (
    "pfeiffer pfeiffer_both houlsby original_ln_before original_ln_none residual_input ln_before ln_after".split()
)
FUSIONS = ("fusion_pfeiffer", "fusion_houlsby")
SUBLAYERS = {"attention": "attention_adapters", "ffn": "output_adapters"}


@pytest.fixture(scope="module")
def encoder() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "encoder_modernbert.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def cases() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "adapterhub_modernbert.npz") as file:
        return dict(file)


def stacked(state: dict[str, np.ndarray], table: dict[str, str], num_layers: int) -> Tree:
    """Stacks the tensors ``layers.<layer>.<their name>`` over the layers, and transposes kernels."""
    leaves = {}
    for path, name in table.items():
        tensors = [state.pop(f"layers.{layer}.{name}") for layer in range(num_layers)]
        leaves[path] = np.stack([tensor.T for tensor in tensors])
    return unflatten(leaves)


def adapter_table(name: str, config: AdapterConfig) -> dict[str, str]:
    table = {}
    for slot in config.slots:
        module, down = f"{SUBLAYERS[slot]}.adapters.{name}", "adapter_down.0"
        for norm in ("before", "after"):
            if config.new_layer_norm in (norm, "both"):
                table[f"{slot}/norm_{norm}/scale"] = f"{module}.adapter_norm_{norm}.weight"
                table[f"{slot}/norm_{norm}/bias"] = f"{module}.adapter_norm_{norm}.bias"
        if config.new_layer_norm in ("before", "both"):
            down = "adapter_down.1"
        for ours, theirs in (("down", down), ("up", "adapter_up")):
            table[f"{slot}/{ours}/kernel"] = f"{module}.{theirs}.weight"
            table[f"{slot}/{ours}/bias"] = f"{module}.{theirs}.bias"
    return table


def fusion_table(config: AdapterConfig) -> dict[str, str]:
    table = {}
    for slot in config.slots:
        module = f"{SUBLAYERS[slot]}.adapter_fusion_layer.a,b,c"
        for name in ("query", "key"):
            table |= {
                f"{slot}/{name}/kernel": f"{module}.{name}.weight",
                f"{slot}/{name}/bias": f"{module}.{name}.bias",
            }
        table[f"{slot}/value/kernel"] = f"{module}.value.weight"
    return table


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("case", [*ADAPTERS, *FUSIONS])
def test_hidden_states_match_the_library(
    case: str, scan_layers: bool, encoder: dict[str, np.ndarray], cases: dict[str, np.ndarray]
) -> None:
    trunk = trunk_config(json.loads(str(encoder["config"])), where="config.json")
    weights = {name.removeprefix("state/"): array for name, array in encoder.items() if name.startswith("state/")}
    arrays = {name.removeprefix(f"{case}/"): array for name, array in cases.items() if name.startswith(f"{case}/")}
    state = {name.removeprefix("state/"): array for name, array in arrays.items() if name.startswith("state/")}
    settings: dict[str, Any] = json.loads(str(arrays["config"]))
    settings.pop("fusion", None)
    configs = {name: adapter_config(theirs, trunk.num_layers) for name, theirs in settings.items()}
    if settings["a"]["ln_before"]:
        # The library saves this LayerNorm twice. The second copy is part of adapter_down.
        state = {name: array for name, array in state.items() if "adapter_down.0" not in name}
    params: Tree = {
        "trunk": from_hugging_face(weights, trunk, where="golden"),
        "adapters": {
            name: stacked(state, adapter_table(name, config), trunk.num_layers) for name, config in configs.items()
        },
        "fusion": {},
    }
    fused = len(configs) > 1
    if fused:
        params["fusion"]["both"] = stacked(state, fusion_table(configs["a"]), trunk.num_layers)
    assert not state
    model = Model(
        trunk=trunk,
        head_name="",
        adapters=tuple(configs.items()),
        fusion_name="both" if fused else "",
        fusion=FusionConfig(),
        scan_layers=scan_layers,
    )
    batch = {"tokens": encoder["tokens"], "types": encoder["types"], "mask": encoder["mask"].astype(bool)}
    for tree in (params, model.fold(params)) if fused else (params,):
        hidden = jax.jit(model.hidden_states)(tree, batch)
        assert np.abs(hidden - arrays["last_hidden_state"]).max() < LIMIT
