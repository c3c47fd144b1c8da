"""Models imported from PEFT have PEFT's outputs, and round trips are lossless."""

import dataclasses
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facts import has_facts
from safetensors.numpy import load_file, save_file

from afjax import store
from afjax.adapters.kind import dense_shape
from afjax.cli.main import main
from afjax.config.adapters import DENSE_LAYERS, Ia3Config, LoraConfig
from afjax.config.heads import HeadConfig
from afjax.config.tasks import TaskConfig
from afjax.errors import UserError
from afjax.interop.model_heads import CLASS_OF_KIND, MODEL_CLASSES
from afjax.interop.peft import PeftHead, export_peft, import_peft
from afjax.interop.peft.families import dense_modules, module_layers, target_names
from afjax.model.loading import load_task_model
from afjax.model.model import Model
from afjax.model.stored import load_adapter
from afjax.trees import Tree, flatten, tree_digest
from afjax.trunk.families import ENCODER_FAMILIES
from afjax.trunk.pretrained import Trunk
from tests.interop.conftest import MakeModel
from tests.interop.peft_folders import PeftFolders, unpack
from tests.small_trunk import small_trunk

pytestmark = pytest.mark.slow

BERT_CASES = """
default all_linear rank_stabilized expression layers layers_pattern patterns uneven excluded pooler_saved half
regression choices span tagging features
""".split()
CASES = "default dense choices span tagging features".split()
# {family: cases}
EVERY_CASE = {
    "bert": BERT_CASES,
    **dict.fromkeys(("roberta", "xlm_roberta", "camembert", "mpnet", "distilbert", "electra"), CASES),
    "deberta_v2": [*CASES, "no_head"],
    "modernbert": ["dense", "patterns", "features", "no_head"],
}
# Largest difference from PEFT's outputs. ModernBERT's hidden states have larger rounding errors.
LIMITS = {**dict.fromkeys(EVERY_CASE, 1e-5), "modernbert": 3e-5}
# In these cases, the import changes PEFT's tensors: it pads them, scales them, or adds them to the pooler.
CHANGED = ("patterns", "uneven", "all_linear", "expression")
MANIFEST_FIELDS = ("config", "digest", "labels", "task", "metrics", "seed", "trunk", "trained_with")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PeftFolders]:
    return {family: unpack(family, tmp_path_factory.mktemp(family)) for family in EVERY_CASE}


@pytest.fixture(scope="module")
def bert(folders: dict[str, PeftFolders]) -> PeftFolders:
    return folders["bert"]


def outputs(saved: PeftFolders, store_folder: Path, name: str) -> dict[str, np.ndarray]:
    """Returns the logits of an adapter, or its hidden states if it has no head."""
    params = {"trunk": saved.trunk.params}
    if name not in store.names(store_folder, "heads"):
        config, tree = load_adapter(store_folder, name)
        model = Model(trunk=saved.trunk.config, head_name="", adapters=((name, config),))
        hidden = model.hidden_states({**params, "adapters": {name: tree}}, saved.batch)
        return {"hidden": np.asarray(hidden)}
    task_model = load_task_model(store_folder, saved.trunk, adapter=name)
    batch = saved.batch
    if task_model.task.kind == "multiple_choice":
        batch = {field: array[None] for field, array in batch.items()}
    if task_model.task.kind == "span":
        # PEFT's model for question answering ignores token types.
        batch = {**batch, "types": np.zeros_like(batch["types"])}
    return {"logits": np.asarray(task_model.model({**params, **task_model.params}, batch).logits)}


def test_all_cases_are_tested(folders: dict[str, PeftFolders]) -> None:
    for family, saved in folders.items():
        assert {path.name for path in saved.root.iterdir()} == set(EVERY_CASE[family])
    assert {saved.trunk.config.family for saved in folders.values()} == set(MODEL_CLASSES)


@pytest.mark.parametrize(("family", "case"), [(family, case) for family, cases in EVERY_CASE.items() for case in cases])
def test_imported_models_reproduce_the_outputs_of_peft(
    folders: dict[str, PeftFolders], family: str, case: str, tmp_path: Path
) -> None:
    saved, first, second = folders[family], tmp_path / "first", tmp_path / "second"
    import_peft(saved.root / case, first, trunk=saved.trunk, head=None if case == "no_head" else PeftHead())
    assert store.verify(first) == []
    found, expected = outputs(saved, first, case), saved.expected(case)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].shape == array.shape
        difference = np.abs(found[name] - array)
        # Outputs per token are [rows, length, outputs]. DeBERTa's outputs at padding differ.
        assert (difference[saved.batch["mask"]] if array.ndim == 3 else difference).max() < LIMITS[family]
    # A round trip is bit-identical.
    export_peft(first, case, tmp_path / "exported")
    import_peft(tmp_path / "exported", second, trunk=saved.trunk)
    assert store.names(first, "heads") == store.names(second, "heads")
    for kind in ("adapters", "heads"):
        for name in store.names(first, kind):
            ours, again = (store.read_manifest(folder, kind, name) for folder in (first, second))
            for field in MANIFEST_FIELDS:
                assert getattr(ours, field) == getattr(again, field), (kind, field)
    if case in CHANGED:
        return
    # The exported file has PEFT's tensors, except a head that was not imported, and the LoRA of a pooler that no head
    # reads.
    theirs = load_file(saved.root / case / "adapter_model.safetensors")
    theirs = {name: tensor for name, tensor in theirs.items() if "pooler.dense.lora" not in name}
    if case == "no_head":
        prefix = f"base_model.model.{ENCODER_FAMILIES[saved.trunk.config.family].weight_names.prefix}."
        theirs = {
            name.replace(prefix, "base_model.model."): tensor for name, tensor in theirs.items() if prefix in name
        }
    ours = load_file(tmp_path / "exported/adapter_model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(ours[name], tensor.astype(np.float32))


def test_settings_are_converted(bert: PeftFolders, tmp_path: Path) -> None:
    expected = {
        "default": LoraConfig(target_modules=("query", "value"), rank=4, alpha=8.0, dropout=0.1),
        "all_linear": LoraConfig(target_modules=tuple(DENSE_LAYERS), rank=2, alpha=8.0),
        "rank_stabilized": LoraConfig(target_modules=("key",), rank=3, alpha=5 * 3**0.5),
        "expression": LoraConfig(target_modules=("query", "key", "output"), layers=(0, 2)),
        "layers": LoraConfig(target_modules=("attention_output", "output"), layers=(1, 2)),
        "layers_pattern": LoraConfig(target_modules=("query",), layers=(1,)),
        "patterns": LoraConfig(target_modules=("query", "value"), rank=8, alpha=8.0),
        "uneven": LoraConfig(target_modules=("query", "value"), layers=(0, 2)),
        "excluded": LoraConfig(target_modules=("intermediate", "output")),
    }
    for case, config in expected.items():
        import_peft(bert.root / case, tmp_path, trunk=bert.trunk)
        assert load_adapter(tmp_path, case)[0] == config


def test_head_settings_are_converted(folders: dict[str, PeftFolders], tmp_path: Path) -> None:
    expected = {
        ("bert", "default"): HeadConfig(pooling="first", pooler="trunk"),
        ("bert", "pooler_saved"): HeadConfig(pooling="first", pooler="head"),
        ("bert", "all_linear"): HeadConfig(pooling="first", pooler="head"),
        ("roberta", "default"): HeadConfig(pooling="first", pooler="head"),
        ("roberta", "choices"): HeadConfig(pooling="first", pooler="trunk"),
        ("distilbert", "default"): HeadConfig(pooling="first", pooler="none", hidden_layers=1, activation="relu"),
        ("electra", "choices"): HeadConfig(pooling="first", pooler="none", hidden_layers=1, activation="gelu"),
        ("deberta_v2", "default"): HeadConfig(pooling="first", pooler="none", hidden_layers=1, activation="gelu"),
    }
    for (family, case), config in expected.items():
        saved = folders[family]
        import_peft(saved.root / case, tmp_path / family, trunk=saved.trunk)
        assert load_task_model(tmp_path / family, saved.trunk, adapter=case).model.head == config


def test_heads_that_cannot_be_restored_are_refused(folders: dict[str, PeftFolders], tmp_path: Path) -> None:
    for family, facts in (
        ("deberta_v2", ("no weights of pooler.dense", "modules_to_save", '"pooler"', "--no_head")),
        ("modernbert", ("ModernBertForSequenceClassification", "--no_head")),
    ):
        saved = folders[family]
        with pytest.raises(UserError) as raised:
            import_peft(saved.root / "no_head", tmp_path, trunk=saved.trunk)
        assert has_facts(str(raised.value), *facts)
        assert store.names(tmp_path, "adapters") == []
    # PEFT's "all-linear" also selects the head's pooler.
    deberta = folders["deberta_v2"]
    (imported,) = import_peft(deberta.root / "no_head", tmp_path, trunk=deberta.trunk, head=None)
    assert has_facts("; ".join(imported.notes), "pooler.dense", "left out")


# A joint module's LoRA in PEFT's files: {target_modules: (rank, blocks)}. LoRA of rank 2 in each target module.
JOINT = {
    ("query", "key", "value"): (6, ["query", "key", "value"]),
    ("query", "value"): (4, ["query", "value"]),
    ("key", "output"): (2, ["key"]),
}


@pytest.mark.parametrize("target_modules", JOINT)
def test_lora_of_a_joint_module_is_exported_as_blocks(
    folders: dict[str, PeftFolders], target_modules: tuple[Any, ...], tmp_path: Path
) -> None:
    trunk, (rank, blocks) = folders["modernbert"].trunk, JOINT[target_modules]
    config = LoraConfig(target_modules=target_modules, rank=2, alpha=3.7)
    tree = lora_tree(config, trunk)
    values = dataclasses.asdict(config)
    store.save(tmp_path / "store", store.Draft("adapters", "a", tree, config=values, trunk=trunk.identity()))
    export_peft(tmp_path / "store", "a", tmp_path / "a")
    settings = json.loads((tmp_path / "a/adapter_config.json").read_text())
    assert settings["rank_pattern"] == {"attn.Wqkv": rank}
    assert settings["alpha_pattern"] == {"attn.Wqkv": rank / 2 * 3.7}
    path = tmp_path / "a/afjax.json"
    record = json.loads(path.read_text())
    assert record["blocks"] == blocks
    tensors = load_file(tmp_path / "a/adapter_model.safetensors")
    a, b = (tensors[f"base_model.model.layers.1.attn.Wqkv.lora_{part}.weight"] for part in "AB")
    hidden = trunk.config.hidden_size
    assert (a.shape, b.shape) == ((rank, hidden), (3 * hidden, rank))
    for number, name in enumerate(("query", "key", "value")):
        rows = b[number * hidden : (number + 1) * hidden]
        if name not in blocks:
            assert not rows.any()
            continue
        leaves = tree["attention"][name]
        product = leaves["down"]["kernel"][1] @ leaves["up"]["kernel"][1]
        np.testing.assert_allclose(rows @ a, product.T, atol=1e-5)
    # Without the record, the imported adapter computes the same function with a larger rank.
    path.write_text(json.dumps({name: value for name, value in record.items() if name != "blocks"}))
    (merged,) = import_peft(tmp_path / "a", tmp_path / "merged", trunk=trunk)
    assert merged.details["config"]["rank"] == rank
    model = dataclasses.replace(folders["modernbert"], trunk=trunk)
    found = outputs(model, tmp_path / "merged", "a")["hidden"]
    np.testing.assert_allclose(found, outputs(model, tmp_path / "store", "a")["hidden"], atol=1e-4)
    # Wrong blocks are refused.
    path.write_text(json.dumps({**record, "blocks": ["value"]}))
    with pytest.raises(UserError) as raised:
        import_peft(tmp_path / "a", tmp_path / "refused", trunk=trunk)
    assert has_facts(str(raised.value), "attn.Wqkv", "blocks", "afjax.json")


def test_layers_of_modernbert_are_exported_as_module_names(folders: dict[str, PeftFolders], tmp_path: Path) -> None:
    """PEFT 0.21.2 finds no layer number in ``layers.1.attn.Wqkv``, because ``layers`` has no parent module."""
    model = folders["modernbert"]
    config = LoraConfig(target_modules=("query", "output"), rank=2, layers=(1,))
    values, identity = dataclasses.asdict(config), model.trunk.identity()
    store.save(
        tmp_path / "store", store.Draft("adapters", "a", lora_tree(config, model.trunk), config=values, trunk=identity)
    )
    export_peft(tmp_path / "store", "a", tmp_path / "a")
    settings = json.loads((tmp_path / "a/adapter_config.json").read_text())
    assert settings["layers_to_transform"] is None
    assert settings["target_modules"] == ["layers.1.attn.Wqkv", "layers.1.mlp.Wo"]
    (path,) = (tmp_path / "a").glob("afjax.json")
    path.unlink()
    import_peft(tmp_path / "a", tmp_path / "again", trunk=model.trunk)
    found = outputs(model, tmp_path / "again", "a")["hidden"]
    np.testing.assert_allclose(found, outputs(model, tmp_path / "store", "a")["hidden"], atol=1e-4)


def test_modernbert_adapter_is_exported_without_its_head(
    folders: dict[str, PeftFolders], make_model: MakeModel, tmp_path: Path
) -> None:
    make_model("a", {"a": LoraConfig(rank=2)}, trunk=folders["modernbert"].trunk).save(tmp_path / "store")
    with pytest.raises(UserError) as raised:
        export_peft(tmp_path / "store", "a", tmp_path / "a")
    assert has_facts(str(raised.value), "ModernBertForSequenceClassification", "--no_head")
    assert not (tmp_path / "a").exists()
    written = export_peft(tmp_path / "store", "a", tmp_path / "a", head=None)
    assert [part for part, _ in written] == ["adapter a"]


def test_kind_labels_and_max_length_can_be_specified(bert: PeftFolders, tmp_path: Path) -> None:
    source = bert.root / "default"
    head = PeftHead(kind="multi_label", labels=("sport", "politics", "science"), max_length=9)
    import_peft(source, tmp_path, name="topics", trunk=bert.trunk, head=head)
    model = load_task_model(tmp_path, bert.trunk, adapter="topics")
    assert (model.task, model.labels) == (TaskConfig(name="topics", kind="multi_label"), head.labels)
    assert model.max_length == 9
    assert store.read_manifest(tmp_path, "heads", "topics").trained_with["name"] == "topics"
    for wrong, fact in (
        (PeftHead(labels=("a", "b")), "3 outputs"),
        (PeftHead(labels=("a", "b", "a")), "3 outputs"),
        (PeftHead(kind="span"), "BertForSequenceClassification"),
        (PeftHead(kind="regression"), "3 outputs"),
        (PeftHead(max_length=10**6), "max_length is 1000000"),
    ):
        with pytest.raises(UserError, match=fact):
            import_peft(source, tmp_path, name="other", trunk=bert.trunk, head=wrong)
    with pytest.raises(UserError, match="no labels"):
        import_peft(bert.root / "span", tmp_path, trunk=bert.trunk, head=PeftHead(labels=("a", "b")))
    with pytest.raises(UserError, match="no head"):
        import_peft(bert.root / "features", tmp_path, trunk=bert.trunk, head=PeftHead(kind="span"))
    assert store.names(tmp_path, "adapters") == ["topics"]
    for wrong in ({"kind": "spam"}, {"labels": "ab"}, {"labels": (1, 2)}):
        with pytest.raises(UserError, match=r"head\.(kind|labels)"):
            PeftHead(**wrong)


def test_head_without_a_class_needs_a_kind(bert: PeftFolders, tmp_path: Path) -> None:
    source = Path(shutil.copytree(bert.root / "choices", tmp_path / "source"))
    path = source / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "auto_mapping": None}))
    with pytest.raises(UserError) as raised:
        import_peft(source, tmp_path / "store", trunk=bert.trunk)
    assert has_facts(str(raised.value), "--kind", "multiple_choice", "--no_head")
    import_peft(source, tmp_path / "store", trunk=bert.trunk, head=PeftHead(kind="multiple_choice"))
    import_peft(source, tmp_path / "without", trunk=bert.trunk, head=None)
    assert store.names(tmp_path / "store", "heads") == ["source"]
    assert store.names(tmp_path / "without", "heads") == []


def test_notes_report_changes(bert: PeftFolders, tmp_path: Path) -> None:
    def notes(case: str, **options: Any) -> str:
        imported = import_peft(bert.root / case, tmp_path, name=f"{case}{len(options)}", trunk=bert.trunk, **options)
        return "; ".join(note for artifact in imported for note in artifact.notes)

    assert notes("default") == ""
    assert "rank 8" in notes("patterns")
    assert "zeros" in notes("uneven")
    assert "own pooler" in notes("all_linear")
    assert "left out" in notes("all_linear", head=None)
    assert "left out" in notes("features")
    assert "token types" in notes("span")


def test_note_about_a_head_that_peft_did_not_train(bert: PeftFolders, tmp_path: Path) -> None:
    # Without a task_type, PEFT neither trains nor saves the head.
    source = Path(shutil.copytree(bert.root / "default", tmp_path / "source"))
    path, tensors = source / "adapter_config.json", load_file(source / "adapter_model.safetensors")
    mapping = {"base_model_class": "BertForSequenceClassification"}
    settings = {"task_type": None, "modules_to_save": None, "auto_mapping": mapping}
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    lora = {name: tensor for name, tensor in tensors.items() if "lora" in name}
    save_file(lora, source / "adapter_model.safetensors")
    (imported,) = import_peft(source, tmp_path / "store", trunk=bert.trunk)
    assert imported.kind == "adapters"
    assert has_facts("; ".join(imported.notes), "no head", "BertForSequenceClassification")
    (imported,) = import_peft(source, tmp_path / "without", trunk=bert.trunk, head=None)
    assert not imported.notes


def test_default_trunk_is_the_base_model_in_the_files(
    tiny_trunk_folder: Path, tiny_trunk: Trunk, tmp_path: Path
) -> None:
    config = LoraConfig(rank=2)
    store.save(
        tmp_path / "store",
        store.Draft(
            "adapters",
            "a",
            lora_tree(config, tiny_trunk),
            config=dataclasses.asdict(config),
            trunk=tiny_trunk.identity(),
        ),
    )
    export_peft(tmp_path / "store", "a", tmp_path / "a")
    import_peft(tmp_path / "a", tmp_path / "again")
    trunk = store.read_manifest(tmp_path / "again", "adapters", "a").trunk
    assert (trunk["name"], trunk["sha256"]) == (str(tiny_trunk_folder), tiny_trunk.sha256)
    path = tmp_path / "a/adapter_config.json"
    values = json.loads(path.read_text())
    for change, facts in (
        ({"revision": "v2"}, ("v2", "--trunk")),
        ({"base_model_name_or_path": None}, ("--trunk",)),
        ({"base_model_name_or_path": str(tmp_path / "gone")}, ("gone", "--trunk")),
        ({"base_model_name_or_path": 3}, ("base_model_name_or_path", "3")),
    ):
        path.write_text(json.dumps({**values, **change}))
        with pytest.raises(UserError) as raised:
            import_peft(tmp_path / "a", tmp_path / "other")
        assert has_facts(str(raised.value), *facts)


def lora_tree(config: LoraConfig, trunk: Trunk, seed: int = 0) -> Tree:
    random = np.random.default_rng(seed)
    depth = len(config.layers or range(trunk.config.num_layers))
    tree: Tree = {}
    for name in config.target_modules:
        block, layer = DENSE_LAYERS[name]
        inputs, outs = dense_shape(name, trunk.config)
        shapes = {"down": (depth, inputs, config.rank), "up": (depth, config.rank, outs)}
        tree.setdefault(block, {})[layer] = {
            part: {"kernel": random.standard_normal(shape).astype(np.float32)} for part, shape in shapes.items()
        }
    return tree


@pytest.mark.parametrize("family", MODEL_CLASSES)
def test_lora_in_subsets_of_dense_layers_survives_a_round_trip(family: str, tmp_path: Path) -> None:
    trunk = Trunk(name="tiny", config=small_trunk(family), params={}, sha256="ab", folder=None)
    names = list(DENSE_LAYERS)
    for number, (size, layers) in enumerate(itertools.product((1, 3, 6), (None, (0, 2)))):
        config = LoraConfig(
            target_modules=tuple(names[(number + step) % 6] for step in range(size)),
            rank=1 + number % 5,
            alpha=3.7,
            dropout=0.25,
            layers=layers,
        )
        config = dataclasses.replace(config, target_modules=tuple(sorted(config.target_modules, key=names.index)))
        tree, name = lora_tree(config, trunk, number), f"a{number}"
        values = dataclasses.asdict(config)
        store.save(
            tmp_path / "store", store.Draft("adapters", name, tree, config=values, trunk=trunk.identity(), seed=4)
        )
        export_peft(tmp_path / "store", name, tmp_path / name)
        (imported,) = import_peft(tmp_path / name, tmp_path / "again", name="again", trunk=trunk, overwrite=True)
        assert load_config(imported.details["config"]) == config
        assert imported.details["seed"] == 4
        assert tree_digest(imported.params) == tree_digest(tree)


def load_config(values: Any) -> LoraConfig:
    return LoraConfig(**{**values, "target_modules": tuple(values["target_modules"])})


@pytest.mark.parametrize("family", MODEL_CLASSES)
def test_exported_targets_select_only_their_dense_layer(family: str) -> None:
    # PEFT selects a module if its name equals an entry, or ends with a dot followed by an entry.
    layer_list = ENCODER_FAMILIES[family].weight_names.layer
    modules = {
        (name, layer): f"x.{layer_list}.{layer}.{module}"
        for name, module in dense_modules(family).items()
        for layer in range(12)
    }
    for module, names in module_layers(family).items():
        targets = target_names(family, range(12), names)
        assert len(targets) == len(set(targets))
        selected = {place for place, module in modules.items() if any(module.endswith(f".{end}") for end in targets)}
        assert selected == set(itertools.product(names, range(12))), module
    assert MODEL_CLASSES[family].heads.keys() == (set() if family == "modernbert" else set(CLASS_OF_KIND.values()))


def test_trained_head_survives_a_round_trip(make_model: MakeModel, tmp_path: Path) -> None:
    # The heads have their own pooler, which PEFT saves with the classifier.
    for kind in CLASS_OF_KIND:
        model = make_model(kind, {kind: LoraConfig(rank=2)}, kind=kind)
        # Heads that read every token ignore the pooling.
        pooling = "mean" if kind in ("span", "tagging") else "first"
        head = dataclasses.replace(model.model, head=HeadConfig(pooling=pooling))
        model = dataclasses.replace(model, model=head, metrics={"accuracy": 0.5}, text_columns=1)
        model.save(tmp_path / "store")
        written = export_peft(tmp_path / "store", kind, tmp_path / kind)
        assert [part for part, _ in written] == [f"adapter {kind}", f"head {kind}"]
        imported = import_peft(tmp_path / kind, tmp_path / "again", trunk=model.trunk)
        assert [note for artifact in imported for note in artifact.notes] == []
        for artifact in imported:
            ours = store.read_manifest(tmp_path / "store", artifact.kind, kind)
            again = store.read_manifest(tmp_path / "again", artifact.kind, kind)
            for field in ("config", "digest", "labels", "metrics", "trained_with"):
                assert getattr(ours, field) == getattr(again, field), (kind, field)
        settings = json.loads((tmp_path / kind / "adapter_config.json").read_text())
        if kind == "multi_label":
            assert (settings["task_type"], settings["modules_to_save"]) == ("SEQ_CLS", ["pooler", "classifier"])


def test_scores_of_tensors_that_were_trained_again_are_left_out(make_model: MakeModel, tmp_path: Path) -> None:
    model = dataclasses.replace(
        make_model("reviews", {"reviews": LoraConfig(rank=2)}), metrics={"accuracy": 0.9}, seed=7
    )
    model = dataclasses.replace(model, model=dataclasses.replace(model.model, head=HeadConfig(pooling="first")))
    model.save(tmp_path / "store")
    exported = tmp_path / "exported"
    export_peft(tmp_path / "store", "reviews", exported)
    imported = import_peft(exported, tmp_path / "same", trunk=model.trunk)
    assert [(part.details["metrics"], part.details["seed"]) for part in imported] == [({"accuracy": 0.9}, 7)] * 2
    path = exported / "adapter_model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(path).items()}, path)
    imported = import_peft(exported, tmp_path / "changed", trunk=model.trunk)
    assert [(part.details["metrics"], part.details["seed"]) for part in imported] == [({}, 0)] * 2
    assert has_facts("; ".join(imported[0].notes), "changed", "scores")
    assert imported[1].details["labels"] == model.labels


def test_recorded_task_of_a_head_fits_other_labels_and_kinds(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model("a", {"a": LoraConfig(rank=2)})
    task = dataclasses.replace(model.task, labels=model.labels, metric="matthews")
    head = dataclasses.replace(model.model, head=HeadConfig(pooling="first"))
    dataclasses.replace(model, model=head, task=task).save(tmp_path / "store")
    export_peft(tmp_path / "store", "a", tmp_path / "out")

    def imported_task(name: str, **given: Any) -> tuple[Any, ...]:
        import_peft(tmp_path / "out", tmp_path / name, trunk=model.trunk, head=PeftHead(**given))
        loaded = load_task_model(tmp_path / name, model.trunk, head="a", adapter="a")
        return loaded.labels, loaded.task.labels, loaded.task.kind, loaded.task.metric

    assert imported_task("same") == (model.labels, model.labels, "classification", "matthews")
    other = ("low", "middle", "high")
    assert imported_task("other", labels=other) == (other, (), "classification", "matthews")
    assert imported_task("kind", kind="multi_label")[2:] == ("multi_label", "")


def test_scale_of_a_regression_task_is_multiplied_into_the_head(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model("a", {"a": LoraConfig(rank=2)}, kind="regression", scale=5.0)
    model = dataclasses.replace(model, model=dataclasses.replace(model.model, head=HeadConfig(pooling="first")))
    model.save(tmp_path / "store")
    export_peft(tmp_path / "store", "a", tmp_path / "a")
    _, head = import_peft(tmp_path / "a", tmp_path / "again", trunk=model.trunk)
    kernel = flatten(model.params["heads"]["a"])["output/kernel"]
    np.testing.assert_array_equal(head.params["output"]["kernel"], kernel * np.float32(5))
    assert head.details["task"]["scale"] == 1.0


def test_models_that_peft_cannot_load_are_not_exported(make_model: MakeModel, tmp_path: Path) -> None:
    def refused(model: Any, *facts: str, **options: Any) -> None:
        model.save(tmp_path / "store", overwrite=True)
        with pytest.raises(UserError) as raised:
            export_peft(tmp_path / "store", "a", tmp_path / "out", **options)
        assert has_facts(str(raised.value), *facts)
        assert not [path for path in tmp_path.iterdir() if "out" in path.name]

    refused(make_model("a", {"a": Ia3Config()}), "ia3", "lora")
    model = make_model("a", {"a": LoraConfig()})

    def with_head(**settings: Any) -> Any:
        config = HeadConfig(**settings)
        return dataclasses.replace(model, model=dataclasses.replace(model.model, head=config))

    refused(with_head(pooling="mean"), "mean", 'head.pooling="first"', "--no_head")
    refused(with_head(pooling="first", pooler="none"), "head.pooler=none", "BertForSequenceClassification")
    exported = export_peft(tmp_path / "store", "a", tmp_path / "without", head=None)
    assert exported == [("adapter a", tmp_path / "without")]
    with pytest.raises(UserError, match="already exists"):
        export_peft(tmp_path / "store", "a", tmp_path / "without")
    with pytest.raises(UserError) as raised:
        export_peft(tmp_path / "store", "b", tmp_path / "b")
    assert has_facts(str(raised.value), '"b"', "a")
    # A head that was trained with another adapter is left out.
    with_head(pooling="first").save(tmp_path / "store", overwrite=True)
    adapter = store.load(tmp_path / "store", "adapters", "a")
    changed = {**adapter.params, "attention": {**adapter.params["attention"]}}
    changed["attention"] = {
        layer: {part: {"kernel": leaf["kernel"] + 1} for part, leaf in parts.items()}
        for layer, parts in adapter.params["attention"].items()
    }
    identity = adapter.manifest.trunk
    store.save(
        tmp_path / "store",
        store.Draft("adapters", "a", changed, config=adapter.manifest.config, trunk=identity),
        overwrite=True,
    )
    assert [part for part, _ in export_peft(tmp_path / "store", "a", tmp_path / "changed")] == ["adapter a"]


def test_import_and_export_commands(
    tiny_trunk_folder: Path, make_model: MakeModel, tmp_path: Path, capsys: Any
) -> None:
    model = make_model("reviews", {"reviews": LoraConfig(rank=2)})
    model = dataclasses.replace(model, model=dataclasses.replace(model.model, head=HeadConfig(pooling="first")))
    model.save(tmp_path / "store")
    exported, again = tmp_path / "exported", f"--store={tmp_path / 'again'}"
    arguments = ["export", "peft", "reviews", f"--store={tmp_path / 'store'}"]
    assert main([*arguments, f"--output={exported}"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{exported}: adapter reviews", f"{exported}: head reviews"]
    assert main(["import", "peft", str(exported), again, f"--trunk={tiny_trunk_folder}"]) == 0
    assert capsys.readouterr().out.splitlines() == ["adapters/reviews", "heads/reviews"]
    assert main(["import", "peft", str(exported), again]) == 2
    assert has_facts(capsys.readouterr().err, '"reviews"', "--name", "--overwrite")
    (exported / "afjax.json").unlink()
    assert main(["import", "peft", str(exported), again, "--labels=a,b,c", "--kind=multi_label"]) == 0
    assert store.read_manifest(tmp_path / "again", "heads", "exported").labels == ("a", "b", "c")
    assert main(["import", "peft", str(exported), again, "--name=plain", "--no_head"]) == 0
    assert "plain" not in store.names(tmp_path / "again", "heads")
    assert (
        main(["import", "peft", str(exported), again, "--name=b", "--no_head", "--labels=a,b", "--max_length=8"]) == 2
    )
    assert has_facts(capsys.readouterr().err, "--labels, --max_length", "--no_head")
    assert main([*arguments, f"--output={tmp_path / 'plain'}", "--no_head"]) == 0
    settings = json.loads((tmp_path / "plain/adapter_config.json").read_text())
    assert (settings["task_type"], settings["modules_to_save"]) == ("FEATURE_EXTRACTION", None)


def test_import_from_a_hub_repository(bert: PeftFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    requested = {}

    def snapshot_download(repo: str, allow_patterns: list[str]) -> str:
        requested[repo] = allow_patterns
        return str(bert.root / "default")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    imported = import_peft("user/reviews", tmp_path, trunk=bert.trunk)
    assert [artifact.name for artifact in imported] == ["reviews", "reviews"]
    assert set(requested["user/reviews"]) == {"adapter_config.json", "adapter_model.safetensors", "afjax.json"}


def test_bfloat16_tensors_are_imported_as_float32(bert: PeftFolders, tmp_path: Path) -> None:
    import ml_dtypes

    source = Path(shutil.copytree(bert.root / "default", tmp_path / "source"))
    path = source / "adapter_model.safetensors"
    tensors = {name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in load_file(path).items()}
    save_file(tensors, path)
    adapter, _ = import_peft(source, tmp_path / "store", trunk=bert.trunk)
    name = "base_model.model.bert.encoder.layer.1.attention.self.query.lora_A.weight"
    down = adapter.params["attention"]["query"]["down"]["kernel"]
    np.testing.assert_array_equal(down[1], tensors[name].astype(np.float32).T)
