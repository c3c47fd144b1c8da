"""Finds folders saved by other libraries, and atomically writes folders in their formats."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from afjax.errors import UserError
from afjax.storage.paths import error_text, fetched, local_path


def find_folder(source: str, *, library: str, patterns: Sequence[str]) -> Path:
    """Returns a local path for a folder or a Hugging Face repository.

    Remote files are downloaded.

    Args:
      source: The folder, or a repository id on the Hugging Face hub.
      library: The name of the library that saved the folder, for error messages.
      patterns: Glob patterns for the files to download from a repository.

    Raises:
      UserError: The folder or repository does not exist, or the hub does not respond.
    """
    folder = fetched(source)
    if folder.is_dir():
        return folder
    if folder.exists() or source.startswith((".", "/", "~")) or source.count("/") != 1:
        raise UserError(
            f'"{source}" is not a folder; choose a folder saved by the {library} library, or a Hugging Face repository '
            "id."
        )
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(huggingface_hub.snapshot_download(source, allow_patterns=list(patterns)))
    except Exception as error:  # Without a network, the hub client raises many kinds of exceptions.
        has_answered = isinstance(error, HfHubHTTPError | HFValidationError)
        if has_answered and not isinstance(error, LocalEntryNotFoundError):
            raise UserError(
                f'"{source}" is neither a folder nor a model on the Hugging Face hub that you have access to ({error}).'
            ) from error
        raise UserError(f'"{source}" is not a folder, and the Hugging Face hub does not respond ({error}).') from error


def check_new_folder(output: str | Path) -> Path:
    """Expands the path of a folder to create and checks that it does not exist yet.

    Raises:
      UserError: The path exists or is on an object store.
    """
    output = local_path(output, "The output")
    if output.exists():
        raise UserError(f"{output} already exists; set --output to a new folder.")
    return output


@contextlib.contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """Yields a temporary folder that is renamed to ``output`` when the block succeeds.

    If the block raises, ``output`` is not created.

    Raises:
      UserError: The folder cannot be created or written.
    """
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(
            prefix=f".{output.name},", dir=output.parent, ignore_cleanup_errors=True
        )
    except OSError as error:
        raise UserError(f"{output} cannot be created ({error_text(error)}); choose another --output.") from error
    with temporary as parent:
        # A temporary folder has mode 0700, but a folder inside it has the usual mode.
        new = Path(parent) / output.name
        try:
            new.mkdir()
            yield new
            os.rename(new, output)
        except OSError as error:
            raise UserError(f"{output} cannot be written ({error_text(error)}); choose another --output.") from error
