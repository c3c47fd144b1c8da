"""The tables of source kinds and file formats have complete entries."""

import dataclasses
from pathlib import Path

import pytest
from facts import has_facts

from afjax.config.tasks import NAMED_SOURCES, TaskConfig
from afjax.data.sources.formats import ENDINGS, FORMATS
from afjax.data.sources.kind import SourceKind
from afjax.data.sources.kinds import (
    SOURCE_KINDS,
    has_split,
    makes_dev,
    open_source,
    shared_source,
    source_kind,
    split_files,
)
from afjax.errors import UserError


@pytest.mark.parametrize("scheme", SOURCE_KINDS)
def test_every_source_kind_is_complete(scheme: str) -> None:
    kind = SOURCE_KINDS[scheme]
    assert kind.scheme == scheme
    for part in ("open_split", "has_split", "split_files", "makes_dev", "recognizes", "shared_form"):
        assert callable(getattr(kind, part))
    assert all(1 <= len(columns) <= 2 for columns in kind.text_columns)
    assert {field.name for field in dataclasses.fields(SourceKind)} == set(vars(kind))
    assert not scheme or f"{scheme}:" in NAMED_SOURCES


@pytest.mark.parametrize("ending", FORMATS)
def test_every_file_format_is_complete(ending: str) -> None:
    entry = FORMATS[ending]
    assert entry.ending == ending
    assert callable(entry.read_file)
    assert callable(entry.read_stream)
    assert (f"{ending}.gz" in ENDINGS) == entry.gzipped


@pytest.mark.parametrize(
    ("source", "scheme"),
    [
        ("builtin:entail", "builtin"),
        ("tfds:glue/rte", "tfds"),
        ("official:rte:DATA", "official"),
        ("rows.csv", ""),
        ("gs://bucket/rte", ""),
        ("C:\\rows.csv", ""),
        ("builtin", ""),
        ("", ""),
    ],
)
def test_prefix_before_the_colon_selects_the_kind(source: str, scheme: str) -> None:
    assert source_kind(source) is SOURCE_KINDS[scheme]


def test_folder_and_builtin_task_share_one_interface(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "fine", "label": "yes"}\n{"text": "poor", "label": "no"}\n')
    task = TaskConfig(name="reviews", source=str(tmp_path), dev_share=0.5)
    opened = open_source(task, "train")
    assert [row["text"] for _, row in opened.rows] == ["fine", "poor"]
    assert (has_split(task, "dev"), has_split(task, "test"), makes_dev(task)) == (True, False, True)
    assert split_files(task, "dev") == [str(tmp_path / "train.jsonl")]
    entail = TaskConfig(name="entail", source="builtin:entail")
    assert open_source(entail, "dev").label_names == ("entailment", "neutral", "contradiction")
    assert (has_split(entail, "test"), makes_dev(entail)) == (True, False)
    assert split_files(entail, "dev") == ["builtin:entail dev"]


@pytest.mark.parametrize("source", ["builtin:entail", "official:cola:DATA"])
def test_splits_of_fixed_sources_cannot_be_chosen(source: str) -> None:
    task = TaskConfig(name="mine", source=source, dev="mydev.tsv")
    for split in ("train", "dev"):
        with pytest.raises(UserError) as caught:
            open_source(task, split)
        assert has_facts(str(caught.value), "mine", '"dev"', "mydev.tsv", source)


def test_shared_sources_do_not_contain_local_folders() -> None:
    assert shared_source("builtin:entail") == "builtin:entail"
    assert shared_source("official:rte:/home/alice/DATA") == "official:rte:./DATA"
    assert shared_source("/home/alice/rte") == "./rte"
