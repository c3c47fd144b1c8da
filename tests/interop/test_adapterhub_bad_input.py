"""Invalid AdapterHub folders are refused, and the store stays unchanged."""

import dataclasses
import importlib.util
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facts import has_facts
from safetensors.numpy import load_file, save_file

from afjax import store
from afjax.cli.main import main
from afjax.errors import UserError
from afjax.interop.adapterhub import export_adapterhub, import_adapterhub
from afjax.store import checkpoint
from tests.interop.adapterhub_folders import Folders

pytestmark = pytest.mark.slow

Change = Callable[[dict[str, Any]], Any]
has_torch = importlib.util.find_spec("torch") is not None


@pytest.fixture
def adapter(bert: Folders, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bert.root / "adapters/pfeiffer/safetensors", tmp_path / "adapter"))


@pytest.fixture
def setup(bert: Folders, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bert.root / "fusion/pfeiffer/safetensors", tmp_path / "setup"))


def change_json(path: Path, change: Change) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def change_tensors(path: Path, change: Change) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def refused(bert: Folders, source: Path, store_folder: Path, *expected: str, **options: Any) -> None:
    with pytest.raises(UserError) as error:
        import_adapterhub(source, store_folder, trunk=bert.trunk, **options)
    message = str(error.value)
    for words in expected:
        assert words in message, message
    assert "\n" not in message
    assert not store_folder.exists() or store.entries(store_folder) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"use_gating": True}, "use_gating=True"),
        ({"phm_layer": True}, "phm_layer=True"),
        ({"is_parallel": True}, "is_parallel=True"),
        ({"architecture": "prefix_tuning"}, '"prefix_tuning"'),
        ({"architecture": "lora"}, '"lora"'),
        ({"inv_adapter": "nice", "inv_adapter_reduction_factor": 2}, "invertible adapter"),
        ({"non_linearity": "mish"}, '"mish"'),
        ({"residual_before_ln": "later"}, "'later'"),
        ({"scaling": "wild"}, "'wild'"),
        ({"reduction_factor": {"0": 4}}, "reduction_factor={'0': 4}"),
        ({"reduction_factor": 0}, "reduction_factor=0"),
        ({"reduction_factor": 1e-320}, "reduction_factor=1e-320"),
        ({"leave_out": [0, 1]}, "(2 layers)"),
        ({"leave_out": 1}, "leave_out=1"),
        ({"residual_before_ln": []}, "residual_before_ln=[]"),
        ({"mh_adapter": False, "output_adapter": False}, "neither mh_adapter nor output_adapter"),
        ({"original_ln_before": False, "residual_before_ln": "post_add"}, '"post_add" without original_ln_before'),
        ({"loops": 3}, ": loops"),
    ],
)
def test_unsupported_settings_are_refused(
    bert: Folders, adapter: Path, tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    change_json(adapter / "adapter_config.json", lambda values: values["config"].update(change))
    refused(bert, adapter, tmp_path / "store", "adapter_config.json", expected)


def test_other_models_and_sizes_are_refused(bert: Folders, adapter: Path, tmp_path: Path) -> None:
    path = adapter / "adapter_config.json"
    change_json(path, lambda values: values.update(model_type="gpt2"))
    refused(bert, adapter, tmp_path / "store", '"gpt2" model', '"bert" model')
    change_json(path, lambda values: values.update(model_type="bert", hidden_size=768))
    refused(bert, adapter, tmp_path / "store", "hidden size of 768", "the trunk's is 32")
    # The hidden size is now correct, but the reduction factor does not fit the weights.
    change_json(path, lambda values: values.update(hidden_size=32))
    change_json(path, lambda values: values["config"].update(reduction_factor=8))
    refused(bert, adapter, tmp_path / "store", "adapter_down.0.weight [8, 32] (expected: [4, 32])")
    path.write_text('{"peft_type": "LORA"}')
    refused(bert, adapter, tmp_path / "store", "PEFT", "LORA")
    for contents, words in {
        "{": "not JSON",
        "[]": "object",
        "[" * 100_000: "levels deep",
        "9" * 5_000: "not valid JSON",
    }.items():
        path.write_text(contents)
        refused(bert, adapter, tmp_path / "store", str(path), words)


def test_unsupported_trunk_families_are_refused(bert: Folders, adapter: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(bert.trunk.config, family="mpnet", type_vocab_size=0)
    trunk = dataclasses.replace(bert.trunk, config=config)
    with pytest.raises(UserError) as raised:
        import_adapterhub(adapter, tmp_path / "store", trunk=trunk)
    assert has_facts(str(raised.value), '"mpnet"', "bert, roberta")
    import_adapterhub(adapter, tmp_path / "store", trunk=bert.trunk)
    stored = store.load(tmp_path / "store", "adapters", "a")
    identity = {**stored.manifest.trunk, "family": "mpnet"}
    store.save(
        tmp_path / "other", store.Draft("adapters", "a", stored.params, config=stored.manifest.config, trunk=identity)
    )
    with pytest.raises(UserError) as raised:
        export_adapterhub(tmp_path / "other", "a", tmp_path / "exported")
    assert has_facts(str(raised.value), '"mpnet"', "bert, roberta")
    assert not (tmp_path / "exported").exists()


def test_missing_and_unexpected_tensors_are_refused(bert: Folders, adapter: Path, tmp_path: Path) -> None:
    path = adapter / "adapter.safetensors"
    prefix = "bert.encoder.layer.1.output.adapters.a."

    def tamper(tensors: dict[str, np.ndarray]) -> None:
        del tensors[prefix + "adapter_up.bias"]
        tensors[prefix + "gate.weight"] = np.zeros((1, 32), np.float32)

    change_tensors(path, tamper)
    refused(bert, adapter, tmp_path / "store", "-layer 1 output adapter_up.bias", "+layer 1 output gate.weight")
    change_tensors(path, lambda tensors: tensors.update({"bert.pooler.weight": np.zeros(1, np.float32)}))
    refused(bert, adapter, tmp_path / "store", "other modules", "bert.pooler.weight")
    change_json(adapter / "adapter_config.json", lambda values: values.update(name="b"))
    change_tensors(path, lambda tensors: tensors.pop("bert.pooler.weight"))
    refused(bert, adapter, tmp_path / "store", 'is for "b"', "are for a")


def test_damaged_weights_are_refused(bert: Folders, adapter: Path, tmp_path: Path) -> None:
    path = adapter / "adapter.safetensors"
    contents = path.read_bytes()
    for damaged in (b"", contents[:100], b"\xff" * 16 + contents[16:], contents[:8] + b"[" + contents[9:]):
        path.write_bytes(damaged)
        refused(bert, adapter, tmp_path / "store", str(path), "cannot be read")
    path.unlink()
    refused(bert, adapter, tmp_path / "store", "no weights", "adapter.safetensors", "pytorch_adapter.bin")


def test_weights_in_both_formats_are_refused(bert: Folders, adapter: Path, tmp_path: Path) -> None:
    (adapter / "pytorch_adapter.bin").write_bytes(b"newer")
    refused(bert, adapter, tmp_path / "store", str(adapter), "both", "adapter.safetensors", "pytorch_adapter.bin")


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_code_in_a_pickle_is_not_run(bert: Folders, adapter: Path, tmp_path: Path) -> None:
    (adapter / "adapter.safetensors").unlink()
    done = tmp_path / "done"
    (adapter / "pytorch_adapter.bin").write_bytes(pickle.dumps({"weight": Evil(done)}))
    expected = "not executed" if has_torch else "PyTorch is not installed"
    refused(bert, adapter, tmp_path / "store", "pytorch_adapter.bin", expected)
    assert not done.exists()


def test_invertible_adapter_is_dropped_from_task_adapters_and_refused_in_language_adapters(
    bert: Folders, tmp_path: Path
) -> None:
    adapter = Path(shutil.copytree(bert.root / "old/pfeiffer_2020/safetensors", tmp_path / "adapter"))
    weights = {"bert.invertible_lang_adapters.a.F.0.weight": np.zeros((8, 16), np.float32)}
    change_tensors(adapter / "adapter.safetensors", lambda tensors: tensors.update(weights))
    (imported,) = import_adapterhub(adapter, tmp_path / "task", trunk=bert.trunk)
    assert "invertible adapter" in imported.notes[0]
    change_json(adapter / "adapter_config.json", lambda values: values.update(type="text_lang"))
    refused(bert, adapter, tmp_path / "store", "invertible adapter")


def test_unknown_or_mismatched_named_configs_are_refused(bert: Folders, adapter: Path, tmp_path: Path) -> None:
    path = adapter / "adapter_config.json"
    change_json(path, lambda values: values.update(config="compacter"))
    refused(bert, adapter, tmp_path / "store", '"compacter"', "pfeiffer")
    change_json(path, lambda values: values.update(config="pfeiffer"))
    # The reduction factor of "pfeiffer" is 16, but these weights have a reduction factor of 4.
    refused(bert, adapter, tmp_path / "store", "adapter_down.0.weight [8, 32] (expected: [2, 32])")


def test_unnamed_head_takes_the_name_of_its_adapter(bert: Folders, adapter: Path, tmp_path: Path) -> None:
    shutil.copytree(bert.root / "heads/static_classification/safetensors", adapter, dirs_exist_ok=True)
    imported = import_adapterhub(adapter, tmp_path / "store", trunk=bert.trunk)
    assert [(artifact.kind, artifact.name) for artifact in imported] == [("adapters", "a"), ("heads", "a")]
    assert store.read_manifest(tmp_path / "store", "heads", "a").labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_adapter_is_imported_from_the_hub(
    bert: Folders, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    def answer(repo: str, allow_patterns: list[str]) -> str:
        if repo == "user/adapter":
            return str(adapter)
        raise HFValidationError("no such name") if repo == "user/-" else LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", answer)
    refused(bert, Path("user/-"), tmp_path / "store", '"user/-"', "neither")
    refused(bert, Path("user/other"), tmp_path / "store", '"user/other"', "not respond")
    assert import_adapterhub("user/adapter", tmp_path / "store", trunk=bert.trunk)[0].name == "a"


def test_contradicting_copies_of_a_layer_norm_are_refused(bert: Folders, tmp_path: Path) -> None:
    adapter = Path(shutil.copytree(bert.root / "adapters/ln_before/safetensors", tmp_path / "adapter"))

    def tamper(tensors: dict[str, np.ndarray]) -> None:
        tensors["bert.encoder.layer.0.output.adapters.a.adapter_down.0.bias"] += 1

    change_tensors(adapter / "adapter.safetensors", tamper)
    refused(bert, adapter, tmp_path / "store", "adapter_norm_before and adapter_down.0", "differ")


def test_invalid_names_are_refused(bert: Folders, adapter: Path, setup: Path, tmp_path: Path) -> None:
    for name in ("a/b", "..", "a,b", "../a", ".a", "a:b"):
        refused(bert, adapter, tmp_path / "store", f'"{name}" cannot be used', name=name)
    change_json(adapter / "adapter_config.json", lambda values: values.update(name=""))
    change_tensors(adapter / "adapter.safetensors", lambda tensors: None)
    refused(bert, adapter, tmp_path / "store", 'is for ""')
    # The library names fusions after their adapters.
    refused(bert, setup, tmp_path / "store", '"a,b,c" cannot be used', "--name")
    path = setup / "adapter_setup.json"
    change_json(path, lambda values: values["adapter_setup"]["children"][0].update(children=["../a"]))
    refused(bert, setup, tmp_path / "store", '"../a" cannot be used', name="f")


def test_fusion_without_its_adapters_is_refused(bert: Folders, setup: Path, tmp_path: Path) -> None:
    refused(bert, setup / "a,b,c", tmp_path / "store", 'adapter "a"', "import", name="f")
    shutil.rmtree(setup / "b")
    refused(bert, setup, tmp_path / "store", "b/adapter_config.json ", "not exist", name="f")


def test_fusion_uses_adapters_that_are_already_in_the_store(bert: Folders, setup: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        import_adapterhub(setup / name, tmp_path / "store", trunk=bert.trunk)
    change_json(setup / "a,b,c/adapter_fusion_config.json", lambda values: values.pop("adapter_names"))
    import_adapterhub(setup / "a,b,c", tmp_path / "store", trunk=bert.trunk, name="f")
    members = store.read_manifest(tmp_path / "store", "fusion", "f").adapters
    assert [member["name"] for member in members] == ["a", "b", "c"]
    assert store.verify(tmp_path / "store") == []


def test_other_fusions_and_heads_in_a_file_are_ignored(bert: Folders, setup: Path, tmp_path: Path) -> None:
    # The library selects the tensors to save by substring, so its file for "a,b" also has the tensors of "a,b,c".
    for path in (setup / "a,b,c/model_adapter_fusion.safetensors", setup / "two_layers/model_head.safetensors"):

        def add(tensors: dict[str, np.ndarray]) -> None:
            for key in list(tensors):
                tensors[key.replace("a,b,c", "a,b,c,d").replace("two_layers", "two_layers_b")] = tensors[key] + 1

        change_tensors(path, add)
    import_adapterhub(setup, tmp_path / "store", trunk=bert.trunk, name="f")
    import_adapterhub(bert.root / "fusion/pfeiffer/safetensors", tmp_path / "plain", trunk=bert.trunk, name="f")
    for kind, name in (("fusion", "f"), ("heads", "two_layers")):
        ours, theirs = (store.read_manifest(tmp_path / folder, kind, name) for folder in ("store", "plain"))
        assert ours.digest == theirs.digest


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"residual_before": True}, "residual_before=True"),
        ({"query": False}, "query=False"),
        ({"query_before_ln": True}, "query_before_ln=true"),
        ({"heads": 4}, ": heads"),
        ({"value": False}, "+layer 0 output value.weight"),
    ],
)
def test_unsupported_fusions_are_refused(
    bert: Folders, setup: Path, tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    change_json(setup / "a,b,c/adapter_fusion_config.json", lambda values: values["config"].update(change))
    refused(bert, setup, tmp_path / "store", expected, name="f")


def test_temperature_setting_is_noted(bert: Folders, setup: Path, tmp_path: Path) -> None:
    change_json(setup / "a,b,c/adapter_fusion_config.json", lambda values: values["config"].update(temperature=True))
    imported = import_adapterhub(setup, tmp_path / "store", trunk=bert.trunk, name="f")
    assert ["temperature" in " ".join(artifact.notes) for artifact in imported] == [False, False, False, True, False]


@pytest.mark.parametrize("kind", ["Stack", "Parallel", "Average"])
def test_unsupported_compositions_are_refused(bert: Folders, setup: Path, tmp_path: Path, kind: str) -> None:
    change_json(setup / "adapter_setup.json", lambda values: values["adapter_setup"].update(type=kind))
    refused(bert, setup, tmp_path / "store", f"composes adapters as {kind}", name="f")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"head_type": "dependency_parsing"}, '"dependency_parsing"'),
        ({"activation_function": "mish"}, '"mish"'),
        ({"activation_function": None}, "without an activation"),
        ({"layers": 0}, "layers=0"),
        ({"layers": 10**12}, "layers=1000000000000"),
        ({"num_labels": 10**12, "label2id": None}, "num_labels=1000000000000"),
        ({"layers": 1}, "+heads.two_layers.4.weight"),
        ({"num_labels": 4, "label2id": None}, "[3, 32] (expected: [4, 32])"),
        ({"label2id": {"a": 0, "b": 1, "c": 3}}, "number 3 labels"),
        ({"label2id": {"a": 0, "b": 1, "c": "two"}}, "number 3 labels"),
        ({"label2id": {"a": 0, "": 1, "c": 2}}, "empty label name"),
        ({"dropout_prob": "much"}, "dropout_prob is 'much'"),
    ],
)
def test_unsupported_heads_are_refused(bert: Folders, tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    head = Path(shutil.copytree(bert.root / "heads/two_layers/safetensors", tmp_path / "head"))
    change_json(head / "head_config.json", lambda values: values["config"].update(change))
    refused(bert, head, tmp_path / "store", expected)


def test_unsupported_static_heads_are_refused(bert: Folders, tmp_path: Path) -> None:
    head = Path(shutil.copytree(bert.root / "heads/static_span/safetensors", tmp_path / "head"))
    refused(bert, head, tmp_path / "store", "no name", "--name")
    change_json(head / "head_config.json", lambda values: values.update(model_class="BertForMaskedLM"))
    refused(bert, head, tmp_path / "store", "BertForMaskedLM", name="h")


def test_existing_name_is_refused_without_overwrite(bert: Folders, adapter: Path, setup: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    import_adapterhub(adapter, folder, trunk=bert.trunk, name="c")
    before = store.entries(folder)
    with pytest.raises(UserError, match="--overwrite"):
        import_adapterhub(setup, folder, trunk=bert.trunk, name="f")
    assert store.entries(folder) == before
    import_adapterhub(setup, folder, trunk=bert.trunk, name="f", overwrite=True)
    assert store.verify(folder) == []


def test_duplicate_head_in_a_setup_is_refused(bert: Folders, setup: Path, tmp_path: Path) -> None:
    change_json(setup / "adapter_setup.json", lambda values: values.update(head_setup=["two_layers", "two_layers"]))
    refused(bert, setup, tmp_path / "store", "heads/two_layers twice", name="f")


@pytest.mark.parametrize("children", [None, [], ["a", "b"], "a", {}])
def test_nested_compositions_are_refused(bert: Folders, setup: Path, tmp_path: Path, children: Any) -> None:
    change_json(
        setup / "adapter_setup.json", lambda values: values["adapter_setup"]["children"][0].update(children=children)
    )
    refused(bert, setup, tmp_path / "store", "nests compositions", name="f")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"seed": "x"}, "afjax.seed is 'x'"),
        ({"task": 5}, "afjax.task is 5"),
        ({"task": {"name": "t", "kind": "chess"}}, 'afjax.task.kind is "chess"'),
        ({"metrics": [1]}, "afjax.metrics is [1]"),
        ({"config": 5}, "afjax.config is 5"),
    ],
)
@pytest.mark.parametrize("file", ["a/adapter_config.json", "a,b,c/adapter_fusion_config.json", "f/head_config.json"])
def test_afjax_fields_are_checked_before_anything_is_stored(
    bert: Folders, setup: Path, tmp_path: Path, file: str, change: dict[str, Any], expected: str
) -> None:
    import_adapterhub(setup, tmp_path / "first", trunk=bert.trunk, name="f")
    import_adapterhub(bert.root / "heads/two_layers/safetensors", tmp_path / "first", trunk=bert.trunk, name="f")
    export_adapterhub(tmp_path / "first", "f", tmp_path / "out")
    change_json(tmp_path / "out" / file, lambda values: values["afjax"].update(change))
    refused(bert, tmp_path / "out", tmp_path / "store", f"{file}: {expected}")


@pytest.mark.parametrize("max_length", ["x", 0, 10**6])
def test_invalid_max_length_of_a_head_is_refused(bert: Folders, tmp_path: Path, max_length: Any) -> None:
    head = Path(shutil.copytree(bert.root / "heads/two_layers/safetensors", tmp_path / "head"))
    import_adapterhub(head, tmp_path / "first", trunk=bert.trunk)
    export_adapterhub(tmp_path / "first", "two_layers", tmp_path / "out")
    change_json(tmp_path / "out/head_config.json", lambda values: values["afjax"].update(max_length=max_length))
    refused(bert, tmp_path / "out", tmp_path / "store", f"max_length is {max_length!r}")


def test_label_names_of_the_library_replace_those_of_the_task(bert: Folders, tmp_path: Path) -> None:
    head = Path(shutil.copytree(bert.root / "heads/two_layers/safetensors", tmp_path / "head"))
    import_adapterhub(head, tmp_path / "first", trunk=bert.trunk)
    export_adapterhub(tmp_path / "first", "two_layers", tmp_path / "out")
    path = tmp_path / "out/head_config.json"
    labels = list(json.loads(path.read_text())["config"]["label2id"])
    change_json(path, lambda values: values["afjax"]["task"].update(labels=labels[::-1]))
    import_adapterhub(tmp_path / "out", tmp_path / "changed", trunk=bert.trunk)
    change_json(path, lambda values: values["afjax"]["task"].update(labels=labels))
    import_adapterhub(tmp_path / "out", tmp_path / "same", trunk=bert.trunk)
    changed, same = (store.read_manifest(tmp_path / name, "heads", "two_layers") for name in ("changed", "same"))
    assert list(changed.labels) == list(same.labels) == labels
    assert (changed.task["labels"], same.task["labels"]) == ([], labels)


def test_interrupted_import_leaves_nothing_in_the_store(
    bert: Folders, setup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, original = tmp_path / "store", checkpoint.write
    written: list[Any] = []

    def write(target: Any, params: Any) -> Any:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(target)
        return original(target, params)

    monkeypatch.setattr(checkpoint, "write", write)
    with pytest.raises(KeyboardInterrupt):
        import_adapterhub(setup, folder, trunk=bert.trunk, name="f")
    assert store.folders(folder) == []


def test_repeated_import_adds_missing_artifacts(bert: Folders, setup: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    import_adapterhub(setup, folder, trunk=bert.trunk, name="f")
    shutil.rmtree(folder / "fusion")
    shutil.rmtree(folder / "heads")
    before = [store.read_manifest(folder, "adapters", name) for name in ("a", "b")]
    import_adapterhub(setup, folder, trunk=bert.trunk, name="f")
    assert store.verify(folder) == []
    assert [store.read_manifest(folder, "adapters", name) for name in ("a", "b")] == before
    # A fusion with a new name reuses the stored adapters. An existing name is refused.
    shutil.rmtree(setup / "two_layers")
    change_json(setup / "adapter_setup.json", lambda values: values.update(head_setup=None))
    import_adapterhub(setup, folder, trunk=bert.trunk, name="g")
    with pytest.raises(UserError, match="already exists"):
        import_adapterhub(setup, folder, trunk=bert.trunk, name="g")


def test_afjax_fields_must_agree_with_the_library_config(bert: Folders, adapter: Path, tmp_path: Path) -> None:
    import_adapterhub(adapter, tmp_path / "first", trunk=bert.trunk)
    export_adapterhub(tmp_path / "first", "a", tmp_path / "out")
    change_json(tmp_path / "out/adapter_config.json", lambda values: values["config"].update(non_linearity="gelu"))
    refused(bert, tmp_path / "out", tmp_path / "store", "differ in non_linearity")


def test_missing_folder_or_setup_is_refused(bert: Folders, setup: Path, tmp_path: Path) -> None:
    refused(bert, tmp_path / "nowhere", tmp_path / "store", "is not a folder")
    (setup / "adapter_setup.json").unlink()
    refused(bert, setup, tmp_path / "store", "not an adapter", "a, a,b,c, b, c")


def test_import_and_export_commands(
    tiny_trunk_folder: Path, bert: Folders, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "store")
    # The file does not name its trunk, so the command needs --trunk.
    assert main(["import", "adapterhub", str(adapter), f"--store={folder}"]) == 2
    assert has_facts(capsys.readouterr().err, str(adapter), "not record", "trunk", "--trunk")
    change_json(adapter / "adapter_config.json", lambda values: values.update(model_name="/nowhere/bert"))
    assert main(["import", "adapterhub", str(adapter), f"--store={folder}"]) == 2
    assert has_facts(capsys.readouterr().err, '"/nowhere/bert"', "cannot be loaded", "--trunk")
    change_json(adapter / "adapter_config.json", lambda values: values.update(model_name=str(tiny_trunk_folder)))
    assert main(["import", "adapterhub", str(adapter), f"--store={folder}"]) == 0
    assert capsys.readouterr().out == "adapters/a\n"
    assert main(["import", "adapterhub", str(adapter), f"--store={folder}", "--name=b"]) == 0
    capsys.readouterr()
    output = tmp_path / "exported"
    assert main(["export", "adapterhub", "a", f"--store={folder}", f"--output={output}"]) == 0
    assert capsys.readouterr().out == f"{output}: adapter a\n"
    assert load_file(output / "adapter.safetensors").keys() == load_file(adapter / "adapter.safetensors").keys()
    assert main(["export", "adapterhub", "a", f"--store={folder}", f"--output={output}"]) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["export", "adapterhub", "aa", f"--store={folder}", f"--output={tmp_path / 'other'}"]) == 2
    assert has_facts(capsys.readouterr().err, '"aa"', "a, b")
    arguments = ["export", "adapterhub", "a", f"--store={folder}", f"--output={tmp_path / 'x'}", "--kind=fusion"]
    assert main(arguments) == 2
    assert not (tmp_path / "x").exists()
    (tmp_path / "file").write_text("")
    assert main(["export", "adapterhub", "a", f"--store={folder}", f"--output={tmp_path / 'file/x'}"]) == 2
    assert has_facts(capsys.readouterr().err, "file/x ", "cannot be created", "--output")
    if not has_torch:
        assert main([*arguments[:-1], "--weights=bin"]) == 2
        assert "PyTorch" in capsys.readouterr().err


def test_named_config_must_agree_with_the_afjax_fields(bert: Folders, tmp_path: Path) -> None:
    import_adapterhub(bert.root / "adapters/pfeiffer/safetensors", tmp_path / "first", trunk=bert.trunk, name="abc")
    export_adapterhub(tmp_path / "first", "abc", tmp_path / "written", kind="adapter")
    for path in (tmp_path / "written").rglob("adapter_config.json"):
        change_json(path, lambda values: values.update(config="houlsby"))
        refused(bert, path.parent, tmp_path / "store", "afjax.config differ", "mh_adapter")
