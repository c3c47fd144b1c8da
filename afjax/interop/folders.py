"""Finds folders that other libraries have saved, and writes folders for them completely or not at all."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from afjax.errors import UserError
from afjax.storage.paths import expanded, fetched


def find_folder(source: str, *, library: str, patterns: Sequence[str]) -> Path:
    """Finds a folder that a library saved: a local folder, a folder on an object store, or a repository.

    Args:
      source: The folder, or its id on the Hugging Face hub.
      library: The name of the library, for error messages.
      patterns: Glob patterns of the files to download from a repository.

    Raises:
      UserError: There is no such folder, or the hub does not respond.
    """
    folder = fetched(source)
    if folder.is_dir():
        return folder
    if folder.exists() or source.startswith((".", "/", "~")) or source.count("/") != 1:
        raise UserError(f'"{source}" is not a folder; give one that the {library} library has saved, or a hub id.')
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(huggingface_hub.snapshot_download(source, allow_patterns=list(patterns)))
    except (HfHubHTTPError, HFValidationError) as error:
        raise UserError(
            f'"{source}" is neither a folder nor a model of the Hugging Face hub that you may read ({error}).'
        ) from error
    except (LocalEntryNotFoundError, OSError) as error:
        raise UserError(f'"{source}" is not a folder, and the Hugging Face hub does not respond ({error}).') from error


def check_new_folder(output: str | Path) -> Path:
    """Returns the path of a folder to create.

    Raises:
      UserError: The folder exists.
    """
    output = expanded(output)
    if output.exists():
        raise UserError(f"{output} already exists; give --output the name of a new folder.")
    return output


@contextlib.contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """Yields a temporary folder, and renames it to ``output`` after the block.

    If the block fails, ``output`` is not created.

    Raises:
      UserError: The folder cannot be made or written.
    """
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{output.name},", dir=output.parent))
    except OSError as error:
        raise UserError(f"{output} cannot be made ({error.strerror}); give another --output.") from error
    try:
        yield new
        # mkdtemp creates folders with mode 0700.
        os.chmod(new, 0o777 & ~_umask())
        os.rename(new, output)
    except OSError as error:
        raise UserError(f"{output} cannot be written ({error.strerror or error}); give another --output.") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
