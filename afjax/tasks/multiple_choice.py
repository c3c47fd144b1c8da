"""Multiple-choice tasks: each row has several choices and exactly one is correct."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from afjax.config.tasks import TaskConfig
from afjax.data.columns import check_text
from afjax.data.sources.files import shorten
from afjax.data.sources.kind import SplitSource
from afjax.data.splits import ChoiceRows
from afjax.data.tokenization import TokenizedRows
from afjax.errors import UserError
from afjax.tasks.choice_columns import check_choices, choice_index, choices_of, context_of, pick_choices
from afjax.tasks.classification import errors, losses, name_outputs
from afjax.tasks.kind import Form, KindSpec, KindText, LabelReading
from afjax.tasks.predictions import Predictions, softmax
from afjax.tasks.texts import given_names, tokenize_texts
from afjax.tasks.weighted_scores import Weighted, mean_scores


def read(task: TaskConfig, source: SplitSource, labels: LabelReading) -> ChoiceRows:
    """Loads rows from a source; see ``KindSpec.read``."""
    names = given_names(task, source, labels).names
    rows = pick_choices(task, source, label_names=names, labeled=labels.required)
    return rows if source.has_questions else dataclasses.replace(rows, has_question=None)


def from_lists(texts: list[Any], labels: list[Any] | None, label_names: tuple[str, ...]) -> ChoiceRows:
    """Builds rows from lists; see ``KindSpec.from_lists``.

    A text is a pair of a context and its list of choices.
    """
    contexts, choices = [], []
    for row, text in enumerate(texts):
        if not (isinstance(text, (tuple, list)) and len(text) == 2 and isinstance(text[0], str)):
            raise UserError(f"texts:{row} is {shorten(text)}; it must be a pair of a context and its list of choices.")
        check_text(f"texts:{row}", text[0])
        contexts.append(text[0])
        choices.append(check_choices(f"texts:{row}", text[1]))
    if labels is None:
        return ChoiceRows(contexts, choices, None, label_names)
    indices = [
        choice_index(f"texts:{row}", label, len(row_choices), label_names)
        for row, (label, row_choices) in enumerate(zip(labels, choices, strict=True))
    ]
    return ChoiceRows(contexts, choices, np.array(indices, np.int32), label_names)


def forms(task: TaskConfig, text_columns: int | None) -> list[Form]:
    """Lists the supported input columns for prediction; see ``KindSpec.forms``."""
    context = task.text_a or "context"
    question = task.text_b or ("question" if context != "question" else "")
    task_form = Form((context, question) if question else (context,), task.choices or ("choices",))
    default_form = Form(("context", "question"), ("choices",))
    # If the number of texts is unknown, the question is optional.
    allowed = {1: (1,), 2: (2,)}.get(text_columns or 0, (2, 1))
    return [Form(form.texts[:length], form.choices) for form in (task_form, default_form) for length in allowed]


def pick(place: str, row: dict[str, Any], form: Form) -> Any:
    """Extracts the context (with the question) and choices; see ``KindSpec.pick``."""
    return context_of(place, row, form.texts), choices_of(place, row, form.choices)


def predict(
    logits: Float[np.ndarray, "rows choices"], data: TokenizedRows, task: TaskConfig, names: Sequence[str]
) -> Predictions:
    """Predicts each row's most likely choice.

    The logits of missing choices must be the dtype's lowest value.
    """
    assert data.choices is not None, "tokenized choices"
    labels, probabilities = name_outputs(logits, names), softmax(logits)
    return Predictions(
        logits, probabilities, labels, num_outputs=np.diff(data.choices), confidences=probabilities.max(-1)
    )


def weighted(predictions: Predictions, labels: Int[np.ndarray, "rows"], task: TaskConfig) -> Weighted:
    """Prepares the scores as a function of row weights."""
    return mean_scores({"accuracy": 1 - errors(predictions, labels, task)})


KIND = KindSpec(
    name="multiple_choice",
    # Each choice is encoded as a separate sequence, so the head has a single output, which is the choice's logit.
    num_outputs=lambda label_names: 1,
    # The logits of missing choices are the dtype's lowest value, so the loss is over a row's own choices.
    losses=losses,
    has_choices=True,
    metrics=("accuracy",),
    read=read,
    from_lists=from_lists,
    forms=forms,
    pick=pick,
    tokenize=tokenize_texts,
    predict=predict,
    errors=errors,
    weighted=weighted,
    text=KindText(
        pipeline_tag="multiple-choice",
        row='{"context": "...", "choices": ["...", "..."]}',
        texts='[("A context.", ["A choice.", "Another."])])',
        logits="one per choice; the lowest float32 for choices without tokens",
        per_output=" for each choice",
        second_text="a choice",
    ),
)
