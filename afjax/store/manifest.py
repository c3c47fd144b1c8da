"""The manifest of an artifact, ``manifest.json``: fields, parsing, serialization."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, get_args

import numpy as np

from afjax import trees
from afjax.config.from_dict import from_dict, to_dict
from afjax.config.values import TrunkDtype
from afjax.errors import UserError
from afjax.storage.json_files import json_digest, parse_json
from afjax.store.trunk_identity import trunk_difference

# The kinds of artifacts. A store has one folder for each.
KINDS = ("adapters", "fusion", "heads")
FORMAT_VERSION = 2
# The fields added by each later format version.
_ADDED = {2: ("trained_with", "run")}

# The last key in the file: a SHA-256 over all other keys. It detects a flipped bit in a label or a setting.
CHECKSUM = "manifest_sha256"
REPAIR = "restore the artifact from a copy, or train it again"

# Types of the values under ``trunk``. Each key is optional.
_TRUNK_TYPES = {
    "name": str,
    "sha256": str,
    "family": str,
    "hidden_size": int,
    "num_layers": int,
    "dtype": str,
    "architecture": dict,
    "tokenizer": dict | None,
    "former_tokenizer": dict,
    "trained": bool,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of one artifact, without its arrays.

    Attributes:
      format_version: Version of the manifest format.
      kind: One of ``KINDS``.
      name: Name of the artifact and of its folder.
      config: The artifact's architecture.
      task: The training task as a dict; may be empty.
      labels: The task's label names in order; empty for regression or without a task.
      trunk: The trunk of the artifact: ``name`` (hub id or path), ``sha256`` (of the weights), ``hidden_size``,
        ``num_layers``, ``family``, ``dtype`` (the compute dtype; older manifests lack it and mean float32),
        ``architecture`` (``{field of config.json: value}``) and ``tokenizer`` (``{part: SHA-256}``, None for a trunk
        without a tokenizer). ``former_tokenizer`` has the digests that earlier versions recorded for the same
        tokenizer, limited to the parts that differ. Older manifests lack ``architecture``, ``tokenizer`` and
        ``former_tokenizer``. ``trained`` is true if the same run also trained the trunk.
      leaves: ``{path: {"shape": [...], "dtype": ..., "sha256": ...}}``, see ``trees.array_digest``.
      files: ``{path in params/: SHA-256}`` of the checkpoint's files.
      metrics: Scores on the dev split. Scores that are not finite are stored as None.
      seed: Random seed of the training run.
      versions: The versions of afjax, jax, flax, orbax and numpy.
      adapters: For a fusion: ``[{"name": ..., "sha256": ...}]`` in fusion order. ``sha256`` is the ``digest`` of the
        adapter's manifest.
      created: Time of saving, UTC, ISO 8601 with microseconds.
      trained_with: For a head, the artifact that it was trained with: ``{"kind": ..., "name": ..., "sha256": ...}``.
        The kind is ``adapters`` or ``fusion`` (``sha256`` is the ``digest`` of the manifest), or ``trunk``. Empty if
        not recorded.
      run: Identifier of the training run, see :mod:`afjax.store.reservations`. Empty if not recorded.

    Example:
      >>> import numpy as np
      >>> from afjax import store
      >>> tree = {"ffn": {"down": {"kernel": np.zeros((2, 8, 4), np.float32)}}}
      >>> draft = store.Draft("adapters", "rte", tree, config={"size": 4}, trunk={"sha256": "ab"})
      >>> manifest = store.save("stores/manifest", draft)
      >>> manifest.config, manifest.leaves["ffn/down/kernel"]["shape"], manifest.num_bytes
      ({'size': 4}, [2, 8, 4], 256)
    """

    format_version: int
    kind: str
    name: str
    config: dict
    task: dict
    labels: tuple[str, ...]
    trunk: dict
    leaves: dict
    files: dict
    metrics: dict
    seed: int
    versions: dict
    adapters: list
    created: str
    trained_with: dict = dataclasses.field(default_factory=dict)
    run: str = ""

    def belongs_to(self, other: "Manifest") -> bool:
        """Checks whether this head was trained with the given adapter or fusion.

        Both must have been trained on the same trunk. Older manifests are incomplete, so only the recorded parts are
        compared.
        """
        if trunk_difference(self.trunk, other.trunk).differences:
            return False
        record = self.trained_with
        return not record or (record["kind"], record["sha256"]) == (other.kind, other.digest)

    def trunk_with(self, *keys: str) -> dict:
        """Returns the trunk's record, which must have these keys.

        Raises:
          UserError: The artifact was saved without one of them.
        """
        if missing := [key for key in keys if key not in self.trunk]:
            raise UserError(
                f'{self.kind}/{self.name} does not record the trunk\'s "{missing[0]}". Save it again with a complete '
                "description of the trunk (Trunk.identity())."
            )
        return self.trunk

    @property
    def digest(self) -> str:
        """SHA-256 of the artifact's parameters, equal to their ``trees.tree_digest``."""
        leaves = trees.unflatten({path: leaf["sha256"] for path, leaf in self.leaves.items()})
        lines = (f"{path}:{digest}\n" for path, digest in trees.flatten(leaves).items())
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(leaf["shape"]) for leaf in self.leaves.values())

    @property
    def num_bytes(self) -> int:
        return sum(math.prod(leaf["shape"]) * np.dtype(leaf["dtype"]).itemsize for leaf in self.leaves.values())


def describe(array: np.ndarray) -> dict[str, Any]:
    """Builds a leaf's entry in the manifest."""
    return {"shape": list(array.shape), "dtype": array.dtype.name, "sha256": trees.array_digest(array)}


def plain(value: Any) -> Any:
    """Converts a value to JSON types.

    Tuples become lists, NumPy scalars become Python numbers, and floats that are not finite become None.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(manifest: Manifest) -> str:
    """Serializes a manifest in its own format version."""
    values = to_dict(manifest)
    for key in values.keys() - _keys(manifest.format_version):
        del values[key]
    return json.dumps({**values, CHECKSUM: json_digest(values)}, indent=2, allow_nan=False) + "\n"


def from_json(text: str, where: str) -> Manifest:
    """Parses a manifest. ``where`` names the file in error messages.

    Raises:
      UserError: The text is not JSON, or has a newer format version, a missing or extra key (shown with ``-`` and
        ``+``), or a value of the wrong type.
    """
    values = parse_json(text, where, advice=REPAIR)
    version = values.get("format_version", FORMAT_VERSION)
    if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise UserError(
            f"{where}: format_version is {version!r}, but this version of afjax supports 1 to {FORMAT_VERSION}; use "
            "the version that wrote the file."
        )
    difference = names_difference([*_keys(version), CHECKSUM], values)
    if difference:
        raise UserError(f"{where} has the wrong keys (- missing, + unknown): {difference}; {REPAIR}.")
    del values[CHECKSUM]
    try:
        manifest = from_dict(Manifest, values, "manifest")
    except UserError as error:
        raise UserError(f"{where}: {str(error).rstrip('.')}; {REPAIR}.") from error
    if problem := _invalid_entry(manifest):
        raise UserError(f"{where}: {problem}; {REPAIR}.")
    return manifest


def check_unchanged(text: str, where: str) -> None:
    """Raises UserError if a manifest's checksum does not match.

    The text must have been accepted by :func:`from_json`.
    """
    values = parse_json(text, where, advice=REPAIR)
    if values.pop(CHECKSUM) != json_digest(values):
        raise UserError(f"{where} was changed after it was written: its {CHECKSUM} does not match; {REPAIR}.")


def names_difference(expected: Iterable[str], found: Iterable[str]) -> str:
    """Lists missing names as ``-name`` and unexpected names as ``+name``."""
    expected, found = set(expected), set(found)
    return ", ".join(
        [f"-{name}" for name in sorted(expected - found)] + [f"+{name}" for name in sorted(found - expected)]
    )


def _keys(version: int) -> set[str]:
    """Returns the manifest fields of a format version."""
    later = {key for added, keys in _ADDED.items() if added > version for key in keys}
    return {field.name for field in dataclasses.fields(Manifest)} - later


def _are_strings(values: Mapping[str, Any]) -> bool:
    return all(isinstance(value, str) for value in values.values())


def _invalid_entry(manifest: Manifest) -> str:
    """Describes the first invalid nested value that other code relies on.

    Empty if all are valid.
    """
    for path, leaf in manifest.leaves.items():
        if not _is_leaf(leaf):
            return f'the entry of the leaf "{path}" is not a shape, dtype and sha256'
    try:
        trees.unflatten(dict.fromkeys(manifest.leaves, ""))
    except (TypeError, AttributeError):
        return "the path of one leaf is a prefix of another leaf's path"
    for path, digest in manifest.files.items():
        if not isinstance(digest, str):
            return f'the digest of the file "{path}" is {digest!r}, not a string'
    for adapter in manifest.adapters:
        if not isinstance(adapter, dict) or adapter.keys() != {"name", "sha256"} or not _are_strings(adapter):
            return f"adapters has the entry {adapter!r}, which is not a name and sha256"
    record = manifest.trained_with
    if record and (record.keys() != {"kind", "name", "sha256"} or not _are_strings(record)):
        return f"trained_with is {record!r}, which is not a kind, name and sha256"
    for key, types in _TRUNK_TYPES.items():
        if key in manifest.trunk and not isinstance(manifest.trunk[key], types):
            return f"trunk.{key} is {manifest.trunk[key]!r}, which has the wrong type"
    if not isinstance(manifest.task.get("name", ""), str):
        return f"task.name is {manifest.task['name']!r}, not a string"
    if manifest.trunk.get("dtype", "float32") not in get_args(TrunkDtype):
        return f"trunk.dtype is {manifest.trunk['dtype']!r}, not one of {', '.join(get_args(TrunkDtype))}"
    tokenizer = manifest.trunk.get("tokenizer") or {}
    if not all(isinstance(digest, str) for digest in tokenizer.values()):
        return f"trunk.tokenizer has the value {tokenizer!r}, whose digests are not strings"
    return ""


def _is_leaf(leaf: Any) -> bool:
    if not isinstance(leaf, dict) or leaf.keys() != {"shape", "dtype", "sha256"}:
        return False
    sizes = leaf["shape"]
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        return False
    if not (isinstance(leaf["dtype"], str) and isinstance(leaf["sha256"], str)):
        return False
    try:
        np.dtype(leaf["dtype"])
    except (TypeError, ValueError):
        return False
    return True
