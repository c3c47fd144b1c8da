"""Invalid or malicious PEFT folders are refused, and the store stays unchanged."""

import dataclasses
import json
import pickle
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facts import has_facts
from safetensors.numpy import load_file, save_file

from afjax import store
from afjax.errors import UserError
from afjax.interop.peft import PeftHead, export_peft, families, import_peft, patterns
from afjax.trees import tree_digest
from afjax.trunk.config_file import config_values
from afjax.trunk.pretrained import Trunk
from tests.interop.peft_folders import PeftFolders, unpack

pytestmark = pytest.mark.slow

Change = Callable[[dict[str, Any]], Any]
CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
ROOT = "base_model.model."
QUERY = "bert.encoder.layer.1.attention.self.query"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> PeftFolders:
    return unpack("bert", tmp_path_factory.mktemp("bert"))


@pytest.fixture
def adapter(bert: PeftFolders, tmp_path: Path) -> Path:
    """Copies a folder of an adapter with a head, so that a test can damage it."""
    return Path(shutil.copytree(bert.root / "default", tmp_path / "adapter"))


def change_json(path: Path, change: Change) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def change_tensors(folder: Path, change: Change) -> None:
    tensors = load_file(folder / TENSORS)
    change(tensors)
    save_file(tensors, folder / TENSORS)


def refused(trunk: Trunk, source: Path, *facts: str, **options: Any) -> None:
    store_folder = source.parent / "store"
    with pytest.raises(UserError) as raised:
        import_peft(source, store_folder, trunk=trunk, **options)
    message = str(raised.value)
    assert has_facts(message, *facts), message
    assert "\n" not in message
    assert not store_folder.exists()


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"peft_type": "IA3"}, ('peft_type="IA3"', "LORA")),
        ({"peft_type": "ADALORA"}, ('peft_type="ADALORA"', "LORA")),
        ({"peft_type": ["LORA"]}, ('peft_type=["LORA"]',)),
        ({"peft_type": None}, ("peft_type",)),
        ({"use_dora": True}, ("use_dora=true",)),
        ({"lora_bias": True}, ("lora_bias=true",)),
        ({"use_qalora": True}, ("use_qalora=true",)),
        ({"trainable_token_indices": [3]}, ("trainable_token_indices=[3]",)),
        ({"layer_replication": [[0, 1]]}, ("layer_replication",)),
        ({"target_parameters": ["weight"]}, ("target_parameters",)),
        ({"bias": "all"}, ('bias="all"', "none")),
        ({"bias": "lora_only"}, ('bias="lora_only"', "none")),
        ({"init_lora_weights": "pissa"}, ('"pissa"', "path_initial_model_for_weight_conversion")),
        ({"init_lora_weights": "pissa_niter_4"}, ('"pissa_niter_4"',)),
        ({"init_lora_weights": "olora"}, ('"olora"',)),
        ({"init_lora_weights": {}}, ("init_lora_weights={}",)),
        ({"loops": 3}, ("loops=3",)),
        ({"r": 0}, ("r is 0",)),
        ({"r": -1}, ("r is -1",)),
        ({"r": 4.5}, ("r is 4.5",)),
        ({"r": True}, ("r is True",)),
        ({"r": 10**12}, ("r is 1000000000000",)),
        ({"r": 3}, ("lora_A.weight [4, 32]", "[3, 32]")),
        ({"lora_alpha": 0}, ("lora_alpha is 0",)),
        ({"lora_alpha": "8"}, ("lora_alpha is '8'",)),
        ({"lora_dropout": 1}, ("lora_dropout is 1",)),
        ({"use_rslora": 1}, ("use_rslora is 1",)),
        ({"use_rslora": None}, ("use_rslora is None",)),
        ({"target_modules": None}, ("target_modules",)),
        ({"target_modules": []}, ("target_modules",)),
        ({"target_modules": [3]}, ("target_modules is [3]",)),
        ({"target_modules": {"query": 1}}, ("target_modules",)),
        ({"target_modules": ["q_proj", "v_proj"]}, ("selects no module",)),
        ({"target_modules": ["query", "value", "word_embeddings"]}, ("bert.embeddings.word_embeddings",)),
        ({"target_modules": ["query", "value", "LayerNorm"]}, ("LayerNorm", "attention.self.query")),
        ({"target_modules": ["bert.pooler.dense"]}, ("pooler",)),
        ({"target_modules": ["classifier"]}, ("selects no module",)),
        ({"target_modules": ["classifier"], "modules_to_save": None}, ("LoRA in classifier",)),
        ({"target_modules": ["query"]}, (f"+{QUERY.replace('1', '0').replace('query', 'value')}.lora_A.weight",)),
        ({"target_modules": ["query", "value", "key"]}, ("-bert.encoder.layer.0.attention.self.key.lora_A.weight",)),
        ({"target_modules": "all-linear"}, ("-bert.encoder.layer.0.attention.self.key",)),
        ({"target_modules": ".*"}, ("bert.embeddings.word_embeddings",)),
        ({"target_modules": ".*q_proj"}, ("selects no module",)),
        ({"target_modules": "("}, ("target_modules", '"("')),
        ({"target_modules": "\ud800"}, ("selects no module",)),
        ({"target_modules": ".*query", "layers_to_transform": [0]}, ("layers_to_transform",)),
        ({"exclude_modules": ["value"]}, ("+bert.encoder.layer.0.attention.self.value",)),
        ({"exclude_modules": ["query", "value"]}, ("selects no module",)),
        ({"exclude_modules": "["}, ("exclude_modules", '"["')),
        ({"layers_to_transform": [12]}, ("selects no module",)),
        ({"layers_to_transform": [0]}, ("+bert.encoder.layer.1",)),
        ({"layers_to_transform": [-1]}, ("layers_to_transform[0] is -1",)),
        ({"layers_to_transform": False}, ("layers_to_transform",)),
        ({"layers_to_transform": "0"}, ("layers_to_transform is '0'",)),
        ({"layers_to_transform": [0], "layers_pattern": "blocks"}, ("selects no module",)),
        ({"layers_to_transform": [0], "layers_pattern": "(.*)+"}, ("layers_pattern", "(.*)+")),
        ({"rank_pattern": {"query": 0}}, ("rank_pattern['query'] is 0",)),
        ({"rank_pattern": {"query": 2}}, ("query.lora_A.weight [4, 32]", "[2, 32]")),
        ({"rank_pattern": ["query"]}, ("rank_pattern",)),
        ({"rank_pattern": {"(": 4}}, ("rank_pattern", '"("')),
        ({"alpha_pattern": {"query": "x"}}, ("alpha_pattern['query']",)),
        ({"modules_to_save": [["classifier"]]}, ("modules_to_save",)),
        ({"modules_to_save": ["["]}, ("modules_to_save", '"["')),
        ({"task_type": "CAUSAL_LM"}, ('task_type="CAUSAL_LM"', "SEQ_CLS")),
        ({"task_type": ["SEQ_CLS"]}, ("task_type",)),
        ({"task_type": "QUESTION_ANS"}, ("classifier.bias", "qa_outputs.weight")),
        ({"task_type": "FEATURE_EXTRACTION"}, ("+classifier.bias",)),
        ({"task_type": None, "auto_mapping": {"base_model_class": "RobertaModel"}}, ("RobertaModel", "Bert")),
        (
            {"task_type": None, "auto_mapping": {"base_model_class": "BertForMaskedLM"}},
            ("BertForMaskedLM", "--no_head"),
        ),
        ({"task_type": None, "auto_mapping": {"base_model_class": 3}}, ("auto_mapping.base_model_class is 3",)),
        ({"base_model_name_or_path": 3}, ("base_model_name_or_path is 3",)),
    ],
)
def test_invalid_or_unsupported_settings_are_refused(
    bert: PeftFolders, adapter: Path, change: dict[str, Any], facts: tuple[str, ...]
) -> None:
    change_json(adapter / CONFIG, lambda values: values.update(change))
    refused(bert.trunk, adapter, str(adapter), *facts)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_rank_above_the_hidden_size_is_refused(family: str, tmp_path: Path) -> None:
    """ModernBERT computes query, key and value in one module, whose output is three times as large."""
    folders = unpack(family, tmp_path)
    folder, rank = folders.root / "features", folders.trunk.config.hidden_size + 1
    change_json(folder / CONFIG, lambda values: values.update(r=rank, rank_pattern={}))

    def add_rows(tensors: dict[str, np.ndarray]) -> None:
        for name, tensor in tensors.items():
            shape = (rank, tensor.shape[1]) if "lora_A" in name else (tensor.shape[0], rank)
            tensors[name] = np.zeros(shape, tensor.dtype)

    change_tensors(folder, add_rows)
    refused(folders.trunk, folder, f"rank {rank}", f"hidden size, {rank - 1}")


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda tensors: tensors.pop(f"{ROOT}{QUERY}.lora_B.weight"), (f"-{QUERY}.lora_B.weight",)),
        (lambda tensors: tensors.pop(f"{ROOT}classifier.bias"), ("-classifier.bias",)),
        (lambda tensors: tensors.pop(f"{ROOT}classifier.weight"), ("classifier.weight",)),
        (
            lambda tensors: tensors.update({f"{ROOT}{QUERY}.lora_magnitude_vector": np.zeros(3, np.float32)}),
            (f"{QUERY}.lora_magnitude_vector",),
        ),
        (
            lambda tensors: tensors.update({f"{ROOT}{QUERY}.bias": np.zeros(32, np.float32)}),
            (f"{QUERY}.bias", "modules_to_save"),
        ),
        (
            lambda tensors: tensors.update(
                {f"{ROOT}bert.encoder.layer.3{QUERY[20:]}.lora_A.weight": np.zeros((4, 32))}
            ),
            ("+bert.encoder.layer.3",),
        ),
        (
            lambda tensors: tensors.update({f"{ROOT}../../a.lora_A.weight": np.zeros(3, np.float32)}),
            ("../../a", "--no_head"),
        ),
        (lambda tensors: tensors.update({f"{ROOT}x.weight": np.zeros(3, np.float32)}), ("+x.weight",)),
        (lambda tensors: tensors.update({"x": np.zeros(3, np.float32)}), ("tensor x", ROOT)),
        (
            lambda tensors: tensors.update({f"{ROOT}{QUERY}.lora_B.weight": np.zeros((31, 4), np.float32)}),
            (f"{QUERY}.lora_B.weight [31, 4]", "[32, 4]"),
        ),
        (
            lambda tensors: tensors.update({f"{ROOT}{QUERY}.lora_B.weight": np.zeros((), np.float32)}),
            (f"{QUERY}.lora_B.weight []", "[32, 4]"),
        ),
        (
            lambda tensors: tensors.update({f"{ROOT}{QUERY}.lora_B.weight": np.zeros((32, 4), np.int8)}),
            (f"{QUERY}.lora_B.weight", "I8", "F32"),
        ),
        (
            lambda tensors: tensors.update({f"{ROOT}{QUERY}.lora_B.weight": np.full((32, 4), np.nan, np.float32)}),
            (f"{QUERY}.lora_B.weight", "NaN"),
        ),
        (
            lambda tensors: tensors.update({f"{ROOT}classifier.weight": np.zeros((3, 768), np.float32)}),
            ("classifier.weight", "[3, 768]", "32"),
        ),
        # This tensor has no elements, so the file is small, but its shape declares a billion labels.
        (
            lambda tensors: tensors.update({f"{ROOT}classifier.weight": np.zeros((10**9, 0), np.float32)}),
            ("classifier.weight", "[1000000000, 0]"),
        ),
        (
            lambda tensors: tensors.update({f"{ROOT}classifier.weight": np.zeros((0, 32), np.float32)}),
            ("classifier.weight", "[0, 32]"),
        ),
        (
            lambda tensors: tensors.update({f"{ROOT}classifier.weight": np.zeros((), np.float32)}),
            ("classifier.weight", "[]"),
        ),
        (
            lambda tensors: tensors.update({f"{ROOT}classifier.bias": np.zeros(4, np.float32)}),
            ("classifier.bias [4]", "[3]"),
        ),
        (lambda tensors: [tensors.pop(name) for name in list(tensors) if "lora" in name], ("lora_A",)),
    ],
)
def test_mismatched_or_invalid_tensors_are_refused(
    bert: PeftFolders, adapter: Path, change: Change, facts: tuple[str, ...]
) -> None:
    change_tensors(adapter, change)
    refused(bert.trunk, adapter, str(adapter / TENSORS), *facts)


def test_shapes_are_checked_before_tensors_are_read(
    bert: PeftFolders, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("afjax.interop.peft.importing.read_tensors", pytest.fail)
    change_tensors(adapter, lambda tensors: tensors.update({f"{ROOT}x.weight": np.zeros(10**6, np.float32)}))
    refused(bert.trunk, adapter, "+x.weight")


def test_incomplete_lora_of_the_pooler_is_refused(bert: PeftFolders, tmp_path: Path) -> None:
    source = Path(shutil.copytree(bert.root / "all_linear", tmp_path / "source"))
    change_tensors(source, lambda tensors: tensors.pop(f"{ROOT}bert.pooler.dense.lora_B.weight"))
    refused(bert.trunk, source, "-bert.pooler.dense.lora_B.weight")


@pytest.mark.parametrize("head", [PeftHead(), None])
@pytest.mark.parametrize(
    "name", ["bert.encoder.layer.2.output.LayerNorm.weight", "bert.embeddings.word_embeddings.weight"]
)
def test_trained_weights_of_the_encoder_are_refused(
    bert: PeftFolders, adapter: Path, name: str, head: PeftHead | None
) -> None:
    change_tensors(adapter, lambda tensors: tensors.update({f"{ROOT}{name}": np.zeros(32, np.float32)}))
    refused(bert.trunk, adapter, name, "modules_to_save", "save_embedding_layers", head=head)
    assert not (adapter.parent / "store").exists()


def test_head_that_a_conversion_has_dropped_is_refused(bert: PeftFolders, adapter: Path) -> None:
    change_tensors(adapter, lambda tensors: [tensors.pop(f"{ROOT}classifier.{leaf}") for leaf in ("weight", "bias")])
    refused(bert.trunk, adapter, "modules_to_save", '"classifier"', TENSORS, "--no_head")
    imported = import_peft(adapter, adapter.parent / "store", trunk=bert.trunk, head=None)
    assert [artifact.kind for artifact in imported] == ["adapters"]


def test_lora_in_a_head_that_afjax_lacks_is_left_out_on_request(bert: PeftFolders, adapter: Path) -> None:
    """The head of a masked language model, for example, or ModernBERT's."""
    name = f"{ROOT}cls.predictions.transform.dense"
    lora = {f"{name}.lora_{part}.weight": np.zeros((4, 32)[:: 1 if part == "A" else -1], np.float32) for part in "AB"}
    change_tensors(adapter, lambda tensors: tensors.update(lora))
    refused(bert.trunk, adapter, "cls.predictions.transform.dense", "--no_head")
    (imported,) = import_peft(adapter, adapter.parent / "store", trunk=bert.trunk, head=None)
    assert has_facts("; ".join(imported.notes), "cls.predictions.transform.dense", "left out")


def test_names_and_layers_that_match_nothing_are_ignored(bert: PeftFolders, adapter: Path) -> None:
    """PEFT's users pass one list of names for several architectures."""
    (expected, _) = import_peft(adapter, adapter.parent / "expected", trunk=bert.trunk)
    targets = {"target_modules": ["query", "value", "q_proj", "v_lin"], "layers_to_transform": [0, 1, 2, 12]}
    change_json(adapter / CONFIG, lambda values: values.update(targets))
    (imported, _) = import_peft(adapter, adapter.parent / "store", trunk=bert.trunk)
    assert tree_digest(imported.params) == tree_digest(expected.params)


@pytest.mark.parametrize("prefix", ["bert.", ""])
@pytest.mark.parametrize("task_type", ["FEATURE_EXTRACTION", "SEQ_CLS"])
def test_prefix_is_taken_from_the_names_of_tensors(
    bert: PeftFolders, adapter: Path, prefix: str, task_type: str
) -> None:
    """PEFT does not compare ``task_type`` with the class of the base model."""
    (expected, _) = import_peft(adapter, adapter.parent / "expected", trunk=bert.trunk)
    tensors = load_file(adapter / TENSORS)
    renamed = {
        name.replace(f"{ROOT}bert.", f"{ROOT}{prefix}"): leaf for name, leaf in tensors.items() if "lora" in name
    }
    save_file(renamed, adapter / TENSORS)
    change_json(adapter / CONFIG, lambda values: values.update({"task_type": task_type, "modules_to_save": None}))
    (imported,) = import_peft(adapter, adapter.parent / "store", trunk=bert.trunk, head=None)
    assert tree_digest(imported.params) == tree_digest(expected.params)


def test_activation_of_the_head_must_be_supported(tmp_path: Path) -> None:
    folders = unpack("deberta_v2", tmp_path)
    values = config_values(folders.trunk.config)
    (case, *_) = [path.name for path in sorted(folders.root.iterdir()) if has_saved_pooler(path)]
    for activation in ("gelu", "tanh"):
        folder = tmp_path / activation
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**values, "pooler_hidden_act": activation}))
        trunk = dataclasses.replace(folders.trunk, folder=folder)
        source = Path(shutil.copytree(folders.root / case, folder / "source"))
        if activation == "gelu":
            assert len(import_peft(source, folder / "store", trunk=trunk)) == 2
        else:
            refused(trunk, source, 'pooler_hidden_act="tanh"', '"gelu"', "--no_head")


def has_saved_pooler(folder: Path) -> bool:
    return (folder / TENSORS).exists() and f"{ROOT}pooler.dense.weight" in load_file(folder / TENSORS)


def test_tensors_of_an_excluded_head_are_not_read(bert: PeftFolders, adapter: Path) -> None:
    change_tensors(adapter, lambda tensors: tensors.update({f"{ROOT}x.weight": np.full(3, np.nan, np.float32)}))
    imported = import_peft(adapter, adapter.parent / "store", trunk=bert.trunk, head=None)
    assert [artifact.kind for artifact in imported] == ["adapters"]


def test_damaged_or_missing_files_are_refused(bert: PeftFolders, adapter: Path) -> None:
    path, contents = adapter / TENSORS, (adapter / TENSORS).read_bytes()
    huge = struct.pack("<Q", 2**62)
    for damaged in (b"", contents[:100], contents[:-1], huge + contents[8:], contents[:8] + b"[" + contents[9:]):
        path.write_bytes(damaged)
        refused(bert.trunk, adapter, str(path), "safetensors")
    path.unlink()
    refused(bert.trunk, adapter, str(path), "does not exist")
    path.mkdir()
    refused(bert.trunk, adapter, str(path))
    config = adapter / CONFIG
    for text, fact in {"{": "JSON", "[]": "object", "[" * 100_000: "levels deep", " " * 2**23: "bytes"}.items():
        config.write_text(text)
        refused(bert.trunk, adapter, str(config), fact)
    config.unlink()
    refused(bert.trunk, adapter, str(config), "does not exist")
    config.mkdir()
    refused(bert.trunk, adapter, str(config))
    refused(bert.trunk, adapter / "missing", "missing")


def test_parent_of_an_adapters_folder_is_refused(bert: PeftFolders, adapter: Path) -> None:
    # The parent can be a folder of checkpoints. PEFT also saves an adapter in a subfolder if its name is not "default".
    outer = adapter.parent / "outer"
    outer.mkdir()
    adapter.rename(outer / "checkpoint-5")
    refused(bert.trunk, outer, str(outer / CONFIG), "does not exist", str(outer / "checkpoint-5"))


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_pickles_are_not_read(bert: PeftFolders, adapter: Path, tmp_path: Path) -> None:
    (adapter / TENSORS).unlink()
    done = tmp_path / "done"
    (adapter / "adapter_model.bin").write_bytes(pickle.dumps({"weight": Evil(done)}))
    refused(bert.trunk, adapter, "adapter_model.bin", "pickle", "save_pretrained")
    assert not done.exists()


def test_slow_regular_expression_is_stopped(bert: PeftFolders, adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "TIME_LIMIT", 1.0)
    for change in (
        {"target_modules": r"(([a-z.0-9_]+)+)+!"},
        {"exclude_modules": r"(([a-z.0-9_]+)+)+!"},
        {"rank_pattern": {r"(([a-z.0-9_]+)+)+!": 4}},
    ):
        values = json.loads((bert.root / "default" / CONFIG).read_text())
        (adapter / CONFIG).write_text(json.dumps({**values, **change}))
        start = time.monotonic()
        refused(bert.trunk, adapter, next(iter(change)), "1 s")
        assert time.monotonic() - start < 20


@pytest.mark.parametrize("family", ["roberta", "distilbert"])
def test_mismatched_trunks_are_refused(bert: PeftFolders, adapter: Path, family: str, tmp_path: Path) -> None:
    other = unpack(family, tmp_path)
    refused(other.trunk, adapter, "bert", family)
    refused(bert.trunk, Path(shutil.copytree(other.root / "default", tmp_path / "other")), family.split("_")[0], "bert")
    change_tensors(
        adapter,
        lambda tensors: [
            tensors.update({name.replace(f"{ROOT}bert.encoder.layer", f"{ROOT}transformer.h"): tensors.pop(name)})
            for name in list(tensors)
        ],
    )
    refused(bert.trunk, adapter, str(adapter / TENSORS), '"transformer"', '"bert"')
    adapter = Path(shutil.copytree(bert.root / "default", tmp_path / "same_family"))
    # Trunks of the same family can differ in the number of layers and in the hidden size.
    smaller = dataclasses.replace(bert.trunk.config, num_layers=2)
    refused(dataclasses.replace(bert.trunk, config=smaller), adapter, "+bert.encoder.layer.2")
    larger = dataclasses.replace(bert.trunk.config, num_layers=12)
    refused(dataclasses.replace(bert.trunk, config=larger), adapter, "-bert.encoder.layer.3")
    wider = dataclasses.replace(bert.trunk.config, hidden_size=64)
    refused(dataclasses.replace(bert.trunk, config=wider), adapter, "[3, 32]", "64")


def test_trunk_without_the_pooler_of_the_head_is_refused(bert: PeftFolders, adapter: Path) -> None:
    params = {name: leaf for name, leaf in bert.trunk.params.items() if name != "pooler"}
    trunk = dataclasses.replace(bert.trunk, params=params)
    refused(trunk, adapter, "pooler", "tiny-bert", "--no_head")
    imported = import_peft(adapter, adapter.parent / "store", trunk=trunk, head=None)
    assert [artifact.kind for artifact in imported] == ["adapters"]


def test_lora_of_the_embedding_projection_is_refused(tmp_path: Path) -> None:
    electra = unpack("electra", tmp_path)
    source = electra.root / "default"
    change_json(source / CONFIG, lambda values: values.update(target_modules="all-linear"))
    refused(electra.trunk, source, "electra.embeddings_project")


def test_unsupported_families_are_refused(
    bert: PeftFolders, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(families, "MODEL_CLASSES", {"roberta": families.MODEL_CLASSES["roberta"]})
        refused(bert.trunk, adapter, '"bert"', "roberta")
    import_peft(adapter, tmp_path / "store", trunk=bert.trunk)
    stored = store.load(tmp_path / "store", "adapters", "adapter")
    identity = {**stored.manifest.trunk, "family": "gpt2"}
    store.save(
        tmp_path / "other", store.Draft("adapters", "a", stored.params, config=stored.manifest.config, trunk=identity)
    )
    with pytest.raises(UserError) as raised:
        export_peft(tmp_path / "other", "a", tmp_path / "exported")
    assert has_facts(str(raised.value), '"gpt2"', "bert, roberta")


def test_invalid_or_existing_names_are_refused(bert: PeftFolders, adapter: Path, tmp_path: Path) -> None:
    for name in ("a/b", "..", "a,b", "../a", ".a", "a:b"):
        refused(bert.trunk, adapter, f'"{name}"', name=name)
    odd = Path(shutil.copytree(adapter, tmp_path / "a,b"))
    refused(bert.trunk, odd, '"a,b"', "--name")
    import_peft(odd, tmp_path / "existing", name="a", trunk=bert.trunk)
    with pytest.raises(UserError) as raised:
        import_peft(bert.root / "half", tmp_path / "existing", name="a", trunk=bert.trunk)
    assert has_facts(str(raised.value), '"a"', "--overwrite")


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda record: record.update(name="../a"), ('"../a"', "--name")),
        (lambda record: record.update(name=3), ("afjax.json.name", "3")),
        (lambda record: record.update(loops=3), ("afjax.json.loops",)),
        (lambda record: record.update(head=[]), ("afjax.json.head",)),
        (lambda record: record["head"].pop("max_length"), ("afjax.json.head.max_length",)),
        (lambda record: record["head"].update(max_length=10**6), ("1000000",)),
        (lambda record: record["head"].update(labels=["a"]), ("3 outputs",)),
        (lambda record: record["head"]["task"].update(kind="span"), ("BertForSequenceClassification", "span")),
        (lambda record: record["head"]["config"].update(pooler="none"), ("afjax.json",)),
        (lambda record: record["head"]["config"].update(pooling="mean"), ("afjax.json",)),
        (lambda record: record["adapter"].update(task={"name": 3}), ("afjax.json.adapter.task",)),
    ],
)
def test_invalid_afjax_json_is_refused(
    bert: PeftFolders, adapter: Path, tmp_path: Path, change: Change, facts: tuple[str, ...]
) -> None:
    import_peft(adapter, tmp_path / "good", trunk=bert.trunk)
    exported = tmp_path / "exported"
    export_peft(tmp_path / "good", "adapter", exported)
    change_json(exported / "afjax.json", change)
    refused(bert.trunk, exported, *facts)
    (exported / "afjax.json").unlink()
    import_peft(exported, tmp_path / "store", trunk=bert.trunk)
