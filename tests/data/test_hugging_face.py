"""Hugging Face datasets are loaded from ``save_to_disk`` folders, the hub and the cache."""

import contextlib
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from facts import has_facts
from labeled_datasets import PAIRS, labeled, names_of

from afjax.config.tasks import TaskConfig
from afjax.data.sources import hugging_face
from afjax.data.sources.hugging_face import possible_names
from afjax.data.sources.kinds import has_split, makes_dev, open_source, source_kind
from afjax.data.splits import ChoiceRows, Rows, SpanRows
from afjax.errors import UserError
from afjax.tasks.by_name import find_task
from afjax.tasks.load import load_split, load_task

datasets = pytest.importorskip("datasets")
datasets.disable_progress_bars()


def save(folder: Path, **splits: Any) -> str:
    datasets.DatasetDict(splits).save_to_disk(folder)
    return str(folder)


def refused(make: Callable[..., Any], *args: Any, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        make(*args, **settings)
    return str(caught.value)


# Folders.


def test_splits_of_a_saved_folder(tmp_path: Path) -> None:
    # The two splits list the label names in different orders.
    dev = labeled(1, 1, 0, names=("yes", "no"))
    source = save(tmp_path / "saved", train=labeled(0, 1, 1), validation=dev, test=labeled(-1, -1))
    task = TaskConfig(name="t", source=source)
    splits = load_task(task)
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 3, "dev": 3, "test": 2}
    assert isinstance(splits["train"], Rows)
    assert (splits["train"].text_a, splits["train"].text_b) == (PAIRS["text_a"][:3], PAIRS["text_b"][:3])
    assert [names_of(splits[split]) for split in ("train", "dev")] == [["no", "yes", "yes"], ["no", "no", "yes"]]
    assert splits["train"].label_names == splits["dev"].label_names == ("no", "yes")
    assert splits["test"].labels is None
    assert [place for place, _ in open_source(task, "dev").rows] == [f"{source} validation:{row}" for row in (1, 2, 3)]
    # The digests depend on the rows, not on the format.
    (tmp_path / "files").mkdir()
    for split, rows in (("train", labeled(0, 1, 1)), ("dev", labeled(0, 0, 1))):
        rows.to_parquet(tmp_path / "files" / f"{split}.parquet")
    for split in ("train", "dev"):
        same = load_split(TaskConfig(name="t", source=str(tmp_path / "files")), split)  # type: ignore[arg-type]
        assert same.digest() == splits[split].digest()


def test_saved_dataset_without_a_dev_split_is_divided_like_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {"text": [f"text {number}" for number in range(60)], "label": ["a", "b"] * 30}
    dataset = datasets.Dataset.from_dict(columns)
    dataset.save_to_disk(tmp_path / "saved")
    dataset.to_csv(tmp_path / "a.csv")
    found, expected = (load_task(TaskConfig(name="t", source=str(tmp_path / name))) for name in ("saved", "a.csv"))
    assert [rows.digest() for rows in found.values()] == [rows.digest() for rows in expected.values()]
    assert str(tmp_path / "saved") in capsys.readouterr().err
    # A dataset records its original split.
    dataset._split = datasets.Split.TEST
    dataset.save_to_disk(tmp_path / "test")
    task = TaskConfig(name="t", source=str(tmp_path / "test"))
    assert len(load_split(task, "test", label_names=("a", "b"))) == 60
    assert has_facts(refused(load_task, task), "train", str(tmp_path / "test"), "test", '"train"')


def test_slices_of_splits(tmp_path: Path) -> None:
    task = TaskConfig(
        name="t",
        source=save(tmp_path / "saved", train=labeled(0, 1, 1, 0), extra=labeled(1)),
        train="train[:75%]",
        dev="train[75%:]+extra",
    )
    splits = load_task(task)
    assert [len(splits[split]) for split in ("train", "dev")] == [3, 2]
    assert names_of(splits["dev"]) == ["no", "yes"]
    assert not makes_dev(task)


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        (
            {"dev": "validaton_matched"},
            ("train, validation_matched, other", '"dev"', 'Did you mean "validation_matched"?'),
        ),
        ({"dev": "train[:x]"}, ("train[:x]", "train, validation_matched, other", '"dev"')),
        ({"dev": "train+other"}, ("train+other", '"dev"')),
        ({"dev": "train[3:]"}, ("train[3:]", "no rows")),
        # A dev split with an unusual name is not ignored: the error suggests it.
        ({}, ("train, validation_matched, other", '"dev"', 'Did you mean "validation_matched"?')),
        ({"dev": "validation_matched", "text_a": "text"}, ("validation_matched:1 ", '"text"', "text_a, text_b, label")),
        ({"dev": "validation_matched", "label": "stars"}, ("validation_matched:1 ", '"stars"', "label")),
        ({"dev": "validation_matched"}, ("validation_matched:3 ", "no label")),
    ],
    ids=["unknown", "malformed", "other columns", "empty", "another name", "text", "label", "unlabeled row"],
)
def test_bad_splits_and_columns_are_refused(settings: dict[str, str], facts: tuple[str, ...], tmp_path: Path) -> None:
    splits = {"train": labeled(0, 1, 1), "validation_matched": labeled(0, 1, -1), "other": labeled(0, text_a=[5])}
    source = save(tmp_path / "saved", **splits)
    message = refused(load_split, TaskConfig(name="t", source=source, **settings), "dev")
    assert has_facts(message, source, *facts)


def test_folders_have_the_default_columns_of_files(tmp_path: Path) -> None:
    columns = {"sentence": ["one", "two"], "label": ["x", "y"]}
    source = save(tmp_path / "saved", train=datasets.Dataset.from_dict(columns))
    message = refused(load_split, TaskConfig(name="t", source=source), "train")
    assert has_facts(message, f"{source} train:1 ", "text_a and text_b", "sentence, label")
    rows = load_split(TaskConfig(name="t", source=source, text_a="sentence", dev_share=0), "train")
    assert len(rows) == 2


@pytest.mark.parametrize("damage", ["missing", "cut", "json"])
def test_damaged_folders_are_refused(damage: str, tmp_path: Path) -> None:
    source = save(tmp_path / "saved", train=labeled(0, 1, 1))
    (arrow,) = (tmp_path / "saved" / "train").glob("*.arrow")
    if damage == "missing":
        arrow.unlink()
    elif damage == "cut":
        arrow.write_bytes(arrow.read_bytes()[:-300])
    else:
        (arrow.parent / "state.json").write_text("{")
    assert source in refused(load_split, TaskConfig(name="t", source=source), "train")


def test_saved_folders_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save(tmp_path / "reviews", train=labeled(0, 1), dev=labeled(1, 0))
    assert find_task("reviews", tmp_path) == TaskConfig(name="reviews", source=source)
    (tmp_path / "mine.toml").write_text('source = "reviews"')
    monkeypatch.chdir(tmp_path)
    assert len(load_task(find_task("mine.toml"))["dev"]) == 2
    assert source_kind("reviews").scheme == ""


def test_other_kinds_of_tasks(tmp_path: Path) -> None:
    choices = {"context": ["x", "y"], "choices": [["a", "b"], ["c", "d", "e"]], "label": [0, 2]}
    answers = {"text": ["two"], "answer_start": [4]}
    spans = {"question": ["how many"], "context": ["the two"], "answers": [answers]}
    for name, columns in (("choices", choices), ("spans", spans)):
        datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / name)
    shared: dict[str, Any] = {"name": "t", "dev_share": 0}
    rows = load_split(TaskConfig(source=str(tmp_path / "choices"), kind="multiple_choice", **shared), "train")
    assert isinstance(rows, ChoiceRows)
    assert rows.choices == [("a", "b"), ("c", "d", "e")]
    rows = load_split(TaskConfig(source=str(tmp_path / "spans"), kind="span", **shared), "train")
    assert isinstance(rows, SpanRows)
    assert rows.labels == [(("two", 4),)]


def test_lists_stay_lists(tmp_path: Path) -> None:
    tags = datasets.List(datasets.ClassLabel(names=["O", "B"]))
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "tags": tags})
    columns = {"tokens": [["one", "two"], []], "tags": [[0, 1], []]}
    dataset = datasets.Dataset.from_dict(columns, features=features)
    source = save(tmp_path / "saved", train=dataset.with_format("numpy"))
    opened = open_source(TaskConfig(name="t", source=source, label="tags", dev_share=0), "train")
    assert opened.label_names == ("O", "B")
    expected = [{"tokens": ["one", "two"], "tags": ["O", "B"]}, {"tokens": [], "tags": []}]
    assert [row for _, row in opened.rows] == expected


# Hub.


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Replaces the hub with a dictionary that a test fills.

    It maps a dataset's full name to ``{config: {split: dataset}}``, or to the error to raise when it is loaded. A
    dataset is also found by its name without the organization.
    """
    import huggingface_hub

    contents: dict[str, Any] = {}
    not_found = huggingface_hub.errors.RepositoryNotFoundError(
        "none", response=SimpleNamespace(headers={}, request=None)
    )

    def dataset_info(self: Any, name: str, timeout: float) -> Any:
        full = next((full for full in contents if name in (full, full.partition("/")[2])), None)
        if full is None:
            raise not_found
        return SimpleNamespace(id=full)

    def load_dataset(path: str, config: str | None = None) -> Any:
        found = contents[path.removeprefix("hf://datasets/")]
        if isinstance(found, Exception):
            raise found
        if config not in found:
            raise ValueError(f"BuilderConfig '{config}' not found.\nAvailable: {list(found)}\nExample of usage:\n\tx")
        return datasets.DatasetDict(found[config])

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    hugging_face._hub_splits.cache_clear()
    yield contents
    hugging_face._hub_splits.cache_clear()


def test_names_on_the_hub(hub: dict[str, Any]) -> None:
    hub["org/glue"] = {None: {"train": labeled(0, 1)}, "rte": {"train": labeled(0, 1, 1)}}
    lengths = {"hf:glue": 2, "hf:org/glue": 2, "hf:glue/rte": 3, "hf:org/glue/rte": 3}
    for source, length in lengths.items():
        assert len(hugging_face.open_splits(source)["train"]) == length
    # If the dataset ORG/NAME exists, the two parts are not parsed as NAME/CONFIG.
    hub["glue/rte"] = {None: {"train": labeled(0)}}
    hugging_face._hub_splits.cache_clear()
    assert len(hugging_face.open_splits("hf:glue/rte")["train"]) == 1
    assert possible_names("a/b/c") == [("a/b", "c")]


@pytest.mark.parametrize("location", ["", "a/b/c/d", "/data/x", "./x", "~/x", "../x", "a//b", "a/ "])
def test_other_forms_of_names_are_refused(location: str) -> None:
    message = refused(load_task, TaskConfig(name="t", source=f"hf:{location}"))
    assert has_facts(message, f'"hf:{location}"', "hf:NAME", "folder")


def test_hub_datasets_have_published_columns_and_a_dev_split(hub: dict[str, Any]) -> None:
    train = labeled(0, 1, 1).rename_columns({"text_a": "sentence1", "text_b": "sentence2"})
    hub["org/rte"] = {None: {"train": train, "validation": train, "unsupervised": train}}
    task = TaskConfig(name="t", source="hf:org/rte")
    splits = load_task(task)
    assert list(splits) == ["train", "dev"]
    assert isinstance(splits["dev"], Rows)
    assert splits["dev"].text_b == PAIRS["text_b"][:3]
    assert open_source(task, "dev").name == "hf:org/rte validation"
    assert not has_split(task, "test")
    hub["org/imdb"] = {None: {"train": labeled(0, 1, 1, 0, text_a=["a", "b", "c", "d"]), "test": labeled(0, 1)}}
    assert makes_dev(TaskConfig(name="t", source="hf:org/imdb"))


@pytest.mark.parametrize(
    ("source", "facts"),
    [
        ("hf:org/nothing", ("org/nothing", "org", "hf auth login")),
        ("hf:org/glue/nope", ("'nope'", "['rte']", "hf:NAME/CONFIG")),
        ("hf:org/broken", ("RuntimeError", "broken.py", "save_to_disk")),
    ],
)
def test_datasets_that_cannot_be_read_are_refused(source: str, facts: tuple[str, ...], hub: dict[str, Any]) -> None:
    hub.update({"org/glue": {"rte": {}}, "org/broken": RuntimeError("Scripts are not supported, but found broken.py")})
    message = refused(load_task, TaskConfig(name="t", source=source))
    assert has_facts(message, f'"{source}"', *facts)
    assert "Example" not in message


# Tests without a network.


class Cached(datasets.GeneratorBasedBuilder):
    """A tiny dataset that tests write to the ``datasets`` cache."""

    def _info(self) -> Any:
        label = datasets.ClassLabel(names=["no", "yes"])
        return datasets.DatasetInfo(features=datasets.Features({"sentence": datasets.Value("string"), "label": label}))

    def _split_generators(self, _: Any) -> list[Any]:
        return [datasets.SplitGenerator(name=name) for name in ("train", "validation")]

    def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for row in range(3):
            yield row, {"sentence": f"row {row}", "label": row % 2}


@pytest.fixture(params=["no network", "offline mode"])
def cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Creates an empty cache, and disables the network or enables offline mode."""
    with contextlib.closing(socket.socket()) as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", request.param == "offline mode")
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        hugging_face._hub_splits.cache_clear()
        yield tmp_path / "cache"
        hugging_face._hub_splits.cache_clear()


def test_downloaded_datasets_are_read_from_the_cache(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cached(cache_dir=cache, dataset_name="tiny", repo_id="org/tiny", config_name="a", hash="0").download_and_prepare()
    # A local folder with the dataset's name must not take precedence over the cache.
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "org" / "tiny", train=labeled(0))
    offline = datasets.config.HF_HUB_OFFLINE
    for source in ("hf:org/tiny", "hf:org/tiny/a"):
        rows = load_task(TaskConfig(name="t", source=source))["dev"]
        assert isinstance(rows, Rows)
        assert (rows.text_a, rows.label_names) == (["row 0", "row 1", "row 2"], ("no", "yes"))
    assert offline == datasets.config.HF_HUB_OFFLINE
    message = refused(load_task, TaskConfig(name="t", source="hf:org/tiny/b"))
    assert has_facts(message, str(cache), "'b'", "['a']", 'load_dataset("org/tiny", "b")', "save_to_disk")
    message = refused(load_task, TaskConfig(name="t", source="hf:tiny/a"))
    assert has_facts(message, 'load_dataset("tiny/a")', 'load_dataset("tiny", "a")', 'Did you mean "hf:org/tiny/a"?')


def test_missing_network_is_reported_immediately(cache: Path) -> None:
    begin = time.monotonic()
    message = refused(load_task, TaskConfig(name="t", source="hf:org/tiny"))
    assert time.monotonic() - begin < 10
    reason = "HF_HUB_OFFLINE" if datasets.config.HF_HUB_OFFLINE else "ConnectError"
    assert has_facts(message, '"hf:org/tiny"', "hub", reason, str(cache), 'load_dataset("org/tiny")', "save_to_disk")


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = save(tmp_path / "saved", train=labeled(0, 1))
    monkeypatch.setitem(sys.modules, "datasets", None)
    for source in ("hf:org/tiny-2", saved):
        message = refused(load_task, TaskConfig(name="t", source=source))
        assert has_facts(message, f'"{source}"', "datasets", 'pip install "afjax[datasets]"')


def test_files_written_by_datasets(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    labeled(0, 1, 1, names=("2", "1")).to_parquet(path)
    rows = load_split(TaskConfig(name="t", source=str(path), dev_share=0), "train")
    assert (rows.label_names, names_of(rows)) == (("2", "1"), ["2", "1", "1"])
    source = save(tmp_path / "saved", train=labeled(0, 1, 1, names=("2", "1")))
    (arrow,) = Path(source, "train").glob("*.arrow")
    assert load_split(TaskConfig(name="t", source=str(arrow), dev_share=0), "train").digest() == rows.digest()
    assert json.loads((tmp_path / "saved" / "dataset_dict.json").read_text()) == {"splits": ["train"]}
