"""Exports LoRA adapters from a store in PEFT's format."""

import collections
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from afjax import store
from afjax.adapters.kinds import adapter_layers
from afjax.config.adapters import Adapter, DenseLayer, LoraConfig
from afjax.config.from_dict import from_dict
from afjax.errors import UserError
from afjax.interop.folders import check_new_folder, new_folder
from afjax.interop.heads import HeadRecord, head_record
from afjax.interop.model_heads import CLASS_OF_KIND
from afjax.interop.peft.families import (
    TASK_TYPES,
    can_list_layers,
    dense_modules,
    numbered_names,
    peft_family,
    target_names,
)
from afjax.interop.peft.files import write_folder
from afjax.interop.peft.heads import write_head
from afjax.interop.peft.lora import write_lora
from afjax.interop.peft.record import write_record
from afjax.model.stored import head_to_share
from afjax.store import Manifest
from afjax.trunk.families import ENCODER_FAMILIES


def export_peft(
    store_folder: str | Path, name: str, output: str | Path, *, head: str | None = ""
) -> list[tuple[str, Path]]:
    """Exports a LoRA adapter in PEFT's format, with its head.

    If the export fails, ``output`` is not created.

    Args:
      store_folder: The store.
      name: The adapter's name.
      output: The folder to create.
      head: The head to export. Defaults to the head that was trained with the adapter. If there are several, it is the
        one with the same name. None for no head. PEFT uses the heads of Hugging Face's model classes, which only use
        the first token, so a head with mean pooling cannot be exported.

    Returns:
      ``(description, path)`` of each part.

    Raises:
      UserError: The store has no LoRA adapter with this name, the head was trained with something else, Hugging Face's
        model has a different head, or ``output`` exists or cannot be written.

    Example:
      >>> import numpy as np
      >>> from afjax import store
      >>> from afjax.interop.peft import export_peft
      >>> part = {"down": {"kernel": np.ones((2, 8, 4), np.float32)}, "up": {"kernel": np.ones((2, 4, 8), np.float32)}}
      >>> tree, settings = {"attention": {"query": part}}, {"kind": "lora", "target_modules": ["query"], "rank": 4}
      >>> trunk = {"name": "bert-base-uncased", "family": "bert", "hidden_size": 8, "num_layers": 2}
      >>> _ = store.save("store", store.Draft("adapters", "rte", tree, config=settings, trunk=trunk))
      >>> for part, folder in export_peft("store", "rte", "exported"):
      ...     print(part, sorted(path.name for path in folder.iterdir()))
      adapter rte ['adapter_config.json', 'adapter_model.safetensors', 'afjax.json']
    """
    output = check_new_folder(output)
    adapter = store.load(store_folder, "adapters", name)
    manifest = adapter.manifest
    config = _lora(manifest)
    trunk = manifest.trunk_with("name", "family", "num_layers")
    family, num_layers = str(trunk["family"]), int(trunk["num_layers"])
    classes = peft_family(family)
    head_name = head_to_share(store_folder, "adapters", name, head)
    head_manifest = store.read_manifest(store_folder, "heads", head_name) if head_name else None
    prefix = f"{ENCODER_FAMILIES[family].weight_names.prefix}." if head_manifest else ""
    tensors, blocks = write_lora(config, adapter.params, family, num_layers, prefix)
    settings = _settings(config, manifest, family, num_layers, blocks)
    record = None
    if head_manifest:
        record, modules, head_tensors = _head(store_folder, head_manifest, family, prefix)
        tensors |= head_tensors
        model_class = CLASS_OF_KIND[record.task.kind]
        settings |= {"task_type": TASK_TYPES.get(model_class), "modules_to_save": modules}
        if model_class not in TASK_TYPES:
            settings["auto_mapping"] = {
                "base_model_class": classes.classes + model_class,
                "parent_library": classes.library,
            }
    with new_folder(output) as new:
        write_folder(new, settings, tensors, write_record(name, manifest, blocks, record))
    return [(f"adapter {name}", output), *([(f"head {head_name}", output)] if head_name else [])]


def _lora(manifest: Manifest) -> LoraConfig:
    config = from_dict(Adapter, manifest.config, f'the config of adapter "{manifest.name}"')
    if not isinstance(config, LoraConfig):
        raise UserError(
            f'The adapter "{manifest.name}" has the kind {config.kind}; only adapters of kind lora can be exported to '
            "PEFT."
        )
    return config


def _settings(
    config: LoraConfig, manifest: Manifest, family: str, num_layers: int, blocks: Sequence[DenseLayer]
) -> dict[str, Any]:
    """Builds the contents of ``adapter_config.json`` for an adapter without a head.

    All of these settings have existed since PEFT 0.7.
    """
    layers = adapter_layers(config, num_layers)
    # The rank of a module with blocks is the sum of its blocks' ranks, and its scaling is the same.
    modules = dense_modules(family)
    num_blocks = collections.Counter(modules[name] for name in blocks)
    in_some, can_list = len(layers) < num_layers, can_list_layers(family)
    targets = numbered_names if in_some and not can_list else target_names
    return {
        "alpha_pattern": {module: number * config.alpha for module, number in num_blocks.items()},
        "auto_mapping": None,
        "base_model_name_or_path": manifest.trunk["name"],
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "layers_pattern": None,
        "layers_to_transform": list(layers) if in_some and can_list else None,
        "lora_alpha": int(config.alpha) if config.alpha.is_integer() else config.alpha,
        "lora_dropout": config.dropout,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": config.rank,
        "rank_pattern": {module: number * config.rank for module, number in num_blocks.items()},
        "revision": None,
        "target_modules": targets(family, layers, config.target_modules),
        "task_type": "FEATURE_EXTRACTION",
        "use_rslora": False,
    }


def _head(
    store_folder: str | Path, manifest: Manifest, family: str, prefix: str
) -> tuple[HeadRecord, list[str], dict[str, np.ndarray]]:
    """Converts a head to a record, PEFT's ``modules_to_save`` and tensors."""
    params, record = store.load(store_folder, "heads", manifest.name).params, head_record(manifest)
    modules, tensors = write_head(record.config, params, manifest.name, record.task, family, prefix)
    return record.as_exported(), modules, tensors
