"""Weights are read from one file or from shards, in safetensors or pickle format.

Only the needed files are downloaded.
"""

import fnmatch
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from facts import has_facts
from safetensors.numpy import load_file, save_file

from afjax.errors import UserError
from afjax.trunk.pretrained import load_trunk
from afjax.trunk.tokenizer import TOKENIZER_FILES
from afjax.trunk.weight_files import read_tensor_file, read_tensors

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARDS = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]


@pytest.fixture
def folder(tiny_trunk_folder: Path, tmp_path: Path) -> Path:
    """Makes a trunk with three shards of weights."""
    folder = shutil.copytree(tiny_trunk_folder, tmp_path / "trunk")
    split(folder)
    return folder


def split(folder: Path) -> None:
    """Replaces model.safetensors by shards and their index."""
    tensors = load_file(folder / WEIGHTS)
    weight_map = {name: SHARDS[number % len(SHARDS)] for number, name in enumerate(tensors)}
    for shard in SHARDS:
        save_file({name: tensors[name] for name in tensors if weight_map[name] == shard}, folder / shard)
    total = sum(tensor.nbytes for tensor in tensors.values())
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    (folder / WEIGHTS).unlink()


def edit_map(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as raised:
        load_trunk(str(folder))
    message = str(raised.value)
    assert str(folder) in message
    assert len(message) < 1000
    return message


def test_shards_give_the_same_trunk_as_one_file(folder: Path, tiny_trunk_folder: Path) -> None:
    unsharded, sharded = load_trunk(str(tiny_trunk_folder)), load_trunk(str(folder))
    assert sharded.sha256 == unsharded.sha256
    texts = ["all", "some of the two"]
    np.testing.assert_array_equal(sharded.embed(texts), unsharded.embed(texts))


def test_one_file_has_precedence_over_shards(folder: Path) -> None:
    tensors = {"a": np.ones(2, np.float32)}
    save_file(tensors, folder / WEIGHTS)
    assert read_tensors(folder).keys() == tensors.keys()


def test_tensors_that_the_index_does_not_list_are_not_read(folder: Path) -> None:
    names = read_tensors(folder).keys()
    save_file({**load_file(folder / SHARDS[0]), "unlisted": np.ones(2, np.float32)}, folder / SHARDS[0])
    assert read_tensors(folder).keys() == names


def test_dtype_that_numpy_lacks_is_refused(folder: Path) -> None:
    header = json.dumps({"a": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")
    assert has_facts(refusal(folder), WEIGHTS, "float8", "float32")


def test_missing_shards_are_named(folder: Path) -> None:
    for shard in SHARDS[1:]:
        (folder / shard).unlink()
    assert has_facts(refusal(folder), "2 of 3 shards", INDEX, *SHARDS[1:])


def test_tensor_missing_from_its_shard_is_named(folder: Path) -> None:
    edit_map(folder, lambda shard_of: shard_of.update({"new": SHARDS[0]}))
    assert has_facts(refusal(folder), SHARDS[0], INDEX, "new")


@pytest.mark.parametrize("dtype", ["int8", "float16", 4, None])
def test_unsupported_compute_dtype_is_refused(folder: Path, dtype: Any) -> None:
    with pytest.raises(UserError, match=r"dtype .*float32, bfloat16"):
        load_trunk(str(folder), dtype=dtype)


OUTSIDE = ["../model.safetensors", "/model.safetensors", "..", ".", "", "sub/model.safetensors", "a/../b.safetensors"]


@pytest.mark.parametrize("shard", [*OUTSIDE, "pytorch_model.bin", "config.json", 3, None, ["a"], {}, True])
def test_shards_outside_the_folder_or_of_another_file_type_are_refused(folder: Path, shard: Any) -> None:
    shutil.copy(folder / SHARDS[0], folder.parent / WEIGHTS)
    edit_map(folder, lambda shard_of: shard_of.update({"pooler.dense.weight": shard}))
    assert has_facts(refusal(folder), INDEX, '"pooler.dense.weight"', json.dumps(shard), ".safetensors")


@pytest.mark.parametrize("shard", ["\0.safetensors", "x" * 5000 + ".safetensors", "\udcff.safetensors"])
def test_impossible_file_names_count_as_missing_shards(folder: Path, shard: str) -> None:
    edit_map(folder, lambda shard_of: shard_of.update({"pooler.dense.weight": shard}))
    assert has_facts(refusal(folder), "1 of 4 shards")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "3", "{", "{}", '{"weight_map": null}', '{"weight_map": []}', '{"weight_map": {}}', "[" * 10**5],
)
def test_malformed_index_is_refused(folder: Path, text: str) -> None:
    (folder / INDEX).write_text(text)
    assert INDEX in refusal(folder)


def test_damaged_shard_is_named(folder: Path) -> None:
    (folder / SHARDS[1]).write_bytes((folder / SHARDS[1]).read_bytes()[:-4])
    assert SHARDS[1] in refusal(folder)


def test_error_for_a_folder_without_weights_names_the_expected_files(folder: Path) -> None:
    (folder / INDEX).unlink()
    assert has_facts(refusal(folder), "no weights", WEIGHTS, "pytorch_model.bin", INDEX)


# Tests of downloads, with a fake of snapshot_download that copies local files.


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[dict[str, Path]], list[str]]:
    """Returns a function that sets the files of the fake repository.

    The function returns a list, to which each download appends the names of its files.
    """

    def make(files: dict[str, Path]) -> list[str]:
        downloaded: list[str] = []

        def snapshot_download(repo: str, allow_patterns: list[str]) -> str:
            for name, path in files.items():
                if any(fnmatch.fnmatch(name, pattern) for pattern in allow_patterns) and name not in downloaded:
                    downloaded.append(name)
                    target = tmp_path / "snapshot" / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, target)
            (tmp_path / "snapshot").mkdir(exist_ok=True)
            return str(tmp_path / "snapshot")

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        return downloaded

    return make


OTHER_WEIGHTS = (
    "tf_model.h5",
    "flax_model.msgpack",
    "onnx/model.onnx",
    "onnx/model.safetensors",
    "model.fp16.safetensors",
    "training_args.bin",
    "optimizer.pt",
    "openvino/openvino_model.bin",
)


@pytest.mark.parametrize("sharded", [False, True])
def test_only_needed_files_are_downloaded(
    sharded: bool, folder: Path, tiny_trunk_folder: Path, hub: Callable[[dict[str, Path]], list[str]]
) -> None:
    source = folder if sharded else tiny_trunk_folder
    needed = {path.name: path for path in source.iterdir()}
    needed |= dict.fromkeys(("added_tokens.json", "spm.model"), source / "config.json")
    pickled = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin")
    downloaded = hub({**needed, **dict.fromkeys((*OTHER_WEIGHTS, *pickled), source / "config.json")})
    trunk = load_trunk("some/trunk")
    assert sorted(downloaded) == sorted(needed)
    assert trunk.sha256 == load_trunk(str(tiny_trunk_folder)).sha256


def test_all_tokenizer_files_are_downloaded(
    folder: Path, hub: Callable[[dict[str, Path]], list[str]], tmp_path: Path
) -> None:
    downloaded = hub(dict.fromkeys(TOKENIZER_FILES, folder / "config.json"))
    with pytest.raises(UserError):
        load_trunk("some/trunk")
    assert sorted(downloaded) == sorted(TOKENIZER_FILES)


def test_pickled_weights_are_downloaded_if_there_are_no_safetensors(
    folder: Path, hub: Callable[[dict[str, Path]], list[str]]
) -> None:
    pickled = ["pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin"]
    downloaded = hub({"config.json": folder / "config.json", **dict.fromkeys(pickled, folder / "config.json")})
    with pytest.raises(UserError):
        load_trunk("some/trunk")
    assert sorted(downloaded) == sorted(["config.json", *pickled])


# Tests of files in PyTorch's format.


def save_pickled(values: Any, path: Path) -> Path:
    torch = pytest.importorskip("torch")
    torch.save(values, path)
    return path


def test_pickled_shards_give_the_same_trunk(folder: Path, tiny_trunk: Any) -> None:
    torch = pytest.importorskip("torch")
    index = json.loads((folder / INDEX).read_text())
    for shard in SHARDS:
        tensors = load_file(folder / shard)
        save_pickled({name: torch.from_numpy(tensor) for name, tensor in tensors.items()}, folder / f"{shard}.bin")
        (folder / shard).unlink()
    index["weight_map"] = {name: f"{shard}.bin" for name, shard in index["weight_map"].items()}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (folder / INDEX).unlink()
    assert load_trunk(str(folder)).sha256 == tiny_trunk.sha256


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_pickled_tensors_with_gradients_and_other_layouts_are_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    plain = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    forms = {
        "parameter": torch.nn.Parameter(plain.clone()),
        "gradient": plain.clone().requires_grad_(),
        "sparse": plain.to_sparse(),
        "sparse rows": plain.to_sparse_csr(),
        "transposed": plain.T.contiguous().T,
        "bfloat16": plain.bfloat16(),
        "half": plain.half(),
        "double": plain.double(),
    }
    tensors = read_tensor_file(save_pickled(forms, tmp_path / "a.bin"))
    assert tensors.keys() == forms.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, plain.numpy(), err_msg=name)
        assert tensor.dtype == np.float32


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda one: {"model": {"a": one}, "optimizer": {}, "epoch": 3}, ['"model" (dict)', '"optimizer" (dict)']),
        (lambda one: {"a": one, "epoch": 3, "name": "x"}, ['"epoch" (int)', '"name" (str)']),
        (lambda one: {"a": one, "b": [one]}, ['"b" (list)']),
        (lambda one: {0: one}, ["0 (Tensor)"]),
        (lambda one: dict.fromkeys(map(str, range(1000)), 0), ['"0" (int)', "996 more"]),
        (lambda one: [one], ["list"]),
        (lambda one: one, ["Tensor"]),
        (lambda one: None, ["NoneType"]),
    ],
)
def test_errors_name_contents_of_a_pickled_file_that_are_not_tensors(
    make: Callable[[Any], Any], facts: list[str], tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    path = save_pickled(make(torch.ones(2)), tmp_path / "a.bin")
    with pytest.raises(UserError) as raised:
        read_tensor_file(path)
    assert has_facts(str(raised.value), str(path), *facts, "state_dict")
    assert "fetch" not in str(raised.value)
