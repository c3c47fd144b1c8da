"""The files that the servers of GLUE, SuperGLUE and SQuAD take, and what stands in them."""

import dataclasses
import json
from collections.abc import Sequence

from afjax.data.sources.official import OFFICIAL
from afjax.data.splits import AnyRows
from afjax.errors import UserError
from afjax.tasks.best_answers import Answer

# What a question without any answer but "none" has for the score of "none" above the best answer's.
NO_OTHER_ANSWER = 1e6


@dataclasses.dataclass(frozen=True)
class Entry:
    """A file of a submission.

    Attributes:
      file: Its name.
      task: The task whose rows are predicted.
      rows_file: Where the benchmark's download has those rows.
      head: The task whose head predicts them.
    """

    file: str
    task: str
    rows_file: str
    head: str


def _glue(name: str, task: str, folder: str = "", test: str = "test.tsv", head: str = "") -> Entry:
    return Entry(f"{name}.tsv", task, f"glue/{folder or name}/{test}", head or task)


def _super_glue(name: str, task: str) -> Entry:
    return Entry(f"{name}.jsonl", task, f"super_glue/{name}/test.jsonl", task)


# All of GLUE, in its server's order but for what one head predicts, which stands together.
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

# Of dev, as its test rows are not published.
SQUAD = (
    Entry("predictions.json", "squad", "squad/dev-v1.1.json", "squad"),
    Entry("predictions.json", "squad_v2", "squad_v2/dev-v2.0.json", "squad_v2"),
)

# What SuperGLUE's server also wants, of tasks that are not known here.
SUPER_GLUE_OTHERS = ("AX-b", "AX-g", "COPA", "MultiRC", "ReCoRD", "WiC", "WSC")

# The tasks whose predictions GLUE's server wants by the labels' names; of the others by their numbers.
GLUE_NAMED = ("mnli", "qnli", "rte")


def row_numbers(rows: AnyRows, source: str) -> list[int]:
    """What a server calls each row: its id, else its number from 0.

    Args:
      rows: Of a test split.
      source: What an error calls them.

    Raises:
      UserError: An id is no whole number.
    """
    if rows.ids is None:
        return list(range(len(rows)))
    for name in rows.ids:
        if not name.isdecimal() or len(name) > 18:
            raise UserError(
                f'{source} has a row with the id "{name}", where the server takes whole numbers; give the benchmark\'s '
                "own files, or rows without ids."
            )
    return [int(name) for name in rows.ids]


def first_label(head: str) -> str | float:
    """What stands for a prediction where there is no head."""
    return OFFICIAL[head].labels[0] if OFFICIAL[head].labels else 0.0


def glue_text(entry: Entry, numbers: Sequence[int], labels: Sequence[str | float]) -> str:
    """A table ``index``, ``prediction``, of label names or, for regression (STS-B's, from 0 to 5), numbers."""
    names = OFFICIAL[entry.head].labels

    def shown(label: str | float) -> str:
        if not isinstance(label, str):
            return f"{min(max(label, 0.0), 5.0):.3f}"
        return label if entry.head in GLUE_NAMED else str(names.index(label))

    rows = [f"{number}\t{shown(label)}\n" for number, label in zip(numbers, labels, strict=True)]
    return "".join(["index\tprediction\n", *rows])


def super_glue_text(numbers: Sequence[int], labels: Sequence[str | float]) -> str:
    """``{"idx", "label"}`` a line; BoolQ's labels are the strings true and false."""
    rows = ({"idx": number, "label": label} for number, label in zip(numbers, labels, strict=True))
    return "".join(json.dumps(row) + "\n" for row in rows)


def squad_text(ids: Sequence[str], answers: Sequence[Sequence[Answer]]) -> str:
    """``{id: text}`` of the best answers; the empty text is no answer."""
    return json.dumps({name: best[0].text for name, best in zip(ids, answers, strict=True)}) + "\n"


def null_odds_text(ids: Sequence[str], answers: Sequence[Sequence[Answer]]) -> str:
    """``{id: score of no answer minus the best answer's}``, in which SQuAD v2's own script looks for a threshold."""
    return json.dumps({name: _null_odds(of_row) for name, of_row in zip(ids, answers, strict=True)}) + "\n"


def _null_odds(answers: Sequence[Answer]) -> float:
    nothing = next(answer.score for answer in answers if not answer.text)
    best = next((answer.score for answer in answers if answer.text), nothing - NO_OTHER_ANSWER)
    return nothing - best
