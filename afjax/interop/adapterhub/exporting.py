"""Exports artifacts from a store in AdapterHub's format."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from afjax import store
from afjax.config.adapters import Adapter, AdapterConfig
from afjax.config.from_dict import from_dict
from afjax.config.fusion import FusionConfig
from afjax.errors import UserError
from afjax.interop.adapterhub.adapters import own_adapter, write_adapter
from afjax.interop.adapterhub.families import library_family
from afjax.interop.adapterhub.files import (
    ADAPTER,
    FUSION,
    HEAD,
    OWN,
    SETUP,
    TRUNK_KEYS,
    VERSION,
    Weights,
    check_can_write,
    envelope,
    write_part,
)
from afjax.interop.adapterhub.fusion import own_fusion, write_fusion
from afjax.interop.adapterhub.heads import own_head, write_head
from afjax.interop.facts import facts_of
from afjax.interop.folders import check_new_folder, new_folder
from afjax.interop.heads import head_record
from afjax.model.stored import head_to_share
from afjax.store import Artifact, Manifest

Kind = Literal["adapter", "fusion", "head"]
# Maximum length of a file name in bytes.
_MAX_FILE_NAME = 255
# Names that ``torch.nn.ModuleDict`` (PyTorch 2.13) refuses for its modules. Names with a leading "_" are not listed.
_MODULE_ATTRIBUTES = frozenset(
    "T_destination add_module apply bfloat16 buffers call_super_init children clear compile cpu cuda double "
    "dump_patches eval extra_repr float forward get_buffer get_extra_state get_parameter get_submodule half ipu items "
    "keys load_state_dict modules mtia named_buffers named_children named_modules named_parameters parameters pop "
    "register_backward_hook register_buffer register_forward_hook register_forward_pre_hook "
    "register_full_backward_hook register_full_backward_pre_hook register_load_state_dict_post_hook "
    "register_load_state_dict_pre_hook register_module register_parameter register_state_dict_post_hook "
    "register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule share_memory state_dict to to_empty "
    "train training type update values xpu zero_grad".split()
)
_FOLDERS: Mapping[Kind, str] = {"adapter": "adapters", "fusion": "fusion", "head": "heads"}


def export_adapterhub(
    store_folder: str | Path,
    name: str,
    output: str | Path,
    *,
    kind: Kind | None = None,
    weights: Weights = "safetensors",
    num_choices: int | None = None,
    head: str | None = "",
) -> list[tuple[str, Path]]:
    """Exports an artifact in the format of the ``adapters`` library.

    An adapter is exported together with its head; load both with ``load_adapter(output)``. A fusion is exported as a
    setup that includes its adapters and its head; load it with ``load_adapter_setup(output)``. If the export fails,
    ``output`` is not created.

    Args:
      store_folder: The store.
      name: The artifact's name.
      output: The folder to create.
      kind: The artifact's kind. Defaults to the fusion or adapter with this name or, if there is none, the head.
      weights: ``safetensors``, which the library loads with ``use_safetensors=True``, or ``bin``, the library's
        default, which requires PyTorch.
      num_choices: Choices per row, for a multiple-choice head whose choices have no names.
      head: The head to export with an adapter or a fusion. Defaults to the head that was trained with it. If there are
        several, it is the one with the same name. None for no head. The library's heads only use the first token, so a
        head with mean pooling cannot be exported.

    Returns:
      ``(description, path)`` of each part.

    Raises:
      UserError: No artifact or more than one has this name, the head was trained with something else, the library does
        not support the artifact, or ``output`` exists or cannot be written.

    Example:
      >>> import numpy as np
      >>> from afjax import store
      >>> from afjax.interop.adapterhub import export_adapterhub
      >>> down = {"kernel": np.zeros((2, 8, 4), np.float32), "bias": np.zeros((2, 4), np.float32)}
      >>> up = {"kernel": np.zeros((2, 4, 8), np.float32), "bias": np.zeros((2, 8), np.float32)}
      >>> tree, settings = {"ffn": {"down": down, "up": up}}, {"kind": "bottleneck", "size": 4}
      >>> trunk = {"name": "bert-base-uncased", "family": "bert", "hidden_size": 8, "num_layers": 2}
      >>> _ = store.save("store", store.Draft("adapters", "rte", tree, config=settings, trunk=trunk))
      >>> for part, folder in export_adapterhub("store", "rte", "exported"):
      ...     print(part, sorted(path.name for path in folder.iterdir()))
      adapter rte ['adapter.safetensors', 'adapter_config.json']
    """
    output = check_new_folder(output)
    check_can_write(weights)
    chosen = _kind_to_export(store_folder, name, kind)
    head_name = head_to_share(store_folder, _FOLDERS[chosen], name, head)
    with new_folder(output) as new:
        writer = _Writer(store_folder, new, weights, num_choices, head_name)
        written = {"adapter": writer.adapter, "fusion": writer.fusion, "head": writer.head}[chosen](name, new)
    return [(description, output / path.relative_to(new)) for description, path in written]


def _kind_to_export(store_folder: str | Path, name: str, kind: Kind | None) -> Kind:
    """Returns the kind of the artifact to export."""
    if kind is not None:
        # For a missing artifact, read_manifest raises an error that suggests the closest name.
        store.read_manifest(store_folder, _FOLDERS[kind], name)
        return kind
    stored = store.kinds_of(store_folder, name)
    kinds: list[Kind] = [candidate for candidate, folder in _FOLDERS.items() if folder in stored]
    if "adapter" in kinds and "fusion" in kinds:
        raise UserError(
            f'The store {store_folder} has both an adapter and a fusion named "{name}"; choose one with --kind.'
        )
    return "fusion" if "fusion" in kinds else kinds[0]


@dataclasses.dataclass(frozen=True)
class _Writer:
    """Writes artifacts from a store to an export folder.

    Attributes:
      store_folder: The store.
      root: The export folder.
      weights: The format of the weights.
      num_choices: Choices per row, for a multiple-choice head that does not record them.
      head_name: The name of the head to write with an adapter or a fusion; empty for none.
    """

    store_folder: str | Path
    root: Path
    weights: Weights
    num_choices: int | None
    head_name: str

    def adapter(self, name: str, folder: Path) -> list[tuple[str, Path]]:
        """Writes an adapter together with its head."""
        written = self._adapter_without_head(name, folder)
        if self.head_name:
            written += self.head(self.head_name, folder)
        return written

    def fusion(self, name: str, folder: Path) -> list[tuple[str, Path]]:
        """Writes a setup: a fusion, its adapters and its head."""
        loaded = self._load("fusion", name)
        members = [str(member["name"]) for member in loaded.manifest.adapters]
        fusion_name = ",".join(members)
        if len(fusion_name.encode()) > _MAX_FILE_NAME:
            raise UserError(
                f'The fusion "{name}" cannot be exported: AdapterHub names a fusion\'s folder after its '
                f"{len(members)} adapters, whose names have more than {_MAX_FILE_NAME} bytes together. Train it "
                "with adapters that have shorter names."
            )
        for problem in store.adapter_problems(self.store_folder, loaded.manifest):
            raise UserError(problem)
        written = [part for member in members for part in self._adapter_without_head(member, folder / member)]
        config = from_dict(FusionConfig, loaded.manifest.config, f'the config of fusion "{name}"')
        trunk = loaded.manifest.trunk_with(*TRUNK_KEYS)
        settings, tensors = write_fusion(
            config,
            loaded.params,
            fusion_name,
            self._bottleneck(members[0], store.read_manifest(self.store_folder, "adapters", members[0])),
            family=library_family(trunk["family"]),
            num_layers=trunk["num_layers"],
        )
        own_fields = {**own_fusion(config, name), **facts_of(loaded.manifest)}
        values = envelope(settings, trunk, fusion_name, adapter_names=members, **{OWN: own_fields})
        write_part(folder / fusion_name, FUSION, values, tensors, self.weights)
        written.append((f"fusion {name}", folder / fusion_name))
        head = self.head_name
        if head:
            written += self.head(head, folder / head)
        setup = {
            "adapter_setup": {
                "type": "Fuse",
                "children": [{"type": "single", "children": [member]} for member in members],
            },
            "head_setup": head or None,
            "version": VERSION,
        }
        (folder / SETUP).write_text(json.dumps(setup, indent=2) + "\n", encoding="utf-8")
        return written

    def head(self, name: str, folder: Path) -> list[tuple[str, Path]]:
        loaded = self._load("heads", name)
        record = head_record(loaded.manifest)
        settings, tensors = write_head(record.config, loaded.params, name, record.task, record.labels, self.num_choices)
        values = envelope(settings, loaded.manifest.trunk_with(*TRUNK_KEYS), name, **{OWN: own_head(record)})
        write_part(folder, HEAD, values, tensors, self.weights)
        return [(f"head {name}", folder)]

    def _adapter_without_head(self, name: str, folder: Path) -> list[tuple[str, Path]]:
        loaded = self._load("adapters", name)
        trunk = loaded.manifest.trunk_with(*TRUNK_KEYS)
        config = self._bottleneck(name, loaded.manifest)
        settings, tensors = write_adapter(
            config,
            loaded.params,
            name,
            family=library_family(trunk["family"]),
            hidden_size=trunk["hidden_size"],
            num_layers=trunk["num_layers"],
        )
        own_fields = {**own_adapter(config), **facts_of(loaded.manifest)}
        write_part(folder, ADAPTER, envelope(settings, trunk, name, **{OWN: own_fields}), tensors, self.weights)
        return [(f"adapter {name}", folder)]

    def _bottleneck(self, name: str, manifest: Manifest) -> AdapterConfig:
        config = from_dict(Adapter, manifest.config, f'the config of adapter "{name}"')
        if not isinstance(config, AdapterConfig):
            raise UserError(
                f'The adapter "{name}" has the kind {config.kind}, which cannot be exported to AdapterHub; only '
                "bottleneck adapters can."
            )
        return config

    def _load(self, kind: str, name: str) -> Artifact:
        if "." in name:
            raise UserError(
                f'The name "{name}" contains a dot, which PyTorch module names cannot contain; rename the artifact.'
            )
        if kind != "fusion" and (name in _MODULE_ATTRIBUTES or name.startswith("_")):
            raise UserError(
                f'The library cannot load an artifact named "{name}", because PyTorch\'s ModuleDict has its own '
                "attributes with such names; rename the artifact."
            )
        return store.load(self.store_folder, kind, name)
