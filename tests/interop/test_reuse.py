"""The examples in docs/how_to/reuse.md run unchanged and agree with afjax."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import afjax
from afjax.config.adapters import AdapterConfig
from afjax.config.heads import HeadConfig
from afjax.fusion.bank import make_bank
from afjax.fusion.slot import fused_slot
from afjax.model.heads import apply_head
from afjax.model.loading import load_task_model
from afjax.model.task_model import TaskModel
from afjax.trunk.pretrained import Trunk
from afjax.trunk.slots import Sublayer

pytestmark = pytest.mark.slow

DOCUMENT = (Path(__file__).parents[2] / "docs" / "how_to" / "reuse.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCUMENT, flags=re.DOTALL)
BATCH = {
    "tokens": np.array([[2, 7, 9, 3], [2, 8, 3, 0]], np.int32),
    "types": np.zeros((2, 4), np.int32),
    "mask": np.array([[True] * 4, [True, True, True, False]]),
}


def example(text: str) -> dict[str, Any]:
    """Runs the example that contains ``text``, and returns its variables."""
    (code,) = [code for code in EXAMPLES if text in code]
    names: dict[str, Any] = {}
    with jax.numpy_rank_promotion("allow"):  # The reader's code may rely on rank promotion.
        exec(code, names)
    return names


@pytest.fixture(scope="module")
def folder(
    make_model: Callable[..., TaskModel], tiny_trunk_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Makes a folder with a store and a trunk."""
    path = tmp_path_factory.mktemp("reuse")
    adapters = {"entail": AdapterConfig(size=4), "paraphrase": AdapterConfig(size=6, activation="gelu", scaling=0.5)}
    for name, config in adapters.items():
        make_model(name, {name: config}).save(path / "store")
    make_model("target-fusion", adapters).save(path / "store")
    (path / "trunk").symlink_to(tiny_trunk_folder)
    return path


@pytest.fixture(autouse=True)
def _in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def of_layer(tree: Any, layer: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[layer], tree)


def check_close(ours: Any, expected: Any) -> None:
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5 * float(np.abs(expected).max()))


def afjax_bottleneck(z: jax.Array) -> jax.Array:
    config, tree = afjax.load_adapter("store", "entail")
    return afjax.bottleneck(of_layer(tree["ffn"], 1), z, config)


def test_every_example_is_short_and_tested() -> None:
    assert len(EXAMPLES) == 4
    for code in EXAMPLES:
        assert len([line for line in code.splitlines() if line.strip()]) < 40


def test_plain_jax_example(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "afjax", None)  # Importing afjax fails.
        names = example("ocp.StandardCheckpointer")
    check_close(names["output"], afjax_bottleneck(names["z"]))


def test_flax_nnx_example() -> None:
    names = example("from flax import nnx")
    check_close(names["output"], names["f"] + afjax_bottleneck(names["z"]))
    _, tree = afjax.load_adapter("store", "entail")
    gradient = jax.tree.map(jnp.shape, names["nnx"].to_pure_dict(names["gradient"]))
    assert gradient == {"params": jax.tree.map(lambda leaf: leaf.shape[1:], tree["ffn"])}


def test_equinox_example() -> None:
    names = example("import equinox")
    config, tree, members = afjax.load_fusion("store", "target-fusion")
    configs = [member for member, _ in members.values()]
    stacked, _ = make_bank([member for _, member in members.values()], configs)
    params = of_layer({**stacked["ffn"], "fusion": tree["ffn"]}, 1)
    z = names["z"]
    # Compute the fusion with afjax. The LayerNorm is the identity and the residual is zero.
    sublayer = Sublayer(
        output=z,
        residual=jnp.zeros_like(z),
        norm=lambda x: x,
        layer_input=z,
        mask=jnp.ones(z.shape[:2], bool),
        attention_dropout=0.0,
    )
    output, attention = fused_slot(params, configs, config, sublayer, key=None)
    check_close(names["output"] + z, output)
    check_close(names["attention"], attention)


def test_handwritten_encoder_example(tiny_trunk: Trunk) -> None:
    names = example("def encode(")
    with jax.numpy_rank_promotion("allow"):
        hidden = jax.jit(names["encode"], static_argnums=(3, 4))(*BATCH.values(), 2, 4)
    model = load_task_model("store", tiny_trunk, head="entail", adapter="entail")
    head = model.params["heads"]["entail"]
    config = HeadConfig(pooling="first", dropout=0.0)
    logits = apply_head(head, config, tiny_trunk.params, hidden, BATCH["mask"], reads="pooled", key=None)
    check_close(logits, afjax_logits(model))


def afjax_logits(task_model: TaskModel) -> np.ndarray:
    model, params = task_model.for_inference()
    return np.asarray(jax.jit(lambda params, batch: model(params, batch).logits)(params, BATCH))
