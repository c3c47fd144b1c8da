"""Paths from users, local or on Google Cloud Storage (``gs://``)."""

import contextlib
import errno
import hashlib
import logging
import os
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from etils import epath

from afjax.display.terminal import print_line, progress_bar, shows_bars
from afjax.errors import TemporaryError, UserError

AnyPath = str | os.PathLike[str]


def cache_folder() -> Path:
    """Returns the folder for files that can be recreated.

    It is ``$AFJAX_CACHE``, or ``~/.cache/afjax`` by default.
    """
    return Path(os.environ.get("AFJAX_CACHE") or "~/.cache/afjax").expanduser()


def is_remote(path: AnyPath) -> bool:
    """Checks whether ``path`` is on an object store.

    Object stores have no folders, cannot rename files or append to them, and write atomically.
    """
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", os.fspath(path)) is not None


def open_path(path: AnyPath) -> epath.Path:
    """Converts a user's path to an ``epath.Path``, for disks and object stores, and expands ``~``.

    Raises:
      UserError: The value is not a path, is empty or invalid, starts with an unknown home folder, or is on an object
        store other than ``gs://BUCKET``; or gcsfs is not installed.
    """
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"A path is {path!r}, of type {type(path).__name__}; pass a string or a pathlib.Path.")
    if not os.fspath(path):
        raise UserError('A path is empty; use "." for the current folder.')
    if not is_remote(path):
        return epath.Path(expanded(path))
    _check_not_file_url(path)
    # Check the scheme before epath does, because epath's error for an unknown scheme is unhelpful.
    if not re.match("gs://[^/]", os.fspath(path)):
        raise UserError(f"{path} is on an unsupported object store; use a local path or gs://BUCKET/PATH.")
    # TensorStore ends a path at "?" and "#". gcsfs expands patterns, even when it deletes files.
    if wrong := re.search(r"[*?#\[\]]", os.fspath(path)):
        raise UserError(f'{path} contains "{wrong[0]}", which paths on Cloud Storage cannot; rename the folder.')
    # Cloud Storage has no folders, so "..", as part of an object's name, would not lead to a parent folder.
    if {".", ".."} & set(os.fspath(path).split("/")):
        raise UserError(f'{path} has a part "." or ".."; write the path on Cloud Storage without it.')
    opened = epath.Path(path)
    try:
        import fsspec
        import gcsfs  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"{path} is on Google Cloud Storage, which needs {error.name}; run pip install 'afjax[gcs]'."
        ) from error
    # Cached listings would hide files that other processes, or TensorStore in this process, have written since.
    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
    # Every error that these loggers report is also raised as an exception.
    for name in ("gcsfs", "google.auth"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return opened


def local_path(path: AnyPath, what: str) -> Path:
    """Checks that a path is local, and expands ``~``.

    Args:
      path: The path.
      what: The name of the path in error messages.

    Raises:
      UserError: The path is on an object store.
    """
    if is_remote(path):
        _check_not_file_url(path)
        raise UserError(f"{what} is {path}, which is on an object store; copy it to a local disk and use that path.")
    return expanded(path)


def _check_not_file_url(path: AnyPath) -> None:
    if os.fspath(path).startswith("file://"):
        raise UserError(f"{path} is a URL; write the local path without file://.")


def expanded(path: AnyPath) -> Path:
    """Expands ``~`` and ``~USER`` in a local path.

    Raises:
      UserError: The user's home folder is unknown, the path contains an invalid character, or it was on Cloud Storage
        before ``pathlib.Path`` removed one of its slashes.
    """
    if re.match("gs:/(?!/)", os.fspath(path)):
        raise UserError(
            f"{path} has one slash after the colon, because pathlib.Path removes the other; pass a path on Cloud "
            "Storage as a string or as an etils.epath.Path."
        )
    if "\0" in os.fspath(path):
        raise UserError(f"The path {os.fspath(path)!r} contains a NUL character; use a different path.")
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"The path {os.fspath(path)!r} is not valid UTF-8; use a different path.") from None
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"The home folder in the path {path} is unknown; write the path out in full.") from None


def absolute(path: epath.Path) -> epath.Path:
    """Returns the absolute path. Paths on object stores are always absolute.

    If the path contains ``..``, symbolic links are resolved, because ``LINK/..`` is the parent of the link's target.
    """
    if is_remote(path):
        return path
    return epath.Path(os.path.realpath(path)) if ".." in path.parts else path.absolute()


def client_errors() -> tuple[type[Exception], ...]:
    """Returns the exceptions raised by gcsfs and Google's libraries.

    If these libraries are not installed, only OSError is returned.
    """
    try:
        import aiohttp
        from gcsfs.retry import ChecksumError, HttpError, NonRetryableError
        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import GoogleAuthError
    except ImportError:
        return (OSError,)
    return OSError, ChecksumError, HttpError, NonRetryableError, aiohttp.ClientError, GoogleAPIError, GoogleAuthError


def is_temporary(error: BaseException | None) -> bool:
    """Checks whether an error was caused by a failure of Cloud Storage or the network that may not happen again.

    Missing credentials, permissions, buckets and files are not temporary.
    """
    # Without gcsfs, no path is on Cloud Storage. Do not import it here, because that takes seconds.
    if not isinstance(error, Exception) or isinstance(error, TemporaryError) or "gcsfs" not in sys.modules:
        return isinstance(error, TemporaryError)
    import aiohttp
    from gcsfs.retry import errs, is_retriable
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError, TransportError

    if is_temporary(error.__cause__):
        return True
    if isinstance(error, GoogleAuthError):
        return isinstance(error, TransportError) or bool(error.retryable)
    # gcsfs retries 401 too, because new credentials may help.
    code = getattr(error, "status" if isinstance(error, aiohttp.ClientResponseError) else "code", None)
    if isinstance(error, aiohttp.InvalidURL) or code in (401, "401"):
        return False
    if isinstance(error, GoogleAPIError | aiohttp.ClientResponseError):
        return code in errs
    if isinstance(error, TimeoutError):
        return error.errno is None  # An error of the operating system has a number.
    # TensorStore raises ValueError with a status code.
    unavailable = isinstance(error, ValueError) and re.match("(ABORTED|DEADLINE_EXCEEDED|UNAVAILABLE): ", str(error))
    return bool(unavailable or is_retriable(error))


def error_text(error: Exception) -> str:
    """Returns the system's message for an error, or else the first line of its text, or else its type."""
    return getattr(error, "strerror", None) or str(error).strip().partition("\n")[0] or type(error).__name__


def client_error_text(error: Exception) -> str | None:
    """Returns a sentence about an error of gcsfs or Google's libraries; None for other errors."""
    if is_temporary(error):
        return f"The network or Google Cloud Storage failed ({error_text(error)}); try again."
    # See is_temporary for this condition.
    if "gcsfs" in sys.modules and isinstance(error, client_errors()) and not isinstance(error, OSError):
        return f"Google Cloud Storage failed ({error_text(error)}); check the credentials, permissions and names."
    return None


# Numbers of the errors of a full disk.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def file_error(what: str, error: Exception, *, advice: str, cause: str = "") -> UserError:
    """Creates the error for a file or folder that cannot be read or written.

    Args:
      what: A clause, such as ``The run's folder FOLDER cannot be written``.
      error: The exception.
      advice: Sentences that tell the user what to do, unless the error is temporary.
      cause: The reason; empty for :func:`error_text`.

    Returns:
      A ``TemporaryError`` if the error is temporary, otherwise a ``UserError``.
    """
    cause = cause or error_text(error)
    if is_temporary(error):
        return TemporaryError(f"{what} ({cause}). Cloud Storage failed; start the same command again.")
    return UserError(f"{what} ({cause}). {advice}")


def check_readable(folder: epath.Path, what: str) -> None:
    """Raises UserError unless a folder on an object store can be listed.

    The folder need not exist.
    """
    with _explain_errors(folder, what, "read"):
        try:
            next(iter(folder.iterdir()), None)
        except FileNotFoundError:  # The folder or its bucket does not exist.
            if not _bucket(folder).exists():
                raise


def check_writable(folder: epath.Path, what: str) -> None:
    """Raises UserError unless files can be written to a folder on an object store.

    Writes, reads and removes a small file, and checks that the bucket's metadata is readable.
    """
    marker = folder / f".afjax-{uuid.uuid4().hex}"
    with _explain_errors(folder, what, "written"):
        marker.write_text("afjax checks its write permission.\n")
        marker.read_bytes()
        info = _bucket_info(folder)
        marker.unlink()
    # Orbax reads the bucket's metadata. Without permission, gcsfs falls back to a listing, which has a different kind.
    if info.get("kind") != "storage#bucket":
        raise UserError(
            f"The {what} {folder} cannot be used: checkpoints need the permission storage.buckets.get on "
            f"{_bucket(folder)}; grant it with the role Storage Legacy Bucket Reader."
        )


def fetched(path: AnyPath) -> Path:
    """Returns a local path to a file or folder.

    A file or folder on an object store is downloaded. The download to :func:`cache_folder` is atomic. It is only
    repeated if the names, sizes or generations of the files have changed.

    Raises:
      UserError: The file or folder does not exist or cannot be read, or the cache cannot be written.
    """
    source = open_path(path)
    if not is_remote(source):
        return expanded(path)
    import fsspec

    with _explain_errors(source, "path", "read"):
        system, root = fsspec.url_to_fs(os.fspath(source))
        # Names ending in a slash are placeholders that cloud consoles create for empty folders.
        files = {name: info for name, info in system.find(root, detail=True).items() if not name.endswith("/")}
        if not files:
            raise FileNotFoundError(source)
    versions = [f"{name} {info['size']} {info['generation']}" for name, info in sorted(files.items())]
    folder = cache_folder() / "fetched" / hashlib.sha256("\n".join([root, *versions]).encode()).hexdigest()[:16]
    if not folder.exists():
        _fetch(system, root, {name: info["size"] for name, info in files.items()}, folder, source)
    return folder / source.name


def _fetch(system: Any, root: str, sizes: dict[str, int], folder: Path, source: epath.Path) -> None:
    """Downloads ``source``, a file or a folder, to ``folder / source.name``."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=folder.parent, suffix=".part"))
    except OSError as error:
        raise UserError(
            f"{source} cannot be copied to {folder.parent} ({error_text(error)}); set AFJAX_CACHE."
        ) from None
    if not shows_bars():
        print_line(f"fetching {source}")
    try:
        with (
            _explain_errors(source, "path", "copied"),
            progress_bar(f"fetching {source}", sum(sizes.values()), unit="B", scale=True) as bar,
        ):
            for name, size in sizes.items():
                relative = name.removeprefix(root).lstrip("/")
                if ".." in relative.split("/"):
                    raise UserError(f'{source} contains {name}, which has ".." in its path; rename or remove it.')
                target = part / source.name / relative
                target.parent.mkdir(parents=True, exist_ok=True)
                system.get_file(name, str(target))
                bar.update(size)
        try:
            os.rename(part, folder)
        except OSError:
            # Another process may have finished first. Its copy is identical.
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _bucket(path: epath.Path) -> epath.Path:
    return epath.Path("gs://" + os.fspath(path).removeprefix("gs://").partition("/")[0])


def _bucket_info(path: epath.Path) -> dict[str, Any]:
    import fsspec

    system, bucket = fsspec.url_to_fs(os.fspath(_bucket(path)))
    return system.info(bucket)


def is_path(name: str) -> bool:
    """Checks whether a name is a path rather than an id.

    A name is a path if it looks like one or if it is an existing folder.
    """
    return _looks_like_path(name) or Path(name).is_dir()


def as_path(path: str) -> str:
    """Returns a path that cannot be mistaken for an id in another working directory.

    Example:
      >>> as_path("trunks/mine"), as_path("/trunks/mine")
      ('./trunks/mine', '/trunks/mine')
    """
    return path if _looks_like_path(path) else f"./{path}"


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1 or is_remote(name)


def last_part(path: str) -> str:
    """Returns the last part of a path as a relative path, such as ``./rte``."""
    last = PurePosixPath(path.replace("\\", "/")).name
    return f"./{last}" if last not in ("", "..") else "."


@contextlib.contextmanager
def _explain_errors(path: epath.Path, role: str, done: str) -> Iterator[None]:
    """Converts object store errors to a UserError with a one-sentence message."""
    try:
        yield
    except client_errors() as error:
        kind = TemporaryError if is_temporary(error) else UserError
        raise kind(f"The {role} {path} cannot be {done}: {reason(error, path)}.") from error


def reason(error: Exception, path: epath.Path) -> str:
    """Explains an object store error and how to fix it."""
    import google.auth.exceptions

    if is_temporary(error):
        return f"{error_text(error)}; try again"
    if isinstance(error, google.auth.exceptions.GoogleAuthError) or getattr(error, "code", None) == 401:
        return (
            "there are no valid credentials for Google Cloud; run gcloud auth application-default login, or set "
            "GOOGLE_APPLICATION_CREDENTIALS to a key file"
        )
    if str(error).startswith("Forbidden") or getattr(error, "code", None) == 403:
        return f"permission denied (403); ask for the role Storage Object Admin on {_bucket(path)}"
    if isinstance(error, FileNotFoundError):
        return f"the path or the bucket {_bucket(path)} does not exist; check the name, or create the bucket"
    return f"{error_text(error)}; try again"
