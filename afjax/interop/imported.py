"""Saves imported artifacts to a store."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from afjax import store
from afjax.config.values import check_name
from afjax.errors import UserError
from afjax.store.manifest import plain
from afjax.trees import Tree, tree_digest
from afjax.trunk.pretrained import Trunk, load_trunk


@dataclasses.dataclass(frozen=True, kw_only=True)
class Imported:
    """An imported artifact.

    Attributes:
      kind: One of ``store.KINDS``.
      name: The artifact's name in the store.
      params: The artifact's parameters.
      details: The other fields of ``store.Draft``.
      notes: Notes for the user, each a clause such as "its learned scaling factor is folded into the up-projection".

    Example:
      >>> import numpy as np
      >>> from afjax import store
      >>> from afjax.interop.adapterhub import Imported
      >>> head = Imported(kind="heads", name="rte", params={"bias": np.zeros(2)}, details={"config": {}, "seed": 3})
      >>> store.Draft(kind=head.kind, name=head.name, params=head.params, trunk={}, **head.details).seed
      3
    """

    kind: str
    name: str
    params: Tree
    details: Mapping[str, Any]
    notes: Sequence[str] = ()


def checked_name(name: str, where: str | Path) -> str:
    """Returns an artifact's name in imported files if the store can use it.

    Raises:
      UserError: The name is invalid.
    """
    try:
        check_name(name, "artifact")
    except UserError as error:
        raise UserError(f"{where}: {str(error).rstrip('.')}; choose another with --name.") from error
    return name


def load_named_trunk(name: Any, where: str | Path) -> Trunk:
    """Loads the trunk that imported files name.

    Raises:
      UserError: The files do not name a trunk, or it cannot be loaded.
    """
    if not isinstance(name, str) or not name:
        raise UserError(f"{where} does not record which trunk it was trained on; set --trunk.")
    try:
        return load_trunk(name)
    except UserError as error:
        raise UserError(
            f'{where} was trained on "{name}", which cannot be loaded here ({str(error).rstrip(".")}); set --trunk.'
        ) from error


def save_imported(
    imported: Sequence[Imported], store_folder: str | Path, *, trunk: Trunk, source: str | Path, overwrite: bool
) -> None:
    """Saves imported artifacts to a store: all of them, or none on error.

    Bit-identical artifacts that are already in the store are kept. If all of them are already there, saving fails
    unless ``overwrite`` is set, because their names are taken.

    Args:
      imported: The artifacts.
      store_folder: The store.
      trunk: The trunk that they were trained on.
      source: The folder that they were imported from, for error messages.
      overwrite: Whether existing artifacts may be replaced.

    Raises:
      UserError: Two artifacts have the same name, or a name is taken.
    """
    titles = [f"{artifact.kind}/{artifact.name}" for artifact in imported]
    repeated = sorted({title for title in titles if titles.count(title) > 1})
    if repeated:
        raise UserError(f"{source} contains {', '.join(repeated)} twice; names must be unique within a folder.")
    existing = [artifact for artifact in imported if artifact.name in store.names(store_folder, artifact.kind)]
    same = [artifact for artifact in existing if _is_same(artifact, trunk, store_folder)]
    clashing = existing if len(same) == len(imported) else [artifact for artifact in existing if artifact not in same]
    if clashing and not overwrite:
        raise UserError(
            f'"{clashing[0].name}" already exists in {clashing[0].kind} of the store {store_folder}; choose another '
            "--name, or replace it with --overwrite."
        )
    drafts = [
        store.Draft(
            kind=artifact.kind, name=artifact.name, params=artifact.params, trunk=trunk.identity(), **artifact.details
        )
        for artifact in imported
        if overwrite or artifact not in same
    ]
    store.save_all(store_folder, drafts, overwrite=overwrite)


def _is_same(artifact: Imported, trunk: Trunk, store_folder: str | Path) -> bool:
    """Returns whether the store already has an identical artifact with this name."""
    try:
        manifest = store.read_manifest(store_folder, artifact.kind, artifact.name)
    except UserError:  # The stored artifact is damaged.
        return False
    details = {key: plain(value) for key, value in artifact.details.items()}
    return (
        manifest.digest == tree_digest(artifact.params)
        and not store.trunk_difference(manifest.trunk, trunk.identity()).differences
        and {key: plain(getattr(manifest, key)) for key in details} == details
    )
