"""Commands refuse bad input with a one-line message and exit code 2, and do not write or lose anything."""

import errno
import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.constants
import jax
import numpy as np
import pytest
from facts import has_facts
from safetensors.numpy import load_file, save_file

from afjax import store as artifacts
from afjax.cli.main import main
from afjax.config.adapters import AdapterConfig
from afjax.config.from_dict import to_dict
from afjax.model.setup import new_adapter
from afjax.train.logs import RunLog
from afjax.trunk.pretrained import load_trunk

pytestmark = pytest.mark.slow

Refused = Callable[..., str]
WriteRows = Callable[..., Path]

GOOD = b'{"text_a": "all", "text_b": "some", "label": "few"}\n'
PACKED = gzip.compress(GOOD * 200)


@pytest.fixture
def train(config: Path, tmp_path: Path) -> list[str]:
    """Returns a command that trains on ``data``."""
    return ["train", f"--config={config}:recipe=single", f"--workdir={tmp_path / 'run'}"]


@pytest.fixture
def model(store: Path, tiny_trunk_folder: Path) -> list[str]:
    """Returns the flags that select the fusion in ``store``."""
    return [f"--store={store}", f"--trunk={tiny_trunk_folder}", "--fusion=target-fusion", "--head=target-fusion"]


def write_split(folder: Path, split: str, name: str, contents: bytes) -> Path:
    """Replaces a split's file."""
    (folder / f"{split}.jsonl").unlink(missing_ok=True)
    path = folder / name.format(split)
    path.write_bytes(contents)
    return path


# Data files: ``{case: (name, contents, facts)}``. The message has the file's path, followed by the facts.
FILES = {
    "empty": ("{}.jsonl", b"", (" ", "no rows")),
    "blank": ("{}.jsonl", b"\n\n", (" ", "no rows")),
    "truncated": ("{}.jsonl.gz", PACKED[: len(PACKED) // 2], (" ", "truncated", "gzip", "line")),
    "not gzip": ("{}.jsonl.gz", GOOD, (" ", "not valid gzip")),
    "not UTF-8": ("{}.jsonl", GOOD + "é\n".encode("latin-1"), (":2 ", "UTF-8", "0xe9", "column 1")),
    "malformed": ("{}.jsonl", GOOD + b'{"text_a": \n', (":2 ", "not JSON")),
    "cut off": ("{}.jsonl", GOOD + GOOD[:20], (":2 ", "not JSON")),
    "no object": ("{}.jsonl", GOOD + b"[1, 2]\n", (":2 ", "[1, 2]")),
    "not a text": ("{}.jsonl", GOOD + GOOD.replace(b'"all"', b"3"), (":2 ", "3", '"text_a"')),
}
# Errors that only occur in labeled rows.
LABELED_FILES = {
    "missing column": ("{}.jsonl", GOOD + b'{"text_a": "all", "label": "few"}\n', (":2 ", 'no column "text_b"')),
    "no label column": ("{}.jsonl", GOOD.replace(b"label", b"labels"), (":1 ", 'no column "label"')),
    "unknown label": ("{}.jsonl", GOOD + GOOD.replace(b'"few"', b'"fwe"'), (":2 ", "'fwe'", "labels")),
    "missing label": ("{}.jsonl", GOOD + GOOD.replace(b'"few"', b"null"), (":2 ", "no label")),
    "empty label": ("{}.jsonl", GOOD + GOOD.replace(b'"few"', b'""'), (":2 ", "no label")),
    "NaN label": ("{}.jsonl", GOOD + GOOD.replace(b'"few"', b"NaN"), (":2 ", "no label")),
    "uneven TSV": ("{}.tsv", b"text_a\ttext_b\tlabel\nall\tsome\tfew\nall\tfew\n", (":3 ", "2 columns")),
    "unclosed CSV": ("{}.csv", b'text_a,text_b,label\nall,"some,few\n', (":2 ", "not valid CSV")),
}


@pytest.mark.parametrize("case", [*FILES, *LABELED_FILES])
def test_train_refuses_a_damaged_file(case: str, train: list[str], data: Path, refused: Refused) -> None:
    (data / "labels.json").write_text('["few", "many"]')
    name, contents, (place, *facts) = (FILES | LABELED_FILES)[case]
    # A damaged dev split is also reported before training.
    path = write_split(data, "dev", name, contents)
    assert has_facts(refused(*train), f"{path}{place}", *facts)


@pytest.mark.parametrize("case", [*FILES, *LABELED_FILES])
def test_eval_refuses_a_damaged_file(case: str, model: list[str], data: Path, refused: Refused) -> None:
    name, contents, (place, *facts) = (FILES | LABELED_FILES)[case]
    path = write_split(data, "test", name, contents)
    sentence = refused("eval", *model, f"--source={data}", "--split=test")
    assert has_facts(sentence, f"{path}{place}", *facts)


@pytest.mark.parametrize("case", FILES)
def test_predict_refuses_a_damaged_file(case: str, model: list[str], tmp_path: Path, refused: Refused) -> None:
    name, contents, (place, *facts) = FILES[case]
    path = write_split(tmp_path, "rows", name, contents)
    output = tmp_path / "out.jsonl"
    output.write_text("kept\n")
    sentence = refused("predict", *model, f"--input={path}", f"--output={output}")
    assert has_facts(sentence, f"{path}{place}", *facts)


def test_missing_files_are_refused(train: list[str], model: list[str], data: Path, refused: Refused) -> None:
    out = f"--output={data / 'out.jsonl'}"
    sentence = refused("predict", *model, f"--input={data / 'tran.jsonl'}", out)
    assert has_facts(sentence, str(data / "tran.jsonl"), "not exist", 'Did you mean "train.jsonl"?')
    assert ".jsonl.gz" in refused("predict", *model, f"--input={data / 'rows.txt'}", out)
    sentence = refused("eval", *model, f"--source={data}", "--split=test")
    assert has_facts(sentence, "target", "test split", str(data), "test.jsonl")
    assert f"no folder {data / 'x'}" in refused("eval", *model, f"--source={data / 'x'}")
    (data / "dev.jsonl").unlink()
    assert "no dev split" in refused(*train, "--config.task.dev_share=0")
    assert f"no folder {data / 'nothing'}" in refused(*train, f"--config.task.source={data / 'nothing'}")
    assert has_facts(refused(*train, "--config.task.source=builtin:ential"), "built-in", '"ential"')


def test_predict_refuses_unknown_columns(
    model: list[str], write_rows: WriteRows, tmp_path: Path, refused: Refused
) -> None:
    for columns in (("premise", "hypothesis"), ("text",), ("text_a",)):
        rows = [{"text_a": "a", "text_b": "b"}, dict.fromkeys(columns, "a")]
        path = write_rows(tmp_path / "rows.jsonl", rows)
        sentence = refused("predict", *model, f"--input={path}", f"--output={tmp_path / 'out.jsonl'}")
        assert has_facts(sentence, f"{path}:2 ", f"{', '.join(columns)};")


def test_head_trained_on_pairs_refuses_single_texts(
    model: list[str], train: list[str], data: Path, write_rows: WriteRows, refused: Refused
) -> None:
    write_rows(data / "dev.jsonl", [{"text": "all", "label": "few"}, {"text": "some", "label": "many"}])
    sentence = refused("eval", *model, f"--source={data}")
    assert 'head "target-fusion"' in sentence
    assert "pairs of texts" in sentence
    assert "single texts" in sentence
    sentence = refused(*train)
    assert has_facts(sentence, "target", "train rows", "pairs of texts")
    assert has_facts(sentence, "dev rows", "single texts")


@pytest.mark.parametrize("link", ["rows.jsonl", "other.jsonl"])
def test_circular_and_dangling_symlinks_are_refused(
    link: str, model: list[str], train: list[str], data: Path, tmp_path: Path, refused: Refused
) -> None:
    path = tmp_path / "rows.jsonl"
    path.symlink_to(link)
    out = f"--output={tmp_path / 'out.jsonl'}"
    assert str(path) in refused("predict", *model, f"--input={path}", out)
    assert str(path) in refused("eval", *model, f"--source={path}")
    (data / "dev.jsonl").unlink()
    (data / "dev.jsonl").symlink_to("dev.jsonl" if link == path.name else link)
    assert str(data / "dev.jsonl") in refused(*train)
    (data / "labels.json").symlink_to("labels.json")
    assert str(data / "labels.json") in refused(*train)


@pytest.mark.parametrize(
    "source",
    [
        *("tfds:", "tfds:a b", "tfds:nothing/at/all", "http://x/y", "https://x", "foo://x/y", "S3://x/y", "gs://"),
        *("builtin:none", "hf:", "official:", "official:rte:", "foo:bar", "a" * 5000, "a/" * 5000),
    ],
)
def test_missing_sources_are_refused(source: str, model: list[str], train: list[str], refused: Refused) -> None:
    name = source.removeprefix("builtin:")[:30]
    assert name in refused("eval", *model, f"--source={source}")
    assert name in refused(*train, f"--config.task.source={source}")


@pytest.mark.parametrize("depth", [65, 990, 200_000])
def test_deeply_nested_rows_and_label_names_are_refused(
    depth: int, train: list[str], data: Path, refused: Refused
) -> None:
    nested = b"[" * depth + b"]" * depth
    path = write_split(data, "dev", "dev.jsonl", GOOD + GOOD.replace(b'"few"', nested))
    assert f"{path}:2 " in refused(*train)
    write_split(data, "dev", "dev.jsonl", GOOD)
    (data / "labels.json").write_bytes(nested)
    assert f"{data / 'labels.json'} " in refused(*train)


def test_label_with_5000_digits_is_refused(model: list[str], train: list[str], data: Path, refused: Refused) -> None:
    for digits in (b"9" * 5000, b'"' + b"9" * 5000 + b'"'):
        path = write_split(data, "dev", "dev.jsonl", GOOD + GOOD.replace(b'"few"', digits))
        assert f"{path}:2 " in refused(*train)
        assert f"{path}:2 " in refused("eval", *model, f"--source={data}")


@pytest.mark.parametrize("seed", ["99999999999999999999999", str(2**32), "-1"])
def test_seeds_without_a_unique_key_are_refused(seed: str, train: list[str], refused: Refused) -> None:
    sentence = refused(*train, f"--config.seed={seed}")
    assert seed in sentence
    assert str(2**32 - 1) in sentence


def test_predict_refuses_to_overwrite_its_input(
    model: list[str], write_rows: WriteRows, tmp_path: Path, refused: Refused
):
    path = write_rows(tmp_path / "rows.jsonl")
    sentence = refused("predict", *model, f"--input={path}", f"--output={tmp_path / 'x' / '..' / 'rows.jsonl'}")
    assert has_facts(sentence, "--input", "--output", str(path))


def test_split_with_a_single_class_warns(train: list[str], data: Path, write_rows: WriteRows) -> None:
    write_rows(data / "dev.jsonl", [{"text_a": "all", "text_b": "two", "label": "many"}] * 3)
    with pytest.warns(UserWarning, match=r'All rows.*dev.jsonl.*label "many"'):
        assert main(train) == 0


# Invalid settings.


def test_invalid_settings_are_refused(train: list[str], refused: Refused) -> None:
    sentence = refused(*train, "--config.train.epoch=3")
    assert has_facts(sentence, "config.train.epoch ", 'Did you mean "epochs"?')
    assert has_facts(refused(*train, "--config.train.epochs"), "--config.train.epochs ", "no value")
    assert has_facts(refused(*train, "--config.train.batch_size=0"), "train.batch_size is 0", "at least 1")
    sentence = refused(*train, "--config.train.max_length=500", "--config.train.buckets=()")
    assert has_facts(sentence, "max_length is 500", "trunk")
    assert "4 to 128 tokens" in sentence
    assert has_facts(refused(*train, "--config.task.metric=pearson"), '"pearson"', "classification", "accuracy")


def test_incompatible_flags_are_refused(model: list[str], data: Path, refused: Refused) -> None:
    source = f"--source={data}"
    sentence = refused("eval", *model, source, "--adapter=first")
    assert has_facts(sentence, "--adapter=first", "--fusion=target-fusion")
    assert "max_length is 129" in refused("eval", *model, source, "--max_length=129")
    assert "max_length is 0" in refused("eval", *model, source, "--max_length=0")
    assert has_facts(refused("eval", *model, source, "--batch_size=0"), "batch_size is 0", "at least 1")
    assert has_facts(refused("eval", *model, source, "--drop_layers=top"), "--drop_layers is top", "numbers")
    assert has_facts(refused("eval", *model, source, "--drop_layers=0,2"), "Layer 2 ", "drop")
    assert 'Did you mean "second"?' in refused("eval", *model, source, "--without=secnod")
    assert has_facts(refused("eval", *model, source, "--with=first"), '"first"', "already")
    assert has_facts(refused("prune", *model, source, "--keep=1"), "--keep", "--name")
    assert has_facts(refused("prune", *model, source, "--keep=3", "--name=small"), "3 adapters", "kept", "1 to 2")
    named = ["--keep=1", "--name=small"]
    assert has_facts(refused("prune", *model, source, *named, "--drop_layers=0"), "--drop_layers", "stored")
    assert has_facts(refused("prune", *model, source, "--keep=1", "--name=first"), '"first"', "heads")
    assert has_facts(refused("prune", *model, source, "--keep=1", "--name=x/y"), "fusion", '"x/y"')
    nowhere = f"--output={data / 'nowhere' / 'curve.csv'}"
    for command in ("prune", "adapterdrop"):
        assert has_facts(refused(command, *model, source, nowhere), "not a folder", "--output")
    assert "--rank_rows is 0" in refused("prune", *model, source, "--rank_rows=0")
    head = [*model[:2], "--head=first", source]
    assert has_facts(refused("prune", *head, "--adapter=first"), '"first"', "without a fusion")
    assert has_facts(refused("adapterdrop", *head, "--allow_mismatch"), '"first"', "without adapters")
    flags = [f"--input={data / 'dev.jsonl'}", f"--output={data / 'out.jsonl'}"]
    assert "max_length is 129" in refused("predict", *model, *flags, "--max_length=129")
    assert "batch_size is -1" in refused("predict", *model, *flags, "--batch_size=-1")
    assert "max_length=500" in refused("bench", model[1], "--method=full", "--mode=eval", "--max_length=500")
    assert "--num_steps is 0" in refused("bench", model[1], "--method=full", "--mode=eval", "--num_steps=0")
    assert 'Did you mean "bert-base"?' in refused("bench", "--trunk=bert-bas", "--method=full", "--mode=eval")


# Names and artifacts that do not match the store.


def test_names_missing_from_the_store_are_refused(model: list[str], store: Path, data: Path, refused: Refused) -> None:
    words = ["eval", *model[:2], f"--source={data}"]
    sentence = refused(*words, "--adapter=frist", "--head=first")
    assert has_facts(sentence, 'adapter "frist"', f"store {store}", 'Did you mean "first"?', "first, second")
    assert has_facts(refused(*words, "--head=target-fusoin"), 'head "target-fusoin"', "store")
    assert has_facts(refused(*words, "--head=first", "--fusion=x"), 'fusion "x"', "store")
    sentence = refused("store", "show", "secnd", f"--store={store}")
    assert has_facts(sentence, f"store {store}", '"secnd"', 'Did you mean "second"?')
    for action in ("ls", "verify"):
        sentence = refused("store", action, f"--store={store / 'nothing'}")
        assert has_facts(sentence, "no store", str(store / "nothing"))
    sentence = refused("eval", f"--store={store / 'x'}", model[1], "--head=a", f"--source={data}")
    assert has_facts(sentence, "no store", str(store / "x"))


@pytest.fixture
def other_trunk(tiny_trunk_folder: Path, tmp_path: Path) -> Path:
    """Copies the tiny trunk and changes one of its weights."""
    folder = shutil.copytree(tiny_trunk_folder, tmp_path / "other")
    tensors = load_file(folder / "model.safetensors")
    tensors["embeddings.LayerNorm.bias"][0] += 1
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_adapter_trained_on_a_different_trunk_is_refused(
    train: list[str], model: list[str], store: Path, other_trunk: Path, data: Path, refused: Refused
) -> None:
    source = f"--source={data}"
    sentence = refused("eval", model[0], f"--trunk={other_trunk}", "--head=first", "--adapter=first", source)
    assert has_facts(sentence, 'head "first"', "trunk")
    assert load_trunk(str(other_trunk)).sha256 in sentence
    # The run is refused before any training, even if the first source is not trained yet.
    shutil.rmtree(store / "adapters" / "first")
    shutil.rmtree(store / "heads" / "first")
    words = [train[1].removesuffix(":recipe=single"), train[2], f"--store={store}", f"--config.trunk={other_trunk}"]
    sentence = refused("train", *words, "--config.name=new")
    assert has_facts(sentence, 'adapter "second"', "trunk")


def flip_a_bit(folder: Path) -> str:
    path = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 1
    path.write_bytes(contents)
    return str(path)


def test_flipped_bit_in_the_store_is_detected(
    train: list[str], model: list[str], store: Path, data: Path, refused: Refused
):
    damaged = flip_a_bit(store / "adapters" / "second" / "params")
    sentence = refused("eval", *model, f"--source={data}")
    assert "changed" in sentence
    assert damaged in sentence
    words = [train[1].removesuffix(":recipe=single"), train[2], f"--store={store}", "--config.name=new"]
    assert damaged in refused("train", *words)


def test_verify_reports_damage_and_exits_with_2(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = flip_a_bit(store / "heads" / "first" / "params")
    assert main(["store", "verify", f"--store={store}"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line.endswith(": ok") for line in lines] == [True, True, True, False, True, True]
    assert damaged in lines[3]


def test_missing_leaf_in_the_store_is_detected(model: list[str], store: Path, data: Path, refused: Refused) -> None:
    leaf = next((store / "adapters" / "first" / "params").glob("ffn.up.kernel*"))
    shutil.rmtree(leaf)
    sentence = refused("eval", *model, f"--source={data}")
    assert str(store / "adapters" / "first") in sentence
    assert has_facts(sentence, "- missing", "+ unexpected", "-ffn/up/kernel")


def test_fusing_adapters_with_different_slots_is_refused(
    train: list[str], store: Path, tiny_trunk_folder: Path, refused: Refused
) -> None:
    trunk, config = load_trunk(str(tiny_trunk_folder)), AdapterConfig(position="both")
    tree = new_adapter(jax.random.key(0), "second", config, trunk.config, trunk.params)
    draft = artifacts.Draft("adapters", "second", tree, config=to_dict(config), trunk=trunk.identity())
    artifacts.save(store, draft, overwrite=True)
    words = [train[1].removesuffix(":recipe=single"), train[2], f"--store={store}", "--config.name=new"]
    assert has_facts(refused("train", *words), '"first"', '"second"', "slots")


def test_head_with_a_different_number_of_labels_is_refused(
    model: list[str], data: Path, write_rows: WriteRows, refused: Refused
) -> None:
    rows = [{"text_a": "all", "text_b": "two", "label": label} for label in ("few", "many", "none")]
    write_rows(data / "dev.jsonl", rows)
    source = f"--source={data}"
    sentence = refused("eval", *model, source)
    assert has_facts(sentence, f"{data / 'dev.jsonl'}:3 ", "'none'", "few, many")
    # If labels.json names the labels, the names are compared even if the rows contain indices.
    (data / "labels.json").write_text('["few", "many", "none"]')
    write_rows(data / "dev.jsonl", [{**row, "label": index % 2} for index, row in enumerate(rows)])
    sentence = refused("eval", *model, source)
    assert has_facts(sentence, "['few', 'many', 'none']", 'head "target-fusion"')
    assert "builtin" not in sentence
    assert has_facts(refused("eval", *model, "--source=builtin:entail"), "labels", 'head "target-fusion"')


# Damaged trunks.


def test_incomplete_trunk_folders_are_refused(
    model: list[str], train: list[str], tiny_trunk_folder: Path, data: Path, tmp_path: Path, refused: Refused
) -> None:
    folder = shutil.copytree(tiny_trunk_folder, tmp_path / "trunk")
    words = ["eval", model[0], f"--trunk={folder}", *model[2:], f"--source={data}"]
    training = [*train, f"--config.trunk={folder}"]
    (folder / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    for command in (words, training):
        assert has_facts(refused(*command), f"{folder} ", "tokenizer.json")
    (folder / "tokenizer.json").write_text("{")
    for command in (words, training):
        assert has_facts(refused(*command), "tokenizer", f"{folder} ", "cannot be read")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    for command in (words, training):
        assert has_facts(refused(*command), f"{folder / 'model.safetensors'} ", "cannot be read")
    (folder / "model.safetensors").unlink()
    for command in (words, training):
        assert has_facts(refused(*command), f"{folder} ", "no weights", "model.safetensors")
    (folder / "config.json").unlink()
    for command in (words, training):
        assert f"{folder / 'config.json'} does not exist" in refused(*command)
    (folder / "config.json").write_text('{"model_type": "t5"}')
    assert '"t5"' in refused(*words)
    sentence = refused(*words[:2], f"--trunk={folder}/x", *words[3:])
    assert has_facts(sentence, f'"{folder}/x"', "not a folder", "config.json")


def test_hub_id_without_network_is_refused(
    model: list[str], data: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    sentence = refused("eval", model[0], "--trunk=someone/some-bert", *model[2:], f"--source={data}")
    assert has_facts(sentence, '"someone/some-bert"', "fetched")
    assert has_facts(sentence, "network", "config.json", "model.safetensors", "tokenizer")


# Paths that cannot be written.


def test_unusable_output_paths_are_refused(
    train: list[str], model: list[str], data: Path, tmp_path: Path, refused: Refused
) -> None:
    (tmp_path / "file").write_text("kept")
    sentence = refused(*train[:2], f"--workdir={tmp_path / 'file'}")
    assert has_facts(sentence, f"workdir {tmp_path / 'file'} ", "cannot be used")
    assert has_facts(refused(*train, f"--store={tmp_path / 'file'}"), f"{tmp_path / 'file'} is not a folder")
    (tmp_path / "link").symlink_to(tmp_path / "no")
    assert has_facts(refused(*train, f"--store={tmp_path / 'link'}"), f"{tmp_path / 'link'} is a broken link")
    words = ["predict", *model, f"--input={data / 'dev.jsonl'}"]
    assert f"{tmp_path / 'file' / 'x'} cannot be written" in refused(*words, f"--output={tmp_path / 'file' / 'x'}")
    sentence = refused(*words, f"--output={tmp_path / 'no' / 'x'}")
    assert has_facts(sentence, f"{tmp_path / 'no' / 'x'} cannot be written", f"{tmp_path / 'no'} is not")
    assert has_facts(refused(*words, f"--output={data}"), f"{data} is a folder", "--output")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_read_only_folder_is_refused(
    train: list[str], model: list[str], data: Path, tmp_path: Path, refused: Refused
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    sentence = refused(*train[:2], f"--workdir={locked / 'run'}")
    assert has_facts(sentence, f"workdir {locked / 'run'} ", f"{locked} cannot be written")
    sentence = refused(*train, f"--store={locked / 'store'}")
    assert has_facts(sentence, f"store {locked / 'store'} ", f"{locked} cannot be written")
    words = ["predict", *model, f"--input={data / 'dev.jsonl'}", f"--output={locked / 'out.jsonl'}"]
    assert "(Permission denied)" in refused(*words)


def full_disk(*arguments: object, **keywords: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def last_sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """Returns the last message on stderr, without the progress bar."""
    lines = [line.rpartition("\r")[2] for line in capsys.readouterr().err.splitlines()]
    assert [line.startswith("afjax: ") for line in lines].count(True) == 1
    assert lines[-1].startswith("afjax: ")
    assert not any("Traceback" in line for line in lines)
    return lines[-1]


def test_full_disk_while_writing_a_checkpoint(
    train: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*train, "--config.train.max_steps=4", "--config.train.eval_every=2"]
    assert main(words) == 0
    shutil.move(tmp_path / "run", tmp_path / "whole")
    capsys.readouterr()
    usages = iter([10**9, 1_000])  # The free bytes suffice for the first checkpoint, but not for the second.
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=next(usages)))
        assert main(words) == 2
    folder = tmp_path / "run" / "target" / "checkpoints"
    sentence = last_sentence(capsys)
    assert has_facts(sentence, "checkpoint", str(folder), "No space left on device")
    assert [path.name for path in folder.iterdir()] == ["2"]
    assert artifacts.entries(tmp_path / "run" / "store") == []
    # With enough space, the same command finishes as if the disk had never been full.
    assert main(words) == 0
    runs = [artifacts.read_manifest(tmp_path / name / "store", "adapters", "target") for name in ("run", "whole")]
    assert runs[0].digest == runs[1].digest


def test_full_disk_while_saving_to_the_store(
    train: list[str], store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*train, f"--store={store}", "--config.name=new"]
    before = sorted(store.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(artifacts.checkpoint, "write", full_disk)
        assert main(words) == 2
    assert has_facts(last_sentence(capsys), 'adapter "new"', 'head "new"', str(store), "No space left on device")
    written = {path.relative_to(store).parts[0] for path in set(store.rglob("*")) - set(before)}
    assert written <= {".lock", ".runs"}
    # Nothing is retrained, because the run only has to save.
    assert main(words) == 0
    assert artifacts.verify(store) == []


def test_full_disk_while_writing_predictions(
    model: list[str], data: Path, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out.jsonl").write_text("kept\n")
    words = ["predict", *model, f"--input={data / 'dev.jsonl'}", f"--output={tmp_path / 'out.jsonl'}"]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full_disk)
        sentence = refused(*words)
    assert has_facts(sentence, str(tmp_path / "out.jsonl"), "No space left on device")


def test_full_disk_in_the_run_folder(
    train: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RunLog, "write", full_disk)
        assert main(train) == 2
    assert has_facts(last_sentence(capsys), str(tmp_path / "run" / "target"), "No space left on device")
    assert main(train) == 0


def test_non_finite_loss_is_refused(train: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*train, "--config.train.learning_rate=1e38", "--config.train.eval_every=2"]) == 2
    sentence = last_sentence(capsys)
    assert has_facts(sentence, "finite", "step 2")
    report = json.loads((tmp_path / "run" / "target" / "not_finite_step_2" / "report.json").read_text())
    assert len(report["train_rows"]) == 8
    assert np.unique(report["train_rows"]).tolist() == list(range(8))


def test_non_finite_dev_outputs_give_no_score(
    train: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*train, "--config.train.learning_rate=1e38", "--config.train.eval_every=1"]) == 2
    sentence = last_sentence(capsys)
    assert has_facts(sentence, "dev rows", "step 1")
    assert "row 1 (of 8)" in sentence
    assert "dev/" not in (tmp_path / "run" / "target" / "metrics.jsonl").read_text()
