"""Extracts rows and columns from data in memory.

The data are lists, NumPy arrays, DataFrames, Datasets or dictionaries. pandas, Polars, PyArrow and Hugging Face objects
are recognized by their methods, so these packages are never imported.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from afjax.data.sources.arrow import BATCH_SIZE, batch_rows, explain_errors
from afjax.data.sources.files import check_distinct, shorten
from afjax.errors import UserError

# Table types to suggest in error messages.
TABLES = "a DataFrame, a Dataset or a dictionary of columns"


def is_table(value: Any) -> bool:
    """Whether a value is a table: a dictionary of columns, a Dataset or a DataFrame."""
    if isinstance(value, Mapping) or is_dataset(value):
        return True
    named = hasattr(value, "column_names") or hasattr(value, "columns")
    return named and hasattr(value, "__getitem__") and hasattr(value, "__len__")


def table_rows(table: Any, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields ``("NAME:ROW", {column: value})`` for every row of a table.

    Rows are counted from 0.

    Raises:
      UserError: The table is empty (not checked for a Hugging Face dataset), two columns have the same name or
        different lengths, a column cannot be converted to a list, or ``table`` is a dictionary of tables.
    """
    if is_dataset(table):
        yield from dataset_rows(table, name)
        return
    if isinstance(table, Mapping) and table and all(map(is_table, table.values())):
        raise UserError(f"{name} has several tables ({', '.join(map(str, table))}); pass one of them.")
    names = list(table) if isinstance(table, Mapping) else list(getattr(table, "column_names", None) or table.columns)
    check_distinct(name, list(map(str, names)))
    columns = {str(column): as_list(table[column], f'The column "{column}" of {name}') for column in names}
    lengths = {column: len(values) for column, values in columns.items()}
    if len(set(lengths.values())) > 1:
        listing = ", ".join(f"{column} {length}" for column, length in lengths.items())
        raise UserError(f"{name} has columns of different lengths ({listing}); all columns must have the same length.")
    if not any(lengths.values()):
        raise UserError(f"{name} has no rows (columns: {', '.join(columns) or 'none'}); it needs at least one.")
    for row, values in enumerate(zip(*columns.values(), strict=True)):
        yield f"{name}:{row}", dict(zip(columns, values, strict=True))


def is_dataset(value: Any) -> bool:
    """Whether a value is a Hugging Face ``Dataset`` or ``IterableDataset``."""
    return all(callable(getattr(value, method, None)) for method in ("with_format", "iter"))


def dataset_rows(dataset: Any, name: str, *, first: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields ``("NAME:ROW", {column: value})`` for each row of a Hugging Face dataset.

    Values are Python objects, regardless of the dataset's format. Images and audio are not decoded.

    Args:
      dataset: A ``Dataset`` or an ``IterableDataset``.
      name: The dataset's name in error messages.
      first: Number of the first row.

    Raises:
      UserError: The dataset cannot be read, or two columns have the same name.
    """
    with explain_errors(name, "a dataset"):
        yield from batch_rows(dataset.with_format("arrow").iter(batch_size=BATCH_SIZE), name, first=first)


def dataset_label_names(dataset: Any, column: str) -> tuple[str, ...]:
    """Returns a column's label names.

    The result is empty unless the column's type is ``ClassLabel`` or a list of ``ClassLabel``.
    """
    features = getattr(dataset, "features", None)
    feature = features.get(column) if isinstance(features, Mapping) else None
    return tuple(getattr(getattr(feature, "feature", feature), "names", None) or ())


def as_list(values: Any, what: str) -> list[Any]:
    """Converts an ordered iterable to a list.

    NumPy values in the iterable become Python objects.

    Args:
      values: A list, tuple, generator, NumPy array, Series or other ordered iterable.
      what: The name of the values in error messages.

    Raises:
      UserError: ``values`` is a string, a table, a set, or not iterable.
    """
    kind = type(values).__name__
    if is_table(values):
        raise UserError(
            f"{what} is a {kind}, which has named columns; pass one of its columns, or pass the table to "
            "rows_from_table."
        )
    for method in ("tolist", "to_list", "to_pylist"):
        if hasattr(values, method):
            values = getattr(values, method)()
            break
    if isinstance(values, str | bytes):
        raise UserError(f"{what} is a single text, {shorten(values)}; wrap it in a list.")
    if isinstance(values, set | frozenset):
        raise UserError(f"{what} is a {kind}, which has no order; pass a list.")
    if not isinstance(values, Iterable):
        raise UserError(f"{what} is {shorten(values)}, of type {kind}; pass a list, a column or an iterator.")
    return [_plain(value) for value in values]


def _plain(value: Any) -> Any:
    """Recursively converts NumPy values to Python objects.

    Parquet columns can contain nested lists and structs.
    """
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist()) if value.dtype == object else value.tolist()
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value
