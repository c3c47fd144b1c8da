"""The HTML report has every section, loads nothing external, and escapes data that looks like markup."""

import base64
import html.parser
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from etils import epath
from facts import has_facts

from afjax.analysis.dev_rows import DevEvaluation, Mistake
from afjax.analysis.report import SECTIONS, EvaluatedResult, make_page
from afjax.analysis.unfinished import UnfinishedRun, count_planned, find_unfinished
from afjax.analysis.workdirs import ExperimentRecord, find_best, find_experiments
from afjax.cli.sweep_plan import Run, part_of
from afjax.config.experiment import ExperimentConfig, SourceConfig
from afjax.config.from_dict import to_dict
from afjax.config.tasks import TaskConfig
from afjax.display.html import Markup, tag
from afjax.errors import UserError
from afjax.storage.writing import check_output
from afjax.train.experiment_runs import write_forgetting
from afjax.train.results import Result

HOSTILE = "<script>alert(1)</script>\"'&$x_$ \x00\u202eeslaf"
SHOWN = HOSTILE.replace("\x00", "\N{REPLACEMENT CHARACTER}")


class Elements(html.parser.HTMLParser):
    """Collects the tag names, attributes and text of a page's elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((name, dict(attributes)))
        if name not in ("meta", "link", "img", "br"):
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def write_run(folder: Path, *, name: str, accuracy: float, seed: int = 0, task: str = "target") -> None:
    """Writes the workdir of a finished fusion run, without its store."""
    config = ExperimentConfig(
        recipe="fusion",
        trunk=f"no/such/trunk {HOSTILE}",
        task=TaskConfig(name=task, source=HOSTILE),
        sources=(SourceConfig(task=TaskConfig(name="b", source="builtin:entail")),),
        seed=seed,
    )
    target = folder / "target"
    target.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(to_dict(config)))
    (folder / "inputs.json").write_text(json.dumps({f"task {task}'s dev rows": HOSTILE}))
    steps = [{"step": step, "loss": 1 / step, "gradient_norm": 1.0, "learning_rate": 1e-3} for step in range(1, 30)]
    evaluations = [{"step": step, "dev/accuracy": step / 40, "dev/f1": step / 50} for step in (10, 20, 29)]
    lines = sorted([*steps, *evaluations], key=lambda line: line["step"])
    # A run killed during a write leaves an incomplete line.
    (target / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3')
    (target / "usage.json").write_text(json.dumps({"step": 29, "seconds": 75.0, "starts": 2, "devices": HOSTILE}))
    metrics = {"accuracy": accuracy, "f1": 0.5, "step": 29}
    result = {"name": name, "kind": "fusion", "task": task, "metrics": metrics, "main_metric": "accuracy"}
    (target / "result.json").write_text(json.dumps([result]))


def hostile_evaluation(num_layers: int = 2) -> DevEvaluation:
    mistake = Mistake(7, (("first text", HOSTILE), ("second text", "plain")), HOSTILE, HOSTILE, 0.875)
    return DevEvaluation(
        num_rows=10,
        digest="other",
        scores={"accuracy": 0.7, "f1": 0.5},
        labels=(HOSTILE, "other"),
        confusion=np.array([[3, 2], [1, 4]]),
        values=None,
        mistakes=(mistake,),
        num_wrong=3,
        activations={"ffn": np.array([[0.25, 0.75]] * num_layers)},
        layers=tuple(range(num_layers)),
        members=(HOSTILE.replace("\x00", ""), "b"),
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("hostile") / "<b>name"
    write_run(folder, name=HOSTILE, accuracy=0.75)
    experiments = find_experiments(epath.Path(folder))
    (result,) = experiments[0].results.values()
    evaluated_results = [EvaluatedResult(result, (10, 1000), hostile_evaluation())]
    return make_page("<b>name", experiments, experiments[0], evaluated_results, str(folder / "store"), unfinished=())


def test_sections_and_structure(page: str) -> None:
    elements = Elements(page)
    assert elements.open == []
    names = [name for name, _ in elements.found]
    identifiers = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert [name for name in identifiers if not name.endswith("-title")] == list(SECTIONS)
    assert len(set(identifiers)) == len(identifiers)
    assert names.count("h1") == names.count("main") == names.count("title") == 1
    assert {attributes["href"] for name, attributes in elements.found if name == "a"} == {f"#{key}" for key in SECTIONS}
    assert names.count("img") == 4
    assert all(attributes.get("alt") for name, attributes in elements.found if name == "img")
    assert ("viewport", "width=device-width, initial-scale=1") in [
        (attributes.get("name"), attributes.get("content")) for name, attributes in elements.found if name == "meta"
    ]
    for name, attributes in elements.found:
        assert name != "th" or attributes["scope"] in ("row", "col")


def pictures(page: str) -> list[str]:
    return [base64.b64decode(data).decode() for data in re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", page)]


def test_page_loads_nothing_external(page: str) -> None:
    for name, attributes in Elements(page).found:
        assert name not in ("script", "iframe", "object", "embed", "base", "form")
        assert not any(key.startswith("on") for key in attributes)
        for key in ("src", "href"):
            assert re.match(r"#|data:", attributes.get(key) or "#")
    outside = r"url\((?!#)|@import"
    assert not re.search(outside, page)
    for picture in pictures(page):
        assert not re.search(outside, picture)
        assert all(re.match("#|data:", reference) for reference in re.findall(r'href="([^"]*)"', picture))
        assert "<script" not in picture


def test_hostile_texts_are_shown_as_text(page: str) -> None:
    elements = Elements(page)
    assert "<script" not in page
    # The hostile text is in the name, data, trunk, label, texts, digest and devices, and is escaped in each of them.
    assert sum(SHOWN in text for text in elements.texts) >= 12
    assert "<b>name" in elements.texts
    assert any("&lt;script&gt;alert(1)" in picture for picture in pictures(page))


def test_page_shows_the_main_figures(page: str) -> None:
    words = " ".join(Elements(page).texts)
    for part in ("0.7500", "1.00%", "1 min 15 s", "87.5% sure", "digests differ"):
        assert part in words
    assert has_facts(words, "3 of 10 dev rows", "wrong (30.0%)")


def test_missing_store_entries_are_explained(tmp_path: Path) -> None:
    write_run(tmp_path / "run", name="fused", accuracy=0.75)
    experiments = find_experiments(epath.Path(tmp_path / "run"))
    (result,) = experiments[0].results.values()
    evaluated_results = [EvaluatedResult(result, missing='The store has no head "fused".')]
    page = make_page(
        "<b>name", experiments, experiments[0], evaluated_results, str(tmp_path / "nothing"), unfinished=()
    )
    text = " ".join(Elements(page).texts)
    assert text.count('The store has no head "fused".') == 3
    assert has_facts(text, "store no longer", "artifacts", "--store")
    assert "Training loss" in text


def test_several_runs(tmp_path: Path) -> None:
    for rate, seed, accuracy in (("a", 0, 0.5), ("a", 1, 0.7), ("b", 0, 0.65)):
        write_run(tmp_path / "runs" / f"{rate}{seed}", name="fused", accuracy=accuracy, seed=seed)
        path = tmp_path / "runs" / f"{rate}{seed}" / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "top_k": ord(rate)}))
    begun = tmp_path / "runs" / "c"
    shutil.copytree(tmp_path / "runs" / "a0", begun)
    (begun / "target" / "result.json").unlink()
    experiments = find_experiments(epath.Path(tmp_path))
    finished: list[ExperimentRecord] = [experiment for experiment in experiments if experiment.results]
    best = find_best(finished)
    assert best.workdir.name == "a1"
    unfinished = find_unfinished(epath.Path(tmp_path), experiments)
    missing = EvaluatedResult(best.results["target"], missing="gone.")
    page = make_page("<b>name", experiments, best, [missing], "nothing", unfinished=unfinished)
    words = " ".join(Elements(page).texts)
    assert has_facts(words, "3 of 4 runs", "finished")
    (tmp_path / "sweep.json").write_text(json.dumps({"grid": {"top_k": ["97", "98"]}, "seeds": [0, 1, 2]}))
    assert count_planned(epath.Path(tmp_path)) == 6
    page = make_page("<b>name", experiments, best, [missing], "nothing", unfinished=unfinished, planned=6)
    assert has_facts(" ".join(Elements(page).texts), "3 of 6 runs", "2 have not started")
    assert (
        "runs top_k task dev metric mean ± std seeds runs/b0 98 target accuracy 0.6500 0 runs/a0, runs/a1 97 target "
        "accuracy 0.6000 ± 0.1414 0, 1" in words
    )


def test_planned_runs_of_one_host_are_those_of_its_part(tmp_path: Path) -> None:
    assert count_planned(epath.Path(tmp_path)) == 0
    seeds, counts = list(range(7)), []
    runs = [Run({}, seed) for seed in seeds]
    for host in range(3):
        folder = tmp_path / f"host-{host}-of-3"
        folder.mkdir()
        (folder / "sweep.json").write_text(json.dumps({"grid": {}, "seeds": seeds}))
        counts.append(count_planned(epath.Path(folder)))
        assert counts[-1] == len(part_of(runs, host, 3))
    assert counts == [2, 2, 3]
    (tmp_path / "sweep.json").write_text(json.dumps({"grid": {"top_k": 1}, "seeds": seeds}))
    with pytest.raises(UserError) as refused:
        count_planned(epath.Path(tmp_path))
    assert has_facts(str(refused.value), str(tmp_path / "sweep.json"), "damaged", "afjax sweep")


def test_failed_and_stopped_runs_of_a_sweep_are_listed(tmp_path: Path) -> None:
    """Runs 1 and 4 failed (4 before it wrote its config), run 2 was stopped, and run 3 was retried and finished."""
    runs = tmp_path / "runs"
    for name in ("seed=0", "seed=1", "seed=2", "seed=3"):
        write_run(runs / name, name="fused", accuracy=0.75)
    for name in ("seed=1", "seed=2"):
        (runs / name / "target" / "result.json").unlink()
    (runs / "seed=4").mkdir()
    (runs / "seed=1" / "log.txt").write_text(f"step 1\rstep 2\r\nafjax: {HOSTILE}\n\n")
    (runs / "seed=2" / "log.txt").write_text("x" * 500)
    statuses = {"seed=0": "done", "seed=1": "failed", "seed=3": "failed", "seed=4": "failed"}
    table = "".join(f"{name[-1]},{status},runs/{name}\n" for name, status in statuses.items())
    (tmp_path / "sweep.csv").write_text(f"seed,status,folder\n{table}")
    experiments = find_experiments(epath.Path(tmp_path))
    unfinished = find_unfinished(epath.Path(tmp_path), experiments)
    assert unfinished == [
        UnfinishedRun("runs/seed=1", True, f"afjax: {HOSTILE}"),
        UnfinishedRun("runs/seed=4", True, ""),
        UnfinishedRun("runs/seed=2", False, f"{'x' * 300}…"),
    ]
    best = find_best([experiment for experiment in experiments if experiment.results])
    missing = EvaluatedResult(best.results["target"], missing="gone.")
    texts = Elements(make_page("name", experiments, best, [missing], "nothing", unfinished=unfinished)).texts
    assert has_facts(" ".join(texts), "2 of 5 runs", "2 failed")
    assert f"afjax: {SHOWN}" in texts


def test_failed_runs_of_nested_sweeps_are_listed(tmp_path: Path) -> None:
    for host in ("host-0-of-2", "host-1-of-2"):
        folder = tmp_path / "runs" / "sweep" / host
        folder.mkdir(parents=True)
        (folder / "sweep.csv").write_text("seed,status,folder\n0,failed,runs/seed=0\n")
    unfinished = find_unfinished(epath.Path(tmp_path / "runs"), [])
    assert [run.title for run in unfinished] == ["sweep/host-0-of-2/runs/seed=0", "sweep/host-1-of-2/runs/seed=0"]


@pytest.mark.parametrize(
    "contents",
    [
        b"what,ever\n1,2\n",
        b"seed,status,folder\n0,failed\n",
        b"seed,status,folder\n0,failed,\n",
        b"seed,status,folder\n0,failed,/etc\n",
        b"seed,status,folder\n0,failed,runs/../../etc\n",
        b"seed,status,folder\n0,failed,runs/" + b"a" * 200_000 + b"\n",
        b"seed,status,folder\n0,failed,runs/\xff\n",
    ],
)
def test_damaged_table_of_a_sweep_is_refused(tmp_path: Path, contents: bytes) -> None:
    (tmp_path / "sweep.csv").write_bytes(contents)
    with pytest.raises(UserError, match=r"sweep\.csv is damaged"):
        find_unfinished(epath.Path(tmp_path), [])


def test_tasks_in_a_sequence(tmp_path: Path) -> None:
    """Each task in a sequence has its own run and log. If a task was scored several times, its last score counts."""
    tasks = tuple(TaskConfig(name=name, source=f"builtin:{name}") for name in ("entail", "paraphrase"))
    config = ExperimentConfig(recipe="sequential", partition="full", tasks=tasks)
    write_run(tmp_path, name="entail", accuracy=0.9, task="entail")
    (tmp_path / "config.json").write_text(json.dumps(to_dict(config)))
    target = tmp_path / "target"
    for number, task in enumerate(tasks, start=1):
        (target / f"{number}-{task.name}").mkdir()
        shutil.copy(target / "metrics.jsonl", target / f"{number}-{task.name}")
    (target / "metrics.jsonl").unlink()
    (first,) = json.loads((target / "result.json").read_text())
    later = [{**first, "metrics": {"accuracy": value}} for value in (0.5, 0.7)]
    later[1] |= {"name": "paraphrase", "task": "paraphrase"}
    (target / "result.json").write_text(json.dumps([first, *later]))
    scores = [[{"accuracy": 0.9}], [{"accuracy": 0.51}, {"accuracy": 0.7}]]
    write_forgetting(epath.Path(tmp_path) / "forgetting.csv", tasks, scores)
    (experiment,) = find_experiments(epath.Path(tmp_path))
    assert [run.title for run in experiment.runs] == ["target/1-entail", "target/2-paraphrase", "target"]
    assert experiment.score == pytest.approx(0.6)
    evaluated_results = [
        EvaluatedResult(result, (10, 20), hostile_evaluation()) for result in experiment.results.values()
    ]
    elements = Elements(make_page("<b>name", [experiment], experiment, evaluated_results, "nothing", unfinished=()))
    assert {"target/1-entail", "target/2-paraphrase", "builtin:paraphrase"} <= set(elements.texts)
    assert [name for name, _ in elements.found].count("img") == 2 * 3 + 2
    # The scores after each task.
    assert {"entail (accuracy)", "0.5100"} <= set(elements.texts)
    for damaged in (b"\xff", b"", b"after,entail\na\n", b"after,entail\n\n"):
        (tmp_path / "forgetting.csv").write_bytes(damaged)
        with pytest.raises(UserError, match=r"forgetting\.csv"):
            make_page("name", [experiment], experiment, evaluated_results, "nothing", unfinished=())


@pytest.mark.parametrize(
    ("num_tasks", "shown", "facts"), [(8, 8, ("Dev scores ",)), (40, 31, ("Dev scores; 9 more ", "metrics.jsonl "))]
)
def test_curves_of_many_tasks(num_tasks: int, shown: int, facts: tuple[str, ...], tmp_path: Path) -> None:
    """The dev-score figure has at most ``MOST_LINES`` curves, and the page says how many it omits."""
    write_run(tmp_path, name="fused", accuracy=0.75)
    tasks = [f"task{number:02}" for number in range(num_tasks)]
    evaluations = [
        {"step": step, "dev/mean": 0.5, **{f"dev/{task}/accuracy": step / 40 for task in tasks}} for step in (10, 20)
    ]
    with (tmp_path / "target" / "metrics.jsonl").open("a") as log:
        log.write("\n" + "".join(json.dumps(line) + "\n" for line in evaluations))
    results = [
        {"name": task, "kind": "full, multitask", "task": task, "metrics": {"accuracy": 0.5}, "main_metric": "accuracy"}
        for task in tasks
    ]
    (tmp_path / "target" / "result.json").write_text(json.dumps(results))
    (found,) = find_experiments(epath.Path(tmp_path))
    missing = [EvaluatedResult(result, missing="gone.") for result in found.results.values()]
    page = make_page("name", [found], found, missing, "nothing", unfinished=())
    words = " ".join(Elements(page).texts)
    assert has_facts(words, *facts)
    (drawn,) = (picture for picture in pictures(page) if ">dev score<" in picture)
    assert [task for task in tasks if f">{task}/accuracy<" in drawn] == tasks[:shown]


def test_values_and_many_labels(tmp_path: Path) -> None:
    from afjax.analysis.report_sections import confusion, mistakes

    result = Result("sts", "adapter", "sts", {"pearson": 0.5}, "pearson")
    shared = {"num_rows": 3, "digest": "", "activations": {}, "layers": (), "members": (), "mistakes": ()}
    values = (np.array([0.0, 1.0, 5.0]), np.array([0.5, 1.0, 4.0]))
    evaluation = DevEvaluation(
        scores={"pearson": 0.98}, labels=(), confusion=None, values=values, num_wrong=3, **shared
    )
    (picture,) = confusion(result, evaluation)
    assert "pearson 0.9800" in picture.html
    assert has_facts(mistakes(result, evaluation)[0].html, "0 of 3 dev rows", "largest errors")
    counts = np.diag(np.full(50, 2))
    counts[3, 4] = 9
    names = tuple(f"label {number}" for number in range(50))
    evaluation = DevEvaluation(scores={}, labels=names, confusion=counts, values=None, num_wrong=0, **shared)
    (pairs,) = confusion(result, evaluation)
    assert pairs.html.count("<tr>") == 2
    assert "label 3" in pairs.html
    assert has_facts(mistakes(result, evaluation)[0].html, "all 3 dev rows", "right")


def test_attribute_values_are_escaped() -> None:
    assert tag("p", "a<b", Markup("<br>"), title='"><i>').html == '<p title="&quot;&gt;&lt;i&gt;">a&lt;b<br></p>'


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no finished run;"):
        find_experiments(epath.Path(tmp_path))
    write_run(tmp_path / "run", name="fused", accuracy=0.75)
    (tmp_path / "run" / "target" / "result.json").unlink()
    with pytest.raises(UserError, match=r"no finished run .*1 started"):
        find_experiments(epath.Path(tmp_path / "run"))
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="damaged"):
        find_experiments(epath.Path(tmp_path / "run"))
    (tmp_path / "run" / "config.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        find_experiments(epath.Path(tmp_path / "run"))
    with pytest.raises(UserError, match="is a folder"):
        check_output(tmp_path, make_folder=True)
    with pytest.raises(UserError, match="is not a folder"):
        check_output(tmp_path / "run" / "config.json" / "report.html", make_folder=True)


CHROMIUM = shutil.which("chromium")


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium (apt install chromium)")
def test_page_in_a_browser(page: str, tmp_path: Path) -> None:
    """In a browser, the page has all sections, shows hostile text as plain text, and logs and requests nothing."""
    assert CHROMIUM is not None
    file = tmp_path / "report.html"
    file.write_text(page, encoding="utf-8")
    log = tmp_path / "net.json"
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0", "--dump-dom"]
    # Without name resolution, the browser cannot reach its vendor. Requests from the page would be in the log.
    words += ["--disable-background-networking", "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND"]
    words += [f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={log}", file.as_uri()]
    done = subprocess.run([CHROMIUM, *words], capture_output=True, text=True, timeout=300, check=True)
    assert "CONSOLE" not in done.stderr
    requested = re.findall(r'"url":"([^"]*)"', log.read_text())
    # Ignore the browser's own requests to its vendor.
    own = r"(file|data|devtools|chrome[\w-]*):|https?://[\w.-]*(google|gvt1|gstatic)[\w.-]*[/:]"
    assert [url for url in requested if not re.match(own, url)] == []
    elements = Elements(done.stdout)
    assert {attributes.get("id") for _, attributes in elements.found} >= SECTIONS.keys()
    assert "<script" not in done.stdout
    assert sum(SHOWN in text for text in elements.texts) >= 12
