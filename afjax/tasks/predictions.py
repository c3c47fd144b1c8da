"""The predictions of a task model."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from afjax.data.splits import NO_ENTITIES
from afjax.display.html import Content, join, listed, shortened, table
from afjax.display.words import counted
from afjax.tasks.best_answers import Answer


@dataclasses.dataclass(frozen=True)
class Entity:
    """An entity in a text.

    Attributes:
      type: The entity's type.
      text: The entity's text.
      begin, end: The entity is ``row_text[begin:end]``. If the row is a list of words, ``row_text`` is the words joined
        with spaces.
      probability: Mean probability of the words' tags.
    """

    type: str
    text: str
    begin: int
    end: int
    probability: float


@dataclasses.dataclass(frozen=True)
class Predictions:
    """The predictions of a task model, in row order.

    Attributes:
      logits: float32 ``[rows, num_outputs]``. For multiple choice, ``[rows, choices]``; for span tasks,
        ``[rows, answers]``, the scores of ``answers``; for tagging, ``[rows, words, tags]``. Rows with fewer choices,
        answers or words are padded with the lowest float32.
      probabilities: float32, with the shape of the logits. They sum to 1 over the last axis, except for multi-label
        tasks, where each label has an independent probability. For regression, ``[rows, 0]``.
      labels: The name of the most likely label of each row. For multiple choice, the most likely choice's name, or its
        index from 0 as a string if choices have no names. For regression, the value. For span tasks, the best answer's
        text, or an empty string for "no answer". For multi-label tasks, a list of labels; for tagging, a list with each
        word's tag.
      fusion_attention: If requested, the attention over adapters in each slot, float32, averaged over the row's tokens
        without padding. For span tasks and tagging, the average is over all windows of the row.
      answers: For span tasks, the best answers to each row, best first; otherwise None.
      fusion_adapters: ``{slot: names per layer}``, the adapters along the last axis of ``fusion_attention``. All layers
        have the same adapters unless the fusion was pruned layer by layer.
      fusion_layers: The trunk's layers along the second axis of ``fusion_attention``.
      num_outputs: Number of logits in each row without padding; None if it is the same for all rows.
      confidences: The probability of each row's prediction; for tagging, the mean probability of its tags. None for
        regression.
      entities: For tagging, the entities in each row, in order; otherwise None.

    To show the first row's attention with one line per layer::

      pandas.DataFrame(
          predictions.fusion_attention["ffn"][0],
          index=predictions.fusion_layers,
          columns=predictions.fusion_adapters["ffn"][0],
      )

    Example:
      >>> import numpy as np
      >>> from afjax import Predictions
      >>> predictions = Predictions(
      ...     logits=np.array([[2.0, 0.0], [0.0, 2.0]], np.float32),
      ...     probabilities=np.array([[0.88, 0.12], [0.12, 0.88]], np.float32),
      ...     labels=["bad", "good"],
      ...     fusion_attention={"ffn": np.array([[[0.75, 0.25]], [[0.5, 0.5]]], np.float32)},
      ...     fusion_adapters={"ffn": (("entail", "paraphrase"),)},
      ...     fusion_layers=(0,),
      ... )
      >>> dict(zip(predictions.fusion_adapters["ffn"][0], predictions.fusion_attention["ffn"][0, 0].tolist()))
      {'entail': 0.75, 'paraphrase': 0.25}
    """

    logits: Float[np.ndarray, "rows ..."]
    probabilities: Float[np.ndarray, "rows ..."]
    labels: list[str] | list[float] | list[list[str]]
    fusion_attention: Mapping[str, Float[np.ndarray, "rows filled_layers num_adapters"]] = dataclasses.field(
        default_factory=dict
    )
    answers: list[list[Answer]] | None = None
    fusion_adapters: Mapping[str, tuple[tuple[str, ...], ...]] = dataclasses.field(default_factory=dict)
    fusion_layers: tuple[int, ...] = ()
    num_outputs: Int[np.ndarray, "rows"] | None = None
    confidences: Float[np.ndarray, "rows"] | None = None
    entities: list[list[Entity]] | None = None

    def __repr__(self) -> str:
        attention = "".join(
            f", attention over {listed(names[0])} in {slot}" for slot, names in self.fusion_adapters.items()
        )
        return f"<Predictions: {counted(len(self.labels), 'row')}, {self._summary()}{attention}>"

    def _repr_html_(self) -> str:
        """Renders the first rows and the mean attention over adapters as HTML tables."""
        numbers = range(min(len(self.labels), _SHOWN_ROWS))
        header = ["row", "prediction", *([] if self.confidences is None else ["probability"])]
        rows: list[list[Content]] = []
        for row in numbers:
            probability = [] if self.confidences is None else [f"{self.confidences[row]:.3f}"]
            rows.append([str(row), shortened(self.text_of(row), 200), *probability])
        more = f"; the first {len(numbers)}" if len(numbers) < len(self.labels) else ""
        tables = [
            table(header, rows, numbers=(2,), caption=f"{counted(len(self.labels), 'row')}, {self._summary()}{more}")
        ]
        for slot, names in self.fusion_adapters.items():
            # The layers of a pruned fusion can have different adapters.
            is_same = len(set(names)) == 1
            titles = names[0] if is_same else [f"adapter {number}" for number in range(len(names[0]))]
            means = self.fusion_attention[slot].mean(0)
            layer_rows: list[list[Content]] = []
            for layer, layer_names, shares in zip(self.fusion_layers, names, means, strict=True):
                cells = [f"{share:.3f}" for share in shares]
                if not is_same:
                    cells = [f"{name} {cell}" for name, cell in zip(layer_names, cells, strict=True)]
                layer_rows.append([str(layer), *cells])
            caption = f"mean attention over adapters, {slot}"
            tables.append(table(["layer", *titles], layer_rows, numbers=range(1, len(titles) + 1), caption=caption))
        return join(*tables).html

    def _summary(self) -> str:
        numbers = [label for label in self.labels if isinstance(label, float)]
        if numbers:
            return f"values from {min(numbers):.4g} to {max(numbers):.4g}"
        if self.entities is not None:
            types = Counter(entity.type for row_entities in self.entities for entity in row_entities).most_common()
            return f"entities {listed([f'{type_} ({count})' for type_, count in types]) or 'none'}"
        if self.answers is not None:
            return f"{sum(not label for label in self.labels)} without an answer"
        names = (name for label in self.labels for name in (label if isinstance(label, list) else [label]))
        counts = Counter(map(str, names)).most_common()
        return f"labels {listed([f'{label} ({count})' for label, count in counts])}"

    def as_json(self, row: int) -> dict[str, Any]:
        """Converts the prediction for a row to JSON-serializable values.

        Args:
          row: The row's index.

        Returns:
          ``logits`` (a list of numbers; for tagging, one list per word), ``label`` (a string, a number or a list) and
          ``probabilities`` (like ``logits``). Span tasks also have ``answers`` and tagging has ``entities``, which are
          lists of dicts with the fields of :class:`~afjax.tasks.best_answers.Answer` and :class:`Entity`.
        """
        count = None if self.num_outputs is None else self.num_outputs[row]
        values: dict[str, Any] = {
            "logits": self.logits[row, :count].tolist(),
            "label": self.labels[row],
            "probabilities": self.probabilities[row, :count].tolist(),
        }
        if self.answers is not None:
            values["answers"] = [dataclasses.asdict(answer) for answer in self.answers[row]]
        if self.entities is not None:
            values["entities"] = [dataclasses.asdict(entity) for entity in self.entities[row]]
        return values

    def text_of(self, row: int) -> str:
        """Formats the prediction for a row as text."""
        label = self.labels[row]
        if isinstance(label, float):
            return f"{label:.4g}"
        if self.entities is not None:
            return "; ".join(f"{entity.type}: {entity.text}" for entity in self.entities[row]) or NO_ENTITIES
        if isinstance(label, list):
            return ", ".join(label) or "(none)"
        return "(no answer)" if self.answers is not None and not label else label


# Number of rows to show in notebooks.
_SHOWN_ROWS = 10


def softmax(logits: Float[np.ndarray, "*batch num_outputs"]) -> Float[np.ndarray, "*batch num_outputs"]:
    """Computes the softmax over the last axis."""
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)
