"""Span tasks: each row's answer is a span of its context.

:mod:`afjax.tasks.windows` splits long contexts into windows, and :mod:`afjax.tasks.best_answers` decodes answers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Float, Float64

from afjax.config.tasks import TaskConfig
from afjax.data.columns import check_text, text_of
from afjax.data.sources.files import shorten
from afjax.data.sources.kind import SplitSource
from afjax.data.splits import SpanRows
from afjax.data.tokenization import TokenizedRows
from afjax.errors import UserError
from afjax.tasks.best_answers import best_answers
from afjax.tasks.kind import Form, KindSpec, KindText, LabelReading
from afjax.tasks.metrics import span_scores
from afjax.tasks.predictions import Predictions, softmax
from afjax.tasks.span_columns import check_answers, no_answer_error, pick_spans
from afjax.tasks.weighted_scores import Weighted, mean_scores
from afjax.tasks.windows import TokenizedSpans, tokenize_spans
from afjax.trees import AnyArray

# The gold answers of each row, as pairs of a text and its start in the context; see SpanRows.
Answers = Sequence[tuple[tuple[str, int], ...]]


def losses(logits: Float[AnyArray, "batch length num_outputs"], batch: Mapping[str, Any]) -> Float[Array, "batch"]:
    """Averages the cross-entropies of the answer's first and last token in each row.

    The first output scores each token as the answer's first token, and the second output as its last.
    """
    tokens = jnp.where(batch["mask"][..., None], logits[..., :2], jnp.finfo(logits.dtype).min)
    return optax.softmax_cross_entropy_with_integer_labels(tokens, batch["labels"], axis=1).mean(-1)


def read(task: TaskConfig, source: SplitSource, labels: LabelReading) -> SpanRows:
    """Loads rows from a source; see ``KindSpec.read``."""
    return pick_spans(task, source, labeled=labels.required)


def from_lists(texts: list[Any], labels: list[Any] | None, label_names: tuple[str, ...]) -> SpanRows:
    """Builds rows from lists; see ``KindSpec.from_lists``.

    A text is a pair of a question and its context.
    """
    for row, text in enumerate(texts):
        if not (isinstance(text, (tuple, list)) and len(text) == 2 and all(isinstance(part, str) for part in text)):
            raise UserError(f"texts:{row} is {shorten(text)}; it must be a pair of a question and its context.")
        for part in text:
            check_text(f"texts:{row}", part)
    questions, contexts = (list(column) for column in zip(*texts, strict=True))
    ids = [str(row) for row in range(len(texts))]
    if labels is None:
        return SpanRows(questions, contexts, None, ids=ids)
    answers = [
        check_answers(f"texts:{row}", label, context, no_answer=True)
        for row, (label, context) in enumerate(zip(labels, contexts, strict=True))
    ]
    return SpanRows(questions, contexts, answers, ids=ids)


def check_labels(rows: SpanRows, task: TaskConfig, name: str) -> None:
    """Raises UserError if a question is unanswerable but the task does not allow it; see ``KindSpec.check_labels``."""
    for row, answers in enumerate(rows.labels or ()):
        if not answers and not task.span.no_answer:
            raise no_answer_error(f"Row {row + 1} of {name}")


def forms(task: TaskConfig, text_columns: int | None) -> list[Form]:
    """Lists the supported input columns for prediction; see ``KindSpec.forms``."""
    return [Form((task.text_b or "question", task.text_a or "context")), Form(("question", "context"))]


def pick(place: str, row: dict[str, Any], form: Form) -> Any:
    """Extracts the question and context; see ``KindSpec.pick``."""
    return tuple(text_of(place, row, name) for name in form.texts)


def predict(
    logits: Float[np.ndarray, "windows length 2"], data: TokenizedRows, task: TaskConfig, names: Sequence[str]
) -> Predictions:
    """Predicts the best answers to each row."""
    assert isinstance(data, TokenizedSpans), "span tasks are tokenized into windows"
    answers = best_answers(logits, data, task.span)
    counts = np.array([len(row_answers) for row_answers in answers])
    answer_scores = np.full((len(answers), counts.max()), np.finfo(np.float32).min, np.float32)
    for row, row_answers in enumerate(answers):
        answer_scores[row, : len(row_answers)] = [answer.score for answer in row_answers]
    return Predictions(
        answer_scores,
        softmax(answer_scores),
        [best[0].text for best in answers],
        answers=answers,
        num_outputs=counts,
        confidences=np.array([best[0].probability for best in answers]),
    )


def errors(predictions: Predictions, labels: Answers, task: TaskConfig) -> Float64[np.ndarray, "rows"]:
    """Returns 1 for rows whose answer matches no gold answer and 0 for the others."""
    return 1 - _row_scores(predictions, labels, task)["exact_match"]


def weighted(predictions: Predictions, labels: Answers, task: TaskConfig) -> Weighted:
    """Prepares the scores as a function of row weights."""
    return mean_scores(_row_scores(predictions, labels, task))


def _row_scores(predictions: Predictions, labels: Answers, task: TaskConfig) -> dict[str, Float64[np.ndarray, "rows"]]:
    texts = [str(label) for label in predictions.labels]
    gold = [[text for text, _ in answers] for answers in labels]
    return span_scores(texts, gold, no_answer=task.span.no_answer)


KIND = KindSpec(
    name="span",
    reads="tokens",
    num_outputs=lambda label_names: 2,
    losses=losses,
    label_axes=("answer",),
    metrics=("f1", "exact_match"),
    read=read,
    from_lists=from_lists,
    forms=forms,
    pick=pick,
    check_labels=check_labels,
    tokenize=tokenize_spans,
    predict=predict,
    errors=errors,
    weighted=weighted,
    text=KindText(
        pipeline_tag="question-answering",
        row='{"question": "...", "context": "..."}',
        texts='[("A question?", "A context.")])',
        logits="two per token: the scores of an answer that starts or ends at the token",
        per_output=" (start and end of the answer)",
        second_text="a context",
        label="answers",
    ),
)
