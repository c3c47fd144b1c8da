"""Verifies the artifacts in a store."""

from afjax.errors import UserError
from afjax.storage.paths import AnyPath, is_temporary
from afjax.store.artifacts import folders, load, read_manifest, title
from afjax.store.manifest import Manifest


def verify(store: AnyPath) -> list[str]:
    """Checks the integrity of every artifact in a store.

    Args:
      store: The store's folder, local or ``gs://``.

    Returns:
      One sentence per problem; empty if there are none.

    Raises:
      UserError: The store cannot be read.

    Example:
      >>> from pathlib import Path
      >>> from afjax import store
      >>> Path("stores/verify/adapters/rte").mkdir(parents=True)  # no manifest
      >>> store.verify("stores/verify")
      ['...stores/verify/adapters/rte has no manifest.json, ...']
    """
    return [problem for kind, name in folders(store) for problem in problems(store, kind, name)]


def problems(store: AnyPath, kind: str, name: str) -> list[str]:
    """Checks the integrity of one artifact.

    Args:
      store: The store's folder, local or ``gs://``.
      kind, name: The artifact's kind (one of ``KINDS``) and name.

    Returns:
      One sentence per problem; empty if there are none. For a fusion, the list includes the result of
      :func:`adapter_problems`.

    Example:
      >>> import numpy as np
      >>> from afjax import store
      >>> tree = {"ffn": {"down": {"kernel": np.zeros((2, 8, 4), np.float32)}}}
      >>> draft = store.Draft("adapters", "rte", tree, config={"size": 4}, trunk={"sha256": "ab"})
      >>> manifest = store.save("stores/problems", draft)
      >>> store.problems("stores/problems", "adapters", "rte")
      []
    """
    try:
        manifest = load(store, kind, name).manifest
    except UserError as error:
        if is_temporary(error):
            raise
        return [str(error)]
    return adapter_problems(store, manifest)


def adapter_problems(store: AnyPath, fusion: Manifest) -> list[str]:
    """Finds a fusion's adapters that are missing or have changed since its training.

    Args:
      store: The store's folder, local or ``gs://``.
      fusion: The fusion's manifest.

    Returns:
      One sentence per such adapter; empty if there are none.

    Example:
      >>> import numpy as np
      >>> from afjax import store
      >>> tree = {"ffn": {"down": {"kernel": np.zeros((2, 8, 4), np.float32)}}}
      >>> draft = store.Draft("adapters", "rte", tree, config={"size": 4}, trunk={"sha256": "ab"})
      >>> manifest = store.save("stores/adapters", draft)
      >>> members = [{"name": "rte", "sha256": manifest.digest}, {"name": "mnli", "sha256": "cd"}]
      >>> draft = store.Draft("fusion", "cb", tree, config={}, trunk={}, adapters=members)
      >>> fusion = store.save("stores/adapters", draft)
      >>> store.adapter_problems("stores/adapters", fusion)
      ['The fusion "cb" needs the adapter "mnli": ...']
    """
    sentences = []
    for adapter in fusion.adapters:
        needs = f'{title(fusion.kind, fusion.name)} needs the adapter "{adapter["name"]}"'
        try:
            digest = read_manifest(store, "adapters", adapter["name"]).digest
        except UserError as error:
            if is_temporary(error):
                raise
            sentences.append(f"{needs}: {error}")
            continue
        if digest != adapter["sha256"]:
            sentences.append(
                f"{needs} with SHA-256 {adapter['sha256']}, but the store's adapter has {digest}; "
                "restore that adapter, or train the fusion again."
            )
    return sentences
