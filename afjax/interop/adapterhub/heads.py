"""Converts head settings and tensors between AdapterHub's format and afjax's.

A flex head is a torch ``Sequential`` with dropout before each linear layer and an activation after each linear layer
except the last. Its linear layers therefore have the indices 1, 4, 7, ..., or 1, 3, 5, ... without activations. A
static head is the built-in head of a Hugging Face model and keeps that model's tensor names.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from afjax.config.from_dict import check_value, from_dict, to_dict
from afjax.config.heads import HeadConfig, stored_head
from afjax.config.ranges import Proportion
from afjax.config.tasks import TaskConfig, TaskKind
from afjax.errors import UserError
from afjax.interop.adapterhub.adapter_settings import ACTIVATIONS, TO_ACTIVATIONS
from afjax.interop.adapterhub.families import LIBRARY_FAMILIES
from afjax.interop.adapterhub.files import OWN, Part
from afjax.interop.heads import HeadRecord, head_params, head_tensors
from afjax.interop.model_heads import CHOICE, MODEL_CLASSES, SEQUENCE, SPAN, TOKEN, HeadLayout, check_trunk_fields
from afjax.interop.tensors import check_shapes, linear_shapes
from afjax.tasks.kinds import TASK_KINDS
from afjax.trees import Tree
from afjax.trunk.config import TrunkConfig
from afjax.trunk.pretrained import Trunk

_KINDS: Mapping[str, TaskKind] = {
    "classification": "classification",
    "multiple_choice": "multiple_choice",
    "question_answering": "span",
    "multilabel_classification": "multi_label",
    "tagging": "tagging",
}
_TYPES: Mapping[TaskKind, str] = {**{kind: name for name, kind in _KINDS.items()}, "regression": "classification"}

# Maximum number of labels. Files are not trusted, and a huge number would exhaust the memory.
MAX_OUTPUTS = 2**20
_HEAD_TYPES = {SEQUENCE: "classification", CHOICE: "multiple_choice", TOKEN: "tagging", SPAN: "question_answering"}
# The heads of Hugging Face's models, by class name: the type of the equivalent flex head, and the layout.
_STATIC: Mapping[str, tuple[str, HeadLayout]] = {
    f"{MODEL_CLASSES[family].classes}{ending}": (_HEAD_TYPES[ending], layout)
    for family in LIBRARY_FAMILIES
    for ending, layout in MODEL_CLASSES[family].heads.items()
}
_DEFAULT_LENGTH = 128


def read_head(part: Part, name: str, trunk: Trunk) -> tuple[HeadRecord, Tree]:
    """Converts a head from the library's format.

    The task is called ``name`` unless afjax wrote the part and recorded the task.

    Returns:
      The head's metadata and its parameters (float32).

    Raises:
      UserError: afjax does not support the head, or the tensors do not match its settings and the trunk.
    """
    if part.envelope.get("config") is None:
        settings, layout = _static_settings(part, trunk)
        kind, labels, outputs = _outputs(settings, part.where)
        modules, config = layout.linear, layout.config
    else:
        settings, modules = _flex_settings(part)
        kind, labels, outputs = _outputs(settings, part.where)
        config = _config(settings, kind, part.where).with_pooling("first")
    own_fields = part.own
    task = TaskConfig(name=name, kind=kind)
    if own_fields:
        config = stored_head(own_fields.get("config", {}), f"{part.where}: {OWN}.config")
        task = from_dict(TaskConfig, own_fields.get("task", {}), f"{part.where}: {OWN}.task")
        choices = settings.get("num_choices")
        # The task's label names only apply to the recorded labels.
        task = dataclasses.replace(task, labels=task.labels if task.labels == labels else ())
        if head_settings(config, task, labels, choices, part.name) != {**settings, "label2id": _label_ids(labels)}:
            raise UserError(f'{part.where}: config and {OWN}.config disagree; remove "{OWN}" if config is correct.')
    tensors = _tensors(part, modules, outputs, trunk.config)
    max_length = own_fields.get("max_length", min(_DEFAULT_LENGTH, trunk.config.max_length))
    record = HeadRecord(
        config=config,
        task=task,
        labels=labels,
        max_length=check_value(int, max_length, f"{part.where}: {OWN}.max_length"),
        metrics=part.facts.metrics,
        seed=part.facts.seed,
        text_columns=own_fields["text_columns"] if own_fields.get("text_columns") in (1, 2) else None,
    )
    return record, head_params(record, tensors, modules)


def write_head(
    config: HeadConfig, tree: Tree, name: str, task: TaskConfig, labels: tuple[str, ...], num_choices: int | None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Converts a head to the library's settings and tensors.

    Raises:
      UserError: The library does not support the head, or the number of choices is unknown or does not apply.
    """
    if num_choices is not None:
        if task.kind != "multiple_choice":
            raise UserError(f'--num_choices is for multiple-choice heads; the head "{name}" is for {task.kind}.')
        if labels and num_choices != len(labels):
            raise UserError(f'The head "{name}" has {len(labels)} named choices; remove --num_choices={num_choices}.')
        if num_choices < 1:
            raise UserError(f"--num_choices is {num_choices}; it must be at least 1.")
    settings = head_settings(config, task, labels, num_choices, name)
    modules = [f"heads.{name}.{3 * number + 1}" for number in range(settings["layers"])]
    return settings, head_tensors(tree, task.scale, modules)


def head_settings(
    config: HeadConfig, task: TaskConfig, labels: tuple[str, ...], num_choices: int | None, name: str
) -> dict[str, Any]:
    """Converts a head's config and task to the library's settings.

    Raises:
      UserError: The library does not support the head, or the number of choices is unknown.
    """
    pooled = TASK_KINDS[task.kind].reads == "pooled"
    if pooled and config.pooling != "first":
        raise UserError(
            f'The head "{name}" uses the {config.pooling} of all tokens (head.pooling), but AdapterHub\'s heads only '
            'use the first token. Train the head with head.pooling="first", or export without it: --no_head, or '
            "head=None in Python."
        )
    own_pooler = pooled and config.pooler == "head"
    if own_pooler and config.hidden_layers and config.activation != "tanh":
        raise UserError(
            f'The head "{name}" has a pooler with tanh and hidden layers with {config.activation}, but AdapterHub\'s '
            "heads only support one activation."
        )
    settings: dict[str, Any] = {
        "head_type": _TYPES[task.kind],
        "layers": 1 + config.hidden_layers + own_pooler,
        "activation_function": "tanh" if own_pooler else TO_ACTIVATIONS[config.activation],
        "label2id": _label_ids(labels),
        "dropout_prob": config.dropout,
    }
    if pooled:
        settings["use_pooler"] = config.pooler == "trunk"
    if task.kind == "multiple_choice":
        choices = num_choices or len(labels)
        if not choices:
            raise UserError(
                f'The head "{name}" does not record the number of choices per row, which AdapterHub requires; set it '
                "with --num_choices."
            )
        return {**settings, "num_choices": choices}
    settings["num_labels"] = TASK_KINDS[task.kind].num_outputs(labels)
    return {**settings, "bias": True} if pooled else settings


def own_head(record: HeadRecord) -> dict[str, Any]:
    """Returns afjax's extra fields in a head's file, for :func:`read_head`."""
    values = to_dict(record.as_exported())
    # The library's settings have the labels.
    return {name: value for name, value in values.items() if name != "labels" and value is not None}


def _static_settings(part: Part, trunk: Trunk) -> tuple[dict[str, Any], HeadLayout]:
    """Returns the type and labels of a Hugging Face model's head, as in a flex head's settings, and its layout."""
    model = str(part.envelope.get("model_class"))
    if model not in _STATIC:
        raise UserError(
            f"{part.where} has the head of a {model}; afjax supports flex heads and the heads of {', '.join(_STATIC)}."
        )
    head_type, layout = _STATIC[model]
    check_trunk_fields(layout, model, trunk)
    label_ids = part.envelope.get("label2id")
    named = len(label_ids) if isinstance(label_ids, Mapping) else 0
    count = part.envelope.get("num_labels") or named or 2
    # For a multiple-choice head, num_labels is the number of choices, which have no names.
    has_labels = head_type != "multiple_choice" and count != 1
    return {"head_type": head_type, "num_labels": count, "label2id": label_ids if has_labels else None}, layout


def _flex_settings(part: Part) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns a flex head's settings and its linear layers' names."""
    given = part.envelope["config"]
    if not isinstance(given, Mapping):
        raise UserError(f"{part.where} has no head config; download it again.")
    layers = given.get("layers")
    # The file is not trusted, so check the numbers before making a list of that length.
    if type(layers) is not int or not 1 <= layers <= len(part.tensors):
        raise UserError(
            f"{part.where} has layers={layers!r}, but {len(part.tensors)} tensors; it must be the number of linear "
            "layers."
        )
    step = 3 if given.get("activation_function") else 2
    return dict(given), tuple(f"heads.{part.name}.{step * layer + 1}" for layer in range(layers))


def _outputs(settings: Mapping[str, Any], where: str) -> tuple[TaskKind, tuple[str, ...], int]:
    """Returns the task kind, the label names (in output order) and the output count."""
    head_type = str(settings.get("head_type"))
    if head_type not in _KINDS:
        raise UserError(f'{where} has a head of type "{head_type}"; afjax supports {", ".join(_KINDS)}.')
    kind = _KINDS[head_type]
    if kind == "multiple_choice":
        return kind, _labels(settings, None, where), 1
    count = settings.get("num_labels", 2)
    if type(count) is not int or not 1 <= count <= MAX_OUTPUTS:
        raise UserError(f"{where} has num_labels={count!r}; it must be from 1 to {MAX_OUTPUTS}.")
    if kind == "span":
        if count != 2:
            raise UserError(f"{where} has num_labels={count}; question-answering heads must have 2.")
        return kind, (), 2
    if kind == "classification" and count == 1:
        return "regression", (), 1
    return kind, _labels(settings, count, where) or tuple(f"LABEL_{number}" for number in range(count)), count


def _labels(settings: Mapping[str, Any], count: int | None, where: str) -> tuple[str, ...]:
    """Returns the label names ordered by index. Empty if the head has none."""
    given = settings.get("label2id")
    if not given:
        return ()
    if not isinstance(given, Mapping):
        raise UserError(f"{where} has label2id={given!r}; it must map label names to indices.")
    labels_by_number = {number: str(label) for label, number in given.items() if type(number) is int}
    if sorted(labels_by_number) != list(range(len(given))) or count not in (None, len(given)):
        raise UserError(
            f"{where} has label2id={dict(given)}, which does not number {count or 'its'} labels consecutively from 0."
        )
    if "" in labels_by_number.values():
        raise UserError(f"{where} has label2id={dict(given)}, which has an empty label name.")
    return tuple(labels_by_number[number] for number in range(len(given)))


def _label_ids(labels: tuple[str, ...]) -> dict[str, int] | None:
    return {label: number for number, label in enumerate(labels)} or None


def _config(settings: Mapping[str, Any], kind: TaskKind, where: str) -> HeadConfig:
    hidden, activation = settings["layers"] - 1, settings.get("activation_function")
    if hidden and not activation:
        raise UserError(
            f"{where} has {settings['layers']} layers without an activation between them, which afjax does not support."
        )
    activation = str(activation or "tanh").lower()
    if activation not in ACTIVATIONS:
        raise UserError(f'{where} has the activation "{activation}"; afjax supports {", ".join(ACTIVATIONS)}.')
    rate = check_value(Proportion | None, settings.get("dropout_prob"), f"{where}: dropout_prob")
    function = ACTIVATIONS[activation]
    if TASK_KINDS[kind].reads == "tokens":
        return HeadConfig(hidden_layers=hidden, activation=function, dropout=rate)
    if settings.get("use_pooler"):
        return HeadConfig(pooler="trunk", hidden_layers=hidden, activation=function, dropout=rate)
    if hidden and function == "tanh":
        return HeadConfig(pooler="head", hidden_layers=hidden - 1, dropout=rate)
    return HeadConfig(pooler="none", hidden_layers=hidden, activation=function, dropout=rate)


def _tensors(part: Part, modules: tuple[str, ...], outputs: int, trunk: TrunkConfig) -> dict[str, np.ndarray]:
    """Returns the linear layers' tensors.

    Raises:
      UserError: Tensors are missing, unexpected or of the wrong shape.
    """
    tensors, settings = dict(part.tensors), part.envelope.get("config")
    if settings is not None:
        # The file may also contain heads whose names start with this head's name.
        tensors = {key: tensor for key, tensor in tensors.items() if key.split(".")[1:2] == [part.name]}
        if not settings.get("bias", True):
            tensors.setdefault(f"{modules[-1]}.bias", np.zeros(outputs, np.float32))
    expected = linear_shapes(dict.fromkeys(modules, trunk.hidden_size) | {modules[-1]: outputs}, trunk.hidden_size)
    check_shapes(part.where, expected, {key: tensor.shape for key, tensor in tensors.items()})
    return tensors
