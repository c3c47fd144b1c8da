"""Where a trunk and a task's rows came from, without the folders of the machine that trained on them.

A path says who somebody is and how their disks are called, and nothing to anybody else. What is shared has ``./LAST``
in its place: the last part of the path, in a form that stays a path and is never taken for an id of the hub.
"""

import dataclasses
import hashlib
import re

from afjax.data.sources.kinds import shared_source
from afjax.storage.paths import is_path, last_part
from afjax.store.manifest import Manifest

# What the packaged trunk is called on the Hugging Face hub.
HUB_IDS = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}


# By this file Orbax knows on object stores that a checkpoint is whole. It says to which path it was written.
COMMITTED, COMMITTED_TEXT = "commit_success.txt", "Checkpoint commit was successful.\n"


def shareable(manifest: Manifest) -> Manifest:
    """The manifest with ``./LAST`` for every path in its trunk's names and its task's source and files.

    It is that of a checkpoint with ``COMMITTED_TEXT`` in its file ``COMMITTED``.
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
        # Else the name of a file in the source, or of a split of TFDS.
        if isinstance(task.get(split), str) and re.search(r"[/\\]", task[split]):
            task[split] = last_part(task[split])
    record = dict(manifest.trained_with)
    if record.get("kind") == "trunk":
        record["name"] = _trunk_name(record["name"])
    return dataclasses.replace(manifest, trunk=trunk, task=task, files=files, trained_with=record)


def hub_id(trunk_name: str) -> str:
    """What a shareable trunk is called on the Hugging Face hub; empty: it was a folder, or has no name."""
    name = HUB_IDS.get(trunk_name, trunk_name)
    return name if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name, re.ASCII) and not name.startswith(".") else ""


def _trunk_name(name: str) -> str:
    return last_part(name) if name not in HUB_IDS and is_path(name) else name
