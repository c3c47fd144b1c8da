"""Reads columns from lists, generators, NumPy arrays, Series, DataFrames and dictionaries of columns.

The objects of pandas, Polars, PyArrow and Hugging Face's datasets are recognised by their methods, so none of these
packages is imported.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from afjax.data.sources import arrow
from afjax.data.sources.arrow import BATCH_SIZE, explain_errors
from afjax.data.sources.files import shorten
from afjax.errors import UserError

# The types of table that error messages suggest.
TABLES = "a DataFrame, a Dataset or a dictionary of columns"


def is_table(value: Any) -> bool:
    """Returns whether a value is a table.

    Tables are dictionaries of columns, Datasets, and other objects with named columns (DataFrames).
    """
    if isinstance(value, Mapping) or is_dataset(value):
        return True
    named = hasattr(value, "column_names") or hasattr(value, "columns")
    return named and hasattr(value, "__getitem__") and hasattr(value, "__len__")


def table_rows(table: Any, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields ``("NAME:ROW", {column: value})`` for every row of a table, with rows counted from 0 by position.

    Raises:
      UserError: The table has no columns or no rows, two columns have the same name or different lengths, a column
        cannot be read, or the value is a dictionary of tables.
    """
    if is_dataset(table):
        yield from dataset_rows(table, name)
        return
    if isinstance(table, Mapping) and table and all(map(is_table, table.values())):
        raise UserError(f"{name} has several tables ({', '.join(map(str, table))}); give one of them.")
    names = list(table) if isinstance(table, Mapping) else list(getattr(table, "column_names", None) or table.columns)
    repeated = [str(column) for column in names if names.count(column) > 1]
    if repeated:
        raise UserError(f'{name} has two columns "{repeated[0]}"; column names must differ.')
    columns = {str(column): as_list(table[column], f'The column "{column}" of {name}') for column in names}
    lengths = {column: len(values) for column, values in columns.items()}
    if len(set(lengths.values())) > 1:
        listing = ", ".join(f"{column} {length}" for column, length in lengths.items())
        raise UserError(f"{name} has columns of different lengths ({listing}); give every row a value in each column.")
    if not any(lengths.values()):
        raise UserError(f"{name} has no rows (its columns are {', '.join(columns) or 'none'}); give at least one.")
    for row, values in enumerate(zip(*columns.values(), strict=True)):
        yield f"{name}:{row}", dict(zip(columns, values, strict=True))


def is_dataset(value: Any) -> bool:
    """Returns whether a value is a ``Dataset`` or an ``IterableDataset`` of Hugging Face's datasets."""
    return all(callable(getattr(value, method, None)) for method in ("with_format", "iter"))


def dataset_rows(dataset: Any, name: str, *, first: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields ``("NAME:ROW", {column: value})`` for every row of a dataset of Hugging Face's datasets.

    Args:
      dataset: A ``Dataset`` or an ``IterableDataset``. Values have Python's types, whatever its format is. Images and
        audio are not decoded.
      name: The name of the rows in error messages.
      first: The number of the first row.

    Raises:
      UserError: The dataset has no rows or cannot be read, or two columns have the same name.
    """
    number = first
    with explain_errors(name, "a dataset"):
        for batch in dataset.with_format("arrow").iter(batch_size=BATCH_SIZE):
            yield from arrow.table_rows(batch, name, first=number)
            number += len(batch)
    if number == first:
        raise UserError(f"{name} has no rows; give at least one.")


def dataset_label_names(dataset: Any, column: str) -> tuple[str, ...]:
    """Returns the label names that a dataset defines for a column.

    The result is empty unless the column's type is ``ClassLabel`` or a list of ``ClassLabel``.
    """
    features = getattr(dataset, "features", None)
    feature = features.get(column) if isinstance(features, Mapping) else None
    return tuple(getattr(getattr(feature, "feature", feature), "names", None) or ())


def as_list(values: Any, what: str) -> list[Any]:
    """Converts a sequence, a column or an iterator to a list, and NumPy scalars to Python's types.

    Args:
      values: A list, tuple, generator, NumPy array, Series, or any other ordered iterable.
      what: The name of the values in error messages.

    Raises:
      UserError: The value is a single text, a table, a set, or not iterable.
    """
    kind = type(values).__name__
    if is_table(values):
        raise UserError(
            f"{what} is a {kind}, which has named columns; give one of its columns, or the table to rows_from_table."
        )
    for method in ("tolist", "to_list", "to_pylist"):
        if hasattr(values, method):
            values = getattr(values, method)()
            break
    if isinstance(values, str | bytes):
        raise UserError(f"{what} is a single text, {shorten(values)}; put it into a list.")
    if isinstance(values, set | frozenset):
        raise UserError(f"{what} is a {kind}, which has no order; give a list.")
    if not isinstance(values, Iterable):
        raise UserError(f"{what} is {shorten(values)}, of the type {kind}; give a list, a column or an iterator.")
    return [_plain(value) for value in values]


def _plain(value: Any) -> Any:
    """Converts NumPy values to Python's types. Columns of Parquet files can contain NumPy arrays."""
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist()) if value.dtype == object else value.tolist()
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value
