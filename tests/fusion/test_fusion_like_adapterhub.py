"""With the same weights, a fusion has the same logits and attention as in the PyTorch library ``adapters``.

``tests/interop/test_adapterhub.py`` compares adapters and heads, using the library's own files.

``ours_from_theirs`` maps the library's parameter names to ours, and ``adapter_config`` maps its config flags.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from afjax.config.adapters import AdapterConfig
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.model.model import Model
from afjax.trees import Tree, unflatten
from afjax.trunk.config import TrunkConfig
from afjax.trunk.config_file import trunk_config
from afjax.trunk.hugging_face import from_hugging_face

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "golden"
LIMIT = 1e-5
FAMILIES = ("bert", "roberta")
FUSION_CASES = """
pfeiffer houlsby static temperature ln_before scaling_ln_after residual_input original_ln_before_residual_sum
""".split()

SUBLAYERS = {"attention": "attention.output", "ffn": "output"}
ACTIVATIONS = {"leakyrelu": "leaky_relu", "gelu_new": "gelu_tanh"}
RESIDUALS = {True: "sublayer", "post_add": "sum", False: "input"}
PLACES = {(True, True): "both", (True, False): "before", (False, True): "after", (False, False): "none"}
POSITIONS = {(True, True): "both", (True, False): "attention", (False, True): "ffn"}


def adapter_config(theirs: dict[str, Any], num_layers: int) -> AdapterConfig:
    left_out = theirs["leave_out"]
    return AdapterConfig(
        position=POSITIONS[theirs["mh_adapter"], theirs["output_adapter"]],
        pretrained_layer_norm=PLACES[theirs["original_ln_before"], theirs["original_ln_after"]],
        new_layer_norm=PLACES[theirs["ln_before"], theirs["ln_after"]],
        residual_from=RESIDUALS[theirs["residual_before_ln"]],
        residual_before_new_layer_norm=theirs["adapter_residual_before_ln"],
        reduction_factor=theirs["reduction_factor"],
        activation=ACTIVATIONS.get(theirs["non_linearity"], theirs["non_linearity"]),
        scaling=theirs["scaling"],
        layers=tuple(layer for layer in range(num_layers) if layer not in left_out) if left_out else None,
    )


def ours_from_theirs(state: dict[str, np.ndarray], table: dict[str, str], prefix: str, layers: Any) -> Tree:
    """Stacks the tensors ``{prefix}encoder.layer.<layer>.<their name>`` over the layers, and transposes kernels."""
    leaves = {}
    for path, name in table.items():
        tensors = [state.pop(f"{prefix}encoder.layer.{layer}.{name}") for layer in layers]
        leaves[path] = np.stack([tensor.T for tensor in tensors])
    return unflatten(leaves)


def adapter_table(name: str, config: AdapterConfig) -> dict[str, str]:
    """Maps our parameter paths within one layer to the library's names."""
    table = {}
    for slot in config.slots:
        module = f"{SUBLAYERS[slot]}.adapters.{name}"
        down = "adapter_down.0"
        if config.new_layer_norm in ("before", "both"):
            down = "adapter_down.1"
            table[f"{slot}/norm_before/scale"] = f"{module}.adapter_norm_before.weight"
            table[f"{slot}/norm_before/bias"] = f"{module}.adapter_norm_before.bias"
        if config.new_layer_norm in ("after", "both"):
            table[f"{slot}/norm_after/scale"] = f"{module}.adapter_norm_after.weight"
            table[f"{slot}/norm_after/bias"] = f"{module}.adapter_norm_after.bias"
        for ours, theirs in (("down", down), ("up", "adapter_up")):
            table[f"{slot}/{ours}/kernel"] = f"{module}.{theirs}.weight"
            table[f"{slot}/{ours}/bias"] = f"{module}.{theirs}.bias"
    return table


def fusion_table(config: AdapterConfig, value: bool) -> dict[str, str]:
    table = {}
    for slot in config.slots:
        module = f"{SUBLAYERS[slot]}.adapter_fusion_layer.a,b,c"
        for part in ("query", "key"):
            table[f"{slot}/{part}/kernel"] = f"{module}.{part}.weight"
            table[f"{slot}/{part}/bias"] = f"{module}.{part}.bias"
        if value:
            table[f"{slot}/value/kernel"] = f"{module}.value.weight"
    return table


def head_params(state: dict[str, np.ndarray], name: str, config: dict[str, Any]) -> Tree:
    """Loads a flex head, whose linear layers are modules 1 and 4 of a torch Sequential."""
    module = f"heads.{name}"
    last = 4 if config["layers"] == 2 else 1
    tree: Tree = {"output": {"kernel": state[f"{module}.{last}.weight"].T, "bias": state[f"{module}.{last}.bias"]}}
    if config["use_pooler"]:
        return tree
    return {**tree, "pooler": {"kernel": state[f"{module}.1.weight"].T, "bias": state[f"{module}.1.bias"]}}


def part(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Selects the arrays under a prefix, and removes the prefix."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


class Base:
    """An encoder family's trunk, heads, batch and fusion cases."""

    def __init__(self, family: str) -> None:
        self.family = family
        arrays = self.load("base")
        self.config: TrunkConfig = trunk_config(json.loads(str(arrays["config"])), where=family)
        self.trunk = from_hugging_face(part(arrays, "state/"), self.config, where=family)
        self.batch = {"tokens": arrays["tokens"], "types": arrays["types"], "mask": arrays["mask"].astype(bool)}
        self.heads = part(arrays, "heads/")
        self.cases = self.load("fusion")

    def load(self, kind: str) -> dict[str, np.ndarray]:
        with np.load(GOLDEN / f"adapterhub_{kind}_{self.family}.npz") as file:
            return dict(file)

    def case(self, name: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], Any]:
        """Returns a case's arrays, its state, and its config."""
        arrays = part(self.cases, f"{name}/")
        state = part(arrays, "state/")
        # The library saves a LayerNorm before an adapter twice. The second copy is the first module of `adapter_down`.
        for twin in [key for key in state if ".adapter_norm_before." in key]:
            again = state.pop(twin.replace("adapter_norm_before", "adapter_down.0"))
            assert np.array_equal(again, state[twin])
        return arrays, state, json.loads(str(arrays["config"]))

    def head(self, name: str) -> tuple[HeadConfig, Tree]:
        config = json.loads(str(self.heads[f"{name}/config"]))
        tree = head_params(part(self.heads, f"{name}/state/"), name, config)
        return HeadConfig(pooler="trunk" if config["use_pooler"] else "head"), tree


@pytest.fixture(scope="module", params=FAMILIES)
def base(request: pytest.FixtureRequest) -> Base:
    return Base(request.param)


def close(ours: Any, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    assert np.abs(np.asarray(ours) - theirs).max() < LIMIT


def test_all_cases_are_tested(base: Base) -> None:
    assert {name.split("/")[0] for name in base.cases} == set(FUSION_CASES)


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("name", FUSION_CASES)
def test_fusion(base: Base, name: str, folded: bool) -> None:
    arrays, state, theirs = base.case(name)
    layers = range(base.config.num_layers)
    prefix = f"{base.family}."
    configs = {member: adapter_config(theirs[member], base.config.num_layers) for member in ("a", "b", "c")}
    fusion_config = FusionConfig(value=theirs["fusion"]["value"], temperature=float(arrays["temperature"]))
    table = fusion_table(configs["a"], fusion_config.value)
    head_config, head = base.head("two_layers")
    params = {
        "trunk": base.trunk,
        "adapters": {
            member: ours_from_theirs(state, adapter_table(member, config), prefix, layers)
            for member, config in configs.items()
        },
        "fusion": {"f": ours_from_theirs(state, table, prefix, layers)},
        "heads": {"task": head},
    }
    assert not state, f"unmapped weights: {sorted(state)}"
    model = Model(
        trunk=base.config,
        head_name="task",
        head=head_config,
        adapters=tuple(configs.items()),
        fusion_name="f",
        fusion=fusion_config,
    )
    np.testing.assert_allclose(model.penalty(params), arrays["regularization"], rtol=1e-5)
    used = model.fold(params) if folded else params
    close(model(used, base.batch).logits, arrays["logits"])
    outputs = model(used, base.batch, fusion_attention=True)
    close(outputs.logits, arrays["logits"])
    assert sorted(outputs.fusion_attention) == sorted(configs["a"].slots)
    for slot, attention in outputs.fusion_attention.items():
        close(attention, np.stack([arrays[f"attention/{layer}/{slot}"] for layer in layers]))
