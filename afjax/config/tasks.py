"""Tasks: where their rows are, what kind of task it is, how it is scored."""

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Literal

from afjax.config.from_dict import check_fields, settings_repr
from afjax.config.values import check_name
from afjax.errors import UserError

TaskKind = Literal["classification", "regression", "multiple_choice", "span"]
Metric = Literal["accuracy", "f1", "macro_f1", "matthews", "pearson", "spearman", "exact_match"]
# The main metric of each kind of task, where the task names none.
MAIN_METRICS: Mapping[TaskKind, Metric] = types.MappingProxyType(
    {"classification": "accuracy", "regression": "pearson", "multiple_choice": "accuracy", "span": "f1"}
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanConfig:
    """How answers are found in long contexts (BERT's SQuAD set-up, which Houlsby 2019 follows).

    Attributes:
      doc_stride: A context longer than a row is read in windows; tokens from one window's beginning to the next's. (The
        ``stride`` of Hugging Face's tokenizers is what two windows share.)
      max_question_length: Longer questions are cut to as many tokens, and to half of a row.
      max_answer_length: Tokens an answer may have.
      no_answer: Whether a question may have no answer (SQuAD v2).
      no_answer_threshold: A question has none where the score of "no answer" is above the best answer's by more.
      num_best: How many answers a prediction lists.
    """

    doc_stride: int = 128
    max_question_length: int = 64
    max_answer_length: int = 30
    no_answer: bool = False
    no_answer_threshold: float = 0.0
    num_best: int = 20

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        check_fields(self, "span")
        for field in ("doc_stride", "max_question_length", "max_answer_length", "num_best"):
            if getattr(self, field) < 1:
                raise UserError(f"A task's span.{field} is {getattr(self, field)}; it must be at least 1.")
        if not math.isfinite(self.no_answer_threshold):
            raise UserError(f"A task's span.no_answer_threshold is {self.no_answer_threshold}; it must be finite.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """A labelled dataset and how it is scored.

    Attributes:
      name: The task's name; names of adapters and heads default to it. No ``/`` or comma.
      source: A folder with ``train`` and optionally ``dev`` and ``test`` files (``.jsonl``, ``.tsv``, ``.csv``, each
        also ``.gz``) and ``labels.json``; one such file, which holds the train rows; ``official:NAME:FOLDER``, the
        folder that holds the benchmarks' own downloads; ``builtin:NAME``; or ``tfds:NAME``. A folder, a file, and the
        folder of a prepared TFDS dataset may be on ``gs://``; they are copied to the cache.
      train, dev, test: Files to use in place of the folder's, relative to it (or names of TFDS splits).
      dev_share: The share of the train rows that becomes the dev split if the task has none. A hash of a row's texts
        decides, so equal rows are in the same split, and neither the order of the rows nor other rows matter. 0: no
        dev split is made, and the task is refused.
      kind: Classification; regression; multiple choice (rows of a context and its choices); or span (rows of a question
        and the context that its answer is cut from).
      labels: Label names in order; empty: ``labels.json`` of the folder, else those of the train split. Those of
        multiple choice name the first, second, ... choice.
      text_a, text_b, label: Column names; empty: ``text_a``/``text_b`` or ``text``, and ``label``. Of multiple choice
        and span ``text_a`` is the context (``context``), ``text_b`` the question (``question``; multiple choice need
        not have one) and ``label`` of span the answers (``answers``).
      choices: Columns of multiple choice: one that holds a list, or one for each choice; empty: ``choices``.
      train_rows: Trains on as many of the train rows, evenly spaced; 0: on all.
      metric: The dev metric that early stopping follows; empty: accuracy, Pearson for regression, F1 for span.
      span: Windows and answers of a span task.
      scale: Regression learns labels divided by it, and predictions are multiplied by it. Stickland & Murray 2019 have
        5 for STS-B, so that its loss is of the size of the other tasks'.
    """

    name: str
    source: str = ""
    train: str = ""
    dev: str = ""
    test: str = ""
    dev_share: float = 0.1
    kind: TaskKind = "classification"
    labels: tuple[str, ...] = ()
    text_a: str = ""
    text_b: str = ""
    label: str = ""
    choices: tuple[str, ...] = ()
    train_rows: int = 0
    metric: Metric | Literal[""] = ""
    scale: float = 1.0
    span: SpanConfig = SpanConfig()

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        check_fields(self, "task")
        check_name(self.name, "task")
        for label in self.labels:
            if not label.strip() or self.labels.count(label) > 1:
                raise UserError(
                    f"The task {self.name} has the label names {list(self.labels)}; give different names that are not "
                    "blank."
                )
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise UserError(f"The task {self.name}'s scale is {self.scale}; it must be finite and above 0.")
        if self.scale != 1.0 and self.kind != "regression":
            raise UserError(f"The task {self.name} has a scale of {self.scale}, which only regression tasks can have.")
        if not 0 <= self.dev_share < 1:
            raise UserError(
                f"The task {self.name}'s dev_share is {self.dev_share}; it is a share of the train rows, at least 0 "
                "and below 1."
            )
        if self.train_rows < 0:
            raise UserError(f"The task {self.name}'s train_rows is {self.train_rows}; it must be 0 or more.")
        if self.choices and self.kind != "multiple_choice":
            raise UserError(
                f'The task {self.name} names choices, but its kind is "{self.kind}", not "multiple_choice".'
            )
        if self.span != SpanConfig() and self.kind != "span":
            raise UserError(f'The task {self.name} has span settings, but its kind is "{self.kind}", not "span".')

    @property
    def main_metric(self) -> str:
        return self.metric or MAIN_METRICS[self.kind]
