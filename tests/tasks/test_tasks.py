"""Tasks are found by name in downloads, in folders, in TFDS and in TOML files."""

import json
from pathlib import Path

import pytest

from afjax.cli.experiments import load_experiment
from afjax.config.tasks import SpanConfig, TaskConfig
from afjax.errors import UserError
from afjax.tasks.by_name import find_task, task_from_source
from afjax.tasks.load import load_split, load_task

CSQA = {
    "answerKey": "B",
    "id": "x1",
    "question": {
        "question_concept": "door",
        "choices": [{"label": "A", "text": "bank"}, {"label": "B", "text": "library"}],
        "stem": "Where is it?",
    },
}


def write(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Makes downloads of CSQA and RTE, and a task in afjax's own format."""
    for split in ("train", "dev"):
        write(tmp_path / f"csqa/{split}_rand_split.jsonl", CSQA, {**CSQA, "id": "x2", "answerKey": "A"})
        (tmp_path / "glue/RTE").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"glue/RTE/{split}.tsv").write_text(
            "index\tsentence1\tsentence2\tlabel\n0\tone\ttwo\tentailment\n1\tthree\tfour\tnot_entailment\n"
        )
        write(tmp_path / f"mine/{split}.jsonl", {"text": "one", "label": "a"}, {"text": "two", "label": "b"})
    return tmp_path


def test_download_sets_kind_labels_and_metric(data: Path) -> None:
    task = find_task("csqa", data)
    assert task == TaskConfig(
        name="csqa", source=f"official:csqa:{data}", kind="multiple_choice", labels=("A", "B", "C", "D", "E")
    )
    splits = load_task(task)
    assert list(splits) == ["train", "dev"]
    assert splits["dev"].ids == ["x1", "x2"]
    assert splits["dev"].labels is not None
    assert splits["dev"].labels.tolist() == [1, 0]
    assert load_split(find_task("rte", str(data)), "dev").label_names == ("entailment", "not_entailment")


def test_folder_in_afjax_format_is_found(data: Path) -> None:
    assert find_task("mine", data) == TaskConfig(name="mine", source=str(data / "mine"))
    # The name of a benchmark task determines its kind and labels, unless there is a labels.json.
    write(data / "cb/train.jsonl", {"text_a": "one", "text_b": "two", "label": 2})
    assert find_task("cb", data).labels == ("entailment", "contradiction", "neutral")
    (data / "cb/labels.json").write_text('["no", "yes", "maybe"]')
    assert find_task("cb", data).labels == ()
    write(data / "squad_v2/dev.jsonl", {"question": "one", "context": "two", "answers": {"text": []}})
    squad = find_task("squad_v2", data)
    assert (squad.kind, squad.span) == ("span", SpanConfig(no_answer=True))
    assert load_split(squad, "dev").labels == [()]


def test_ambiguous_task_name_is_refused(data: Path) -> None:
    write(data / "rte/train.jsonl", {"text": "one", "label": "a"})
    with pytest.raises(UserError, match=r'"rte" is ambiguous .*source') as caught:
        find_task("rte", data)
    assert str(data / "rte") in str(caught.value)
    assert str(data / "glue/RTE") in str(caught.value)


def test_missing_tasks_are_refused(data: Path) -> None:
    with pytest.raises(UserError, match=r"task squad .*/SQuAD.*train-v1\.1\.json.*/squad .*train\.csv"):
        find_task("squad", data)
    with pytest.raises(UserError, match=r'no task "csqaa".*/csqaa .*train\.jsonl.*Did you mean "csqa"'):
        find_task("csqaa", data)
    with pytest.raises(UserError, match=r'Did you mean "mine"'):
        find_task("mime", data)
    with pytest.raises(UserError, match=r"no folder .*nowhere"):
        find_task("rte", data / "nowhere")
    with pytest.raises(UserError, match=r"no folder .*none given"):
        find_task("rte")


@pytest.mark.parametrize(
    ("name", "source", "metric"),
    [("cola", "hf:glue/cola", "matthews"), ("stsb", "hf:glue/stsb", "pearson"), ("mine", "hf:a/mine", "accuracy")],
)
def test_source_keeps_the_settings_of_a_benchmark_task(name: str, source: str, metric: str) -> None:
    task = task_from_source(name, source)
    assert (task.source, task.main_metric) == (source, metric)
    experiment = load_experiment(f"single:task={name},data={source}")
    assert experiment.task == task


def test_tfds_source_of_a_benchmark_equals_the_task_in_tfds() -> None:
    assert task_from_source("mnli", "tfds:glue/mnli") == find_task("mnli", "tfds:")
    assert task_from_source("mine", "tfds:glue/mnli") == TaskConfig(name="mine", source="tfds:glue/mnli")


def test_tasks_are_found_in_tfds() -> None:
    rte = find_task("rte", "tfds:")
    # If the dataset has other names for the classes, such as neg and pos, they are renamed in order.
    assert (rte.source, rte.labels) == ("tfds:glue/rte", ("entailment", "not_entailment"))
    assert find_task("mnli", "tfds:").dev == "validation_matched"
    assert find_task("cosmosqa", "tfds:").choices[0] == "answer0"
    with pytest.raises(UserError, match=r'TFDS .*"csqa".*tfds:NAME'):
        find_task("csqa", "tfds:")


def test_task_is_read_from_a_toml_file(data: Path) -> None:
    path = data / "colors.toml"
    path.write_text(
        'source = "mine"\nkind = "multiple_choice"\ntext_a = "scene"\nchoices = ["first", "second"]\nlabel = "right"\n'
    )
    rows = [
        {"scene": "grass", "first": "red", "second": "green", "right": 1},
        {"scene": "sky", "first": "blue", "second": "green", "right": 0},
    ]
    for split in ("train", "dev"):
        write(data / f"mine/{split}.jsonl", *rows)
    task = find_task(str(path))
    assert (task.name, task.source) == ("colors", str(data / "mine"))
    rows = load_task(task)["dev"]
    assert rows.choices == [("red", "green"), ("blue", "green")]
    assert rows.labels.tolist() == [1, 0]
    path.write_text('source = "mine"\n', encoding="utf-8-sig")  # With a byte order mark, as some editors write it.
    assert find_task(str(path)).source == str(data / "mine")
    path.write_text('source = "mine"\nknid = "span"\n')
    with pytest.raises(UserError, match=r'colors\.toml\.knid .*Did you mean "kind"'):
        find_task(str(path))
    path.write_text("source = mine")
    with pytest.raises(UserError, match=r"colors\.toml .*not TOML"):
        find_task(str(path))
    with pytest.raises(UserError, match=r'does not exist; .*Did you mean "colors\.toml"'):
        find_task(str(data / "color.toml"))


def test_config_can_refer_to_a_toml_file(data: Path) -> None:
    (data / "colors.toml").write_text('source = "mine"\ntrain_rows = 1\n')
    config = Path(__file__).parents[2] / "configs/single.py"
    task = load_experiment(f"{config}:task={data}/colors.toml").task
    assert task == TaskConfig(name="colors", source=str(data / "mine"), train_rows=1)
    assert load_experiment(f"{config}:task={data}/colors.toml,partition=head").name == "colors-head"


def test_configs_find_tasks_by_name(data: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.py"
    config.write_text(
        "def get_config(data=''):\n"
        "    one = {'name': 'rte', 'data_dir': data, 'metric': 'f1'}\n"
        "    return {'recipe': 'multitask', 'tasks': {'questions': {'preset': 'csqa', 'data_dir': data}, 'rte': one}}\n"
    )
    questions, rte = load_experiment(f"{config}:data={data}").tasks
    assert (questions.name, questions.kind, questions.source) == (
        "questions",
        "multiple_choice",
        f"official:csqa:{data}",
    )
    assert (rte.metric, rte.labels) == ("f1", ("entailment", "not_entailment"))


def test_malformed_official_sources_are_refused(data: Path) -> None:
    for source in ("official:csqa", "official:csqaa:there", "official:"):
        with pytest.raises(UserError, match="is not official:NAME:FOLDER"):
            load_split(TaskConfig(name="a", source=source, kind="multiple_choice"), "dev")
    with pytest.raises(UserError, match="test"):
        load_split(find_task("csqa", data), "test")
