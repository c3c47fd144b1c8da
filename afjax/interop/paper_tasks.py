"""Maps tasks in the papers' released code to afjax's tasks and labels."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax

from afjax.config.adapters import Adapter
from afjax.config.heads import HeadConfig
from afjax.config.tasks import TaskConfig
from afjax.errors import UserError
from afjax.model.model import Model
from afjax.model.task_model import TaskModel
from afjax.tasks.by_name import known_task
from afjax.tasks.kinds import TASK_KINDS
from afjax.trees import Tree
from afjax.trunk.pretrained import Trunk, check_length

# Label names from the benchmark's own files, in the order of get_labels() in both papers' code.
_LABELS: Mapping[str, tuple[str, ...]] = {
    "cola": ("unacceptable", "acceptable"),
    "mnli": ("contradiction", "entailment", "neutral"),
    "mrpc": ("not_equivalent", "equivalent"),
    "qnli": ("not_entailment", "entailment"),
    "qqp": ("not_duplicate", "duplicate"),
    "rte": ("not_entailment", "entailment"),
    "sst2": ("negative", "positive"),
}
_OUR_NAMES = {"sst": "sst2", "sts": "stsb"}


def paper_task(name: str, outputs: int, *, labels: Sequence[str] = (), where: str) -> TaskConfig:
    """Builds the task config for a head, with labels in the order of its outputs.

    Args:
      name: A benchmark task, spelled as in the papers' code or in afjax, or any other name.
      outputs: The head's number of outputs.
      labels: Label names, in the order of the outputs. Defaults to the benchmark's labels, or 0, 1, ... for other
        tasks.
      where: The head's name in error messages.

    Raises:
      UserError: The numbers of labels and outputs differ, or a task other than STS-B has a single output.
    """
    name = _OUR_NAMES.get(name, name)
    if name == "stsb":
        if outputs != 1 or labels:
            raise UserError(
                f"{where} has {outputs} outputs, but STS-B is a regression task with one output and no labels."
            )
        # The papers' code rescales the labels to [0, 1].
        return dataclasses.replace(known_task(name), scale=5.0)
    if outputs < 2:
        raise UserError(
            f"{where} has {outputs} output, but in the papers' code every task except STS-B (stsb) is classification."
        )
    chosen = tuple(labels) or _LABELS.get(name) or tuple(map(str, range(outputs)))
    if len(chosen) != outputs or len(set(chosen)) != outputs:
        raise UserError(
            f'{where} has {outputs} outputs, but the labels of "{name}" are {", ".join(chosen)}; pass one distinct '
            "label for each output, in order, or correct the task name."
        )
    task = known_task(name) if name in _LABELS else TaskConfig(name=name)
    return dataclasses.replace(task, labels=chosen)


def paper_model(
    trunk: Trunk,
    task: TaskConfig,
    *,
    name: str,
    head: Tree,
    head_config: HeadConfig,
    adapter: tuple[Adapter, Tree] | None,
    max_length: int,
) -> TaskModel:
    """Builds a task model from a trunk, a head and an optional adapter.

    The head and the adapter get the same name. If the labels are a benchmark's own, they and the head's outputs are
    reordered to afjax's standard order, because sources with integer labels (TFDS) depend on it.
    """
    check_length(max_length, trunk)
    assert head["output"]["bias"].shape == (TASK_KINDS[task.kind].num_outputs(task.labels),)
    standard_labels = known_task(task.name).labels
    if set(standard_labels) == set(task.labels):
        order = [task.labels.index(label) for label in standard_labels]
        head = jax.tree.map(lambda leaf: leaf[..., order], head) if order else head
        task = dataclasses.replace(task, labels=standard_labels)
    model = Model(
        trunk=trunk.config, head_name=name, head=head_config, adapters=() if adapter is None else ((name, adapter[0]),)
    )
    params: Tree = {"adapters": {} if adapter is None else {name: adapter[1]}, "fusion": {}, "heads": {name: head}}
    return TaskModel(
        trunk=trunk,
        model=model,
        params=params,
        task=task,
        labels=task.labels,
        metrics={},
        seed=0,
        max_length=max_length,
    )
