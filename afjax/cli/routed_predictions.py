"""Predictions of ``afjax predict`` with many adapters, chosen per row or by --all."""

import argparse
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from afjax.cli.compilation_cache import use_compilation_cache
from afjax.cli.predictions import prediction_line, write_lines
from afjax.cli.stored_model import load_recorded_trunk, servable_names
from afjax.config.capacity import Capacity
from afjax.config.flags import split_names
from afjax.config.from_dict import check_value
from afjax.config.ranges import PositiveInt
from afjax.data.columns import is_visible
from afjax.data.notices import blank_rows_notice
from afjax.data.sources.files import shorten
from afjax.display.terminal import print_line
from afjax.errors import UserError
from afjax.serve.columns import ADAPTER_COLUMN, pick_inputs, pick_task_input, without_adapter
from afjax.serve.loading import find_artifact, load_routed_model
from afjax.serve.requests import RowError
from afjax.serve.routed_model import RoutedModel
from afjax.tasks.prediction_rows import kept_fields, rows_of_input


def predict_routed(arguments: argparse.Namespace, keep: Mapping[str, str]) -> None:
    """Predicts each row with the adapter that it names.

    Each output line has the row's kept fields and its prediction, or its ``embedding`` if the name is null.

    Args:
      arguments: The command's flags.
      keep: The columns to copy to the output, as ``{column: field}``.

    Raises:
      UserError: The input cannot be read; a row has no ``adapter`` column, names an unknown adapter, or lacks a column
        that its adapter's task needs; all names are null; or a model cannot be loaded.
    """
    rows = list(rows_of_input(arguments.input, arguments.input_format))
    kept = [kept_fields(origin, row, keep) for origin, row in rows]
    names = [_name(origin, row) for origin, row in rows]
    distinct = list(dict.fromkeys(name for name in names if name is not None))
    if not distinct:
        raise UserError("No row names an adapter. For the trunk's embeddings, use afjax.load_trunk(...).embed.")
    routed = _load(arguments, distinct)
    tasks = [None if name is None else routed.task(name) for name in names]
    inputs = [
        pick_task_input(origin, without_adapter(row), task) for (origin, row), task in zip(rows, tasks, strict=True)
    ]
    _note_blank_rows([inputs])
    with _rows_named(rows):
        predictions = routed.predict(inputs, names)
    outputs = zip(kept, predictions, strict=True)
    lines = [prediction_line(fields, prediction, number) for number, (fields, prediction) in enumerate(outputs)]
    write_lines(arguments.output, lines)


def predict_all(arguments: argparse.Namespace, keep: Mapping[str, str]) -> None:
    """Predicts each row with the adapters of ``--all``, or with all in the store.

    Each output line has the row's kept fields, and ``predictions`` as ``{adapter's name: prediction}``. Adapters
    include fusions. If ``--all`` has no names, adapters without a head are left out with a note.

    Args:
      arguments: The command's flags.
      keep: The columns to copy to the output, as ``{column: field}``.

    Raises:
      UserError: The input cannot be read, the store has no adapter with a head, a name is unknown, a row lacks a column
        that an adapter's task needs, or a model cannot be loaded.
    """
    rows = list(rows_of_input(arguments.input, arguments.input_format))
    kept = [kept_fields(origin, row, keep) for origin, row in rows]
    given = split_names(arguments.all)
    names = given or servable_names(arguments.store)
    routed = _load(arguments, names)

    def advise(fitting: list[str]) -> str:
        return f"To predict only with the adapters that fit these rows, pass --all={','.join(fitting)}."

    # Tasks can use different columns, so each group of tasks with the same columns gets its own inputs.
    groups = pick_inputs(rows, map(routed.task, names), None if given else advise)
    _note_blank_rows([inputs for _, inputs in groups])
    predictions: list[dict[str, Any]] = [{} for _ in rows]
    for group, inputs in groups:
        with _rows_named(rows):
            own_predictions = routed.predict_all(inputs, [task.name for task in group])
        for row_predictions, own in zip(predictions, own_predictions, strict=True):
            row_predictions.update(own)
    lines = []
    for number, (fields, own) in enumerate(zip(kept, predictions, strict=True)):
        in_order = {name: own[name] for name in names}
        lines.append(prediction_line(fields, {"predictions": in_order}, number))
    write_lines(arguments.output, lines)


@contextlib.contextmanager
def _rows_named(rows: Sequence[tuple[str, Any]]) -> Iterator[None]:
    """Names rows in errors by their file and line."""
    try:
        yield
    except RowError as error:
        raise UserError(f"{rows[error.row][0]} {error.problem}") from None


def _note_blank_rows(inputs_per_group: Sequence[Sequence[Any]]) -> None:
    """Prints a note if some rows have a blank text in any group of columns."""

    def is_blank(given: Any) -> bool:
        # The words of a row to tag are a list.
        texts = [given] if isinstance(given, str) else ["".join(given)] if isinstance(given, list) else given
        return any(isinstance(text, str) and not is_visible(text) for text in texts)

    inputs_per_row = list(zip(*inputs_per_group, strict=True))
    if blank := [row for row, inputs in enumerate(inputs_per_row) if any(map(is_blank, inputs))]:
        print_line(f"Note: {blank_rows_notice('the input', blank, len(inputs_per_row))}")


def _name(origin: str, row: dict[str, Any]) -> str | None:
    """Returns the name of a row's adapter, or None if the row asks for an embedding."""
    if ADAPTER_COLUMN not in row:
        raise UserError(
            f'{origin} has no "{ADAPTER_COLUMN}" field to name an adapter, a fusion or a head. Add it, choose one for '
            "all rows with --adapter=NAME, --fusion=NAME or --head=NAME, or pass --all."
        )
    name = row[ADAPTER_COLUMN]
    if not (name is None or (isinstance(name, str) and name)):
        raise UserError(
            f'{origin} has {shorten(name)} as "{ADAPTER_COLUMN}"; it must be a name, or null for an embedding (CSV and '
            "TSV have no null)."
        )
    return name


def _load(arguments: argparse.Namespace, names: list[str]) -> RoutedModel:
    check_value(PositiveInt, arguments.batch_size, "batch_size")
    use_compilation_cache()
    trunk = load_recorded_trunk(arguments.trunk, arguments.store, *find_artifact(arguments.store, names[0]))
    capacity = Capacity(batch_sizes=(arguments.batch_size,))
    return load_routed_model(arguments.store, trunk, names, capacity=capacity)
