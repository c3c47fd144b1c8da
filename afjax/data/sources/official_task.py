"""The definition of a task in a benchmark's official download."""

from dataclasses import dataclass

from afjax.config.tasks import TaskKind
from afjax.data.sources.layouts import Layout


@dataclass(frozen=True, kw_only=True)
class OfficialTask:
    """A task of a benchmark.

    Attributes:
      about: A description with the authors.
      folders: Possible folders of the task's files, relative to the data folder. The first one with any of the files is
        used.
      layouts: Possible file layouts. Each split uses the first layout whose files exist.
      kind: The kind of task.
      labels: Label names in order; for multiple choice, the names of the choices. If empty, the names are collected
        from the labels and sorted; see :func:`afjax.data.labels.find_label_names`.
      metric: The task's main metric. If empty, it is the main metric of the kind (``MAIN_METRICS``).
      no_answer: Whether questions can have no answer.
      tfds: The name of the dataset in TFDS; empty if TFDS does not have it.
    """

    about: str
    folders: tuple[str, ...]
    layouts: tuple[Layout, ...]
    kind: TaskKind = "classification"
    labels: tuple[str, ...] = ()
    metric: str = ""
    no_answer: bool = False
    tfds: str = ""
