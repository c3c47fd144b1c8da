"""The ``afjax.json`` record, with metadata that PEFT's files cannot hold."""

import dataclasses
from pathlib import Path
from typing import Any

from afjax.config.adapters import DenseLayer
from afjax.config.from_dict import from_dict, to_dict
from afjax.config.tasks import TaskConfig
from afjax.errors import UserError
from afjax.interop.facts import Facts, facts_of
from afjax.interop.heads import HeadRecord
from afjax.interop.peft.files import RECORD, read_object
from afjax.store import Manifest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """Metadata of an adapter and its head, if any.

    Empty if another program wrote the folder.

    Attributes:
      name: The adapter's name.
      adapter: Facts from the adapter's manifest.
      blocks: The dense layers whose LoRA is a block of their module's LoRA, see :mod:`afjax.interop.peft.lora`.
      head: The head's metadata, or None.
      tensors_sha256: Digest of the file of tensors. Empty if an earlier version of afjax wrote the folder.
    """

    name: str = ""
    adapter: Facts = dataclasses.field(default_factory=Facts)
    blocks: tuple[DenseLayer, ...] = ()
    head: HeadRecord | None = None
    tensors_sha256: str = ""

    def without_results(self) -> "Record":
        """Returns the record without scores and seeds, for tensors that were trained again."""
        head = None if self.head is None else dataclasses.replace(self.head, metrics={}, seed=0)
        return dataclasses.replace(self, adapter=dataclasses.replace(self.adapter, metrics={}, seed=0), head=head)


def read_record(folder: Path) -> Record:
    """Loads a folder's record.

    Raises:
      UserError: The record is damaged.
    """
    path = folder / RECORD
    values = read_object(path)
    if values is None:
        return Record()
    try:
        record: Record = from_dict(Record, values, RECORD)
        if record.adapter.task:
            from_dict(TaskConfig, record.adapter.task, f"{RECORD}.adapter.task")
    except UserError as error:
        raise UserError(f'{path}: {str(error).rstrip(".")}; remove "{RECORD}" or export the adapter again.') from None
    return record


def write_record(
    name: str, adapter: Manifest, blocks: tuple[DenseLayer, ...], head: HeadRecord | None
) -> dict[str, Any]:
    """Builds the contents of a record."""
    values = {"name": name, "adapter": facts_of(adapter), "head": None if head is None else to_dict(head)}
    return values | ({"blocks": list(blocks)} if blocks else {})
