"""The built-in tasks are valid, identical on every machine, and not solvable from single words."""

import hashlib
import json

import numpy as np
import pytest

from afjax.data.sources.builtin import GRAMMARS, builtin_rows
from afjax.data.splits import Rows
from afjax.errors import UserError

SPLITS = ("train", "dev", "test")
DIGESTS = {
    "entail": "c7a50e19a6ddb83a847f4258e7d3a41b55d4a75e014286aadee735bbcdfe06dc",
    "paraphrase": "956b4bcb2a13c30d4b8ccc2549f09ce907313a9c5c99757ef2c1553dc1337454",
    "target": "76d433688f7355afe0a5cb786c551d56e6a3dba1894043a9176ca8eed43f88d7",
}


def pairs(rows: Rows) -> list[tuple[str, str]]:
    assert rows.text_b is not None
    return list(zip(rows.text_a, rows.text_b, strict=True))


def labels(rows: Rows) -> np.ndarray:
    assert rows.labels is not None
    return rows.labels


@pytest.mark.parametrize("name", GRAMMARS)
def test_rows_are_pinned(name: str) -> None:
    content = [[pairs(rows), labels(rows).tolist(), rows.label_names] for rows in map_splits(name)]
    assert hashlib.sha256(json.dumps(content).encode()).hexdigest() == DIGESTS[name]


def map_splits(name: str) -> list[Rows]:
    return [builtin_rows(name, split) for split in SPLITS]


@pytest.mark.parametrize(
    ("name", "sizes", "names"),
    [
        ("entail", [4000, 400, 400], ("entailment", "neutral", "contradiction")),
        ("paraphrase", [2000, 400, 400], ("different", "same")),
        ("target", [200, 600, 600], ("does_not_follow", "follows")),
    ],
)
def test_sizes_and_labels(name: str, sizes: list[int], names: tuple[str, ...]) -> None:
    splits = map_splits(name)
    assert [len(rows) for rows in splits] == sizes
    for rows in splits:
        assert rows.label_names == names
        assert labels(rows).dtype == np.int32
        shares = np.bincount(labels(rows), minlength=len(names)) / len(rows)
        assert shares.min() > 0.8 / len(names)


@pytest.mark.parametrize("name", GRAMMARS)
def test_no_pair_occurs_twice(name: str) -> None:
    all_pairs = [pair for rows in map_splits(name) for pair in pairs(rows)]
    assert len(set(all_pairs)) == len(all_pairs)


def content_words(name: str) -> set[str]:
    texts = [text for rows in map_splits(name) for pair in pairs(rows) for text in pair]
    return {word.strip(".").lower() for text in texts for word in text.split()}


def test_target_and_sources_share_only_function_words() -> None:
    shared = content_words("target") & (content_words("entail") | content_words("paraphrase"))
    grammar = "the of all most some none not at least fewer than did any is was by before after to from in on"
    numbers = "two three four five six seven eight nine"
    assert shared <= set(f"{grammar} {numbers}".split())


@pytest.mark.parametrize(("name", "most"), [("paraphrase", 0.6), ("target", 0.65)])
def test_single_words_are_weak_predictors(name: str, most: float) -> None:
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    train, dev = builtin_rows(name, "train"), builtin_rows(name, "dev")
    words = CountVectorizer()

    def features(rows: Rows, fit: bool) -> np.ndarray:
        first, second = zip(*pairs(rows), strict=True)
        if fit:
            words.fit([*first, *second])
        return np.hstack([words.transform(first).toarray(), words.transform(second).toarray()])

    model = LogisticRegression(max_iter=1000).fit(features(train, True), labels(train))
    assert model.score(features(dev, False), labels(dev)) < most


def test_changed_rows_do_not_change_later_ones() -> None:
    first = builtin_rows("target", "train")
    first.text_a[0] = "changed"
    labels(first)[:] = 0
    again = builtin_rows("target", "train")
    assert again.text_a[0] != "changed"
    assert labels(again).any()


def test_unknown_task_is_refused() -> None:
    with pytest.raises(UserError, match=r'"entails".*entail, paraphrase, target\..*Did you mean "entail"'):
        builtin_rows("entails", "train")
