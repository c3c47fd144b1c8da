"""Model cards have the metadata that the hub reads, and escape untrusted text."""

import ast
import re
import shlex
from pathlib import Path

import pytest
from facts import has_facts
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st
from made_store import HOME, TRUNK, save

from afjax import store
from afjax.cli.main import make_parser
from afjax.config.from_dict import to_dict
from afjax.config.tasks import TaskConfig
from afjax.share.model_card import code_span, model_card
from afjax.share.provenance import hub_id, shareable
from afjax.trunk.pretrained import Trunk, load_trunk, save_trunk

NASTY = '</code>[x](http://evil) `` | <script>\n# Title\n---\nlicense: "mit" @everyone \u2028 \x85 \x00 \ud800 é 🙂'


def card_of(tmp_path: Path, kind: str = "adapters", name: str = "rte", **kwargs) -> str:
    saved = save(tmp_path, kind, name, **kwargs)
    return model_card([shareable(saved)])


def test_card_has_the_metadata_that_the_hub_reads(example_store: Path) -> None:
    fusion = shareable(store.read_manifest(example_store, "fusion", "both"))
    head = shareable(store.read_manifest(example_store, "heads", "both"))
    text = model_card([head, fusion], repository="me/both", license="cc-by-4.0")
    data = ModelCard(text).data
    assert (data.library_name, data.license, data.pipeline_tag) == ("afjax", "cc-by-4.0", "text-classification")
    assert data.tags == ["afjax", "adapterfusion"]
    assert data.base_model is None
    (score,) = data.eval_results
    assert (score.metric_type, score.metric_value, score.dataset_name) == ("accuracy", 0.75, "both")
    assert "afjax store pull me/both --store=store" in text
    assert "--trunk=PATH/OF/THE/TRUNK" in text
    assert has_facts(text, "`./mine`", "local folder", "authors")
    assert HOME not in text


def test_card_without_license_task_and_scores(tmp_path: Path) -> None:
    text = card_of(tmp_path, task={}, metrics={"accuracy": float("nan")}, labels=())
    data = ModelCard(text).data
    assert data.license is None
    assert data.eval_results is None
    assert data.pipeline_tag is None
    assert "License: unknown" in text
    assert "Scores" not in text


def test_base_model_has_its_name_on_the_hub(tmp_path: Path) -> None:
    data = ModelCard(card_of(tmp_path, trunk={**TRUNK, "name": "minilm"})).data
    assert data.base_model == "sentence-transformers/all-MiniLM-L6-v2"
    assert data["base_model_relation"] == "adapter"


@pytest.mark.parametrize("kind", ["classification", "regression", "multiple_choice", "span"])
def test_commands_and_python_code_are_valid(example_store: Path, tmp_path: Path, kind: str) -> None:
    task = to_dict(TaskConfig(name="t", kind=kind))
    name = 'it\'s a "name" `x`'
    adapter = save(tmp_path, "adapters", name, task=task, trunk={**TRUNK, "name": "org/model"})
    head = save(tmp_path, "heads", name, task=task, trunk={**TRUNK, "name": "org/model"})
    text = model_card([head, adapter])
    assert has_facts(text, "An adapter with a head", "BERT")
    ((unpack, predict),) = [block.splitlines() for block in re.findall("```bash\n(.*?)```", text, re.DOTALL)]
    arguments = make_parser()[0].parse_args(shlex.split(predict)[1:])
    assert (arguments.adapter, arguments.head, arguments.trunk) == (name, name, "org/model")
    assert arguments.max_length is None
    assert make_parser()[0].parse_args(shlex.split(unpack)[1:]).file == f"{name}.tar"
    (python,) = re.findall("```python\n(.*?)```", text, re.DOTALL)
    assert len(python.strip().splitlines()) == 6
    (call,) = [
        node
        for node in ast.walk(ast.parse(python))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "load_task_model"
    ]
    assert {keyword.arg: keyword.value.value for keyword in call.keywords} == {"head": name, "adapter": name}


def test_card_of_an_adapter_without_head_says_so(tmp_path: Path) -> None:
    text = card_of(tmp_path, name="mnli")
    assert "afjax predict" not in text
    assert "It has no head" in text


@pytest.mark.parametrize(
    ("text_columns", "row", "call"),
    [
        (1, '`{"text": "..."}`', 'predict(["A text."])'),
        (2, '`{"text_a": "...", "text_b": "..."}`', 'predict([("A text.", "Another.")])'),
        (None, '`{"text": "..."} or {"text_a"', 'predict([("A text.", "Another.")])  # or'),
    ],
)
def test_card_shows_rows_as_in_training(tmp_path: Path, text_columns: int | None, row: str, call: str) -> None:
    config = {"num_outputs": 2, "max_length": 32} | ({} if text_columns is None else {"text_columns": text_columns})
    text = card_of(tmp_path, "heads", config=config)
    assert f"Rows are {row}" in text
    assert call in text


def test_card_of_a_head_names_the_adapter_that_it_needs(tmp_path: Path) -> None:
    used = {"kind": "adapters", "name": "other", "sha256": "cd" * 32}
    text = card_of(tmp_path, "heads", trained_with=used)
    assert f"It needs the adapter `other` (SHA-256 `{'cd' * 32}`)" in text
    assert "--adapter=other --head=rte" in text
    assert 'head="rte", adapter="other"' in text
    only_trunk = card_of(tmp_path, "heads", "own", trained_with={**used, "kind": "trunk"})
    assert "needs" not in only_trunk
    assert "--adapter" not in only_trunk


def test_untrusted_text_is_escaped(tmp_path: Path) -> None:
    task = {**to_dict(TaskConfig(name="t")), "name": NASTY.replace("\ud800", "")}
    nasty = NASTY.replace("\ud800", "")
    text = card_of(tmp_path, task={**task, "source": nasty}, labels=(nasty, "fine"), metrics={nasty: 0.5})
    plain = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text.split("---\n", 2)[2])
    assert "evil" not in plain
    assert "script" not in plain
    assert text.count("\n# ") == 1
    assert ModelCard(text).data.license is None


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> store.Manifest:
    return shareable(save(tmp_path_factory.mktemp("store"), "heads", "rte"))


@settings(deadline=None, max_examples=50)
@given(text=st.text(st.characters()))
def test_any_text_is_escaped_in_metadata_and_code(head: store.Manifest, text: str) -> None:
    plain = text.encode("utf-8", "replace").decode()
    plain = " ".join("".join(character if character.isprintable() else " " for character in plain).split())
    data = ModelCard(model_card([head], license=text)).data
    assert data.license == (plain or None)
    span = code_span(text)
    fence = re.match("`+", span)[0]
    assert span.endswith(fence)
    assert not re.search(f"(?<!`){fence}(?!`)", span[len(fence) : -len(fence)])
    assert span.isprintable()


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("minilm", "minilm"),
        ("bert-base-uncased", "bert-base-uncased"),
        ("org/model", "org/model"),
        ("/home/alice/trunk", "./trunk"),
        ("/home/alice/trunk/", "./trunk"),
        ("~/trunk", "./trunk"),
        ("../trunk", "./trunk"),
        ("./trunk", "./trunk"),
        ("runs/full/trunk", "./trunk"),
        ("gs://bucket/run/trunk", "./trunk"),
        ("C:\\Users\\alice\\trunk", "./trunk"),
        ("/", "."),
        ("here", "./here"),
    ],
)
def test_shared_trunk_names_do_not_contain_private_folders(
    name: str, shared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    saved = save(tmp_path / "store", "adapters", "a", trunk={**TRUNK, "name": name})
    assert shareable(saved).trunk["name"] == shared
    assert shareable(shareable(saved)) == shareable(saved)
    assert bool(hub_id(shared)) == (shared == name and not name.startswith("."))


def test_relative_trunk_folder_is_no_hub_id_in_another_folder(
    tiny_trunk: Trunk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_trunk(tmp_path / "trunks" / "mine", tiny_trunk)
    monkeypatch.chdir(tmp_path)
    identity = load_trunk("trunks/mine").identity()
    monkeypatch.chdir(tmp_path / "trunks")
    assert shareable(save(tmp_path / "store", "adapters", "a", trunk=identity)).trunk["name"] == "./mine"
    assert hub_id(identity["name"]) == ""


@pytest.mark.parametrize(
    ("source", "shared"),
    [
        ("", ""),
        ("builtin:entail", "builtin:entail"),
        ("tfds:glue/rte", "tfds:glue/rte"),
        ("hf:nyu-mll/glue/rte", "hf:nyu-mll/glue/rte"),
        ("tfds:/home/alice/tfds/rte/1.0.0", "tfds:./1.0.0"),
        ("tfds:gs://bucket/rte/1.0.0", "tfds:./1.0.0"),
        ("official:rte:/home/alice/DATA", "official:rte:./DATA"),
        ("/home/alice/rte", "./rte"),
        ("alice/rte", "./rte"),
        ("gs://bucket/rte", "./rte"),
    ],
)
def test_shared_task_sources_do_not_contain_private_folders(source: str, shared: str, tmp_path: Path) -> None:
    task = {**to_dict(TaskConfig(name="t")), "source": source, "train": "train[:9%]", "dev": "/home/alice/dev.tsv"}
    manifest = shareable(save(tmp_path, "adapters", "a", task=task))
    assert manifest.task == {**task, "source": shared, "dev": "./dev.tsv"}
    assert shareable(manifest) == manifest
