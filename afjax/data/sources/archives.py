"""Reads files from .tar.gz and .zip archives without unpacking them to disk."""

import gzip
import lzma
import posixpath
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from afjax.errors import UserError
from afjax.storage.paths import error_text

ARCHIVE_ENDINGS = (".tar.gz", ".tgz", ".zip")
# Maximum size of a member in bytes, because members are read into memory. The longest text in 20 Newsgroups has 160,000
# bytes.
MAX_MEMBER_BYTES = 2**26

# Exceptions that the standard library raises for damaged archives.
_DAMAGED = (
    EOFError,
    NotImplementedError,
    ValueError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_archive(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yields ``(name, bytes)`` for the wanted files in an archive, in archive order.

    Links are not followed.

    Raises:
      UserError: The archive is missing, truncated or damaged; a wanted file is encrypted or larger than
        ``MAX_MEMBER_BYTES``; or any member, wanted or not, has a path or link target outside the archive.
    """
    kind = ".zip" if archive.name.endswith(".zip") else ".tar.gz"
    try:
        yield from (_read_zip if kind == ".zip" else _read_tar)(archive, wanted)
    except UserError:
        raise
    except _DAMAGED as error:
        raise UserError(
            f"{archive} is truncated, damaged or not a {kind} archive ({error}); download it again."
        ) from error
    except OSError as error:
        raise UserError(f"The archive {archive} cannot be read ({error_text(error)}).") from error


def _read_tar(archive: Path, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with gzip.open(archive) as unpacked, tarfile.open(fileobj=unpacked, mode="r:") as tar:
        for member in tar:
            name = posixpath.normpath(member.name)
            folder = posixpath.dirname(member.name) if member.issym() else ""
            _check_inside(archive, member.name, member.linkname if member.issym() or member.islnk() else "", folder)
            if member.isfile() and is_wanted(name):
                _check_size(archive, name, member.size)
                file = tar.extractfile(member)
                assert file is not None, "regular files can be opened"
                yield name, file.read()
        # Read to the end, where gzip verifies its checksum.
        while unpacked.read(2**20):
            pass


def _read_zip(archive: Path, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            name = posixpath.normpath(member.filename)
            is_link = stat.S_ISLNK(member.external_attr >> 16)
            folder = posixpath.dirname(member.filename)
            _check_inside(archive, member.filename, _link_target(packed, archive, member) if is_link else "", folder)
            if member.is_dir() or is_link or not is_wanted(name):
                continue
            if member.flag_bits & 1:
                raise UserError(f"{archive} has the member {name}, which is encrypted; unpack the archive first.")
            _check_size(archive, name, member.file_size)
            # zipfile reads no more than the size checked above and verifies the checksum.
            yield name, packed.read(member)


def _link_target(packed: zipfile.ZipFile, archive: Path, member: zipfile.ZipInfo) -> str:
    """Reads the target of a symbolic link.

    Zip archives store the target as the member's content.
    """
    _check_size(archive, member.filename, member.file_size)
    return packed.read(member).decode("utf-8", "replace")


def _check_size(archive: Path, name: str, size: int) -> None:
    if size > MAX_MEMBER_BYTES:
        raise UserError(
            f"{archive} has the member {name}, which unpacks to {size:,} bytes, more than the limit of "
            f"{MAX_MEMBER_BYTES:,}; download the archive from its official source."
        )


def _check_inside(archive: Path, name: str, target: str, folder: str = "") -> None:
    """Raises UserError if a member's path or link target is outside the archive.

    Args:
      archive: The archive.
      name: The member's name.
      target: The link's target; empty for other members.
      folder: The folder to which the target is relative.
    """
    outside = _is_absolute(name) or ".." in name.replace("\\", "/").split("/")
    if target:
        joined = posixpath.normpath(posixpath.join(folder, target.replace("\\", "/")))
        outside |= _is_absolute(joined) or joined.split("/")[0] == ".."
    if outside:
        link = f" (a link to {target})" if target else ""
        raise UserError(
            f"{archive} has the member {name}{link}, which leads out of the archive; download the archive from its "
            "official source."
        )


def _is_absolute(name: str) -> bool:
    return name.startswith(("/", "\\")) or name[1:2] == ":"
