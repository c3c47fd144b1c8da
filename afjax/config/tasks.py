"""Task configs: data source, kind, labels and metric."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Literal

from afjax.config.from_dict import Settings, shown
from afjax.config.ranges import FiniteFloat, NonNegativeInt, PositiveFloat, PositiveInt, Proportion, Range
from afjax.config.values import check_name
from afjax.errors import UserError

# Sources with a scheme, for help texts and error messages.
NAMED_SOURCES = "official:NAME:FOLDER, builtin:NAME, tfds:NAME or hf:NAME"

TaskKind = Literal["classification", "regression", "multiple_choice", "span", "multi_label", "tagging"]
Metric = Literal[
    "accuracy", "f1", "macro_f1", "matthews", "pearson", "spearman", "exact_match", "micro_f1", "average_precision"
]
# The default main metric of each kind of task.
MAIN_METRICS: Mapping[TaskKind, Metric] = {
    "classification": "accuracy",
    "regression": "pearson",
    "multiple_choice": "accuracy",
    "span": "f1",
    "multi_label": "micro_f1",
    "tagging": "f1",
}


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class SpanConfig(Settings, name="span"):
    """Window and answer settings of span tasks.

    The defaults are the same as in BERT's SQuAD code, which Houlsby 2019 uses.

    Attributes:
      doc_stride: Distance in tokens between the starts of consecutive windows, for contexts that do not fit into one
        window. It is limited to half of a window's room for the context. (In Hugging Face's tokenizers, ``stride`` is
        instead the overlap between windows.)
      max_question_length: Maximum number of tokens per question. Longer questions are truncated, as are those that
        would fill more than half of a window.
      max_answer_length: Maximum number of tokens per answer.
      no_answer: Whether questions can be unanswerable (SQuAD v2).
      no_answer_threshold: "No answer" is predicted if its score exceeds the best answer's score by more than this
        value.
      num_best: Number of candidate answers per prediction.

    Raises:
      UserError: A field has the wrong type or an invalid value.

    Example:
      >>> from afjax import SpanConfig, TaskConfig
      >>> TaskConfig(name="squad", kind="span", span=SpanConfig(no_answer=True)).span
      SpanConfig(no_answer=True)
    """

    doc_stride: PositiveInt = 128
    max_question_length: PositiveInt = 64
    max_answer_length: PositiveInt = 30
    no_answer: bool = False
    no_answer_threshold: FiniteFloat = 0.0
    num_best: PositiveInt = 20


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class MultiLabelConfig(Settings, name="multi_label"):
    """Label and threshold settings of multi-label tasks.

    Attributes:
      separator: Separates a row's labels if the label column is text, as in a CSV file.
      threshold: A label is predicted if its probability is at least this value.
      tune_threshold: Whether to tune the threshold on the dev split after training, as
        :meth:`afjax.TaskModel.tune_threshold` does. Early stopping always uses ``threshold``.

    Raises:
      UserError: A field has the wrong type or an invalid value.

    Example:
      >>> from afjax import MultiLabelConfig, TaskConfig
      >>> TaskConfig(name="topics", kind="multi_label", multi_label=MultiLabelConfig(separator=";")).main_metric
      'micro_f1'
    """

    separator: str = "|"
    threshold: Annotated[float, Range(above=0, below=1)] = 0.5
    tune_threshold: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.separator:
            raise UserError('A task\'s multi_label.separator is empty; set a separator, such as "|".')


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TaskConfig(Settings, name="task"):
    """A labeled dataset and its metric.

    Attributes:
      name: The task's name, and the default name of its adapters and heads. It cannot contain slashes or commas.
      source: One of:

        - a folder with a ``train`` file, and optionally ``dev`` and ``test`` files and ``labels.json``. The files are
          ``.jsonl``, ``.tsv``, ``.csv`` or ``.conll`` (possibly gzipped, with ``.gz``), ``.parquet`` or ``.arrow``;
        - a single such file with the train split;
        - ``official:NAME:FOLDER``, where the folder contains the benchmark's official download;
        - ``builtin:NAME``;
        - ``tfds:NAME``, or ``tfds:FOLDER`` with a prepared dataset;
        - ``hf:NAME``, ``hf:ORG/NAME``, ``hf:NAME/CONFIG`` or ``hf:ORG/NAME/CONFIG`` on the Hugging Face hub;
        - a folder written by ``save_to_disk`` in Hugging Face's datasets library.

        Folders and files can be on ``gs://`` (except official downloads) and are then copied to the cache.
      train, dev, test: Files to use instead of the folder's default files, relative to the folder. For TFDS and Hugging
        Face, names or slices of splits, such as ``train[:10%]``. The splits of official downloads and built-in tasks
        are fixed.
      dev_share: Fraction of the train rows to hold out as the dev split if the task has none. The split is determined
        by a hash of each row's texts, so identical rows stay together and other rows and their order do not matter. If
        0, a dev split is required. Official downloads, TFDS and built-in tasks are never split.
      kind: Classification; regression; multiple choice (a context and several choices per row); span (a question and a
        context per row; the answer is a span of the context); multi-label classification (any number of labels per
        row); or tagging (one tag per word, as for named entities).
      labels: Label names in order. For multiple choice, the names of the first, second, ... choice. Defaults to the
        names in the folder's ``labels.json`` or defined by the source, or else to the labels in the train split. Not
        used for regression and span tasks.
      text_a, text_b, label: Names of the text columns and the label column. The defaults are ``text_a`` and ``text_b``,
        or else ``text``; and ``label``. Datasets from TFDS and the Hugging Face hub have more defaults, such as
        ``sentence1`` and ``sentence2``. For multiple choice and span tasks, ``text_a`` is the context (default
        ``context``) and ``text_b`` the question (default ``question``, optional for multiple choice). For span tasks,
        ``label`` holds the answers (default ``answers``). For tagging, ``text_a`` holds the words (default ``words``)
        and ``label`` the tags (default ``tags``), and ``text_b`` is not used.
      choices: For multiple choice, one column with a list or one column per choice. Defaults to ``choices``.
      train_rows: Number of train rows to use, evenly spaced; 0 for all.
      metric: The dev metric that selects the best parameters (``train.patience`` refers to it too). Defaults to
        accuracy for classification and multiple choice, Pearson correlation for regression, F1 for span tasks, entity
        F1 for tagging, and micro F1 for multi-label tasks.
      span: Window and answer settings of a span task.
      multi_label: Label and threshold settings of a multi-label task.
      scale: For regression, labels are divided by this value for training, and predictions are multiplied by this
        value. Stickland & Murray 2019 use 5 for STS-B to make its loss comparable in magnitude to other tasks' losses.

    Raises:
      UserError: A field has the wrong type or an invalid value, or ``choices``, ``span``, ``multi_label`` or ``scale``
        is set for another kind of task.

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
    dev_share: Proportion = 0.1
    kind: TaskKind = "classification"
    labels: tuple[str, ...] = ()
    text_a: str = ""
    text_b: str = ""
    label: str = ""
    choices: tuple[str, ...] = ()
    train_rows: NonNegativeInt = 0
    metric: Metric | Literal[""] = ""
    scale: PositiveFloat = 1.0
    span: SpanConfig = SpanConfig()
    multi_label: MultiLabelConfig = MultiLabelConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name(self.name, "task")
        for label in self.labels:
            if not label.strip() or self.labels.count(label) > 1:
                raise UserError(
                    f"The task {self.name} has the label names {list(self.labels)}; they must be distinct and not "
                    "blank."
                )
        kinds = {"scale": "regression", "choices": "multiple_choice", "span": "span", "multi_label": "multi_label"}
        for setting, kind in kinds.items():
            value = getattr(self, setting)
            if self.kind != kind and value != getattr(TaskConfig, setting):
                raise UserError(
                    f"The task {self.name} sets {setting} to {shown(value)}, but its kind is "
                    f'"{self.kind}", not "{kind}".'
                )

    @property
    def label_column(self) -> str:
        """The label column's name."""
        return self.label or {"span": "answers", "tagging": "tags"}.get(self.kind, "label")

    @property
    def main_metric(self) -> str:
        return self.metric or MAIN_METRICS[self.kind]
