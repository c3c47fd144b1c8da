"""Heads in other libraries' files: their linear layers, and the metadata that only afjax records."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from afjax.config.from_dict import from_dict, to_dict
from afjax.config.heads import HeadConfig, stored_head
from afjax.config.tasks import TaskConfig
from afjax.errors import UserError
from afjax.interop.facts import without_paths
from afjax.interop.imported import Imported
from afjax.interop.tensors import dense_tree
from afjax.store import Manifest
from afjax.tasks.kinds import TASK_KINDS
from afjax.trees import Tree, tree_digest


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadRecord:
    """The fields of a head's manifest that cannot be inferred from its tensors."""

    config: HeadConfig
    task: TaskConfig
    labels: tuple[str, ...]
    metrics: dict
    seed: int
    max_length: int
    text_columns: int | None = None

    def as_exported(self) -> "HeadRecord":
        """Sets the task's scale to 1, because :func:`head_tensors` folds it into the output layer."""
        return dataclasses.replace(self, task=dataclasses.replace(self.task, scale=1.0))


def head_record(manifest: Manifest) -> HeadRecord:
    """Returns a stored head's record, without local paths."""
    values = dict(manifest.config)
    max_length = values.pop("max_length", None)
    values.pop("num_outputs", None)
    if type(max_length) is not int:
        raise UserError(f'The head "{manifest.name}" does not record its max_length; train it again.')
    text_columns = values.pop("text_columns", None)
    return HeadRecord(
        config=stored_head(values, f'the config of head "{manifest.name}"'),
        task=without_paths(from_dict(TaskConfig, manifest.task, f'the task of head "{manifest.name}"')),
        labels=manifest.labels,
        metrics=manifest.metrics,
        seed=manifest.seed,
        max_length=max_length,
        text_columns=text_columns,
    )


def imported_head(
    record: HeadRecord, params: Tree, name: str, main: Imported | None, notes: Sequence[str] = ()
) -> Imported:
    """Assembles an imported head.

    Args:
      record: The head's metadata.
      params: The head's parameters.
      name: The head's name in the store.
      main: The adapter or fusion that the head was trained with, if any.
      notes: Notes for the user.
    """
    config = {**to_dict(record.config), "num_outputs": params["output"]["bias"].size, "max_length": record.max_length}
    if record.text_columns is not None:
        config["text_columns"] = record.text_columns
    details = {
        "config": config,
        "task": to_dict(record.task),
        "labels": record.labels,
        "metrics": record.metrics,
        "seed": record.seed,
    }
    if main:
        details["trained_with"] = {"kind": main.kind, "name": main.name, "sha256": tree_digest(main.params)}
    return Imported(kind="heads", name=name, params=params, details=details, notes=notes)


def head_params(record: HeadRecord, tensors: Mapping[str, np.ndarray], modules: Sequence[str]) -> Tree:
    """Converts the tensors of a head's linear layers to parameters (float32).

    Args:
      record: The head's metadata.
      tensors: The tensors, by name.
      modules: The names of the linear layers, from input to output.
    """
    *hidden, output = (dense_tree(tensors, module) for module in modules)
    params: Tree = {"output": output}
    if TASK_KINDS[record.task.kind].reads == "pooled" and record.config.pooler == "head":
        params["pooler"], *hidden = hidden
    if hidden:
        params["hidden"] = {str(number): layer for number, layer in enumerate(hidden)}
    return params


def head_tensors(params: Tree, scale: float, modules: Sequence[str]) -> dict[str, np.ndarray]:
    """Converts a head's parameters to the tensors of its linear layers, by name.

    This is the inverse of :func:`head_params`.

    Args:
      params: The head's parameters.
      scale: The task's scale. It is folded into the output layer, which gives the same predictions.
      modules: The names of the linear layers, from input to output.
    """
    layers: list[Tree] = [params["pooler"]] if "pooler" in params else []
    layers += [params["hidden"][layer] for layer in sorted(params.get("hidden", {}), key=int)]
    output = {leaf: np.asarray(array) * np.float32(scale) for leaf, array in params["output"].items()}
    layers.append(output if scale != 1.0 else params["output"])
    tensors = {}
    for module, leaves in zip(modules, layers, strict=True):
        tensors[f"{module}.weight"] = np.asarray(leaves["kernel"]).T
        tensors[f"{module}.bias"] = np.asarray(leaves["bias"])
    return tensors
