"""Models imported from Stickland & Murray's checkpoints have the same outputs."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from etils import epath
from facts import has_facts
from papers_reference import (
    CONFIG,
    Array,
    Weights,
    attention_shapes,
    batch,
    bert_shapes,
    dense_shapes,
    gelu_exact,
    layer_shapes,
    random_tensor,
    text_batch,
    write_files,
)
from safetensors.numpy import save_file

from afjax import store as artifacts
from afjax.cli.main import main
from afjax.config.adapters import Adapter, LhucConfig, LowRankConfig, PalConfig, TopAttentionConfig, TopLayerConfig
from afjax.config.heads import HeadConfig
from afjax.errors import UserError
from afjax.interop.bert_files import hugging_face_config
from afjax.interop.bert_n_pals import Checkpoint, from_bert_n_pals
from afjax.model.loading import load_task_model
from afjax.model.model import Model
from afjax.store import reservations
from afjax.trees import flatten
from afjax.trunk.config_file import trunk_config
from afjax.trunk.pretrained import load_trunk

pytestmark = pytest.mark.slow

State = dict[str, Array]
Shapes = dict[str, tuple[int, ...]]
HIDDEN, LAYERS, TASKS = 16, 2, 3
ARCHITECTURE = trunk_config(hugging_face_config(CONFIG, gelu="exact", where="c"), where="c")

SWITCHES: dict[str, dict[str, Any]] = {
    "pals": {"mult": True, "pals": True},
    "low_rank": {"mult": True, "pals": False},
    "top_attention": {"top": True},
    "top_layer": {"top": True, "bert_lay_top": True},
    "lhuc": {"lhuc": True},
    "shared": {},
}
ADAPTERS: dict[str, Adapter | None] = {
    "pals": PalConfig(size=12, num_heads=6, output_activation="gelu"),
    "low_rank": LowRankConfig(size=5, activation="gelu"),
    "top_attention": TopAttentionConfig(size=24, num_layers=6, num_heads=12),
    "top_layer": TopLayerConfig(),
    "lhuc": LhucConfig(),
    "shared": None,
}


def state_dict(kind: str, layers: tuple[int, ...] = (0, 1)) -> State:
    """Makes the state dict of the authors' ``BertForMultiTask``.

    Its three tasks have two, one and three outputs.
    """
    shapes = bert_shapes(tensorflow=False)
    for task, outputs in enumerate((2, 1, 3)):
        shapes |= dense_shapes(f"classifier.{task}", HIDDEN, outputs)
        shapes |= module_shapes(kind, task, layers)
    state = {name: random_tensor(name, *shape) for name, shape in shapes.items()}
    if kind == "pals":
        # All layers share the encoder's modules mult_aug_dense and mult_aug_dense2. The state dict repeats their
        # tensors in each layer.
        for layer, task, projection, leaf in itertools.product(
            layers, range(TASKS), ("aug_dense", "aug_dense2"), ("weight", "bias")
        ):
            copy = f"bert.encoder.layer.{layer}.multi_layers.{task}.{projection}.{leaf}"
            state[copy] = state[f"bert.encoder.mult_{projection}.{task}.{leaf}"]
    return state


def module_shapes(kind: str, task: int, layers: tuple[int, ...]) -> Shapes:
    encoder, shapes = "bert.encoder", {}
    if kind == "pals":
        shapes |= dense_shapes(f"{encoder}.mult_aug_dense.{task}", HIDDEN, 12)
        shapes |= dense_shapes(f"{encoder}.mult_aug_dense2.{task}", 12, HIDDEN)
    if kind == "top_attention":
        shapes |= dense_shapes(f"{encoder}.mult_dense.{task}", HIDDEN, 24)
        shapes |= dense_shapes(f"{encoder}.mult_dense2.{task}", 24, HIDDEN)
        for number in range(6):
            shapes |= attention_shapes(f"{encoder}.multi_layers.{task}.{number}", 24)
    if kind == "top_layer":
        shapes |= layer_shapes(f"{encoder}.multi_layers.{task}", HIDDEN, CONFIG["intermediate_size"])
    for layer in layers:
        module = f"{encoder}.layer.{layer}.multi_layers.{task}"
        if kind == "pals":
            for part in ("query", "key", "value"):
                shapes |= dense_shapes(f"{module}.attn.{part}", 12, 12)
        if kind == "low_rank":
            shapes |= dense_shapes(f"{module}.aug_dense", HIDDEN, 5) | dense_shapes(f"{module}.aug_dense2", 5, HIDDEN)
        if kind == "lhuc":
            shapes[f"{encoder}.layer.{layer}.multi_lhuc.{task}.lhuc"] = (HIDDEN,)
    return shapes


def mapped(kind: str, state: State) -> Checkpoint:
    return from_bert_n_pals(state, {**CONFIG, **SWITCHES[kind]}, ARCHITECTURE, where="best_model.pth")


def their_hidden(kind: str, state: State, task: int, rows: dict[str, Array]) -> Array:
    """Computes the last hidden states like the authors' ``BERTEncoder``."""
    theirs, encoder, mask = Weights(state, "."), "bert.encoder", rows["mask"]
    x = theirs.embed(rows["tokens"], rows["types"])
    for number in range(LAYERS):
        layer, extra = f"{encoder}.layer.{number}", 0.0
        module = f"{layer}.multi_layers.{task}"
        if kind == "pals":
            small = theirs.dense(f"{encoder}.mult_aug_dense.{task}", x)
            small = theirs.self_attention(f"{module}.attn", small, mask, 6)
            extra = gelu_exact(theirs.dense(f"{encoder}.mult_aug_dense2.{task}", small))
        if kind == "low_rank":
            extra = theirs.dense(f"{module}.aug_dense2", gelu_exact(theirs.dense(f"{module}.aug_dense", x)))
        x = theirs.layer(layer, x, mask, gelu_exact, extra=extra)
        if kind == "lhuc":
            x = x * 2.0 / (1.0 + np.exp(-state[f"{layer}.multi_lhuc.{task}.lhuc"]))
    if kind == "top_attention":
        x = theirs.dense(f"{encoder}.mult_dense.{task}", x)
        for number in range(6):
            x = theirs.attention(f"{encoder}.multi_layers.{task}.{number}", x, mask, 12)
        x = theirs.dense(f"{encoder}.mult_dense2.{task}", x)
    if kind == "top_layer":
        x = theirs.layer(f"{encoder}.multi_layers.{task}", x, mask, gelu_exact)
    return x


def their_logits(kind: str, state: State, task: int, rows: dict[str, Array]) -> Array:
    theirs = Weights(state, ".")
    return theirs.dense(f"classifier.{task}", theirs.pool(their_hidden(kind, state, task, rows)))


def expected_leaves(kind: str, state: State, task: int) -> State:
    """Makes the expected leaves of a task's module from the authors' tensors."""
    encoder = "bert.encoder"
    leaves: State = {}

    def one(path: str, scope: str) -> None:
        leaves[f"{path}/kernel"], leaves[f"{path}/bias"] = state[f"{scope}.weight"].T, state[f"{scope}.bias"]

    def stack(path: str, scope: Callable[[int], str], depth: int = LAYERS) -> None:
        leaves[f"{path}/kernel"] = np.stack([state[f"{scope(index)}.weight"].T for index in range(depth)])
        leaves[f"{path}/bias"] = np.stack([state[f"{scope(index)}.bias"] for index in range(depth)])

    def module(name: str) -> Callable[[int], str]:
        return lambda index: f"{encoder}.layer.{index}.multi_layers.{task}.{name}"

    def on_top(name: str) -> Callable[[int], str]:
        return lambda index: f"{encoder}.multi_layers.{task}.{index}.{name}"

    top = f"{encoder}.multi_layers.{task}"
    if kind == "pals":
        one("shared/encode", f"{encoder}.mult_aug_dense.{task}")
        one("shared/decode", f"{encoder}.mult_aug_dense2.{task}")
        for part in ("query", "key", "value"):
            stack(f"ffn/attention/{part}", module(f"attn.{part}"))
    if kind == "low_rank":
        stack("ffn/encode", module("aug_dense"))
        stack("ffn/decode", module("aug_dense2"))
    if kind == "lhuc":
        leaves["ffn/scale"] = np.stack([state[f"{encoder}.layer.{n}.multi_lhuc.{task}.lhuc"] for n in range(LAYERS)])
    if kind == "top_attention":
        one("top/encode", f"{encoder}.mult_dense.{task}")
        one("top/decode", f"{encoder}.mult_dense2.{task}")
        for part in ("query", "key", "value"):
            stack(f"top/layers/attention/{part}", on_top(f"self.{part}"), 6)
        stack("top/layers/attention/output", on_top("output.dense"), 6)
        for ours, name in (("scale", "gamma"), ("bias", "beta")):
            norms = [state[f"{top}.{number}.output.LayerNorm.{name}"] for number in range(6)]
            leaves[f"top/layers/attention/norm/{ours}"] = np.stack(norms)
    if kind == "top_layer":
        for part in ("query", "key", "value"):
            one(f"top/layer/attention/{part}", f"{top}.attention.self.{part}")
        one("top/layer/attention/output", f"{top}.attention.output.dense")
        one("top/layer/ffn/intermediate", f"{top}.intermediate.dense")
        one("top/layer/ffn/output", f"{top}.output.dense")
        for ours, name in (("scale", "gamma"), ("bias", "beta")):
            leaves[f"top/layer/attention/norm/{ours}"] = state[f"{top}.attention.output.LayerNorm.{name}"]
            leaves[f"top/layer/ffn/norm/{ours}"] = state[f"{top}.output.LayerNorm.{name}"]
    return leaves


@pytest.mark.parametrize("kind", SWITCHES)
def test_every_tensor_is_mapped_and_the_authors_logits_are_reproduced(kind: str) -> None:
    state = state_dict(kind)
    checkpoint = mapped(kind, state)
    assert checkpoint.adapter == ADAPTERS[kind]
    assert len(checkpoint.modules) == (0 if kind == "shared" else TASKS)
    for task, tree in enumerate(checkpoint.modules):
        leaves, expected = flatten(tree), expected_leaves(kind, state, task)
        assert leaves.keys() == expected.keys()
        for path, array in expected.items():
            np.testing.assert_array_equal(leaves[path], array, err_msg=path)
    for task, head in enumerate(checkpoint.heads):
        np.testing.assert_array_equal(head["output"]["kernel"], state[f"classifier.{task}.weight"].T)
        np.testing.assert_array_equal(head["output"]["bias"], state[f"classifier.{task}.bias"])

    task = 2
    adapters = (("rte", checkpoint.adapter),) if checkpoint.adapter else ()
    model = Model(trunk=ARCHITECTURE, head_name="rte", head=HeadConfig(pooler="trunk"), adapters=adapters)
    modules = {"rte": checkpoint.modules[task]} if checkpoint.adapter else {}
    params = {"trunk": checkpoint.trunk, "adapters": modules, "fusion": {}, "heads": {"rte": checkpoint.heads[task]}}
    logits = jax.jit(lambda params, rows: model(params, rows).logits)(params, batch())
    np.testing.assert_allclose(logits, their_logits(kind, state, task, batch()), atol=3e-5)


def test_every_trunk_tensor_is_mapped() -> None:
    state = state_dict("shared")
    leaves = flatten(mapped("shared", {f"module.{name}": tensor for name, tensor in state.items()}).trunk)
    np.testing.assert_array_equal(leaves["embeddings/word"], state["bert.embeddings.word_embeddings.weight"])
    np.testing.assert_array_equal(leaves["embeddings/norm/bias"], state["bert.embeddings.LayerNorm.beta"])
    np.testing.assert_array_equal(leaves["pooler/kernel"], state["bert.pooler.dense.weight"].T)
    for path, name in (
        ("attention/query/kernel", "attention.self.query.weight"),
        ("attention/output/kernel", "attention.output.dense.weight"),
        ("ffn/intermediate/kernel", "intermediate.dense.weight"),
        ("ffn/output/bias", "output.dense.bias"),
        ("attention/norm/scale", "attention.output.LayerNorm.gamma"),
        ("ffn/norm/bias", "output.LayerNorm.beta"),
    ):
        theirs = [state[f"bert.encoder.layer.{layer}.{name}"].T for layer in range(LAYERS)]
        np.testing.assert_array_equal(leaves[f"layers/{path}"], theirs, err_msg=path)


def test_modules_in_a_subset_of_the_layers() -> None:
    state = state_dict("pals", layers=(1,))
    checkpoint = mapped("pals", state)
    assert checkpoint.adapter == PalConfig(size=12, num_heads=6, output_activation="gelu", layers=(1,))
    query = checkpoint.modules[0]["ffn"]["attention"]["query"]["kernel"]
    np.testing.assert_array_equal(query, state["bert.encoder.layer.1.multi_layers.0.attn.query.weight"].T[None])


@pytest.mark.parametrize(
    ("switches", "named"),
    [
        ({"houlsby": True}, "houlsby"),
        ({"houlsby": True, "pals": True}, "houlsby and pals"),
        ({"mult": True, "lhuc": True}, "lhuc and mult"),
        ({"top": True, "mult": True, "pals": True}, "mult and pals and top"),
    ],
)
def test_unsupported_modules_are_refused_by_name(switches: dict[str, bool], named: str) -> None:
    with pytest.raises(UserError, match=f" on {named}, which .*not support"):
        from_bert_n_pals(state_dict("shared"), {**CONFIG, **switches}, ARCHITECTURE, where="best_model.pth")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bert.encoder.layer.1.multi_layers.2.attn.key.bias": None}, "- bert.encoder.layer.1.multi_layers.2.attn.key"),
        ({"bert.encoder.mult_aug_dense.0.bias": None}, "lacks bert.encoder.mult_aug_dense.0.bias"),
        ({"bert.pooler.mult_dense_layers.0.bias": np.zeros(16)}, r"\+ bert.pooler.mult_dense_layers.0.bias"),
        ({"cls.predictions.bias": np.zeros(24)}, r"\+ cls.predictions.bias"),
        ({"classifier.3.bias": np.zeros(2)}, "- bert.encoder.layer.0.multi_layers.3.attn.key.bias"),
        ({"classifier.0.weight": np.zeros((2, 15))}, r"classifier.0.weight .*\[2, 15\].*\[2, 16\]"),
        (
            {"bert.encoder.layer.1.multi_layers.0.aug_dense2.bias": np.zeros(16, np.float32)},
            "layer.1.multi_layers.0.aug_dense2.bias differs from bert.encoder.mult_aug_dense2.0.bias",
        ),
    ],
)
def test_mismatched_tensors_are_listed(change: dict[str, Array | None], message: str) -> None:
    state = {name: array for name, array in (state_dict("pals") | change).items() if array is not None}
    with pytest.raises(UserError, match=message):
        mapped("pals", state)


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Writes a checkpoint, and returns a command that imports its PALs."""
    write_files(tmp_path / "bert", **SWITCHES["pals"])
    state = {name: tensor.copy() for name, tensor in state_dict("pals").items()}
    save_file(state, tmp_path / "best_model.safetensors")
    files = [str(tmp_path / "best_model.safetensors"), f"--config={tmp_path / 'bert' / 'bert_config.json'}"]
    places = [f"--output={tmp_path / 'trunk'}", f"--store={tmp_path / 'store'}"]
    return ["import", "bert-n-pals", *files, *places, "--max_length=12"]


def test_imported_trunk_and_store_reproduce_the_authors_logits(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--tasks=cola,sts,mnli", "--name=pals"]) == 0
    trunk, store = load_trunk(str(tmp_path / "trunk")), tmp_path / "store"
    assert capsys.readouterr().out.splitlines() == [
        f"trunk {tmp_path / 'trunk'}: {trunk.sha256}",
        *(f"{store}/{kind}/pals-cola: cola, labels unacceptable, acceptable" for kind in ("adapters", "heads")),
        *(f"{store}/{kind}/pals-stsb: stsb, regression" for kind in ("adapters", "heads")),
        *(
            f"{store}/{kind}/pals-mnli: mnli, labels entailment, neutral, contradiction"
            for kind in ("adapters", "heads")
        ),
    ]
    model = load_task_model(store, trunk, head="pals-stsb", adapter="pals-stsb")
    assert (model.task.kind, model.task.scale, model.labels) == ("regression", 5.0, ())
    # The authors' code divides the labels by five.
    expected = 5.0 * their_logits("pals", state_dict("pals"), 1, text_batch("the cat sat"))
    np.testing.assert_allclose(model.predict(["the cat sat"]).logits, expected, atol=2e-4)
    # The authors' label order is contradiction, entailment, neutral.
    head = artifacts.load(store, "heads", "pals-mnli").params["output"]
    np.testing.assert_array_equal(head["kernel"], state_dict("pals")["classifier.2.weight"].T[:, [1, 2, 0]])
    np.testing.assert_array_equal(head["bias"], state_dict("pals")["classifier.2.bias"][[1, 2, 0]])
    assert [artifacts.problems(store, kind, name) for kind, name in artifacts.folders(store)] == [[]] * 6


def test_bad_input_is_refused(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*flags: str, source: str = arguments[2]) -> str:
        assert main([*arguments[:2], source, *arguments[3:], *flags]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert not (tmp_path / "trunk").exists()
        assert not (tmp_path / "store").exists()
        return err

    tasks = "--tasks=cola,stsb,mnli"
    (tmp_path / "plain.json").write_text(json.dumps(CONFIG))
    assert has_facts(refused("--tasks=cola,stsb"), "3 output layers", "--tasks ", "2: cola, stsb;")
    assert has_facts(refused("--tasks=cola,rte,mnli"), "layer 1 (rte)", "1 output", "STS-B")
    assert has_facts(refused("--tasks=sts,stsb,mnli"), "layer 0 (sts)", "2 outputs", "STS-B", "regression")
    assert has_facts(refused("--tasks=rte,stsb,cola"), '"cola"', "unacceptable, acceptable;")
    # An empty name is ignored, as in other flags, and the number of tasks is then wrong.
    assert has_facts(refused("--tasks=,stsb,mnli"), "3 output layers", "--tasks ", "2: stsb, mnli;")
    assert 'head name "a/b-cola"' in refused(tasks, "--name=a/b")
    assert "max_length is 13" in refused(tasks, "--max_length=13")
    assert has_facts(refused(tasks, source=str(tmp_path / "best.pth")), "best.pth is not a file", "state dict")
    assert has_facts(refused(tasks, f"--vocab={tmp_path / 'vocab.txt'}"), "vocab.txt ", "not exist", "--vocab")
    assert has_facts(refused(tasks, f"--store={tmp_path / 'plain.json'}"), "plain.json is a file", "--store")
    message = refused(tasks, f"--config={tmp_path / 'plain.json'}")
    assert "+ bert.encoder.layer.0.multi_layers.0.attn.key.bias" in message
    (tmp_path / "damaged.safetensors").write_bytes(b"no tensors")
    message = refused(tasks, source=str(tmp_path / "damaged.safetensors"))
    assert has_facts(message, "damaged.safetensors ", "cannot be read")


def test_existing_files_are_only_replaced_with_overwrite(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--tasks=cola,stsb,mnli"]) == 0
    assert main([*arguments, "--tasks=cola,stsb,mnli"]) == 2
    assert has_facts(capsys.readouterr().err, "trunk already exists", "--overwrite")
    other = f"--output={tmp_path / 'other'}"
    assert main([*arguments, "--tasks=rte,stsb,mine", other]) == 2
    assert has_facts(capsys.readouterr().err, '"stsb" already exists', "adapters", "store")
    assert artifacts.names(tmp_path / "store", "heads") == ["cola", "mnli", "stsb"]
    assert not (tmp_path / "other").exists()
    run = tmp_path / "run"
    run.mkdir()
    (run / reservations.WORKDIR_FILE).write_text('{"store": "../store", "run": "another"}')
    reservations.write(epath.Path(tmp_path / "store"), "heads", "c-rte", run="another", workdir=run)
    assert main([*arguments, "--tasks=rte,stsb,mine", other, "--name=c"]) == 2
    assert has_facts(capsys.readouterr().err, f"run in {run} is unfinished", "heads/c-rte")
    assert not (tmp_path / "other").exists()
    assert main([*arguments, "--tasks=mine,stsb,mine", other, "--name=b"]) == 2
    assert has_facts(capsys.readouterr().err, "--tasks ", "b-mine", "twice")
    assert main([*arguments, "--tasks=rte,stsb,mine", other, "--overwrite"]) == 0
    assert artifacts.read_manifest(tmp_path / "store", "heads", "mine").labels == ("0", "1", "2")


def test_only_tensors_are_read_from_pickled_state_dicts(arguments: list[str], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    state = {name: torch.from_numpy(tensor) for name, tensor in state_dict("pals").items()}
    torch.save(state, tmp_path / "best_model.pth")
    arguments[2] = str(tmp_path / "best_model.pth")
    assert main([*arguments, "--tasks=cola,stsb,mnli"]) == 0
    kernel = artifacts.load(tmp_path / "store", "adapters", "mnli").params["shared"]["encode"]["kernel"]
    np.testing.assert_array_equal(kernel, state["bert.encoder.mult_aug_dense.2.weight"].numpy().T)
    torch.save({"model": torch.nn.Linear(2, 2)}, tmp_path / "best_model.pth")
    assert main([*arguments, "--tasks=cola,stsb,mnli", "--overwrite"]) == 2
