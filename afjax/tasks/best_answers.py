"""The best answers of questions, from the start and end logits of every window of their contexts."""

import dataclasses

import numpy as np

from afjax.config.tasks import SpanConfig
from afjax.tasks.windows import TokenisedSpans


@dataclasses.dataclass(frozen=True)
class Answer:
    """A piece of a context.

    Attributes:
      text: What it says; empty: the question has no answer.
      begin, end: Where it stands in the context, in characters; both 0 for no answer.
      score: Start logit plus end logit.
      probability: Softmax of the scores over the answers that are listed with it.
    """

    text: str
    begin: int
    end: int
    score: float
    probability: float


def best_answers(logits: np.ndarray, data: TokenisedSpans, config: SpanConfig) -> list[list[Answer]]:
    """Each row's answers, best first: at most ``config.num_best`` spans of all its windows.

    A span has at most ``config.max_answer_length`` tokens of the context, in one window; one that stands in several
    windows has its highest score. "No answer" has the lowest of the windows' scores of the first token, as in BERT's
    code. With ``config.no_answer`` it is among the answers, and in front of them where its score is above the best
    one's by more than ``config.no_answer_threshold``. A context without any token has no other.

    Args:
      logits: ``[windows, length, 2]``, start and end; entries behind a window's end are not read.
      data: The windows.
      config: Lengths and the threshold.
    """
    found: list[dict[tuple[int, int], float]] = [{} for _ in range(len(data.rows))]
    nothing = np.full(len(data.rows), np.inf)
    for window, row in enumerate(data.row_of):
        first, last = data.offsets[window], data.offsets[window + 1]
        characters = data.characters[first:last]
        starts, ends = logits[window, : last - first, 0], logits[window, : last - first, 1]
        nothing[row] = min(nothing[row], float(starts[0] + ends[0]))
        for begin, end, score in _window_spans(starts, ends, characters[:, 0] >= 0, config):
            span = (int(characters[begin, 0]), int(characters[end, 1]))
            found[row][span] = max(score, found[row].get(span, -np.inf))
    return [
        _ranked(context, spans, float(none), config)
        for context, spans, none in zip(data.rows.contexts, found, nothing, strict=True)
    ]


def _window_spans(
    starts: np.ndarray, ends: np.ndarray, in_context: np.ndarray, config: SpanConfig
) -> list[tuple[int, int, float]]:
    """A window's best spans: first token, last token, score; in no order."""
    (places,) = np.nonzero(in_context)
    if not len(places):
        return []
    # The context's tokens stand side by side.
    starts, ends = starts[places], ends[places]
    count, longest = len(places), min(config.max_answer_length, len(places))
    scores = np.full((longest, count), -np.inf, starts.dtype)  # [length of the answer - 1, its first token]
    for length in range(longest):
        scores[length, : count - length] = starts[: count - length] + ends[length:]
    flat = scores.ravel()
    # Twice as many as are listed: special cases of tokens without characters give one span twice.
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
        behind = sum(score >= nothing for *_, score in entries)
        entries.insert(0 if above else max(1, behind), ("", 0, 0, nothing))
    scores = np.array([score for *_, score in entries], np.float64)
    shares = np.exp(scores - scores.max())
    shares /= shares.sum()
    return [Answer(*entry, float(share)) for entry, share in zip(entries, shares, strict=True)]
