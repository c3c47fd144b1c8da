"""Mistakes in a user's own training code are refused, instead of giving wrong results."""

import copy
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from facts import has_facts

from afjax.config.adapters import AdapterConfig
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.methods import Method
from afjax.config.tasks import TaskConfig, TaskKind
from afjax.config.training import MeshConfig, TrainConfig
from afjax.distributed.sharding import make_mesh, num_parts, replicate, shard_rows
from afjax.errors import UserError
from afjax.model.partition import split_layers
from afjax.model.setup import Setup, fusion_setup, single_setup
from afjax.model.task_model import TaskModel
from afjax.tasks.load import rows_from_lists
from afjax.train.loss import task_loss
from afjax.train.optimizer import learning_rate
from afjax.trees import Tree, flatten, merge, tree_digest
from afjax.trunk.encoder import encode
from afjax.trunk.pretrained import Trunk, load_trunk, save_trunk

ROWS = rows_from_lists(["all of it", "none of it"], ["yes", "no"], label_names=("no", "yes"))


def make_setup(trunk: Trunk, **changes: Any) -> Setup:
    given = {"name": "own", "reads": "pooled", "num_outputs": 2, **changes}
    return single_setup(Method(adapter=AdapterConfig(size=4)), trunk.config, **given)


def make_batch(trunk: Trunk) -> dict[str, Any]:
    tokens = jnp.arange(12).reshape(3, 4) % trunk.config.vocab_size
    return {"tokens": tokens, "types": jnp.zeros_like(tokens), "mask": jnp.ones((3, 4), bool)}


def deeper(tree: Tree) -> Tree:
    return jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf + 1]), tree)


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("change", [deeper, lambda tree: jax.tree.map(lambda leaf: leaf[:1], tree)])
def test_adapter_with_another_number_of_layers_is_refused(tiny_trunk: Trunk, change: Any, scan_layers: bool) -> None:
    setup = make_setup(tiny_trunk).computed(scan_layers=scan_layers)
    params = setup.init(jax.random.key(0), tiny_trunk.params)
    wrong = {**params, "adapters": {"own": change(params["adapters"]["own"])}}
    with pytest.raises(UserError) as raised:
        setup.model(wrong, make_batch(tiny_trunk))
    assert has_facts(str(raised.value), "layers", "2 layers")
    with pytest.raises(UserError, match="own"):
        setup.init(jax.random.key(0), tiny_trunk.params, adapters=wrong["adapters"])
    with pytest.raises(UserError, match="own"):
        TaskModel.from_params(setup.model, wrong, tiny_trunk, TaskConfig(name="own"), ROWS, max_length=8)


def test_unknown_adapters_are_refused(tiny_trunk: Trunk) -> None:
    setup = make_setup(tiny_trunk)
    tree = setup.init(jax.random.key(0), tiny_trunk.params)["adapters"]["own"]
    with pytest.raises(UserError, match=r'"owm".*"own"'):
        setup.init(jax.random.key(0), tiny_trunk.params, adapters={"owm": tree})


def test_trunks_of_the_wrong_type_are_refused(tiny_trunk: Trunk) -> None:
    with pytest.raises(UserError, match=r"trunk\.config"):
        single_setup(Method(), tiny_trunk, name="own", reads="pooled", num_outputs=2)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"trunk\.params"):
        make_setup(tiny_trunk).init(jax.random.key(0), tiny_trunk)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "fact"),
    [({"name": "a/b"}, "a/b"), ({"num_outputs": 0}, "num_outputs is 0"), ({"reads": "mean"}, "mean")],
)
def test_invalid_arguments_of_a_setup_are_refused(tiny_trunk: Trunk, changes: dict[str, Any], fact: str) -> None:
    with pytest.raises(UserError, match=fact):
        make_setup(tiny_trunk, **changes)


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"mask": None}, ("no mask",)),
        ({"mask": jnp.ones((3, 4))}, ('batch["mask"] ', "float32", "bool")),
        ({"mask": jnp.ones((3, 1), bool)}, ('batch["mask"] ', "(3, 1)", "(3, 4)")),
        ({"types": jnp.zeros((1, 4), int)}, ('batch["types"] ', "(1, 4)", "(3, 4)")),
        ({"tokens": jnp.zeros((3, 4))}, ('batch["tokens"] ', "float32")),
        ({"tokens": jnp.zeros(4, int)}, ('batch["tokens"] ', "(4,)", "[batch, length]")),
        (
            {name: jnp.zeros((0, 4), bool if name == "mask" else int) for name in ("tokens", "types", "mask")},
            ("(0, 4)",),
        ),
    ],
)
def test_invalid_batches_are_refused(tiny_trunk: Trunk, changes: dict[str, Any], facts: tuple[str, ...]) -> None:
    batch = {name: array for name, array in {**make_batch(tiny_trunk), **changes}.items() if array is not None}
    with pytest.raises(UserError) as raised:
        encode(tiny_trunk.params, tiny_trunk.config, batch)
    assert has_facts(str(raised.value), *facts)


@pytest.mark.parametrize(
    ("kind", "logits", "labels", "weights"),
    [
        ("regression", (3, 1), (3, 1), (3,)),
        ("classification", (3, 2), (3,), (3, 1)),
        ("classification", (3, 2), (3, 2), (3,)),
        ("span", (3, 5, 2), (3,), (3,)),
        ("multi_label", (3, 4), (3,), (3,)),
        ("tagging", (3, 5, 4), (3,), (3,)),
    ],
)
def test_labels_and_weights_of_another_shape_are_refused(
    kind: TaskKind, logits: tuple[int, ...], labels: tuple[int, ...], weights: tuple[int, ...]
) -> None:
    batch = {"labels": jnp.zeros(labels, int), "weights": jnp.ones(weights), "mask": jnp.ones(logits[:2], bool)}
    with pytest.raises(UserError) as raised:
        task_loss(jnp.zeros(logits), batch, kind)
    assert has_facts(str(raised.value), str(labels if weights == (3,) else weights), "must have")


@pytest.mark.parametrize("weight", [0.25, 1.0])
def test_rows_with_weight_zero_do_not_change_the_mean_loss(weight: float) -> None:
    weights = jnp.array([weight, weight, 0.0])
    loss = task_loss(jnp.zeros((3, 4)), {"labels": jnp.array([0, 1, 2]), "weights": weights}, "classification")
    assert float(loss) == pytest.approx(np.log(4))
    tags = {"labels": jnp.array([[0, -1], [1, 1], [1, 1]]), "weights": weights}
    assert float(task_loss(jnp.zeros((3, 2, 4)), tags, "tagging")) == pytest.approx(np.log(4))


def test_loss_names_missing_arrays_and_unknown_kinds() -> None:
    with pytest.raises(UserError, match="weights are missing"):
        task_loss(jnp.zeros((3, 2)), {"labels": jnp.zeros(3, int)}, "classification")
    with pytest.raises(UserError, match=r"clasification.*classification"):
        task_loss(jnp.zeros((3, 2)), {}, "clasification")  # type: ignore[arg-type]


def test_learning_rate_must_be_set() -> None:
    with pytest.raises(UserError, match="learning_rate"):
        learning_rate(TrainConfig(), 0, 10)


def test_donating_trained_parameters_keeps_the_trunk(tiny_trunk: Trunk) -> None:
    setup = make_setup(tiny_trunk)
    trained, frozen = setup.split(setup.init(jax.random.key(0), jax.device_put(tiny_trunk.params)))
    assert "pooler" in trained["heads"]["own"]
    step = jax.jit(lambda trained, frozen: jax.tree.map(lambda leaf: leaf + 1, trained), donate_argnums=0)
    trained = step(trained, frozen)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(frozen))
    assert setup.model(merge(trained, frozen), make_batch(tiny_trunk)).logits.shape == (3, 2)


@pytest.mark.parametrize("name", ["", "a/b"])
def test_models_are_not_given_names_that_cannot_be_saved(tiny_trunk: Trunk, name: str) -> None:
    setup = make_setup(tiny_trunk)
    params = setup.init(jax.random.key(0), tiny_trunk.params)
    model = TaskModel.from_params(setup.model, params, tiny_trunk, TaskConfig(name="own"), ROWS, max_length=8)
    with pytest.raises(UserError, match=f'"{name}"'):
        model.renamed(name)


def test_models_can_be_pickled_after_a_prediction(tiny_trunk: Trunk) -> None:
    setup = make_setup(tiny_trunk)
    params = setup.init(jax.random.key(0), tiny_trunk.params)
    model = TaskModel.from_params(setup.model, params, tiny_trunk, TaskConfig(name="own"), ROWS, max_length=8)
    expected = model.predict(["all of it"]).logits
    np.testing.assert_array_equal(model.predict(ROWS[[0]]).logits, expected)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_array_equal(other.predict(["all of it"]).logits, expected)
    # Models and trunks are compared by identity.
    assert model in [model]
    assert model != copy.copy(model)
    assert tiny_trunk != load_trunk(str(tiny_trunk.folder))


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"max_length": 5000}, ("5000", "128")),
        ({"task": TaskConfig(name="own", kind="tagging")}, ("pooled", "tagging", "tokens")),
        ({"params": ("heads",)}, ('adapter "own"', "missing")),
        ({"params": ("adapters",)}, ('head "own"', "missing")),
        (
            {"head": {"output": {"kernel": np.zeros((8, 2)), "bias": np.zeros(2)}}},
            ('head "own"', "output/kernel", "(8, 2)"),
        ),
        ({"head": {"output": {"kernel": np.zeros((64, 2))}}}, ('head "own"', "output/bias is missing")),
    ],
)
def test_parameters_of_another_model_are_refused(
    tiny_trunk: Trunk, changes: dict[str, Any], facts: tuple[str, ...]
) -> None:
    setup = make_setup(tiny_trunk)
    params = setup.init(jax.random.key(0), tiny_trunk.params)
    if "params" in changes:
        changes = {"params": {root: params[root] for root in changes["params"]}}
    if head := changes.pop("head", None):
        params["heads"]["own"] = {**params["heads"]["own"], **head}
    given = {"model": setup.model, "params": params, "trunk": tiny_trunk, "task": TaskConfig(name="own"), "rows": ROWS}
    with pytest.raises(UserError) as raised:
        TaskModel.from_params(**{**given, "max_length": 8, **changes})
    assert has_facts(str(raised.value), *facts)
    wide = dataclasses.replace(setup.model, trunk=dataclasses.replace(tiny_trunk.config, hidden_size=64))
    with pytest.raises(UserError, match="hidden_size=64"):
        TaskModel.from_params(**{**given, "model": wide, "max_length": 8})


def test_trained_trunk_gets_its_own_digest(tiny_trunk: Trunk, tmp_path: Path) -> None:
    params = jax.tree.map(lambda leaf: leaf + 1, tiny_trunk.params)
    # Saving a model on the new trunk must not replace the folder of the run that trained the old one.
    assert tiny_trunk.with_params(split_layers(params, 1)).sha256 == tiny_trunk.with_params(params).sha256
    trunk = dataclasses.replace(tiny_trunk, trained=True).with_params(params)
    assert not trunk.trained
    assert trunk.sha256 == tree_digest(params) != tiny_trunk.sha256
    save_trunk(tmp_path / "trunk", trunk)
    assert load_trunk(str(tmp_path / "trunk")).sha256 == trunk.sha256
    path = sorted(flatten(params))[0]
    with pytest.raises(UserError, match="embeddings/norm/bias is missing"):
        tiny_trunk.with_params({name: leaf for name, leaf in params.items() if name != path.partition("/")[0]})


def test_missing_or_misshapen_fusion_is_refused(tiny_trunk: Trunk) -> None:
    adapter = {"own": AdapterConfig(size=4)}
    given = {"name": "own", "reads": "pooled", "num_outputs": 2}
    setup = fusion_setup(adapter, FusionConfig(), HeadConfig(pooling="first"), tiny_trunk.config, **given)
    params = setup.init(jax.random.key(0), tiny_trunk.params)
    for wrong, fact in (({}, "missing"), ({"own": deeper(params["fusion"]["own"])}, "(4, ")):
        with pytest.raises(UserError) as raised:
            TaskModel.from_params(
                setup.model, {**params, "fusion": wrong}, tiny_trunk, TaskConfig(name="own"), ROWS, max_length=8
            )
        assert has_facts(str(raised.value), 'fusion "own"', fact)


def test_fusion_attention_needs_a_fusion(tiny_trunk: Trunk) -> None:
    setup = make_setup(tiny_trunk)
    params = setup.init(jax.random.key(0), tiny_trunk.params)
    model = TaskModel.from_params(setup.model, params, tiny_trunk, TaskConfig(name="own"), ROWS, max_length=8)
    with pytest.raises(UserError, match="without a fusion"):
        model.predict(["all of it"], fusion_attention=True)


def test_constraints_only_apply_to_axes_that_the_compiler_shards() -> None:
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    spec = jax.sharding.PartitionSpec()

    def parts(x: jax.Array) -> jax.Array:
        return replicate(shard_rows(x)) + num_parts()

    with jax.set_mesh(mesh):
        result = jax.jit(jax.shard_map(parts, in_specs=spec, out_specs=spec))(jnp.zeros(4))
    np.testing.assert_array_equal(result, np.ones(4))
