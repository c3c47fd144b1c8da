"""Checks untrusted files (names, manifests, sizes) before anything is written."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from afjax.config.values import check_name
from afjax.errors import UserError
from afjax.share.bundle import in_order
from afjax.store.files import MANIFEST
from afjax.store.manifest import KINDS, REPAIR, Manifest, check_unchanged, from_json, names_difference, to_json

MAX_MANIFEST_BYTES = 2**24
# Files may unpack to FREE_BYTES of parameters plus MAX_RATIO times their own size. Without this limit, a few bytes of
# compressed zeros could exhaust memory. Trained weights hardly compress.
FREE_BYTES, MAX_RATIO = 2**30, 100

# The advice for unusable files. The store's own advice addresses users who trained the artifact themselves.
FETCH_AGAIN = "download or copy the shared files again"


def check_artifacts(
    sizes: Mapping[str, int], read: Callable[[Sequence[str]], Iterable[bytes]], num_bytes: int, where: str
) -> None:
    """Checks the names, manifests and sizes of all files in an archive or repository.

    Args:
      sizes: The size of each file, by path relative to the root of the archive or repository.
      read: Returns the contents of some files. It is only called with manifests, after all names and the manifests'
        sizes have been checked.
      num_bytes: The size of the archive or repository.
      where: The name of the archive or repository in error messages.

    Raises:
      UserError: A name, a manifest or a size is invalid, or the artifacts do not belong together.
    """
    artifact_files = _files_by_artifact(sizes, where)
    paths = [f"{kind}/{name}/{MANIFEST}" for kind, name in artifact_files]
    for path in paths:
        if sizes[path] > MAX_MANIFEST_BYTES:
            raise UserError(
                f"{where}, {path} has {sizes[path]} bytes, which is too large for a manifest; {FETCH_AGAIN}."
            )
    manifests = []
    for path, contents, ((kind, name), files) in zip(paths, read(paths), artifact_files.items(), strict=True):
        manifest = _manifest_from(contents, kind, name, f"{where}, {path}")
        _check_files(manifest, files, sum(sizes[f"{kind}/{name}/{file}"] for file in files), where)
        manifests.append(manifest)
    unpacked = sum(manifest.num_bytes for manifest in manifests)
    if unpacked > FREE_BYTES + MAX_RATIO * num_bytes:
        raise UserError(
            f"{where} has {num_bytes} bytes, but its manifests list {unpacked} bytes of parameters, so it was rejected."
        )
    in_order(manifests, where)


def _files_by_artifact(paths: Iterable[str], where: str) -> dict[tuple[str, str], set[str]]:
    """Groups file paths by artifact: ``{(kind, name): {path in its folder, ...}}``.

    Args:
      paths: The paths of all files, relative to the root of the archive or repository.
      where: The name of the archive or repository in error messages.

    Raises:
      UserError: A path escapes the folder, a file does not belong to an artifact, a name is invalid, an artifact has no
        manifest, or there are no artifacts.
    """
    artifact_files: dict[tuple[str, str], set[str]] = {}
    for path in paths:
        parts = path.split("/")
        if not path.isprintable() or "\\" in path or not {"", ".", ".."}.isdisjoint(parts):
            raise UserError(
                f"{where} has the file {path!r}, whose path escapes the folder or is unusual; {FETCH_AGAIN}."
            )
        if parts[0] not in KINDS or not (parts[2:] == [MANIFEST] or (parts[2:3] == ["params"] and len(parts) > 3)):
            raise UserError(
                f"{where} has the file {path}, which does not belong to an artifact (only {', '.join(KINDS)} are "
                f"allowed, laid out as in a store); {FETCH_AGAIN}."
            )
        try:
            check_name(parts[1], "artifact")
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        artifact_files.setdefault((parts[0], parts[1]), set()).add("/".join(parts[2:]))
    for (kind, name), files in artifact_files.items():
        if MANIFEST not in files:
            raise UserError(f"{where} has files of {kind}/{name}, but not its {MANIFEST}; {FETCH_AGAIN}.")
    if not artifact_files:
        raise UserError(f"{where} holds no adapter, fusion or head; use the output of afjax store pack or push.")
    return artifact_files


def _manifest_from(contents: bytes, kind: str, name: str, where: str) -> Manifest:
    """Parses an untrusted manifest and validates its checksum and values.

    Raises:
      UserError: The manifest is damaged, has an unsupported format version, does not match its folder's kind and name,
        or has values that afjax never writes.
    """
    try:
        text = contents.decode()
        manifest = from_json(text, where)
        check_unchanged(text, where)
        valid = _is_valid(manifest)
        to_json(manifest)  # Installing writes the manifest again, which fails for NaN and infinity.
    except UserError as error:
        raise UserError(str(error).replace(REPAIR, FETCH_AGAIN)) from error
    except (ValueError, MemoryError) as error:  # Not UTF-8, or too large.
        raise UserError(f"{where} is not a manifest ({type(error).__name__}); {FETCH_AGAIN}.") from error
    if not valid:
        raise UserError(f"{where} has values that afjax never writes; {FETCH_AGAIN}.")
    if (manifest.kind, manifest.name) != (kind, name):
        raise UserError(
            f"{where} belongs to {manifest.kind}/{manifest.name}, not to {kind}/{name}. Ask the sender to pack "
            "it again. You can rename it when you unpack it."
        )
    return manifest


def _check_files(manifest: Manifest, files: Collection[str], num_bytes: int, where: str) -> None:
    """Raises UserError unless an artifact's files match its manifest.

    Their names and total size are compared.
    """
    expected = {MANIFEST, *(f"params/{file}" for file in manifest.files)}
    if difference := names_difference(expected, files):
        listing = ", ".join(difference.split(", ")[:8])
        raise UserError(
            f"{where}: the files of {manifest.kind}/{manifest.name} do not match its manifest (- missing, "
            f"+ unexpected): {listing}; {FETCH_AGAIN}."
        )
    # Allow for incompressible weights and for each leaf's metadata.
    if num_bytes > 2 * manifest.num_bytes + 2**20 * (len(manifest.leaves) + 1):
        raise UserError(
            f"{where}: the files of {manifest.kind}/{manifest.name} have {num_bytes} bytes, but its manifest lists "
            f"{manifest.num_bytes} bytes of parameters; {FETCH_AGAIN}."
        )


def _is_valid(manifest: Manifest) -> bool:
    """Checks the values that ``from_json`` does not check.

    Raises:
      UserError: The name of a fused adapter is invalid.
    """
    members = [adapter["name"] for adapter in manifest.adapters]
    for member in members:
        check_name(member, "adapter")
    if manifest.kind == "heads":
        sizes = [manifest.config.get(key) for key in ("num_outputs", "max_length")]
        if not all(isinstance(size, int) for size in sizes) or "output/bias" not in manifest.leaves:
            return False
    record = manifest.trained_with
    if record and (manifest.kind != "heads" or record["kind"] not in ("adapters", "fusion", "trunk")):
        return False
    digests = [*manifest.files.values(), *(adapter["sha256"] for adapter in manifest.adapters)]
    digests += [record["sha256"]] if record else []
    return (
        all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
        and len(set(members)) == len(members)
        and bool(members) == (manifest.kind == "fusion")
        and "sha256" in manifest.trunk
    )
