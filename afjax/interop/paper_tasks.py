"""The tasks of the papers' codes: what they are called here, and what each output of their heads means."""

import dataclasses
import types
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

# The order of the outputs is that of get_labels() in both codes; the names are those of the benchmark's own files.
_LABELS: Mapping[str, tuple[str, ...]] = types.MappingProxyType(
    {
        "cola": ("unacceptable", "acceptable"),
        "mnli": ("contradiction", "entailment", "neutral"),
        "mrpc": ("not_equivalent", "equivalent"),
        "qnli": ("not_entailment", "entailment"),
        "qqp": ("not_duplicate", "duplicate"),
        "rte": ("not_entailment", "entailment"),
        "sst2": ("negative", "positive"),
    }
)
_OUR_NAMES = {"sst": "sst2", "sts": "stsb"}


def paper_task(name: str, outputs: int, *, labels: Sequence[str] = (), where: str) -> TaskConfig:
    """The task of a head, its labels in the order of the head's outputs.

    Args:
      name: The benchmark's, as the papers' codes or afjax write it, or any other.
      outputs: How many the head has.
      labels: Their names, in order; empty: the benchmark's, else 0, 1, ...
      where: Names the head in messages.

    Raises:
      UserError: Another number of labels than of outputs, or a single output of a task other than STS-B.
    """
    name = _OUR_NAMES.get(name, name)
    if name == "stsb":
        if outputs != 1 or labels:
            raise UserError(f"{where} has {outputs} outputs, but STS-B is regression: one output, and no labels.")
        # The code learns labels from 0 to 1.
        return dataclasses.replace(known_task(name), scale=5.0)
    if outputs < 2:
        raise UserError(f"{where} has {outputs} output; the papers' codes have classes of every task but STS-B (stsb).")
    chosen = tuple(labels) or _LABELS.get(name) or tuple(map(str, range(outputs)))
    if len(chosen) != outputs or len(set(chosen)) != outputs:
        raise UserError(
            f'{where} has {outputs} outputs, but the labels of "{name}" are {", ".join(chosen)}; give each output its '
            "label, in order, or the task its name."
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
    """A trunk with a head and perhaps an adapter, of one name, ready to be saved to a store.

    A benchmark's labels come into the order that they have everywhere in afjax, and the head's outputs with them, so
    that sources which number labels (TFDS) are read as they are meant.
    """
    check_length(max_length, trunk)
    assert head["output"]["bias"].shape == (TASK_KINDS[task.kind].num_outputs(task.labels),)
    ours = known_task(task.name).labels
    if set(ours) == set(task.labels):
        order = [task.labels.index(label) for label in ours]
        head = jax.tree.map(lambda leaf: leaf[..., order], head) if order else head
        task = dataclasses.replace(task, labels=ours)
    model = Model(
        trunk=trunk.config,
        head_name=name,
        head=head_config,
        adapters=() if adapter is None else ((name, adapter[0]),),
    )
    params: Tree = {
        "adapters": {} if adapter is None else {name: adapter[1]},
        "fusion": {},
        "heads": {name: head},
    }
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
