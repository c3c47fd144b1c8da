"""Models imported from AdapterHub's folders have the outputs of its library."""

import importlib.util
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from afjax import store
from afjax.interop.adapterhub import import_adapterhub
from afjax.model.loading import load_task_model
from tests.interop.adapterhub_folders import Folders

pytestmark = pytest.mark.slow

LIMIT = 1e-5
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")

ADAPTERS = """
pfeiffer pfeiffer_attention pfeiffer_both houlsby original_ln_after original_ln_before
original_ln_before_residual_input original_ln_before_residual_sum original_ln_none residual_input residual_sum
ln_before ln_after ln_after_residual_first ln_both houlsby_ln_both leakyrelu swish gelu gelu_new tanh scaling
scaling_ln_after leave_out one_unit everything factor_per_layer scaling_learned scaling_channel dropout
""".split()
FUSIONS = "pfeiffer houlsby static ln_before scaling_ln_after residual_input original_ln_before_residual_sum".split()
HEADS = """
two_layers one_layer pooler pooler_and_layer three_layers gelu_layers no_bias dropout regression choices choices_pooler
span span_two_layers static_classification static_regression static_choices static_span
""".split()
OLD = [
    f"{case}_{year}" for case in ("pfeiffer", "houlsby", "gelu", "gelu_new", "ln_before") for year in (2020, 2021, 2023)
]
OLD_FUSIONS = [f"fusion_{year}" for year in (2020, 2021, 2023)]


def check_close(ours: jax.Array, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    assert np.abs(np.asarray(ours) - theirs).max() < LIMIT


def outputs(folders: Folders, store_folder: Path, **names: str):
    task_model = load_task_model(store_folder, folders.trunk, **names)
    params = {"trunk": folders.trunk.params, **task_model.params}
    batch = folders.batch
    if task_model.task.kind == "multiple_choice":
        batch = {name: array[None] for name, array in batch.items()}
    return task_model.model(params, batch, fusion_attention="fusion" in names)


def check_same_entries(one: Path, other: Path) -> None:
    ours, theirs = store.entries(one), store.entries(other)
    assert [(entry.kind, entry.name, entry.config, entry.digest) for entry in ours] == [
        (entry.kind, entry.name, entry.config, entry.digest) for entry in theirs
    ]


def test_all_cases_are_tested(folders: Folders) -> None:
    found = {kind: {path.name for path in (folders.root / kind).iterdir()} for kind in ("adapters", "fusion", "heads")}
    assert found == {"adapters": set(ADAPTERS), "fusion": set(FUSIONS), "heads": set(HEADS)}
    assert {path.name for path in (folders.root / "old").iterdir()} == {*OLD, *OLD_FUSIONS}


@pytest.mark.parametrize("case", [f"adapters/{name}" for name in ADAPTERS] + [f"old/{name}" for name in OLD])
def test_imported_adapters_reproduce_the_library_logits(folders: Folders, tmp_path: Path, case: str) -> None:
    (imported,) = import_adapterhub(folders.root / case / "safetensors", tmp_path, trunk=folders.trunk)
    assert (imported.kind, imported.name) == ("adapters", "a")
    import_adapterhub(folders.root / "heads/two_layers/safetensors", tmp_path, trunk=folders.trunk)
    check_close(outputs(folders, tmp_path, adapter="a", head="two_layers").logits, folders.expected(case)["logits"])


@pytest.mark.parametrize("case", [f"fusion/{name}" for name in FUSIONS] + [f"old/{name}" for name in OLD_FUSIONS])
def test_imported_fusions_reproduce_the_library_logits_and_attention(
    folders: Folders, tmp_path: Path, case: str
) -> None:
    imported = import_adapterhub(folders.root / case / "safetensors", tmp_path, trunk=folders.trunk, name="abc")
    assert [(artifact.kind, artifact.name) for artifact in imported] == [
        ("adapters", "a"),
        ("adapters", "b"),
        ("adapters", "c"),
        ("fusion", "abc"),
        ("heads", "two_layers"),
    ]
    assert store.verify(tmp_path) == []
    found, expected = outputs(folders, tmp_path, fusion="abc", head="two_layers"), folders.expected(case)
    check_close(found.logits, expected["logits"])
    theirs = {name: array for name, array in expected.items() if name != "logits"}
    ours = {
        f"attention/{layer}/{slot}": attention
        for slot, layers in found.fusion_attention.items()
        for layer, attention in enumerate(layers)
    }
    assert ours.keys() == theirs.keys()
    for name, attention in ours.items():
        check_close(attention, theirs[name])


def test_fusion_with_a_custom_name_is_imported(bert: Folders, tmp_path: Path) -> None:
    # The library names the folder after the fusion, and does not write the name to adapter_setup.json.
    setup = Path(shutil.copytree(bert.root / "fusion/pfeiffer/safetensors", tmp_path / "setup"))
    folder = (setup / "a,b,c").rename(setup / "mine")
    path = folder / "adapter_fusion_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "name": "mine"}))
    path = folder / "model_adapter_fusion.safetensors"
    save_file({key.replace(".a,b,c.", ".mine."): tensor for key, tensor in load_file(path).items()}, path)
    imported = import_adapterhub(setup, tmp_path / "default_name", trunk=bert.trunk)
    assert [artifact.name for artifact in imported if artifact.kind == "fusion"] == ["mine"]
    import_adapterhub(setup, tmp_path / "other_name", trunk=bert.trunk, name="abc")
    import_adapterhub(bert.root / "fusion/pfeiffer/safetensors", tmp_path / "expected", trunk=bert.trunk, name="abc")
    check_same_entries(tmp_path / "other_name", tmp_path / "expected")


@pytest.mark.parametrize("name", HEADS)
def test_imported_heads_reproduce_the_library_logits(folders: Folders, tmp_path: Path, name: str) -> None:
    source = folders.root / "heads" / name / "safetensors"
    (imported,) = import_adapterhub(source, tmp_path, trunk=folders.trunk, name="head")
    check_close(outputs(folders, tmp_path, head="head").logits, folders.expected(f"heads/{name}")["logits"])
    # The file of a static head could also be from a multi-label task.
    assert any("problem_type" in note for note in imported.notes) == (name == "static_classification")


@needs_torch
@pytest.mark.parametrize("kind", ["adapters", "fusion", "heads", "old"])
def test_pickled_files_give_the_same_artifacts(folders: Folders, tmp_path: Path, kind: str) -> None:
    for case in sorted((folders.root / kind).iterdir()):
        name = "" if kind == "adapters" else "imported"
        for weights in ("safetensors", "bin"):
            import_adapterhub(case / weights, tmp_path / weights / case.name, trunk=folders.trunk, name=name)
        check_same_entries(tmp_path / "safetensors" / case.name, tmp_path / "bin" / case.name)
