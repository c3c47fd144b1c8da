"""A stored adapter requires its training trunk, with the same weights, architecture and tokenizer."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facts import has_facts
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from afjax.cli.main import main
from afjax.data.tokenization import tokenize_rows
from afjax.errors import UserError
from afjax.model.loading import load_adapters, load_task_model
from afjax.store import read_manifest, trunk_difference
from afjax.tasks.load import rows_from_lists
from afjax.trunk.pretrained import Trunk, load_trunk, save_trunk
from afjax.trunk.tokenizer import tokenizer_digests
from tests.cli.conftest import Refused, WriteRows

pytestmark = pytest.mark.slow

Edit = Callable[[dict], Any]


@pytest.fixture
def trunk_folder(tiny_trunk_folder: Path, tmp_path: Path) -> Path:
    """Copies the trunk's folder, so that a test can change it."""
    return shutil.copytree(tiny_trunk_folder, tmp_path / "trunk")


@pytest.fixture
def predict(store: Path, trunk_folder: Path, write_rows: WriteRows, tmp_path: Path) -> list[str]:
    rows = write_rows(tmp_path / "rows.jsonl")
    flags = [f"--store={store}", f"--trunk={trunk_folder}", "--head=first", "--adapter=first"]
    return ["predict", *flags, f"--input={rows}", f"--output={tmp_path / 'out.jsonl'}"]


@pytest.fixture
def evaluate(predict: list[str], data: Path) -> list[str]:
    return ["eval", *predict[1:5], f"--source={data}"]


def edit(path: Path, change: Edit) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def permute_vocabulary(tokenizer: dict) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["all"], vocabulary["some"] = vocabulary["some"], vocabulary["all"]


def keep_case(tokenizer: dict) -> None:
    tokenizer["normalizer"]["lowercase"] = False


def split_at_spaces(tokenizer: dict) -> None:
    tokenizer["pre_tokenizer"] = {"type": "WhitespaceSplit"}


def leave_out_last_separator(tokenizer: dict) -> None:
    del tokenizer["post_processor"]["single"][-1]


def add_token(tokenizer: dict) -> None:
    token = dict(tokenizer["added_tokens"][-1], content="two", id=tokenizer["model"]["vocab"]["two"])
    tokenizer["added_tokens"].append(token)


TOKENIZERS: dict[str, Edit] = {
    "vocabulary": permute_vocabulary,
    "pre tokenizer": split_at_spaces,
    "post processor": leave_out_last_separator,
    "added tokens": add_token,
    "normalizer": keep_case,
}
ARCHITECTURES: dict[str, tuple[Any, Any]] = {
    # ``{field of config.json: (new value, recorded value)}``.
    "num_attention_heads": (2, 4),
    "layer_norm_eps": (0.5, 1e-12),
    "hidden_act": ("relu", "gelu"),
    "pad_token_id": (3, 0),
}


@pytest.mark.parametrize("field", ARCHITECTURES)
def test_different_architecture_is_refused(
    field: str, predict: list[str], evaluate: list[str], trunk_folder: Path, refused: Refused
) -> None:
    value, recorded = ARCHITECTURES[field]
    edit(trunk_folder / "config.json", lambda values: values.update({field: value}))
    for command in (predict, evaluate):
        assert f"{field} (recorded: {recorded}, in use: {value})" in refused(*command)


@pytest.mark.parametrize("part", TOKENIZERS)
def test_different_tokenizer_is_refused(
    part: str, predict: list[str], evaluate: list[str], trunk_folder: Path, refused: Refused
) -> None:
    edit(trunk_folder / "tokenizer.json", TOKENIZERS[part])
    if part == "normalizer":
        # transformers' BERT tokenizer reads this setting from tokenizer_config.json.
        edit(trunk_folder / "tokenizer_config.json", lambda values: values.update(do_lower_case=False))
    for command in (predict, evaluate):
        assert has_facts(refused(*command), "differs", f"tokenizer's {part}.")


def test_each_tokenizer_part_has_its_own_digest(tiny_trunk_folder: Path) -> None:
    text = (tiny_trunk_folder / "tokenizer.json").read_text()

    def digests(change: Edit = lambda values: None, **settings: Any) -> dict[str, str]:
        values = json.loads(text)
        change(values)
        backend = Tokenizer.from_str(json.dumps(values))
        return tokenizer_digests(PreTrainedTokenizerFast(tokenizer_object=backend, **settings))

    expected = digests()
    assert {name.replace("_", " ") for name in expected} == {*TOKENIZERS, "settings"}
    for part, change in TOKENIZERS.items():
        assert [name.replace("_", " ") for name, digest in digests(change).items() if digest != expected[name]] == [
            part
        ]
    from_left = digests(truncation_side="left")
    assert {name for name in from_left if from_left[name] != expected[name]} == {"settings"}
    # The post-processor also sets the token types of special tokens.
    typed = digests(model_input_names=["input_ids", "token_type_ids", "attention_mask"])
    assert {name for name in typed if typed[name] != expected[name]} == {"post_processor"}


def test_runtime_padding_and_truncation_do_not_change_digests(tiny_trunk: Trunk) -> None:
    tokenizer = tiny_trunk.tokenizer()
    before = tokenizer_digests(tokenizer)
    tokenizer(["all", "some of the two"], padding=True, truncation=True, max_length=4)
    assert tokenizer_digests(tokenizer) == before == tiny_trunk.identity()["tokenizer"]


@pytest.mark.parametrize("part", ["vocabulary", "normalizer"])
def test_token_cache_is_not_shared_between_tokenizers(
    part: str, tiny_trunk: Trunk, trunk_folder: Path, tmp_path: Path
) -> None:
    edit(trunk_folder / "tokenizer.json", TOKENIZERS[part])
    edit(trunk_folder / "tokenizer_config.json", lambda values: values.update(do_lower_case=part != "normalizer"))
    rows = rows_from_lists(["All of the two"])
    for trunk in (tiny_trunk, load_trunk(str(trunk_folder))):
        tokenize_rows(rows, trunk.tokenizer(), max_length=8, cache_dir=tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_python_functions_refuse_a_different_trunk(store: Path, trunk_folder: Path) -> None:
    edit(trunk_folder / "config.json", lambda values: values.update(num_attention_heads=2))
    trunk = load_trunk(str(trunk_folder))
    for load in (
        lambda: load_task_model(store, trunk, head="first", adapter="first"),
        lambda: load_task_model(store, trunk, head="target-fusion", fusion="target-fusion"),
        lambda: load_adapters(store, ["second"], trunk),
    ):
        with pytest.raises(UserError, match="num_attention_heads"):
            load()


def test_irrelevant_differences_are_accepted(
    predict: list[str], evaluate: list[str], trunk_folder: Path, tmp_path: Path
) -> None:
    assert main(predict) == 0
    before = (tmp_path / "out.jsonl").read_text()
    save_trunk(tmp_path / "saved", load_trunk(str(trunk_folder)))
    shutil.rmtree(trunk_folder)
    shutil.move(tmp_path / "saved", trunk_folder)

    def cut_and_pad(tokenizer: dict) -> None:
        tokenizer["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
        tokenizer["padding"] = {
            "strategy": {"Fixed": 8},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        }

    edit(trunk_folder / "tokenizer.json", cut_and_pad)
    # Dropout only matters during training and gelu is the default, so neither affects predictions.
    edit(trunk_folder / "config.json", lambda values: values.update(hidden_dropout_prob=0.3, hidden_act="gelu"))
    assert main(predict) == 0
    assert (tmp_path / "out.jsonl").read_text() == before
    assert main(evaluate) == 0


def make_old(store: Path) -> None:
    """Removes the fields that earlier versions did not record from all manifests."""
    for path in store.glob("*/*/manifest.json"):
        values = json.loads(path.read_text())
        del values["trunk"]["architecture"], values["trunk"]["tokenizer"], values["manifest_sha256"]
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        path.write_text(json.dumps({**values, "manifest_sha256": digest}))


def test_older_store_is_read_with_one_warning(store: Path, predict: list[str], trunk_folder: Path) -> None:
    make_old(store)
    with pytest.warns(UserWarning, match="architecture.*tokenizer"):
        assert main(predict) == 0
    fusion = [word for word in predict if not word.startswith(("--head", "--adapter"))]
    command = [sys.executable, "-m", "afjax", *fusion, "--head=target-fusion", "--fusion=target-fusion"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    # A single warning covers the head, the fusion and both adapters.
    [line] = [line for line in result.stderr.splitlines() if str(store) in line]
    assert line.startswith("afjax: ")
    assert "Warning" not in result.stderr


def test_older_store_is_refused_with_different_weights_or_model_type(
    store: Path, predict: list[str], trunk_folder: Path, refused: Refused
) -> None:
    make_old(store)
    edit(trunk_folder / "config.json", lambda values: values.update(model_type="roberta"))
    assert has_facts(refused(*predict), "model_type", "bert", "roberta")
    edit(trunk_folder / "config.json", lambda values: values.update(model_type="bert"))
    tensors = load_file(trunk_folder / "model.safetensors")
    tensors["embeddings.LayerNorm.bias"] = tensors["embeddings.LayerNorm.bias"] + 1
    save_file(tensors, trunk_folder / "model.safetensors")
    assert "weights" in refused(*predict)


def test_dropout_and_dtype_do_not_change_the_identity(tiny_trunk: Trunk, trunk_folder: Path) -> None:
    edit(trunk_folder / "config.json", lambda values: values.update(hidden_dropout_prob=0.3))
    recorded = tiny_trunk.identity()
    other = load_trunk(str(trunk_folder), dtype="bfloat16").identity()
    assert trunk_difference(recorded, other) == ([], [])
    # A JSON round trip does not change the result.
    assert trunk_difference(json.loads(json.dumps(recorded)), other) == ([], [])


def test_trunk_without_a_tokenizer_has_an_identity(tiny_trunk: Trunk, trunk_folder: Path) -> None:
    for path in trunk_folder.glob("tokenizer*"):
        path.unlink()
    identity = load_trunk(str(trunk_folder)).identity()
    assert identity["tokenizer"] is None
    assert trunk_difference(tiny_trunk.identity(), identity) == ([], [])
    assert trunk_difference(identity, tiny_trunk.identity()) == ([], ["the tokenizer"])


def test_manifest_records_the_whole_identity(store: Path, tiny_trunk: Trunk) -> None:
    for kind, name in (("adapters", "first"), ("heads", "first"), ("fusion", "target-fusion")):
        assert read_manifest(store, kind, name).trunk == tiny_trunk.identity()


# Non-finite numbers.


def test_trunk_with_nan_is_refused(predict: list[str], evaluate: list[str], trunk_folder: Path, refused: Refused):
    tensors = load_file(trunk_folder / "model.safetensors")
    name = "encoder.layer.1.output.dense.weight"
    tensors[name] = np.where(np.arange(tensors[name].size).reshape(tensors[name].shape) == 5, np.nan, tensors[name])
    save_file(tensors, trunk_folder / "model.safetensors")
    for command in (predict, evaluate):
        assert "layers/ffn/output/kernel" in refused(*command)


def test_adapter_with_nan_outputs_is_named(
    store: Path, tiny_trunk: Trunk, predict: list[str], evaluate: list[str], refused: Refused
) -> None:
    model = load_task_model(store, tiny_trunk, head="first", adapter="first")
    model.params["adapters"]["first"]["ffn"]["up"]["bias"][0, 0] = np.inf
    model.save(store, overwrite=True)
    for command in (predict, evaluate):
        sentence = refused(*command)
        assert "row 1 " in sentence
        assert "adapters/0/ffn/up/bias" in sentence
    with pytest.raises(UserError, match="row 1 "):
        model.predict([("all of the two", "two")])
