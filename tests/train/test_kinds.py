"""Adapters, fusions and joint training support every kind of task.

The kinds tested here are multiple choice, span, multi-label and tagging.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from afjax.cli.predictions import write_predictions
from afjax.config.adapters import ADAPTER_PRESETS, AdapterConfig
from afjax.config.methods import FusionMethod, Method, MultitaskMethod
from afjax.config.tasks import MultiLabelConfig, SpanConfig, TaskConfig
from afjax.config.training import SamplingConfig, TrainConfig
from afjax.data.splits import AnyRows, ChoiceRows, SpanRows
from afjax.errors import UserError
from afjax.model.loading import load_task_model
from afjax.model.task_model import TaskModel, _predict_step
from afjax.tasks.load import rows_from_lists
from afjax.tasks.prediction_rows import read_prediction_rows
from afjax.train.fusion import train_fusion
from afjax.train.multitask import train_multitask
from afjax.train.single import train_single
from afjax.trunk.pretrained import Trunk

pytestmark = pytest.mark.slow

ADAPTER = AdapterConfig(reduction_factor=4.0, init_scale=0.1)
CHOICE = TaskConfig(name="choice", kind="multiple_choice")
# With 12 tokens per row, six are left for the context, so the longer contexts have two windows.
SPAN = TaskConfig(name="span", kind="span", span=SpanConfig(doc_stride=4, num_best=4))
TOPICS = TaskConfig(name="topics", kind="multi_label", multi_label=MultiLabelConfig(tune_threshold=True))
NAMES = TaskConfig(name="names", kind="tagging")
NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine")


@pytest.fixture(scope="module")
def settings(tiny: TrainConfig) -> TrainConfig:
    return dataclasses.replace(tiny, max_length=12, buckets=(12,), max_steps=24, eval_every=24)


@pytest.fixture(scope="module")
def choices() -> Mapping[str, AnyRows]:
    """Makes rows with two or three choices.

    The choice with the word "all" is correct.
    """
    texts, labels = [], []
    for row in range(40):
        right, number = row % 2 if row % 3 else row % 3, NUMBERS[row % 8]
        others = [f"{word} of the {number}" for word in ("some", "none")][: 2 if row % 3 else 1]
        texts.append((f"the {number}", [*others[:right], f"all of the {number}", *others[right:]]))
        labels.append(right)
    return {
        "train": rows_from_lists(texts[:32], labels[:32], kind="multiple_choice"),
        "dev": rows_from_lists(texts[32:], labels[32:], kind="multiple_choice"),
    }


@pytest.fixture(scope="module")
def spans() -> Mapping[str, AnyRows]:
    """Makes rows whose answer is the number in the context.

    Half of the contexts are longer than a window.
    """
    texts, labels = [], []
    for row in range(40):
        number = NUMBERS[(3 * row) % 8]
        context = f"all of the {number}" if row % 2 else f"some of the some of the {number} of the"
        texts.append(("most", context))
        labels.append({"text": [number], "answer_start": [context.index(number)]})
    return {
        "train": rows_from_lists(texts[:32], labels[:32], kind="span"),
        "dev": rows_from_lists(texts[32:], labels[32:], kind="span"),
    }


@pytest.fixture(scope="module")
def topics() -> Mapping[str, AnyRows]:
    """Makes rows with two labels, "all" and "three".

    A row has a label if its text contains the label's name.
    """
    texts = [f"{('all', 'some')[row % 2]} of the {NUMBERS[row // 2 % 4]}" for row in range(40)]
    labels = [[word for word in ("all", "three") if word in text] for text in texts]
    return {
        "train": rows_from_lists(texts[:32], labels[:32], kind="multi_label"),
        "dev": rows_from_lists(texts[32:], labels[32:], kind="multi_label", label_names=("all", "three")),
    }


@pytest.fixture(scope="module")
def names() -> Mapping[str, AnyRows]:
    """Makes sentences whose numbers are entities.

    Half of the sentences are longer than a window.
    """
    sentences, tags = [], []
    for row in range(40):
        number = NUMBERS[row % 8]
        words = ["all", "of", "the", number] if row % 2 else ["some", "of", number, "of", "the"] * 3
        sentences.append(words)
        tags.append(["B-number" if word == number else "O" for word in words])
    return {
        "train": rows_from_lists(sentences[:32], tags[:32], kind="tagging"),
        "dev": rows_from_lists(sentences[32:], tags[32:], kind="tagging"),
    }


@pytest.fixture(scope="module")
def models(
    tiny_trunk: Trunk,
    choices: Mapping[str, AnyRows],
    spans: Mapping[str, AnyRows],
    topics: Mapping[str, AnyRows],
    names: Mapping[str, AnyRows],
    settings: TrainConfig,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[str, TaskModel], Path]:
    """Trains an adapter for each task, and saves the models to a store.

    Returns:
      ``(models, store)``.
    """
    folder = tmp_path_factory.mktemp("kinds")
    found = {}
    for task, data in ((CHOICE, choices), (SPAN, spans), (TOPICS, topics), (NAMES, names)):
        found[task.name] = train_single(
            tiny_trunk, task, data, workdir=folder / task.name, config=settings, method=Method(adapter=ADAPTER)
        )
        found[task.name].save(folder / "store")
    return found, folder / "store"


def test_multi_label_heads_start_at_the_log_odds_of_their_labels(
    tiny_trunk: Trunk,
    topics: Mapping[str, AnyRows],
    names: Mapping[str, AnyRows],
    settings: TrainConfig,
    tmp_path: Path,
) -> None:
    # Train one step with a very low learning rate. It changes a bias by less than the tolerance.
    config = dataclasses.replace(settings, learning_rate=1e-6, max_steps=1, eval_every=1)
    single = train_single(
        tiny_trunk, TOPICS, topics, workdir=tmp_path / "single", config=config, method=Method(adapter=ADAPTER)
    )
    joint = train_multitask(
        tiny_trunk,
        [NAMES, TOPICS],
        {"names": names, "topics": topics},
        workdir=tmp_path / "joint",
        config=config,
        method=MultitaskMethod(adapter=ADAPTER),
    )
    # The first label has 16 of the 32 rows, and the second label has 8. One row with each label and one row without it
    # are added.
    log_odds = np.log([17 / 17, 9 / 25])
    for model in (single, joint["topics"]):
        np.testing.assert_allclose(model.params["heads"]["topics"]["output"]["bias"], log_odds, atol=1e-5)
    np.testing.assert_allclose(joint["names"].params["heads"]["names"]["output"]["bias"], 0, atol=1e-5)


def test_every_kind_learns(models: tuple[dict[str, TaskModel], Path]) -> None:
    assert models[0]["topics"].metrics["micro_f1"] > 0.7
    assert models[0]["topics"].metrics["average_precision"] > 0.7
    assert models[0]["names"].metrics["f1"] > 0.7
    assert models[0]["choice"].metrics["accuracy"] > 0.7
    assert models[0]["span"].metrics["f1"] > 0.7
    assert models[0]["span"].metrics["exact_match"] <= models[0]["span"].metrics["f1"]
    assert "pooler" not in models[0]["span"].params["heads"]["span"]


def test_stored_models_give_the_scores_of_their_runs(
    models: tuple[dict[str, TaskModel], Path],
    tiny_trunk: Trunk,
    choices: Mapping[str, AnyRows],
    spans: Mapping[str, AnyRows],
    topics: Mapping[str, AnyRows],
    names: Mapping[str, AnyRows],
) -> None:
    for task, data in ((CHOICE, choices), (SPAN, spans), (TOPICS, topics), (NAMES, names)):
        loaded = load_task_model(models[1], tiny_trunk, head=task.name, adapter=task.name)
        found = loaded.evaluate(data["dev"], batch_size=8)
        assert found == {name: models[0][task.name].metrics[name] for name in found}


def test_tuned_threshold_is_stored(
    models: tuple[dict[str, TaskModel], Path], tiny_trunk: Trunk, topics: Mapping[str, AnyRows]
) -> None:
    loaded = load_task_model(models[1], tiny_trunk, head="topics", adapter="topics")
    assert loaded.task.multi_label.threshold == models[0]["topics"].task.multi_label.threshold
    untuned = dataclasses.replace(loaded, task=TaskConfig(name="topics", kind="multi_label"))
    assert untuned.evaluate(topics["dev"])["micro_f1"] <= loaded.metrics["micro_f1"]
    tuned = untuned.tune_threshold(topics["dev"])
    assert tuned.task.multi_label.threshold == loaded.task.multi_label.threshold
    with pytest.raises(UserError, match="choice is of the kind multiple_choice"):
        models[0]["choice"].tune_threshold(topics["dev"])


def test_tuning_a_threshold_leaves_no_copy_of_the_trunk_on_the_devices(
    tiny_trunk: Trunk, topics: Mapping[str, AnyRows], settings: TrainConfig, tmp_path: Path
) -> None:
    trunk, config = dataclasses.replace(tiny_trunk), dataclasses.replace(settings, max_steps=2, eval_every=2)
    model = train_single(trunk, TOPICS, topics, workdir=tmp_path, config=config)
    assert model.trunk is trunk
    assert "_device_params" not in vars(trunk)


def test_renamed_model_is_not_compiled_again(
    models: tuple[dict[str, TaskModel], Path], choices: Mapping[str, AnyRows]
) -> None:
    model = models[0]["choice"]
    expected = model.evaluate(choices["dev"], batch_size=8)
    compiled = _predict_step._cache_size()
    assert model.renamed("other").evaluate(choices["dev"], batch_size=8) == expected
    assert _predict_step._cache_size() == compiled


def test_choices_are_scored_independently(
    models: tuple[dict[str, TaskModel], Path], choices: Mapping[str, AnyRows]
) -> None:
    model, rows = models[0]["choice"], choices["dev"]
    assert isinstance(rows, ChoiceRows)
    together = model.predict_rows(rows, batch_size=8)
    assert together.logits.shape == (8, 3)
    assert np.allclose(together.probabilities.sum(-1), 1)
    # The logits of a row's choices do not depend on the order or number of the choices.
    pairs = zip(rows.contexts, rows.choices, strict=True)
    reordered = model.predict([(text, options[::-1]) for text, options in pairs])
    for row, options in enumerate(rows.choices):
        count = len(options)
        assert together.logits[row, :count] == pytest.approx(reordered.logits[row, :count][::-1], abs=1e-5)
        assert together.probabilities[row, count:].sum() == 0
        assert together.labels[row] == str(together.logits[row].argmax())


def test_answers_are_substrings_of_the_context(
    models: tuple[dict[str, TaskModel], Path], spans: Mapping[str, AnyRows]
) -> None:
    rows = spans["dev"]
    assert isinstance(rows, SpanRows)
    predictions = models[0]["span"].predict_rows(rows, batch_size=8)
    assert predictions.answers is not None
    for context, label, answers in zip(rows.contexts, predictions.labels, predictions.answers, strict=True):
        assert label == answers[0].text
        assert all(context[answer.begin : answer.end] == answer.text for answer in answers)
        assert [answer.score for answer in answers] == sorted((answer.score for answer in answers), reverse=True)
    assert predictions.logits.shape == predictions.probabilities.shape == (8, 4)


def test_fusions_train_heads_on_the_first_token_and_on_all_tokens(
    models: tuple[dict[str, TaskModel], Path],
    tiny_trunk: Trunk,
    choices: Mapping[str, AnyRows],
    spans: Mapping[str, AnyRows],
    names: Mapping[str, AnyRows],
    settings: TrainConfig,
    tmp_path: Path,
) -> None:
    for task, data in ((CHOICE, choices), (SPAN, spans), (NAMES, names)):
        fused = train_fusion(
            tiny_trunk,
            task,
            data,
            FusionMethod(adapters=("choice", "span"), store=models[1]),
            workdir=tmp_path / task.name,
            config=dataclasses.replace(settings, max_steps=8, eval_every=8),
        )
        fused.save(models[1], overwrite=True)
        name = f"{task.name}-fusion"
        loaded = load_task_model(models[1], tiny_trunk, head=name, fusion=name)
        found = loaded.evaluate(data["dev"], batch_size=8)
        assert found == {metric: fused.metrics[metric] for metric in found}
        attention = loaded.predict_rows(data["dev"], fusion_attention=True).fusion_attention["ffn"]
        assert attention.shape == (8, 2, 2)
        assert attention.sum(-1) == pytest.approx(1, abs=1e-5)


def test_joint_training_on_several_kinds_of_tasks(
    tiny_trunk: Trunk,
    choices: Mapping[str, AnyRows],
    spans: Mapping[str, AnyRows],
    topics: Mapping[str, AnyRows],
    names: Mapping[str, AnyRows],
    rows: Mapping[str, AnyRows],
    task: TaskConfig,
    settings: TrainConfig,
    tmp_path: Path,
) -> None:
    data = {"choice": choices, "span": spans, "topics": topics, "names": names, task.name: rows}
    models = train_multitask(
        tiny_trunk,
        [CHOICE, SPAN, TOPICS, NAMES, task],
        data,
        workdir=tmp_path,
        config=dataclasses.replace(settings, max_steps=24, eval_every=24),
        method=MultitaskMethod(
            adapter=dataclasses.replace(ADAPTER_PRESETS["pals"], size=8, num_heads=2),
            sampling=SamplingConfig(sampler="round_robin", steps_per_epoch=32),
        ),
    )
    assert set(models) == set(data)
    for name in ("choice", "span", "topics", "names"):
        found = models[name].evaluate(data[name]["dev"], batch_size=8)
        assert found == pytest.approx({metric: models[name].metrics[metric] for metric in found}, abs=1e-6)
    assert models["choice"].params["heads"]["choice"]["output"]["kernel"].shape == (32, 1)
    assert models["span"].params["heads"]["span"].keys() == {"output"}
    assert models["span"].params["heads"]["span"]["output"]["kernel"].shape == (32, 2)


def _tagging_every_word(model: TaskModel) -> TaskModel:
    """Returns the model with a head that tags every word as a number."""
    head = model.params["heads"]["names"]
    output = {"kernel": np.zeros_like(head["output"]["kernel"]), "bias": np.asarray([1, 0], np.float32)}
    assert model.labels == ("B-number", "O")
    return dataclasses.replace(model, params={**model.params, "heads": {"names": {**head, "output": output}}})


def test_predictions_for_files_of_each_kind(models: tuple[dict[str, TaskModel], Path], tmp_path: Path) -> None:
    inputs = {
        "choice": [{"context": "the two", "choices": ["all of the two", "none of the two", "some"]},
                   {"context": "the", "question": "two", "choices": ["none", "all"]}],
        "span": [{"question": "most", "context": "all of the nine"}, {"question": "most", "context": ""}],
        "topics": [{"text": "all of the three"}, {"text": "some of the two"}],
        "names": [{"words": ["all", "of", "the", "two"]}, *({"text": f"some  of the {number}"} for number in NUMBERS)],
    }  # fmt: skip
    for name, lines in inputs.items():
        model = _tagging_every_word(models[0][name]) if name == "names" else models[0][name]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        rows = read_prediction_rows(tmp_path / "rows.jsonl", model.task)
        write_predictions(str(tmp_path / "out.jsonl"), model, rows, batch_size=8, max_length=12)
        found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        if name == "choice":
            assert [len(line["logits"]) for line in found] == [3, 2]
            assert [line["label"] for line in found] == ["0", "1"]
        elif name == "names":
            assert [len(line["label"]) for line in found] == [4] * (1 + len(NUMBERS))
            assert [len(word) for line in found for word in line["logits"]] == [2] * 4 * (1 + len(NUMBERS))
            # Each word is an entity. There are two spaces in "some  of".
            places = [[(0, 4), (6, 8), (9, 12), (13, 13 + len(number))] for number in NUMBERS]
            texts = [["some", "of", "the", number] for number in NUMBERS]
            entities = [line["entities"] for line in found[1:]]
            assert [[(each["begin"], each["end"]) for each in line] for line in entities] == places
            assert [[each["text"] for each in line] for line in entities] == texts
            assert {each["type"] for line in entities for each in line} == {"number"}
            continue
        elif name == "topics":
            threshold = model.task.multi_label.threshold
            for line in found:
                pairs = zip(model.labels, line["probabilities"], strict=True)
                assert line["label"] == [label for label, probability in pairs if probability >= threshold]
            continue
        else:
            assert [line["label"] for line in found] == [line["answers"][0]["text"] for line in found]
            assert found[1]["label"] == ""
            assert [len(line["logits"]) for line in found] == [len(line["answers"]) for line in found] == [4, 1]
        assert all(sum(line["probabilities"]) == pytest.approx(1) for line in found)
