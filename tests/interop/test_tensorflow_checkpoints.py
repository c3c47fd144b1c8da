"""Checkpoints of TensorFlow 1 are read.

Tests that need TensorFlow are skipped if it is not installed.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from papers_reference import bert_shapes, random_tensor, write_files

from afjax import store as artifacts
from afjax.cli.main import main
from afjax.errors import UserError
from afjax.interop import tensorflow_checkpoints
from afjax.interop.tensorflow_checkpoints import find_checkpoint, read_variables
from afjax.trunk.pretrained import load_trunk


@pytest.fixture
def tensorflow() -> Any:
    return pytest.importorskip("tensorflow")


def save(tensorflow: Any, path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes a checkpoint with ``tf.train.Saver``, like the papers' code."""
    v1 = tensorflow.compat.v1
    with tensorflow.Graph().as_default(), v1.Session() as session:
        for name, array in arrays.items():
            v1.get_variable(name, initializer=array, use_resource=False)
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(path))


def test_variables_are_read_as_saved(tensorflow: Any, tmp_path: Path) -> None:
    arrays = {"bert/embeddings/word_embeddings": random_tensor("words", 5, 3), "global_step": np.int64(7)}
    save(tensorflow, tmp_path / "model.ckpt-7", arrays)
    for source in (tmp_path / "model.ckpt-7", tmp_path / "model.ckpt-7.index", tmp_path):
        read = read_variables(source)
        assert read.keys() == arrays.keys()
        for name, array in arrays.items():
            assert read[name].dtype == array.dtype
            np.testing.assert_array_equal(read[name], array)


def test_damaged_checkpoints_are_refused(tensorflow: Any, tmp_path: Path) -> None:
    save(tensorflow, tmp_path / "model.ckpt", {"words": random_tensor("words", 500, 30)})
    data, index = tmp_path / "model.ckpt.data-00000-of-00001", tmp_path / "model.ckpt.index"
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"cannot be read .*TensorFlow"):
        read_variables(tmp_path)
    data.unlink()
    with pytest.raises(UserError, match=r"\.index.*\.data files"):
        read_variables(tmp_path)
    index.write_bytes(b"no table")
    with pytest.raises(UserError, match=r"cannot be read .*TensorFlow"):
        read_variables(tmp_path)


def test_google_bert_becomes_a_trunk(tensorflow: Any, tmp_path: Path) -> None:
    arrays = {name: random_tensor(name, *shape) for name, shape in bert_shapes(tensorflow=True).items()}
    folder = tmp_path / "uncased"
    write_files(folder)
    save(tensorflow, folder / "bert_model.ckpt", arrays | {"cls/predictions/output_bias": np.zeros(24, np.float32)})
    assert main(["import", "bert", str(folder), f"--output={tmp_path / 'trunk'}"]) == 0
    params = load_trunk(str(tmp_path / "trunk")).params
    np.testing.assert_array_equal(params["pooler"]["kernel"], arrays["bert/pooler/dense/kernel"])
    output = [arrays[f"bert/encoder/layer_{layer}/output/dense/kernel"] for layer in range(2)]
    np.testing.assert_array_equal(params["layers"]["ffn"]["output"]["kernel"], output)


def test_houlsby_checkpoint_becomes_an_adapter_on_google_bert(tensorflow: Any, tmp_path: Path) -> None:
    pretrained = {name: random_tensor(name, *shape) for name, shape in bert_shapes(tensorflow=True).items()}
    write_files(tmp_path / "uncased")
    save(tensorflow, tmp_path / "uncased" / "bert_model.ckpt", pretrained)
    shapes: dict[str, tuple[int, ...]] = {"output_weights": (2, 16), "output_bias": (2,)}
    for layer, scope in ((layer, scope) for layer in range(2) for scope in ("attention/output", "output")):
        adapter = f"bert/encoder/layer_{layer}/{scope}/adapters"
        shapes |= {f"{adapter}/weights1": (16, 3), f"{adapter}/biases1": (1, 3)}
        shapes |= {f"{adapter}/weights2": (3, 16), f"{adapter}/biases2": (1, 16)}
    trained = {name: random_tensor(name, *shape) for name, shape in shapes.items()}
    moments = {
        f"{name}/{slot}": np.zeros_like(array) for name, array in trained.items() for slot in ("adam_m", "adam_v")
    }
    state = {"global_step": np.int64(343)}
    save(tensorflow, tmp_path / "run" / "model.ckpt-343", {**pretrained, **trained, **moments, **state})

    trunk, store = f"{tmp_path / 'trunk'}", f"{tmp_path / 'store'}"
    assert main(["import", "bert", f"{tmp_path / 'uncased'}", f"--output={trunk}", "--gelu=tanh"]) == 0
    arguments = ["import", "adapter-bert", f"{tmp_path / 'run'}", f"--trunk={trunk}", f"--store={store}", "--name=mrpc"]
    assert main([*arguments, "--max_length=12"]) == 0
    adapter = artifacts.load(store, "adapters", "mrpc", trunk={"sha256": load_trunk(trunk).sha256}).params
    up = [trained[f"bert/encoder/layer_{layer}/output/adapters/weights2"] for layer in range(2)]
    np.testing.assert_array_equal(adapter["ffn"]["up"]["kernel"], up)
    head = artifacts.load(store, "heads", "mrpc").params
    np.testing.assert_array_equal(head["output"]["kernel"], trained["output_weights"].T)


def test_checkpoint_is_found_by_name_or_as_the_only_one_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model.ckpt-2.index").touch()
    (tmp_path / "model.ckpt-2.data-00000-of-00001").touch()
    for source in (tmp_path, tmp_path / "model.ckpt-2", tmp_path / "model.ckpt-2.index"):
        assert find_checkpoint(source) == tmp_path / "model.ckpt-2"
    with pytest.raises(UserError, match=r"no TensorFlow checkpoint .*model\.ckpt-1;"):
        find_checkpoint(tmp_path / "model.ckpt-1")
    (tmp_path / "model.ckpt-1.data-00000-of-00001").touch()
    with pytest.raises(UserError, match=r"no file model\.ckpt-1\.index;"):
        find_checkpoint(tmp_path / "model.ckpt-1")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "bert_model.ckpt.data-00000-of-00001").touch()
    with pytest.raises(UserError, match=r"no file bert_model\.ckpt\.index;"):
        find_checkpoint(tmp_path / "folder")
    (tmp_path / "model.ckpt-3.index").touch()
    with pytest.raises(UserError, match=r"several.* model\.ckpt-2, model\.ckpt-3;"):
        find_checkpoint(tmp_path)


def test_error_without_tensorflow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.ckpt.index").touch()
    monkeypatch.setattr(tensorflow_checkpoints.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"TensorFlow .*not installed.*pip install 'afjax\[tf\]'"):
        read_variables(tmp_path / "model.ckpt")
