"""Summaries of small splits equal values that are counted by hand."""

import dataclasses

import numpy as np
import pytest

from afjax.config.tasks import SpanConfig, TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.batches import Batching, eval_batches, train_batches
from afjax.data.lengths import ProgramTokens, eval_lengths, train_lengths
from afjax.data.splits import AnyRows, SpanRows
from afjax.data.tokenization import tokenize_rows
from afjax.tasks.load import rows_from_lists
from afjax.tasks.summary import Count, SplitSummary, first_examples, summarize
from afjax.trunk.pretrained import Trunk

COST = ProgramTokens(train=100_000, dev=100_000)
CONFIG = TrainConfig(max_length=8, batch_size=2, buckets=(2, 4, 6))


def words(num: int) -> str:
    return " ".join(["two"] * num)


def summary(trunk: Trunk, rows: AnyRows, task: TaskConfig | None = None, config: TrainConfig = CONFIG) -> SplitSummary:
    return summarize(rows, trunk.tokenizer(), task or TaskConfig(name="task"), config, COST, training=True)


def test_classification_summary(tiny_trunk: Trunk) -> None:
    # The rows have 3, 4, 5 and 12 tokens, including the two special tokens. The last row is truncated to 8 tokens.
    texts = [words(num) for num in (1, 2, 3, 10)]
    rows = rows_from_lists(texts, ["b", "b", "a", "b"], label_names=("a", "b", "c"))
    assert summary(tiny_trunk, rows) == SplitSummary(
        rows=4,
        labeled=True,
        labels={"a": Count(1, 0.25), "b": Count(3, 0.75), "c": Count(0, 0.0)},
        values=None,
        choices={},
        answers={},
        unplaced=0,
        lengths=(3, 3, 4, 5, 12, 12, 12),
        truncated=0.25,
        windows=None,
        padded=(2, 4, 6, 8),
        # Two rows are padded to 4 tokens, and two rows are padded to 8 tokens. Their 20 tokens have 24 positions.
        padding=pytest.approx(1 - 20 / 24),
    )
    unlabeled = summary(tiny_trunk, dataclasses.replace(rows, labels=None))
    assert (unlabeled.labeled, unlabeled.labels) == (False, {})
    assert (unlabeled.lengths, unlabeled.values) == ((3, 3, 4, 5, 12, 12, 12), None)


def test_summary_of_a_regression_on_pairs(tiny_trunk: Trunk) -> None:
    rows = rows_from_lists([(words(1), words(2)), (words(4), words(2))], [1.5, 4.0], kind="regression")
    found = summary(tiny_trunk, rows)
    assert (found.labels, found.values) == ({}, (1.5, 2.75, 4.0))
    assert (found.lengths[0], found.lengths[-1], found.truncated) == (6, 9, 0.5)


def test_multiple_choice_summary(tiny_trunk: Trunk) -> None:
    texts = [(words(1), [words(1), words(2)]), (words(2), [words(1), words(4), words(1)])]
    rows = rows_from_lists(texts, [1, 1], kind="multiple_choice", label_names=("A", "B"))
    found = summary(tiny_trunk, rows)
    # The third choice of a row has no name, so it is counted under its index, "2".
    assert found.labels == {"A": Count(0, 0.0), "B": Count(2, 1.0), "2": Count(0, 0.0)}
    assert found.choices == {2: Count(1, 0.5), 3: Count(1, 0.5)}
    # The pairs of a context and a choice have 5, 6, 6, 9 and 6 tokens. The batch has two rows, padded to three choices
    # of 8 tokens each.
    assert found.lengths == (5, 6, 6, 6, 9, 9, 9)
    assert found.truncated == pytest.approx(1 / 5)
    assert found.padding == pytest.approx(1 - (5 + 6 + 6 + 8 + 6) / 48)


def test_span_summary(tiny_trunk: Trunk) -> None:
    # With three special tokens and a one-token question, windows have four context tokens and a stride of two.
    rows = SpanRows(
        [words(1)] * 3,
        [words(3), words(6), words(8)],
        [(("two", 0), ("two", 4)), (), (("two", -1),)],
        ids=["x", "y", "z"],
    )
    found = summary(tiny_trunk, rows, TaskConfig(name="task", kind="span", span=SpanConfig(no_answer=True)))
    assert (found.labels, found.labeled) == ({}, True)
    third = pytest.approx(1 / 3)
    assert found.answers == {number: Count(1, third) for number in (0, 1, 2)}
    assert found.unplaced == 1
    assert found.lengths == (7, 7, 10, 12, 12, 12, 12)
    assert found.windows == (2.0, 3)
    assert found.truncated == pytest.approx(2 / 3)
    # The windows have 7, 8, 8, 8, 8 and 8 tokens. Each batch has two windows.
    assert found.padding == pytest.approx(1 - 47 / 48)
    # Only the question is truncated, to max_question_length tokens.
    rows = SpanRows([words(9)], [words(3)], None, ids=["x"])
    task = TaskConfig(name="task", kind="span", span=SpanConfig(max_question_length=2))
    found = summary(tiny_trunk, rows, task)
    assert (found.lengths[0], found.answers, found.unplaced, found.labeled) == (8, {}, 0, False)


@pytest.mark.parametrize("training", [True, False])
def test_lengths_and_padding_match_the_batches(training: bool, tiny_trunk: Trunk) -> None:
    rng = np.random.default_rng(0)
    pairs = [(words(int(first)), words(int(second))) for first, second in rng.integers(1, 12, (60, 2))]
    rows = rows_from_lists(pairs)
    config = TrainConfig(max_length=16, batch_size=4, epochs=10_000)
    cut = tokenize_rows(rows, tiny_trunk.tokenizer(), max_length=16, cache_dir=None)
    found = summarize(rows, tiny_trunk.tokenizer(), TaskConfig(name="task"), config, COST, training=training)
    assert found.truncated == cut.truncated / 60
    if training:
        assert found.padded == train_lengths([cut], config, COST.train, num_steps=150_000, common=True)
        assert len(found.padded) > 1
        batches = list(train_batches(cut, Batching(4, found.padded, 0), seed=0, epoch=0))
    else:
        assert found.padded == eval_lengths([cut], config, COST.dev, common=True) == (16,)
        batches = list(eval_batches(cut, Batching(4, found.padded, 0)))
    tokens = sum(batch["mask"].sum() for batch in batches)
    assert found.padding == pytest.approx(1 - tokens / sum(batch["mask"].size for batch in batches))


@pytest.mark.parametrize("training", [True, False])
def test_padding_does_not_count_rows_that_fill_up_a_batch(training: bool, tiny_trunk: Trunk) -> None:
    rows = rows_from_lists([words(10), words(6)])
    # The longest row has max_length tokens, so max_length is the only padded length.
    config = TrainConfig(max_length=12, batch_size=32)
    found = summarize(rows, tiny_trunk.tokenizer(), TaskConfig(name="task"), config, COST, training=training)
    assert found.padded == (12,)
    assert found.padding == pytest.approx(1 - (12 + 8) / (2 * 12))


def test_first_examples_have_fields_labels_and_tokens(tiny_trunk: Trunk) -> None:
    tokenizer, task = tiny_trunk.tokenizer(), TaskConfig(name="task")
    rows = rows_from_lists(["two", words(9)], ["b", "a"], label_names=("a", "b"))
    one, other = first_examples(rows, 3, tokenizer, task, CONFIG)
    assert (one.fields, one.label, one.tokens) == ({"text": "two"}, "b", ["[CLS]", "two", "[SEP]"])
    assert other.tokens == ["[CLS]", *["two"] * 6, "[SEP]"]
    rows = rows_from_lists([("two", "four")] * 5, [4.2] * 5, kind="regression")
    found = first_examples(rows, 3, tokenizer, task, CONFIG)
    assert len(found) == 3
    assert (found[0].fields, found[0].label) == ({"text_a": "two", "text_b": "four"}, 4.2)
    assert first_examples(rows_from_lists(["two"]), 1, tokenizer, task, CONFIG)[0].label is None
    rows = rows_from_lists(
        [("two", ["four", "five"]), ("two", ["six", "seven", "two"])], [0, 2], kind="multiple_choice"
    )
    found = first_examples(rows, 2, tokenizer, task, CONFIG)
    assert found[1].fields == {"context": "two", "choices": ["six", "seven", "two"]}
    assert [example.label for example in found] == ["0", "2"]
    assert [example.tokens[3] for example in found] == ["four", "six"]
    spans = SpanRows(["two"] * 2, ["four " * 9, "five"], [(("four", 0), ("four", 5)), ()], ids=["x", "y"])
    found = first_examples(spans, 2, tokenizer, TaskConfig(name="task", kind="span"), CONFIG)
    assert [example.label for example in found] == [["four", "four"], []]
    assert found[1].tokens == ["[CLS]", "two", "[SEP]", "five", "[SEP]"]
    tagged = rows_from_lists([["two", ";", "four"]] * 2, [["B-X", "I-X", "B-Y"], ["O"] * 3], kind="tagging")
    found = first_examples(tagged, 2, tokenizer, TaskConfig(name="task", kind="tagging"), CONFIG)
    assert [example.label for example in found] == [["X: two ;", "Y: four"], ["(no entities)"]]
