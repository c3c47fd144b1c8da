"""``afjax report`` and ``afjax compare`` describe a trained run, and refuse invalid flags."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from facts import has_facts

from afjax.cli.main import main

pytestmark = pytest.mark.slow

Refused = Callable[..., str]

CONFIGS = Path(__file__).parents[2] / "configs"


def test_report(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "new" / "report.html"
    assert main(["report", f"--workdir={trained / 'run'}", f"--output={output}", "--mistakes=2"]) == 0
    assert capsys.readouterr().out == f"{output}\n"
    page = output.read_text(encoding="utf-8")
    for part in ("evaluated again", "first, second", "Mean attention", "GiB", "adapters/second"):
        assert part in page
    assert "their digests differ" not in page
    assert page.count("<li><dl>") <= 2
    usage = json.loads((trained / "run" / "target" / "usage.json").read_text())
    assert usage["step"] == 2
    assert usage["starts"] == 1
    assert 0 < usage["seconds"] < 600
    assert usage["host_memory"] > 1e7


def rows_of_kind(kind: str) -> list[dict]:
    words = [(many, number) for number in ("two", "three", "four") for many in ("all", "some")]
    if kind == "regression":
        return [{"text": f"{many} of the {number}", "label": float(many == "all")} for many, number in words]
    if kind == "multiple_choice":
        choices = ["<b>few</b>", "many", "none"]
        return [
            {
                "context": f"{many} of the {number}",
                "choices": choices[: 2 + (many == "all")],
                "label": int(many == "all"),
            }
            for many, number in words
        ]
    return [
        {
            "id": f"{many}{number}",
            "question": "how <b>many</b>",
            "context": f"{many} of the {number}",
            "answers": answer,
        }
        for many, number in words
        for answer in [{"text": [number], "answer_start": [len(f"{many} of the ")]}]
    ]


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("regression", ("Predicted and true values", "largest errors")),
        ("multiple_choice", ("&lt;b&gt;few&lt;/b&gt;",)),
        ("span", ("exact_match", "most confident about", "how &lt;b&gt;many&lt;/b&gt;")),
    ],
)
def test_report_on_every_kind_of_run(
    kind: str, parts: Sequence[str], tiny_trunk_folder: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> None:
    for split in ("train", "dev"):
        write_rows(tmp_path / "data" / f"{split}.jsonl", rows_of_kind(kind))
    (tmp_path / "task.toml").write_text(f'source = "data"\nkind = "{kind}"\n')
    config = f"--config={CONFIGS}/single.py:task={tmp_path / 'task.toml'}"
    steps = ["max_steps=1", "max_length=16", "buckets=(16,)"]
    words = [f"--config.train.{step}" for step in steps]
    assert main(["train", config, f"--config.trunk={tiny_trunk_folder}", *words, f"--workdir={tmp_path / 'run'}"]) == 0
    output = tmp_path / "report.html"
    assert main(["report", f"--workdir={tmp_path / 'run'}", f"--output={output}"]) == 0
    page = output.read_text(encoding="utf-8")
    assert "evaluated again" in page
    assert "<b>" not in page
    for part in parts:
        assert part in page


def test_report_on_sequential_tasks(trained: Path, tiny_trunk_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "data", tmp_path / "data" / "first")
    shutil.copytree(trained / "data", tmp_path / "data" / "second")
    config = f"--config={CONFIGS}/sequential.py:tasks=first+second,data={tmp_path / 'data'}"
    words = ["--config.train.max_steps=1", "--config.train.max_length=16", "--config.train.buckets=(16,)"]
    assert main(["train", config, f"--config.trunk={tiny_trunk_folder}", *words, f"--workdir={tmp_path / 'run'}"]) == 0
    output = tmp_path / "report.html"
    assert main(["report", f"--workdir={tmp_path / 'run'}", f"--output={output}"]) == 0
    page = output.read_text(encoding="utf-8")
    assert "evaluated again" in page
    assert "after second" in page


def test_report_on_missing_inputs(trained: Path, tmp_path: Path) -> None:
    workdir = shutil.copytree(trained / "run", tmp_path / "run")
    config = workdir / "config.json"
    config.write_text(config.read_text().replace(str(trained / "data"), str(tmp_path / "gone")))
    for manifest_kind in ("fusion", "heads"):
        shutil.rmtree(workdir / "store" / manifest_kind)
    output = tmp_path / "report.html"
    assert main(["report", f"--workdir={workdir}", f"--output={output}"]) == 0
    assert "no head &quot;target-fusion&quot;" in output.read_text(encoding="utf-8")
    words = ["report", f"--workdir={trained / 'run'}", f"--output={output}", f"--source={tmp_path / 'nowhere'}"]
    assert main(words) == 0
    page = output.read_text(encoding="utf-8")
    assert has_facts(page, "cannot be evaluated", "dev rows")
    assert "nowhere" in page


def test_report_refuses_invalid_arguments(trained: Path, tmp_path: Path, refused: Refused) -> None:
    workdir = f"--workdir={trained / 'run'}"
    sentence = refused("report", f"--workdir={tmp_path}", f"--output={tmp_path / 'x.html'}")
    assert has_facts(sentence, f"{tmp_path} ", "no finished run", "--workdir")
    assert "is a folder" in refused("report", workdir, f"--output={tmp_path}")
    (tmp_path / "file").write_text("")
    assert "is not a folder" in refused("report", workdir, f"--output={tmp_path / 'file' / 'x.html'}")
    assert "--mistakes is -1" in refused("report", workdir, f"--output={tmp_path / 'x.html'}", "--mistakes=-1")


def test_compare(trained: Path, tiny_trunk_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = [f"--store={trained / 'run' / 'store'}", f"--trunk={tiny_trunk_folder}", f"--source={trained / 'data'}"]
    words = ["adapter:first", "fusion:target-fusion", *where, "--resamples=50", "--json"]
    assert main(["compare", *words]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert lines[0] == "A  adapter:first"
    assert (found["task"], found["metric"], found["rows"], found["pairs"], found["resamples"]) == (
        "first",
        "accuracy",
        8,
        1,
        50,
    )
    assert sum(found["rows_by_who_is_right"].values()) == 8
    only = found["rows_by_who_is_right"]
    assert found["difference"] == pytest.approx((only["only_b"] - only["only_a"]) / 8)
    assert found["low"] <= found["difference"] <= found["high"]
    assert found["settings"]["adapters"] == ["['first']", "['first', 'second']"]
    # Workdirs can be compared in pairs, each with its own store, trunk and rows. Here both are the same run.
    run = trained / "run"
    assert main(["compare", f"{run},{run}", f"{run},{run}", "--resamples=50", "--metric=matthews", "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert (found["difference"], found["p_value"], found["spread"], found["pairs"]) == (0, 1, 0, 2)
    assert "No setting differs." in lines


def test_compare_refuses_invalid_arguments(
    trained: Path, tiny_trunk_folder: Path, tmp_path: Path, refused: Refused
) -> None:
    run = trained / "run"
    where = [f"--store={run / 'store'}", f"--trunk={tiny_trunk_folder}", f"--source={trained / 'data'}"]
    sentence = refused("compare", "adaptor:first", "adapter:first", *where)
    assert has_facts(sentence, '"adaptor:first"', "workdir", "adapter:NAME")
    assert "pass --store" in refused("compare", "adapter:first", "adapter:second")
    assert '"frist"' in refused("compare", "adapter:frist:first", "adapter:second", *where)
    assert '"head:first:second"' in refused("compare", "head:first:second", "adapter:second", *where)
    sentence = refused("compare", "adapter:first,adapter:second", "adapter:first", *where)
    assert has_facts(sentence, "A has 2 ", "B has 1")
    sentence = refused("compare", "adapter:first", "adapter:first", *where, "--metric=bleu")
    assert has_facts(sentence, '"bleu"', "accuracy")
    assert "--resamples is 0" in refused("compare", "adapter:first", "adapter:first", *where, "--resamples=0")
    sentence = refused("compare", "adapter:first", "adapter:first", *where, "--task=frist")
    assert has_facts(sentence, "adapter:first", '"frist"', '"first"')
    assert "--seed is -1" in refused("compare", "adapter:first", "adapter:first", *where, "--seed=-1")
    assert has_facts(refused("compare", str(tmp_path), str(run)), f"{tmp_path} ", "no finished run")
    assert has_facts(refused("compare", str(run), str(run), "--task=other"), f"{run} ", "target", "--task")
