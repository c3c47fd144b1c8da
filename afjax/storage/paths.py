"""Paths that users give: local, or on Google Cloud Storage (``gs://``), where gcsfs does what ``epath`` asks for."""

import contextlib
import hashlib
import logging
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from etils import epath

from afjax.display.terminal import print_line, progress_bar, shows_bars
from afjax.errors import UserError

AnyPath = str | os.PathLike[str]


def cache_folder() -> Path:
    """Where what can be made again is kept: ``$AFJAX_CACHE``, else ``~/.cache/afjax``."""
    return Path(os.environ.get("AFJAX_CACHE") or Path.home() / ".cache" / "afjax")


def is_remote(path: AnyPath) -> bool:
    """Whether ``path`` is on an object store: no folders, no renaming, no appending; files appear whole."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", os.fspath(path)) is not None


def open_path(path: AnyPath) -> epath.Path:
    """A path as it was given, of a kind that does the same on disks and on object stores.

    Raises:
      UserError: Not a path, an empty path, an object store other than ``gs://BUCKET``, or gcsfs is not installed.
    """
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"A path is {path!r}, of the type {type(path).__name__}; give a string or a pathlib.Path.")
    if not os.fspath(path):
        raise UserError('An empty path was given; give a folder, "." for the current one.')
    if not is_remote(path):
        expanded(path)  # Refuses what no path can be.
        return epath.Path(path)
    # Before epath sees it, which has no words for the schemes that it does not know.
    if not re.match("gs://[^/]", os.fspath(path)):
        raise UserError(f"{path} is on no object store that afjax knows; give a local path or gs://BUCKET/PATH.")
    opened = epath.Path(path)
    try:
        import fsspec
        import gcsfs  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"{path} is on Google Cloud Storage, which needs {error.name}; run pip install 'afjax[gcs]'."
        ) from error
    # Listings that are remembered would hide what other processes, and TensorStore in this one, write meanwhile.
    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
    # What they print comes as exceptions too.
    for name in ("gcsfs", "google.auth"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return opened


def local_path(path: AnyPath, what: str) -> Path:
    """``path``, with ``~`` expanded, where it must be on a disk; ``what`` is what an error calls it.

    Raises:
      UserError: It is on an object store.
    """
    if is_remote(path):
        raise UserError(f"{what} is {path}, which is on an object store; copy it to a disk and give that folder.")
    return expanded(path)


def expanded(path: AnyPath) -> Path:
    """A local path with ``~`` and ``~USER`` replaced by the home folder.

    Raises:
      UserError: There is no such user, or the path holds a character that no path can have.
    """
    if "\0" in os.fspath(path):
        raise UserError(f"The path {os.fspath(path)!r} holds a NUL character; give another.")
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        raise UserError(f"The path {os.fspath(path)!r} is not valid UTF-8; give another.") from None
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"The path {path} names a user whose home folder is not known; give the whole path.") from None


def absolute(path: epath.Path) -> epath.Path:
    """The path from the root on, which those on object stores always are."""
    return path if is_remote(path) else path.absolute()


def client_errors() -> tuple[type[Exception], ...]:
    """What gcsfs and Google's libraries raise; OSError alone where they are not installed."""
    try:
        import aiohttp
        from gcsfs.retry import HttpError, NonRetryableError
        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import GoogleAuthError
    except ImportError:
        return (OSError,)
    return OSError, HttpError, NonRetryableError, aiohttp.ClientError, GoogleAPIError, GoogleAuthError


def check_readable(folder: epath.Path, what: str) -> None:
    """Raises UserError unless a folder on an object store, which need not be there, can be listed."""
    with _sentences(folder, what, "read"):
        try:
            next(iter(folder.iterdir()), None)
        except FileNotFoundError:  # The folder, or the whole bucket.
            if not _bucket(folder).exists():
                raise


def check_writable(folder: epath.Path, what: str) -> None:
    """Raises UserError unless files can be written to a folder on an object store, and removed: one is."""
    marker = folder / f".afjax-{uuid.uuid4().hex}"
    with _sentences(folder, what, "written"):
        marker.write_text("afjax checks that it may write here.\n")
        marker.read_bytes()
        about = _bucket_info(folder)
        marker.unlink()
    # Orbax asks which kind of bucket it is; gcsfs makes do with a listing, which does not know.
    if about.get("kind") != "storage#bucket":
        raise UserError(
            f"The {what} {folder} cannot be used: storage.buckets.get is not allowed on {_bucket(folder)}, which "
            "checkpoints need; grant it (role Storage Legacy Bucket Reader)."
        )


def fetched(path: AnyPath) -> Path:
    """The local path of a file or folder; of one on an object store, that of a copy in :func:`cache_folder`.

    A copy is made once, whole or not at all, and again where names, sizes or generations have changed since.

    Raises:
      UserError: There is nothing, or it cannot be read, or the cache cannot be written.
    """
    source = open_path(path)
    if not is_remote(source):
        return expanded(path)
    import fsspec

    with _sentences(source, "path", "read"):
        system, root = fsspec.url_to_fs(os.fspath(source))
        # Names that end in a slash are what consoles put in the place of empty folders.
        found = {name: about for name, about in system.find(root, detail=True).items() if not name.endswith("/")}
        if not found:
            raise FileNotFoundError(source)
    versions = [f"{name} {about['size']} {about['generation']}" for name, about in sorted(found.items())]
    folder = cache_folder() / "fetched" / hashlib.sha256("\n".join([root, *versions]).encode()).hexdigest()[:16]
    if not folder.exists():
        _fetch(system, root, {name: about["size"] for name, about in found.items()}, folder, source)
    return folder / source.name


def _fetch(system: Any, root: str, sizes: dict[str, int], folder: Path, source: epath.Path) -> None:
    """Copies files to ``folder / source.name``, where the one named like the root is a file and no folder."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=folder.parent, suffix=".part"))
    except OSError as error:
        raise UserError(f"{source} cannot be copied to {folder.parent} ({error.strerror}); set AFJAX_CACHE.") from None
    if not shows_bars():
        print_line(f"fetching {source}")
    try:
        with (
            _sentences(source, "path", "copied"),
            progress_bar(f"fetching {source}", sum(sizes.values()), unit="B", scale=True) as bar,
        ):
            for name, size in sizes.items():
                target = part / source.name / name.removeprefix(root).lstrip("/")
                target.parent.mkdir(parents=True, exist_ok=True)
                system.get_file(name, str(target))
                bar.update(size)
        try:
            os.rename(part, folder)
        except OSError:
            # Another process may have been quicker; its copy is the same.
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
    """Whether a word that may be an id is the path of a folder."""
    looks_like_one = name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1 or is_remote(name)
    return looks_like_one or Path(name).is_dir()


def last_part(path: str) -> str:
    """A path without the folders above it, as in ``./rte``."""
    last = PurePosixPath(path.replace("\\", "/")).name
    return f"./{last}" if last not in ("", "..") else "."


@contextlib.contextmanager
def _sentences(path: epath.Path, what: str, done: str) -> Iterator[None]:
    """Says in one sentence why something on an object store cannot be read or written."""
    try:
        yield
    except client_errors() as error:
        raise UserError(f"The {what} {path} cannot be {done}: {reason(error, path)}.") from error


def reason(error: Exception, path: epath.Path) -> str:
    """Why an object store does not do what it was asked for, and what to do."""
    import google.auth.exceptions

    if isinstance(error, google.auth.exceptions.GoogleAuthError) or getattr(error, "code", None) == 401:
        return (
            "there are no valid credentials for Google Cloud; run gcloud auth application-default login, or set "
            "GOOGLE_APPLICATION_CREDENTIALS to a key's file"
        )
    if str(error).startswith("Forbidden") or getattr(error, "code", None) == 403:
        return f"these credentials may not (403); ask for the role Storage Object Admin on {_bucket(path)}"
    if isinstance(error, FileNotFoundError):
        return f"there is nothing of that name, or no bucket {_bucket(path)}; check the name, or make the bucket"
    told = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
    return f"{told}; try again"
