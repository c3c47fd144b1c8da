"""Fusion activations: softmax weights over adapters (Pfeiffer 2021, section 5.1).

The weights are averaged over a split, or computed for every token of a single input. For a split, they are averaged
first over the tokens of each row (excluding padding), then over the rows.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from afjax.adapters.kinds import adapter_layers
from afjax.data.pieces import encode_texts, learn_template, plain_backend
from afjax.data.splits import AnyRows
from afjax.display.html import listed
from afjax.display.words import counted
from afjax.errors import UserError
from afjax.model.model import Model
from afjax.model.task_model import TaskModel
from afjax.tasks.kinds import TASK_KINDS
from afjax.tasks.load import rows_from_lists
from afjax.trees import Tree

# Name of the group that contains every row. The other groups are named after their label.
ALL = "all rows"


@dataclasses.dataclass(frozen=True)
class Activations:
    """A fusion's mean softmax weights over a split.

    Attributes:
      fusion: The fusion's name.
      adapters: The names of the fused adapters, in order.
      num_rows: The number of rows in each group. The groups are ``ALL`` and, if requested, each label.
      means: ``{slot: {group: weights}}``, for all trunk layers. NaN if a layer lacks the adapter.
    """

    fusion: str
    adapters: tuple[str, ...]
    num_rows: Mapping[str, int]
    means: Mapping[str, Mapping[str, Float[np.ndarray, "num_layers num_adapters"]]]

    def __repr__(self) -> str:
        groups = listed([f"{name} ({number})" for name, number in self.num_rows.items()])
        return f"<Activations: {_subject(self.fusion, self.adapters, self.means)}, mean of {groups}>"


@dataclasses.dataclass(frozen=True)
class TokenActivations:
    """A fusion's softmax weights at every token of a single input.

    Attributes:
      fusion: The fusion's name.
      adapters: The names of the fused adapters, in order.
      tokens: The trunk's input tokens, truncated to the training length.
      num_tokens: The number of tokens before truncation.
      weights: ``{slot: weights}``. NaN if a layer lacks the adapter.
    """

    fusion: str
    adapters: tuple[str, ...]
    tokens: tuple[str, ...]
    num_tokens: int
    weights: Mapping[str, Float[np.ndarray, "num_layers tokens num_adapters"]]

    def __repr__(self) -> str:
        tokens = counted(len(self.tokens), "token")
        return f"<TokenActivations: {_subject(self.fusion, self.adapters, self.weights)}, {tokens}>"


def mean_activations(
    task_model: TaskModel, rows: AnyRows, *, by_label: bool = False, batch_size: int = 32
) -> Activations:
    """Averages a fusion's softmax weights over a split.

    Args:
      task_model: A model with a fusion.
      rows: The rows of the split.
      by_label: Whether to also average over each label's rows separately.
      batch_size: Rows per step.

    Raises:
      UserError: The model has no fusion; or ``by_label`` is set, but the task is not classification or its labels do
        not match the head's.
    """
    _check_fusion(task_model)
    groups = {ALL: np.ones(len(rows), bool)}
    if by_label:
        if not TASK_KINDS[task_model.task.kind].has_classes:
            raise UserError(
                f'The task "{task_model.task.name}" is of the kind {task_model.task.kind}, which has no class labels; '
                "leave out by_label."
            )
        task_model.check_labels(rows)
        labels = np.asarray(rows.labels)
        groups |= {name: labels == index for index, name in enumerate(task_model.labels) if (labels == index).any()}
    data = task_model.tokenized(rows)
    means: dict[str, dict[str, np.ndarray]] = {}
    for slot, values in task_model.over_rows(_row_step, data, batch_size=batch_size).items():
        weights = data.per_row(values)  # [rows, filled_layers, num_adapters]
        means[slot] = {
            group: _all_layers(task_model, slot, weights.mean(0, dtype=np.float64, where=mask[:, None, None]))
            for group, mask in groups.items()
        }
    return Activations(
        task_model.model.fusion_name,
        tuple(name for name, _ in task_model.model.adapters),
        {group: int(mask.sum()) for group, mask in groups.items()},
        means,
    )


def token_activations(task_model: TaskModel, text: str, text_b: str | None = None) -> TokenActivations:
    """Computes a fusion's softmax weights at every token of a text or text pair.

    Args:
      task_model: A model with a fusion.
      text: The first text: the context for multiple choice, the question for span.
      text_b: The second text: one choice for multiple choice, the context for span.

    Raises:
      UserError: The model has no fusion, the task's kind needs two texts, or the context does not fit in one window.
    """
    _check_fusion(task_model)
    kind = TASK_KINDS[task_model.task.kind]
    if text_b is None and kind.text.second_text:
        raise UserError(
            f'The task "{task_model.task.name}" is of the kind {kind.name}; pass {kind.text.second_text} as text_b.'
        )
    second_text: Any = [text_b] if kind.has_choices else text_b
    data = task_model.tokenized(rows_from_lists([text if text_b is None else (text, second_text)], kind=kind.name))
    if len(data.offsets) != 2:
        raise UserError(f"The context does not fit in a window of {task_model.max_length} tokens; shorten it.")
    tokenizer = task_model.trunk.tokenizer()
    names = tokenizer.convert_ids_to_tokens(data.tokens.tolist())
    backend, texts = plain_backend(tokenizer), [text] if text_b is None else [text, text_b]
    special = learn_template(backend, tokenizer, pair=len(texts) == 2).num_special
    num_tokens = int(encode_texts(backend, texts).offsets[-1]) + special
    attention = task_model.over_rows(_token_step, data, batch_size=1)
    weights = {
        slot: np.stack(
            [_all_layers(task_model, slot, token_weights) for token_weights in slot_weights[0, : len(names)]], 1
        )
        for slot, slot_weights in attention.items()
    }
    members = tuple(name for name, _ in task_model.model.adapters)
    return TokenActivations(task_model.model.fusion_name, members, tuple(names), num_tokens, weights)


def _subject(fusion: str, adapters: Sequence[str], slots: Iterable[str]) -> str:
    return f"fusion {fusion} of {counted(len(adapters), 'adapter')} {listed(adapters)} in {', '.join(slots)}"


def _check_fusion(task_model: TaskModel) -> None:
    if not task_model.model.fusion_name:
        raise UserError(
            f'The head "{task_model.model.head_name}" is used without a fusion, and only fusions have activations.'
        )


@functools.partial(jax.jit, static_argnums=0)
def _row_step(
    model: Model, params: Tree, batch: Mapping[str, Any]
) -> dict[str, Float[jax.Array, "batch filled_layers num_adapters"]]:
    """Computes each row's mean attention to adapters, by slot."""
    return model(params, batch, fusion_attention=True).row_attention(batch["mask"])


@functools.partial(jax.jit, static_argnums=0)
def _token_step(
    model: Model, params: Tree, batch: Mapping[str, Any]
) -> dict[str, Float[jax.Array, "batch length filled_layers num_adapters"]]:
    """Computes the attention to adapters at every token, by slot."""
    attention = model(params, batch, fusion_attention=True).fusion_attention
    return {
        slot: slot_attention.transpose(1, 2, 0, 3).astype(jnp.float32) for slot, slot_attention in attention.items()
    }


def _all_layers(
    task_model: TaskModel, slot: str, weights: Float[np.ndarray, "filled_layers kept_adapters"]
) -> Float[np.ndarray, "num_layers num_adapters"]:
    """Expands weights to all layers and adapters, filling the gaps with NaN."""
    model = task_model.model
    config, kept = model.adapters[0][1], model.fusion.kept
    expanded = np.full((model.trunk.num_layers, len(model.adapters)), np.nan, np.float32)
    for position, layer in enumerate(adapter_layers(config, model.trunk.num_layers)):
        numbers = range(len(model.adapters)) if kept is None else kept[config.slots.index(slot)][position]
        expanded[layer, list(numbers)] = weights[position]
    return expanded
