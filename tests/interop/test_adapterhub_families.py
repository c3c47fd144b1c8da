"""AdapterHub's folders for encoders other than BERT and RoBERTa are supported."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from facts import has_facts
from safetensors.numpy import load_file

from afjax import store
from afjax.errors import UserError
from afjax.interop.adapterhub import export_adapterhub, import_adapterhub
from afjax.interop.adapterhub.families import LIBRARY_FAMILIES
from afjax.model.loading import load_task_model
from afjax.model.stored import recorded_head
from afjax.trunk.families import ENCODER_FAMILIES
from tests.interop.adapterhub_folders import Folders, unpack

pytestmark = pytest.mark.slow

LIMIT = 1e-5
ADAPTERS = ("pfeiffer", "houlsby", "everything", "leave_out")
FUSIONS = ("pfeiffer", "houlsby")
HEADS = ("two_layers", "span", "static_classification", "static_regression", "static_choices", "static_span")


@pytest.fixture(scope="module", params=["xlm_roberta", "distilbert", "electra", "deberta_v2"])
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return unpack(request.param, tmp_path_factory.mktemp(request.param))


def check_outputs(folders: Folders, store_folder: Path, case: str, **names: str) -> None:
    """Compares the logits and the fusion attention with the library's outputs."""
    task_model = load_task_model(store_folder, folders.trunk, **names)
    params, batch = {"trunk": folders.trunk.params, **task_model.params}, folders.batch
    if task_model.task.kind == "multiple_choice":
        batch = {name: array[None] for name, array in batch.items()}
    found = task_model.model(params, batch, fusion_attention="fusion" in names)
    ours = {"logits": found.logits}
    for slot, layers in found.fusion_attention.items():
        ours |= {f"attention/{layer}/{slot}": attention for layer, attention in enumerate(layers)}
    expected = folders.expected(case)
    assert ours.keys() == expected.keys()
    for name, array in expected.items():
        assert ours[name].shape == array.shape
        differences = np.abs(np.asarray(ours[name]) - array)
        if folders.trunk.config.relative_buckets and array.ndim == 3:
            # For DeBERTa, the library's hidden states of padding tokens differ (see docs/how_to/encoders.md).
            differences = differences[batch["mask"]]
        assert differences.max() < LIMIT, name


def check_same_files(ours: Path, theirs: Path, *, kinds: tuple[str, ...]) -> None:
    """Compares exported files with the library's files.

    It compares the names and values of the tensors, and the envelopes of the JSON files.
    """
    for kind in kinds:
        for path in theirs.rglob(f"{kind}.safetensors"):
            exported_path = ours / path.relative_to(theirs)
            found, expected = load_file(exported_path), load_file(path)
            # The library selects tensors by substrings of their names, so its file can have more tensors.
            assert found.keys() <= expected.keys()
            for name, tensor in found.items():
                np.testing.assert_array_equal(tensor, expected[name])
    for path in theirs.rglob("*_config.json"):
        exported_path = ours / path.relative_to(theirs)
        found, expected = (json.loads(file.read_text()) for file in (exported_path, path))
        for key in ("hidden_size", "model_class", "model_type"):
            assert found[key] == expected[key]


def check_other_activation_is_refused(folders: Folders, source: Path, tmp_path: Path) -> None:
    """Checks that the trunk's ``config.json`` decides whether a static head can be imported."""
    (tmp_path / "config.json").write_text(json.dumps({"pooler_hidden_act": "tanh"}))
    trunk = dataclasses.replace(folders.trunk, folder=tmp_path)
    with pytest.raises(UserError) as raised:
        import_adapterhub(source, tmp_path / "other", trunk=trunk, name="head")
    assert has_facts(str(raised.value), 'pooler_hidden_act="tanh"', '"gelu"', "DebertaV2ForSequenceClassification")
    assert not (tmp_path / "other").exists()


def test_all_cases_are_tested(folders: Folders) -> None:
    found = {kind: {path.name for path in (folders.root / kind).iterdir()} for kind in ("adapters", "fusion", "heads")}
    assert found == {"adapters": set(ADAPTERS), "fusion": set(FUSIONS), "heads": set(HEADS)}


@pytest.mark.parametrize("case", ADAPTERS)
def test_adapters_match_the_library(folders: Folders, tmp_path: Path, case: str) -> None:
    source = folders.root / "adapters" / case / "safetensors"
    import_adapterhub(source, tmp_path / "store", trunk=folders.trunk)
    import_adapterhub(folders.root / "heads/two_layers/safetensors", tmp_path / "store", trunk=folders.trunk)
    check_outputs(folders, tmp_path / "store", f"adapters/{case}", adapter="a", head="two_layers")
    export_adapterhub(tmp_path / "store", "a", tmp_path / "exported", head=None)
    check_same_files(tmp_path / "exported", source, kinds=("adapter",))


@pytest.mark.parametrize("case", FUSIONS)
def test_fusions_match_the_library(folders: Folders, tmp_path: Path, case: str) -> None:
    source = folders.root / "fusion" / case / "safetensors"
    import_adapterhub(source, tmp_path / "store", trunk=folders.trunk, name="abc")
    assert store.verify(tmp_path / "store") == []
    # The head is recorded as the fusion's, under any name.
    assert recorded_head(tmp_path / "store", "fusion", "abc") == "two_layers"
    check_outputs(folders, tmp_path / "store", f"fusion/{case}", fusion="abc", head="two_layers")
    exported = tmp_path / "exported"
    export_adapterhub(tmp_path / "store", "abc", exported, kind="fusion", head=None)
    # A fusion is only exported with the head of the same name, so use the library's file of this head.
    (exported / "two_layers").symlink_to(source / "two_layers")
    check_same_files(exported, source, kinds=("adapter", "model_adapter_fusion"))


@pytest.mark.parametrize("case", HEADS)
def test_heads_match_the_library(folders: Folders, tmp_path: Path, case: str) -> None:
    source = folders.root / "heads" / case / "safetensors"
    import_adapterhub(source, tmp_path / "store", trunk=folders.trunk, name="head")
    check_outputs(folders, tmp_path / "store", f"heads/{case}", head="head")
    if folders.trunk.config.relative_buckets and case == "static_classification":
        check_other_activation_is_refused(folders, source, tmp_path)
    if case in ("two_layers", "span"):
        export_adapterhub(tmp_path / "store", "head", tmp_path / "exported", kind="head")
        check_same_files(tmp_path / "exported", source, kinds=())


def test_library_families_are_encoder_families() -> None:
    assert LIBRARY_FAMILIES.keys() <= ENCODER_FAMILIES.keys()
