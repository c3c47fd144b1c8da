"""Loads splits from files, downloads, TFDS, Hugging Face, lists or tables."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from afjax.config.from_dict import check_value
from afjax.config.tasks import TaskConfig, TaskKind
from afjax.data.dataframes import TABLES, as_list, dataset_label_names, is_table, table_rows
from afjax.data.dev_split import divide, split_part
from afjax.data.labels import check_label_names, name_classes
from afjax.data.sources.files import shorten
from afjax.data.sources.kind import SPLIT_NAMES, Split, SplitSource
from afjax.data.sources.kinds import has_split, makes_dev, open_source
from afjax.data.splits import AnyRows, SpanRows, check_same_form
from afjax.display.words import counted
from afjax.errors import UserError
from afjax.tasks.kind import NEEDS_LABELS, LabelReading
from afjax.tasks.kinds import TASK_KINDS


def load_task(task: TaskConfig) -> dict[str, AnyRows]:
    """Loads the ``train``, ``dev`` and, if it exists, ``test`` splits.

    The test split may be unlabeled.

    Label names come from the task, or else from the source (the folder's ``labels.json``, the benchmark, or the feature
    of a TFDS or Hugging Face dataset). If neither lists them, they are collected from the train split and sorted,
    numerically if all are integers.

    If the task has no dev split, some of its train rows are held out as dev; see ``TaskConfig.dev_share``. Label names
    are then collected from the train and the dev rows.

    Args:
      task: The task, with its source.

    Returns:
      ``{split: rows}``, with rows as in :func:`load_split`.

    Raises:
      UserError: A split is missing or empty; a file, column, text or label is invalid; some splits have single texts
        and others pairs; or no train row of a span task has a known answer start.

    Example:
      >>> from afjax import TaskConfig, load_task
      >>> splits = load_task(TaskConfig(name="target", source="builtin:target"))
      >>> {split: len(rows) for split, rows in splits.items()}
      {'train': 200, 'dev': 600, 'test': 600}
    """
    source = open_source(task, "train")
    train = read_source(task, source)
    if makes_dev(task):
        train, dev = divide(task, train, source.name)
    else:
        dev = load_split(task, "dev", label_names=train.label_names)
    if isinstance(train, SpanRows) and not train.trainable():
        raise UserError(
            f"No row of the task {task.name}'s train split has a known answer start; add answer_start to its answers."
        )
    if task.train_rows:
        train = train.every(task.train_rows)
    splits = {"train": train, "dev": dev}
    if has_split(task, "test"):
        splits["test"] = load_split(task, "test", label_names=train.label_names, labeled=None)
    check_forms(task, splits)
    return splits


def check_forms(task: TaskConfig, splits: Mapping[str, AnyRows]) -> None:
    """Raises UserError unless all splits have the same number of texts per row."""
    for split, rows in splits.items():
        check_same_form(
            splits["train"].text_columns,
            f"The task {task.name}'s train rows",
            rows,
            f"its {split} rows",
            "use the same columns in all splits, or set the task's text_a and text_b",
        )


def load_split(
    task: TaskConfig,
    split: Split,
    *,
    label_names: tuple[str, ...] = (),
    listed: bool | None = None,
    labeled: bool | None = True,
) -> AnyRows:
    """Loads one split of a task.

    See :func:`load_task` for label names and for tasks without a dev split. As there, the train split is limited to
    ``task.train_rows``.

    Args:
      task: The task.
      split: The split's name.
      label_names: Label names, which override any from the task, the source or the data.
      listed: Whether integer labels can be indices into ``label_names``. If None, they can if the task or its source
        lists label names. They cannot if the names were collected from the data, because their order is arbitrary.
      labeled: Whether labels are required. If False, labels are ignored. If None, they are used if there are any.

    Returns:
      The rows: :class:`~afjax.data.splits.Rows` for classification and regression, ``ChoiceRows`` for multiple choice,
      ``SpanRows`` for span tasks, ``MultiLabelRows`` for multi-label tasks, ``TagRows`` for tagging. ``labels`` is
      int32 ``[rows]``, except for regression (float32 ``[rows]``), multi-label tasks (float32 ``[rows, labels]``), span
      tasks (the answers of each row) and tagging (the tags of each row).

    Raises:
      UserError: ``split`` is not a split's name, the split is missing or empty, or a file, column, text or label is
        invalid.

    Example:
      >>> from afjax import TaskConfig, load_split
      >>> load_split(TaskConfig(name="target", source="builtin:target"), "train")
      <Rows: 200 pairs of texts, labels ...>
    """
    check_value(Split, split, "split")
    made = makes_dev(task)
    source = open_source(task, split)
    # If no label names are listed, all splits use those collected from train, and from dev rows held out from it.
    collects = split == "train" or (split == "dev" and made)
    train = None if collects else functools.partial(open_source, task, "train")
    labels = LabelReading(names=label_names, listed=listed, required=labeled, train=train)
    rows = read_source(task, source, labels)
    if split == "dev" and made:
        return divide(task, rows, source.name)[1]
    if split == "train":
        rows = split_part(task, rows, source.name, split) if made else rows
        return rows.every(task.train_rows) if task.train_rows else rows
    return rows


def read_source(task: TaskConfig, source: SplitSource, labels: LabelReading = NEEDS_LABELS) -> AnyRows:
    """Loads and validates all rows of a source.

    Args:
      task: The task, with its kind, columns and label names.
      source: The source's split.
      labels: How to load the labels.

    Raises:
      UserError: A column, text or label is invalid.
    """
    return TASK_KINDS[task.kind].read(task, source, labels)


def rows_from_table(
    table: Any,
    task: TaskConfig,
    *,
    label_names: tuple[str, ...] = (),
    listed: bool | None = None,
    labeled: bool | None = True,
    name: str = "table",
) -> AnyRows:
    """Converts a DataFrame, a Dataset or a dictionary of columns to a split.

    Args:
      table: A pandas or Polars DataFrame, a Hugging Face ``Dataset`` or ``IterableDataset``, a dictionary
        ``{column: values}``, or any other object with named columns. If the label column of a dataset is a
        ``ClassLabel``, its names are used as label names.
      task: The task, with its kind and label names. ``text_a``, ``text_b``, ``label`` and ``choices`` are the column
        names. For classification, regression and multi-label tasks, they default to ``text``, or ``text_a`` and
        ``text_b``, and ``label``.
      label_names: Label names, which override any from the task or the data.
      listed: Whether integer labels can be indices into ``label_names``. If None, they can if the task or the table
        lists label names.
      labeled: Whether labels are required. If False, labels are ignored. If None, they are used if there are any.
      name: The table's name in error messages.

    Returns:
      The rows, as in :func:`load_split`.

    Raises:
      UserError: ``table`` is not a table, or a column, text or label is invalid.

    Example:
      >>> task = TaskConfig(name="reviews", text_a="review", label="stars")
      >>> rows = rows_from_table({"review": ["fine", "poor"], "stars": [5, 1]}, task)
      >>> rows.label_names, rows.labels.tolist()
      (('1', '5'), [1, 0])
    """
    if not is_table(table):
        raise UserError(f"{name} is {shorten(table)}, of type {type(table).__name__}; pass {TABLES}.")
    names = dataset_label_names(table, task.label_column)
    source = SplitSource(name, name_classes(task, table_rows(table, name), names), names)
    return read_source(task, source, LabelReading(names=tuple(label_names), listed=listed, required=labeled))


def rows_by_split(task: TaskConfig, data: Any) -> dict[str, AnyRows]:
    """Validates a dictionary of splits, and converts tables to rows.

    If train is the only split, some of its rows are held out as dev; see ``TaskConfig.dev_share``. Then the train rows
    are limited to ``TaskConfig.train_rows``.

    Args:
      task: The task.
      data: ``{"train": rows, "dev": rows, "test": rows}``, or a ``DatasetDict``. Only train is required. Test may be
        unlabeled. The dev split can also be named ``validation`` or ``valid``. Other splits are ignored.

    Raises:
      UserError: The train split is missing; the dev split is missing and cannot be held out from train; a split is
        given under two names, or has the wrong type; or a table has an invalid column, text or label.
    """
    name = f"The data of the task {task.name}"
    if not isinstance(data, Mapping) and is_table(data):
        raise UserError(f'{name} is a table ({type(data).__name__}); pass {{"train": table}}, optionally with "dev".')
    if not isinstance(data, Mapping):
        raise UserError(f'{name} is {shorten(data)}, of type {type(data).__name__}; pass {{"train": rows, ...}}.')
    given = ", ".join(map(str, data)) or "nothing"
    names = {split: next((name for name in SPLIT_NAMES[split] if name in data), "") for split in SPLIT_NAMES}
    for split, known in SPLIT_NAMES.items():
        if len(both := [other for other in known if other in data]) > 1:
            raise UserError(f"{name} has {' and '.join(both)}, which are both names of the {split} split; keep one.")
    other_splits = [str(split) for split in data if split not in names.values()]
    if not names["train"] or (not names["dev"] and (other_splits or not task.dev_share)):
        raise UserError(
            f'{name} has {given}; pass rows for "train" and "dev". If train is the only split, dev is held out from it '
            "as long as the task's dev_share is above 0."
        )
    splits: dict[str, AnyRows] = {}
    for split, split_name in names.items():
        if not split_name:
            continue
        rows, rows_name = data[split_name], f'data["{split_name}"]'
        if not isinstance(rows, AnyRows) and not is_table(rows):
            raise UserError(
                f"The {split} rows of the task {task.name} are {shorten(rows)}, of type {type(rows).__name__}; "
                f"pass rows_from_lists(...), {TABLES}."
            )
        if not isinstance(rows, AnyRows):
            rows = rows_from_table(
                rows,
                task,
                label_names=splits["train"].label_names if splits else (),
                listed=bool(task.labels),
                labeled=None if split == "test" else True,
                name=rows_name,
            )
        splits[split] = rows
    if "dev" not in splits:
        splits["train"], splits["dev"] = divide(task, splits["train"], 'data["train"]')
    if task.train_rows:
        splits["train"] = splits["train"].every(task.train_rows)
    return splits


def rows_from_lists(
    texts: Iterable[Any],
    labels: Iterable[Any] | None = None,
    *,
    label_names: Iterable[str] = (),
    kind: TaskKind = "classification",
) -> AnyRows:
    """Converts Python lists, or other ordered iterables, to a split.

    Args:
      texts: A list, generator, NumPy array, Series (its index is ignored) or other ordered iterable. The elements are
        strings or pairs of strings. For multiple choice, they are pairs of a context and its list of choices; for span
        tasks, pairs of a question and its context; for tagging, lists of words, or strings with words separated by
        white space.
      labels: One label per text: a label name or class index; a number for regression; the index or name of the correct
        choice for multiple choice; ``{"text": [...], "answer_start": [...]}`` for span tasks (both empty if there is no
        answer); a list of label names, which can be empty, for multi-label tasks; or one tag per word for tagging. None
        if the rows are unlabeled.
      label_names: Label names in index order. If empty, the names in ``labels`` are used in sorted order.
      kind: The task's kind.

    Returns:
      The rows, as in :func:`load_split`.

    Raises:
      UserError: ``texts`` is empty, a single string or a DataFrame (see :func:`rows_from_table`); texts and pairs are
        mixed; the number of labels differs from the number of texts; a label is missing or unknown; or the kind is
        unknown.

    Example:
      >>> rows_from_lists((text for text in ("fine", "poor")), ["good", "bad"]).label_names
      ('bad', 'good')
    """
    check_value(TaskKind, kind, "kind")
    texts = as_list(texts, "texts")
    values = None if labels is None else as_list(labels, "labels")
    given_names = as_list(label_names, "label_names")
    if not texts:
        raise UserError("texts is empty; pass at least one text or pair of texts.")
    if values is not None and len(values) != len(texts):
        raise UserError(
            f"There are {counted(len(texts), 'text')} and {counted(len(values), 'label')}; pass one label per text."
        )
    names = check_label_names(tuple(given_names), "label_names") if given_names else ()
    return TASK_KINDS[kind].from_lists(texts, values, names)
