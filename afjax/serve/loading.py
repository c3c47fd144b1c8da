"""Loads a routed model's tasks from a store."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from afjax import store
from afjax.config.capacity import Capacity
from afjax.errors import UserError, did_you_mean
from afjax.model.loading import load_task_model
from afjax.model.stored import NoHeadError, recorded_head
from afjax.model.task_model import TaskModel
from afjax.serve.requests import UnknownTaskError
from afjax.serve.routed_model import RoutedModel
from afjax.store.artifacts import check_is_store
from afjax.trunk.pretrained import Trunk


def load_routed_model(
    store_folder: str | Path, trunk: Trunk, names: Sequence[str], *, capacity: Capacity = Capacity()
) -> RoutedModel:
    """Loads the adapters, fusions and heads of many tasks from a store.

    Args:
      store_folder: The store.
      trunk: The encoder that all tasks were trained on. Its dtype is replaced by the dtype used in training.
      names: The names of adapters and fusions, which are loaded with their heads, and of heads that were trained
        without an adapter. A prefix ``adapters/``, ``fusion/`` or ``heads/`` is optional unless an adapter and a fusion
        have the same name.
      capacity: The limits of the program's shapes.

    Returns:
      The model. Its task names are ``names``, including any prefixes.

    Raises:
      UserError: ``names`` is empty; a name is unknown, ambiguous or repeated; an artifact is damaged or was trained on
        a different trunk (see :func:`afjax.load_task_model`); or tasks were trained with different dtypes.

    Example:
      >>> import jax
      >>> from afjax import Method, TaskConfig, TaskModel, load_routed_model, load_trunk, rows_from_lists, single_setup
      >>> trunk = load_trunk("minilm")
      >>> setup = single_setup(Method(), trunk.config, name="reviews", reads="pooled", num_outputs=2)
      >>> params, task = setup.init(jax.random.key(0), trunk.params), TaskConfig(name="reviews")
      >>> rows = rows_from_lists(["Far too long.", "A fine film."], ["bad", "good"])
      >>> TaskModel.from_params(setup.model, params, trunk, task, rows, max_length=32).save("store")
      >>> load_routed_model("store", trunk, ["reviews"])
      <RoutedModel 1 task, trunk minilm>
    """
    for name in names:
        if list(names).count(name) > 1:
            raise UserError(f'"{name}" is listed twice; list each name once.')
    artifacts = {name: find_artifact(store_folder, name) for name in names}
    models = {name: load_model(store_folder, trunk, *artifact) for name, artifact in artifacts.items()}
    dtypes = {model.trunk.dtype for model in models.values()}
    return RoutedModel(dataclasses.replace(trunk, dtype=dtypes.pop()) if len(dtypes) == 1 else trunk, models, capacity)


def load_model(store_folder: str | Path, trunk: Trunk, kind: str, name: str) -> TaskModel:
    """Loads one task's model: an adapter or a fusion with its head, or only a head.

    Args:
      store_folder: The store.
      trunk: The encoder that the artifact was trained on.
      kind, name: The artifact, from :func:`find_artifact`.
    """
    if kind == "heads":
        return load_task_model(store_folder, trunk, head=name)
    if kind == "adapters":
        return load_task_model(store_folder, trunk, adapter=name)
    return load_task_model(store_folder, trunk, fusion=name)


def find_artifact(store_folder: str | Path, name: str) -> tuple[str, str]:
    """Finds an adapter or fusion by name or, if there is none, a head.

    Args:
      store_folder: The store.
      name: The name, or ``KIND/NAME``.

    Returns:
      The kind (``adapters``, ``fusion`` or ``heads``) and the name.

    Raises:
      UnknownTaskError: The store has no artifact with this name.
      UserError: Both an adapter and a fusion have this name.
    """
    stored = {kind: store.names(store_folder, kind) for kind in ("adapters", "fusion", "heads")}
    kind, slash, own_name = name.partition("/")
    if slash and own_name in stored.get(kind, ()):
        return kind, own_name
    if name in stored["adapters"] and name in stored["fusion"]:
        raise UserError(f'"{name}" is both an adapter and a fusion; use "adapters/{name}" or "fusion/{name}".')
    for kind, names in stored.items():
        if name in names:
            return kind, name
    known = list(dict.fromkeys(known for names in stored.values() for known in names))
    raise UnknownTaskError(
        f'The store {store_folder} has no adapter, fusion or head "{name}" (it has: {", ".join(known) or "nothing"}).'
        f"{did_you_mean(name, known)}"
    )


def names_with_heads(store_folder: str | Path) -> tuple[list[str], dict[str, str]]:
    """Lists the adapters and fusions in a store that a routed model can serve.

    Args:
      store_folder: The store.

    Returns:
      The names, as for :func:`load_routed_model`, and a message for each adapter or fusion that was skipped, because no
      head or several heads were trained with it.

    Raises:
      UserError: There is no store, or a manifest is damaged.
    """
    check_is_store(store_folder)
    stored = {kind: store.names(store_folder, kind) for kind in ("adapters", "fusion")}
    names, left_out = [], {}
    for kind, others in (("adapters", "fusion"), ("fusion", "adapters")):
        for own_name in stored[kind]:
            name = f"{kind}/{own_name}" if own_name in stored[others] else own_name
            try:
                recorded_head(store_folder, kind, own_name)
            except NoHeadError as error:
                left_out[name] = f"{error.fact}."
            else:
                names.append(name)
    return names, left_out
