"""Exported files return the logits of their models without afjax."""

import dataclasses
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from facts import has_facts

from afjax.cli.main import main
from afjax.config.adapters import ADAPTER_PRESETS, AdapterConfig, LhucConfig, PalConfig
from afjax.config.tasks import MultiLabelConfig, SpanConfig, TaskConfig
from afjax.errors import UserError
from afjax.interop import stablehlo
from afjax.interop.stablehlo import PLATFORMS, export_stablehlo, prediction_settings
from afjax.model.task_model import TaskModel
from afjax.trees import tree_digest
from afjax.trunk.config import TrunkConfig
from afjax.trunk.encoder import init_trunk
from afjax.trunk.families import ENCODER_FAMILIES
from afjax.trunk.pretrained import Trunk

pytestmark = pytest.mark.slow

MakeModel = Callable[..., TaskModel]

FUSED = {"first": AdapterConfig(size=4), "second": AdapterConfig(size=6, activation="gelu")}
MAX_LENGTH = 16
KEY = jax.random.key(0)
TEXTS = [("All cats sleep.", "Some cats sleep."), ("No dogs", "sleep"), ("Cats", "run.")]

# A program that computes logits from exported files without afjax.
READER = """
import json, re, sys
sys.modules["afjax"] = None
try:
    import afjax
except ImportError:
    pass
else:
    sys.exit("afjax was imported")
import jax, numpy as np
from jax import export

inputs, outputs, report = np.load("inputs.npz"), {}, {}
for name in json.load(open("names.json")):
    exported = export.deserialize(bytearray(open(name, "rb").read()))
    calls = set(re.findall(r"custom_call @([\\w.]+)", exported.mlir_module()))
    report[name] = {"platforms": exported.platforms, "custom_calls": sorted(calls)}
    for key in [key for key in inputs.files if key.startswith(name + "/tokens")]:
        tokens, types, mask = (inputs[key.replace("tokens", part)] for part in ("tokens", "types", "mask"))
        outputs[key] = jax.jit(exported.call)(tokens, types, mask)
    tokens = np.repeat(tokens, 9, -1)
    try:
        exported.call(tokens, np.zeros_like(tokens), tokens > 0)
    except ValueError:
        report[name]["too long"] = "refused"
np.savez("outputs.npz", **outputs)
json.dump(report, open("report.json", "w"))
"""


def random_trunk(family: str) -> Trunk:
    defaults = dict(ENCODER_FAMILIES[family].defaults)
    if "window" in defaults:
        # The window must be shorter than the rows of this test.
        defaults["window"] = 5
    config = TrunkConfig(
        family=family,
        vocab_size=40,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        intermediate_size=64,
        max_positions=20,
        type_vocab_size=2 if "type_vocab_size" in ENCODER_FAMILIES[family].config_names else 0,
        init_scale=0.15,
        **defaults,
    )
    return Trunk(name=family, config=config, params=init_trunk(KEY, config), sha256="0" * 64, folder=None)


def make_batch(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    tokens = generator.integers(5, 40, shape).astype(np.int32)
    mask = np.arange(shape[-1]) < generator.integers(2, shape[-1] + 1, (*shape[:-1], 1))
    if len(shape) == 3:
        mask[0, -1] = False  # The first row has one choice fewer.
    return {"tokens": np.where(mask, tokens, 0), "types": (tokens % 2).astype(np.int32), "mask": mask}


def tokenized(trunk: Trunk) -> dict[str, np.ndarray]:
    """Tokenizes ``TEXTS`` with only the trunk's tokenizer."""
    first, second = zip(*TEXTS, strict=True)
    found = trunk.tokenizer()(list(first), list(second), padding=True, return_tensors="np")
    parts = (found["input_ids"], found["token_type_ids"])
    tokens, types = (part.astype(np.int32) for part in parts)
    return {"tokens": tokens, "types": types, "mask": found["attention_mask"] == 1}


def afjax_logits(task_model: TaskModel, batch: dict[str, np.ndarray]) -> np.ndarray:
    model, params = task_model.for_inference()
    return np.asarray(jax.jit(lambda params, batch: model(params, batch).logits)(params, batch))


def test_files_run_without_afjax_and_give_the_same_logits(
    make_model: MakeModel, tiny_trunk: Trunk, tmp_path: Path
) -> None:
    models = {
        "fusion": make_model("fusion", FUSED),
        "regression": make_model(
            "regression",
            {"pal": PalConfig(size=8, num_heads=2)},
            trunk=random_trunk("roberta"),
            kind="regression",
            scale=5.0,
        ),
        "choices": make_model("choices", {"houlsby": ADAPTER_PRESETS["houlsby"]}, kind="multiple_choice"),
        "span": make_model("span", {}, kind="span", trunk=dataclasses.replace(tiny_trunk, dtype="bfloat16")),
        "topics": make_model("topics", {}, kind="multi_label", trunk=random_trunk("mpnet")),
        "tags": make_model("tags", {}, kind="tagging"),
        "local": make_model("local", {"lora": ADAPTER_PRESETS["lora"]}, trunk=random_trunk("modernbert")),
        # This fusion has no factored form.
        "scales": make_model("scales", {"first": LhucConfig(), "second": LhucConfig()}),
    }
    shapes = {
        "fusion": (5, 16),
        "regression": (2, 7),
        "choices": (2, 3, 6),
        "span": (3, 16),
        "topics": (2, 7),
        "tags": (2, 7),
        "local": (2, 7),
        "scales": (3, 15),
    }
    batches = {f"{name}/tokens": make_batch(shape) for name, shape in shapes.items()}
    # Use the fusion's file with a second batch size and length.
    texts = "fusion/tokens-text"
    batches[texts] = tokenized(tiny_trunk)
    for name, model in models.items():
        about = export_stablehlo(model, tmp_path / name, max_length=MAX_LENGTH)
        assert json.loads((tmp_path / f"{name}.json").read_text()) == about
    inputs = {key.replace("tokens", part): batch[part] for key, batch in batches.items() for part in batch}
    np.savez(tmp_path / "inputs.npz", **inputs)
    (tmp_path / "names.json").write_text(json.dumps(list(models)))
    subprocess.run([sys.executable, "-c", READER], cwd=tmp_path, check=True)

    report = json.loads((tmp_path / "report.json").read_text())
    for name in models:
        # JAX adds these custom calls, and removes them once the shapes are known. The first call checks the shapes. The
        # second call computes the positions of RoBERTa and MPNet.
        calls = ["shape_assertion", *(["stablehlo.dynamic_reduce_window"] if name in ("regression", "topics") else [])]
        assert report[name] == {"platforms": list(PLATFORMS), "custom_calls": calls, "too long": "refused"}
    # Read the whole file and close it, so that no open file is left to the garbage collector.
    with np.load(tmp_path / "outputs.npz") as file:
        outputs = dict(file)
    for key, batch in batches.items():
        model = models[key.partition("/")[0]]
        expected = models["fusion"].predict(TEXTS).logits if key == texts else afjax_logits(model, batch)
        expected = expected * np.float32(model.task.scale)
        # In bfloat16, the two compiled programs round after different operations.
        limit = 2e-2 if model.trunk.dtype == "bfloat16" else 1e-5
        assert outputs[key].dtype == expected.dtype == np.float32
        np.testing.assert_allclose(
            outputs[key], expected, rtol=limit, atol=limit * np.abs(expected[expected > -1e30]).max()
        )
    assert outputs["choices/tokens"][0, -1] == np.finfo(np.float32).min


def test_command_writes_a_file_and_its_description(
    make_model: MakeModel,
    tiny_trunk: Trunk,
    tiny_trunk_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    saved, file = make_model("first", {"first": FUSED["first"]}), tmp_path / "first.stablehlo"
    saved.save(tmp_path / "store")
    arguments = [f"--store={tmp_path / 'store'}", f"--trunk={tiny_trunk_folder}", "--adapter=first", "--head=first"]
    assert main(["export", "stablehlo", *arguments, f"--output={file}", "--platforms=cpu, tpu"]) == 0
    assert has_facts(capsys.readouterr().out, f"{file}: ", "MB", "cpu, tpu; ", f"{file}.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.stablehlo", "first.stablehlo.json", "store"]
    about = json.loads(Path(f"{file}.json").read_text())
    assert about["file"]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert [entry["name"] for entry in about["inputs"]] == ["tokens", "types", "mask"]
    assert [entry["shape"] for entry in about["inputs"]] == ["[batch, length]"] * 3
    assert about["outputs"][0]["shape"] == "[batch, 3]"
    assert (about["max_length"], about["platforms"], about["labels"]) == (
        saved.max_length,
        ["cpu", "tpu"],
        ["no", "perhaps", "yes"],
    )
    assert about["trunk"] == tiny_trunk.identity() | {"name": str(tiny_trunk_folder)}
    assert about["sha256_of_trees"] == {
        f"{root}/first": tree_digest(saved.params[root]["first"]) for root in ("adapters", "heads")
    }
    # The lines in the description run unchanged, except for the tokens.
    names: dict = {}
    lines = "\n".join(about["run"]).replace("[[...]]", "[[2, 7, 3, 0]]").replace("'first.", f"'{tmp_path}/first.")
    exec(lines, names)
    batch = {name: names[name] for name in ("tokens", "types", "mask")}
    np.testing.assert_allclose(names["logits"], afjax_logits(saved, batch), rtol=1e-5, atol=1e-6)


def test_description_contains_the_settings_of_predictions() -> None:
    task = TaskConfig(name="topics", kind="multi_label", multi_label=MultiLabelConfig(threshold=0.25))
    assert prediction_settings(task) == {"multi_label": {"threshold": 0.25}}
    span = prediction_settings(TaskConfig(name="squad", kind="span", span=SpanConfig(no_answer=True)))["span"]
    assert (span["no_answer"], span["no_answer_threshold"], span["max_answer_length"]) == (True, 0.0, 30)
    assert prediction_settings(TaskConfig(name="rte")) == {}


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["--platforms=cpu,tpus"], ('"tpus"', "cpu, cuda, tpu", 'Did you mean "tpu"?')),
        (["--platforms=cpu,cpu"], ("cpu, cpu;", "cpu, cuda, tpu", "once")),
        (["--platforms="], ("--platforms is empty",)),
        (["--output=FOLDER"], ("FOLDER is a folder", "--output")),
        (["--output=FOLDER/missing/file"], ("missing/file cannot be written", "FOLDER/missing is not a folder")),
        (["--output=FOLDER/trunk/config.json/file"], ("config.json is not a folder",)),
        (["--output=gs://bucket/file"], ("gs://bucket/file ", "object store", "local")),
        (["--max_length=129"], ("max_length is 129", "trunk")),
        (["--adapter=frist"], ('adapter "frist"', "store")),
        (["--adapter=first", "--fusion=first"], ("Both --adapter=first", "--fusion=first")),
        (["--head=frist"], ('head "frist"', "store")),
    ],
)
def test_bad_arguments_are_refused(
    arguments: list[str],
    facts: tuple[str, ...],
    make_model: MakeModel,
    tiny_trunk_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_model("first", {"first": FUSED["first"]}).save(tmp_path / "store")
    (tmp_path / "trunk").symlink_to(tiny_trunk_folder)
    before = sorted(tmp_path.rglob("*"))
    defaults = [
        f"--store={tmp_path / 'store'}",
        f"--trunk={tmp_path / 'trunk'}",
        "--head=first",
        f"--output={tmp_path}/file",
        *([] if any(argument.startswith(("--adapter", "--head")) for argument in arguments) else ["--adapter=first"]),
    ]
    capsys.readouterr()
    arguments = [argument.replace("FOLDER", str(tmp_path)) for argument in arguments]
    assert main(["export", "stablehlo", *defaults, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"afjax: [^\n]*\n", err)
    assert has_facts(err, *(fact.replace("FOLDER", str(tmp_path)) for fact in facts))
    assert sorted(tmp_path.rglob("*")) == before


def test_weights_too_large_for_one_file_are_refused(
    make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stablehlo, "MAX_WEIGHT_BYTES", 1000)
    with pytest.raises(UserError, match=r"one file.* 2 GiB"):
        export_stablehlo(make_model("first", {}), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []
