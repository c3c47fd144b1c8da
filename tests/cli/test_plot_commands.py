"""``afjax plot activations`` and ``plot spans`` plot a trained store, and refuse invalid flags."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from facts import has_facts

from afjax.analysis import adapterdrop
from afjax.cli.main import main

pytestmark = pytest.mark.slow

Refused = Callable[..., str]


@pytest.fixture
def model(store: Path, data: Path, tiny_trunk_folder: Path) -> list[str]:
    """Returns the flags that select the trained fusion and its dev rows."""
    return [f"--store={store}", f"--trunk={tiny_trunk_folder}", "--fusion=target-fusion", f"--source={data}"]


def lines_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_activations(model: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "new" / "target"
    assert main(["plot", "activations", *model, "--by_label", "--layers=1", f"--output={output}"]) == 0
    files = [output.with_suffix(f".{kind}") for kind in ("png", "svg", "csv")]
    assert capsys.readouterr().out == f"Written: {', '.join(map(str, files))}\n"
    assert files[0].read_bytes().startswith(b"\x89PNG")
    lines = lines_of(files[2])
    # One layer has two adapters. The three means are over all rows and over the rows with each of the two labels. In
    # each mean, the adapters' weights sum to one.
    assert len(lines) == 6
    assert {line["layer"] for line in lines} == {"1"}
    assert {line["adapter"] for line in lines} == {"first", "second"}
    assert sum(float(line["mean_activation"]) for line in lines) == pytest.approx(3)


def test_adapters_are_ranked_on_train_rows_and_not_on_the_scored_file(
    model: list[str], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranked: list[Any] = []
    rank = adapterdrop.rank_adapters
    monkeypatch.setattr(
        adapterdrop, "rank_adapters", lambda model, rows, **options: ranked.append(rows) or rank(model, rows, **options)
    )
    scored = tmp_path / "scored.jsonl"
    train = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
    scored.write_text("".join(json.dumps({**row, "text_a": "all the " + row["text_a"]}) + "\n" for row in train))
    assert main(["prune", *model[:-1], f"--source={scored}"]) == 0
    assert list(ranked[0].text_a) == [row["text_a"] for row in train]


def test_activations_of_a_single_text(model: list[str], tmp_path: Path) -> None:
    words = [*model[:-1], "--text=all of the two", "--text_b=some", f"--output={tmp_path / 'text'}"]
    assert main(["plot", "activations", *words]) == 0
    assert {line["token"] for line in lines_of(tmp_path / "text.csv")} >= {"[CLS]", "all", "two", "some"}


def test_truncated_text_is_reported(model: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plot", "activations", *model[:-1], f"--output={tmp_path / 'text'}"]
    assert main([*words, f"--text={'all of the two ' * 9}", "--text_b=some"]) == 0
    assert has_facts(capsys.readouterr().err, "truncated", " 16 ", "40 tokens")
    assert len({line["position"] for line in lines_of(tmp_path / "text.csv")}) == 16
    assert main([*words, "--text=all of the two", "--text_b=some"]) == 0
    assert "cut" not in capsys.readouterr().err
    # The head was trained on pairs.
    assert main([*words, "--text=all of the two"]) == 2
    assert "pairs" in capsys.readouterr().err


def test_spans(model: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*model, "--head=target-fusion", f"--output={tmp_path / 'spans'}"]
    assert main(["plot", "spans", *words]) == 0
    assert "3 spans" in capsys.readouterr().out
    whole, *lines = lines_of(tmp_path / "spans.csv")
    assert [(line["first_layer"], line["last_layer"]) for line in lines] == [("0", "0"), ("0", "1"), ("1", "1")]
    assert main(["eval", *model, "--head=target-fusion"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert {metric: float(whole[metric]) for metric in ("accuracy", "macro_f1")}.items() <= scores.items()


def test_invalid_arguments_are_refused(
    model: list[str], store: Path, data: Path, tmp_path: Path, refused: Refused
) -> None:
    activations = ["plot", "activations", *model, f"--output={tmp_path / 'x'}"]
    assert "layer 7" in refused(*activations, "--layers=7")
    assert has_facts(refused(*activations, "--layers=last"), "--layers is last", "numbers")
    assert has_facts(refused(*activations, "--head=a,b"), "--head ", " 2 ", "--fusion lists 1")
    assert has_facts(refused(*activations, "--text_b=some"), "--text_b ", "--text ")
    assert has_facts(refused(*activations, "--layers=0,1,0"), "layer 0 ", "twice")
    text = [*activations[:-2], activations[-1]]
    assert "--text is blank" in refused(*text, "--text= ")
    assert "--text_b is empty" in refused(*text, "--text=all", "--text_b=")
    told = refused(*activations, "--fusion=target-fusion,target-fusion")
    assert has_facts(told, "--fusion ", '"target-fusion"', "twice")
    told = refused(*activations, "--fusion=target-fusio")
    assert has_facts(told, 'fusion "target-fusio"', "store", 'Did you mean "target-fusion"?')
    spans = ["plot", "spans", *model, "--head=target-fusion", f"--output={tmp_path / 'x'}"]
    assert has_facts(refused(*spans, "--metric=bleu"), '"bleu"', "classification", "accuracy")
    (tmp_path / "file").write_text("")
    for command in (activations, spans):
        assert "is not a folder" in refused(*command[:-1], f"--output={tmp_path / 'file' / 'x'}")
    (data / "dev.jsonl").unlink()
    for command in (activations, spans):
        assert "dev" in refused(*command)
    shutil.rmtree(store / "adapters" / "second")
    for command in (activations, spans):
        assert '"second"' in refused(*command)
