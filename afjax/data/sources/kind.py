"""The interface that every kind of source implements."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from afjax.config.tasks import TaskConfig
from afjax.data.columns import TEXT_COLUMNS

Split = Literal["train", "dev", "test"]

# Names of each split in published datasets, in order of preference.
SPLIT_NAMES: Mapping[Split, tuple[str, ...]] = {
    "train": ("train",),
    "dev": ("dev", "validation", "valid"),
    "test": ("test",),
}

# The beginning of a name that indicates a dev split. If a source has such a name, no dev split is made by hash, even if
# the name is not among ``SPLIT_NAMES``, because the existing dev split would be ignored.
_DEV_WORD = re.compile(r"(dev|devel|development|val|valid|validation)([^a-z]|$)", re.IGNORECASE)


def looks_like_dev(name: str) -> bool:
    """Returns whether the name of a file or split indicates a dev split, such as ``validation_matched``."""
    return _DEV_WORD.match(name) is not None


@dataclass(frozen=True)
class SplitSource:
    """The rows of one split, not yet read.

    Attributes:
      name: The split's name in error messages.
      rows: Pairs ``(the row's name in error messages, its values by column name)``.
      label_names: The label names that the source defines; may be empty.
      text_columns: Text columns to look for if the task names none.
      has_questions: Whether multiple-choice rows can have a separate question in addition to the context.
    """

    name: str
    rows: Iterable[tuple[str, dict[str, Any]]]
    label_names: tuple[str, ...] = ()
    text_columns: Sequence[tuple[str, ...]] = TEXT_COLUMNS
    has_questions: bool = True


def _never(_: Any) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class SourceKind:
    """A kind of source. Each kind is a module of this package and is defined by its ``KIND``.

    Attributes:
      scheme: The word before the colon in a task's ``source``; empty for files and folders.
      open_split: Opens a split's rows. Raises UserError if the split is missing.
      has_split: Whether a task has a split.
      split_files: The files that a split is read from, or the source's name for the split.
      makes_dev: Whether the dev split is taken from the train rows, because the task has no dev split and its
        ``dev_share`` is above 0.
      recognizes: Whether a local folder holds data of this kind. If so, a task's source can be the folder's path
        without a scheme, and this kind reads it.
      shared_form: Removes this machine's folders from the text after the colon, for artefacts that are shared.
      portable: Whether the source refers to the same data on every machine.
      text_columns: Text columns to look for if a task names none.
      num_texts: The number of texts per row, if it is the same for all tasks of this kind.
    """

    scheme: str
    open_split: Callable[[TaskConfig, Split], SplitSource]
    has_split: Callable[[TaskConfig, Split], bool]
    split_files: Callable[[TaskConfig, Split], list[str]]
    makes_dev: Callable[[TaskConfig], bool] = _never
    recognizes: Callable[[Path], bool] = _never
    shared_form: Callable[[str], str] = str
    portable: bool = False
    text_columns: Sequence[tuple[str, ...]] = TEXT_COLUMNS
    num_texts: int | None = None
