"""Converts heads between Hugging Face's model classes and afjax.

A head in PEFT's files consists of the linear layers listed in :class:`~afjax.interop.model_heads.HeadLayout`. BERT's
classification head uses the trunk's pooler, but if the file has weights or LoRA for the pooler, the imported head gets
its own pooler.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from afjax.config.from_dict import check_fields
from afjax.config.heads import HeadConfig
from afjax.config.ranges import PositiveInt
from afjax.config.tasks import TaskConfig, TaskKind
from afjax.errors import UserError
from afjax.interop.heads import HeadRecord, head_tensors
from afjax.interop.model_heads import CLASS_OF_KIND, SEQUENCE, HeadLayout, ModelClasses
from afjax.interop.peft.families import POOLER, peft_family
from afjax.interop.peft.files import RECORD, Header
from afjax.interop.tensors import linear_shapes
from afjax.tasks.kinds import TASK_KINDS
from afjax.trees import Tree
from afjax.trunk.config import TrunkConfig

_DEFAULT_LENGTH = 128
# Task kinds with a fixed number of outputs.
_OUTPUTS: Mapping[TaskKind, int] = {"regression": 1, "multiple_choice": 1, "span": 2}


@dataclasses.dataclass(frozen=True)
class PeftHead:
    """Head metadata that PEFT's own files do not contain.

    If afjax exported the folder, the fields default to the recorded values.

    Attributes:
      kind: The task kind. Inferred from the model class by default: ``ForSequenceClassification`` means
        classification, or regression if there is one output.
      labels: Label names, in the order of the outputs. Default to ``LABEL_0``, ``LABEL_1`` and so on.
      max_length: Maximum number of tokens per row. Defaults to 128 or the trunk's maximum length, whichever is smaller.

    Raises:
      UserError: A field has the wrong type or an invalid value.

    Example:
      >>> from afjax.interop.peft import PeftHead
      >>> PeftHead(labels=("negative", "positive"))
      PeftHead(kind=None, labels=('negative', 'positive'), max_length=None)
    """

    kind: TaskKind | None = None
    labels: tuple[str, ...] = ()
    max_length: PositiveInt | None = None

    def __post_init__(self) -> None:
        check_fields(self, "head")


@dataclasses.dataclass(frozen=True)
class HeadPlan:
    """A head inferred from tensor names, shapes and settings, before loading.

    Attributes:
      layout: Names of the head's linear layers.
      record: The head's metadata.
      num_outputs: Number of outputs.
      pooler: Where the head's own pooler comes from: weights in the file (``saved``) or LoRA on the trunk's pooler
        (``lora``). Empty if the head does not have its own pooler.
    """

    layout: HeadLayout
    record: HeadRecord
    num_outputs: int
    pooler: str

    def shapes(self, hidden_size: int, prefix: str) -> dict[str, tuple[int, ...]]:
        """Computes the expected tensor shapes, by name."""
        modules = dict.fromkeys(self.layout.linear, hidden_size) | {self.layout.linear[-1]: self.num_outputs}
        if self.pooler == "saved":
            modules[prefix + POOLER] = hidden_size
        return linear_shapes(modules, hidden_size)


def plan_head(
    header: Header,
    family: ModelClasses,
    model_class: str,
    given: PeftHead,
    record: HeadRecord | None,
    *,
    name: str,
    trunk: TrunkConfig,
    prefix: str,
) -> HeadPlan:
    """Infers a head's architecture and task.

    Args:
      header: Tensor names and shapes.
      family: The trunk's family.
      model_class: The base model's class without the family's prefix. Empty if unknown.
      given: Head metadata from the user.
      record: Head metadata that afjax recorded, if it wrote the file.
      name: Name of the task, if it is not recorded.
      trunk: The trunk's config.
      prefix: Name prefix of the encoder's modules.

    Raises:
      UserError: afjax does not support the head, the task kind is unknown, or ``given``, ``record`` and the tensors
        contradict each other.
    """
    where = str(header.path)
    kind = given.kind or (record.task.kind if record else None)
    model_class = model_class or (CLASS_OF_KIND[kind] if kind else "")
    if not model_class:
        raise UserError(
            f"{where} has a head ({next(iter(header.saved))}), but adapter_config.json has neither task_type nor "
            f"auto_mapping; set --kind to one of {', '.join(CLASS_OF_KIND)}, or skip the head with --no_head."
        )
    layout = _layout(header, family, model_class)
    outputs = _num_outputs(header, f"{layout.linear[-1]}.weight", trunk.hidden_size)
    kind = kind or _default_kind(model_class, outputs)
    if CLASS_OF_KIND[kind] != model_class:
        raise UserError(
            f"{where} has the head of a {family.classes}{model_class}, which is not a {kind} head; set --kind to one "
            f"of {', '.join(other for other, name in CLASS_OF_KIND.items() if name == model_class)}."
        )
    if outputs != _OUTPUTS.get(kind, outputs):
        raise UserError(f"{where} has a head with {outputs} outputs; {kind} heads must have {_OUTPUTS[kind]}.")
    config, pooler = _with_pooler(layout.config, kind, header, prefix)
    if record is not None:
        pooled = TASK_KINDS[kind].reads == "pooled"
        if _chain(record.config, kind) != _chain(config, kind) or (pooled and record.config.pooling != "first"):
            raise UserError(
                f"The head in {where} does not match {RECORD} ({record.config!r}); remove {RECORD} if the weights are "
                "correct."
            )
    else:
        record = HeadRecord(
            config=config,
            task=TaskConfig(name=name),
            labels=(),
            metrics={},
            seed=0,
            max_length=min(_DEFAULT_LENGTH, trunk.max_length),
        )
    labels = _labels(given.labels or record.labels, kind, outputs, where)
    # The recorded label names and metric only apply to the recorded labels and kind.
    task = dataclasses.replace(
        record.task,
        kind=kind,
        labels=record.task.labels if labels == record.labels else (),
        metric=record.task.metric if kind == record.task.kind else "",
    )
    record = dataclasses.replace(record, task=task, labels=labels, max_length=given.max_length or record.max_length)
    return HeadPlan(layout, record, outputs, pooler)


def _layout(header: Header, family: ModelClasses, model_class: str) -> HeadLayout:
    """Returns the layout of a base model's head.

    Raises:
      UserError: afjax does not support the head, or the file lacks one of its layers.
    """
    where = str(header.path)
    if model_class not in family.heads:
        supported = ", ".join(family.classes + name for name in family.heads)
        raise UserError(
            f"{where} has the head of a {family.classes}{model_class} ({next(iter(header.saved))}); afjax can import "
            f"{f'the heads of {supported}' if supported else f'no head of a {family.classes} model'}. Skip the head "
            "with --no_head."
        )
    layout = family.heads[model_class]
    for module in layout.linear[:-1]:
        if f"{module}.weight" not in header.saved:
            saved = module.partition(".")[0]
            raise UserError(
                f"{where} has no weights of {module}, a layer of the head. PEFT only saves them if modules_to_save "
                f'lists "{saved}"; otherwise, the head cannot be restored. Train it again with this setting, or skip '
                "the head with --no_head."
            )
    return layout


def _with_pooler(config: HeadConfig, kind: TaskKind, header: Header, prefix: str) -> tuple[HeadConfig, str]:
    """Makes the pooler a part of the head if PEFT trained it.

    Returns:
      The head's config; and ``saved`` if the file has the pooler's weights, ``lora`` if it has LoRA for the pooler, or
      an empty string.
    """
    if TASK_KINDS[kind].reads != "pooled" or config.pooler != "trunk":
        return config, ""
    if f"{prefix}{POOLER}" in header.lora:
        return dataclasses.replace(config, pooler="head"), "lora"
    if f"{prefix}{POOLER}.weight" in header.saved:
        return dataclasses.replace(config, pooler="head"), "saved"
    return config, ""


def write_head(
    config: HeadConfig, tree: Tree, name: str, task: TaskConfig, family: str, prefix: str
) -> tuple[list[str], dict[str, np.ndarray]]:
    """Converts a head to PEFT's ``modules_to_save`` and tensors.

    Args:
      config: The head's config.
      tree: The head's parameters.
      name: The head's name, for error messages.
      task: The head's task.
      family: The trunk's family.
      prefix: Name prefix of the encoder's modules.

    Raises:
      UserError: The head's architecture does not match Hugging Face's model for the task.
    """
    classes, model_class = peft_family(family), CLASS_OF_KIND[task.kind]
    if model_class not in classes.heads:
        raise UserError(
            f'The head "{name}" cannot be exported, because the head of {classes.classes}{model_class} has layers that '
            "afjax's heads do not have. Export without it: --no_head, or head=None in Python."
        )
    layout = classes.heads[model_class]
    pooled = TASK_KINDS[task.kind].reads == "pooled"
    if pooled and config.pooling != "first":
        raise UserError(
            f'The head "{name}" uses the {config.pooling} of all tokens (head.pooling), but the heads of Hugging '
            'Face\'s models only use the first token. Train the head with head.pooling="first", or export without it: '
            "--no_head, or head=None in Python."
        )
    own_pooler = dataclasses.replace(layout.config, pooler="head")
    takes_pooler = pooled and layout.config.pooler == "trunk"
    writes_pooler = takes_pooler and _chain(config, task.kind) == _chain(own_pooler, task.kind)
    if not writes_pooler and _chain(config, task.kind) != _chain(layout.config, task.kind):
        wanted = [_settings(layout.config)] if pooled else ["head.hidden_layers=0"]
        wanted += [_settings(own_pooler)] if takes_pooler else []
        raise UserError(
            f'The head "{name}" has {_settings(config)}, but a {classes.classes}{model_class} has '
            f"{' or '.join(wanted)}. Train the head with these settings, or export without it: --no_head, or "
            "head=None in Python."
        )
    modules = [*([prefix + POOLER] if writes_pooler else []), *layout.linear]
    pooler_module = [POOLER.partition(".")[0]] if writes_pooler else []
    return [*pooler_module, *layout.modules], head_tensors(tree, task.scale, modules)


def _chain(config: HeadConfig, kind: TaskKind) -> tuple[bool, tuple[str, ...]]:
    """Returns whether a head uses the trunk's pooler, and the head's activations.

    The activations are those before the output layer.
    """
    hidden = (config.activation,) * config.hidden_layers
    if TASK_KINDS[kind].reads == "tokens":
        return False, hidden
    own_pooler: tuple[str, ...] = ("tanh",) if config.pooler == "head" else ()
    return config.pooler == "trunk", own_pooler + hidden


def _settings(config: HeadConfig) -> str:
    text = f"head.pooler={config.pooler} and head.hidden_layers={config.hidden_layers}"
    return f"{text} with head.activation={config.activation}" if config.hidden_layers else text


def _num_outputs(header: Header, output: str, hidden_size: int) -> int:
    """Returns a head's number of outputs.

    The shape is checked, so that no huge array is allocated later.
    """
    shape = header.saved.get(output)
    if shape is None:
        raise UserError(
            f"{header.path} has {next(iter(header.saved))}, but not {output}, the head's output layer; download the "
            "folder again, or skip the head with --no_head."
        )
    if len(shape) != 2 or shape[0] < 1 or shape[1] != hidden_size:
        raise UserError(
            f"{header.path}: {output} has the shape {list(shape)}, but the trunk's hidden size is {hidden_size}; use "
            "the trunk that the adapter was trained on."
        )
    return shape[0]


def _default_kind(model_class: str, outputs: int) -> TaskKind:
    if model_class == SEQUENCE:
        return "regression" if outputs == 1 else "classification"
    return next(kind for kind, name in CLASS_OF_KIND.items() if name == model_class)


def _labels(labels: tuple[str, ...], kind: TaskKind, outputs: int, where: str) -> tuple[str, ...]:
    """Checks that a head's label names match its outputs, and fills in default names."""
    if kind == "multiple_choice":
        return labels
    if kind in _OUTPUTS:
        if labels:
            raise UserError(f"{where} has a {kind} head, which has no labels; remove --labels.")
        return ()
    labels = labels or tuple(f"LABEL_{number}" for number in range(outputs))
    if len(labels) != outputs or len(set(labels)) != outputs:
        raise UserError(
            f"{where} has a head with {outputs} outputs, but the labels are {', '.join(labels[:10])}; set --labels to "
            f"{outputs} distinct names."
        )
    return labels
