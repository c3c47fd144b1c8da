"""The lines printed before training count rows, choices and windows."""

import dataclasses

import numpy as np
import pytest

from afjax.data.splits import TagRows
from afjax.data.tokenization import TokenizedRows
from afjax.tasks.windows import TokenizedWindows
from afjax.train.messages import print_padding

# Four sequences of two tokens.
SEQUENCES = TokenizedRows(np.zeros(8, np.int32), np.zeros(8, np.int8), np.arange(5) * 2, None, 3)


def printed(train: TokenizedRows, capsys: pytest.CaptureFixture[str]) -> list[str]:
    print_padding("a", train, [4], 2)
    return capsys.readouterr().err.splitlines()


def test_truncated_rows_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(SEQUENCES, capsys) == [
        "a: 4 train rows in batches of 2, padded to 4 tokens (50.0% padding)",
        "a: 75.0% of the train rows are longer and are truncated",
    ]
    assert len(printed(dataclasses.replace(SEQUENCES, truncated=0), capsys)) == 1


def test_truncated_choices_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    choices = dataclasses.replace(SEQUENCES, choices=np.array([0, 2, 4]))
    first, second = printed(choices, capsys)
    assert first.startswith("a: 2 train rows in batches")
    assert second == "a: 75.0% of the choices are longer and are truncated"


def test_rows_that_are_split_into_windows_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    fields = {field.name: getattr(SEQUENCES, field.name) for field in dataclasses.fields(SEQUENCES)}
    rows = TagRows(["a", "b c d"], [np.array([[0, 1]]), np.array([[0, 1], [2, 3], [4, 5]])], None, ())
    windows = TokenizedWindows(**fields, row_of=np.array([0, 1, 1, 1], np.int32), rows=rows)
    first, second = printed(windows, capsys)
    assert first.startswith("a: 2 train rows (4 windows) in batches")
    assert second == "a: 50.0% of the train rows are longer and are split into windows"
