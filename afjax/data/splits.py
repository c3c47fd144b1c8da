"""In-memory splits of a task: its inputs and labels."""

import abc
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any, Self

import numpy as np

from afjax.data.labels import indices_are_clear
from afjax.data.tags import chunks
from afjax.display.html import Content, listed, shortened, table
from afjax.errors import UserError

# Limits for display in notebooks: rows, and characters per text.
_SHOWN_ROWS, _SHOWN_TEXT = 10, 200
# The label text of a sentence without entities.
NO_ENTITIES = "(no entities)"


@dataclass(frozen=True, kw_only=True, repr=False)
class _Split(abc.ABC):
    """Base class of splits.

    All fields have one entry per row, except ``label_names`` and ``has_question``.
    """

    ids: Sequence[str] | None = None

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def texts_digest(self) -> str: ...

    @abc.abstractmethod
    def _label_bytes(self) -> bytes:
        """Encodes the labels and the label names, for :meth:`digest`."""

    def digest(self) -> str:
        """Returns the SHA-256 (hex) of the texts, labels and label names."""
        return hashlib.sha256(self.texts_digest().encode() + self._label_bytes()).hexdigest()

    @property
    @abc.abstractmethod
    def text_columns(self) -> int | None:
        """Number of texts per row: 1 for single texts, 2 for pairs, None if unknown.

        Choices are not counted: a multiple-choice row has 2 texts with a question, and 1 without.
        """

    @property
    @abc.abstractmethod
    def form(self) -> tuple[str, str]:
        """The singular and plural nouns for rows, such as "text" and "texts"."""

    @abc.abstractmethod
    def texts_of(self, row: int) -> tuple[tuple[str, str], ...]:
        """Returns a row's texts as pairs ``(name, text)``."""

    @abc.abstractmethod
    def label_of(self, row: int) -> str:
        """Formats a row's label; empty if the split is unlabeled."""

    def _label_summary(self) -> str:
        return "no labels"

    def label_counts(self) -> dict[str, int]:
        """Counts the rows with each label, by label name.

        The result is empty for unlabeled splits, regression and span tasks. For multiple choice, the label is the
        name of the correct choice, or its index if it has no name.
        """
        return {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._counted()}, {self._label_summary()}>"

    def _counted(self) -> str:
        one, several = self.form
        return f"{len(self)} {one if len(self) == 1 else several}"

    def _repr_html_(self) -> str:
        """Renders the first rows as an HTML table for notebooks."""
        numbers = range(min(len(self), _SHOWN_ROWS))
        labeled = any(map(self.label_of, numbers))
        header = ["row", *(name for name, _ in self.texts_of(0))] if len(self) else ["row"]
        rows: list[list[Content]] = []
        for row in numbers:
            label = [shortened(self.label_of(row), _SHOWN_TEXT)] if labeled else []
            rows.append([str(row), *(shortened(text, _SHOWN_TEXT) for _, text in self.texts_of(row)), *label])
        more = f"; the first {len(numbers)}" if len(numbers) < len(self) else ""
        caption = f"{self._counted()}, {self._label_summary()}{more}"
        return table([*header, *(["label"] if labeled else [])], rows, caption=caption).html

    def __getitem__(self, rows: int | slice | Sequence[int] | np.ndarray) -> Self:
        """Selects rows. The result is always a split: ``rows[5]`` is a split with one row.

        Args:
          rows: A slice, a list or array of row indices (negative ones count from the end), a boolean mask with one
            value per row, or a single index.

        Raises:
          UserError: The index has an unsupported type, such as a column name.
          IndexError: An index is out of range.
        """
        if isinstance(rows, slice):
            return self.take(range(*rows.indices(len(self))))
        numbers = np.asarray(rows)
        if numbers.dtype == bool and numbers.shape == (len(self),):
            return self.take(np.flatnonzero(numbers))
        if numbers.size == 0 and numbers.ndim == 1:
            return self.take(())
        if not np.issubdtype(numbers.dtype, np.integer) or numbers.ndim > 1:
            raise UserError(
                f"Rows were indexed with {shortened(repr(rows), 100)}; use a slice, row indices, or a boolean mask "
                f"with {len(self)} values. Columns are attributes, such as rows.labels."
            )
        numbers = np.atleast_1d(numbers).astype(np.int64)
        outside = numbers[(numbers < -len(self)) | (numbers >= len(self))]
        if len(outside):
            raise IndexError(f"Row {outside[0]} does not exist; the {len(self)} rows are numbered from 0.")
        return self.take(numbers % len(self))

    def take(self, rows: Sequence[int] | np.ndarray) -> Self:
        """Selects rows by their indices."""
        rows = np.asarray(rows, int)
        changes: dict[str, Any] = {}
        for attribute in fields(self):
            value = getattr(self, attribute.name)
            if value is not None and attribute.name not in ("label_names", "has_question"):
                changes[attribute.name] = value[rows] if isinstance(value, np.ndarray) else [value[row] for row in rows]
        return replace(self, **changes)

    def every(self, num: int) -> Self:
        """Selects up to ``num`` evenly spaced rows.

        Files are often sorted by label, so the first rows would not represent all labels.
        """
        if num >= len(self):
            return self
        return self.take(np.linspace(0, len(self) - 1, num).round().astype(int))


@dataclass(frozen=True, repr=False)
class Rows(_Split):
    """One split of a classification or regression task on texts or text pairs.

    Attributes:
      text_a: The texts, or the first texts of pairs.
      text_b: The second texts of pairs; None for single texts.
      labels: int32 [rows], indices into ``label_names``; float32 [rows] for regression; None if unlabeled.
      label_names: Label names in index order; empty for regression.
      ids: Row ids from the source; None if it has none.
    """

    text_a: Sequence[str]
    text_b: Sequence[str] | None
    labels: np.ndarray | None
    label_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.text_a)

    @property
    def text_columns(self) -> int:
        return 1 if self.text_b is None else 2

    @property
    def form(self) -> tuple[str, str]:
        return ("text", "texts") if self.text_b is None else ("pair of texts", "pairs of texts")

    def texts_of(self, row: int) -> tuple[tuple[str, str], ...]:
        if self.text_b is None:
            return (("text", self.text_a[row]),)
        return ("first text", self.text_a[row]), ("second text", self.text_b[row])

    def label_of(self, row: int) -> str:
        if self.labels is None:
            return ""
        return self.label_names[int(self.labels[row])] if self.label_names else f"{self.labels[row]:.4g}"

    def _label_summary(self) -> str:
        if self.labels is None or not len(self):
            return "no labels"
        if not self.label_names:
            return f"values from {self.labels.min():.4g} to {self.labels.max():.4g}"
        return f"labels {listed([f'{name} ({count})' for name, count in self.label_counts().items()])}"

    def label_counts(self) -> dict[str, int]:
        if self.labels is None or not self.label_names:
            return {}
        counts = np.bincount(self.labels, minlength=len(self.label_names)).tolist()
        return dict(zip(self.label_names, counts, strict=True))

    def texts_digest(self) -> str:
        """Returns the SHA-256 (hex) of the texts."""
        return _texts_digest(f"{len(self)} {1 if self.text_b is None else 2}\n", [self.text_a, self.text_b or []])

    def _label_bytes(self) -> bytes:
        return _array_label_bytes(self.labels, self.label_names)


@dataclass(frozen=True, repr=False)
class MultiLabelRows(Rows):
    """One split of a multi-label task on texts or text pairs.

    Attributes:
      text_a, text_b, ids: See :class:`Rows`.
      labels: Multi-hot labels, float32 [rows, labels]; None if unlabeled.
      label_names: Label names in the order of ``labels``' columns.
    """

    def names_of(self, row: int) -> list[str]:
        """Returns the names of a row's labels."""
        assert self.labels is not None, "the split is labeled"
        return [self.label_names[index] for index in np.flatnonzero(self.labels[row])]

    def label_of(self, row: int) -> str:
        return "" if self.labels is None else ", ".join(self.names_of(row)) or "(none)"

    def label_counts(self) -> dict[str, int]:
        if self.labels is None:
            return {}
        return dict(zip(self.label_names, self.labels.sum(0).astype(int).tolist(), strict=True))


@dataclass(frozen=True, repr=False)
class ChoiceRows(_Split):
    """One split of a multiple-choice task.

    Attributes:
      contexts: The context of each row, followed by the question if there is one.
      choices: Two or more choices per row. The number can vary.
      labels: int32 [rows], the index of the correct choice; None if unlabeled.
      label_names: Names of the first, second, ... choice. Rows can have more or fewer choices than names.
      ids: Row ids from the source; None if it has none.
      has_question: Whether the contexts include a question from a separate column; None if unknown.
    """

    contexts: Sequence[str]
    choices: Sequence[tuple[str, ...]]
    labels: np.ndarray | None
    label_names: tuple[str, ...]
    has_question: bool | None = field(default=None, kw_only=True)
    form = ("row of a context and its choices", "rows of a context and its choices")

    def __len__(self) -> int:
        return len(self.contexts)

    @property
    def text_columns(self) -> int | None:
        return None if self.has_question is None else 1 + self.has_question

    def texts_of(self, row: int) -> tuple[tuple[str, str], ...]:
        return ("context", self.contexts[row]), ("choices", " | ".join(self.choices[row]))

    def label_of(self, row: int) -> str:
        return "" if self.labels is None else self.choices[row][int(self.labels[row])]

    def _label_summary(self) -> str:
        return "no labels" if self.labels is None else "labeled"

    def label_counts(self) -> dict[str, int]:
        if self.labels is None:
            return {}
        num_named, most = len(self.label_names), int(self.num_choices.max())
        # A choice without a name is counted by its index, unless a name could be mistaken for an index.
        named = self.label_names[:most] if num_named >= most or indices_are_clear(self.label_names) else ()
        names = (*named, *map(str, range(len(named), most)))
        return dict(zip(names, np.bincount(self.labels, minlength=most).tolist(), strict=True))

    @property
    def num_choices(self) -> np.ndarray:
        """Number of choices per row, int64 [rows]."""
        return np.array([len(choices) for choices in self.choices], np.int64)

    def pairs(self) -> Rows:
        """Pairs every context with each of its choices, in row order."""
        contexts = [context for context, choices in zip(self.contexts, self.choices, strict=True) for _ in choices]
        return Rows(contexts, list(chain.from_iterable(self.choices)), None, ())

    def texts_digest(self) -> str:
        """Returns the SHA-256 (hex) of the contexts and choices."""
        numbers = ",".join(map(str, self.num_choices))
        return _texts_digest(f"{numbers}\n", [self.contexts, list(chain.from_iterable(self.choices))])

    def _label_bytes(self) -> bytes:
        return _array_label_bytes(self.labels, self.label_names)


@dataclass(frozen=True, repr=False)
class SpanRows(_Split):
    """One split of a span task, whose answers are spans of a context.

    Attributes:
      questions: One question per row.
      contexts: One context per row.
      labels: The gold answers of each row as pairs ``(text, start)``, where ``start`` is the answer's character offset
        in the context, or -1 if unknown. Empty for unanswerable questions. None if the split is unlabeled.
      label_names: Always empty.
      ids: Row ids from the source; None if it has none.
    """

    questions: Sequence[str]
    contexts: Sequence[str]
    labels: Sequence[tuple[tuple[str, int], ...]] | None
    label_names: tuple[str, ...] = ()
    text_columns = 2
    form = ("question with its context", "questions with contexts")

    def __len__(self) -> int:
        return len(self.questions)

    def texts_of(self, row: int) -> tuple[tuple[str, str], ...]:
        return ("question", self.questions[row]), ("context", self.contexts[row])

    def label_of(self, row: int) -> str:
        if self.labels is None:
            return ""
        return " | ".join(dict.fromkeys(text for text, _ in self.labels[row])) or "(no answer)"

    def _label_summary(self) -> str:
        if self.labels is None:
            return "no labels"
        num_unanswerable = sum(not answers for answers in self.labels)
        return f"labeled, {num_unanswerable} without an answer" if num_unanswerable else "labeled"

    def trainable(self) -> list[int]:
        """Returns the indices of rows that are usable for training.

        A row is usable if its question is unanswerable, or if the start of its first answer is known.
        """
        # Only the first answer is trained on. SQuAD's train split has just one per question.
        return [row for row, answers in enumerate(self.labels or ()) if not answers or answers[0][1] >= 0]

    def texts_digest(self) -> str:
        """Returns the SHA-256 (hex) of the questions and contexts."""
        return _texts_digest(f"{len(self)} span\n", [self.questions, self.contexts])

    def _label_bytes(self) -> bytes:
        return json.dumps(self.labels).encode()


@dataclass(frozen=True, repr=False)
class TagRows(_Split):
    """One split of a tagging task, which has one tag per word.

    Attributes:
      texts: One sentence per row.
      bounds: For each row, the character offsets of each word's start and end (exclusive), int64 [words, 2]. Words do
        not overlap, and there is only white space between them.
      labels: For each row, the tag of each word; None if the split is unlabeled.
      label_names: The tags in the order of the model's outputs.
      ids: Row ids from the source; None if it has none.
    """

    texts: Sequence[str]
    bounds: Sequence[np.ndarray]
    labels: Sequence[tuple[str, ...]] | None
    label_names: tuple[str, ...]
    text_columns = 1
    form = ("sentence", "sentences")

    def __len__(self) -> int:
        return len(self.texts)

    def words_of(self, row: int) -> list[str]:
        """Returns the words of a row."""
        return [self.texts[row][begin:end] for begin, end in self.bounds[row]]

    def texts_of(self, row: int) -> tuple[tuple[str, str], ...]:
        return (("words", self.texts[row]),)

    def label_of(self, row: int) -> str:
        if self.labels is None:
            return ""
        return "; ".join(self.entities_of(row)) or NO_ENTITIES

    def entities_of(self, row: int) -> list[str]:
        """Returns the row's entities, such as "person: Ada Lovelace"."""
        tags, words = () if self.labels is None else self.labels[row], self.words_of(row)
        return [f"{type_}: {' '.join(words[first : last + 1])}" for type_, first, last in chunks(tags)]

    def label_counts(self) -> dict[str, int]:
        counts = dict.fromkeys(self.label_names, 0)
        for tags in self.labels or ():
            for tag in dict.fromkeys(tags):
                counts[tag] += 1
        return counts if self.labels is not None else {}

    def _label_summary(self) -> str:
        return "no labels" if self.labels is None else f"tags {listed(self.label_names)}"

    def texts_digest(self) -> str:
        """Returns the SHA-256 (hex) of the texts and their words."""
        words = [word for row in range(len(self)) for word in self.words_of(row)]
        counts = ",".join(str(len(row_bounds)) for row_bounds in self.bounds)
        return _texts_digest(f"{len(self)} tags {counts}\n", [self.texts, words])

    def _label_bytes(self) -> bytes:
        return json.dumps([self.labels, self.label_names]).encode()


AnyRows = Rows | ChoiceRows | SpanRows | TagRows


def row_texts(rows: AnyRows, *, choices: bool = True) -> Iterator[tuple[Any, ...]]:
    """Iterates over the texts of each row.

    For multiple choice, these are the context and a tuple of choices, or only the context if ``choices`` is False.
    """
    if isinstance(rows, SpanRows):
        return zip(rows.questions, rows.contexts, strict=True)
    if isinstance(rows, TagRows):
        return zip(rows.texts)
    if isinstance(rows, ChoiceRows):
        return zip(rows.contexts, rows.choices, strict=True) if choices else zip(rows.contexts)
    return zip(rows.text_a) if rows.text_b is None else zip(rows.text_a, rows.text_b, strict=True)


def check_same_form(form: int | None, of: str, rows: AnyRows, rows_name: str, advice: str) -> None:
    """Raises UserError if rows do not have the expected number of texts.

    The number of texts is the rows' ``text_columns``.

    Args:
      form: The expected number of texts per row. None accepts any number.
      of: Name of the reference rows in the error message, such as "The task rte's train rows".
      rows: The rows to check.
      rows_name: Name of ``rows`` in the error message.
      advice: How to fix it, appended to the error message.
    """
    given = rows.text_columns
    if None in (form, given) or form == given:
        return
    names = ("a context without a question", "a context and a question")
    names = names if isinstance(rows, ChoiceRows) else ("single texts", "pairs of texts")
    raise UserError(f"{of} are {names[(form or 1) - 1]}, but {rows_name} are {names[(given or 1) - 1]}; {advice}.")


def _texts_digest(head: str, columns: Iterable[Sequence[str]]) -> str:
    digest = hashlib.sha256(head.encode())
    for texts in columns:
        # Hash the lengths too, so that ("ab", "c") and ("a", "bc") have different digests.
        encoded = [text.encode() for text in texts]
        digest.update(np.array([len(text) for text in encoded], "<i8").tobytes())
        for text in encoded:
            digest.update(text)
    return digest.hexdigest()


def _array_label_bytes(labels: np.ndarray | None, label_names: tuple[str, ...]) -> bytes:
    values = b"" if labels is None else np.asarray(labels, "<f8").tobytes()
    return values + json.dumps(label_names).encode()
