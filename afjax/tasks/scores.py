"""Scores a labelled split from a model's outputs."""

import numpy as np

from afjax.config.tasks import TaskConfig
from afjax.data.tokenise import TokenisedRows
from afjax.tasks.best_answers import best_answers
from afjax.tasks.kinds import scores
from afjax.tasks.metrics import span_scores
from afjax.tasks.windows import TokenisedSpans


def split_scores(logits: np.ndarray, data: TokenisedRows, task: TaskConfig) -> dict[str, float]:
    """Returns all scores of a labelled split. For regression, logits must be in the units of the labels."""
    if isinstance(data, TokenisedSpans):
        assert data.rows.labels is not None, "a split without answers is not scored"
        answers = best_answers(logits, data, task.span)
        right = [[text for text, _ in row_answers] for row_answers in data.rows.labels]
        return span_scores([best[0].text for best in answers], right, no_answer=task.span.no_answer)
    assert data.labels is not None, "a split without labels is not scored"
    return scores(logits, data.labels, task.kind)
