"""Runs the commands in the order a user would."""

import csv
import dataclasses
import gzip
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facts import has_facts

import afjax
from afjax import store as artifacts
from afjax.cli.main import main
from afjax.cli.predictions import FIELDS
from afjax.model.loading import load_task_model
from afjax.store.manifest import to_json
from afjax.trunk.pretrained import load_trunk

pytestmark = pytest.mark.slow

WriteRows = Callable[..., Path]


@pytest.fixture
def model(trained: Path, tiny_trunk_folder: Path) -> list[str]:
    """Returns the flags that select the trained fusion."""
    flags = {"store": trained / "run" / "store", "trunk": tiny_trunk_folder}
    return [f"--{name}={value}" for name, value in flags.items()] + ["--fusion=target-fusion", "--head=target-fusion"]


def out_lines(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    capsys.readouterr()
    assert main(words) == 0
    return capsys.readouterr().out.splitlines()


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_train_prints_a_table_and_resumes(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", f"--config={trained / 'tiny.py'}", f"--workdir={trained / 'run'}"]
    lines = out_lines(capsys, *words)
    assert [line.split()[0] for line in lines if "accuracy" in line] == ["first", "second", "target-fusion"]
    assert lines[-1] == f"Store: {trained / 'run' / 'store'}"
    assert out_lines(capsys, *words) == lines


def dev_file(folder: Path) -> Path:
    return next((folder / "data").glob("dev.*"))


def test_eval_prints_scores(trained: Path, model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", *model, f"--source={trained / 'data'}", "--max_length=16"]
    scores = json.loads(out_lines(capsys, *words)[-1])
    assert scores.keys() == {"split", "rows", "accuracy", "macro_f1", "matthews", "f1"}
    assert (scores["split"], scores["rows"]) == ("dev", 8)
    result = json.loads((trained / "run" / "target" / "result.json").read_text())[0]
    assert scores["accuracy"] == result["metrics"]["accuracy"]
    assert json.loads(out_lines(capsys, *words, "--split=train", "--batch_size=3")[-1])["split"] == "train"
    # The scores do not change if the source is the split's file or the task's TOML file.
    (trained / "described.toml").write_text(f'source = "data"\ndev = "{dev_file(trained).name}"\n')
    for source in (dev_file(trained), trained / "described.toml"):
        assert json.loads(out_lines(capsys, "eval", *model, f"--source={source}", "--max_length=16")[-1]) == scores


def test_eval_uses_the_columns_of_a_toml_file(
    trained: Path, model: list[str], write_rows: WriteRows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", *model, "--max_length=16"]
    scores = json.loads(out_lines(capsys, *words, f"--source={dev_file(trained)}")[-1])
    names = {"text_a": "first", "text_b": "second", "label": "gold"}
    rows = [json.loads(line) for line in dev_file(trained).read_text().splitlines()]
    # The column "label" has the head's labels, too, but it is not the column that the file names.
    renamed = [{**{new: row[old] for old, new in names.items()}, "label": rows[0]["label"]} for row in rows]
    write_rows(tmp_path / "dev.jsonl", renamed)
    columns = "".join(f'{setting} = "{name}"\n' for setting, name in names.items())
    (tmp_path / "task.toml").write_text(f'dev = "{tmp_path / "dev.jsonl"}"\n{columns}')
    assert json.loads(out_lines(capsys, *words, f"--source={tmp_path / 'task.toml'}")[-1]) == scores
    (tmp_path / "other.toml").write_text(f'dev = "{tmp_path / "dev.jsonl"}"\nkind = "regression"\n')
    assert main([*words, f"--source={tmp_path / 'other.toml'}"]) == 2
    assert has_facts(capsys.readouterr().err.splitlines()[-1], "other.toml", "regression", "classification")


def test_predict_writes_every_row_in_order(
    trained: Path, model: list[str], write_rows: WriteRows, tiny_trunk_folder: Path, tmp_path: Path
) -> None:
    texts = [("all of the two of the nine", "some"), ("none", "most"), ("most of the three", "four")]
    path = write_rows(tmp_path / "rows.jsonl", [{"text_b": b, "text_a": a, "extra": 1} for a, b in texts])
    assert main(["predict", *model, f"--input={path}", f"--output={tmp_path / 'out.jsonl'}", "--batch_size=2"]) == 0
    task_model = load_task_model(
        trained / "run" / "store", load_trunk(str(tiny_trunk_folder)), head="target-fusion", fusion="target-fusion"
    )
    expected = task_model.predict(texts, max_length=128)
    rows = read(tmp_path / "out.jsonl")
    assert [row.keys() for row in rows] == [{"logits", "label", "probabilities"}] * 3
    assert [row["label"] for row in rows] == expected.labels
    np.testing.assert_allclose([row["logits"] for row in rows], expected.logits, atol=1e-5)
    np.testing.assert_allclose([row["probabilities"] for row in rows], expected.probabilities, atol=1e-5)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out.jsonl", "rows.jsonl"]


def forget_form(store: Path, head: str) -> None:
    """Removes the number of text columns from a head's manifest, because earlier versions did not record it."""
    manifest = artifacts.read_manifest(store, "heads", head)
    config = dict(manifest.config)
    assert config.pop("text_columns") == 2
    path = store / "heads" / head / "manifest.json"
    path.write_text(to_json(dataclasses.replace(manifest, config=config)))


def test_head_from_an_earlier_version_predicts_mixed_rows_with_a_warning(
    store: Path, tiny_trunk_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_form(store, "target-fusion")
    model = [f"--store={store}", f"--trunk={tiny_trunk_folder}", "--fusion=target-fusion", "--head=target-fusion"]
    path, output = tmp_path / "rows.jsonl.gz", tmp_path / "out.jsonl"
    rows = [{"text": "all of the two"}, {"text_a": "none", "text_b": "two"}, {"text": "none"}]
    with gzip.open(path, "wt") as file:
        file.write("\n\n".join(json.dumps(row) for row in rows))
    output.write_text("old\n")
    assert main(["predict", *model, f"--input={path}", f"--output={output}"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "single texts" in line]
    assert "target-fusion" in line
    mixed = read(output)
    assert len(mixed) == 3
    for index, row in enumerate(rows):
        single = tmp_path / "single.jsonl"
        single.write_text(json.dumps(row))
        assert main(["predict", *model, f"--input={single}", f"--output={output}"]) == 0
        np.testing.assert_allclose(read(output)[0]["logits"], mixed[index]["logits"], atol=1e-5)


def test_regression_end_to_end(
    config: Path, data: Path, write_rows: WriteRows, tiny_trunk_folder: Path, tmp_path: Path, capsys: Any
) -> None:
    for split in ("train", "dev"):
        write_rows(data / f"{split}.jsonl", [{"text": "two " * count, "label": count} for count in range(1, 9)])
    store = tmp_path / "store"
    words = [f"--config={config}:recipe=single,task=length", f"--workdir={tmp_path / 'run'}", f"--store={store}"]
    assert main(["train", *words, "--config.task.kind=regression"]) == 0
    assert "pearson" in capsys.readouterr().out
    model = [f"--store={store}", f"--trunk={tiny_trunk_folder}", "--adapter=length", "--head=length"]
    scores = json.loads(out_lines(capsys, "eval", *model, f"--source={data}")[-1])
    assert scores.keys() == {"split", "rows", "pearson", "spearman", "mse"}
    words = [f"--input={data / 'dev.jsonl'}", f"--output={tmp_path / 'out.jsonl'}"]
    assert main(["predict", *model, *words]) == 0
    for row in read(tmp_path / "out.jsonl"):
        assert row == {"logits": [row["label"]], "label": row["label"], "probabilities": []}
        assert isinstance(row["label"], float)


def test_store_ls_show_and_verify(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flag = f"--store={trained / 'run' / 'store'}"
    lines = out_lines(capsys, "store", "ls", flag)
    assert lines[0].split() == "kind name task metric parameters size trunk digest created".split()
    found = [tuple(line.split()[:2]) for line in lines[1:]]
    assert found == [
        ("adapters", "first"),
        ("adapters", "second"),
        ("fusion", "target-fusion"),
        ("heads", "first"),
        ("heads", "second"),
        ("heads", "target-fusion"),
    ]
    shown = "\n".join(out_lines(capsys, "store", "show", "first", flag))
    assert "adapters/first" in shown
    assert "heads/first" in shown
    assert "few, many" in shown
    assert out_lines(capsys, "store", "verify", flag) == [f"{kind}/{name}: ok" for kind, name in found]


@pytest.mark.parametrize(("method", "mode"), [("fusion", "eval"), ("adapter", "train")])
def test_bench_prints_json_last(
    tiny_trunk_folder: Path, capsys: pytest.CaptureFixture[str], method: str, mode: str
) -> None:
    sizes = ["--batch_size=2", "--max_length=8", "--num_steps=2", "--scan_layers", "--json", "--trunk_dtype=bfloat16"]
    if method == "fusion":
        sizes.append("--num_adapters=2")
    words = [f"--trunk={tiny_trunk_folder}", f"--method={method}", f"--mode={mode}", *sizes]
    lines = out_lines(capsys, "bench", *words)
    figures = json.loads(lines[-1])
    assert {"median_step_s", "peak_memory_gb", "examples_per_s", "compile_s"} <= figures.keys()
    assert all(figures[name] > 0 for name in ("median_step_s", "peak_memory_gb", "compile_s"))
    assert figures["examples_per_s"] == pytest.approx(2 / figures["median_step_s"])
    assert "median step" in lines[-2]


def test_adapterdrop_prints_and_writes_a_curve(
    trained: Path, model: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["adapterdrop", *model, f"--source={trained / 'data'}", f"--output={tmp_path / 'drop.csv'}"]
    lines = out_lines(capsys, *words)
    assert lines[0].split() == ["kept", "accuracy", "rows/s", "speed", "MFLOP/row"]
    assert [line.split("  ")[0] for line in lines[1:]] == ["layers dropped: none", "layers dropped: 0"]
    with (tmp_path / "drop.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["what"], row["kept"]) for row in rows] == [
        ("layers dropped: none", "1.0000"),
        ("layers dropped: 0", "0.5000"),
    ]
    scored = json.loads(out_lines(capsys, "eval", *model, f"--source={trained / 'data'}", "--drop_layers=0")[-1])
    assert float(rows[1]["accuracy"]) == pytest.approx(scored["accuracy"])
    assert "layers dropped: 1" in out_lines(capsys, *words, "--from_top")[2]


def test_folder_that_is_not_a_store_is_not_verified(trained: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "archives").mkdir()
    (tmp_path / "archives" / "rte.tar").touch()
    for action in ("ls", "verify"):
        assert has_facts(refused("store", action, f"--store={tmp_path / 'archives'}"), "archives is not a store")
        run = trained / "run"
        assert has_facts(refused("store", action, f"--store={run}"), "is not a store", f"Did you mean {run / 'store'}?")


def test_prune_prints_a_ranking_and_stores_the_result(
    store: Path, trained: Path, tiny_trunk_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = [f"--store={store}", f"--trunk={tiny_trunk_folder}"]
    fused = ["--fusion=target-fusion", "--head=target-fusion"]
    source = f"--source={trained / 'data'}"
    lines = out_lines(capsys, "prune", *shared, *fused, source, "--keep=1", "--name=small", "--rank_rows=4")
    for layer, line in enumerate(lines[:2]):
        assert line.startswith(f"ffn  {layer}  ")
        shares = dict(part.split() for part in line.split("  ")[-1].split(", "))
        assert sorted(shares) == ["first", "second"]
        assert sum(map(float, shares.values())) == pytest.approx(1.0, abs=2e-3)
    assert [line.split("  ")[0] for line in lines if line.startswith("adapters")] == [
        "adapters kept: 2",
        "adapters kept: 1",
    ]
    small = json.loads(out_lines(capsys, "eval", *shared, "--fusion=small", "--head=small", source)[-1])
    assert small["rows"] == 8
    stored = [artifacts.read_manifest(store, kind, "small").metrics for kind in ("fusion", "heads")]
    assert stored[0] == stored[1]
    assert stored[0] == pytest.approx({name: small[name] for name in stored[0]})
    assert set(stored[0]) >= {"accuracy", "macro_f1"}
    # Only dev scores are stored.
    assert main(["prune", *shared, *fused, source, "--split=train", "--keep=1", "--name=on-train"]) == 0
    assert not artifacts.read_manifest(store, "fusion", "on-train").metrics
    assert "small" in "\n".join(out_lines(capsys, "store", "ls", f"--store={store}"))


def test_adapters_can_be_removed_from_and_added_to_a_fusion(
    model: list[str], write_rows: WriteRows, tmp_path: Path
) -> None:
    words = ["predict", *model, f"--input={write_rows(tmp_path / 'rows.jsonl')}"]

    def logits(*more: str) -> np.ndarray:
        output = tmp_path / "out.jsonl"
        assert main([*words, *more, f"--output={output}"]) == 0
        return np.array([row["logits"] for row in read(output)])

    whole, fewer = logits(), logits("--without=second")
    assert np.abs(whole - fewer).max() > 0


@pytest.mark.parametrize(
    "command", ["train", "sweep", "eval", "predict", "adapterdrop", "prune", "store", "bench", "export stablehlo"]
)
def test_help_shows_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main([*command.split(), "--help"])
    assert raised.value.code == 0
    text = capsys.readouterr().out
    _, example = text.split("example", 1)
    assert f"afjax {command} " in example


def test_help_of_predict_names_all_columns_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["predict", "--help"])
    text = capsys.readouterr().out
    columns = ("text", "text_a", "text_b", "context", "choices", "question", "words")
    assert [name for name in (*columns, *FIELDS) if f'"{name}"' not in text] == []


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--config=x.py"],
        ["train", "--config=x.py", "--workdir=x", "--confg.seed=1"],
        ["eval", "--store=x", "--trunk=x", "--head=x", "--source=x", "--config.seed=1"],
        ["bench", "--method=magic", "--mode=train"],
        ["store", "show", "--store=x"],
        ["store", "ls", "first", "--store=x"],
    ],
)
def test_unknown_and_missing_flags_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(words)
    assert raised.value.code == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]


def test_command_line_without_a_command_prints_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr().out
    assert all(f"\n    {name} " in shown for name in ("train", "predict", "tpu"))


def test_package_runs_as_a_module_and_prints_only_its_message(tmp_path: Path) -> None:
    words = ["store", "ls", f"--store={tmp_path / 'nothing'}"]
    done = subprocess.run([sys.executable, "-m", "afjax", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    (message,) = done.stderr.splitlines()
    assert message.startswith("afjax: ")
    assert has_facts(message, "no store", str(tmp_path / "nothing"), "adapters, fusion, heads")
    assert afjax.__version__


def test_closed_output_pipe_is_not_an_error(trained: Path) -> None:
    words = ["store", "ls", f"--store={trained / 'run' / 'store'}"]
    with subprocess.Popen(
        [sys.executable, "-m", "afjax", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 128 + signal.SIGPIPE


def test_eval_warns_if_a_score_is_no_better_than_the_majority_class(
    model: list[str], write_rows: WriteRows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text_a": "all of the two", "text_b": "two", "label": label} for label in ("few", "many")]
    rows.append({"text_a": "all of the two", "text_b": " ", "label": "few"})
    write_rows(tmp_path / "data" / "dev.jsonl", [*rows, rows[0]])
    assert main(["eval", *model, f"--source={tmp_path / 'data'}"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["accuracy"] <= 0.75
    chance, blank = (next(line for line in printed.err.splitlines() if word in line) for word in ("3 of 4", "row 3"))
    assert has_facts(chance, "Note: ", "accuracy of target-fusion")
    assert has_facts(blank, "Note: ", "1 row ", "empty")


def test_train_warns_about_suspicious_data_and_results(
    config: Path, data: Path, write_rows: WriteRows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text_a": f"two {number}", "text_b": "two", "label": f"id{number}"} for number in range(8)]
    write_rows(data / "train.jsonl", rows)
    write_rows(data / "dev.jsonl", [rows[0], {**rows[1], "label": "id2"}, {**rows[2], "text_a": ""}])
    assert main(["train", f"--config={config}:recipe=single", f"--workdir={tmp_path / 'run'}"]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Note: ")]
    for facts in (("8 ", "labels"), ("2 of target", "8 train rows", "1 of them", "same"), ("1 row ", "empty")):
        assert any(has_facts(line, *facts) for line in notes), facts
