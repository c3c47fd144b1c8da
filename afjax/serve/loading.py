"""Loads the tasks of a routed model from a store."""

from collections.abc import Sequence
from pathlib import Path

from afjax.config.capacity import Capacity
from afjax.errors import UserError
from afjax.model.loading import load_task_model
from afjax.model.task_model import TaskModel
from afjax.serve.routed_model import RoutedModel
from afjax.trunk.pretrained import Trunk


def load_routed_model(
    store_folder: str | Path,
    trunk: Trunk,
    *,
    adapters: Sequence[str] = (),
    fusions: Sequence[str] = (),
    heads: Sequence[str] = (),
    capacity: Capacity = Capacity(),
) -> RoutedModel:
    """Loads the adapters, fusions and heads of many tasks from a store.

    Args:
      store_folder: The store.
      trunk: The encoder that all of them were trained on.
      adapters: The names of adapters. Each is used with the head that was trained with it.
      fusions: The names of fusions, likewise.
      heads: The names of heads that were trained without an adapter.
      capacity: The limits of the program's shapes.

    Returns:
      The model. Rows refer to a task by the name of its adapter, fusion or head.

    Raises:
      UserError: No name was given, a name occurs twice, a part does not exist, is damaged or was trained on another
        trunk (see :func:`afjax.load_task_model`), or the model cannot be made (see :class:`afjax.RoutedModel`).

    Example:
      >>> import jax
      >>> from afjax import Method, TaskConfig, TaskModel, load_routed_model, load_trunk, rows_from_lists, single_setup
      >>> trunk = load_trunk("minilm")
      >>> setup = single_setup(Method(), trunk.config, name="reviews", reads="pooled", num_outputs=2)
      >>> params, task = setup.init(jax.random.key(0), trunk.params), TaskConfig(name="reviews")
      >>> rows = rows_from_lists(["Far too long.", "A fine film."], ["bad", "good"])
      >>> TaskModel.from_params(setup.model, params, trunk, task, rows, max_length=32).save("store")
      >>> load_routed_model("store", trunk, adapters=["reviews"])
      <RoutedModel 1 task, trunk minilm>
    """
    names = [*adapters, *fusions, *heads]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f'"{name}" was given twice; give each name once, and only one adapter, fusion or head of it.'
            )
    models: dict[str, TaskModel] = {}
    for name in adapters:
        models[name] = load_task_model(store_folder, trunk, adapter=name)
    for name in fusions:
        models[name] = load_task_model(store_folder, trunk, fusion=name)
    for name in heads:
        models[name] = load_task_model(store_folder, trunk, head=name)
    return RoutedModel(trunk, models, capacity)
