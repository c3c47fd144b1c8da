"""Maps the heads of Hugging Face's models to ours and back.

A head in PEFT's files consists of the linear layers of :class:`~afjax.interop.peft.families.HeadLayout`. The head of a
BERT reads the trunk's pooler. If the file has weights or LoRA of the pooler, the head has a pooler of its own.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from afjax.config.from_dict import check_fields
from afjax.config.heads import HeadConfig
from afjax.config.tasks import TaskConfig, TaskKind
from afjax.errors import UserError
from afjax.interop.peft.families import CLASS_OF_KIND, POOLER, SEQUENCE, HeadLayout, PeftFamily, peft_family
from afjax.interop.peft.files import RECORD, Header
from afjax.interop.peft.record import HeadRecord
from afjax.tasks.kinds import TASK_KINDS
from afjax.trees import Tree

# The number of outputs that a head must have, for kinds of tasks that allow only one number.
_OUTPUTS: Mapping[TaskKind, int] = {"regression": 1, "multiple_choice": 1, "span": 2}


@dataclasses.dataclass(frozen=True)
class PeftHead:
    """Facts about a head that PEFT's own files do not record.

    If afjax wrote the files, the defaults are the facts that it has recorded.

    Attributes:
      kind: The kind of task. Defaults to the kind of the model's class: classification for
        ``ForSequenceClassification``, or regression if there is one output.
      labels: The names of the labels, in the order of the outputs. Defaults to ``LABEL_0``, ``LABEL_1`` and so on.
      max_length: The number of tokens that rows are truncated to. Defaults to 128 or the trunk's largest length,
        whichever is smaller.

    Raises:
      UserError: A field has the wrong type or an invalid value.

    Example:
      >>> from afjax.interop.peft import PeftHead
      >>> PeftHead(labels=("negative", "positive"))
      PeftHead(kind=None, labels=('negative', 'positive'), max_length=None)
    """

    kind: TaskKind | None = None
    labels: tuple[str, ...] = ()
    max_length: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, "head")


@dataclasses.dataclass(frozen=True)
class HeadPlan:
    """The head that a file has, as its names, settings and shapes describe it. The tensors have not been read.

    Attributes:
      layout: The names of the head's tensors.
      config: The head's architecture.
      kind: The kind of the head's task.
      labels: The names of the labels.
      num_outputs: The number of outputs.
      max_length: The number of tokens that rows are truncated to; None if it is not known.
      pooler: The origin of the head's own pooler: the file has its weights (``saved``), or LoRA of the trunk's pooler
        (``lora``). Empty if the head does not have one.
    """

    layout: HeadLayout
    config: HeadConfig
    kind: TaskKind
    labels: tuple[str, ...]
    num_outputs: int
    max_length: int | None
    pooler: str

    def shapes(self, hidden_size: int, prefix: str) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the tensors, by name."""
        modules = dict.fromkeys(self.layout.linear, hidden_size) | {self.layout.linear[-1]: self.num_outputs}
        if self.pooler == "saved":
            modules[prefix + POOLER] = hidden_size
        weights: dict[str, tuple[int, ...]] = {
            f"{module}.weight": (size, hidden_size) for module, size in modules.items()
        }
        return weights | {f"{module}.bias": (size,) for module, size in modules.items()}


def plan_head(
    header: Header,
    family: PeftFamily,
    model_class: str,
    given: PeftHead,
    record: HeadRecord | None,
    *,
    hidden_size: int,
    prefix: str,
) -> HeadPlan:
    """Chooses the architecture and the task of the head in a file.

    Args:
      header: The names and shapes of the tensors.
      family: The trunk's family.
      model_class: The class of the base model without the family's prefix; empty if it is unknown.
      given: The facts about the head that the user gives.
      record: The facts about the head that afjax has recorded, if it wrote the file.
      hidden_size: The trunk's hidden size.
      prefix: The first part of the names of the encoder's modules.

    Raises:
      UserError: afjax does not support the head, its kind is unknown, or the given facts, the recorded facts and the
        tensors contradict each other.
    """
    where = str(header.path)
    kind = given.kind or (record.task.kind if record else None)
    model_class = model_class or (CLASS_OF_KIND[kind] if kind else "")
    if not model_class:
        raise UserError(
            f"{where} has a head ({next(iter(header.saved))}), but adapter_config.json has neither task_type nor "
            f"auto_mapping; give --kind, one of {', '.join(CLASS_OF_KIND)}, or leave the head out: --no_head."
        )
    if model_class not in family.heads:
        raise UserError(
            f"{where} has tensors of a {family.classes}{model_class} ({next(iter(header.saved))}); afjax reads the "
            f"heads of {', '.join(family.classes + name for name in family.heads)}. Leave the head out: --no_head."
        )
    layout = family.heads[model_class]
    outputs = _num_outputs(header, f"{layout.linear[-1]}.weight", hidden_size)
    kind = kind or _default_kind(model_class, outputs)
    if CLASS_OF_KIND[kind] != model_class:
        raise UserError(
            f"{where} has the head of a {family.classes}{model_class}, which is not a head for {kind}; give --kind one "
            f"of {', '.join(other for other, name in CLASS_OF_KIND.items() if name == model_class)}."
        )
    if outputs != _OUTPUTS.get(kind, outputs):
        raise UserError(f"{where} has a head with {outputs} outputs; heads for {kind} have {_OUTPUTS[kind]}.")
    config, pooler = layout.config, ""
    if TASK_KINDS[kind].reads == "pooled" and config.pooler == "trunk":
        pooler = "saved" if f"{prefix}{POOLER}.weight" in header.saved else pooler
        pooler = "lora" if f"{prefix}{POOLER}" in header.lora else pooler
        config = dataclasses.replace(config, pooler="head") if pooler else config
    if record is not None:
        pooled = TASK_KINDS[kind].reads == "pooled"
        if _chain(record.config, kind) != _chain(config, kind) or (pooled and record.config.pooling != "first"):
            raise UserError(
                f"{where} has another head than {RECORD} says ({record.config!r}); remove {RECORD} if the weights are "
                "right."
            )
        config = record.config
    max_length = record.max_length if record and given.max_length is None else given.max_length
    labels = _labels(given, record, kind, outputs, where)
    return HeadPlan(layout, config, kind, labels, outputs, max_length, pooler)


def read_head(plan: HeadPlan, tensors: Mapping[str, np.ndarray], pooler: Tree | None) -> Tree:
    """Converts a head's tensors to a tree, float32. ``pooler`` is the head's own pooler, if it has one."""
    layers: list[Tree] = [] if pooler is None else [pooler]
    layers += [dense_tree(tensors, module) for module in plan.layout.linear]
    params: Tree = {"output": layers.pop()}
    if TASK_KINDS[plan.kind].reads == "pooled" and plan.config.pooler == "head":
        params["pooler"] = layers.pop(0)
    if layers:
        params["hidden"] = {str(number): layer for number, layer in enumerate(layers)}
    return params


def dense_tree(tensors: Mapping[str, np.ndarray], module: str) -> Tree:
    """Returns the tree of a linear layer, ``{kernel, bias}``."""
    kernel = np.ascontiguousarray(tensors[f"{module}.weight"].T)  # [inputs, outputs]
    return {"kernel": kernel, "bias": tensors[f"{module}.bias"]}


def write_head(
    config: HeadConfig, tree: Tree, name: str, task: TaskConfig, family: str, prefix: str
) -> tuple[list[str], dict[str, np.ndarray]]:
    """Converts a head to PEFT's ``modules_to_save`` and tensors.

    The output layer is multiplied by a regression task's scale, which gives the same predictions.

    Args:
      config: The head's architecture.
      tree: The head's parameters.
      name: The head's name, for error messages.
      task: The head's task.
      family: The trunk's family.
      prefix: The first part of the names of the encoder's modules.

    Raises:
      UserError: Hugging Face's model for the task has another head.
    """
    classes, model_class = peft_family(family), CLASS_OF_KIND[task.kind]
    layout = classes.heads[model_class]
    pooled = TASK_KINDS[task.kind].reads == "pooled"
    if pooled and config.pooling != "first":
        raise UserError(
            f'The head "{name}" reads the {config.pooling} of all tokens (head.pooling), but the heads of Hugging '
            'Face\'s models only read the first token. Train the head with head.pooling="first", or leave the head '
            "out: --no_head, or with_head=False in Python."
        )
    own_pooler = dataclasses.replace(layout.config, pooler="head")
    takes_pooler = pooled and layout.config.pooler == "trunk"
    writes_pooler = takes_pooler and _chain(config, task.kind) == _chain(own_pooler, task.kind)
    if not writes_pooler and _chain(config, task.kind) != _chain(layout.config, task.kind):
        wanted = [_settings(layout.config)] if pooled else ["head.hidden_layers=0"]
        wanted += [_settings(own_pooler)] if takes_pooler else []
        raise UserError(
            f'The head "{name}" has {_settings(config)}; a {classes.classes}{model_class} has '
            f"{' or '.join(wanted)}. Train the head with these settings, or leave it out: --no_head, or "
            "with_head=False in Python."
        )
    layers: list[Tree] = [tree["pooler"]] if "pooler" in tree else []
    layers += [tree["hidden"][layer] for layer in sorted(tree.get("hidden", {}), key=int)]
    output = {leaf: np.asarray(array) * np.float32(task.scale) for leaf, array in tree["output"].items()}
    layers.append(output if task.scale != 1.0 else tree["output"])
    modules = [*([prefix + POOLER] if writes_pooler else []), *layout.linear]
    tensors = {}
    for module, leaves in zip(modules, layers, strict=True):
        tensors[f"{module}.weight"] = np.asarray(leaves["kernel"]).T
        tensors[f"{module}.bias"] = np.asarray(leaves["bias"])
    pooler_module = [POOLER.partition(".")[0]] if writes_pooler else []
    return [*pooler_module, *layout.modules], tensors


def _chain(config: HeadConfig, kind: TaskKind) -> tuple[bool, tuple[str, ...]]:
    """Returns whether a head reads the trunk's pooler, and the activations of its layers before the output layer."""
    hidden = (config.activation,) * config.hidden_layers
    if TASK_KINDS[kind].reads == "tokens":
        return False, hidden
    own_pooler: tuple[str, ...] = ("tanh",) if config.pooler == "head" else ()
    return config.pooler == "trunk", own_pooler + hidden


def _settings(config: HeadConfig) -> str:
    text = f"head.pooler={config.pooler} and head.hidden_layers={config.hidden_layers}"
    return f"{text} with head.activation={config.activation}" if config.hidden_layers else text


def _num_outputs(header: Header, output: str, hidden_size: int) -> int:
    """Returns a head's number of outputs. The shape is checked before any array of this size is made."""
    shape = header.saved.get(output)
    if shape is None:
        raise UserError(
            f"{header.path} has {next(iter(header.saved))}, but not {output}, the output layer of a head; fetch the "
            "folder again, or leave the head out: --no_head."
        )
    if len(shape) != 2 or shape[0] < 1 or shape[1] != hidden_size:
        raise UserError(
            f"{header.path}: {output} has the shape {list(shape)}, and the trunk's hidden size is {hidden_size}; give "
            "the trunk it was trained on."
        )
    return shape[0]


def _default_kind(model_class: str, outputs: int) -> TaskKind:
    if model_class == SEQUENCE:
        return "regression" if outputs == 1 else "classification"
    return next(kind for kind, name in CLASS_OF_KIND.items() if name == model_class)


def _labels(given: PeftHead, record: HeadRecord | None, kind: TaskKind, outputs: int, where: str) -> tuple[str, ...]:
    """Returns the names of a head's labels."""
    labels = given.labels or (record.labels if record else ())
    if kind == "multiple_choice":
        return labels
    if kind in _OUTPUTS:
        if labels:
            raise UserError(f"{where} has a head for {kind}, which has no labels; leave out --labels.")
        return ()
    labels = labels or tuple(f"LABEL_{number}" for number in range(outputs))
    if len(labels) != outputs or len(set(labels)) != outputs:
        raise UserError(
            f"{where} has a head with {outputs} outputs, and the labels are {', '.join(labels[:10])}; give --labels "
            f"{outputs} different names."
        )
    return labels
