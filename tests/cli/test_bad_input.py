"""Bad input: one clear message on one line, exit code 2, and nothing written or lost."""

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
from safetensors.numpy import load_file, save_file

from afjax import store as artefacts
from afjax.cli.main import main
from afjax.config.adapters import AdapterConfig
from afjax.config.from_dict import to_dict
from afjax.model.setup import new_adapter
from afjax.train import checkpoints
from afjax.train.logs import RunLog
from afjax.trunk.pretrained import load_trunk

pytestmark = pytest.mark.slow

Refused = Callable[..., str]
WriteRows = Callable[..., Path]

GOOD = b'{"text_a": "all", "text_b": "some", "label": "few"}\n'
PACKED = gzip.compress(GOOD * 200)


@pytest.fixture
def train(config: Path, tmp_path: Path) -> list[str]:
    """A training command on ``data``."""
    return ["train", f"--config={config}:recipe=single", f"--workdir={tmp_path / 'run'}"]


@pytest.fixture
def model(store: Path, tiny_trunk_folder: Path) -> list[str]:
    """The flags of a fusion of ``store``."""
    return [f"--store={store}", f"--trunk={tiny_trunk_folder}", "--fusion=target-fusion", "--head=target-fusion"]


def write_split(folder: Path, split: str, name: str, contents: bytes) -> Path:
    """Replaces the file of a split."""
    (folder / f"{split}.jsonl").unlink(missing_ok=True)
    path = folder / name.format(split)
    path.write_bytes(contents)
    return path


# Files of rows. Each case: the file's name, its contents, and the message after the file's path.
FILES = {
    "empty": ("{}.jsonl", b"", " has no rows; give a file with at least one"),
    "blank": ("{}.jsonl", b"\n\n", " has no rows"),
    "truncated": ("{}.jsonl.gz", PACKED[: len(PACKED) // 2], " ends in the middle of its gzip data after line"),
    "not gzip": ("{}.jsonl.gz", GOOD, " is not valid gzip data"),
    "not UTF-8": ("{}.jsonl", GOOD + "é\n".encode("latin-1"), ":2 is not UTF-8 (byte 0xe9 at column 1)"),
    "malformed": ("{}.jsonl", GOOD + b'{"text_a": \n', ":2 is not JSON"),
    "cut off": ("{}.jsonl", GOOD + GOOD[:20], ":2 is not JSON"),
    "no object": ("{}.jsonl", GOOD + b"[1, 2]\n", ":2 is [1, 2]; "),
    "not a text": ("{}.jsonl", GOOD + GOOD.replace(b'"all"', b"3"), ':2 has 3 in the column "text_a"'),
}
# Errors that only labelled rows can have.
LABELLED_FILES = {
    "missing column": ("{}.jsonl", GOOD + b'{"text_a": "all", "label": "few"}\n', ':2 has no column "text_b"'),
    "no label column": ("{}.jsonl", GOOD.replace(b"label", b"labels"), ':1 has no column "label"'),
    "unknown label": ("{}.jsonl", GOOD + GOOD.replace(b'"few"', b'"fwe"'), ":2 has the label 'fwe'; the labels are "),
    "missing label": ("{}.jsonl", GOOD + GOOD.replace(b'"few"', b"null"), ":2 has no label"),
    "empty label": ("{}.jsonl", GOOD + GOOD.replace(b'"few"', b'""'), ":2 has no label"),
    "NaN label": ("{}.jsonl", GOOD + GOOD.replace(b'"few"', b"NaN"), ":2 has the label nan"),
    "uneven TSV": ("{}.tsv", b"text_a\ttext_b\tlabel\nall\tsome\tfew\nall\tfew\n", ":3 has 2 columns"),
    "unclosed CSV": ("{}.csv", b'text_a,text_b,label\nall,"some,few\n', ":2 is not CSV"),
}


@pytest.mark.parametrize("case", [*FILES, *LABELLED_FILES])
def test_train_refuses_a_damaged_file(case: str, train: list[str], data: Path, refused: Refused) -> None:
    (data / "labels.json").write_text('["few", "many"]')
    name, contents, sentence = (FILES | LABELLED_FILES)[case]
    # A damaged dev split is found as early as a damaged train split.
    path = write_split(data, "dev", name, contents)
    assert f"{path}{sentence}" in refused(*train)


@pytest.mark.parametrize("case", [*FILES, *LABELLED_FILES])
def test_eval_refuses_a_damaged_file(case: str, model: list[str], data: Path, refused: Refused) -> None:
    name, contents, sentence = (FILES | LABELLED_FILES)[case]
    path = write_split(data, "test", name, contents)
    assert f"{path}{sentence}" in refused("eval", *model, f"--source={data}", "--split=test")


@pytest.mark.parametrize("case", FILES)
def test_predict_refuses_a_damaged_file(case: str, model: list[str], tmp_path: Path, refused: Refused) -> None:
    name, contents, sentence = FILES[case]
    path = write_split(tmp_path, "rows", name, contents)
    output = tmp_path / "out.jsonl"
    output.write_text("kept\n")
    assert f"{path}{sentence}" in refused("predict", *model, f"--input={path}", f"--output={output}")


def test_missing_files_are_refused(train: list[str], model: list[str], data: Path, refused: Refused) -> None:
    out = f"--output={data / 'out.jsonl'}"
    sentence = refused("predict", *model, f"--input={data / 'tran.jsonl'}", out)
    assert sentence == (
        f'The file {data / "tran.jsonl"} does not exist; give the path of a data file. Did you mean "train.jsonl"?'
    )
    assert ".jsonl.gz" in refused("predict", *model, f"--input={data / 'rows.txt'}", out)
    sentence = refused("eval", *model, f"--source={data}", "--split=test")
    assert f"The task target has no test split: {data} has no file test.jsonl" in sentence
    assert f"There is no folder {data / 'x'}" in refused("eval", *model, f"--source={data / 'x'}")
    (data / "dev.jsonl").unlink()
    assert "has no dev split" in refused(*train, "--config.task.dev_share=0")
    assert "There is no folder" in refused(*train, f"--config.task.source={data / 'nothing'}")
    assert 'There is no built-in task "ential"' in refused(*train, "--config.task.source=builtin:ential")


def test_predict_refuses_unknown_columns(
    model: list[str], write_rows: WriteRows, tmp_path: Path, refused: Refused
) -> None:
    for columns in (("premise", "hypothesis"), ("text",), ("text_a",)):
        rows = [{"text_a": "a", "text_b": "b"}, dict.fromkeys(columns, "a")]
        path = write_rows(tmp_path / "rows.jsonl", rows)
        sentence = refused("predict", *model, f"--input={path}", f"--output={tmp_path / 'out.jsonl'}")
        assert f"{path}:2 has the columns {', '.join(columns)};" in sentence


def test_head_trained_on_pairs_refuses_single_texts(
    model: list[str], train: list[str], data: Path, write_rows: WriteRows, refused: Refused
) -> None:
    write_rows(data / "dev.jsonl", [{"text": "all", "label": "few"}, {"text": "some", "label": "many"}])
    sentence = refused("eval", *model, f"--source={data}")
    assert 'head "target-fusion"' in sentence
    assert "pairs of texts" in sentence
    assert "single texts" in sentence
    sentence = refused(*train)
    assert "The task target's train rows are pairs of texts" in sentence
    assert "dev rows are single texts" in sentence


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
        *("builtin:none", "official:", "official:rte:", "foo:bar", "a" * 5000, "a/" * 5000),
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
    assert f"--input and --output are both {path}" in sentence


def test_split_with_a_single_class_warns(train: list[str], data: Path, write_rows: WriteRows) -> None:
    write_rows(data / "dev.jsonl", [{"text_a": "all", "text_b": "two", "label": "many"}] * 3)
    with pytest.warns(UserWarning, match=r'All rows of .*dev.jsonl have the label "many"'):
        assert main(train) == 0


# Invalid settings


def test_invalid_settings_are_refused(train: list[str], refused: Refused) -> None:
    assert 'config.train.epoch is not a known setting. Did you mean "epochs"?' in refused(
        *train, "--config.train.epoch=3"
    )
    assert "--config.train.epochs has no value" in refused(*train, "--config.train.epochs")
    assert "train.batch_size is 0; it must be at least 1" in refused(*train, "--config.train.batch_size=0")
    sentence = refused(*train, "--config.train.max_length=500", "--config.train.buckets=()")
    assert "max_length is 500; the trunk" in sentence
    assert "takes rows of 4 to 128 tokens" in sentence
    assert "does not fit a classification task" in refused(*train, "--config.task.metric=pearson")


def test_incompatible_flags_are_refused(model: list[str], data: Path, refused: Refused) -> None:
    source = f"--source={data}"
    sentence = refused("eval", *model, source, "--adapter=first")
    assert sentence == "Both --adapter=first and --fusion=target-fusion were given; give one of them."
    assert "max_length is 129" in refused("eval", *model, source, "--max_length=129")
    assert "max_length is 0" in refused("eval", *model, source, "--max_length=0")
    assert "batch_size is 0; it must be at least 1" in refused("eval", *model, source, "--batch_size=0")
    assert "--drop_layers is top; give layer numbers" in refused("eval", *model, source, "--drop_layers=top")
    assert "Layer 2 has no adapter to drop" in refused("eval", *model, source, "--drop_layers=0,2")
    assert 'Did you mean "second"?' in refused("eval", *model, source, "--without=secnod")
    assert '"first" is already fused' in refused("eval", *model, source, "--with=first")
    assert "Give --keep and --name together" in refused("prune", *model, source, "--keep=1")
    assert "3 adapters cannot be kept" in refused("prune", *model, source, "--keep=3", "--name=small")
    named = ["--keep=1", "--name=small"]
    assert "--drop_layers cannot be stored" in refused("prune", *model, source, *named, "--drop_layers=0")
    assert 'already has "first" in heads' in refused("prune", *model, source, "--keep=1", "--name=first")
    assert 'fusion name "x/y" cannot be used' in refused("prune", *model, source, "--keep=1", "--name=x/y")
    nowhere = f"--output={data / 'nowhere' / 'curve.csv'}"
    for command in ("prune", "adapterdrop"):
        assert "is not a folder; give another --output" in refused(command, *model, source, nowhere)
    assert "--rank_rows is 0" in refused("prune", *model, source, "--rank_rows=0")
    head = [*model[:2], "--head=first", source]
    assert "is used without a fusion" in refused("prune", *head, "--adapter=first")
    assert "is used without adapters" in refused("adapterdrop", *head, "--allow_mismatch")
    flags = [f"--input={data / 'dev.jsonl'}", f"--output={data / 'out.jsonl'}"]
    assert "max_length is 129" in refused("predict", *model, *flags, "--max_length=129")
    assert "batch_size is -1" in refused("predict", *model, *flags, "--batch_size=-1")
    assert 'Give a NAME with "store show"' in refused("store", "show", model[0])
    assert "max_length=500" in refused("bench", model[1], "--method=full", "--mode=eval", "--max_length=500")
    assert "--num_steps is 0" in refused("bench", model[1], "--method=full", "--mode=eval", "--num_steps=0")
    assert 'Did you mean "bert-base"?' in refused("bench", "--trunk=bert-bas", "--method=full", "--mode=eval")


# The store


def test_names_missing_from_the_store_are_refused(model: list[str], store: Path, data: Path, refused: Refused) -> None:
    words = ["eval", *model[:2], f"--source={data}"]
    sentence = refused(*words, "--adapter=frist", "--head=first")
    assert f'The adapter "frist" is not in the store {store}. Did you mean "first"? It has: first, second.' == sentence
    assert 'The head "target-fusoin" is not in the store' in refused(*words, "--head=target-fusoin")
    assert 'The fusion "x" is not in the store' in refused(*words, "--head=first", "--fusion=x")
    assert f'Nothing in the store {store} is named "secnd". Did you mean "second"?' in refused(
        "store", "show", "secnd", f"--store={store}"
    )
    for action in ("ls", "verify"):
        assert "There is no store at" in refused("store", action, f"--store={store / 'nothing'}")
    assert "is not in the store" in refused("eval", f"--store={store / 'x'}", model[1], "--head=a", f"--source={data}")


@pytest.fixture
def other_trunk(tiny_trunk_folder: Path, tmp_path: Path) -> Path:
    """The tiny trunk with one number changed."""
    folder = shutil.copytree(tiny_trunk_folder, tmp_path / "other")
    tensors = load_file(folder / "model.safetensors")
    tensors["embeddings.LayerNorm.bias"][0] += 1
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_adapter_trained_on_another_trunk_is_refused(
    train: list[str], model: list[str], store: Path, other_trunk: Path, data: Path, refused: Refused
) -> None:
    source = f"--source={data}"
    sentence = refused("eval", model[0], f"--trunk={other_trunk}", "--head=first", "--adapter=first", source)
    assert 'The head "first" was trained on the trunk' in sentence
    assert load_trunk(str(other_trunk)).sha256 in sentence
    # Refused before anything is trained, even if the first source still has to be trained.
    shutil.rmtree(store / "adapters" / "first")
    shutil.rmtree(store / "heads" / "first")
    words = [train[1].removesuffix(":recipe=single"), train[2], f"--store={store}", f"--config.trunk={other_trunk}"]
    sentence = refused("train", *words, "--config.name=new")
    assert 'The adapter "second" was trained on the trunk' in sentence


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
    assert "was changed after it was written" in sentence
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
    assert "missing (-) or too many (+): -ffn/up/kernel" in sentence


def test_fusing_adapters_with_different_slots_is_refused(
    train: list[str], store: Path, tiny_trunk_folder: Path, refused: Refused
) -> None:
    trunk, config = load_trunk(str(tiny_trunk_folder)), AdapterConfig(position="both")
    tree = new_adapter(jax.random.key(0), "second", config, trunk.config, trunk.params)
    shared = {"config": to_dict(config), "trunk": trunk.identity(), "overwrite": True}
    artefacts.save(store, "adapters", "second", tree, **shared)
    words = [train[1].removesuffix(":recipe=single"), train[2], f"--store={store}", "--config.name=new"]
    assert 'Adapters "first" and "second" sit in different slots' in refused("train", *words)


def test_head_with_another_number_of_labels_is_refused(
    model: list[str], data: Path, write_rows: WriteRows, refused: Refused
) -> None:
    rows = [{"text_a": "all", "text_b": "two", "label": label} for label in ("few", "many", "none")]
    write_rows(data / "dev.jsonl", rows)
    source = f"--source={data}"
    sentence = refused("eval", *model, source)
    assert f"{data / 'dev.jsonl'}:3 has the label 'none'; the labels are few, many" in sentence
    # If the data names its labels, those names count, even if the rows give indices.
    (data / "labels.json").write_text('["few", "many", "none"]')
    write_rows(data / "dev.jsonl", [{**row, "label": index % 2} for index, row in enumerate(rows)])
    sentence = refused("eval", *model, source)
    assert "have the labels ['few', 'many', 'none'], but the head \"target-fusion\" was trained for" in sentence
    assert "builtin" not in sentence
    assert "but the head" in refused("eval", *model, "--source=builtin:entail")


# Trunks


def test_incomplete_trunk_folders_are_refused(
    model: list[str], train: list[str], tiny_trunk_folder: Path, data: Path, tmp_path: Path, refused: Refused
) -> None:
    folder = shutil.copytree(tiny_trunk_folder, tmp_path / "trunk")
    words = ["eval", model[0], f"--trunk={folder}", *model[2:], f"--source={data}"]
    training = [*train, f"--config.trunk={folder}"]
    (folder / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    for command in (words, training):
        assert f"{folder} has no tokenizer; it needs tokenizer.json" in refused(*command)
    (folder / "tokenizer.json").write_text("{")
    for command in (words, training):
        assert f"The tokenizer in {folder} cannot be read" in refused(*command)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    for command in (words, training):
        assert f"{folder / 'model.safetensors'} cannot be read as safetensors" in refused(*command)
    (folder / "model.safetensors").unlink()
    for command in (words, training):
        assert f"{folder} has no weights; it needs model.safetensors" in refused(*command)
    (folder / "config.json").unlink()
    for command in (words, training):
        assert f"{folder / 'config.json'} does not exist" in refused(*command)
    (folder / "config.json").write_text('{"model_type": "t5"}')
    assert 'describes a "t5" model' in refused(*words)
    assert "is not a folder; give one with config.json" in refused(*words[:2], f"--trunk={folder}/x", *words[3:])


def test_hub_id_without_network_is_refused(
    model: list[str], data: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    sentence = refused("eval", model[0], "--trunk=someone/some-bert", *model[2:], f"--source={data}")
    assert 'The trunk "someone/some-bert" is not a local folder and could not be fetched' in sentence
    assert "without a network, give a folder with config.json, model.safetensors and a tokenizer" in sentence


# Paths that cannot be written


def test_unusable_output_paths_are_refused(
    train: list[str], model: list[str], data: Path, tmp_path: Path, refused: Refused
) -> None:
    (tmp_path / "file").write_text("kept")
    sentence = refused(*train[:2], f"--workdir={tmp_path / 'file'}")
    assert f"The workdir {tmp_path / 'file'} cannot be used" in sentence
    assert f"as {tmp_path / 'file'} is not a folder" in refused(*train, f"--store={tmp_path / 'file'}")
    words = ["predict", *model, f"--input={data / 'dev.jsonl'}"]
    assert f"{tmp_path / 'file' / 'x'} cannot be written" in refused(*words, f"--output={tmp_path / 'file' / 'x'}")
    assert f"{tmp_path / 'no' / 'x'} cannot be written: {tmp_path / 'no'} is not" in refused(
        *words, f"--output={tmp_path / 'no' / 'x'}"
    )
    assert f"{data} is a folder; give --output the name of a file" in refused(*words, f"--output={data}")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_read_only_folder_is_refused(
    train: list[str], model: list[str], data: Path, tmp_path: Path, refused: Refused
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    sentence = refused(*train[:2], f"--workdir={locked / 'run'}")
    assert f"The workdir {locked / 'run'} cannot be used, as {locked} cannot be written" in sentence
    assert f"as {locked} cannot be written" in refused(*train, f"--store={locked / 'store'}")
    words = ["predict", *model, f"--input={data / 'dev.jsonl'}", f"--output={locked / 'out.jsonl'}"]
    assert "cannot be written (Permission denied)" in refused(*words)


def full_disk(*arguments: object, **keywords: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def last_sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """The last message on stderr, which may also contain the progress bar."""
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
    usages = iter([10**9, 1_000])  # Free bytes: enough for the first checkpoint, not for the second.
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.shutil, "disk_usage", lambda path: SimpleNamespace(free=next(usages)))
        assert main(words) == 2
    folder = tmp_path / "run" / "target" / "checkpoints"
    sentence = last_sentence(capsys)
    assert f"A checkpoint could not be written to {folder} (No space left on device); make room" in sentence
    assert [path.name for path in folder.iterdir()] == ["2"]
    assert artefacts.entries(tmp_path / "run" / "store") == []
    # With enough room the same command finishes as if the disk had never been full.
    assert main(words) == 0
    runs = [artefacts.read_manifest(tmp_path / name / "store", "adapters", "target") for name in ("run", "whole")]
    assert runs[0].digest == runs[1].digest


def test_full_disk_while_saving_to_the_store(
    train: list[str], store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*train, f"--store={store}", "--config.name=new"]
    before = sorted(store.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(artefacts.checkpoint, "write", full_disk)
        assert main(words) == 2
    assert (
        f'The adapter "new" and the head "new" cannot be written to {store}: No space left on device.'
        in last_sentence(capsys)
    )
    written = {path.relative_to(store).parts[0] for path in set(store.rglob("*")) - set(before)}
    assert written <= {".lock", ".runs"}
    # Nothing is retrained: the run has finished and only saves.
    assert main(words) == 0
    assert artefacts.verify(store) == []


def test_full_disk_while_writing_predictions(
    model: list[str], data: Path, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out.jsonl").write_text("kept\n")
    words = ["predict", *model, f"--input={data / 'dev.jsonl'}", f"--output={tmp_path / 'out.jsonl'}"]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full_disk)
        sentence = refused(*words)
    assert f"{tmp_path / 'out.jsonl'} cannot be written (No space left on device); make room" in sentence


def test_full_disk_in_the_run_folder(
    train: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RunLog, "write", full_disk)
        assert main(train) == 2
    assert f"The run's folder {tmp_path / 'run' / 'target'} cannot be written (No space left" in last_sentence(capsys)
    assert main(train) == 0


def test_non_finite_loss_is_refused(train: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*train, "--config.train.learning_rate=1e38", "--config.train.eval_every=2"]) == 2
    sentence = last_sentence(capsys)
    assert "stopped being finite at step 2" in sentence
    report = json.loads((tmp_path / "run" / "target" / "not_finite_step_2" / "report.json").read_text())
    assert len(report["train_rows"]) == 8
    assert np.unique(report["train_rows"]).tolist() == list(range(8))


def test_non_finite_dev_outputs_give_no_score(
    train: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*train, "--config.train.learning_rate=1e38", "--config.train.eval_every=1"]) == 2
    sentence = last_sentence(capsys)
    assert "dev rows after step 1" in sentence
    assert "row 1 (of 8)" in sentence
    assert "dev/" not in (tmp_path / "run" / "target" / "metrics.jsonl").read_text()
