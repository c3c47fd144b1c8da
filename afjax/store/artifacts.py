"""Loads and lists the artifacts in a store."""

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

from etils import epath

from afjax.config.values import check_name
from afjax.errors import UserError, did_you_mean
from afjax.storage.paths import AnyPath, absolute, check_readable, error_text, is_remote, open_path
from afjax.store import checkpoint, files
from afjax.store.manifest import KINDS, REPAIR, Manifest, check_unchanged, from_json
from afjax.store.trunk_identity import trunk_difference
from afjax.trees import Tree


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A loaded artifact: its manifest and its parameters.

    Attributes:
      manifest: The description of the artifact.
      params: The parameters, a tree of NumPy arrays with the saved shapes and dtypes.

    Example:
      >>> import numpy as np
      >>> from afjax import store
      >>> tree = {"ffn": {"down": {"kernel": np.zeros((2, 8, 4), np.float32)}}}
      >>> draft = store.Draft("adapters", "rte", tree, config={"size": 4}, trunk={"sha256": "ab"})
      >>> manifest = store.save("stores/artifact", draft)
      >>> artifact = store.load("stores/artifact", "adapters", "rte")
      >>> artifact.manifest.name, artifact.params["ffn"]["down"]["kernel"].shape
      ('rte', (2, 8, 4))
    """

    manifest: Manifest
    params: Tree


def load(store: AnyPath, kind: str, name: str, *, trunk: Mapping[str, Any] | None = None) -> Artifact:
    """Loads an artifact as NumPy arrays and checks its integrity.

    Args:
      store: The store's folder, local or ``gs://``.
      kind, name: The artifact's kind (one of ``KINDS``) and name.
      trunk: ``Trunk.identity()`` of the trunk in use, or the part of it to compare, such as ``{"sha256": digest}``.
        None accepts any trunk. See :func:`trunk_difference`.

    Returns:
      The manifest and the parameters, with the saved shapes and dtypes.

    Raises:
      UserError: The artifact does not exist (the message suggests the closest name), was trained on a different trunk,
        or is damaged (for example, a leaf is missing or a bit was flipped).

    Example:
      >>> import numpy as np
      >>> from afjax import store
      >>> tree = {"ffn": {"down": {"kernel": np.zeros((2, 8, 4), np.float32)}}}
      >>> draft = store.Draft("adapters", "rte", tree, config={"size": 4}, trunk={"sha256": "ab"})
      >>> manifest = store.save("stores/load", draft)
      >>> artifact = store.load("stores/load", "adapters", "rte", trunk={"sha256": "ab"})
      >>> artifact.params["ffn"]["down"]["kernel"].shape
      (2, 8, 4)
    """
    folder = folder_of(store, kind, name)
    location, text = read_text(folder, kind)
    while True:
        try:
            return _load(location, text, kind, name, trunk)
        except UserError:
            seen = location, text
            location, text = read_text(folder, kind)
            # If the manifest has changed, a writer replaced the artifact while it was being read, so read it again.
            if (location, text) == seen:
                raise


def exists(store: AnyPath) -> bool:
    """Checks whether the store's folder exists.

    Args:
      store: The store's folder, local or ``gs://``.

    Returns:
      True if the folder exists, even if it is empty.

    Raises:
      UserError: The path is invalid, or the object store cannot be read.

    Example:
      >>> from afjax import store
      >>> store.exists("stores/none")
      False
    """
    return store_folder(store).is_dir()


def read_manifest(store: AnyPath, kind: str, name: str) -> Manifest:
    """Reads an artifact's manifest, without its arrays.

    Args:
      store: The store's folder, local or ``gs://``.
      kind, name: The artifact's kind (one of ``KINDS``) and name.

    Returns:
      The manifest.

    Raises:
      UserError: The artifact does not exist (the message suggests the closest name), or its manifest is damaged.

    Example:
      >>> import numpy as np
      >>> from afjax import store
      >>> tree = {"ffn": {"down": {"kernel": np.zeros((2, 8, 4), np.float32)}}}
      >>> draft = store.Draft("adapters", "rte", tree, config={"size": 4}, trunk={"sha256": "ab"})
      >>> manifest = store.save("stores/read", draft)
      >>> store.read_manifest("stores/read", "adapters", "rte") == manifest
      True
    """
    location, text = read_text(folder_of(store, kind, name), kind)
    manifest = from_json(text, str(location / files.MANIFEST))
    check_unchanged(text, str(location / files.MANIFEST))
    return manifest


def names(store: AnyPath, kind: str) -> list[str]:
    """Lists the artifacts of one kind.

    Args:
      store: The store's folder, local or ``gs://``.
      kind: One of ``KINDS``.

    Returns:
      The names, sorted; empty if the store does not exist.

    Raises:
      UserError: The kind is unknown, or the store cannot be read.

    Example:
      >>> import numpy as np
      >>> from afjax import store
      >>> tree = {"ffn": {"down": {"kernel": np.zeros((2, 8, 4), np.float32)}}}
      >>> draft = store.Draft("adapters", "rte", tree, config={"size": 4}, trunk={"sha256": "ab"})
      >>> manifest = store.save("stores/names", draft)
      >>> store.names("stores/names", "adapters"), store.names("stores/names", "heads")
      (['rte'], [])
    """
    return _names(store, kind, incomplete=False)


def entries(store: AnyPath) -> list[Manifest]:
    """Reads the manifests of all artifacts.

    Args:
      store: The store's folder, local or ``gs://``.

    Returns:
      The manifests, sorted by kind and name.

    Raises:
      UserError: The store cannot be read, or a manifest is damaged.

    Example:
      >>> import numpy as np
      >>> from afjax import store
      >>> tree = {"ffn": {"down": {"kernel": np.zeros((2, 8, 4), np.float32)}}}
      >>> draft = store.Draft("adapters", "rte", tree, config={"size": 4}, trunk={"sha256": "ab"})
      >>> manifest = store.save("stores/entries", draft)
      >>> [(entry.kind, entry.name) for entry in store.entries("stores/entries")]
      [('adapters', 'rte')]
    """
    return [read_manifest(store, kind, name) for kind in KINDS for name in names(store, kind)]


def folders(store: AnyPath) -> list[tuple[str, str]]:
    """Lists all artifacts, including incomplete ones.

    Args:
      store: The store's folder, local or ``gs://``.

    Returns:
      ``(kind, name)`` of every complete and incomplete artifact.

    Raises:
      UserError: The store cannot be read.

    Example:
      >>> from pathlib import Path
      >>> from afjax import store
      >>> Path("stores/folders/adapters/rte").mkdir(parents=True)  # no manifest
      >>> store.folders("stores/folders"), store.entries("stores/folders")
      ([('adapters', 'rte')], [])
    """
    return [(kind, name) for kind in KINDS for name in _names(store, kind, incomplete=True)]


def kinds_of(store: AnyPath, name: str) -> list[str]:
    """Finds the artifacts with a name.

    Args:
      store: The store's folder, local or ``gs://``.
      name: The artifacts' name.

    Returns:
      The kinds of the complete artifacts with this name, or else of the incomplete ones, in the order of ``KINDS``.

    Raises:
      UserError: The store does not exist or cannot be read, or no artifact has the name (the message suggests the
        closest one).

    Example:
      >>> import numpy as np
      >>> from afjax import store
      >>> tree = {"ffn": {"down": {"kernel": np.zeros((2, 8, 4), np.float32)}}}
      >>> draft = store.Draft("adapters", "rte", tree, config={"size": 4}, trunk={"sha256": "ab"})
      >>> manifest = store.save("stores/kinds", draft)
      >>> store.kinds_of("stores/kinds", "rte")
      ['adapters']
    """
    artifacts = folders(store)
    if not artifacts:
        check_is_store(store)
    complete = [kind for kind in KINDS if name in names(store, kind)]
    kinds = complete or [kind for kind, other in artifacts if other == name]
    if not kinds:
        all_names = sorted({other for _, other in artifacts})
        raise UserError(
            f'Nothing in the store {store} is named "{name}".{did_you_mean(name, all_names)} It has: '
            f"{', '.join(all_names) or 'nothing'}."
        )
    return kinds


def check_is_store(folder: AnyPath) -> None:
    """Raises UserError if a folder does not exist, or has files but none of a store's folders."""
    if not exists(folder):
        raise UserError(f"There is no store at {folder}; pass the folder that contains {', '.join(KINDS)}.")
    entries = {entry.name for entry in store_folder(folder).iterdir() if not entry.name.startswith(".")}
    if entries and not entries & set(KINDS):
        inner = f" Did you mean {store_folder(folder) / 'store'}?" if "store" in entries else ""
        raise UserError(f"{folder} is not a store: it has none of the folders {', '.join(KINDS)}.{inner}")


def title(kind: str, name: str) -> str:
    """Names the artifact in an error message, such as ``The adapter "entail"``."""
    return f'The {_noun(kind)} "{name}"'


def _load(location: epath.Path, text: str, kind: str, name: str, trunk: Mapping[str, Any] | None) -> Artifact:
    where = str(location / files.MANIFEST)
    manifest = from_json(text, where)
    if (manifest.kind, manifest.name) != (kind, name):
        raise UserError(
            f"{location} holds {manifest.kind}/{manifest.name}, not {kind}/{name}; move the folder back to "
            f"{manifest.kind}/{manifest.name}."
        )
    if trunk is not None:
        _check_trunk(manifest, trunk, str(location.parent.parent))
    params = checkpoint.read(location / "params", manifest, str(location))
    check_unchanged(text, where)
    return Artifact(manifest, params)


def _check_trunk(manifest: Manifest, trunk: Mapping[str, Any], store: str) -> None:
    differences, unchecked = trunk_difference(manifest.trunk, trunk)
    if differences:
        raise UserError(
            f"{title(manifest.kind, manifest.name)} was trained on the trunk {manifest.trunk.get('name')}, which "
            f"differs from the trunk in use in {', '.join(differences)}. Load the original trunk, or retrain the "
            "artifact on this one."
            + (" The original trunk was saved by the artifact's training run." if manifest.trunk.get("trained") else "")
        )
    if unchecked:
        # The text is the same for all artifacts in the store, so that a command prints it once.
        warnings.warn(
            f"Some artifacts in the store {store} were saved by an earlier version of afjax and do not record "
            f"{' and '.join(unchecked)} of the trunk {manifest.trunk.get('name')}, so this was not checked. Make sure "
            "that the trunk's config.json and tokenizer are the same as in the training run.",
            stacklevel=2,
        )


def folder_of(store: AnyPath, kind: str, name: str) -> epath.Path:
    """Returns an artifact's folder, which need not exist.

    Raises:
      UserError: The kind or name is invalid, or the store is on an unsupported object store.
    """
    check_name(name, _noun(kind))
    return _kind_folder(store, kind) / name


def _kind_folder(store: AnyPath, kind: str) -> epath.Path:
    if kind not in KINDS:
        raise UserError(f'The kind "{kind}" is unknown; a store has {", ".join(KINDS)}.{did_you_mean(kind, KINDS)}')
    return store_folder(store) / kind


def store_folder(store: AnyPath) -> epath.Path:
    folder = open_path(store)
    if not is_remote(folder):
        return absolute(folder)
    check_readable(folder, "store")
    return folder


def _names(store: AnyPath, kind: str, *, incomplete: bool) -> list[str]:
    try:
        return files.folder_names(_kind_folder(store, kind), incomplete=incomplete)
    except OSError as error:
        raise UserError(f"The store {store} cannot be read: {error_text(error)}.") from error


def read_text(folder: epath.Path, kind: str) -> tuple[epath.Path, str]:
    """Reads the text of an artifact's manifest.

    Args:
      folder: The artifact's folder, from :func:`folder_of`.
      kind: The artifact's kind.

    Returns:
      The folder with the current contents (see :mod:`afjax.store.files`), and the manifest's text.

    Raises:
      UserError: The artifact does not exist (the message suggests the closest name) or cannot be read.
    """
    try:
        current = files.read_current(folder)
    except OSError as error:
        raise UserError(f"{folder / files.MANIFEST} cannot be read: {error_text(error)}.") from error
    if current is None:
        store = folder.parent.parent
        if folder.exists():
            raise UserError(
                f"{folder} has no {files.MANIFEST}, so it is not an artifact; {REPAIR}, or delete the folder."
            )
        if not (is_remote(store) or store.is_dir()):
            raise UserError(f"There is no store {store}; set --store to a store's folder.")
        # By default, a workdir's store is a subfolder named store.
        inner = store / "store"
        if (inner / kind).is_dir() and not (store / kind).is_dir():
            raise UserError(f"{store} is not a store; did you mean {inner}?")
        existing_names = names(store, kind)
        others = [_noun(other) for other in KINDS if other != kind and folder.name in names(store, other)]
        same_name = f" This is the name of: {', '.join(others)}." if others else ""
        raise UserError(
            f"{title(kind, folder.name)} is not in the store {store}.{did_you_mean(folder.name, existing_names)}"
            f"{same_name} It has: {', '.join(existing_names) or 'none'}."
        )
    location, manifest = current
    try:
        return location, manifest.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{location / files.MANIFEST} is not UTF-8 text; {REPAIR}.") from error


def _noun(kind: str) -> str:
    return {"adapters": "adapter", "fusion": "fusion", "heads": "head"}.get(kind, "artifact")
