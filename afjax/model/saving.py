"""Saves the adapters, fusions and heads of task models to a store."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afjax import store
from afjax.config.from_dict import to_dict
from afjax.errors import UserError
from afjax.trees import tree_digest
from afjax.trunk.pretrained import write_if_trained

if TYPE_CHECKING:
    from afjax.model.task_model import TaskModel


def save_models(
    store_folder: str | Path, models: "Sequence[TaskModel]", *, overwrite: bool = False, run: str = ""
) -> None:
    """Saves jointly trained models.

    Either all of their adapters, fusions and heads are saved, or none. A trained trunk is written to its own folder
    first, because the store only records its name. Fused adapters are not saved, because they are already in the store.

    Args:
      store_folder: The store.
      models: The models, with distinct names.
      overwrite: Whether existing artifacts with these names may be replaced.
      run: Identifier of the training run that saves them; see :func:`afjax.store.save_all`.

    Raises:
      UserError: The store already has one of these names and ``overwrite`` is False; the store lacks the fusion's
        adapters, or has others, for example because layers were dropped; or the store or a trained trunk's folder
        cannot be written.
    """
    for trunk in {model.trunk.sha256: model.trunk for model in models}.values():
        write_if_trained(trunk)
    all_drafts = [draft for model in models for draft in drafts(model, store_folder)]
    store.save_all(store_folder, all_drafts, overwrite=overwrite, run=run)


def drafts(model: "TaskModel", store_folder: str | Path) -> list[store.Draft]:
    """Prepares the artifacts that ``TaskModel.save`` writes.

    Raises:
      UserError: The store lacks the fusion's adapters, or has others, for example because layers were dropped.
    """
    shared: dict[str, Any] = {
        "trunk": model.trunk.identity(),
        "task": to_dict(model.task),
        "labels": model.labels,
        "metrics": dict(model.metrics),
        "seed": model.seed,
    }
    parts: list[store.Draft] = []
    fusion = model.model.fusion_name
    if fusion:
        members = [
            {"name": member, "sha256": tree_digest(model.params["adapters"][member])}
            for member, _ in model.model.adapters
        ]
        _check_members(members, store_folder)
        tree, config = model.params["fusion"][fusion], to_dict(model.model.fusion)
        parts = [store.Draft(kind="fusion", name=fusion, params=tree, config=config, adapters=members, **shared)]
    else:
        for name, adapter in model.model.adapters:
            tree, config = model.params["adapters"][name], to_dict(adapter)
            parts.append(store.Draft(kind="adapters", name=name, params=tree, config=config, **shared))
    head = model.model.head_name
    config = {
        **to_dict(model.model.head),
        "num_outputs": model.num_outputs,
        "max_length": model.max_length,
        "text_columns": model.text_columns,
    }
    record = trained_with(model) if model.head_record is None else model.head_record
    draft = store.Draft(
        kind="heads", name=head, params=model.params["heads"][head], config=config, trained_with=record, **shared
    )
    return [*parts, draft]


def trained_with(model: "TaskModel") -> dict[str, str]:
    """Describes the fusion or adapter that the head was trained with, or the trunk.

    The description is stored in ``Manifest.trained_with``. It refers to the trunk if there is no fusion or adapter.
    """
    if model.model.fusion_name:
        kind, name = "fusion", model.model.fusion_name
    elif model.model.adapters:
        kind, name = "adapters", model.model.adapters[0][0]
    else:
        return {"kind": "trunk", "name": model.trunk.name, "sha256": model.trunk.sha256}
    return {"kind": kind, "name": name, "sha256": tree_digest(model.params[kind][name])}


def artifacts(model: "TaskModel") -> list[tuple[str, str]]:
    """Lists ``(kind, name)`` for each artifact that ``TaskModel.save`` writes."""
    head = [("heads", model.model.head_name)]
    if model.model.fusion_name:
        return [("fusion", model.model.fusion_name), *head]
    return [("adapters", name) for name, _ in model.model.adapters] + head


def _check_members(members: Sequence[Mapping[str, str]], store_folder: str | Path) -> None:
    """Raises UserError unless the store has a fusion's adapters."""
    stored_names = store.names(store_folder, "adapters")
    for name, digest in ((member["name"], member["sha256"]) for member in members):
        if name not in stored_names:
            raise UserError(
                f'The adapter "{name}" of the fusion is not in the store {store_folder}. Save the fusion to the store '
                "of its adapters, or save the adapter first."
            )
        if store.read_manifest(store_folder, "adapters", name).digest != digest:
            raise UserError(
                f'The adapter "{name}" in the store {store_folder} does not match the adapter in the fusion, for '
                "example because layers were dropped. A fusion can only be saved with adapters from the store."
            )
