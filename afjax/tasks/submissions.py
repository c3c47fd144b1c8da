"""Formats submission files for GLUE, SuperGLUE and SQuAD."""

import dataclasses
import json
from collections.abc import Sequence

from afjax.data.sources.official import OFFICIAL
from afjax.data.splits import AnyRows
from afjax.errors import UserError
from afjax.tasks.best_answers import Answer

# Score difference to write for a question if "no answer" is the only candidate.
NO_OTHER_ANSWER = 1e6


@dataclasses.dataclass(frozen=True)
class Entry:
    """One file of a submission.

    Attributes:
      file: The file's name.
      task: The task to predict.
      rows_file: Path of the task's rows in the benchmark's download.
      head: The task whose head makes the predictions.
    """

    file: str
    task: str
    rows_file: str
    head: str


def _glue(name: str, task: str, folder: str = "", test: str = "test.tsv", head: str = "") -> Entry:
    return Entry(f"{name}.tsv", task, f"glue/{folder or name}/{test}", head or task)


def _super_glue(name: str, task: str) -> Entry:
    return Entry(f"{name}.jsonl", task, f"super_glue/{name}/test.jsonl", task)


# GLUE's files in the server's order, except that those predicted by the same head are adjacent.
GLUE = (
    _glue("CoLA", "cola"),
    _glue("SST-2", "sst2"),
    _glue("MRPC", "mrpc", test="msr_paraphrase_test.txt"),
    _glue("STS-B", "stsb"),
    _glue("QQP", "qqp"),
    _glue("MNLI-m", "mnli", "MNLI", "test_matched.tsv"),
    _glue("MNLI-mm", "mnli_mismatched", "MNLI", "test_mismatched.tsv", "mnli"),
    _glue("AX", "diagnostics", "diagnostic", "diagnostic.tsv", "mnli"),
    _glue("QNLI", "qnli"),
    _glue("RTE", "rte"),
    _glue("WNLI", "wnli"),
)

SUPER_GLUE = (_super_glue("BoolQ", "boolq"), _super_glue("CB", "cb"), _super_glue("RTE", "rte"))

# SQuAD's test split is not public, so these are the dev splits.
SQUAD = (
    Entry("predictions.json", "squad", "squad/dev-v1.1.json", "squad"),
    Entry("predictions.json", "squad_v2", "squad_v2/dev-v2.0.json", "squad_v2"),
)

# Other files that SuperGLUE's server requires, for tasks that afjax does not support.
SUPER_GLUE_OTHERS = ("AX-b", "AX-g", "COPA", "MultiRC", "ReCoRD", "WiC", "WSC")

# Tasks for which GLUE's server expects label names. It expects label indices for the others.
GLUE_NAMED = ("mnli", "qnli", "rte")


def row_numbers(rows: AnyRows, source: str) -> list[int]:
    """Returns each row's number on the server: its id, or else its index.

    Args:
      rows: The rows of a test split.
      source: The split's name in error messages.

    Raises:
      UserError: An id is not a non-negative integer.
    """
    if rows.ids is None:
        return list(range(len(rows)))
    for name in rows.ids:
        if not name.isdecimal() or len(name) > 18:
            raise UserError(
                f'{source} has a row with the id "{name}", but the server requires non-negative integers; use the '
                "benchmark's original files, or rows without ids."
            )
    return [int(name) for name in rows.ids]


def first_label(head: str) -> str | float:
    """Returns the placeholder prediction for a task without a head."""
    return OFFICIAL[head].labels[0] if OFFICIAL[head].labels else 0.0


def glue_text(entry: Entry, numbers: Sequence[int], labels: Sequence[str | float]) -> str:
    """Formats a GLUE file, a TSV table with ``index`` and ``prediction``.

    Predictions are label names or indices (see ``GLUE_NAMED``), or, for STS-B, numbers clipped to [0, 5].
    """
    names = OFFICIAL[entry.head].labels

    def shown(label: str | float) -> str:
        if not isinstance(label, str):
            return f"{min(max(label, 0.0), 5.0):.3f}"
        return label if entry.head in GLUE_NAMED else str(names.index(label))

    rows = [f"{number}\t{shown(label)}\n" for number, label in zip(numbers, labels, strict=True)]
    return "".join(["index\tprediction\n", *rows])


def super_glue_text(numbers: Sequence[int], labels: Sequence[str | float]) -> str:
    """Formats a SuperGLUE file with one JSON object ``{"idx", "label"}`` per line.

    BoolQ's labels are the strings "true" and "false".
    """
    rows = ({"idx": number, "label": label} for number, label in zip(numbers, labels, strict=True))
    return "".join(json.dumps(row) + "\n" for row in rows)


def squad_text(ids: Sequence[str], answers: Sequence[Sequence[Answer]]) -> str:
    """Formats a SQuAD file ``{id: best answer}``; "no answer" is an empty string."""
    return json.dumps({name: best[0].text for name, best in zip(ids, answers, strict=True)}) + "\n"


def null_odds_text(ids: Sequence[str], answers: Sequence[Sequence[Answer]]) -> str:
    """Formats a file ``{id: score of "no answer" minus the best answer's score}``.

    SQuAD v2's evaluation script uses the file to tune the threshold.
    """
    return json.dumps({name: _null_odds(row_answers) for name, row_answers in zip(ids, answers, strict=True)}) + "\n"


def _null_odds(answers: Sequence[Answer]) -> float:
    nothing = next(answer.score for answer in answers if not answer.text)
    best = next((answer.score for answer in answers if answer.text), nothing - NO_OTHER_ANSWER)
    return nothing - best
