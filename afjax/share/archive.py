"""Packs artifacts into uncompressed ``.tar`` files, and unpacks them.

The archive is uncompressed for three reasons: weights hardly compress, a compressor's output changes with its version,
and an uncompressed archive cannot unpack to more than its own size. Timestamps, file owners and order are fixed, so
archives with equal contents are bit-identical. Unpacked with ``tar xf``, the archive is a store with a model card.
"""

import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import IO

from afjax.errors import UserError
from afjax.share import bundle
from afjax.share.received import FETCH_AGAIN, check_artifacts
from afjax.storage.paths import DISK_FULL, AnyPath, error_text, local_path
from afjax.storage.writing import replacing
from afjax.store.files import MANIFEST
from afjax.store.manifest import Manifest

ENDING = ".tar"


def pack(
    store: AnyPath, name: str, file: AnyPath, *, kind: str = "", head: str = "", license: str = ""
) -> tuple[Manifest, ...]:
    """Packs an artifact with its dependencies and a model card into one file.

    An adapter is packed with its head, and a fusion with its adapters and its head. In the file, the head has the name
    of its adapter or fusion. Local paths in the manifests are shortened to their last part. If packing fails, no file
    is written.

    Args:
      store: The store, local or ``gs://``.
      name: The artifact's name.
      file: A local path that ends in ``.tar``. An existing file is replaced.
      kind: ``adapters``, ``fusion`` or ``heads``. Defaults to the adapter or fusion of that name, or else the head.
      head: The head to pack with an adapter or a fusion. Defaults to the head that was trained with it. If there are
        several, it is the one with the same name.
      license: An identifier such as ``apache-2.0`` for the card. Empty if unknown.

    Returns:
      The manifests of the packed artifacts. The manifest of the artifact ``name`` comes last.

    Raises:
      UserError: No artifact has this name, or an adapter and a fusion do; a fusion's adapters are missing or have
        changed; several heads could be packed, or ``head`` was trained with something else; an artifact is damaged; or
        the file cannot be written.

    Example:
      >>> import numpy as np
      >>> from afjax import share, store
      >>> tree = {"ffn": {"down": {"kernel": np.zeros((2, 8, 4), np.float32)}}}
      >>> draft = store.Draft("adapters", "rte", tree, config={}, trunk={"name": "minilm", "sha256": "ab"})
      >>> _ = store.save("stores/pack", draft)
      >>> [manifest.name for manifest in share.pack("stores/pack", "rte", "packed.tar", license="apache-2.0")]
      ['rte']
    """
    path = local_path(file, "The archive")
    if path.suffix != ENDING:
        raise UserError(f"The archive is named {path}; choose a name that ends in {ENDING}, the archive's format.")
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"{path} cannot be written: {'it is' if path.is_dir() else 'its parent is not'} a folder.")
    with tempfile.TemporaryDirectory(prefix="afjax-") as temporary:
        folder = Path(temporary)
        manifests = bundle.write(store, name, folder, kind=kind, head=head, license=license)
        _write(path, folder)
    return manifests


def unpack(file: AnyPath, store: AnyPath, *, name: str = "", overwrite: bool = False) -> tuple[Manifest, ...]:
    """Checks an archive written by :func:`pack` and installs its artifacts in a store.

    Args:
      file: A local path.
      store: The store, local or ``gs://``. It is created if it does not exist.
      name: New name for the packed artifact and its head. Empty to keep their name. A fusion's adapters are never
        renamed.
      overwrite: Whether existing artifacts may be replaced.

    Returns:
      The manifests in the store. The packed artifact's manifest comes last.

    Raises:
      UserError: The archive is truncated, damaged or modified, it contains anything except artifacts and a model card,
        or a name is taken. Nothing is written in this case.

    Example:
      >>> import numpy as np
      >>> from afjax import share, store
      >>> tree = {"ffn": {"down": {"kernel": np.zeros((2, 8, 4), np.float32)}}}
      >>> draft = store.Draft("adapters", "rte", tree, config={}, trunk={"name": "minilm", "sha256": "ab"})
      >>> _ = store.save("stores/unpack", draft)
      >>> _ = share.pack("stores/unpack", "rte", "rte.tar")
      >>> [manifest.name for manifest in share.unpack("rte.tar", "stores/unpacked", name="rte-2")]
      ['rte-2']
    """
    path = local_path(file, "The archive")
    with bundle.staging_folder(store) as folder:
        _extract_all(path, folder)
        manifests = bundle.read(folder, where=str(path), advice=FETCH_AGAIN)
        return bundle.install(manifests, folder, store, name=name, overwrite=overwrite)


def _write(path: Path, folder: Path) -> None:
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
    try:
        with replacing(path) as part, tarfile.open(part, "w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
            # The card and the manifests come first, so that programs that need only these can stop early.
            for name in sorted(files, key=lambda name: (name != bundle.CARD, not name.endswith(f"/{MANIFEST}"), name)):
                member = tarfile.TarInfo(name)
                member.size = files[name].stat().st_size
                with files[name].open("rb") as contents:
                    tar.addfile(member, contents)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error_text(error)}). Free up space or choose another --output."
        ) from error


def _extract_all(path: Path, folder: Path) -> None:
    """Checks an archive, then extracts its artifacts to an empty folder.

    All names, manifests and sizes are checked before anything is written.
    """
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as tar:
            members = _members(tar, path)
            sizes = {name: member.size for name, member in members.items() if name != bundle.CARD}
            check_artifacts(
                sizes,
                lambda names: (_contents(tar, members[name]).read() for name in names),
                num_bytes=path.stat().st_size,
                where=str(path),
            )
            for name, member in members.items():
                if name != bundle.CARD:
                    _extract(tar, member, folder / name)
    except UserError:
        raise
    # The standard library raises these for files that are not valid archives.
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise UserError(f"{path} is truncated, damaged or not a {ENDING} archive ({error}); {FETCH_AGAIN}.") from error
    except OSError as error:
        if error.errno in DISK_FULL:
            raise UserError(
                f"{path} cannot be unpacked to {folder.parent} ({error_text(error)}); free up space there."
            ) from error
        raise UserError(f"{error.filename or path} cannot be used ({error_text(error)}).") from error


def _members(tar: tarfile.TarFile, path: Path) -> dict[str, tarfile.TarInfo]:
    """Lists an archive's members by name.

    Raises:
      UserError: A member is not a regular file or occurs twice, or the archive has no valid end.
    """
    members: dict[str, tarfile.TarInfo] = {}
    # Check the members one by one: with a forged size, the standard library would return the same members forever.
    for member in tar:
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
            raise UserError(f"{path} has the member {member.name!r}, which is not a regular file; {FETCH_AGAIN}.")
        if member.name in members:
            raise UserError(f"{path} has the member {member.name!r} twice; {FETCH_AGAIN}.")
        members[member.name] = member
    # The standard library treats an unreadable header as the end, but a valid end is two or more blocks of zeros.
    ends = [
        member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE for member in members.values()
    ]
    assert tar.fileobj is not None
    tar.fileobj.seek(max(ends, default=0))
    end_marker = tar.fileobj.read(2 * tarfile.RECORDSIZE + 1)
    if not 2 * tarfile.BLOCKSIZE <= len(end_marker) <= 2 * tarfile.RECORDSIZE or any(end_marker):
        raise UserError(f"{path} has no end-of-archive marker, so it is truncated or damaged; {FETCH_AGAIN}.")
    return members


def _contents(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    contents = tar.extractfile(member)
    assert contents is not None, "members are regular files"
    return contents


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Writes a member to ``target``.

    ``check_artifacts`` must have accepted its name.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with _contents(tar, member) as contents, target.open("wb") as file:
        shutil.copyfileobj(contents, file)
