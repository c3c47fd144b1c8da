"""Decodes start and end logits into answers."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float

from afjax.config.tasks import SpanConfig
from afjax.tasks.windows import TokenizedSpans


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer: a span of a context, or "no answer".

    Attributes:
      text: The span's text; empty for "no answer".
      begin, end: The span is ``context[begin:end]``. Both are 0 for "no answer".
      score: Start logit plus end logit.
      probability: Softmax of the score over the row's candidate answers.
    """

    text: str
    begin: int
    end: int
    score: float
    probability: float


def best_answers(
    logits: Float[np.ndarray, "windows length 2"], data: TokenizedSpans, config: SpanConfig
) -> list[list[Answer]]:
    """Finds the best answers in each row, best first.

    Each row has up to ``config.num_best`` candidate spans from all of its windows. A span has at most
    ``config.max_answer_length`` context tokens and must be within one window. If it occurs in several windows, it gets
    the highest score. If ``config.no_answer`` is true, "no answer" is added to the list, scored by the minimum over
    windows of the first token's score, as in BERT's code. It is ranked first if its score exceeds the best span's by
    more than ``config.no_answer_threshold``. If a context has no tokens, "no answer" is the only answer.

    Args:
      logits: Start and end logits. Entries beyond a window's end are ignored.
      data: The windows.
      config: Maximum answer length, number of answers and threshold.
    """
    scores_by_span: list[dict[tuple[int, int], float]] = [{} for _ in range(len(data.rows))]
    nothing = np.full(len(data.rows), np.inf)
    for window, row in enumerate(data.row_of):
        first, last = data.offsets[window], data.offsets[window + 1]
        characters = data.characters[first:last]
        starts, ends = logits[window, : last - first, 0], logits[window, : last - first, 1]
        nothing[row] = min(nothing[row], float(starts[0] + ends[0]))
        for begin, end, score in _window_spans(starts, ends, characters[:, 0] >= 0, config):
            span = _without_blanks(data.rows.contexts[row], int(characters[begin, 0]), int(characters[end, 1]))
            if span[0] == span[1]:
                # A token without characters would look like "no answer".
                continue
            scores_by_span[row][span] = max(score, scores_by_span[row].get(span, -np.inf))
    return [
        _ranked(context, spans, float(none), config)
        for context, spans, none in zip(data.rows.contexts, scores_by_span, nothing, strict=True)
    ]


def _without_blanks(context: str, begin: int, end: int) -> tuple[int, int]:
    """Removes white space from both ends of a span.

    The offsets of some tokenizers include the space before a word.
    """
    text = context[begin:end]
    left = len(text) - len(text.lstrip())
    return (begin + left, begin + left + len(text.strip())) if text.strip() else (begin, end)


def _window_spans(
    starts: Float[np.ndarray, "length"],
    ends: Float[np.ndarray, "length"],
    in_context: Bool[np.ndarray, "length"],
    config: SpanConfig,
) -> list[tuple[int, int, float]]:
    """Finds a window's best spans, in arbitrary order.

    Returns:
      ``(first token, last token, score)`` of each span.
    """
    (positions,) = np.nonzero(in_context)
    if not len(positions):
        return []
    # Indices relative to the context are valid because its tokens are contiguous.
    starts, ends = starts[positions], ends[positions]
    count, longest = len(positions), min(config.max_answer_length, len(positions))
    scores = np.full((longest, count), -np.inf, starts.dtype)  # [answer length - 1, first token]
    for length in range(longest):
        scores[length, : count - length] = starts[: count - length] + ends[length:]
    flat = scores.ravel()
    # Select twice as many spans as needed, because empty tokens can lead to duplicate spans.
    num = min(2 * config.num_best, int(np.isfinite(flat).sum()))
    best = np.argpartition(-flat, num - 1)[:num] if num else flat[:0].astype(int)
    return [
        (int(positions[index % count]), int(positions[index % count + index // count]), float(flat[index]))
        for index in best
    ]


def _ranked(context: str, spans: dict[tuple[int, int], float], nothing: float, config: SpanConfig) -> list[Answer]:
    ordered = sorted(spans.items(), key=lambda item: (-item[1], item[0]))[: config.num_best]
    entries = [(context[begin:end], begin, end, score) for (begin, end), score in ordered]
    if config.no_answer or not entries:
        above = not entries or nothing - entries[0][3] > config.no_answer_threshold
        num_better = sum(score >= nothing for *_, score in entries)
        entries.insert(0 if above else max(1, num_better), ("", 0, 0, nothing))
    scores = np.array([score for *_, score in entries], np.float64)
    probabilities = np.exp(scores - scores.max())
    probabilities /= probabilities.sum()
    return [Answer(*entry, float(probability)) for entry, probability in zip(entries, probabilities, strict=True)]
