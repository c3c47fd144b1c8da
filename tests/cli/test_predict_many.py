"""``afjax predict`` selects an adapter for each row, or applies many adapters to every row."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facts import has_facts

from afjax import load_task_model, load_trunk
from afjax.cli import routed_predictions
from afjax.cli.main import main
from afjax.model.task_model import TaskModel

pytestmark = pytest.mark.slow

WriteRows = Callable[..., Path]
Refused = Callable[..., str]

PAIR = {"text_a": "all of the two", "text_b": "some of the two"}
OTHER = {"text_a": "some of the four", "text_b": "some of the two"}


@pytest.fixture
def flags(trained: Path, tiny_trunk_folder: Path) -> list[str]:
    return [f"--store={trained / 'run' / 'store'}", f"--trunk={tiny_trunk_folder}"]


@pytest.fixture(scope="module")
def models(trained: Path, tiny_trunk_folder: Path) -> dict[str, TaskModel]:
    trunk, store = load_trunk(str(tiny_trunk_folder)), trained / "run" / "store"
    adapters = {name: load_task_model(store, trunk, adapter=name) for name in ("first", "second")}
    return {**adapters, "target-fusion": load_task_model(store, trunk, fusion="target-fusion")}


def predict(*words: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["predict", *words]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def check_prediction(prediction: dict[str, Any], model: TaskModel, row: dict[str, str]) -> None:
    expected = model.predict([(row["text_a"], row["text_b"])]).as_json(0)
    assert prediction.keys() == expected.keys()
    assert prediction["label"] == expected["label"]
    np.testing.assert_allclose(prediction["logits"], expected["logits"], rtol=1e-4, atol=1e-5)


def test_each_row_names_its_adapter(
    flags: list[str],
    models: dict[str, TaskModel],
    write_rows: WriteRows,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        {"id": 1, **PAIR, "adapter": "second"},
        {"id": 2, **OTHER, "adapter": "target-fusion"},
        {"id": 3, "text": "all of the two", "adapter": None},
        {"id": 4, **PAIR, "adapter": "adapters/first"},
    ]
    path = write_rows(tmp_path / "mixed.jsonl", [{**row, "id": row["id"]} for row in rows])
    # With --keep, every row must have the kept columns.
    lines = predict(*flags, f"--input={path}", "--keep=id,adapter", capsys=capsys)
    assert [line.pop("id") for line in lines] == [1, 2, 3, 4]
    assert [line.pop("adapter") for line in lines] == ["second", "target-fusion", None, "adapters/first"]
    for line, row, name in zip(lines, rows, ("second", "target-fusion", "", "first"), strict=True):
        if name:
            check_prediction(line, models[name], {key: str(row[key]) for key in PAIR})
    expected = models["first"].trunk.embed(["all of the two"], max_length=16)[0]
    np.testing.assert_allclose(lines[2]["embedding"], expected, rtol=1e-4, atol=1e-5)


def test_all_adapters_predict_each_row(
    flags: list[str],
    models: dict[str, TaskModel],
    write_rows: WriteRows,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [{**PAIR, "adapter": 7}, {**OTHER, "adapter": 8}])
    for all_flag, names in (("--all", list(models)), ("--all=target-fusion,first", ["target-fusion", "first"])):
        lines = predict(*flags, f"--input={path}", all_flag, "--keep=text_a", capsys=capsys)
        for line, row in zip(lines, (PAIR, OTHER), strict=True):
            assert list(line) == ["text_a", "predictions"]
            assert list(line["predictions"]) == names
            for name, prediction in line["predictions"].items():
                check_prediction(prediction, models[name], row)


@pytest.mark.parametrize("all_flag", [[], ["--all=first,second"]])
def test_rows_with_an_empty_text_are_noted(
    flags: list[str], write_rows: WriteRows, tmp_path: Path, capsys: pytest.CaptureFixture[str], all_flag: list[str]
) -> None:
    path = write_rows(
        tmp_path / "rows.jsonl", [{**PAIR, "adapter": "first"}, {**PAIR, "text_b": "", "adapter": "second"}]
    )
    assert main(["predict", *flags, f"--input={path}", "--output=-", *all_flag]) == 0
    assert has_facts(capsys.readouterr().err, "Note: ", "1 row has an empty text", "row 2")


def test_adapters_without_a_head_are_skipped_with_a_note(
    store: Path, tiny_trunk_folder: Path, write_rows: WriteRows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in store.glob("heads/second*"):
        path.rename(tmp_path / path.name)
    path = write_rows(tmp_path / "rows.jsonl", [PAIR])
    flags = (f"--store={store}", f"--trunk={tiny_trunk_folder}", f"--input={path}")
    capsys.readouterr()
    assert main(["predict", *flags, "--all"]) == 0
    printed = capsys.readouterr()
    assert list(json.loads(printed.out)["predictions"]) == ["first", "target-fusion"]
    assert has_facts(printed.err, "Note", "second is left out", "no head")


def test_adapters_that_accept_the_rows_are_suggested(
    store: Path,
    models: dict[str, TaskModel],
    tiny_trunk_folder: Path,
    write_rows: WriteRows,
    tmp_path: Path,
    refused: Refused,
) -> None:
    dataclasses.replace(models["first"].renamed("texts"), text_columns=1).save(store)
    path = write_rows(tmp_path / "rows.jsonl", [PAIR])
    flags = (f"--store={store}", f"--trunk={tiny_trunk_folder}", f"--input={path}")
    facts = ("rows.jsonl:1", '"texts"', "--all=first,second,target-fusion.")
    assert has_facts(refused("predict", *flags, "--all"), *facts)
    # Adapters named by the user are not replaced.
    assert "--all=" not in refused("predict", *flags, "--all=first,texts")


@pytest.mark.parametrize(
    ("row", "facts"),
    [
        (PAIR, ("rows.jsonl:2", '"adapter"', "--all")),
        ({**PAIR, "adapter": "secnod"}, ('"secnod"', 'Did you mean "second"')),
        ({**PAIR, "adapter": 3}, ("rows.jsonl:2", "3", "null")),
        ({"adapter": "second", "text": "all of the two"}, ("rows.jsonl:2", "text_b")),
    ],
)
def test_wrong_rows_are_refused(
    row: dict[str, Any],
    facts: tuple[str, ...],
    flags: list[str],
    write_rows: WriteRows,
    tmp_path: Path,
    refused: Refused,
) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [{**PAIR, "adapter": "first"}, row])
    assert has_facts(refused("predict", *flags, f"--input={path}", f"--output={tmp_path / 'out.jsonl'}"), *facts)
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("all_flag", ["--all", ""])
def test_missing_kept_column_is_reported_before_the_models_are_loaded(
    all_flag: str,
    flags: list[str],
    write_rows: WriteRows,
    tmp_path: Path,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routed_predictions, "load_routed_model", lambda *_, **__: pytest.fail("loads the models"))
    path = write_rows(tmp_path / "rows.jsonl", [{**PAIR, "adapter": "first"}])
    assert has_facts(refused("predict", *flags, f"--input={path}", "--keep=id", *filter(None, [all_flag])), "id")


def test_flags_for_one_adapter_are_refused(
    flags: list[str], write_rows: WriteRows, tmp_path: Path, refused: Refused
) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [{**PAIR, "adapter": "first"}])
    for words, fact in (
        (("--all", "--adapter=first"), "--adapter"),
        (("--max_length=8",), "--max_length"),
        (("--max_length=0",), "--max_length"),
        (("--with=second",), "--with"),
        (("--all=first,first",), '"first" is listed twice'),
        (("--all=frist",), 'Did you mean "first"'),
        (("--batch_size=0",), "batch_size is 0"),
    ):
        assert fact in refused("predict", *flags, f"--input={path}", *words)
    path = write_rows(tmp_path / "rows.jsonl", [{**PAIR, "adapter": None}])
    assert "No row names an adapter" in refused("predict", *flags, f"--input={path}")
