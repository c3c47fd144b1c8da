"""The adapter store: one folder per artifact, atomic writes and strict checks.

A store is a folder (local or ``gs://``)::

    STORE/adapters/<name>/{manifest.json, params/}
    STORE/fusion/<name>/{manifest.json, params/}
    STORE/heads/<name>/{manifest.json, params/}

``params/`` is an Orbax checkpoint of the artifact's parameters, which can be loaded without afjax. ``manifest.json``
describes the artifact and the trunk it was trained on, and holds the SHA-256 of every leaf. ``STORE/.lock`` is the
writers' lock (:mod:`afjax.store.files`). ``STORE/.runs`` holds the names reserved by unfinished runs
(:mod:`afjax.store.reservations`).

Example:
  >>> import numpy as np
  >>> from afjax import store
  >>> tree = {"ffn": {"down": {"kernel": np.zeros((2, 8, 4), np.float32)}}}
  >>> draft = store.Draft("adapters", "rte", tree, config={"size": 4}, trunk={"sha256": "ab"})
  >>> _ = store.save("store", draft)
  >>> store.names("store", "adapters"), store.verify("store")
  (['rte'], [])
  >>> store.load("store", "adapters", "rte").params["ffn"]["down"]["kernel"].shape
  (2, 8, 4)
"""

from afjax.store.artifacts import Artifact, entries, exists, folders, kinds_of, load, names, read_manifest
from afjax.store.checks import adapter_problems, problems, verify
from afjax.store.manifest import KINDS, Manifest
from afjax.store.saving import Draft, reserve, save, save_all
from afjax.store.trunk_identity import TrunkComparison, trunk_difference

__all__ = [
    "KINDS",
    "Artifact",
    "Draft",
    "Manifest",
    "TrunkComparison",
    "adapter_problems",
    "entries",
    "exists",
    "folders",
    "kinds_of",
    "load",
    "names",
    "problems",
    "read_manifest",
    "reserve",
    "save",
    "save_all",
    "trunk_difference",
    "verify",
]
