"""``afjax data`` counts rows in official benchmark files, and lists the known tasks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from facts import has_facts

from afjax.cli import task_lines
from afjax.cli.main import main
from afjax.cli.task_lines import printable
from afjax.data.sources.official import OFFICIAL

Refused = Callable[..., str]
Show = Callable[..., tuple[list[str], dict[str, Any]]]

FILES = {
    "glue/RTE/train.tsv": "index\tsentence1\tsentence2\tlabel\n0\tall \x1b[31mcats\tsome\tentailment\n"
    "1\tall\tnone\tnot_entailment\n2\ttwo\ttwo\tentailment\n",
    "glue/RTE/dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tall\tsome\tentailment\n1\ta\tb\tnot_entailment\n",
    "glue/RTE/test.tsv": "index\tsentence1\tsentence2\n0\tall\tsome\n",
    "csqa/dev_rand_split.jsonl": json.dumps(
        {
            "id": "7",
            "answerKey": "B",
            "question": {"stem": "Where?", "choices": [{"label": "A", "text": "one"}, {"label": "B", "text": "two"}]},
        }
    ),
    "squad/train-v1.1.json": json.dumps(
        {
            "data": [
                {
                    "paragraphs": [
                        {
                            "context": "two of the four " * 9,
                            "qas": [{"id": "q", "question": "all?", "answers": [{"text": "four", "answer_start": 11}]}],
                        }
                    ]
                }
            ]
        }
    ),
    "glue/STS-B/dev.tsv": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
    "0\ta\tb\tc\td\te\tf\tone\ttwo\t4.250\n1\ta\tb\tc\td\te\tf\tone\tsix\t1.750\n",
    "own/dev.jsonl": '{"text": "two", "label": "x"}\n{"text": "four", "label": "y"}\n',
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "data"


@pytest.fixture
def show(folder: Path, tiny_trunk_folder: Path, capsys: pytest.CaptureFixture[str]) -> Show:
    """Returns a function that runs ``afjax data show``.

    The function returns the printed lines and the JSON object from the last line.
    """

    def run(*words: str) -> tuple[list[str], dict[str, Any]]:
        has_source = ":" in words[0] or any(word.startswith("--source") for word in words)
        given = [] if has_source else [f"--data_dir={folder}"]
        flags = [f"--trunk={tiny_trunk_folder}", "--max_length=16", "--batch_size=2", "--json"]
        assert main(["data", "show", *words, *given, *flags]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        *lines, last = out.splitlines()
        return lines, json.loads(last)

    return run


def test_folder_of_a_task(tmp_path: Path, tiny_trunk_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "reviews").mkdir()
    for name in ("train.csv", "dev.csv"):
        (tmp_path / "reviews" / name).write_text("text,label\nfine,good\npoor,bad\n")
    words = ["data", "show", str(tmp_path / "reviews"), f"--trunk={tiny_trunk_folder}", "--json"]
    assert main(words) == 0
    task = json.loads(capsys.readouterr().out.splitlines()[-1])["task"]
    assert (task["name"], task["labels"]) == ("reviews", ["bad", "good"])


def test_classification_task(show: Show, folder: Path) -> None:
    lines, found = show("rte")
    task = found["task"]
    assert (task["kind"], task["metric"]) == ("classification", "accuracy")
    assert task["labels"] == ["entailment", "not_entailment"]
    assert (task["about"], task["source"]) == (OFFICIAL["rte"].about, f"official:rte:{folder}")
    assert found["splits"].keys() == {"train", "dev", "test"}
    train, test = found["splits"]["train"], found["splits"]["test"]
    assert train["files"] == [str(folder / "glue/RTE/train.tsv")]
    assert (train["rows"], train["labeled"]) == (3, True)
    assert train["labels"] == {
        "entailment": {"rows": 2, "share": pytest.approx(2 / 3)},
        "not_entailment": {"rows": 1, "share": pytest.approx(1 / 3)},
    }
    assert (test["rows"], test["labeled"], test["labels"]) == (1, False, {})
    assert train["lengths"].keys() == {"5", "25", "50", "75", "95", "99", "100"}
    assert train["truncated"] == 0
    assert found["examples"]["split"] == "train"
    assert [row["label"] for row in found["examples"]["rows"]] == ["entailment", "not_entailment", "entailment"]
    text = "\n".join(lines)
    assert "train: 3 rows, labeled" in text
    assert "entailment 2 (66.7%), not_entailment 1 (33.3%)" in text
    assert has_facts(text, "test: 1 row, ", "not labeled")
    # Terminal control characters in texts are escaped.
    assert '"all \\x1b[31mcats"' in text
    assert "\x1b" not in text
    assert "[CLS]" in text


def test_multiple_choice_span_and_regression_tasks(show: Show) -> None:
    lines, found = show("csqa")
    split = found["splits"]["dev"]
    assert split["labels"] == {"A": {"rows": 0, "share": 0.0}, "B": {"rows": 1, "share": 1.0}}
    assert split["choices"] == {"2": {"rows": 1, "share": 1.0}}
    assert has_facts(found["task"]["head"], "1 output", "each choice", "one vector")
    assert '  choice B   "two"' in lines
    lines, found = show("squad")
    split = found["splits"]["train"]
    assert split["answers"] == {"1": {"rows": 1, "share": 1.0}}
    assert split["windows"]["max"] > 1
    assert "every token" in found["task"]["head"]
    assert any(line.startswith("  windows") for line in lines)
    lines, found = show("stsb")
    assert found["splits"]["dev"]["values"] == {"min": 1.75, "mean": 3.0, "max": 4.25}
    assert found["examples"]["rows"][0]["label"] == 4.25
    assert has_facts("\n".join(lines), "  labels ", "1.75", "4.25", "mean 3")


def test_tasks_from_every_kind_of_source(show: Show, folder: Path) -> None:
    _, found = show("entail", "--source=builtin:entail", "--split=dev")
    assert found["splits"].keys() == {"dev"}
    assert found["splits"]["dev"]["files"] == ["builtin:entail dev"]
    # A source can replace the task name. The task is then named after a part of the source.
    assert show("builtin:entail", "--split=dev")[1] == found
    assert show(f"official:rte:{folder}")[1] == show("rte")[1]
    # The folder "own" is in afjax's format and has no train split to infer label names from.
    _, found = show("own")
    assert found["task"]["labels"] == ["x", "y"]
    assert found["task"]["about"] == ""
    assert found["splits"]["dev"]["files"] == [str(folder / "own/dev.jsonl")]
    # A benchmark's task name sets the task kind, even if the rows come from another source. So does a source with a
    # benchmark's files.
    (folder / "own" / "dev.jsonl").write_text('{"context": "a", "choices": ["b", "c"], "label": 1}\n')
    _, found = show("csqa", f"--source={folder / 'own'}")
    assert (found["task"]["kind"], found["splits"]["dev"]["rows"]) == ("multiple_choice", 1)
    _, found = show("questions", f"--source=official:squad:{folder}")
    assert (found["task"]["name"], found["task"]["kind"]) == ("questions", "span")
    toml = folder / "mine.toml"
    toml.write_text('source = "glue/RTE"\ntrain = "train.tsv"\ntext_a = "sentence1"\n')
    _, found = show(str(toml), "--split=train")
    assert found["examples"]["rows"][1]["fields"] == {"text": "all"}


def test_splits_without_labels(show: Show, folder: Path) -> None:
    path = folder / "own"
    (path / "train.jsonl").write_text('{"text": "two of all"}\n')
    _, found = show("own")
    assert [split["labeled"] for split in found["splits"].values()] == [False, True]
    assert found["splits"]["dev"]["labels"]["y"]["rows"] == 1


def test_multi_label_and_tagging_tasks_without_a_train_split(show: Show, folder: Path) -> None:
    (folder / "topics").mkdir()
    (folder / "topics" / "dev.csv").write_text("text,label\nall of the two,a|b\nsome,\n")
    (folder / "names").mkdir()
    (folder / "names" / "dev.conll").write_text("all O\ntwo B-number\n\nsome O\n")
    _, topics = show("topics", f"--source={folder / 'topics'}", "--kind=multi_label")
    assert topics["task"]["labels"] == ["a", "b"]
    assert topics["splits"]["dev"]["labels"] == {label: {"rows": 1, "share": 0.5} for label in ("a", "b")}
    assert topics["examples"]["rows"][0]["label"] == ["a", "b"]
    _, names = show("names", f"--source={folder / 'names'}", "--kind=tagging")
    assert names["task"]["labels"] == ["B-number", "O"]
    assert names["examples"]["rows"][0]["label"] == ["number: two"]
    assert names["splits"]["dev"]["windows"] == {"mean": 1.0, "max": 1}


def test_unreadable_tasks_are_refused(folder: Path, tiny_trunk_folder: Path, refused: Refused) -> None:
    trunk, place = f"--trunk={tiny_trunk_folder}", f"--data_dir={folder}"
    assert has_facts(refused("data", "show", "rt", place, trunk), 'no task "rt"', 'Did you mean "rte"?')
    assert has_facts(refused("data", "show", "rte", trunk), "Neither --data_dir", "--source")
    assert "Both --data_dir" in refused("data", "show", "rte", place, trunk, "--source=builtin:entail")
    assert has_facts(refused("data", "show", "csqa", place, trunk, "--split=train"), "csqa", "no train split")
    assert "Pass a TASK with" in refused("data", "show", place)
    assert "Pass a TASK with" in refused("data", "list", "rte")
    assert "max_length is 3" in refused("data", "show", "rte", place, trunk, "--max_length=3")
    assert "batch_size is 0" in refused("data", "show", "rte", place, trunk, "--batch_size=0")
    # One unreadable split is enough to refuse the command.
    damaged = folder / "glue" / "RTE" / "test.tsv"
    damaged.write_bytes(b"index\tsentence1\tsentence2\n0\t\xff\tb\n")
    assert f"{damaged}:2 is not UTF-8" in refused("data", "show", "rte", place, trunk)


def test_slow_steps_are_reported(
    folder: Path, tiny_trunk_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(task_lines, "LARGE_FILE", 10)
    monkeypatch.setattr(task_lines, "MANY_ROWS", 2)
    assert main(["data", "show", "rte", f"--data_dir={folder}", f"--trunk={tiny_trunk_folder}"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said == ["Reading train ...", "Reading dev ...", "Reading test ...", "Tokenizing 3 rows of train ..."]


def test_list_shows_the_known_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "kind", "metric", "TFDS", "about"]
    assert [line.split()[0] for line in lines[1:]] == list(OFFICIAL)
    assert main(["data", "list", "--json"]) == 0
    tasks = json.loads(capsys.readouterr().out.splitlines()[-1])["tasks"]
    assert tasks[0] == {
        "name": "cola",
        "kind": "classification",
        "metric": "matthews",
        "tfds": "glue/cola",
        "about": OFFICIAL["cola"].about,
    }


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["data", "--help"])
    assert "afjax data show " in capsys.readouterr().out


def test_control_characters_are_escaped() -> None:
    assert printable("é\n\x00\\ \u2028") == "é\\n\\x00\\\\ \\u2028"
    assert printable("x" * 300) == "x" * 197 + "..."
