"""What a fusion listens to (Pfeiffer 2021, section 5.1, figures 4 and 6): its softmax weights, as means or by token.

The mean over a split is that of its rows, each of which counts for the mean over its own tokens, padding left out.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from afjax.adapters.kinds import adapter_layers
from afjax.data.pieces import encode_texts, learn_template, plain_backend
from afjax.data.splits import AnyRows
from afjax.errors import UserError
from afjax.model.model import Model
from afjax.model.task_model import TaskModel
from afjax.tasks.load import Rows, rows_from_lists
from afjax.tasks.windows import TokenisedSpans
from afjax.trees import Tree

# The group of all rows, beside those of the labels.
ALL = "all rows"


@dataclasses.dataclass(frozen=True)
class Activations:
    """A fusion's mean softmax weights over a split.

    Attributes:
      fusion: The fusion's name.
      adapters: What it fuses, in order.
      num_rows: How many rows each group has: ``ALL``, and where asked for each label.
      means: ``{slot: {group: [num_layers, num_adapters]}}`` over all layers of the trunk; NaN where a layer does not
        have the adapter.
    """

    fusion: str
    adapters: tuple[str, ...]
    num_rows: Mapping[str, int]
    means: Mapping[str, Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class TokenActivations:
    """A fusion's softmax weights at every token of one text.

    Attributes:
      fusion, adapters: As in :class:`Activations`.
      tokens: The text as the trunk reads it.
      num_tokens: How many the whole text has; ``tokens`` are fewer where it was cut to the length in training.
      weights: ``{slot: [num_layers, num_tokens, num_adapters]}``, NaN where a layer does not have the adapter.
    """

    fusion: str
    adapters: tuple[str, ...]
    tokens: tuple[str, ...]
    num_tokens: int
    weights: Mapping[str, np.ndarray]


def mean_activations(
    task_model: TaskModel, rows: AnyRows, *, by_label: bool = False, batch_size: int = 32
) -> Activations:
    """Averages a fusion's softmax weights over a split, on the devices: memory does not grow with the rows.

    Args:
      task_model: With a fusion.
      rows: The split.
      by_label: Whether to average over the rows of each label as well.
      batch_size: Rows a step.

    Raises:
      UserError: No fusion; labels that cannot be told apart, or that are not the head's.
    """
    _check_fusion(task_model)
    groups = {ALL: np.ones(len(rows), bool)}
    if by_label:
        if not isinstance(rows, Rows) or task_model.task.kind != "classification":
            raise UserError(
                f'The task "{task_model.task.name}" is of the kind {task_model.task.kind}, whose rows have no classes '
                "to tell apart; leave out by_label."
            )
        task_model.check_labels(rows)
        labels = np.asarray(rows.labels)
        groups |= {name: labels == index for index, name in enumerate(task_model.labels) if (labels == index).any()}
    data = task_model.tokenised(rows)
    members = np.stack(list(groups.values()), -1)  # [rows, groups]
    weights = (members / members.sum(0)).astype(np.float32)
    if isinstance(data, TokenisedSpans):
        # A row's windows share its weight as they share its tokens.
        share = data.lengths / np.bincount(data.row_of, weights=data.lengths)[data.row_of]
        weights = (weights[data.row_of] * share[:, None]).astype(np.float32)
    sums = task_model.sum_over_rows(_weighted_step, data, weights, batch_size=batch_size)
    means = {
        slot: {group: _all_layers(task_model, slot, of_slot[number]) for number, group in enumerate(groups)}
        for slot, of_slot in sums.items()
    }
    return Activations(
        task_model.model.fusion_name,
        tuple(name for name, _ in task_model.model.adapters),
        {group: int(of_group.sum()) for group, of_group in groups.items()},
        means,
    )


def token_activations(task_model: TaskModel, text: str, text_b: str | None = None) -> TokenActivations:
    """A fusion's softmax weights at every token of one text, or of a pair of texts.

    Args:
      task_model: With a fusion.
      text: The first text; of multiple choice the context, of span the question.
      text_b: The second; of multiple choice one choice, of span the context.

    Raises:
      UserError: No fusion, one text where the task's kind needs two, or a context of several windows.
    """
    _check_fusion(task_model)
    kind = task_model.task.kind
    if text_b is None and kind in ("multiple_choice", "span"):
        second = "a choice" if kind == "multiple_choice" else "a context"
        raise UserError(f'The task "{task_model.task.name}" is of the kind {kind}; give {second} as text_b.')
    second_text: Any = [text_b] if kind == "multiple_choice" else text_b
    data = task_model.tokenised(rows_from_lists([text if text_b is None else (text, second_text)], kind=kind))
    if len(data.offsets) != 2:
        raise UserError(f"The context does not fit a window of {task_model.max_length} tokens; give a shorter one.")
    tokenizer = task_model.trunk.tokenizer()
    names = tokenizer.convert_ids_to_tokens(data.tokens.tolist())
    backend, texts = plain_backend(tokenizer), [text] if text_b is None else [text, text_b]
    special = learn_template(backend, tokenizer, pair=len(texts) == 2).num_special
    whole = int(encode_texts(backend, texts).offsets[-1]) + special
    attention = task_model.over_rows(_token_step, data, batch_size=1)
    weights = {
        slot: np.stack([_all_layers(task_model, slot, of_token) for of_token in of_slot[0, : len(names)]], 1)
        for slot, of_slot in attention.items()
    }
    members = tuple(name for name, _ in task_model.model.adapters)
    return TokenActivations(task_model.model.fusion_name, members, tuple(names), whole, weights)


def _check_fusion(task_model: TaskModel) -> None:
    if not task_model.model.fusion_name:
        raise UserError(
            f'The head "{task_model.model.head_name}" is used without a fusion, which alone has activations.'
        )


@functools.partial(jax.jit, static_argnums=0)
def _weighted_step(model: Model, params: Tree, batch: Mapping[str, Any]) -> dict[str, jax.Array]:
    """``{slot: [groups, layers, adapters]}``: the rows' mean attention, summed by their weights in each group."""
    means = model(params, batch, fusion_attention=True).row_attention(batch["mask"])
    return {
        slot: jnp.einsum("bg,bln->gln", batch["weights"], of_slot, precision="highest")
        for slot, of_slot in means.items()
    }


@functools.partial(jax.jit, static_argnums=0)
def _token_step(model: Model, params: Tree, batch: Mapping[str, Any]) -> dict[str, jax.Array]:
    """``{slot: [batch, length, layers, adapters]}``."""
    attention = model(params, batch, fusion_attention=True).fusion_attention
    return {slot: of_slot.transpose(1, 2, 0, 3).astype(jnp.float32) for slot, of_slot in attention.items()}


def _all_layers(task_model: TaskModel, slot: str, weights: np.ndarray) -> np.ndarray:
    """``[layers with adapters, adapters that they keep]`` as ``[num_layers, num_adapters]``, NaN in the gaps."""
    model = task_model.model
    config, kept = model.adapters[0][1], model.fusion.kept
    whole = np.full((model.trunk.num_layers, len(model.adapters)), np.nan, np.float32)
    for position, layer in enumerate(adapter_layers(config, model.trunk.num_layers)):
        numbers = range(len(model.adapters)) if kept is None else kept[config.slots.index(slot)][position]
        whole[layer, list(numbers)] = weights[position]
    return whole
