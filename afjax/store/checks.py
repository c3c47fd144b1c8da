"""Verifies the artefacts of a store."""

from afjax.errors import UserError
from afjax.store.artefacts import StorePath, folders, load, read_manifest, title
from afjax.store.manifest import Manifest


def verify(store: StorePath) -> list[str]:
    """Reads every artefact completely; returns the problems found, one sentence each."""
    return [problem for kind, name in folders(store) for problem in problems(store, kind, name)]


def problems(store: StorePath, kind: str, name: str) -> list[str]:
    """Reads one artefact completely and returns the problems found, one sentence each."""
    try:
        manifest = load(store, kind, name).manifest
    except UserError as error:
        return [str(error)]
    return adapter_problems(store, manifest)


def adapter_problems(store: StorePath, fusion: Manifest) -> list[str]:
    """Finds adapters of a fusion that are missing or have changed since it was trained.

    Returns:
      One sentence per adapter.
    """
    sentences = []
    for adapter in fusion.adapters:
        needs = f'{title(fusion.kind, fusion.name)} needs the adapter "{adapter["name"]}"'
        try:
            digest = read_manifest(store, "adapters", adapter["name"]).digest
        except UserError as error:
            sentences.append(f"{needs}: {error}")
            continue
        if digest != adapter["sha256"]:
            sentences.append(
                f"{needs} with SHA-256 {adapter['sha256']}, the store has one with {digest}; "
                "restore that adapter, or train the fusion again."
            )
    return sentences
