"""Defines fixtures that compile steps of tiny models from shapes."""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from afjax.adapters.kinds import init_adapter
from afjax.config.adapters import Adapter, AdapterConfig
from afjax.fusion.parameters import init_fusion
from afjax.model import partition
from afjax.model.heads import init_head
from afjax.model.model import Model, trunk_layer_norms
from afjax.tasks.kind import Reads
from afjax.tpu.steps import no_compilation_cache
from afjax.train.loss import task_loss
from afjax.trees import Tree, merge
from afjax.trunk.config import TrunkConfig
from afjax.trunk.encoder import init_trunk

ROWS, LENGTH = 4, 16
TRUNK = TrunkConfig(
    family="bert",
    vocab_size=50,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    intermediate_size=64,
    max_positions=LENGTH,
    type_vocab_size=2,
)


@pytest.fixture(scope="session")
def needs_libtpu() -> None:
    """Skips tests that compile for TPUs if libtpu is missing."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu, the compiler for TPUs, is not installed")


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Model]:
    """Returns a function that makes a tiny model with the given adapters."""

    def make(
        adapters: Sequence[Adapter] = (), *, fuse: bool = False, reads: Reads = "pooled", scan_layers: bool = False
    ) -> Model:
        return Model(
            trunk=TRUNK,
            head_name="head",
            reads=reads,
            adapters=tuple((f"adapter{number}", config) for number, config in enumerate(adapters)),
            fusion_name="fusion" if fuse else "",
            scan_layers=scan_layers,
        )

    return make


@pytest.fixture(scope="session")
def compile_gradients() -> Callable[..., jax.stages.Compiled]:
    """Returns a function that compiles the loss of a model and its gradients.

    The gradients are with respect to the leaves that the preset ``trained`` trains. For the preset ``nothing``, only
    the logits are compiled. Dropout and the optimizer are left out, because they have no matrix products.
    """

    def compiled(model: Model, trained: str, *, top_k: int = 0, sharding: Any = None) -> jax.stages.Compiled:
        params = jax.eval_shape(lambda: _init(model, top_k))
        ints = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32, sharding=sharding)
        batch = {"tokens": ints, "types": ints, "mask": jax.ShapeDtypeStruct(ints.shape, bool, sharding=sharding)}
        if trained == "nothing":
            return jax.jit(lambda params, batch: model(params, batch).logits).lower(params, batch).compile()
        span = model.reads == "tokens"
        batch["labels"] = jax.ShapeDtypeStruct((ROWS, 2) if span else (ROWS,), jnp.int32)
        batch["weights"] = jax.ShapeDtypeStruct((ROWS,), jnp.float32)
        part, rest = partition.split(params, partition.label(params, partition.preset(trained, model.head)))

        def loss(part: Tree, rest: Tree, batch: dict[str, Any]) -> jax.Array:
            merged = merge(part, rest)
            logits = model(merged, batch).logits
            return task_loss(logits, batch, "span" if span else "classification") + model.penalty(merged)

        return jax.jit(jax.value_and_grad(loss)).lower(part, rest, batch).compile()

    return compiled


def _init(model: Model, top_k: int) -> Tree:
    key = jax.random.key(0)
    trunk = init_trunk(key, model.trunk)
    adapters = {name: init_adapter(key, config, model.trunk) for name, config in model.adapters}
    for name, config in model.adapters:
        if isinstance(config, AdapterConfig) and config.layer_norms:
            adapters[name]["layer_norms"] = trunk_layer_norms(trunk)
    params: Tree = {
        "trunk": partition.split_layers(trunk, top_k) if top_k else trunk,
        "adapters": adapters,
        "fusion": {},
        "heads": {"head": init_head(key, model.head, 2, trunk=trunk, reads=model.reads)},
    }
    if model.fusion_name:
        shape = {"hidden_size": model.trunk.hidden_size, "num_layers": model.trunk.num_layers}
        params["fusion"]["fusion"] = init_fusion(key, model.fusion, model.adapters[0][1], **shape)
    return params


@pytest.fixture(scope="module", autouse=True)
def _no_compilation_cache() -> Iterator[None]:
    with no_compilation_cache():
        yield
