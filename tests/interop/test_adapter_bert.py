"""Models imported from the checkpoints of Houlsby et al. have the same outputs."""

import functools
from pathlib import Path

import numpy as np
import pytest
from facts import has_facts
from papers_reference import Array, Weights, bert_shapes, gelu_tanh, random_tensor, text_batch, write_files

from afjax import store as artifacts
from afjax.cli.main import main
from afjax.config.adapters import ADAPTER_PRESETS, AdapterConfig
from afjax.config.heads import HeadConfig
from afjax.errors import UserError
from afjax.interop import adapter_bert, google_bert
from afjax.model.loading import load_task_model
from afjax.trees import flatten
from afjax.trunk.pretrained import Trunk, load_trunk

Variables = dict[str, Array]
SIZE = 3
SLOTS = {"attention": "attention/output", "ffn": "output"}


@pytest.fixture(scope="module")
def pretrained() -> Variables:
    return {name: random_tensor(name, *shape) for name, shape in bert_shapes(tensorflow=True).items()}


@pytest.fixture(scope="module")
def trunk(pretrained: Variables, tmp_path_factory: pytest.TempPathFactory) -> Trunk:
    """Imports the pretrained BERT, and loads the resulting folder."""
    folder = tmp_path_factory.mktemp("pretrained")
    write_files(folder)
    (folder / "bert_model.ckpt.index").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(google_bert, "read_variables", lambda source: pretrained)
        google_bert.import_bert(folder, folder / "trunk", gelu="tanh")
    return load_trunk(str(folder / "trunk"))


@pytest.fixture
def variables(pretrained: Variables) -> Variables:
    """Makes the variables of a checkpoint that the authors' code writes.

    The task has two classes. The checkpoint contains trained LayerNorms and the optimizer's state.
    """
    shapes: dict[str, tuple[int, ...]] = {"output_weights": (2, 16), "output_bias": (2,)}
    for layer in range(2):
        for scope in SLOTS.values():
            adapter = f"bert/encoder/layer_{layer}/{scope}/adapters"
            shapes |= {f"{adapter}/weights1": (16, SIZE), f"{adapter}/biases1": (1, SIZE)}
            shapes |= {f"{adapter}/weights2": (SIZE, 16), f"{adapter}/biases2": (1, 16)}
    trained = {name: random_tensor(name, *shape) for name, shape in shapes.items()}
    trained |= {name: np.float32(1.1) * array for name, array in pretrained.items() if "LayerNorm" in name}
    moments = {
        f"{name}/{slot}": np.zeros_like(array) for name, array in trained.items() for slot in ("adam_m", "adam_v")
    }
    return {**pretrained, **trained, **moments, "global_step": np.int64(343)}


@pytest.fixture
def source(variables: Variables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(adapter_bert, "read_variables", lambda source: variables)
    return str(tmp_path / "model.ckpt-343")


def test_every_variable_is_mapped(variables: Variables, trunk: Trunk) -> None:
    config, adapter, head = adapter_bert.from_adapter_bert(variables, trunk, where="model.ckpt")
    preset = ADAPTER_PRESETS["houlsby"]
    assert isinstance(preset, AdapterConfig)
    assert (config.size, config.activation, config.layer_norms) == (SIZE, "gelu_tanh", True)
    assert (config.position, config.residual_from) == (preset.position, preset.residual_from)
    leaves = flatten(adapter)
    expected = {
        "layer_norms/embeddings/scale": variables["bert/embeddings/LayerNorm/gamma"],
        "layer_norms/embeddings/bias": variables["bert/embeddings/LayerNorm/beta"],
    }
    for slot, scope in SLOTS.items():
        layers = [f"bert/encoder/layer_{layer}/{scope}" for layer in range(2)]
        for path, name in {
            f"{slot}/down/kernel": "adapters/weights1",
            f"{slot}/up/kernel": "adapters/weights2",
            f"layer_norms/{slot}/scale": "LayerNorm/gamma",
            f"layer_norms/{slot}/bias": "LayerNorm/beta",
        }.items():
            expected[path] = np.stack([variables[f"{layer}/{name}"] for layer in layers])
        for path, name in {f"{slot}/down/bias": "adapters/biases1", f"{slot}/up/bias": "adapters/biases2"}.items():
            expected[path] = np.concatenate([variables[f"{layer}/{name}"] for layer in layers])
    assert leaves.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(leaves[path], array, err_msg=path)
    np.testing.assert_array_equal(head["output"]["kernel"], variables["output_weights"].T)
    np.testing.assert_array_equal(head["output"]["bias"], variables["output_bias"])


def their_logits(variables: Variables, rows: dict[str, Array]) -> Array:
    """Computes logits like the authors' ``create_model``, without dropout."""
    theirs = Weights(variables, "/")

    def adapt(scope: str, x: Array) -> Array:
        inner = gelu_tanh(x @ variables[f"{scope}/adapters/weights1"] + variables[f"{scope}/adapters/biases1"])
        return x + (inner @ variables[f"{scope}/adapters/weights2"] + variables[f"{scope}/adapters/biases2"])

    x = theirs.embed(rows["tokens"], rows["types"])
    for layer in range(2):
        name = f"bert/encoder/layer_{layer}"
        first, second = (functools.partial(adapt, f"{name}/{scope}") for scope in SLOTS.values())
        x = theirs.layer(name, x, rows["mask"], gelu_tanh, adapters=(first, second))
    return theirs.pool(x) @ variables["output_weights"].T + variables["output_bias"]


def test_imported_model_reproduces_the_authors_logits(
    variables: Variables, source: str, trunk: Trunk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, arguments = tmp_path / "store", ["import", "adapter-bert", source, f"--trunk={trunk.folder}"]
    assert main([*arguments, f"--store={store}", "--name=mrpc", "--max_length=12"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{store}/{kind}/mrpc: mrpc, labels not_equivalent, equivalent" for kind in ("adapters", "heads")
    ]
    model = load_task_model(store, trunk, head="mrpc", adapter="mrpc")
    assert (model.task.name, model.task.kind) == ("mrpc", "classification")
    assert model.task.labels == model.labels == ("not_equivalent", "equivalent")
    assert model.model.head == HeadConfig(pooling="first", pooler="trunk", dropout=0.1)
    logits = model.predict(["the dog ran ."]).logits
    np.testing.assert_allclose(logits, their_logits(variables, text_batch("the dog ran .")), atol=2e-5)


def test_frozen_variables_may_be_missing(variables: Variables, trunk: Trunk) -> None:
    trained = {name: array for name, array in variables.items() if "adam" not in name}
    trained = {
        name: a for name, a in trained.items() if any(part in name for part in ("adapters", "LayerNorm", "output_"))
    }
    with_frozen = adapter_bert.from_adapter_bert(variables, trunk, where="model.ckpt")
    without_frozen = adapter_bert.from_adapter_bert(trained, trunk, where="model.ckpt")
    for path, leaf in flatten({"adapter": with_frozen[1], "head": with_frozen[2]}).items():
        np.testing.assert_array_equal(leaf, flatten({"adapter": without_frozen[1], "head": without_frozen[2]})[path])


def test_frozen_variables_of_another_bert_are_refused(variables: Variables, trunk: Trunk) -> None:
    name = "bert/encoder/layer_1/intermediate/dense/kernel"
    variables[name] = variables[name].copy()
    variables[name][3, 2] = np.nextafter(variables[name][3, 2], np.float32(9))
    with pytest.raises(UserError, match=rf"model\.ckpt .*trunk .*: {name} differ.*--trunk"):
        adapter_bert.from_adapter_bert(variables, trunk, where="model.ckpt")
    variables[name] = np.zeros((2, 2), np.float32)
    with pytest.raises(UserError, match=f"{name} differ"):
        adapter_bert.from_adapter_bert(variables, trunk, where="model.ckpt")


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({"bert/encoder/layer_1/output/adapters/biases2": None}, "- bert/encoder/layer_1/output/adapters/biases2"),
        ({"bert/embeddings/LayerNorm/gamma": None}, "- bert/embeddings/LayerNorm/gamma"),
        ({"output_bias": None}, "- output_bias"),
        ({"bert/encoder/layer_2/output/dense/bias": np.zeros(16)}, r"\+ bert/encoder/layer_2/output/dense/bias"),
        ({"Variable": np.zeros(3)}, r"\+ Variable"),
        (
            {"bert/encoder/layer_1/output/adapters/weights1": np.zeros((16, 4))},
            r"layer_1/output/adapters/weights1 .*\[16, 4\].*\[16, 3\]",
        ),
        ({"output_weights": np.zeros((16, 2))}, r"output_weights .*\[16, 2\].*\[2, 16\]"),
    ],
)
def test_mismatched_variables_are_listed(
    change: dict[str, Array | None], pattern: str, variables: Variables, trunk: Trunk
) -> None:
    changed = {name: array for name, array in (variables | change).items() if array is not None}
    # If a variable is removed, its Adam moments would be reported as unknown variables.
    changed = {name: array for name, array in changed.items() if "adam" not in name}
    with pytest.raises(UserError, match=pattern):
        adapter_bert.from_adapter_bert(changed, trunk, where="model.ckpt")


def test_bad_input_is_refused(
    variables: Variables, source: str, trunk: Trunk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"

    def refused(*flags: str) -> str:
        arguments = ["import", "adapter-bert", source, f"--store={store}", f"--trunk={trunk.folder}", "--name=mine"]
        assert main([*arguments, "--max_length=12", *flags]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert not store.exists()
        return err

    assert has_facts(refused("--labels=yes,no,maybe"), '"mine"', "yes, no, maybe;", "each output")
    assert has_facts(refused("--labels=yes,yes"), '"mine"', "yes, yes;")
    assert has_facts(refused("--task=mnli"), '"mnli"', "contradiction, entailment, neutral")
    assert has_facts(refused("--task=sts"), "2 outputs", "STS-B", "regression")
    assert "max_length is 13" in refused("--max_length=13")
    assert 'adapter name "a,b"' in refused("--name=a,b", "--task=mine")
    assert 'task name "a:b"' in refused("--task=a:b")
    assert "is not a folder" in refused(f"--trunk={tmp_path / 'nothing'}")
    variables["output_weights"], variables["output_bias"] = np.zeros((1, 16), np.float32), np.zeros(1, np.float32)
    assert has_facts(refused("--task=stsb"), "1 output", "adapter-bert", "classification")


def test_existing_name_is_only_replaced_with_overwrite(source: str, trunk: Trunk, tmp_path: Path) -> None:
    arguments = ["import", "adapter-bert", source, f"--store={tmp_path / 'store'}", f"--trunk={trunk.folder}"]
    arguments += ["--name=mine", "--max_length=12"]
    assert main([*arguments, "--labels=no,yes"]) == 0
    assert main(arguments) == 2
    assert artifacts.read_manifest(tmp_path / "store", "heads", "mine").labels == ("no", "yes")
    assert main([*arguments, "--overwrite"]) == 0
    assert artifacts.read_manifest(tmp_path / "store", "heads", "mine").labels == ("0", "1")
    assert artifacts.read_manifest(tmp_path / "store", "adapters", "mine").trunk["sha256"] == trunk.sha256
