"""Tagging tasks, such as named entity recognition: each word has a tag.

Rows have the columns ``words``, either a list or a string with words separated by white space, and ``tags``, one tag
per word (see :mod:`afjax.data.tags`). For prediction, the column can also be ``text``.
:mod:`afjax.tasks.tag_windows` splits long sentences into windows.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Float, Float64, Int64

from afjax.config.tasks import TaskConfig
from afjax.data.columns import check_text, first_row, is_null, missing_column, read_rows, text_of, value_of
from afjax.data.sources.files import shorten
from afjax.data.sources.kind import SplitSource
from afjax.data.splits import TagRows
from afjax.data.tags import OUTSIDE, chunks, is_tag
from afjax.data.tokenization import TokenizedRows
from afjax.display.words import counted
from afjax.errors import UserError, did_you_mean
from afjax.tasks.kind import Form, KindSpec, KindText, LabelReading, masked
from afjax.tasks.metrics import entity_counts
from afjax.tasks.predictions import Entity, Predictions, softmax
from afjax.tasks.tag_windows import TokenizedTags, check_words, tokenize_tags
from afjax.tasks.texts import given_names
from afjax.tasks.weighted_scores import Weighted, entity_weighted_scores
from afjax.trees import AnyArray

Tags = Sequence[tuple[str, ...]]


def losses(logits: Float[AnyArray, "batch length num_labels"], batch: Mapping[str, Any]) -> Float[Array, "batch"]:
    """Sums the cross-entropy over each row's words, and scales it.

    The scale is chosen so that the mean over rows, weighted by the batch's ``weights``, is the mean over all words in
    the batch, as in other libraries. Long sentences therefore count more than short ones.
    """
    has_label = batch["labels"] >= 0  # [batch, length]
    words = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(batch["labels"], 0))
    rows = jnp.where(has_label, words, 0).sum(-1)
    num_words = (has_label.sum(-1) * batch["weights"]).sum()
    return rows * (batch["weights"].sum() / jnp.where(num_words > 0, num_words, 1))


def read(task: TaskConfig, source: SplitSource, labels: LabelReading) -> TagRows:
    """Loads rows from a source; see ``KindSpec.read``."""
    names = given_names(task, source, labels).names
    sentences, tags, places, ids = _columns(task, source, labels.required)
    if tags is not None and not names:
        train = _columns(task, labels.train(), True)[1] if labels.train else tags
        names = find_names(train or ())
    return make_rows(sentences, tags, names, places, ids)


def from_lists(texts: list[Any], labels: list[Any] | None, label_names: tuple[str, ...]) -> TagRows:
    """Builds rows from lists; see ``KindSpec.from_lists``.

    A text is a list of words or a string, and a label is a list of tags.
    """
    places = [f"texts:{row}" for row in range(len(texts))]
    sentences = [_sentence(place, text) for place, text in zip(places, texts, strict=True)]
    if labels is None:
        return make_rows(sentences, None, label_names, places, None)
    tags = [_tags(place, value) for place, value in zip(places, labels, strict=True)]
    return make_rows(sentences, tags, label_names or find_names(tags), places, None)


# A sentence, and the character offsets of each word's start and end. The number of words varies.
Sentence = tuple[str, Int64[np.ndarray, "_words 2"]]


def _columns(
    task: TaskConfig, source: SplitSource, required: bool | None
) -> tuple[list[Sentence], list[tuple[str, ...]] | None, list[str], list[str] | None]:
    """Extracts the columns of a split.

    Returns:
      The sentences, the tags (None if there are none), the rows' names in error messages, and the ids (None if there
      are none).
    """
    place, first, _ = peeked = first_row(source.name, source.rows)
    words = task.text_a or ("words" if "words" in first else "text")
    if words not in first:
        raise missing_column(place, task.text_a or "words", first, "text_a")
    places, sentences, tags, ids = read_rows(
        source.name,
        peeked,
        task.label_column,
        lambda place, row: _sentence(place, value_of(place, row, words)),
        labeled=required,
        read_label=lambda place, row, name: _tags(place, value_of(place, row, name), empty=required is None),
    )
    return sentences, tags if tags and (required or any(tags)) else None, places, ids


def _sentence(place: str, value: Any) -> Sentence:
    """Joins words into a sentence, or splits a string into words.

    Raises:
      UserError: There are no words, or a word is blank or not a string.
    """
    if isinstance(value, str):
        check_text(place, value)
        bounds = [match.span() for match in re.finditer(r"\S+", value)]
        text = value
    else:
        words = [value] if not isinstance(value, (list, tuple, np.ndarray)) else list(value)
        bounds, end = [], 0
        for number, word in enumerate(words, start=1):
            if not isinstance(word, str) or not word.strip():
                raise UserError(
                    f"{place} has the word {shorten(word)} (number {number}); words must be non-blank strings."
                )
            check_text(place, word)
            bounds.append((end, end + len(word)))
            end += len(word) + 1
        text = " ".join(words)
    if not bounds:
        raise UserError(f"{place} has no words; add some or drop the row.")
    return text, np.array(bounds, np.int64)


def _tags(place: str, value: Any, *, empty: bool = False) -> tuple[str, ...]:
    """Checks a row's tags, which may be missing if ``empty`` is true.

    Raises:
      UserError: The value is not a list of tags, or a tag is malformed.
    """
    if empty and is_null(value):
        return ()
    tags = value.split() if isinstance(value, str) else value
    if not isinstance(tags, (list, tuple, np.ndarray)):
        raise UserError(
            f"{place} has the tags {shorten(value)}; they must be a list of tags, or a string of tags separated by "
            "white space."
        )
    for number, tag in enumerate(tags, start=1):
        if not isinstance(tag, str) or not is_tag(tag):
            raise UserError(
                f'{place} has the tag {shorten(tag)} (number {number}); a tag must be "{OUTSIDE}", or B, I, E or S '
                'with a type, such as "B-person".'
            )
        check_text(place, tag, "tag")
    return tuple(tags)


def find_names(tags: Tags) -> tuple[str, ...]:
    """Collects and sorts the distinct tags of a split."""
    return tuple(sorted({tag for row_tags in tags for tag in row_tags}))


def make_rows(
    sentences: Sequence[Sentence],
    tags: Tags | None,
    names: tuple[str, ...],
    places: Sequence[str],
    ids: list[str] | None,
) -> TagRows:
    """Validates tags and builds rows.

    Args:
      sentences: The sentences with their word bounds.
      tags: The tags of each row, or None.
      names: The tags in the order of the model's outputs.
      places: The rows' names in error messages.
      ids: The rows' ids, or None.

    Raises:
      UserError: A row's numbers of tags and words differ, or a tag is not in ``names``.
    """
    known = set(names)
    for place, (_, bounds), row_tags in zip(places, sentences, tags or (), strict=tags is not None):
        if len(bounds) != len(row_tags):
            numbers = f"{counted(len(bounds), 'word')} and {counted(len(row_tags), 'tag')}"
            raise UserError(f"{place} has {numbers}; each word needs one tag.")
        unknown = next((number for number, tag in enumerate(row_tags) if tag not in known), None)
        if unknown is not None:
            tag = row_tags[unknown]
            raise UserError(
                f"{place} has the tag {tag} (number {unknown + 1}), which is not one of the tags {', '.join(names)}."
                f"{did_you_mean(tag, names)}"
            )
    texts, bounds_of_rows = [text for text, _ in sentences], [bounds for _, bounds in sentences]
    return TagRows(texts, bounds_of_rows, tags, names, ids=ids)


def forms(task: TaskConfig, text_columns: int | None) -> list[Form]:
    """Lists the supported input columns for prediction; see ``KindSpec.forms``."""
    named = [Form((task.text_a,))] if task.text_a else []
    return [*named, Form(("words",)), Form(("text",))]


def pick(place: str, row: dict[str, Any], form: Form) -> Any:
    """Extracts a row's words or text; see ``KindSpec.pick``."""
    (name,) = form.texts
    value = value_of(place, row, name)
    words = list(value) if isinstance(value, (list, tuple, np.ndarray)) else text_of(place, row, name)
    _sentence(place, words)
    return words


def predict(
    logits: Float[np.ndarray, "windows length num_labels"], data: TokenizedRows, task: TaskConfig, names: Sequence[str]
) -> Predictions:
    """Predicts each word's most likely tag, and parses the tags into entities."""
    assert isinstance(data, TokenizedTags), "tagging rows are tokenized into windows"
    rows = data.rows
    num_words = np.array([len(bounds) for bounds in rows.bounds])
    lowest = np.finfo(np.float32).min
    word_logits = np.full((len(rows), num_words.max(), logits.shape[-1]), lowest, np.float32)
    for window, row in enumerate(data.row_of):
        word_of = data.word_of[data.offsets[window] : data.offsets[window + 1]]
        (positions,) = np.nonzero(word_of >= 0)
        word_logits[row, word_of[positions]] = logits[window, positions]
    probabilities = softmax(word_logits)
    # Evaluation during training does not pass names, but its rows have them.
    names = names or rows.label_names
    labels, entities, confidences = [], [], np.zeros(len(rows))
    for row, count in enumerate(num_words):
        best = word_logits[row, :count].argmax(-1)
        certainties = probabilities[row, np.arange(count), best]
        labels.append([names[index] for index in best])
        entities.append(_entities(rows, row, labels[-1], certainties))
        confidences[row] = certainties.mean()
    return Predictions(
        word_logits, probabilities, labels, num_outputs=num_words, confidences=confidences, entities=entities
    )


def _entities(rows: TagRows, row: int, tags: Sequence[str], certainties: Float[np.ndarray, "words"]) -> list[Entity]:
    text, bounds = rows.texts[row], rows.bounds[row]
    found = []
    for type_, first, last in chunks(tags):
        begin, end = int(bounds[first, 0]), int(bounds[last, 1])
        found.append(Entity(type_, text[begin:end], begin, end, float(certainties[first : last + 1].mean())))
    return found


def errors(predictions: Predictions, labels: Tags, task: TaskConfig) -> Float64[np.ndarray, "rows"]:
    """Returns 1 for rows with a wrong or missing entity and 0 for the others."""
    pairs = zip(predicted_tags(predictions), labels, strict=True)
    return np.array([float(chunks(predicted) != chunks(right)) for predicted, right in pairs])


def weighted(predictions: Predictions, labels: Tags, task: TaskConfig) -> Weighted:
    """Prepares the scores as a function of row weights."""
    return entity_weighted_scores(entity_counts(predicted_tags(predictions), labels))


def predicted_tags(predictions: Predictions) -> list[list[str]]:
    """Returns each row's predicted tags.

    In tagging tasks, all labels are lists. The check only narrows the type.
    """
    return [label for label in predictions.labels if isinstance(label, list)]


KIND = KindSpec(
    name="tagging",
    reads="tokens",
    num_outputs=len,
    losses=losses,
    padded_losses=masked(losses),
    label_axes=("length",),
    named_outputs=True,
    metrics=("f1",),
    read=read,
    from_lists=from_lists,
    forms=forms,
    pick=pick,
    check_tokens=check_words,
    tokenize=tokenize_tags,
    predict=predict,
    errors=errors,
    weighted=weighted,
    text=KindText(
        pipeline_tag="token-classification",
        row='{"words": ["...", "..."]} or {"text": "..."}',
        texts='[["Ada", "Lovelace", "wrote", "it"]])  # or strings with words separated by white space',
        logits="one per token and tag, in tag order; a word's tag is predicted at its first token",
        per_output=" (one per tag)",
        label="entities",
    ),
)
