"""Tagging rows are read and split into windows, and entities are scored."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from facts import has_facts
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval import metrics as seqeval
from seqeval.metrics.sequence_labeling import get_entities
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from afjax.analysis.paired import resample_weights
from afjax.cli.main import main
from afjax.config.tasks import TaskConfig
from afjax.data.batches import Batching, eval_batches
from afjax.data.notices import data_notices
from afjax.data.splits import TagRows
from afjax.data.tags import chunks, is_tag
from afjax.errors import UserError
from afjax.tasks import tagging
from afjax.tasks.load import load_split, load_task, rows_from_lists, rows_from_table
from afjax.tasks.metrics import entity_counts
from afjax.tasks.prediction_rows import read_prediction_rows
from afjax.tasks.predictions import Entity, Predictions
from afjax.tasks.scores import prediction_scores
from afjax.tasks.tag_windows import TokenizedTags, _windows, first_tokens, tokenize_tags
from afjax.tasks.tokenize import tokenize
from afjax.tasks.weighted_scores import entity_weighted_scores, unweighted
from afjax.trunk.pretrained import Trunk

TASK = TaskConfig(name="names", kind="tagging")
TAGS = st.sampled_from(["O", *(f"{prefix}-{type_}" for prefix in "BIES" for type_ in ("per", "loc"))])
SENTENCES = st.lists(st.lists(TAGS, min_size=1, max_size=7), min_size=1, max_size=5)


def table(words: list[Any], tags: list[Any], **config: Any) -> TagRows:
    rows = rows_from_table({"words": words, "tags": tags}, dataclasses.replace(TASK, **config))
    assert isinstance(rows, TagRows)
    return rows


@pytest.mark.parametrize(
    ("tags", "entities"),
    [
        (["B-per", "I-per", "O", "B-loc"], [("per", 0, 1), ("loc", 3, 3)]),  # The scheme is IOB2.
        (["I-per", "I-per", "B-per", "O"], [("per", 0, 1), ("per", 2, 2)]),  # The scheme is IOB1.
        (["B-per", "I-per", "E-per", "S-loc"], [("per", 0, 2), ("loc", 3, 3)]),  # The scheme is BIOES.
        (["B-per", "I-loc", "I-per"], [("per", 0, 0), ("loc", 1, 1), ("per", 2, 2)]),
        (["O", "O"], []),
    ],
)
def test_entities_are_found_in_every_tagging_scheme(tags: list[str], entities: list[tuple[str, int, int]]) -> None:
    assert [tuple(chunk) for chunk in chunks(tags)] == entities


@given(sentences=SENTENCES)
def test_entities_equal_seqeval_entities(sentences: list[list[str]]) -> None:
    for tags in sentences:
        assert [tuple(chunk) for chunk in chunks(tags)] == get_entities(tags)


@settings(max_examples=50, deadline=None)
@given(data=st.data(), right=SENTENCES)
def test_scores_equal_seqeval_and_weighted_scores_equal_repeated_rows(
    data: st.DataObject, right: list[list[str]]
) -> None:
    predicted = [data.draw(st.lists(TAGS, min_size=len(tags), max_size=len(tags))) for tags in right]
    scores = unweighted(entity_weighted_scores(entity_counts(predicted, right)), len(right))
    expected = {
        "precision": seqeval.precision_score(right, predicted, zero_division=0),
        "recall": seqeval.recall_score(right, predicted, zero_division=0),
        "f1": seqeval.f1_score(right, predicted, zero_division=0),
        "tag_accuracy": seqeval.accuracy_score(right, predicted),
    }
    assert scores == pytest.approx(expected)
    (weights,) = resample_weights(len(right), 3, seed=0)
    weighted = entity_weighted_scores(entity_counts(predicted, right))(weights)
    for number, row_weights in enumerate(weights.astype(int)):
        rows = np.repeat(np.arange(len(right)), row_weights)
        counts = entity_counts([predicted[row] for row in rows], [right[row] for row in rows])
        repeated = unweighted(entity_weighted_scores(counts), len(rows))
        assert {name: values[number] for name, values in weighted.items()} == pytest.approx(repeated)


@pytest.mark.parametrize(
    ("tag", "expected"),
    [("O", True), ("B-person", True), ("I-a-b", True), ("person", False), ("B-", False), ("X-per", False), ("", False)],
)
def test_tag_needs_a_prefix_and_a_type(tag: str, expected: bool) -> None:
    assert is_tag(tag) == expected


def test_words_and_tags_can_be_lists_or_texts() -> None:
    rows = table([["Ada", "Lovelace", "wrote"], "in  London ."], [["B-per", "I-per", "O"], "O B-loc O"])
    assert rows.texts == ["Ada Lovelace wrote", "in  London ."]
    assert [row.tolist() for row in rows.bounds] == [[[0, 3], [4, 12], [13, 18]], [[0, 2], [4, 10], [11, 12]]]
    assert rows.label_names == ("B-loc", "B-per", "I-per", "O")
    assert [rows.label_of(row) for row in range(2)] == ["per: Ada Lovelace", "loc: London"]
    assert rows.words_of(1) == ["in", "London", "."]
    assert rows.label_counts() == {"B-loc": 1, "B-per": 1, "I-per": 1, "O": 2}
    assert has_facts(repr(rows), "TagRows", "2 sentences", "B-loc", "O")
    assert rows[[0]].digest() != rows[[1]].digest()


@pytest.mark.parametrize(
    ("words", "tags", "facts"),
    [
        (["a", "b c"], ["O", "O"], ("table:1", "2 words", "1 tag;")),
        (["a", "b"], [[], ""], ("table:0", "1 word", "0 tags;")),
        (["a", []], ["O", []], ("table:1", "no words")),
        (["a", "  "], ["O", ""], ("table:1", "no words")),
        (["a", ["b", ""]], ["O", "O O"], ("table:1", "''", "number 2")),
        (["a", ["b", 3]], ["O", "O O"], ("table:1", "3", "number 2")),
        (["a", "b"], ["O", "person"], ("table:1", "'person'", "number 1", "B-person")),
        (["a", "b"], ["O", None], ("table:1", "None", "list of tags")),
        (["a", "b"], ["O", [7]], ("table:1", "7", "number 1")),
    ],
)
def test_bad_rows_are_refused(words: list[Any], tags: list[Any], facts: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        table(words, tags)
    assert has_facts(str(error.value), *facts)


def test_unknown_tag_is_refused_with_the_word_and_a_suggestion() -> None:
    with pytest.raises(UserError) as error:
        table(["a b", "c d"], ["O O", "O B-perso"], labels=("O", "B-person", "I-person"))
    assert has_facts(str(error.value), "table:1", "B-perso ", "number 2", "B-person", 'Did you mean "B-person"?')


def test_missing_columns_are_refused() -> None:
    for columns, name in (({"tokens": ["a"], "tags": ["O"]}, '"words"'), ({"words": ["a"], "label": ["O"]}, '"tags"')):
        with pytest.raises(UserError) as error:
            rows_from_table(columns, TASK)
        assert has_facts(str(error.value), "table:0", name)
    renamed = dataclasses.replace(TASK, text_a="tokens", label="ner")
    assert rows_from_table({"tokens": [["a"]], "ner": [["O"]]}, renamed).label_names == ("O",)


def test_splits_are_read_from_jsonl_files(tmp_path: Path) -> None:
    def write(name: str, *rows: dict[str, Any]) -> None:
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    write("train.jsonl", {"words": ["Ada"], "tags": ["B-per"], "id": 7}, {"words": ["a"], "tags": ["O"], "id": 8})
    write("dev.jsonl", {"words": ["London"], "tags": ["O"]})
    write("test.jsonl", {"words": ["Bob"]})
    splits = load_task(dataclasses.replace(TASK, source=str(tmp_path)))
    assert {rows.label_names for rows in splits.values() if rows.labels} == {("B-per", "O")}
    assert splits["train"].ids == ["7", "8"]
    assert splits["test"].labels is None
    write("dev.jsonl", {"words": ["London"], "tags": ["B-loc"]})
    with pytest.raises(UserError) as error:
        load_task(dataclasses.replace(TASK, source=str(tmp_path)))
    assert has_facts(str(error.value), "dev.jsonl:1", "B-loc", "B-per, O")


def test_splits_are_read_from_conll_files(tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text("Ada NNP B-per\nwrote VBD O\n\n\nin\tIN\tO\r\nNew York\tNNP\tB-loc\n")
    (tmp_path / "dev.conll").write_text("London NNP B-loc\n")
    (tmp_path / "test.conll").write_text("Ada\n\nLondon\n")
    splits = load_task(dataclasses.replace(TASK, source=str(tmp_path)))
    train, test = splits["train"], splits["test"]
    assert isinstance(train, TagRows)
    assert isinstance(test, TagRows)
    assert [train.words_of(row) for row in range(2)] == [["Ada", "wrote"], ["in", "New York"]]
    assert train.labels == [("B-per", "O"), ("O", "B-loc")]
    assert (test.labels, test.texts) == (None, ["Ada", "London"])
    (tmp_path / "dev.conll").write_text("x NNP O\n\nLondon NNP B-loc\nis B\n")
    with pytest.raises(UserError) as error:
        load_task(dataclasses.replace(TASK, source=str(tmp_path)))
    assert has_facts(str(error.value), "dev.conll:4", "2 columns", "3")
    (tmp_path / "dev.conll").write_text("x NNP O\n\nLondon NNP B-loc\nis VB B-lok\n")
    with pytest.raises(UserError) as error:
        load_task(dataclasses.replace(TASK, source=str(tmp_path)))
    assert has_facts(str(error.value), "dev.conll:3", "B-lok", "number 2", '"B-loc"')


def test_no_break_space_is_part_of_a_word(tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text("10\N{NO-BREAK SPACE}000  O\nyen O\n")
    rows = load_split(dataclasses.replace(TASK, source=str(tmp_path)), "train")
    assert isinstance(rows, TagRows)
    assert rows.words_of(0) == ["10\N{NO-BREAK SPACE}000", "yen"]


def test_tag_that_is_not_valid_unicode_is_refused() -> None:
    with pytest.raises(UserError) as error:
        tagging.from_lists([["a"], ["b"]], [["O"], ["B-\ud800"]], ())
    assert has_facts(str(error.value), "texts:1", "tag", "surrogate")


def test_entities_that_start_with_an_i_tag_are_reported() -> None:
    rows = table(["a b c", "d"], ["I-per I-per B-per", "O"])
    notices = data_notices(TASK, {"train": rows, "dev": table(["x"], ["O"])})
    assert has_facts("\n".join(notices), "1 entity", "I-", "names's train")


def test_first_token_of_each_word_has_the_label_of_the_word(tiny_trunk: Trunk) -> None:
    description = json.loads(tiny_trunk.tokenizer().backend_tokenizer.to_str())
    vocabulary = description["model"]["vocab"]
    vocabulary |= {"##ty": len(vocabulary), "##one": len(vocabulary) + 1}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(description)))
    rows = rows_from_lists([["two", "sixtyone", "of"]], [["O", "B-x", "O"]], label_names=("O", "B-x"), kind="tagging")
    data = tokenize(rows, tokenizer, TASK, max_length=32)
    assert isinstance(data, TokenizedTags)
    assert data.token_labels is not None
    tokens = tokenizer.convert_ids_to_tokens(data.tokens.tolist())
    assert tokens == ["[CLS]", "two", "six", "##ty", "##one", "of", "[SEP]"]
    assert data.token_labels.tolist() == [-1, 0, 1, -1, -1, 0, -1]


@given(num_tokens=st.integers(1, 400), room=st.integers(1, 150))
def test_each_token_belongs_to_the_window_with_the_most_context(num_tokens: int, room: int) -> None:
    windows = _windows(num_tokens, room)
    assert windows[-1][1] == num_tokens
    for token in range(num_tokens):
        context, owners = {}, []
        for window, (begin, end, owned) in enumerate(windows):
            if begin <= token < end:
                # At the ends of the sentence, windows do not truncate any context.
                left = token - begin if window else num_tokens
                right = end - 1 - token if window < len(windows) - 1 else num_tokens
                context[window] = min(left, right)
                owners += [window] if owned[token - begin] else []
        best = max(context, key=lambda window: (context[window], -window))
        assert owners == [best]


@pytest.mark.parametrize("max_length", [5, 8, 13, 64])
def test_every_word_is_predicted_in_one_window_with_enough_context(tiny_trunk: Trunk, max_length: int) -> None:
    words = [["two", "of", "the", "six"] * 6, ["all"]]
    tags = [[f"B-{number % 3}" for number in range(len(row))] for row in words]
    rows = rows_from_lists(words, tags, kind="tagging")
    assert isinstance(rows, TagRows)
    data = tokenize_tags(rows, tiny_trunk.tokenizer(), TASK, max_length=max_length, training=False, cache_dir=None)
    assert data.lengths.max() <= max_length
    seen: dict[int, list[int]] = {0: [], 1: []}
    for window, row in enumerate(data.row_of):
        word_of = data.word_of[data.offsets[window] : data.offsets[window + 1]]
        positions = np.flatnonzero(word_of >= 0)
        seen[int(row)] += word_of[positions].tolist()
        room, last = max_length - 2, len(rows.bounds[row]) - 1
        for position in positions:
            left, right = position - 1, len(word_of) - 2 - position
            # Each word has at least a quarter of a window of context on each side, except at the ends of the sentence.
            enough = room // 4 - 1
            assert left >= enough or word_of[position] - left == 0
            assert right >= enough or word_of[position] + right == last
    assert sorted(seen[0]) == list(range(24))
    assert seen[1] == [0]
    assert data.token_labels is not None
    assert (data.token_labels >= 0).sum() == 25


def test_batches_have_one_label_per_token(tiny_trunk: Trunk) -> None:
    rows = rows_from_lists([["two", "of"], ["six"]], [["B-x", "O"], ["O"]], label_names=("O", "B-x"), kind="tagging")
    data = tokenize(rows, tiny_trunk.tokenizer(), TASK, max_length=8)
    (batch,) = eval_batches(data, Batching(batch_size=3, lengths=(8,), pad_id=0))
    assert batch["labels"].dtype == np.int32
    assert batch["labels"].tolist() == [[-1, 0, *[-1] * 6], [-1, 1, 0, *[-1] * 5], [-1] * 8]


def test_loss_is_the_mean_over_all_words_of_the_batch() -> None:
    logits = jnp.log(jnp.array([[[0.5, 0.5], [0.25, 0.75], [1.0, 9.0]], [[0.1, 0.9], [1.0, 1.0], [1.0, 1.0]]]))
    labels = jnp.array([[0, 1, -1], [0, -1, -1]])
    weights = jnp.ones(2)
    losses = tagging.losses(logits, {"labels": labels, "weights": weights})
    expected = -(np.log(0.5) + np.log(0.75) + np.log(0.1)) / 3
    np.testing.assert_allclose((losses * weights).sum() / weights.sum(), expected, rtol=1e-6)
    padded = {"labels": jnp.concatenate([labels, -jnp.ones((1, 3), int)]), "weights": jnp.array([1.0, 1.0, 0.0])}
    losses = tagging.losses(jnp.concatenate([logits, logits[:1]]), padded)
    np.testing.assert_allclose((losses * padded["weights"]).sum() / 2, expected, rtol=1e-6)


def test_predictions_have_tags_per_word_and_entities_with_characters(tiny_trunk: Trunk) -> None:
    names = ("B-per", "I-per", "O")
    rows = rows_from_lists(["two  of six", ["the"]], kind="tagging")
    data = tokenize(rows, tiny_trunk.tokenizer(), TASK, max_length=8)
    assert isinstance(data, TokenizedTags)
    logits = np.full((2, 5, 3), -5.0, np.float32)
    logits[0, [1, 2, 3], [0, 1, 2]] = logits[1, 1, 2] = 5.0
    predictions = tagging.predict(logits, data, TASK, names)
    assert predictions.labels == [["B-per", "I-per", "O"], ["O"]]
    assert predictions.logits.shape == (2, 3, 3)
    assert predictions.num_outputs is not None
    assert predictions.num_outputs.tolist() == [3, 1]
    probability = pytest.approx(1 / (1 + 2 * np.exp(-10)), rel=1e-5)
    assert predictions.entities is not None
    assert [dataclasses.asdict(entity) for entity in predictions.entities[0]] == [
        {"type": "per", "text": "two  of", "begin": 0, "end": 7, "probability": probability}
    ]
    assert predictions.entities[1] == []
    assert [predictions.text_of(row) for row in range(2)] == ["per: two  of", "(no entities)"]
    assert has_facts(repr(predictions), "2 rows", "per (1)")
    right = [("B-per", "I-per", "O"), ("B-per",)]
    assert tagging.errors(predictions, right, TASK).tolist() == [0, 1]
    assert prediction_scores(predictions, right, TASK)["recall"] == 0.5
    assert Entity("per", "x", 0, 1, 0.5).type == "per"


@pytest.mark.parametrize("confidences", [None, np.array([0.25])])
def test_predictions_are_shown_as_a_table(confidences: Any) -> None:
    logits = np.zeros((1, 2, 3), np.float32)
    predictions = Predictions(logits, logits, [["O", "B-per"]], entities=[[]], confidences=confidences)
    page = predictions._repr_html_()
    assert ("0.250" in page) == (confidences is not None)
    assert has_facts(page.replace("\n", " "), "<table", "prediction")


def test_prediction_rows_can_have_words_or_a_text(tmp_path: Path) -> None:
    lines = [{"words": ["a", "b"]}, {"text": "c  d e"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = read_prediction_rows(tmp_path / "rows.jsonl", TASK, 1)
    ((numbers, tag_rows),) = rows.forms
    assert numbers == [0, 1]
    assert isinstance(tag_rows, TagRows)
    assert tag_rows.texts == ["a b", "c  d e"]


def test_white_space_after_the_last_word_is_not_a_word() -> None:
    rows = rows_from_lists(["in London ", "It rained"], [["O", "B-place"], ["B-what", "O"]], kind="tagging")
    assert isinstance(rows, TagRows)
    # RoBERTa's tokens of "in London " are "in", "ĠLondon" and "Ġ".
    assert first_tokens(rows, 0, np.array([[0, 2], [2, 9], [9, 10]])).tolist() == [0, 1, -1]
    assert first_tokens(rows, 0, np.array([[0, 2], [2, 3], [3, 9], [9, 10]])).tolist() == [0, 1, -1, -1]


def test_word_without_a_token_is_refused(tiny_trunk: Trunk) -> None:
    rows = rows_from_lists([["two"], ["two", "\u200b\u200b"]], kind="tagging")
    with pytest.raises(UserError) as error:
        tokenize(rows, tiny_trunk.tokenizer(), TASK, max_length=8)
    assert has_facts(str(error.value), "Row 2", "number 2", "no token")


def test_word_without_a_token_is_refused_before_anything_is_written(
    tiny_trunk_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = [{"words": ["two"], "tags": ["O"]}, {"words": ["\u200b"], "tags": ["B-x"]}]
    for split in ("train", "dev"):
        rows = [*(lines if split == "dev" else lines[:1]), {"words": ["of"], "tags": ["B-x"]}]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = f"--config=single:task=names,data={tmp_path},kind=tagging"
    run = tmp_path / "run"
    assert main(["train", config, f"--workdir={run}", f"--config.trunk={tiny_trunk_folder}"]) == 2
    assert has_facts(capfd.readouterr().err, "Row 2", "names's dev rows", "no token")
    assert not run.exists()


def test_token_ids_are_cached(tiny_trunk: Trunk, tmp_path: Path) -> None:
    rows = rows_from_lists([["two", "of"]], [["B-x", "O"]], kind="tagging")
    first, again = (tokenize(rows, tiny_trunk.tokenizer(), TASK, max_length=8, cache_dir=tmp_path) for _ in range(2))
    (path,) = tmp_path.glob("*.npz")
    assert isinstance(first, TokenizedTags)
    assert isinstance(again, TokenizedTags)
    np.testing.assert_array_equal(first.word_of, again.word_of)
    np.testing.assert_array_equal(first.token_labels, again.token_labels)
    path.write_bytes(b"damaged")
    damaged = tokenize(rows, tiny_trunk.tokenizer(), TASK, max_length=8, cache_dir=tmp_path)
    np.testing.assert_array_equal(first.tokens, damaged.tokens)
