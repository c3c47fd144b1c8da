"""The definition of a benchmark task."""

from dataclasses import dataclass

from afjax.config.tasks import TaskKind
from afjax.data.sources.layouts import Layout


@dataclass(frozen=True, kw_only=True)
class OfficialTask:
    """A benchmark task in its official format.

    Attributes:
      about: A description with a citation.
      folders: Candidate folders for the task's files, relative to the data folder. The first one that contains any of
        the files is used.
      layouts: Candidate file layouts. Each split uses the first layout whose files exist.
      kind: The kind of task.
      labels: Label names in order; for multiple choice, the names of the choices. If empty, they are collected from the
        labels by :func:`afjax.data.labels.find_label_names`.
      metric: The task's main metric. If empty, the default of its kind (``MAIN_METRICS``).
      no_answer: Whether questions can be unanswerable.
      tfds: The dataset's name in TFDS; empty if TFDS does not have it.
    """

    about: str
    folders: tuple[str, ...]
    layouts: tuple[Layout, ...]
    kind: TaskKind = "classification"
    labels: tuple[str, ...] = ()
    metric: str = ""
    no_answer: bool = False
    tfds: str = ""
