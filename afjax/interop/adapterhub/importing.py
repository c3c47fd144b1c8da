"""Imports artifacts in AdapterHub's format into a store."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afjax import store
from afjax.config.adapters import AdapterConfig
from afjax.config.from_dict import from_dict, to_dict
from afjax.config.values import check_name
from afjax.display.words import first_of
from afjax.errors import UserError
from afjax.fusion.checks import check_fusible
from afjax.interop.adapterhub.adapters import read_adapter
from afjax.interop.adapterhub.files import ADAPTER, FUSION, HEAD, SETUP, Part, check_not_peft, read_json, read_part
from afjax.interop.adapterhub.fusion import member_names, read_fusion
from afjax.interop.adapterhub.heads import read_head
from afjax.interop.folders import find_folder
from afjax.interop.heads import imported_head
from afjax.interop.imported import Imported, checked_name, load_named_trunk, save_imported
from afjax.model.heads import check_pooler
from afjax.model.loading import load_adapters
from afjax.tasks.kinds import TASK_KINDS
from afjax.trees import tree_digest
from afjax.trunk.pretrained import Trunk, check_length

_CONFIGS = (ADAPTER.config, FUSION.config, HEAD.config)


def import_adapterhub(
    source: str | Path, store_folder: str | Path, *, name: str = "", trunk: Trunk | None = None, overwrite: bool = False
) -> list[Imported]:
    """Imports a folder of the ``adapters`` library into a store, all or nothing.

    Bit-identical artifacts that are already in the store are kept, for example adapters shared with a fusion that was
    imported before, or the results of an interrupted import. If all of them are already there, the import fails unless
    ``overwrite`` is set, because their names are taken.

    Args:
      source: A folder written by ``save_adapter``, ``save_adapter_fusion``, ``save_head`` or ``save_adapter_setup``, or
        its repository id on the Hugging Face hub.
      store_folder: The store.
      name: New name for the folder's adapter, fusion and head. In a setup it renames the fusion, or the adapter if
        there is no fusion. Empty to keep the names.
      trunk: The trunk that the artifacts were trained on. Defaults to the trunk named in the files.
      overwrite: Whether existing artifacts may be replaced.

    Returns:
      The imported artifacts, including those that were already in the store.

    Raises:
      UserError: The folder is not in AdapterHub's format, a file is damaged, a setting is not supported, the trunk does
        not match, or a name is taken. The store is left unchanged.

    Example:
      >>> import numpy as np
      >>> from afjax import Trunk, store
      >>> from afjax.interop.adapterhub import export_adapterhub, import_adapterhub
      >>> from afjax.trunk.config import TrunkConfig
      >>> sizes = {"hidden_size": 8, "num_layers": 2, "num_heads": 2, "intermediate_size": 16}
      >>> config = TrunkConfig(family="bert", vocab_size=30, max_positions=16, type_vocab_size=2, **sizes)
      >>> trunk = Trunk(name="tiny", config=config, params={}, sha256="ab", folder=None)  # the weights are not used
      >>> down = {"kernel": np.zeros((2, 8, 4), np.float32), "bias": np.zeros((2, 4), np.float32)}
      >>> up = {"kernel": np.zeros((2, 4, 8), np.float32), "bias": np.zeros((2, 8), np.float32)}
      >>> tree, settings = {"ffn": {"down": down, "up": up}}, {"kind": "bottleneck", "size": 4}
      >>> draft = store.Draft("adapters", "rte", tree, config=settings, trunk=trunk.identity())
      >>> _ = store.save("store", draft)
      >>> _ = export_adapterhub("store", "rte", "exported")
      >>> [imported.name for imported in import_adapterhub("exported", "imported", trunk=trunk)]
      ['rte']
    """
    if name:
        check_name(name, "artifact")
    folder = find_folder(str(source), library="adapters", patterns=("*.json", "*.safetensors", "*.bin"))
    trunk = trunk or _trunk_of(folder)
    if (folder / SETUP).exists():
        imported = _read_setup(folder, trunk, name)
    else:
        imported = _read_folder(folder, trunk, name, store_folder)
    save_imported(imported, store_folder, trunk=trunk, source=source, overwrite=overwrite)
    return imported


def _trunk_of(folder: Path) -> Trunk:
    """Loads the trunk named in a folder's files."""
    paths = [folder / config for config in _CONFIGS]
    paths += [path for config in _CONFIGS for path in sorted(folder.glob(f"*/{config}"))]
    for path in paths:
        if path.exists():
            record = read_json(path)
            check_not_peft(record, path)
            return load_named_trunk(record.get("model_name"), path)
    raise UserError(
        f"{folder} has none of {', '.join([*_CONFIGS, SETUP])}; choose a folder saved by the adapters library."
    )


def _read_folder(folder: Path, trunk: Trunk, name: str, store_folder: str | Path) -> list[Imported]:
    """Loads a folder without a setup.

    It contains an adapter or fusion with an optional head, or only a head.
    """
    imported = []
    if (folder / ADAPTER.config).exists():
        imported.append(_read_adapter(folder, trunk, name))
    if (folder / FUSION.config).exists():
        part = read_part(folder, FUSION, trunk.config)
        members = _stored_members(part, trunk, store_folder)
        imported.append(_read_fusion(part, trunk, name, members))
    if (folder / HEAD.config).exists():
        imported.append(_read_head(folder, trunk, name, imported[-1] if imported else None))
    if not imported:
        parts = sorted(path.parent.name for config in _CONFIGS for path in folder.glob(f"*/{config}"))
        within = (
            f"choose one of its subfolders: {first_of(parts)}"
            if parts
            else "choose a folder saved by the adapters library"
        )
        raise UserError(f"{folder} is not an adapter itself; {within}.")
    return imported


def _read_setup(folder: Path, trunk: Trunk, name: str) -> list[Imported]:
    """Loads a setup: a composition and all its parts."""
    path = folder / SETUP
    setup = read_json(path)
    kind, members = _composition(setup.get("adapter_setup"), path)
    adapters = [_read_adapter(folder / member, trunk, name if kind == "Stack" else "") for member in members]
    imported = list(adapters)
    if kind == "Fuse":
        part = read_part(_fusion_folder(folder, members), FUSION, trunk.config)
        trees = {adapter.name: (_architecture(adapter), tree_digest(adapter.params)) for adapter in adapters}
        imported.append(_read_fusion(part, trunk, name, trees))
    heads = setup.get("head_setup")
    head_names = [heads] if isinstance(heads, str) else heads
    if head_names is True:
        imported.append(_read_head(folder, trunk, name, imported[-1]))
    elif head_names:
        if not isinstance(head_names, list) or not all(isinstance(head, str) for head in head_names):
            raise UserError(f"{path}: head_setup is a composition; afjax only supports one head or a list of heads.")
        main = imported[-1]
        imported += [_read_head(folder / _plain(head, path), trunk, "", main) for head in head_names]
    return imported


def _composition(composition: Any, path: Path) -> tuple[str, list[str]]:
    """Parses a composition of adapters.

    Returns ``Fuse`` with the fused adapters' names, or ``Stack`` with a single name.
    """
    if not isinstance(composition, Mapping) or not isinstance(composition.get("children"), list):
        raise UserError(f"{path} has no adapter_setup; download it again.")
    kind, members = composition.get("type"), []
    for child in composition["children"]:
        names = child.get("children") if isinstance(child, Mapping) and child.get("type") == "single" else None
        if not isinstance(names, list) or len(names) != 1:
            raise UserError(f"{path} nests compositions; afjax only supports one adapter or one fusion of adapters.")
        members.append(_plain(names[0], path))
    if kind == "Fuse" or (kind == "Stack" and len(members) == 1):
        return kind, members
    raise UserError(f"{path} composes adapters as {kind}; afjax only supports one adapter or one fusion (Fuse).")


def _plain(name: Any, path: Path) -> str:
    """Returns ``name`` after checking that it is safe to use as a folder name."""
    try:
        check_name(str(name), "adapter or head")
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return str(name)


def _fusion_folder(folder: Path, members: list[str]) -> Path:
    """Finds the subfolder with a setup's fusion.

    The subfolder is named after the fusion, by default the comma-separated names of its adapters. Because a setup does
    not record a custom name (``add_adapter_fusion(..., name=...)``), the other subfolders are searched too.
    """
    default_folder = folder / ",".join(members)
    other_folders = sorted(path.parent for path in folder.glob(f"*/{FUSION.config}") if path.parent != default_folder)
    for place in (default_folder, *other_folders):
        path = place / FUSION.config
        if path.exists() and member_names(read_json(path), str(path)) == members:
            return place
    raise UserError(f"{folder} has no subfolder with the fusion of {', '.join(members)}; save the whole setup again.")


def _read_adapter(folder: Path, trunk: Trunk, name: str) -> Imported:
    part = read_part(folder, ADAPTER, trunk.config)
    config, params, notes = read_adapter(part, trunk.config)
    details = {"config": to_dict(config), **to_dict(part.facts)}
    return Imported(kind="adapters", name=_named(part, name), params=params, details=details, notes=notes)


def _read_fusion(part: Part, trunk: Trunk, name: str, members: Mapping[str, tuple[AdapterConfig, str]]) -> Imported:
    """Loads a fusion of the adapters ``{name: (config, digest)}``."""
    check_fusible({member: config for member, (config, _) in members.items()}, trunk.config.num_layers)
    config, params, notes = read_fusion(part, [config for config, _ in members.values()], trunk.config)
    details = {
        "config": to_dict(config),
        "adapters": [{"name": member, "sha256": digest} for member, (_, digest) in members.items()],
        **to_dict(part.facts),
    }
    return Imported(
        kind="fusion",
        name=_named(part, name or str(part.own.get("name", ""))),
        params=params,
        details=details,
        notes=notes,
    )


def _read_head(folder: Path, trunk: Trunk, name: str, main: Imported | None) -> Imported:
    """Loads a head, and records the adapter or fusion ``main`` that it was trained with.

    Its name is ``name``, else the name in its file, else the name of ``main``. Empty names are skipped.
    """
    part = read_part(folder, HEAD, trunk.config)
    chosen = _named(part, name or part.name or (main.name if main else ""))
    record, params = read_head(part, chosen, trunk)
    check_length(record.max_length, trunk)
    if TASK_KINDS[record.task.kind].reads == "pooled":
        check_pooler(record.config, trunk.params)
    # A head of Hugging Face's model has no config in the file.
    unclear = part.envelope.get("config") is None and record.task.kind == "classification"
    notes = ["its file does not record problem_type, so the task is classification with one label per row"]
    return imported_head(record, params, chosen, main, notes if unclear else ())


def _stored_members(part: Part, trunk: Trunk, store_folder: str | Path) -> dict[str, tuple[AdapterConfig, str]]:
    """Loads the fused adapters from the store, for a fusion without a setup."""
    members = {}
    for name in member_names(part.envelope, part.where):
        if name not in store.names(store_folder, "adapters"):
            raise UserError(
                f'{part.where} fuses the adapter "{name}", which is not in the store {store_folder}; import the '
                "fused adapters first, under their original names, or import the whole setup."
            )
        config, tree = load_adapters(store_folder, [name], trunk)[name]
        if not isinstance(config, AdapterConfig):
            raise UserError(
                f'{part.where} fuses the adapter "{name}", which has the kind {config.kind} in the store '
                f"{store_folder}; AdapterHub only fuses bottleneck adapters."
            )
        members[name] = (config, tree_digest(tree))
    return members


def _architecture(adapter: Imported) -> AdapterConfig:
    config: AdapterConfig = from_dict(AdapterConfig, adapter.details["config"])
    return config


def _named(part: Part, name: str) -> str:
    """Returns an imported part's name: ``name`` or, if empty, the name in its file."""
    chosen = name or part.name
    if not chosen:
        raise UserError(f"{part.where} has no name; set one with --name.")
    return checked_name(chosen, part.where)
