"""``afjax submit`` writes GLUE, SuperGLUE and SQuAD submissions from stored heads and official test files."""

import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from facts import has_facts

from afjax.adapters.kinds import init_adapter
from afjax.cli.main import main
from afjax.config.adapters import AdapterConfig
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.tasks import SpanConfig, TaskConfig
from afjax.data.sources.official import OFFICIAL
from afjax.fusion.parameters import init_fusion
from afjax.model.heads import init_head
from afjax.model.loading import load_task_model
from afjax.model.model import Model
from afjax.model.task_model import TaskModel
from afjax.tasks.best_answers import Answer
from afjax.tasks.kinds import TASK_KINDS
from afjax.tasks.submissions import GLUE, glue_text, null_odds_text, squad_text
from afjax.trunk.pretrained import Trunk, load_trunk

Refused = Callable[..., str]
Submit = Callable[..., list[str]]

HEADS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "boolq", "cb", "squad", "squad_v2")
BOTTLENECK = AdapterConfig(size=2)
PAIRS = [("all of the two", "some"), ("none of the two", "most"), ("some of the four", "all")]


def drawn(init: Callable[[], Any]) -> Any:
    """Returns the tree that ``init`` would return, but draws it with NumPy, which needs no compilation."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), jax.eval_shape(init))


def task_model(trunk: Trunk, task: str, *, adapter: str = "", fused: bool = False) -> TaskModel:
    """Builds an untrained model. Its head, and its single-adapter fusion if any, are named after the task."""
    known, key = OFFICIAL[task], jax.random.key(0)
    outputs, reads = TASK_KINDS[known.kind].num_outputs(known.labels), TASK_KINDS[known.kind].reads
    size = {"hidden_size": trunk.config.hidden_size, "num_layers": trunk.config.num_layers}
    params = {
        "adapters": {adapter: drawn(lambda: init_adapter(key, BOTTLENECK, trunk.config))} if adapter else {},
        "fusion": {task: drawn(lambda: init_fusion(key, FusionConfig(), BOTTLENECK, **size))} if fused else {},
        "heads": {task: drawn(lambda: init_head(key, HeadConfig(), outputs, trunk=trunk.params, reads=reads))},
    }
    adapters = tuple((name, BOTTLENECK) for name in params["adapters"])
    fusion = task if fused else ""
    return TaskModel(
        trunk=trunk,
        model=Model(trunk=trunk.config, head_name=task, reads=reads, adapters=adapters, fusion_name=fusion),
        params=params,
        task=TaskConfig(name=task, kind=known.kind, span=SpanConfig(no_answer=known.no_answer)),
        labels=known.labels,
        metrics={},
        seed=0,
        max_length=16,
    )


@pytest.fixture(scope="module")
def heads(tiny_trunk: Trunk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates a store with heads for all tasks, an adapter for rte, and a fusion of that adapter for qnli."""
    folder = tmp_path_factory.mktemp("heads")
    task_model(tiny_trunk, "rte", adapter="rte").save(folder)
    task_model(tiny_trunk, "qnli", adapter="rte", fused=True).save(folder)
    for name in HEADS:
        if name not in ("rte", "qnli"):
            task_model(tiny_trunk, name).save(folder)
    return folder


def table(columns: str, *rows: Sequence[object]) -> str:
    return "".join("\t".join(map(str, row)) + "\n" for row in (columns.split(), *rows))


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def squad(*ids: str) -> str:
    questions = [{"id": name, "question": "all of the two?"} for name in ids]
    return json.dumps({"data": [{"paragraphs": [{"context": "some of the four " * 4, "qas": questions}]}]})


def glue_files() -> dict[str, str]:
    pairs = table("index sentence1 sentence2", *((number, *pair) for number, pair in enumerate(PAIRS)))
    singles = table("index sentence", *((number, first) for number, (first, _) in enumerate(PAIRS)))
    paraphrases = table("Quality ID1 ID2 first second", *((1, 7, 8, *pair) for pair in PAIRS))
    return {
        "glue/CoLA/test.tsv": singles,
        "glue/SST-2/test.tsv": singles,
        "glue/MRPC/msr_paraphrase_test.txt": paraphrases.replace("first", "#1 String").replace("second", "#2 String"),
        "glue/STS-B/test.tsv": pairs,
        "glue/QQP/test.tsv": table(
            "id question1 question2", *((number + 5, *pair) for number, pair in enumerate(PAIRS))
        ),
        "glue/MNLI/test_matched.tsv": pairs,
        "glue/MNLI/test_mismatched.tsv": pairs,
        "glue/diagnostic/diagnostic.tsv": pairs,
        "glue/QNLI/test.tsv": table("index question sentence", *((number, *pair) for number, pair in enumerate(PAIRS))),
        "glue/RTE/test.tsv": pairs,
        "glue/WNLI/test.tsv": pairs,
    }


SUPER_GLUE_FILES = {
    "super_glue/BoolQ/test.jsonl": lines(*({"question": a, "passage": b, "idx": n} for n, (a, b) in enumerate(PAIRS))),
    "super_glue/CB/test.jsonl": lines(*({"premise": a, "hypothesis": b, "idx": n} for n, (a, b) in enumerate(PAIRS))),
    "super_glue/RTE/RTE/test.jsonl": lines({"premise": "all", "hypothesis": "some", "idx": 12}),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        **glue_files(),
        **SUPER_GLUE_FILES,
        "squad/dev-v1.1.json": squad("56be", "56bf"),
        "squad_v2/dev-v2.0.json": squad("5a01", "5a02"),
    }
    for name, text in files.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "data"


@pytest.fixture
def flags(heads: Path, tiny_trunk_folder: Path, folder: Path, tmp_path: Path) -> list[str]:
    return [
        f"--store={heads}",
        f"--trunk={tiny_trunk_folder}",
        f"--data_dir={folder}",
        f"--output={tmp_path / 'out' / 'here'}",
    ]


@pytest.fixture
def submit(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Submit:
    """Returns a function that runs ``afjax submit`` and returns the printed lines."""

    def run(benchmark: str, *words: str) -> list[str]:
        assert main(["submit", benchmark, *flags, *words]) == 0
        out, err = capsys.readouterr()
        assert not list(tmp_path.rglob("*.part"))
        return [*out.splitlines(), *err.splitlines()]

    return run


def unpacked(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stubs prediction, so that models predict each label in turn without compilation."""

    def predict(task_model: TaskModel, rows: Any, **_: Any) -> tuple[list[Any], list[Any]]:
        values = [1.25, 2.5, 5.5] if task_model.task.kind == "regression" else [*task_model.labels] * 2
        return values[: len(rows)], []

    monkeypatch.setattr("afjax.cli.submission.predict", predict)


@pytest.mark.usefixtures("quick")
def test_glue_submission_has_eleven_files(submit: Submit, tmp_path: Path) -> None:
    shown = "\n".join(submit("glue"))
    numbers, names = ["0", "1", "0"], ["entailment", "not_entailment", "entailment"]
    three = ["entailment", "neutral", "contradiction"]
    expected = {
        "CoLA.tsv": numbers,
        "SST-2.tsv": numbers,
        "MRPC.tsv": numbers,
        "STS-B.tsv": ["1.250", "2.500", "5.000"],
        "QQP.tsv": numbers,
        "MNLI-m.tsv": three,
        "MNLI-mm.tsv": three,
        "AX.tsv": three,
        "QNLI.tsv": names,
        "RTE.tsv": names,
        "WNLI.tsv": numbers,
    }
    texts = {
        name: table("index prediction", *zip("567" if name == "QQP.tsv" else "012", labels, strict=True))
        for name, labels in expected.items()
    }
    out = tmp_path / "out" / "here"
    assert {path.name for path in out.iterdir()} == {*texts, "submission.zip"}
    assert {name: (out / name).read_bytes().decode() for name in texts} == texts
    assert unpacked(out / "submission.zip") == texts
    for number, name in enumerate(texts, 1):
        assert f"[{number}/11] {name}: 3 rows" in shown
    assert has_facts(shown, f"{out / 'RTE.tsv'}: 3 rows", "adapter", "rte")
    assert has_facts(shown, f"{out / 'QNLI.tsv'}: 3 rows", "fusion", "qnli")
    assert has_facts(shown, f"{out / 'AX.tsv'}: 3 rows, head mnli")
    assert f"{out / 'submission.zip'}: 11 files" in shown


def test_numbers_are_formatted_as_the_server_expects() -> None:
    stsb, qqp, ax = (next(entry for entry in GLUE if entry.task == task) for task in ("stsb", "qqp", "diagnostics"))
    text = glue_text(stsb, [0, 1, 2], [-0.1, 2.34567, 7.0])
    assert text == "index\tprediction\n0\t0.000\n1\t2.346\n2\t5.000\n"
    assert glue_text(qqp, [3, 9], ["duplicate", "not_duplicate"]) == "index\tprediction\n3\t1\n9\t0\n"
    assert glue_text(ax, [0], ["neutral"]) == "index\tprediction\n0\tneutral\n"


@pytest.mark.usefixtures("quick")
def test_partial_submission(submit: Submit, folder: Path, heads: Path, tmp_path: Path) -> None:
    (folder / "glue/QQP/test.tsv").unlink()
    (folder / "glue/diagnostic/diagnostic.tsv").unlink()
    store = tmp_path / "few"
    for name in ("adapters/rte", "heads/rte"):
        (store / name).parent.mkdir(parents=True)
        (store / name).symlink_to(heads / name)
    shown = submit("glue", f"--store={store}", "--partial")
    out = tmp_path / "out" / "here"
    written = unpacked(out / "submission.zip")
    assert len(written) == 9
    assert not (out / "QQP.tsv").exists()
    assert [line for line in shown if line.startswith("[")] == ["[8/9] RTE.tsv: 3 rows"]
    rows = "index\tprediction\n0\t{0}\n1\t{0}\n2\t{0}\n"
    assert written["CoLA.tsv"] == rows.format("0")
    assert written["STS-B.tsv"] == rows.format("0.000")
    assert written["MNLI-mm.tsv"] == rows.format("entailment")
    notes = "\n".join(shown)
    assert has_facts(notes, "WNLI.tsv:", "first label")
    assert has_facts(notes, "QQP.tsv ", "left out", f"{folder} ", "glue/QQP/test.tsv")
    assert has_facts(notes, "WNLI.tsv ", "not_entailment", 'no head "wnli"', "meaningless")
    assert has_facts(notes, "GLUE", "11 files", "9 of them")


def test_missing_heads_and_files_are_listed(
    flags: list[str], folder: Path, heads: Path, tmp_path: Path, refused: Refused
) -> None:
    (folder / "glue/QQP/test.tsv").unlink()
    (folder / "glue/MNLI/test_matched.tsv").unlink()
    store = tmp_path / "few"
    (store / "heads").mkdir(parents=True)
    for name in ("rte", "cb"):
        (store / "heads" / name).symlink_to(heads / "heads" / name)
    sentence = refused("submit", "glue", *flags, f"--store={store}")
    missing = [f'"{name}"' for name in ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "wnli")]
    files = "glue/QQP/test.tsv, glue/MNLI/test_matched.tsv"
    assert has_facts(sentence, f"store {store} ", "no head", *missing, "cb, rte", f"{folder} ", files, "--partial")
    # qqp has neither a head nor a test file, so with --partial no task is left to predict.
    sentence = refused("submit", "glue", *flags, f"--store={store}", "--tasks=qqp", "--partial")
    assert has_facts(sentence, "GLUE", "incomplete")
    assert 'no head "rte-x"' in refused("submit", "glue", *flags, "--names={task}-x", "--tasks=rte")
    # GLUE's RTE file is not used for SuperGLUE.
    (folder / "super_glue/RTE/RTE/test.jsonl").unlink()
    assert "no super_glue/RTE/test.jsonl" in refused("submit", "superglue", *flags)


def test_stored_fusion_predicts_another_task(
    submit: Submit, heads: Path, tiny_trunk_folder: Path, tmp_path: Path
) -> None:
    shown = submit("glue", "--tasks=rte", "--names=qnli", "--max_length=12")
    out = tmp_path / "out" / "here"
    assert sorted(path.name for path in out.iterdir()) == ["RTE.tsv", "submission.zip"]
    stored = load_task_model(heads, load_trunk(str(tiny_trunk_folder)), head="qnli", fusion="qnli")
    labels = stored.predict(PAIRS, max_length=12).labels
    assert (out / "RTE.tsv").read_text() == table("index prediction", *enumerate(labels))
    notes = "\n".join(shown)
    assert has_facts(notes, f"{out / 'RTE.tsv'}: 3 rows", "fusion", "qnli")
    assert has_facts(notes, "GLUE", "11 files", "1 of them")


def test_trunk_is_read_from_the_store(
    flags: list[str], tmp_path: Path, tiny_trunk_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out" / "here" / "RTE.tsv"
    words = ["submit", "glue", "--tasks=rte", "--max_length=12"]
    assert main([*words, *flags]) == 0
    expected = out.read_bytes()
    out.unlink()
    capsys.readouterr()
    assert main([*words, *(flag for flag in flags if not flag.startswith("--trunk="))]) == 0
    assert out.read_bytes() == expected
    assert str(tiny_trunk_folder) in capsys.readouterr().err


@pytest.mark.usefixtures("quick")
def test_super_glue(submit: Submit, tmp_path: Path) -> None:
    shown = submit("superglue")
    out = tmp_path / "out" / "here"
    labels = {"BoolQ": ("false", "true", "false"), "CB": ("entailment", "contradiction", "neutral")}
    texts = {
        f"{name}.jsonl": "".join(f'{{"idx": {number}, "label": "{label}"}}\n' for number, label in enumerate(of_task))
        for name, of_task in labels.items()
    }
    # Both benchmarks have test rows for RTE; these are SuperGLUE's.
    texts["RTE.jsonl"] = '{"idx": 12, "label": "entailment"}\n'
    assert unpacked(out / "submission.zip") == texts
    assert {path.name: path.read_text() for path in out.glob("*.jsonl")} == texts
    assert has_facts("\n".join(shown), "SuperGLUE", "10 files", "3 of them", "AX-b, ")


def test_squad(submit: Submit, folder: Path, tmp_path: Path) -> None:
    submit("squad", "--tasks=squad")
    out = tmp_path / "out" / "here"
    assert [path.name for path in out.iterdir()] == ["predictions.json"]
    answers = json.loads((out / "predictions.json").read_text())
    assert list(answers) == ["56be", "56bf"]
    assert all(text and text in "some of the four " * 4 for text in answers.values())
    # The head's task determines the SQuAD version and the source of the rows.
    (folder / "squad_v2").rename(folder / "aside")
    (folder / "squad_v2").mkdir()
    (folder / "squad_v2" / "test.jsonl").write_text(
        lines(*({"id": name, "question": "all?", "context": "some of the four"} for name in "xyz"))
    )
    submit("squad", "--names=squad_v2", "--split=test")
    answers = json.loads((out / "predictions.json").read_text())
    odds = json.loads((out / "null_odds.json").read_text())
    assert list(answers) == list(odds) == ["x", "y", "z"]
    assert all((text == "") == (odds[name] > 0) for name, text in answers.items())


def test_null_odds() -> None:
    first = [Answer("four", 0, 4, 5.0, 0.6), Answer("", 0, 0, 4.5, 0.3), Answer("of", 5, 7, 4.0, 0.1)]
    second = [Answer("", 0, 0, 3.0, 0.9), Answer("of", 5, 7, 1.0, 0.1)]
    nothing = [Answer("", 0, 0, 3.0, 1.0)]
    assert json.loads(squad_text("abc", [first, second, nothing])) == {"a": "four", "b": "", "c": ""}
    assert json.loads(null_odds_text("abc", [first, second, nothing])) == {"a": -0.5, "b": 2.0, "c": 1e6}


def test_invalid_submissions_are_refused(flags: list[str], folder: Path, tmp_path: Path, refused: Refused) -> None:
    glue = ("submit", "glue", *flags)
    assert 'Did you mean "rte"?' in refused(*glue, "--tasks=cola,rt")
    assert has_facts(refused(*glue, "--names=rte"), "--names is rte", '"{task}"')
    sentence = refused(*glue, "--names=stsb", "--tasks=rte")
    assert has_facts(sentence, 'head "stsb"', "stsb", "regression", "rte", "--names")
    sentence = refused(*glue, "--names=cb", "--tasks=rte")
    assert has_facts(sentence, 'head "cb"', "entailment, contradiction, neutral", "rte")
    assert has_facts(refused(*glue, f"--store={tmp_path / 'nothing'}"), "no store", str(tmp_path / "nothing"))
    assert f"no folder {tmp_path / 'nothing'}" in refused(*glue, f"--data_dir={tmp_path / 'nothing'}")
    assert "only takes test" in refused(*glue, "--split=dev")
    path = folder / "squad/dev-v1.1.json"
    assert has_facts(refused(*glue, f"--output={path}"), f"{path} is a file", "--output")
    assert has_facts(refused("submit", "squad", *flags), "both heads", "squad and squad_v2")
    assert 'has no head "x"' in refused("submit", "squad", *flags, "--names=x")
    sentence = refused("submit", "squad", *flags, "--names=squad_v2", "--tasks=squad")
    assert has_facts(sentence, "squad_v2", "not squad", "--names")
    assert "batch_size is 0" in refused("submit", "glue", *flags, "--batch_size=0")
    assert "max_length is 1000" in refused("submit", "glue", *flags, "--max_length=1000")
    path = folder / "glue/RTE/test.tsv"
    path.write_text(path.read_text().replace("\n1\t", "\none\t"))
    assert has_facts(refused(*glue, "--tasks=rte"), "row", 'id "one"')
    # The folder has RTE both in afjax's format and as downloaded from GLUE, so the choice is ambiguous.
    (folder / "rte").mkdir()
    (folder / "rte" / "test.jsonl").write_text('{"text_a": "a", "text_b": "b"}\n')
    assert has_facts(refused(*glue, "--tasks=rte"), '"rte"', "ambiguous", "official:rte:")


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["submit", "--help"])
    assert "afjax submit glue " in capsys.readouterr().out
