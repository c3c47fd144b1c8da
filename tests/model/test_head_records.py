"""A head records the adapter, fusion or trunk that it was trained with.

Using the head with anything else requires a flag.
"""

import dataclasses
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from afjax import share, store
from afjax.config.adapters import AdapterConfig
from afjax.errors import UserError
from afjax.interop.adapterhub import export_adapterhub
from afjax.model.loading import load_adapters, load_task_model
from afjax.model.saving import drafts
from afjax.model.stored import NoHeadError
from afjax.model.task_model import TaskModel
from afjax.serve.loading import names_with_heads
from afjax.store.manifest import to_json
from afjax.trunk.pretrained import Trunk
from tests.analysis.random_models import make

pytestmark = pytest.mark.slow

Load = Callable[..., TaskModel]
CONFIG = AdapterConfig(reduction_factor=8.0)


@pytest.fixture
def models(tiny_trunk: Trunk) -> dict[str, TaskModel]:
    """Makes models with adapter a, adapter b, a fusion of both, and only the trunk.

    Each model has its own head.
    """
    fused = make(tiny_trunk, CONFIG, names=("a", "b"), fused=True).renamed("mix")
    single = make(tiny_trunk, CONFIG)
    bare = dataclasses.replace(single.model, adapters=())
    return {
        "a": make(tiny_trunk, CONFIG, names=("a",)).renamed("a"),
        "b": make(tiny_trunk, CONFIG, names=("b",)).renamed("b"),
        "mix": fused,
        "bare": dataclasses.replace(single, model=bare, params={**single.params, "adapters": {}}).renamed("bare"),
    }


@pytest.fixture
def saved(models: dict[str, TaskModel], tmp_path: Path) -> Path:
    for model in models.values():
        model.save(tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def load(saved: Path, tiny_trunk: Trunk) -> Load:
    return lambda head, **parts: load_task_model(saved, tiny_trunk, head=head, **parts)


def test_heads_record_their_adapter_fusion_or_trunk(saved: Path, tiny_trunk: Trunk) -> None:
    def record(name: str) -> dict:
        return store.read_manifest(saved, "heads", name).trained_with

    adapter, fusion = (store.read_manifest(saved, *key).digest for key in (("adapters", "a"), ("fusion", "mix")))
    assert record("a") == {"kind": "adapters", "name": "a", "sha256": adapter}
    assert record("mix") == {"kind": "fusion", "name": "mix", "sha256": fusion}
    assert record("bare") == {"kind": "trunk", "name": tiny_trunk.name, "sha256": tiny_trunk.sha256}


def test_matching_adapter_fusion_or_trunk_loads_without_a_message(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    for head, parts in (("a", {"adapter": "a"}), ("mix", {"fusion": "mix"}), ("bare", {})):
        assert load(head, **parts).head_record is None
    assert "trained with" not in capsys.readouterr().err


def test_head_is_found_by_its_record(saved: Path, tiny_trunk: Trunk, models: dict[str, TaskModel]) -> None:
    store.save_all(saved, drafts(models["a"].renamed("other"), saved)[1:])
    assert load_task_model(saved, tiny_trunk, adapter="a").model.head_name == "a"
    assert load_task_model(saved, tiny_trunk, fusion="mix").model.head_name == "mix"
    shutil.rmtree(saved / "heads" / "a")
    assert load_task_model(saved, tiny_trunk, adapter="a").model.head_name == "other"
    shutil.rmtree(saved / "heads" / "other")
    # No head in the store was trained with the adapter, so --head does not help by itself.
    with pytest.raises(UserError, match=r"no head was .*--allow_mismatch"):
        load_task_model(saved, tiny_trunk, adapter="a")
    error = pickle.loads(pickle.dumps(NoHeadError("no head was trained", "train one")))
    assert (error.fact, str(error)) == ("no head was trained", "no head was trained; train one.")
    assert "--head" not in names_with_heads(saved)[1]["a"]
    with pytest.raises(UserError, match="adapter, fusion or head"):
        load_task_model(saved, tiny_trunk)


@pytest.mark.parametrize(
    ("head", "parts", "trained", "given"),
    [
        ("a", {"adapter": "b"}, 'the adapter "a"', 'the adapter "b"'),
        ("a", {}, 'the adapter "a"', "only the trunk"),
        ("a", {"fusion": "mix"}, 'the adapter "a"', 'the fusion "mix"'),
        ("mix", {"adapter": "a"}, 'the fusion "mix"', 'the adapter "a"'),
        ("mix", {}, 'the fusion "mix"', "only the trunk"),
        ("bare", {"adapter": "a"}, "only the trunk", 'the adapter "a"'),
    ],
)
def test_mismatch_is_refused_unless_allowed(
    load: Load, head: str, parts: dict[str, str], trained: str, given: str
) -> None:
    with pytest.raises(UserError) as raised:
        load(head, **parts)
    assert trained in str(raised.value)
    assert given in str(raised.value)
    load(head, **parts, allow_mismatch=True)


def test_retrained_adapter_does_not_match_the_head(
    saved: Path, load: Load, models: dict[str, TaskModel], tiny_trunk: Trunk
) -> None:
    other = make(tiny_trunk, CONFIG, names=("b",)).renamed("a")
    [adapter, _] = drafts(other, saved)
    store.save_all(saved, [adapter], overwrite=True)
    with pytest.raises(UserError, match=r'head "a" .*allow_mismatch=True'):
        load("a", adapter="a")


def test_head_without_a_record_is_used_with_a_message(
    saved: Path, load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved / "heads" / "a" / "manifest.json"
    path.write_text(to_json(dataclasses.replace(store.read_manifest(saved, "heads", "a"), trained_with={})))
    model = load("a", adapter="b")
    [line] = [line for line in capsys.readouterr().err.splitlines() if "trained with" in line]
    assert '"a"' in line
    # Saving the head does not add a record.
    model.renamed("again").save(saved)
    assert store.read_manifest(saved, "heads", "again").trained_with == {}


def test_renamed_adapter_still_matches_the_head(saved: Path, load: Load, tmp_path: Path) -> None:
    model = load("a", adapter="a").renamed("c")
    assert [name for name, _ in model.model.adapters] == ["c"]
    model.save(saved)
    assert store.read_manifest(saved, "heads", "c").trained_with["name"] == "c"
    load("a", adapter="c")
    load("c", adapter="a")


def test_renaming_a_fusion_keeps_the_names_of_its_adapters(models: dict[str, TaskModel]) -> None:
    renamed = models["mix"].renamed("x")
    assert (renamed.model.fusion_name, renamed.model.head_name) == ("x", "x")
    assert [name for name, _ in renamed.model.adapters] == ["a", "b"]


def test_renaming_does_not_change_logits(models: dict[str, TaskModel]) -> None:
    texts = [("all of them", "some"), ("none", "most")]
    expected = models["a"].predict(texts).logits
    np.testing.assert_array_equal(models["a"].renamed("x").predict(texts).logits, expected)


def test_head_matches_a_model_changed_after_loading(saved: Path, load: Load, tiny_trunk: Trunk, tmp_path: Path) -> None:
    mix = load("mix", fusion="mix")
    assert mix.without_adapters(["b"]).with_adapters(load_adapters(saved, ["b"], tiny_trunk)).head_record is None
    fewer = load("a", adapter="a").without_layers([0]).renamed("fewer")
    fewer.save(saved)
    load("fewer", adapter="fewer")
    with pytest.raises(UserError, match=r'head "fewer" .*adapter "a".*allow_mismatch=True'):
        load("fewer", adapter="a")


def test_allowed_mismatch_keeps_the_original_record(saved: Path, load: Load) -> None:
    model = load("a", adapter="b", allow_mismatch=True).renamed("odd")
    model.save(saved)
    assert store.read_manifest(saved, "heads", "odd").trained_with["name"] == "a"
    with pytest.raises(UserError, match=r'head "odd" .*adapter "a".*allow_mismatch=True'):
        load("odd", adapter="odd")


def test_only_a_matching_head_is_packed(saved: Path, tmp_path: Path) -> None:
    packed = share.pack(saved, "a", tmp_path / "a.tar")
    assert [manifest.kind for manifest in packed] == ["heads", "adapters"]
    share.unpack(tmp_path / "a.tar", tmp_path / "new", name="x")
    assert store.read_manifest(tmp_path / "new", "heads", "x").trained_with["name"] == "x"
    # Save another adapter under the name "a". The head "b" was trained with its parameters, the head "a" was not.
    other = dataclasses.replace(store.load(saved, "adapters", "b").manifest, name="a")
    params = store.load(saved, "adapters", "b").params
    store.save(saved, store.Draft("adapters", "a", params, config=other.config, trunk=other.trunk), overwrite=True)
    head, _ = share.pack(saved, "a", tmp_path / "other.tar")
    assert (head.name, head.digest) == ("a", store.read_manifest(saved, "heads", "b").digest)
    assert [part for part, _ in export_adapterhub(saved, "a", tmp_path / "out")] == ["adapter a", "head b"]
    shutil.rmtree(saved / "heads" / "b")
    assert [part for part, _ in export_adapterhub(saved, "a", tmp_path / "without")] == ["adapter a"]
    assert [manifest.kind for manifest in share.pack(saved, "a", tmp_path / "without.tar")] == ["adapters"]


def test_packing_removes_the_path_of_the_trunk_folder(saved: Path, tiny_trunk: Trunk, tmp_path: Path) -> None:
    assert tiny_trunk.name.encode() in (saved / "heads" / "bare" / "manifest.json").read_bytes()
    share.pack(saved, "bare", tmp_path / "bare.tar")
    assert tiny_trunk.name.encode() not in (tmp_path / "bare.tar").read_bytes()
