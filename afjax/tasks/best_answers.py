"""Finds the best answers to questions from start and end logits."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float

from afjax.config.tasks import SpanConfig
from afjax.tasks.windows import TokenisedSpans


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer: a span of a context, or "no answer".

    Attributes:
      text: The span's text; empty for "no answer".
      begin, end: The span is ``context[begin:end]``. Both are 0 for "no answer".
      score: Start logit plus end logit.
      probability: Softmax of the scores over the row's listed answers.
    """

    text: str
    begin: int
    end: int
    score: float
    probability: float


def best_answers(
    logits: Float[np.ndarray, "windows length 2"], data: TokenisedSpans, config: SpanConfig
) -> list[list[Answer]]:
    """Returns the best answers of each row, best first.

    These are at most ``config.num_best`` spans from all windows of the row. A span has at most
    ``config.max_answer_length`` tokens of the context and is contained in one window. If it occurs in several windows,
    it has the highest of their scores. If ``config.no_answer`` is true, "no answer" is added to the list. Its score is
    the minimum over windows of the first token's score, as in BERT's code. It comes first if its score exceeds the best
    span's by more than ``config.no_answer_threshold``. If a context has no tokens, "no answer" is its only answer.

    Args:
      logits: Start and end logits. Entries after a window's end are not read.
      data: The windows.
      config: Maximum lengths, number of answers and threshold.
    """
    scores_by_span: list[dict[tuple[int, int], float]] = [{} for _ in range(len(data.rows))]
    nothing = np.full(len(data.rows), np.inf)
    for window, row in enumerate(data.row_of):
        first, last = data.offsets[window], data.offsets[window + 1]
        characters = data.characters[first:last]
        starts, ends = logits[window, : last - first, 0], logits[window, : last - first, 1]
        nothing[row] = min(nothing[row], float(starts[0] + ends[0]))
        for begin, end, score in _window_spans(starts, ends, characters[:, 0] >= 0, config):
            span = (int(characters[begin, 0]), int(characters[end, 1]))
            scores_by_span[row][span] = max(score, scores_by_span[row].get(span, -np.inf))
    return [
        _ranked(context, spans, float(none), config)
        for context, spans, none in zip(data.rows.contexts, scores_by_span, nothing, strict=True)
    ]


def _window_spans(
    starts: Float[np.ndarray, "length"],
    ends: Float[np.ndarray, "length"],
    in_context: Bool[np.ndarray, "length"],
    config: SpanConfig,
) -> list[tuple[int, int, float]]:
    """Returns a window's best spans, in arbitrary order.

    Returns:
      ``(first token, last token, score)`` of each span.
    """
    (places,) = np.nonzero(in_context)
    if not len(places):
        return []
    # The context's tokens are contiguous.
    starts, ends = starts[places], ends[places]
    count, longest = len(places), min(config.max_answer_length, len(places))
    scores = np.full((longest, count), -np.inf, starts.dtype)  # [length of the answer - 1, its first token]
    for length in range(longest):
        scores[length, : count - length] = starts[: count - length] + ends[length:]
    flat = scores.ravel()
    # Select twice as many spans as needed, because tokens without characters can produce the same span twice.
    num = min(2 * config.num_best, int(np.isfinite(flat).sum()))
    best = np.argpartition(-flat, num - 1)[:num] if num else flat[:0].astype(int)
    return [
        (int(places[index % count]), int(places[index % count + index // count]), float(flat[index])) for index in best
    ]


def _ranked(context: str, spans: dict[tuple[int, int], float], nothing: float, config: SpanConfig) -> list[Answer]:
    ordered = sorted(spans.items(), key=lambda item: (-item[1], item[0]))[: config.num_best]
    entries = [(context[begin:end], begin, end, score) for (begin, end), score in ordered]
    if config.no_answer or not entries:
        above = not entries or nothing - entries[0][3] > config.no_answer_threshold
        num_better = sum(score >= nothing for *_, score in entries)
        entries.insert(0 if above else max(1, num_better), ("", 0, 0, nothing))
    scores = np.array([score for *_, score in entries], np.float64)
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    return [Answer(*entry, float(share)) for entry, share in zip(entries, shares, strict=True)]
