"""AdapterHub's folders: a JSON file and a file of tensors for each adapter, fusion and head.

    adapter_config.json          adapter.safetensors                 or pytorch_adapter.bin
    adapter_fusion_config.json   model_adapter_fusion.safetensors    or pytorch_model_adapter_fusion.bin
    head_config.json             model_head.safetensors              or pytorch_model_head.bin
    adapter_setup.json           a composition, with a folder for each of its parts beside it

The JSON of a part is an envelope around its ``config``: name, model_type, model_name, model_class, hidden_size and
version.
"""

import dataclasses
import importlib.util
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from afjax.config.from_dict import from_dict
from afjax.config.tasks import TaskConfig
from afjax.errors import UserError
from afjax.storage import json_files
from afjax.trunk.config import TrunkConfig
from afjax.trunk.hugging_face import read_tensors

Weights = Literal["safetensors", "bin"]

# Of the library whose format is written.
VERSION = "adapters.1.2.0"
SETUP = "adapter_setup.json"
# The key of an envelope under which afjax keeps what the format has no place for; the library leaves it alone.
OWN = "afjax"

SUBLAYERS = {"attention": "attention.output", "ffn": "output"}
_SLOTS = {sublayer: slot for slot, sublayer in SUBLAYERS.items()}
_KEY = re.compile(r"(?:(?:bert|roberta)\.)?encoder\.layer\.(\d+)\.(attention\.output|output)\.([a-z_]+)\.([^.]+)\.(.+)")


@dataclasses.dataclass(frozen=True)
class Files:
    """What the files of one kind of part are called."""

    noun: str
    config: str
    safetensors: str
    pickled: str


ADAPTER = Files("adapter", "adapter_config.json", "adapter.safetensors", "pytorch_adapter.bin")
FUSION = Files(
    "fusion",
    "adapter_fusion_config.json",
    "model_adapter_fusion.safetensors",
    "pytorch_model_adapter_fusion.bin",
)
HEAD = Files("head", "head_config.json", "model_head.safetensors", "pytorch_model_head.bin")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What a manifest says of the training, where afjax wrote it along; else nothing."""

    task: dict = dataclasses.field(default_factory=dict)
    labels: tuple[str, ...] = ()
    metrics: dict = dataclasses.field(default_factory=dict)
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Part:
    """An adapter, a fusion or a head as its folder has it."""

    envelope: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]
    where: str

    @property
    def name(self) -> str:
        """Its own name; empty where it has none, as heads of models that have one alone."""
        return str(self.envelope.get("name") or "")

    @property
    def own(self) -> Mapping[str, Any]:
        """What afjax wrote along; empty where another program wrote the part."""
        own = self.envelope.get(OWN) or {}
        if not isinstance(own, Mapping):
            raise UserError(f'{self.where}: "{OWN}" is {own!r}, not an object; remove it, or export the part again.')
        return own

    @property
    def facts(self) -> Facts:
        names = [field.name for field in dataclasses.fields(Facts)]
        where = f"{self.where}: {OWN}"
        facts: Facts = from_dict(Facts, {name: self.own[name] for name in names if name in self.own}, where)
        if facts.task:
            from_dict(TaskConfig, facts.task, f"{where}.task")
        return facts


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
      UserError: The file does not exist, or does not contain a JSON object.
    """
    values = json_files.read_json(path, advice="fetch it again")
    if values is None:
        raise UserError(f"{path} does not exist; fetch the folder again.")
    return dict(values)


def read_part(folder: Path, files: Files, trunk: TrunkConfig) -> Part:
    """Reads a part, and checks that it is for such a trunk.

    Raises:
      UserError: A missing or damaged file, another kind of model, another hidden size.
    """
    path = folder / files.config
    envelope = read_json(path)
    if "peft_type" in envelope:
        raise UserError(
            f"{path} is of the PEFT library ({envelope['peft_type']}), not of AdapterHub; afjax has no such adapters."
        )
    family, size = envelope.get("model_type") or trunk.family, envelope.get("hidden_size") or trunk.hidden_size
    if family != trunk.family:
        raise UserError(f'{path} is for a "{family}" model, and the trunk is a "{trunk.family}" model; give its trunk.')
    if size != trunk.hidden_size:
        raise UserError(
            f"{path} is for a hidden size of {size}, and the trunk's is {trunk.hidden_size}; give its trunk."
        )
    tensors = read_tensors(folder, safetensors=files.safetensors, pickled=files.pickled)
    return Part(envelope, tensors, str(path))


def write_part(
    folder: Path, files: Files, envelope: Mapping[str, Any], tensors: Mapping[str, np.ndarray], weights: Weights
) -> None:
    """Writes a part into a folder, which is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}
    if weights == "safetensors":
        from safetensors.numpy import save

        # In memory first: safetensors raises an exception of its own if the disk is full.
        (folder / files.safetensors).write_bytes(save(tensors, metadata={"format": "pt"}))
    else:
        import torch

        torch.save({name: torch.from_numpy(tensor) for name, tensor in tensors.items()}, folder / files.pickled)
    (folder / files.config).write_text(json.dumps(envelope, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def check_can_write(weights: Weights) -> None:
    """Raises UserError where PyTorch is needed for the file, and not there."""
    if weights == "bin" and importlib.util.find_spec("torch") is None:
        raise UserError(
            "PyTorch, which writes .bin files, is not installed; install it (pip install 'afjax[torch]'), or take "
            "--weights=safetensors."
        )


def module_tensors(part: Part, kinds: tuple[str, ...]) -> dict[tuple[str, int], dict[str, np.ndarray]]:
    """The tensors of the modules of a part's name, ``{(slot, layer): {rest of the key: tensor}}``.

    The library picks what it saves by substrings, so a file may hold modules of the same kind with other names; these
    are left out.

    Args:
      part: An adapter or a fusion.
      kinds: What its modules are called.

    Raises:
      UserError: Nothing of that name, or tensors of other kinds.
    """
    found: dict[tuple[str, int], dict[str, np.ndarray]] = {}
    others, unknown = set(), []
    for key, tensor in part.tensors.items():
        match = _KEY.fullmatch(key)
        if match is None or match[3] not in kinds:
            unknown.append(key)
        elif match[4] != part.name:
            others.add(match[4])
        else:
            found.setdefault((_SLOTS[match[2]], int(match[1])), {})[match[5]] = tensor
    if unknown:
        raise UserError(f"{part.where}: the weights beside it have tensors of no adapter: {shortened(unknown)}.")
    if not found:
        raise UserError(
            f'{part.where} is of "{part.name}", but the weights beside it are of {shortened(others) or "nothing"}; '
            "fetch both files again."
        )
    return found


def stacked(
    part: Part,
    found: dict[tuple[str, int], dict[str, np.ndarray]],
    wanted: Mapping[tuple[str, int], Mapping[str, tuple[int, ...]]],
) -> dict[tuple[str, str], np.ndarray]:
    """Stacks tensors over the layers, ``{(slot, rest of the key): float32 [layers, ...]}``.

    Args:
      part: Where they are from.
      found: Of :func:`module_tensors`; is emptied.
      wanted: The shape of every tensor that there should be.

    Raises:
      UserError: Missing or superfluous tensors, or other shapes.
    """
    rows: dict[tuple[str, str], list[np.ndarray]] = {}
    missing, wrong = [], []
    for (slot, layer), leaves in wanted.items():
        tensors = found.get((slot, layer), {})
        for leaf, shape in leaves.items():
            title = f"layer {layer} {SUBLAYERS[slot]} {leaf}"
            tensor = tensors.pop(leaf, None)
            if tensor is None:
                missing.append(title)
            elif tensor.shape != shape:
                wrong.append(f"{title} {list(tensor.shape)} (wanted: {list(shape)})")
            else:
                rows.setdefault((slot, leaf), []).append(tensor.astype(np.float32))
    extra = [f"layer {layer} {SUBLAYERS[slot]} {leaf}" for (slot, layer), left in found.items() for leaf in left]
    check_fits(part, missing, extra, wrong)
    return {key: np.stack(tensors) for key, tensors in rows.items()}


def check_fits(part: Part, missing: Iterable[str], extra: Iterable[str], wrong: Sequence[str]) -> None:
    """Raises UserError where a part's tensors are not those that its config and the trunk ask for; lists them.

    Args:
      part: Where they are from.
      missing, extra: What lacks, and what nobody knows.
      wrong: What is of another shape, with both shapes.
    """
    listed = [*(f"-{title}" for title in missing), *(f"+{title}" for title in extra)]
    if listed:
        raise UserError(
            f"{part.where}: the weights beside it lack tensors (-) or have unknown ones (+): {shortened(listed)}; "
            "fetch both files again, or give the trunk they were trained on."
        )
    if wrong:
        raise UserError(
            f"{part.where}: tensors of other shapes than its config and the trunk say: {shortened(wrong)}; give the "
            "trunk it was trained on."
        )


def dropout_rate(settings: Mapping[str, Any], where: str) -> float | None:
    """The ``dropout_prob`` of a head or a fusion."""
    rate = settings.get("dropout_prob")
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1):
        raise UserError(f"{where} has dropout_prob={rate!r}; it must be at least 0 and below 1.")
    return rate


def shortened(names: Any, most: int = 6) -> str:
    """The first names of a list, and how many there are beyond."""
    names = sorted(names) if isinstance(names, set) else list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def envelope(config: Any, trunk: Mapping[str, Any], name: str, **more: Any) -> dict[str, Any]:
    """A part's JSON; ``trunk`` is a manifest's."""
    return {
        "config": config,
        "hidden_size": trunk["hidden_size"],
        "model_class": f"{model_prefix(trunk).capitalize()}AdapterModel",
        "model_name": trunk["name"],
        "model_type": trunk["family"],
        "name": name,
        "version": VERSION,
        **more,
    }


def model_prefix(trunk: Mapping[str, Any]) -> str:
    """What the names of the library's tensors begin with."""
    return str(trunk["family"])
