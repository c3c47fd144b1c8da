"""A task of a benchmark's own download: where its files are, and what they hold."""

from dataclasses import dataclass
from typing import Literal

from afjax.data.sources.layouts import Layout

Kind = Literal["classification", "regression", "multiple_choice", "span"]


@dataclass(frozen=True, kw_only=True)
class OfficialTask:
    """A task of a benchmark.

    Attributes:
      about: What the task is, and its authors.
      folders: Where its files can be, below the folder of all data. The first folder with any of them counts.
      layouts: How its files can be laid out. Each split has the first layout whose files are there.
      kind: The kind of its rows.
      labels: Label names in order; for multiple choice the names of the choices. Empty for the labels that occur, in
        alphabetical order.
      metric: The usual dev metric; empty for accuracy, Pearson for regression, F1 for span.
      no_answer: Whether questions can have no answer.
      tfds: The task's name in TFDS; empty if TFDS does not have it.
    """

    about: str
    folders: tuple[str, ...]
    layouts: tuple[Layout, ...]
    kind: Kind = "classification"
    labels: tuple[str, ...] = ()
    metric: str = ""
    no_answer: bool = False
    tfds: str = ""
