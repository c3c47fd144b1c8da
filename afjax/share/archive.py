"""One file of an adapter, a fusion or a head with all that predicts with it: a plain ``.tar`` of a store and a card.

Plain, because weights hardly compress, because a compressor's bytes change with its version, and because nothing in a
plain archive can unpack to more than its own size. Times, owners and order are fixed, so equal contents are equal
bytes. Unpacked with ``tar xf``, it is a store.
"""

import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import IO

from afjax.errors import UserError
from afjax.share import bundle
from afjax.share.received import (
    FETCH_AGAIN,
    check_files,
    check_manifest_size,
    check_unpacked_size,
    files_by_artefact,
    manifest_from,
)
from afjax.storage.paths import AnyPath, local_path
from afjax.storage.writing import replacing
from afjax.store.artefacts import StorePath
from afjax.store.files import MANIFEST
from afjax.store.manifest import Manifest

ENDING = ".tar"


def pack(store: StorePath, name: str, file: AnyPath, *, kind: str = "", license: str = "") -> tuple[Manifest, ...]:
    """Writes an artefact, what belongs to it and a model card to one file, whole or not at all.

    An adapter takes the head of its name along where there is one, a fusion its adapters and its head. Paths of this
    machine in the manifests are cut to their last part.

    Args:
      store: The store, local or ``gs://``.
      name: Of the artefact.
      file: A local path that ends in ``.tar``; a file that is there is replaced.
      kind: ``adapters``, ``fusion`` or ``heads``; empty: what has that name, a head where nothing else has.
      license: An identifier such as ``apache-2.0`` for the card; empty: unknown.

    Returns:
      The manifests of what was packed, what it is about last.

    Raises:
      UserError: Nothing of that name, or of several kinds; a fusion whose adapters are missing or others; damage; or
        the file cannot be written.
    """
    path = local_path(file, "The archive")
    if path.suffix != ENDING:
        raise UserError(f"The archive is to be {path}; give a name that ends in {ENDING}, which is what is written.")
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"{path} cannot be written: {'it is' if path.is_dir() else 'its parent is not'} a folder.")
    with tempfile.TemporaryDirectory(prefix="afjax-") as place:
        folder = Path(place)
        manifests = bundle.write(store, name, folder, kind=kind, license=license)
        _write(path, folder)
    return manifests


def unpack(file: AnyPath, store: StorePath, *, name: str = "", overwrite: bool = False) -> tuple[Manifest, ...]:
    """Puts what :func:`pack` wrote into a store, after all of it has been checked.

    Args:
      file: A local path.
      store: The store, local or ``gs://``; made where it is missing.
      name: A new name for what the archive is about, and for its head; empty: its own. A fusion's adapters keep theirs.
      overwrite: Whether artefacts of these names may be replaced.

    Returns:
      The manifests as they are in the store, what the archive is about last.

    Raises:
      UserError: The archive is truncated, damaged or was changed, holds anything but artefacts and a model card, or a
        name is taken; then nothing was written.
    """
    path = local_path(file, "The archive")
    with bundle.waiting_room(store) as folder:
        _extract_all(path, folder)
        manifests = bundle.read(folder, where=str(path), advice=FETCH_AGAIN)
        return bundle.install(manifests, folder, store, name=name, overwrite=overwrite)


def _write(path: Path, folder: Path) -> None:
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
    try:
        with replacing(path) as part, tarfile.open(part, "w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
            # The card and the manifests first, for those who only want to look.
            for name in sorted(files, key=lambda name: (name != bundle.CARD, not name.endswith(f"/{MANIFEST}"), name)):
                member = tarfile.TarInfo(name)
                member.size = files[name].stat().st_size
                with files[name].open("rb") as contents:
                    tar.addfile(member, contents)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror or error}); make room or give another --output."
        ) from error


def _extract_all(path: Path, folder: Path) -> None:
    """Writes an archive's artefacts to an empty folder, after a look at all names, manifests and sizes."""
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as tar:
            members = _members(tar, path)
            _check(tar, members, path)
            for name, member in members.items():
                if name != bundle.CARD:
                    _extract(tar, member, folder / name)
    except UserError:
        raise
    # What the standard library says of archives that are none.
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise UserError(f"{path} is truncated, damaged or no {ENDING} archive ({error}); {FETCH_AGAIN}.") from error
    except OSError as error:
        raise UserError(f"{error.filename or path} cannot be used ({error.strerror or error}).") from error


def _check(tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo], path: Path) -> None:
    by_artefact = files_by_artefact((name for name in members if name != bundle.CARD), str(path))
    manifests = []
    for (kind, name), files in by_artefact.items():
        prefix = f"{kind}/{name}/"
        where, member = f"{path}, {prefix}{MANIFEST}", members[prefix + MANIFEST]
        check_manifest_size(member.size, where)
        manifest = manifest_from(_contents(tar, member).read(), kind, name, where)
        check_files(manifest, files, sum(members[prefix + file].size for file in files), str(path))
        manifests.append(manifest)
    check_unpacked_size(manifests, path.stat().st_size, str(path))
    bundle.in_order(manifests, str(path))


def _members(tar: tarfile.TarFile, path: Path) -> dict[str, tarfile.TarInfo]:
    """All members by name: plain files, each there once, up to the archive's proper end."""
    members: dict[str, tarfile.TarInfo] = {}
    # One by one: a forged size leads the standard library back to a member it has been to, again and again.
    for member in tar:
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
            raise UserError(f"{path} has the member {member.name!r}, which is no plain file; {FETCH_AGAIN}.")
        if member.name in members:
            raise UserError(f"{path} has the member {member.name!r} twice; {FETCH_AGAIN}.")
        members[member.name] = member
    # The standard library takes a header that it cannot read for the end, which is two blocks of zeros or more.
    ends = [
        member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE for member in members.values()
    ]
    assert tar.fileobj is not None
    tar.fileobj.seek(max(ends, default=0))
    rest = tar.fileobj.read(2 * tarfile.RECORDSIZE + 1)
    if not 2 * tarfile.BLOCKSIZE <= len(rest) <= 2 * tarfile.RECORDSIZE or any(rest):
        raise UserError(f"{path} does not end as an archive does, so it is truncated or damaged; {FETCH_AGAIN}.")
    return members


def _contents(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    contents = tar.extractfile(member)
    assert contents is not None, "members are plain files"
    return contents


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Writes a member whose name ``files_by_artefact`` has let pass."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with _contents(tar, member) as contents, target.open("wb") as file:
        shutil.copyfileobj(contents, file)
