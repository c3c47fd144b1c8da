"""An exported routed model runs without afjax, with its adapters as arguments."""

import contextlib
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import export
from safetensors.numpy import load_file

from afjax import Capacity, RoutedModel, TaskModel, Trunk, UserError
from afjax.config.adapters import AdapterConfig, LoraConfig
from afjax.config.fusion import FusionConfig
from afjax.config.tasks import TaskConfig
from afjax.interop.routed_stablehlo import ARRAYS, DESCRIPTION, PROGRAM, export_routed
from tests.serve.random_tasks import random_task

pytestmark = pytest.mark.slow

BOTTLENECK = AdapterConfig(size=4)
TEXTS = ("all cats are small", "no dogs", "some small cats are not dogs")


@pytest.fixture(scope="module")
def models(tiny_trunk: Trunk) -> dict[str, TaskModel]:
    return {
        "first": random_task(tiny_trunk, "first", BOTTLENECK),
        "second": random_task(tiny_trunk, "second", AdapterConfig(size=2)),
        "lora": random_task(tiny_trunk, "lora", LoraConfig(rank=2), labels=("a", "b", "c")),
        "fused": random_task(tiny_trunk, "fused", BOTTLENECK, BOTTLENECK, fusion=FusionConfig()),
    }


@pytest.fixture(scope="module")
def folder(models: dict[str, TaskModel], tiny_trunk: Trunk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    routed = RoutedModel(tiny_trunk, models, Capacity(batch_sizes=(4,), lengths=(16,)))
    assert export_routed(routed, folder, platforms=("cpu",)) == json.loads((folder / DESCRIPTION).read_text())
    return folder


def run(folder: Path, arrays: dict[str, Any], texts: list[str], places: list[list[int]], trunk: Trunk) -> Any:
    exported = export.deserialize(bytearray((folder / PROGRAM).read_bytes()))
    encoded = trunk.tokenizer()(texts, padding=True, return_tensors="np")
    tokens, mask = encoded["input_ids"].astype(np.int32), encoded["attention_mask"].astype(bool)
    return jax.jit(exported.call)(arrays, tokens, np.zeros_like(tokens), mask, np.array(places, np.int32))


def test_exported_program_predicts_like_the_models(
    folder: Path, models: dict[str, TaskModel], tiny_trunk: Trunk
) -> None:
    description, arrays = json.loads((folder / DESCRIPTION).read_text()), load_file(folder / ARRAYS)
    names = ["lora", "first", "fused", "second", "first"]
    texts = [TEXTS[number % 3] for number in range(5)]
    tasks = [description["tasks"][name] for name in names]
    outputs = run(folder, arrays, texts, [task["places"] for task in tasks], tiny_trunk)
    for row, (name, task, text) in enumerate(zip(names, tasks, texts, strict=True)):
        expected = models[name].predict([text]).logits[0]
        logits = outputs["heads"][task["head"]][row][: task["num_outputs"]]
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5, err_msg=name)
        assert task["labels"] == list(models[name].labels)
    plain = run(folder, arrays, [TEXTS[1]], [[0] * len(tasks[0]["places"])], tiny_trunk)["embedding"]
    np.testing.assert_allclose(plain, tiny_trunk.embed([TEXTS[1]], max_length=16), rtol=1e-4, atol=1e-5)


def test_lines_in_the_description_return_the_logits_of_the_models(
    tiny_trunk: Trunk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = TaskConfig(name="scores", kind="regression", scale=5.0)
    models = {
        "three": random_task(tiny_trunk, "three", BOTTLENECK, labels=("a", "b", "c")),
        "two": random_task(tiny_trunk, "two", BOTTLENECK),
        "scores": random_task(tiny_trunk, "scores", BOTTLENECK, task=scores, labels=()),
    }
    routed = RoutedModel(tiny_trunk, models, Capacity(batch_sizes=(4,), lengths=(16,)))
    lines = "\n".join(export_routed(routed, tmp_path, platforms=("cpu",))["run"])
    encoded = tiny_trunk.tokenizer()([TEXTS[0]] * 3, return_tensors="np")["input_ids"]
    lines = lines.replace("[[...], [...]]", repr(encoded.tolist())).replace("('...', '...')", repr(tuple(models)))
    monkeypatch.chdir(tmp_path)
    variables: dict[str, Any] = {}
    exec(lines, variables)
    for model, logits in zip(models.values(), variables["logits"], strict=True):
        expected = model.predict([TEXTS[0]]).logits[0]
        np.testing.assert_allclose(logits, np.atleast_1d(expected), rtol=1e-4, atol=1e-5)


def test_adapter_is_replaced_by_overwriting_its_arrays(
    folder: Path, models: dict[str, TaskModel], tiny_trunk: Trunk
) -> None:
    description, arrays = json.loads((folder / DESCRIPTION).read_text()), load_file(folder / ARRAYS)
    first, second = (description["tasks"][name]["places"] for name in ("first", "second"))
    for path, array in arrays.items():
        if path.startswith("banks/"):
            bank = int(path.split("/")[1])
            array[first[bank]] = array[second[bank]]
    outputs = run(folder, arrays, [TEXTS[0]], [first], tiny_trunk)
    expected = models["second"].predict([TEXTS[0]]).logits[0]
    np.testing.assert_allclose(
        outputs["heads"][description["tasks"]["first"]["head"]][0][:2], expected, rtol=1e-4, atol=1e-5
    )


def test_rows_above_the_maximum_length_are_refused(folder: Path) -> None:
    arrays, exported = load_file(folder / ARRAYS), export.deserialize(bytearray((folder / PROGRAM).read_bytes()))
    num_banks = exported.in_avals[-1].shape[-1]
    # The default is the largest length that the model supports.
    for length, is_allowed in ((16, True), (17, False)):
        tokens, places = np.ones((1, length), np.int32), np.zeros((1, num_banks), np.int32)
        refused = contextlib.nullcontext() if is_allowed else pytest.raises(ValueError, match="refining shapes")
        with refused:
            jax.jit(exported.call)(arrays, tokens, tokens * 0, tokens > 0, places)


def test_invalid_exports_are_refused(models: dict[str, TaskModel], tiny_trunk: Trunk, tmp_path: Path) -> None:
    routed = RoutedModel(tiny_trunk, models, Capacity(batch_sizes=(4,), lengths=(16,), resident=1))
    with pytest.raises(UserError, match="resident"):
        export_routed(routed, tmp_path / "out")
    routed = RoutedModel(tiny_trunk, models, Capacity(batch_sizes=(4,), lengths=(16,)))
    for options, fact in (({"platforms": ("cpu", "gpu")}, '"gpu"'), ({"max_length": 129}, "129")):
        with pytest.raises(UserError, match=fact):
            export_routed(routed, tmp_path / "out", **options)
    with pytest.raises(UserError, match="object store"):
        export_routed(routed, "gs://bucket/out")
    assert not (tmp_path / "out").exists()
