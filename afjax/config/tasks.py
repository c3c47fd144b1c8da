"""Settings of tasks: source of rows, kind, labels and metric."""

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Literal

from afjax.config.from_dict import check_fields, settings_repr
from afjax.config.values import check_name
from afjax.errors import UserError

# The sources that begin with a scheme, for help texts and error messages.
NAMED_SOURCES = "official:NAME:FOLDER, builtin:NAME, tfds:NAME or hf:NAME"

TaskKind = Literal["classification", "regression", "multiple_choice", "span", "multi_label", "tagging"]
Metric = Literal[
    "accuracy",
    "f1",
    "macro_f1",
    "matthews",
    "pearson",
    "spearman",
    "exact_match",
    "micro_f1",
    "average_precision",
]
# The main metric of each kind of task, for tasks that do not set one.
MAIN_METRICS: Mapping[TaskKind, Metric] = types.MappingProxyType(
    {
        "classification": "accuracy",
        "regression": "pearson",
        "multiple_choice": "accuracy",
        "span": "f1",
        "multi_label": "micro_f1",
        "tagging": "f1",
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanConfig:
    """Windows and answers of span tasks.

    The defaults follow BERT's SQuAD code, which Houlsby 2019 uses.

    Attributes:
      doc_stride: Tokens from the start of one window to the start of the next, for contexts that do not fit into one
        window. (In Hugging Face's tokenizers, ``stride`` is instead the overlap of two windows.)
      max_question_length: Maximum number of tokens of a question; longer questions are truncated. A question also never
        takes more than half of a window.
      max_answer_length: Maximum number of tokens of an answer.
      no_answer: Whether a question may have no answer (SQuAD v2).
      no_answer_threshold: "No answer" is predicted if its score exceeds the best answer's by more than this.
      num_best: Number of answers per prediction.

    Raises:
      UserError: A field has the wrong type or an invalid value.

    Example:
      >>> from afjax import SpanConfig, TaskConfig
      >>> TaskConfig(name="squad", kind="span", span=SpanConfig(no_answer=True)).span
      SpanConfig(no_answer=True)
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
class MultiLabelConfig:
    """Labels and threshold of multi-label tasks.

    Attributes:
      separator: Separates the labels of a row in a text column, such as the label column of a CSV file.
      threshold: A label is predicted if its probability is at least this.
      tune_threshold: Whether to replace the threshold, after training, by the best one on the dev rows; see
        :meth:`afjax.TaskModel.tune_threshold`. Early stopping uses ``threshold``.

    Raises:
      UserError: A field has the wrong type or an invalid value.

    Example:
      >>> from afjax import MultiLabelConfig, TaskConfig
      >>> TaskConfig(name="topics", kind="multi_label", multi_label=MultiLabelConfig(separator=";")).main_metric
      'micro_f1'
    """

    separator: str = "|"
    threshold: float = 0.5
    tune_threshold: bool = False

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        check_fields(self, "multi_label")
        if not self.separator:
            raise UserError('A task\'s multi_label.separator is empty; give the text between two labels, such as "|".')
        if not 0 < self.threshold < 1:
            raise UserError(
                f"A task's multi_label.threshold is {self.threshold}; it is a probability, above 0 and below 1."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """A labelled dataset and its metric.

    Attributes:
      name: The task's name, and the default name of its adapters and heads. It cannot contain ``/`` or a comma.
      source: One of:

        - a folder with ``train`` and optionally ``dev`` and ``test`` files (``.jsonl``, ``.tsv``, ``.csv``,
          ``.conll``, optionally with ``.gz``, ``.parquet``, ``.arrow``) and ``labels.json``;
        - one such file with the train rows;
        - ``official:NAME:FOLDER``, with the folder of the benchmarks' official downloads;
        - ``builtin:NAME``;
        - ``tfds:NAME``, or ``tfds:FOLDER`` with a prepared dataset;
        - ``hf:NAME``, ``hf:ORG/NAME``, ``hf:NAME/CONFIG`` or ``hf:ORG/NAME/CONFIG`` on the Hugging Face hub;
        - a folder that ``save_to_disk`` of Hugging Face's datasets has written.

        Folders and files can be on ``gs://``, except official downloads; they are copied to the cache.
      train, dev, test: Files to read instead of the folder's default files, relative to the folder; or names or slices
        of the splits of TFDS and Hugging Face, such as ``train[:10%]``.
      dev_share: The share of the train rows that becomes the dev split if the task has none. A hash of the row's texts
        decides, so that equal rows are in the same split, independently of other rows and of the order of rows. If 0,
        a task without a dev split is an error. Benchmarks' downloads, TFDS and built-in tasks are never divided.
      kind: Classification; regression; multiple choice (a context and its choices per row); span (a question and a
        context per row, and the answer is a span of the context); multi-label classification (any number of labels per
        row); or tagging (a tag for each word, such as named entities).
      labels: Label names in order; for multiple choice, names of the first, second, ... choice. Defaults to the names
        in the folder's ``labels.json`` or of the source, or else the labels of the train split.
      text_a, text_b, label: Column names. Default to ``text_a`` and ``text_b``, or ``text``; and ``label``. For
        multiple choice and span tasks, ``text_a`` is the context (default ``context``) and ``text_b`` the question
        (default ``question``, optional for multiple choice). For span tasks, ``label`` is the answers (default
        ``answers``). For tagging, ``text_a`` is the words (default ``words``) and ``label`` the tags (default
        ``tags``).
      choices: For multiple choice, one column with a list or one column per choice. Defaults to ``choices``.
      train_rows: Number of train rows to use, evenly spaced; 0 for all.
      metric: The dev metric for early stopping. Defaults to accuracy; Pearson correlation for regression, F1 for span
        tasks and (of entities) for tagging, and micro F1 for multi-label tasks.
      span: Windows and answers of a span task.
      multi_label: Labels and threshold of a multi-label task.
      scale: For regression, labels are divided by this for training, and predictions are multiplied by it. Stickland &
        Murray 2019 use 5 for STS-B, so that its loss has the magnitude of the other tasks' losses.

    Raises:
      UserError: A field has the wrong type or an invalid value, or a setting does not apply to the kind of task.

    Example:
      >>> from afjax import TaskConfig
      >>> task = TaskConfig(name="reviews", source="reviews.csv", text_a="review", label="stars")
      >>> task.kind, task.main_metric
      ('classification', 'accuracy')
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
    multi_label: MultiLabelConfig = MultiLabelConfig()

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
        if self.multi_label != MultiLabelConfig() and self.kind != "multi_label":
            raise UserError(
                f'The task {self.name} has multi_label settings, but its kind is "{self.kind}", not "multi_label".'
            )

    @property
    def label_column(self) -> str:
        """The name of the column with the labels."""
        return self.label or {"span": "answers", "tagging": "tags"}.get(self.kind, "label")

    @property
    def main_metric(self) -> str:
        return self.metric or MAIN_METRICS[self.kind]
