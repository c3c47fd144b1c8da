"""The interface for data sources."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from afjax.config.tasks import TaskConfig
from afjax.data.columns import TEXT_COLUMNS

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")

# Names of each split in published datasets, in order of preference.
SPLIT_NAMES: Mapping[Split, tuple[str, ...]] = {
    "train": ("train",),
    "dev": ("dev", "validation", "valid"),
    "test": ("test",),
}

# Prefixes of names that suggest a dev split. If a source has such a name, its train rows are not split by hash, because
# that would silently ignore the existing dev split, even if its name is not in ``SPLIT_NAMES``.
_DEV_WORD = re.compile(r"(dev|devel|development|val|valid|validation)([^a-z]|$)", re.IGNORECASE)


def looks_like_dev(name: str) -> bool:
    """Whether the name of a file or split suggests a dev split.

    An example is ``validation_matched``.
    """
    return _DEV_WORD.match(name) is not None


@dataclass(frozen=True)
class SplitSource:
    """One split of a data source. Its rows are loaded lazily.

    Attributes:
      name: The split's name in error messages.
      rows: Pairs ``(the row's name in error messages, its values by column name)``.
      label_names: Label names defined by the source; may be empty.
      text_columns: Candidate text columns if the task does not set them.
      has_questions: Whether multiple-choice rows can have a separate question in addition to the context.
    """

    name: str
    rows: Iterable[tuple[str, dict[str, Any]]]
    label_names: tuple[str, ...] = ()
    text_columns: Sequence[tuple[str, ...]] = TEXT_COLUMNS
    has_questions: bool = True


@dataclass(frozen=True, kw_only=True)
class SourceKind:
    """A kind of data source.

    Each kind is a module of this package that defines ``KIND``.

    Attributes:
      scheme: The part of a task's ``source`` before the colon; empty for files and folders.
      open_split: Opens a split. Raises UserError if it is missing.
      has_split: Whether a task has a split.
      split_files: Lists a split's files; empty if the source does not store splits in files.
      makes_dev: Whether the dev split is held out from the train rows, because the task has none and its ``dev_share``
        is above 0.
      recognizes: Whether a local folder contains data of this kind, so that a task's source can be its path without a
        scheme.
      shared_form: Removes local folders from the part after the colon, for artifacts that are shared.
      portable: Whether the source refers to the same data on every machine.
      text_columns: Candidate text columns if a task does not set them.
      num_texts: Number of texts per row, if it is the same for all tasks of this kind.
      fixed_splits: Whether a task cannot choose its splits with ``train``, ``dev`` and ``test``.
    """

    scheme: str
    open_split: Callable[[TaskConfig, Split], SplitSource]
    has_split: Callable[[TaskConfig, Split], bool]
    split_files: Callable[[TaskConfig, Split], list[str]] = lambda task, split: []
    makes_dev: Callable[[TaskConfig], bool] = lambda task: False
    recognizes: Callable[[Path], bool] = lambda folder: False
    shared_form: Callable[[str], str] = str
    portable: bool = False
    text_columns: Sequence[tuple[str, ...]] = TEXT_COLUMNS
    num_texts: int | None = None
    fixed_splits: bool = False
