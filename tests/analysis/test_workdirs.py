"""Only a run's own model is loaded from its workdir, damaged files are refused, and nested folders are found."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from etils import epath
from facts import has_facts
from made_runs import begin, experiment, finish, fusion

from afjax.analysis.report import write_report
from afjax.analysis.sides import open_sides
from afjax.analysis.workdirs import ExperimentRecord, Moved, find_best, find_experiments, is_of_run, load_result
from afjax.config.experiment import ExperimentConfig
from afjax.config.tasks import TaskConfig
from afjax.errors import UserError
from afjax.store import read_manifest

STEP = {"step": 1, "loss": 0.5, "gradient_norm": 1.0, "learning_rate": 1e-3}


class ReachedError(Exception):
    """Raised when the trunk is loaded, which shows that the store's contents were accepted."""


def no_trunk(name: str) -> Any:
    raise ReachedError(name)


def no_rows(model: Any) -> Any:
    raise AssertionError("no model was loaded, so none has rows")


def read(workdir: Path) -> ExperimentRecord:
    (found,) = find_experiments(epath.Path(workdir))
    return found


def load(workdir: Path, store_folder: Path | None = None, *, trunk: str = "") -> None:
    found = read(workdir)
    load_result(found, found.results["cb"], no_trunk, moved=Moved(str(store_folder or ""), trunk))


def write_page(workdir: Path, output: Path, *, store_folder: str = "") -> str:
    moved = Moved(store_folder)
    write_report(epath.Path(workdir), output, rows_of=no_rows, load_trunk=no_trunk, moved=moved)
    return output.read_text(encoding="utf-8")


def finish_two_seeds(folder: Path) -> list[Path]:
    return [
        finish(folder / str(seed), experiment("cb", "pfeiffer", seed=seed), 0.5 + seed / 4, saved=3) for seed in (0, 1)
    ]


def test_model_from_another_run_is_refused(tmp_path: Path) -> None:
    first, second = finish_two_seeds(tmp_path)
    for own in (first, second):
        with pytest.raises(ReachedError):
            load(own)
    with pytest.raises(UserError, match=r"another run's model \"cb-pfeiffer\".*--store .*/1 "):
        load(second, first / "store")
    with pytest.raises(UserError, match="another run's model"):
        open_sides(f"{first},{second}", no_trunk, moved=Moved(str(second / "store")))
    # Runs are different if either their seeds or their scores differ.
    for number, (seed, score) in enumerate([(1, 0.5), (0, 0.75)]):
        other = finish(tmp_path / f"other{number}", experiment("cb", "pfeiffer", seed=seed), score, saved=3)
        with pytest.raises(UserError, match="another run's model"):
            load(first, other / "store")


def test_report_says_that_the_model_is_from_another_run(tmp_path: Path) -> None:
    first, second = finish_two_seeds(tmp_path)
    page = write_page(second, tmp_path / "report.html", store_folder=str(first / "store"))
    assert page.count("model cannot be loaded") == 2
    assert "cannot be evaluated" not in page
    # The report does not show the other model's digests and parameter counts either.
    assert "heads/cb-pfeiffer" not in page


def test_stored_model_of_a_sequence_has_the_last_score(tmp_path: Path) -> None:
    tasks = tuple(TaskConfig(name=name, source=f"data/{name}") for name in ("cb", "rte"))
    config = ExperimentConfig(recipe="sequential", partition="adapter", tasks=tasks)
    workdir = finish(tmp_path, config, {"cb": 0.5, "rte": 0.6}, saved=3)
    path = workdir / "target" / "result.json"
    last = json.loads(path.read_text())
    earlier = {**last[0], "kind": "after cb", "metrics": {"accuracy": 0.75, "step": 7}}
    path.write_text(json.dumps([earlier, *last]))
    with pytest.raises(ReachedError):
        load(workdir)


def test_nan_scores_match_the_manifest(tmp_path: Path) -> None:
    with pytest.raises(ReachedError):
        load(finish(tmp_path, experiment("cb", "pfeiffer"), math.nan, saved=3))


def test_stored_source_may_have_another_seed(tmp_path: Path) -> None:
    made = finish(tmp_path / "made", experiment("cb", "pfeiffer", seed=3), 0.5, saved=3)
    workdir = finish(tmp_path / "fused", fusion("rte", ("cb",)), 0.5)
    (result,) = read(made).results.values()
    manifest = read_manifest(made / "store", "adapters", "cb-pfeiffer")
    assert is_of_run(manifest, read(workdir), result, source=True)
    assert not is_of_run(manifest, read(workdir), result)


def test_missing_trunk_of_a_run_is_refused(tmp_path: Path) -> None:
    workdir = finish(tmp_path / "run", experiment("cb", "full"), 0.5, saved=3, trained_trunk="b" * 64)
    with pytest.raises(UserError, match=r"run/trunk, .*not exist.*--trunk"):
        load(workdir)
    with pytest.raises(ReachedError, match="moved"):
        load(workdir, trunk="moved")
    (workdir / "trunk").mkdir()
    with pytest.raises(ReachedError, match="run/trunk"):
        load(workdir)


def test_missing_store_is_refused(tmp_path: Path) -> None:
    workdir = finish(tmp_path / "run", experiment("cb", "head"), 0.5, saved=3)
    with pytest.raises(UserError, match=r"no store .*typo;.*--store"):
        write_page(workdir, tmp_path / "new" / "report.html", store_folder=str(tmp_path / "typo"))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (json.dumps(STEP).encode() + b'\n{"step": 2, "loss": 0.4, "no": "\xff"}\n', [1, 2]),
        (b'{"step": 1, "loss": 0.5}\n', [1]),
        (json.dumps({**STEP, "loss": "low"}).encode() + b"\n" + json.dumps({**STEP, "step": 2}).encode(), [2]),
        (b'{"step": "one", "loss": 0.5}\n{"step": 2, "loss": 0.5, "learning_rate": "fast"}\n[]\n\xff\xfe\n', [2]),
        (json.dumps(STEP).encode() + b'\n{"step": 1, "dev/accuracy": "high", "dev/f1": 0.5}\n', [1]),
    ],
)
def test_damaged_log(lines: bytes, found: list[int], tmp_path: Path) -> None:
    workdir = finish(tmp_path / "run", experiment("cb", "head"), 0.5)
    (workdir / "target" / "metrics.jsonl").write_bytes(lines)
    (run,) = read(workdir).runs
    assert [line["step"] for line in run.steps] == found
    assert "Training loss of target" in write_page(workdir, tmp_path / "report.html")


@pytest.mark.parametrize(
    "usage", ['{"seconds": "x"}', '{"seconds": NaN, "step": []}', '{"host_memory": "much"}', "\xff"]
)
def test_damaged_usage(usage: str, tmp_path: Path) -> None:
    workdir = finish(tmp_path / "run", experiment("cb", "head"), 0.5)
    (workdir / "target" / "usage.json").write_bytes(usage.encode("latin-1"))
    assert has_facts(write_page(workdir, tmp_path / "report.html"), "not record", "time and memory")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metrics": {"accuracy": "0.5"}}, '"accuracy" .*not a number'),
        ({"metrics": {"accuracy": 0.5, "f1": None}}, '"f1" .*not a number'),
        ({"metrics": {"f1": 0.5}}, '"accuracy" .*not a number'),
        ({"metrics": ["accuracy"]}, "wrong type"),
        ({"task": None}, "wrong type"),
        ({"other": 1}, "does not hold"),
    ],
)
def test_damaged_result(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    workdir = finish(tmp_path, experiment("cb", "head"), 0.5)
    path = workdir / "target" / "result.json"
    (result,) = json.loads(path.read_text())
    path.write_text(json.dumps([{**result, **change}]))
    with pytest.raises(UserError, match=words):
        read(workdir)


def test_nan_scores_are_never_best(tmp_path: Path) -> None:
    for seed, score in enumerate((math.nan, 0.5, 0.7)):
        finish(tmp_path / f"run{seed}", experiment("cb", "head", seed=seed), score)
    assert find_best(find_experiments(epath.Path(tmp_path))).title == "run2"
    page = write_page(tmp_path, tmp_path / "report.html")
    assert "0.6000 ± 0.1414" in page
    assert "0 (not a number), 1, 2" in page
    page = write_page(tmp_path / "run0", tmp_path / "report.html")
    assert "<dt>dev accuracy</dt><dd>not a number</dd>" in page


def scores_section(page: str) -> str:
    return page.partition("Scores</h2>")[2].partition("Training curves</h2>")[0]


def test_repeated_runs_do_not_count_as_seeds(tmp_path: Path) -> None:
    for number, score in enumerate((0.5, 0.7, 0.5)):
        finish(tmp_path / "runs" / f"run{number}", experiment("cb", "head"), score)
    scores = scores_section(write_page(tmp_path / "runs", tmp_path / "report.html"))
    assert has_facts(scores, ">0.5000<", ">0<")
    assert "±" not in scores.replace("mean ± std", "")
    assert has_facts(scores, "Ignored", "repeat", "seed", "run1, run2")
    with pytest.raises(UserError, match=r"run0 and .*run1 .*same settings and seed"):
        open_sides(str(tmp_path / "runs"), no_trunk)


@pytest.mark.parametrize("name", ["task cb's dev rows", "task cb's train rows", "the adapter rte"])
def test_runs_with_different_inputs_are_not_averaged(tmp_path: Path, name: str) -> None:
    for seed, digest in enumerate(("a" * 64, "b" * 64)):
        rows = {name: digest, "the seed": str(seed)}
        finish(tmp_path / "runs" / f"run{seed}", experiment("cb", "head", seed=seed), 0.5 + seed / 4, rows=rows)
    scores = scores_section(write_page(tmp_path / "runs", tmp_path / "report.html"))
    assert has_facts(scores, ">run1<", ">bbbbbbbbbbbb<", ">0.7500<")
    assert has_facts(scores, ">run0<", ">aaaaaaaaaaaa<", ">0.5000<")
    with pytest.raises(UserError, match=rf"different .*inputs \({name} differ"):
        open_sides(str(tmp_path / "runs"), no_trunk)


def test_runs_with_different_main_metrics_are_not_ranked(tmp_path: Path) -> None:
    for seed in (0, 1):
        finish(tmp_path / "runs" / f"accuracy{seed}", experiment("rte", "head", seed=seed), 0.6 + seed / 10)
    task = TaskConfig(name="rte", source="data/rte", metric="f1")
    finish(tmp_path / "runs" / "f1", experiment("rte", "head", of=task), 0.9)
    assert find_best(find_experiments(epath.Path(tmp_path / "runs"))).title == "accuracy1"
    page = write_page(tmp_path / "runs", tmp_path / "report.html")
    assert has_facts(page, "main metrics", "not comparable", "best run on rte", "most runs (2)")
    scores = scores_section(page)
    assert scores.index("<h3>rte</h3>") < scores.index("accuracy1") < scores.index("<h3>rte (f1)</h3>")


def test_nested_folders(tmp_path: Path) -> None:
    """Finds workdirs as deep as ``afjax table`` does, and skips trunk folders and folders inside workdirs."""
    finish(tmp_path / "0" / "cb", experiment("cb", "full"), 0.5, saved=3)
    finish(tmp_path / "a" / "b" / "c" / "rte", experiment("rte", "head"), 0.5)
    finish(tmp_path / "a" / "b" / "c" / "d" / "deep", experiment("rte", "head"), 0.5)
    begin(tmp_path / "1", experiment("cb", "head"))
    for trunk in (tmp_path / "trunk", tmp_path / "0" / "cb" / "trunk"):
        trunk.mkdir()
        (trunk / "config.json").write_text('{"model_type": "bert"}')
    assert [found.title for found in find_experiments(epath.Path(tmp_path))] == ["0/cb", "1", "a/b/c/rte"]
    assert read(tmp_path / "0" / "cb").title == "cb"


def test_runs_of_several_tasks(tmp_path: Path) -> None:
    """The best run is chosen among comparable runs, and only settings that differ between them get columns."""
    for method, score in (("head", 0.4), ("pfeiffer", 0.6)):
        finish(tmp_path / "runs" / f"cb-{method}", experiment("cb", method), score)
    other = TaskConfig(name="sst2", source="data/sst2", train_rows=99)
    finish(tmp_path / "runs" / "a-sst2", experiment("sst2", "head", of=other), 0.9)
    page = write_page(tmp_path / "runs", tmp_path / "report.html")
    assert has_facts(page, "best run on cb", "most runs (2)")
    assert has_facts(page, "run on cb", "best dev score", "cb-pfeiffer")
    assert has_facts(page, "dev accuracy", "best run on cb")
    scores = page.partition("Scores</h2>")[2].partition("Training curves</h2>")[0]
    assert scores.index("<h3>sst2</h3>") < scores.index("a-sst2") < scores.index("<h3>cb</h3>")
    assert scores.index("cb-pfeiffer</") < scores.index("cb-head</")
    assert scores.count(">partition</th>") == 1
    assert "train_rows" not in scores


def test_differing_settings_are_capped_and_run_names_do_not_split_seeds(tmp_path: Path) -> None:
    for seed in (0, 1):
        finish(tmp_path / f"head{seed}", experiment("cb", "head", seed=seed, name=f"name{seed}"), 0.5)
    finish(tmp_path / "fused", fusion("cb", ("rte", "sick")), 0.4)
    scores = write_page(tmp_path, tmp_path / "report.html").partition("Scores</h2>")[2].partition("Training")[0]
    assert scores.count("<table") == 2
    assert "head0, head1" in scores
    names = re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', scores.partition("<tbody>")[0])
    assert len(names) == 11
    assert names[:3] == ["runs", "partition", "recipe"]
    assert "more settings differ" in scores
