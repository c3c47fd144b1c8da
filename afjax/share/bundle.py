"""Writes bundles and installs them in stores.

A bundle holds one artifact and everything it needs for predictions, in a folder that is itself a store. An adapter is
bundled with its head, and a fusion with its adapters and its head. A head takes the name of its adapter or fusion. The
same checks apply when a bundle is written from a store and when it is installed in one.
"""

import contextlib
import dataclasses
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from etils import epath

from afjax.config.values import check_name
from afjax.errors import UserError
from afjax.model.stored import head_to_share
from afjax.share.model_card import model_card
from afjax.share.provenance import COMMITTED, COMMITTED_TEXT, shareable
from afjax.storage.paths import DISK_FULL, AnyPath, error_text, is_remote
from afjax.store.artifacts import folder_of, folders, kinds_of, load, names, read_manifest, read_text, store_folder
from afjax.store.checks import problems
from afjax.store.files import MANIFEST, copy
from afjax.store.manifest import KINDS, REPAIR, Manifest, from_json, to_json
from afjax.store.saving import check_still_there, replaced_artifacts, write_lock
from afjax.store.trunk_identity import trunk_difference

CARD = "README.md"


def write(
    store: AnyPath, name: str, folder: Path, *, kind: str = "", head: str = "", license: str = "", repository: str = ""
) -> tuple[Manifest, ...]:
    """Copies an artifact and its dependencies, checks them and adds a model card.

    Args:
      store: The store, local or ``gs://``.
      name: The artifact's name.
      folder: An empty local folder.
      kind: One of ``KINDS``. Defaults to the adapter or fusion of that name, or else the head.
      head: The head to bundle with an adapter or a fusion; see :func:`afjax.model.stored.head_to_share`.
      license: An identifier such as ``apache-2.0``. Empty if unknown.
      repository: The hub repository, for the usage example in the model card. Empty for an archive.

    Returns:
      The manifests of the bundle. The manifest of the artifact ``name`` comes last.

    Raises:
      UserError: No artifact has this name, or an adapter and a fusion do; a fusion's adapters are missing or have
        changed; or an artifact is damaged.
    """
    if license and not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", license, re.ASCII):
        raise UserError(f'The license "{license}" is not an identifier such as apache-2.0, mit or cc-by-4.0.')
    manifests = tuple(shareable(manifest) for manifest in _copied(store, _parts(store, name, kind, head), folder))
    for manifest in manifests:
        path = folder / manifest.kind / manifest.name
        if COMMITTED in manifest.files:
            (path / "params" / COMMITTED).write_text(COMMITTED_TEXT, encoding="utf-8")
        (path / MANIFEST).write_text(to_json(manifest), encoding="utf-8")
    card = model_card(manifests, repository=repository, license=license)
    (folder / CARD).write_text(card, encoding="utf-8")
    return manifests


def _copied(store: AnyPath, parts: Sequence[tuple[str, str]], folder: Path) -> tuple[Manifest, ...]:
    """Copies artifacts from a store to a bundle's folder and checks the copies.

    Args:
      store: The store.
      parts: ``(kind, name)`` of the artifacts. A head takes the name of the last one.
      folder: The bundle's folder.
    """
    main = parts[-1][1]

    def current() -> list[tuple[epath.Path, str]]:
        return [read_text(folder_of(store, kind, name), kind) for kind, name in parts]

    texts = current()
    while True:
        try:
            for (source, _), (kind, name) in zip(texts, parts, strict=True):
                target = epath.Path(folder) / kind / (main if kind == "heads" else name)
                copy(source, target)
                if target.name != name:
                    manifest = from_json((target / MANIFEST).read_text(), str(source / MANIFEST))
                    (target / MANIFEST).write_text(to_json(dataclasses.replace(manifest, name=main)))
            return read(folder, where=str(store))
        except (UserError, OSError) as error:
            if isinstance(error, OSError) and error.errno in DISK_FULL:
                raise UserError(
                    f"The artifacts cannot be copied to the temporary folder {folder} ({error_text(error)}); free up "
                    "space there, or choose another one with the environment variable TMPDIR."
                ) from error
            seen, texts = texts, current()
            # If a manifest has changed, a writer replaced the artifact while it was being copied, so copy it again.
            if texts == seen:
                raise
            for kind, _ in parts:
                shutil.rmtree(folder / kind, ignore_errors=True)


def read(folder: Path, *, where: str, advice: str = REPAIR) -> tuple[Manifest, ...]:
    """Reads and checks all artifacts in a bundle, including their arrays.

    Args:
      folder: The bundle's folder.
      where: The name of the bundle in error messages.
      advice: How to fix a damaged artifact, for error messages.

    Returns:
      The manifests. The main artifact's manifest comes last.

    Raises:
      UserError: An artifact is damaged, or the artifacts do not belong together.
    """
    for kind, name in folders(folder):
        for problem in problems(folder, kind, name):
            # The folder is temporary, so the message names the bundle instead.
            raise UserError(problem.replace(str(folder.resolve()), where).replace(REPAIR, advice))
    return in_order([read_manifest(folder, kind, name) for kind, name in folders(folder)], where)


def in_order(manifests: Sequence[Manifest], where: str) -> tuple[Manifest, ...]:
    """Sorts a bundle's manifests by dependency, with the main artifact's last.

    Raises:
      UserError: The artifacts do not belong together.
    """
    manifests_by_kind = {kind: [manifest for manifest in manifests if manifest.kind == kind] for kind in KINDS}
    main = next(manifests_by_kind[kind][-1] for kind in ("fusion", "adapters", "heads") if manifests_by_kind[kind])
    expected = {(main.kind, main.name), *(("adapters", member["name"]) for member in main.adapters)}
    included = {(manifest.kind, manifest.name) for manifest in manifests}
    if included - {("heads", main.name)} != expected - {("heads", main.name)}:
        listed = ", ".join(f"{kind}/{name}" for kind, name in sorted(included))
        raise UserError(
            f"{where} holds {listed}, which is not one adapter, fusion or head with its dependencies; pack it again."
        )
    for manifest in manifests:
        if differences := trunk_difference(manifest.trunk, main.trunk).differences:
            raise UserError(
                f"{where} holds artifacts for different trunks, which cannot be used together: {manifest.kind}/"
                f"{manifest.name} and {main.kind}/{main.name} differ in {', '.join(differences)}; pack it again."
            )
    for head in manifests_by_kind["heads"]:
        if head != main and not head.belongs_to(main):
            raise UserError(
                f"{where} holds the head {head.name}, which was trained with {head.trained_with['kind']}/"
                f"{head.trained_with['name']}, not with {main.kind}/{main.name}; pack it again."
            )
    parts = sorted((manifest for manifest in manifests if manifest != main), key=lambda part: (part.kind, part.name))
    return (*parts, main)


def install(
    manifests: Sequence[Manifest], folder: Path, store: AnyPath, *, name: str = "", overwrite: bool = False
) -> tuple[Manifest, ...]:
    """Installs a bundle in a store, all or nothing.

    If the store already has an identical copy of an artifact other than the main one, that copy is kept. It may come
    from another fusion of the same adapters, or from an installation that was killed.

    Args:
      manifests: The result of :func:`read`.
      folder: The folder passed to :func:`read`.
      store: The store, local or ``gs://``. It is created if it does not exist.
      name: New name for the main artifact and its head. Empty to keep their name. A fusion's adapters are never
        renamed.
      overwrite: Whether existing artifacts may be replaced.

    Returns:
      The manifests in the store.

    Raises:
      UserError: A name is invalid or taken, or the store cannot be written. Nothing is written in this case.
    """
    main = manifests[-1]
    if name:
        check_name(name, "artifact")
    named = [_named(part, main, name) for part in manifests]
    with write_lock(store, f"{main.kind}/{named[-1].name} cannot be written to {store}") as root:
        existing = [part for part in named if part.name in names(store, part.kind)]
        unchanged = [part for part in existing if part != named[-1] and _is_same(store, part)]
        if not overwrite:
            _check_not_taken([part for part in existing if part not in unchanged], main, store)
        new = [
            (part, part_named) for part, part_named in zip(manifests, named, strict=True) if part_named not in unchanged
        ]
        with replaced_artifacts(store, [(part.kind, part.name) for _, part in new]) as targets:
            for (part, part_named), target in zip(new, targets, strict=True):
                copy(epath.Path(folder) / part.kind / part.name / "params", target / "params")
                (target / MANIFEST).write_text(to_json(part_named))
    if is_remote(root):
        check_still_there(store, [part for _, part in new])
    return tuple(named)


def _named(part: Manifest, main: Manifest, name: str) -> Manifest:
    """Renames the main artifact or its head in its manifest.

    Other manifests are returned unchanged.
    """
    if not name or part.kind not in (main.kind, "heads"):
        return part
    record = dict(part.trained_with)
    if record.get("kind") == main.kind:
        record["name"] = name
    return dataclasses.replace(part, name=name, trained_with=record)


def _check_not_taken(parts: Sequence[Manifest], main: Manifest, store: AnyPath) -> None:
    titles = [f"{part.kind}/{part.name}" for part in parts]
    if titles:
        members = [part for part in titles if main.kind == "fusion" and part.startswith("adapters/")]
        otherwise = (
            "choose another store, because a fusion's adapters keep their names"
            if members
            else "choose another name with --name"
        )
        raise UserError(
            f"The store {store} already has {' and '.join(titles)}. Nothing was changed; pass --overwrite to "
            f"replace them, or {otherwise}."
        )


@contextlib.contextmanager
def staging_folder(store: AnyPath) -> Iterator[Path]:
    """Yields a temporary folder for checking a bundle before installation.

    For a local store, the folder is on the same disk.
    """
    root = store_folder(store)
    parent = None
    if not is_remote(root):
        # Use the store or its closest existing parent: the store is not created until the checks have passed.
        parent = next(str(path) for path in (root, *root.parents) if path.is_dir())
    try:
        temporary = tempfile.TemporaryDirectory(prefix=".afjax-", dir=parent)
    except OSError as error:
        raise UserError(
            f"The store {store} cannot be written ({error_text(error)}); free up space or choose another --store."
        ) from error
    with temporary as folder:
        yield Path(folder)


def _parts(store: AnyPath, name: str, kind: str, head: str) -> list[tuple[str, str]]:
    """Lists ``(kind, name)`` of an artifact's dependencies and the artifact itself.

    The artifact itself comes last.
    """
    main = read_manifest(store, kind or _kind_of(store, name), name)
    parts = [("adapters", str(member["name"])) for member in main.adapters]
    if head := head_to_share(store, main.kind, name, head):
        parts.append(("heads", head))
    for part_kind, part in parts:
        if part not in names(store, part_kind):
            raise UserError(
                f'The fusion "{name}" needs the adapter "{part}", which is not in the store {store}. Restore that '
                "adapter, or train the fusion again."
            )
    return [*parts, (main.kind, name)]


def _kind_of(store: AnyPath, name: str) -> str:
    kinds = kinds_of(store, name)
    if kinds[:2] == ["adapters", "fusion"]:
        raise UserError(
            f'The store {store} has an adapter and a fusion named "{name}"; pass --kind=adapters or --kind=fusion.'
        )
    return kinds[0]


def _is_same(store: AnyPath, part: Manifest) -> bool:
    """Checks whether the store has this artifact undamaged, up to local paths in manifests."""
    try:
        return shareable(load(store, part.kind, part.name).manifest) == shareable(part)
    except UserError:  # The stored artifact is damaged.
        return False
