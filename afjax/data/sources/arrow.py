"""Reads Parquet and Arrow files. pyarrow is imported lazily."""

import contextlib
import importlib
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

from afjax.data.sources.files import check_distinct
from afjax.errors import UserError
from afjax.storage.paths import error_text

# Number of rows to decode at once.
BATCH_SIZE = 1000

# End-of-stream marker of the Arrow format. It is missing if the writer was interrupted.
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def open_parquet(file: IO[bytes], name: str) -> tuple[Any, Iterable[Any]]:
    """Opens a Parquet file.

    Args:
      file: The open file.
      name: The file's name in error messages.

    Returns:
      The ``pyarrow.Schema``, and an iterable of ``pyarrow.RecordBatch``.

    Raises:
      UserError: pyarrow is not installed. Damaged files raise other exceptions; see :func:`explain_errors`.
    """
    table = import_for(name, "pyarrow.parquet").ParquetFile(_seekable(file))
    return table.schema_arrow, table.iter_batches(BATCH_SIZE)


def open_arrow(file: IO[bytes], name: str) -> tuple[Any, Iterable[Any]]:
    """Opens a file in Arrow's file format or stream format; see :func:`open_parquet`.

    Raises:
      UserError: The file is truncated, or pyarrow is not installed.
    """
    ipc = import_for(name, "pyarrow.ipc")
    file = _seekable(file)
    is_file = file.read(6) == b"ARROW1"
    file.seek(0)
    if is_file:
        reader = ipc.open_file(file)
        return reader.schema, map(reader.get_batch, range(reader.num_record_batches))
    file.seek(-min(len(_END_OF_STREAM), file.seek(0, io.SEEK_END)), io.SEEK_END)
    complete = file.read() == _END_OF_STREAM
    file.seek(0)
    reader = ipc.open_stream(file)
    if not complete:
        raise UserError(f"{name} is truncated: it has no end-of-stream marker. Write or download it again.")
    return reader.schema, reader


def stored_label_names(metadata: Mapping[bytes, bytes] | None, column: str) -> tuple[str, ...]:
    """Parses a column's label names from Hugging Face's metadata.

    The datasets library writes this metadata. The result is empty unless the column's type is ``ClassLabel`` or a list
    of ``ClassLabel``.
    """
    try:
        feature = json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]
        feature = feature.get("feature", feature)  # The feature of a list of labels.
        return tuple(map(str, feature["names"])) if feature["_type"] == "ClassLabel" else ()
    except (KeyError, ValueError, TypeError, AttributeError):
        return ()


def batch_rows(batches: Iterable[Any], name: str, *, first: int = 1) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields ``("NAME:ROW", {column: value})`` for every row of several batches.

    Args:
      batches: Each is a ``pyarrow.RecordBatch`` or a ``pyarrow.Table``.
      name: The name of the data in error messages.
      first: Number of the first row.

    Raises:
      UserError: Two columns have the same name.
      pyarrow.ArrowInvalid: A batch is damaged.
    """
    numbers = itertools.count(first)
    for batch in batches:
        check_distinct(name, batch.schema.names)
        # Without validation, a damaged batch could crash the process.
        batch.validate(full=True)
        for row in batch.to_pylist():
            yield f"{name}:{next(numbers)}", row


def _seekable(file: IO[bytes]) -> IO[bytes]:
    return file if file.seekable() else io.BytesIO(file.read())


def import_for(name: str, module: str) -> Any:
    """Imports a module of pyarrow or datasets, which reads the data called ``name``.

    Raises:
      UserError: The module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = error.name or module.partition(".")[0]
        raise UserError(
            f'{name} needs {package}, which is not installed; run pip install "afjax[datasets]".'
        ) from error


@contextlib.contextmanager
def explain_errors(name: str, form: str) -> Iterator[None]:
    """Converts errors while reading a file to UserErrors.

    ``name`` is the file's name, and ``form`` is its format, such as Parquet.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # Damaged files can raise many types of exceptions.
        raise UserError(
            f"{name} cannot be read as {form} ({error_text(error)}). It may be damaged or truncated; write or "
            "download it again."
        ) from error
