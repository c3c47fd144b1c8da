"""Saving, loading, listing and verifying artefacts."""

import dataclasses
import datetime
import importlib.metadata
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from afjax.config import check_name
from afjax.errors import UserError, did_you_mean
from afjax.paths import check_readable, is_remote, open_path
from afjax.store import checkpoint, files
from afjax.store.manifest import (
    FORMAT_VERSION,
    KINDS,
    REPAIR,
    Manifest,
    check_unchanged,
    describe,
    from_json,
    names_difference,
    plain,
    to_json,
)
from afjax.store.trunk_identity import trunk_difference
from afjax.trees import Tree, flatten, map_with_path

StorePath = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Artefact:
    """What :func:`load` gives: all about an artefact, and its tree of NumPy arrays."""

    manifest: Manifest
    params: Tree


def save(
    store: StorePath,
    kind: str,
    name: str,
    params: Tree,
    *,
    config: Mapping[str, Any],
    trunk: Mapping[str, Any],
    task: Mapping[str, Any] | None = None,
    labels: Sequence[str] = (),
    metrics: Mapping[str, Any] | None = None,
    seed: int = 0,
    adapters: Sequence[Mapping[str, str]] = (),
    overwrite: bool = False,
) -> Manifest:
    """Saves an artefact; readers see all of it or, as before, none of it, even if the process is killed.

    On a multi-host run one process calls this, with arrays it can address wholly.

    Args:
      store: The store's folder, local or ``gs://``; made where it is missing.
      kind: One of ``KINDS``.
      name: The artefact's name, see ``config.check_name``.
      params: Its own tree, of arrays of any shape and dtype.
      config, trunk, task, labels, metrics, seed, adapters: As in :class:`Manifest`; values that JSON knows.
      overwrite: Whether an artefact of that kind and name may be replaced.

    Raises:
      UserError: A bad kind or name, an artefact that is there already, or a store that cannot be written.
        The store is then as it was.
    """
    folder = folder_of(store, kind, name)
    params = map_with_path(lambda path, leaf: np.asarray(leaf), params)
    try:
        with files.replaced(folder, overwrite=overwrite) as target:
            manifest = Manifest(
                format_version=FORMAT_VERSION,
                kind=kind,
                name=name,
                config=plain(config),
                task=plain(task or {}),
                labels=tuple(labels),
                trunk=plain(trunk),
                leaves={path: describe(leaf) for path, leaf in flatten(params).items()},
                files=checkpoint.write(target / "params", params),
                metrics=plain(metrics or {}),
                seed=int(seed),
                versions=_versions(),
                adapters=plain(adapters),
                created=datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
            )
            (target / files.MANIFEST).write_text(to_json(manifest))
    except OSError as error:
        raise UserError(f"{title(kind, name)} cannot be written to {store}: {error.strerror or error}.") from error
    return manifest


def load(
    store: StorePath,
    kind: str,
    name: str,
    *,
    trunk: Mapping[str, Any] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Artefact:
    """Loads an artefact to the host, whole and as it was saved, or not at all.

    Args:
      store, kind, name: As in :func:`save`.
      trunk: ``Trunk.identity()`` of the trunk in use, or the part of it that is to be compared, such as
        ``{"sha256": digest}``; None: any trunk. See :func:`trunk_difference`.
      shapes: ``{leaf path: shape}`` of the model that it is for; None: any.

    Raises:
      UserError: It is not there (with the nearest name), was made on another trunk, has leaves other
        than ``shapes``, or is damaged: a missing or extra leaf, another shape, a flipped bit.
    """
    folder = folder_of(store, kind, name)
    place, text = read_text(folder, kind)
    while True:
        try:
            return _load(place, text, kind, name, trunk, shapes)
        except UserError:
            seen = place, text
            place, text = read_text(folder, kind)
            # Else a writer has replaced it in the meantime, and files of two artefacts came together.
            if (place, text) == seen:
                raise


def exists(store: StorePath) -> bool:
    """Whether there is a folder for the store."""
    return store_folder(store).is_dir()


def read_manifest(store: StorePath, kind: str, name: str) -> Manifest:
    """The manifest of an artefact, without looking at its arrays.

    Raises:
      UserError: It is not there (with the nearest name), or its manifest is damaged.
    """
    place, text = read_text(folder_of(store, kind, name), kind)
    manifest = from_json(text, str(place / files.MANIFEST))
    check_unchanged(text, str(place / files.MANIFEST))
    return manifest


def names(store: StorePath, kind: str) -> list[str]:
    """The sorted names of the artefacts of one kind; none where there is no such folder yet.

    Raises:
      UserError: The store cannot be read.
    """
    return _names(store, kind, incomplete=False)


def entries(store: StorePath) -> list[Manifest]:
    """The manifests of all artefacts, by kind and name.

    Raises:
      UserError: A manifest is damaged.
    """
    return [read_manifest(store, kind, name) for kind in KINDS for name in names(store, kind)]


def folders(store: StorePath) -> list[tuple[str, str]]:
    """``(kind, name)`` of every artefact, and of every other folder that stands in the place of one."""
    return [(kind, name) for kind in KINDS for name in _names(store, kind, incomplete=True)]


def title(kind: str, name: str) -> str:
    """The artefact as the subject of a sentence."""
    return f'The {_noun(kind)} "{name}"'


def _load(
    place: epath.Path,
    text: str,
    kind: str,
    name: str,
    trunk: Mapping[str, Any] | None,
    shapes: Mapping[str, tuple[int, ...]] | None,
) -> Artefact:
    where = str(place / files.MANIFEST)
    manifest = from_json(text, where)
    if (manifest.kind, manifest.name) != (kind, name):
        raise UserError(
            f'{place} holds "{manifest.name}" of {manifest.kind}, not "{name}" of {kind}; move the folder back to '
            f"{manifest.kind}/{manifest.name}."
        )
    if trunk is not None:
        _check_trunk(manifest, trunk, str(place.parent.parent))
    params = checkpoint.read(place / "params", manifest, str(place))
    check_unchanged(text, where)
    if shapes is not None:
        _check_shapes(manifest, shapes)
    return Artefact(manifest, params)


def _check_trunk(manifest: Manifest, trunk: Mapping[str, Any], store: str) -> None:
    differences, unchecked = trunk_difference(manifest.trunk, trunk)
    if differences:
        raise UserError(
            f"{title(manifest.kind, manifest.name)} was trained on the trunk {manifest.trunk.get('name')}, which "
            f"differs from the one in use in {', '.join(differences)}; load the trunk it was trained on, or train "
            "it again on this one."
        )
    if unchecked:
        # The same text for every artefact of the store, so that a command prints it once.
        warnings.warn(
            f"Artefacts in the store {store} do not record {' and '.join(unchecked)} of the trunk "
            f"{manifest.trunk.get('name')}, because an earlier version of afjax saved them, so this was not checked; "
            "make sure that the trunk's config.json and tokenizer are those of the training run.",
            stacklevel=2,
        )


def _check_shapes(manifest: Manifest, shapes: Mapping[str, tuple[int, ...]]) -> None:
    does_not_fit = f"{title(manifest.kind, manifest.name)} does not fit the model"
    advice = "set the model up as the manifest says, or train it again for this one"
    difference = names_difference(shapes, manifest.leaves)
    if difference:
        raise UserError(f"{does_not_fit}, leaves missing (-) or unknown to the model (+): {difference}; {advice}.")
    for path, shape in shapes.items():
        saved = tuple(manifest.leaves[path]["shape"])
        if tuple(shape) != saved:
            raise UserError(f'{does_not_fit}: the leaf "{path}" is {saved}, in the model {tuple(shape)}; {advice}.')


def folder_of(store: StorePath, kind: str, name: str) -> epath.Path:
    """Where an artefact is, or would be.

    Raises:
      UserError: A bad kind or name, or a store on a kind of object store that is not known.
    """
    check_name(name, _noun(kind))
    return _kind_folder(store, kind) / name


def _kind_folder(store: StorePath, kind: str) -> epath.Path:
    if kind not in KINDS:
        raise UserError(f'The kind "{kind}" is not known; a store has {", ".join(KINDS)}.{did_you_mean(kind, KINDS)}')
    return store_folder(store) / kind


def store_folder(store: StorePath) -> epath.Path:
    folder = open_path(store)
    if not is_remote(folder):
        return folder.expanduser().resolve()
    check_readable(folder, "store")
    return folder


def _names(store: StorePath, kind: str, *, incomplete: bool) -> list[str]:
    try:
        return files.folder_names(_kind_folder(store, kind), incomplete=incomplete)
    except OSError as error:
        raise UserError(f"The store {store} cannot be read: {error.strerror or error}.") from error


def read_text(folder: epath.Path, kind: str) -> tuple[epath.Path, str]:
    """Where an artefact is now, and its manifest's text; ``folder`` is that of :func:`folder_of`.

    Raises:
      UserError: It is not there (with the nearest name), or cannot be read.
    """
    try:
        found = files.read_current(folder)
    except OSError as error:
        raise UserError(f"{folder / files.MANIFEST} cannot be read: {error.strerror or error}.") from error
    if found is None:
        store = folder.parent.parent
        if folder.exists():
            raise UserError(f"{folder} has no {files.MANIFEST}, so it is no artefact; {REPAIR}, or delete the folder.")
        there = names(store, kind)
        raise UserError(
            f"{title(kind, folder.name)} is not in the store {store}.{did_you_mean(folder.name, there)}"
            f" It has: {', '.join(there) or 'none'}."
        )
    place, manifest = found
    try:
        return place, manifest.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{place / files.MANIFEST} is not UTF-8 text; {REPAIR}.") from error


def _noun(kind: str) -> str:
    return {"adapters": "adapter", "fusion": "fusion", "heads": "head"}.get(kind, "artefact")


def _versions() -> dict[str, str]:
    packages = {"afjax": "afjax", "jax": "jax", "flax": "flax", "orbax": "orbax-checkpoint", "numpy": "numpy"}
    return {key: _version(package) for key, package in packages.items()}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # afjax, run from its source tree.
        return "not installed"
