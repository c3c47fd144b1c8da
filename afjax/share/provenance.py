"""Removes local paths from the manifests of shared artifacts.

A path can reveal the names of a user and their disks, and is useless on other machines. It is replaced by ``./LAST``,
where LAST is its last part. The result is still a path, so it cannot be mistaken for a hub id.
"""

import dataclasses
import hashlib
import re

from afjax.data.sources.kinds import shared_source
from afjax.storage.paths import is_path, last_part
from afjax.store.manifest import Manifest

# The packaged trunk's name on the Hugging Face hub.
HUB_IDS = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}


# On object stores, Orbax marks a complete checkpoint with this file, which contains the checkpoint's path. In shared
# checkpoints, it contains this text instead.
COMMITTED, COMMITTED_TEXT = "commit_success.txt", "Checkpoint commit was successful.\n"


def shareable(manifest: Manifest) -> Manifest:
    """Replaces local paths to the trunk, the data and its files with ``./LAST``.

    The hash of the file ``COMMITTED`` is replaced by the hash of ``COMMITTED_TEXT``. The caller must replace the file.
    """
    files = dict(manifest.files)
    if COMMITTED in files:
        files[COMMITTED] = hashlib.sha256(COMMITTED_TEXT.encode()).hexdigest()
    trunk, task = dict(manifest.trunk), dict(manifest.task)
    if isinstance(trunk.get("name"), str):
        trunk["name"] = _trunk_name(trunk["name"])
    if isinstance(task.get("source"), str):
        task["source"] = shared_source(task["source"])
    for split in ("train", "dev", "test"):
        # Values without a slash are names of files in the source, or of TFDS splits.
        if isinstance(task.get(split), str) and re.search(r"[/\\]", task[split]):
            task[split] = last_part(task[split])
    record = dict(manifest.trained_with)
    if record.get("kind") == "trunk":
        record["name"] = _trunk_name(record["name"])
    return dataclasses.replace(manifest, trunk=trunk, task=task, files=files, trained_with=record)


def hub_id(trunk_name: str) -> str:
    """Returns the trunk's name on the Hugging Face hub.

    The result is empty if the trunk is a local folder or has no name.
    """
    name = HUB_IDS.get(trunk_name, trunk_name)
    return name if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name, re.ASCII) and not name.startswith(".") else ""


def _trunk_name(name: str) -> str:
    return last_part(name) if name not in HUB_IDS and is_path(name) else name
