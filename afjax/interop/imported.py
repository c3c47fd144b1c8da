"""Saves imported artefacts to a store."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from afjax import store
from afjax.errors import UserError
from afjax.store.manifest import plain
from afjax.trees import Tree, tree_digest
from afjax.trunk.pretrained import Trunk


@dataclasses.dataclass(frozen=True, kw_only=True)
class Imported:
    """An imported artefact.

    Attributes:
      kind: One of ``store.KINDS``.
      name: The artefact's name in the store.
      params: The artefact's parameters.
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


def save_imported(
    imported: Sequence[Imported], store_folder: str | Path, *, trunk: Trunk, source: str | Path, overwrite: bool
) -> None:
    """Saves imported artefacts to a store: all of them, or none on error.

    Bit-identical artefacts that are already in the store are kept. If all of them are already there, saving fails
    unless ``overwrite`` is set, because their names are taken.

    Args:
      imported: The artefacts.
      store_folder: The store.
      trunk: The trunk that they were trained on.
      source: The folder that they were imported from, for error messages.
      overwrite: Whether existing artefacts may be replaced.

    Raises:
      UserError: Two artefacts have the same name, or a name is taken.
    """
    titles = [f"{artefact.kind}/{artefact.name}" for artefact in imported]
    repeated = sorted({title for title in titles if titles.count(title) > 1})
    if repeated:
        raise UserError(f"{source} contains {', '.join(repeated)} twice; names must be unique within a folder.")
    existing = [artefact for artefact in imported if artefact.name in store.names(store_folder, artefact.kind)]
    same = [artefact for artefact in existing if _is_same(artefact, trunk, store_folder)]
    clashing = existing if len(same) == len(imported) else [artefact for artefact in existing if artefact not in same]
    if clashing and not overwrite:
        raise UserError(
            f'"{clashing[0].name}" already exists in {clashing[0].kind} of the store {store_folder}; choose another '
            "--name, or replace it with --overwrite."
        )
    drafts = [
        store.Draft(
            kind=artefact.kind,
            name=artefact.name,
            params=artefact.params,
            trunk=trunk.identity(),
            **artefact.details,
        )
        for artefact in imported
        if overwrite or artefact not in same
    ]
    store.save_all(store_folder, drafts, overwrite=overwrite)


def _is_same(artefact: Imported, trunk: Trunk, store_folder: str | Path) -> bool:
    """Returns whether the store already has an identical artefact with this name."""
    try:
        manifest = store.read_manifest(store_folder, artefact.kind, artefact.name)
    except UserError:  # The stored artefact is damaged.
        return False
    details = {key: plain(value) for key, value in artefact.details.items()}
    return (
        manifest.digest == tree_digest(artefact.params)
        and not store.trunk_difference(manifest.trunk, trunk.identity()).differences
        and {key: plain(getattr(manifest, key)) for key in details} == details
    )
