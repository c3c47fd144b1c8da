"""Reads and writes folders in AdapterHub's format.

Each adapter, fusion and head has a JSON file and a tensor file::

    adapter_config.json          adapter.safetensors                 or pytorch_adapter.bin
    adapter_fusion_config.json   model_adapter_fusion.safetensors    or pytorch_model_adapter_fusion.bin
    head_config.json             model_head.safetensors              or pytorch_model_head.bin
    adapter_setup.json           a composition; each part has its own subfolder

A part's JSON file is an envelope: ``config`` plus the keys name, model_type, model_name, model_class, hidden_size and
version.
"""

import dataclasses
import importlib.util
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from afjax.config.from_dict import from_dict
from afjax.config.tasks import TaskConfig
from afjax.display.words import first_of
from afjax.errors import UserError
from afjax.interop.adapterhub.families import LibraryFamily, library_family
from afjax.interop.facts import Facts
from afjax.interop.tensors import check_shapes
from afjax.storage import json_files
from afjax.trunk.config import TrunkConfig
from afjax.trunk.weight_files import read_tensors

Weights = Literal["safetensors", "bin"]

# Exported files state that this version of the ``adapters`` library wrote them.
VERSION = "adapters.1.2.0"
SETUP = "adapter_setup.json"
# Envelope key for afjax's own fields. The library ignores it.
OWN = "afjax"


@dataclasses.dataclass(frozen=True)
class Files:
    """File names for one kind of part."""

    config: str
    safetensors: str
    pickled: str


ADAPTER = Files("adapter_config.json", "adapter.safetensors", "pytorch_adapter.bin")
FUSION = Files("adapter_fusion_config.json", "model_adapter_fusion.safetensors", "pytorch_model_adapter_fusion.bin")
HEAD = Files("head_config.json", "model_head.safetensors", "pytorch_model_head.bin")


@dataclasses.dataclass(frozen=True)
class Part:
    """An adapter, fusion or head loaded from a folder.

    Attributes:
      envelope: Contents of the JSON file.
      tensors: Contents of the tensor file.
      where: Path of the JSON file, for error messages.
      family: The library's names for the trunk's family.
    """

    envelope: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]
    where: str
    family: LibraryFamily

    @property
    def name(self) -> str:
        """The part's name. Empty if unnamed, like the head of a model with a single head."""
        return str(self.envelope.get("name") or "")

    @property
    def own(self) -> Mapping[str, Any]:
        """The fields that afjax stored. Empty if another program wrote the part."""
        own_fields = self.envelope.get(OWN) or {}
        if not isinstance(own_fields, Mapping):
            raise UserError(
                f'{self.where}: "{OWN}" must be a JSON object, not {own_fields!r}; remove it or export the part again.'
            )
        return own_fields

    @property
    def facts(self) -> Facts:
        names = [field.name for field in dataclasses.fields(Facts)]
        where = f"{self.where}: {OWN}"
        facts: Facts = from_dict(Facts, {name: self.own[name] for name in names if name in self.own}, where)
        if facts.task:
            from_dict(TaskConfig, facts.task, f"{where}.task")
        return facts


def read_json(path: Path) -> dict[str, Any]:
    """Loads a JSON object from a file.

    Raises:
      UserError: The file does not exist or does not contain a JSON object.
    """
    return dict(json_files.read_existing_json(path, advice="download the folder again"))


def check_not_peft(config: Mapping[str, Any], path: Path) -> None:
    """Raises UserError if a config is from the PEFT library, whose files have the same names."""
    if "peft_type" in config:
        raise UserError(
            f"{path} is from the PEFT library ({config['peft_type']}), not from AdapterHub; import it with "
            "afjax import peft."
        )


def read_part(folder: Path, files: Files, trunk: TrunkConfig) -> Part:
    """Loads a part and checks that its family and hidden size match the trunk's.

    Raises:
      UserError: A file is missing or damaged, there are weights in both formats, the part is from the PEFT library or
        does not match the trunk, or the trunk's family is not supported.
    """
    library = library_family(trunk.family)
    path = folder / files.config
    envelope = read_json(path)
    check_not_peft(envelope, path)
    family, size = envelope.get("model_type") or trunk.family, envelope.get("hidden_size") or trunk.hidden_size
    if family != trunk.family:
        raise UserError(
            f'{path} is for a "{family}" model, but the trunk is a "{trunk.family}" model; use the trunk that it was '
            "trained on."
        )
    if size != trunk.hidden_size:
        raise UserError(
            f"{path} is for a hidden size of {size}, but the trunk's is {trunk.hidden_size}; use the trunk that it was "
            "trained on."
        )
    if all((folder / name).exists() for name in (files.safetensors, files.pickled)):
        raise UserError(
            f"{folder} has both {files.safetensors} and {files.pickled}, which may differ. Copy the folder and "
            "remove the older file from the copy. (The library keeps a file of the other format when it saves.)"
        )
    tensors = read_tensors(folder, safetensors=files.safetensors, pickled=files.pickled)
    return Part(envelope, tensors, str(path), library)


def write_part(
    folder: Path, files: Files, envelope: Mapping[str, Any], tensors: Mapping[str, np.ndarray], weights: Weights
) -> None:
    """Writes a part to a folder, creating the folder if necessary."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}
    if weights == "safetensors":
        from safetensors.numpy import save

        # Serialize in memory. On a full disk, safetensors' own writer does not raise an OSError.
        (folder / files.safetensors).write_bytes(save(tensors, metadata={"format": "pt"}))
    else:
        import torch

        torch.save({name: torch.from_numpy(tensor) for name, tensor in tensors.items()}, folder / files.pickled)
    # Keep the order, because the library's get_labels() follows the order of label2id.
    (folder / files.config).write_text(json.dumps(envelope, indent=2) + "\n", encoding="utf-8")


def check_can_write(weights: Weights) -> None:
    """Raises UserError if the weight format needs PyTorch, which is not installed."""
    if weights == "bin" and importlib.util.find_spec("torch") is None:
        raise UserError(
            "Writing .bin files requires PyTorch, which is not installed; install it (pip install 'afjax[torch]') or "
            "use --weights=safetensors."
        )


def module_tensors(part: Part, kinds: tuple[str, ...]) -> dict[tuple[str, int], dict[str, np.ndarray]]:
    """Groups tensors by module: ``{(slot, layer): {rest of the key: tensor}}``.

    The library selects the tensors to save by substring, so a file may also contain modules of other parts. These are
    ignored.

    Args:
      part: An adapter or a fusion.
      kinds: The library's names for the modules of this kind of part.

    Raises:
      UserError: The part has no modules, or the file has tensors of another kind of module.
    """
    modules: dict[tuple[str, int], dict[str, np.ndarray]] = {}
    other_names, unknown = set(), []
    slots = {sublayer: slot for slot, sublayer in part.family.sublayers.items()}
    name = _key_pattern(part.family)
    for key, tensor in part.tensors.items():
        match = name.fullmatch(key)
        if match is None or match[3] not in kinds:
            unknown.append(key)
        elif match[4] != part.name:
            other_names.add(match[4])
        else:
            modules.setdefault((slots[match[2]], int(match[1])), {})[match[5]] = tensor
    if unknown:
        raise UserError(f"{part.where}: the weights contain tensors of other modules: {first_of(unknown)}.")
    if not modules:
        raise UserError(
            f'{part.where} is for "{part.name}", but its weights are for '
            f"{first_of(sorted(other_names)) or 'nothing'}; download both files again."
        )
    return modules


def _key_pattern(family: LibraryFamily) -> re.Pattern[str]:
    """Builds the pattern for tensor names.

    Its groups are the layer, the sub-layer, the module kind, the adapter's or fusion's name, and the rest of the name.
    """
    prefix, layer = re.escape(family.prefix), re.escape(family.layer)
    sublayers = "|".join(re.escape(sublayer) for sublayer in family.sublayers.values())
    return re.compile(rf"(?:{prefix}\.)?{layer}\.(\d+)\.({sublayers})\.([a-z_]+)\.([^.]+)\.(.+)")


def stacked(
    part: Part,
    found: Mapping[tuple[str, int], Mapping[str, np.ndarray]],
    wanted: Mapping[tuple[str, int], Mapping[str, tuple[int, ...]]],
) -> dict[tuple[str, str], np.ndarray]:
    """Stacks tensors over layers: ``{(slot, rest of the key): [layers, ...]}``.

    The results are float32.

    Args:
      part: The part, for error messages.
      found: The result of :func:`module_tensors`.
      wanted: The expected tensors and their shapes.

    Raises:
      UserError: Tensors are missing, unexpected or of the wrong shape.
    """

    def titled(modules: Mapping[tuple[str, int], Mapping[str, Any]]) -> dict[str, Any]:
        return {
            f"layer {layer} {part.family.sublayers[slot]} {leaf}": value
            for (slot, layer), leaves in modules.items()
            for leaf, value in leaves.items()
        }

    check_shapes(part.where, titled(wanted), {title: tensor.shape for title, tensor in titled(found).items()})
    rows: dict[tuple[str, str], list[np.ndarray]] = {}
    for (slot, layer), leaves in wanted.items():
        for leaf in leaves:
            rows.setdefault((slot, leaf), []).append(found[slot, layer][leaf].astype(np.float32))
    return {key: np.stack(tensors) for key, tensors in rows.items()}


# The keys of a manifest's trunk record that :func:`envelope` needs.
TRUNK_KEYS = ("name", "family", "hidden_size", "num_layers")


def envelope(config: Any, trunk: Mapping[str, Any], name: str, **more: Any) -> dict[str, Any]:
    """Builds the contents of a part's JSON file.

    ``trunk`` is a manifest's trunk record.

    Raises:
      UserError: The trunk's family is not supported.
    """
    return {
        "config": config,
        "hidden_size": trunk["hidden_size"],
        "model_class": library_family(str(trunk["family"])).model_class,
        "model_name": trunk["name"],
        "model_type": trunk["family"],
        "name": name,
        "version": VERSION,
        **more,
    }
