"""Loads adapters and task models from a store, and checks that parts match."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from afjax import store
from afjax.config.adapters import Adapter
from afjax.config.from_dict import from_dict
from afjax.config.fusion import FusionConfig
from afjax.config.heads import stored_head
from afjax.config.tasks import TaskConfig
from afjax.data.sources.kinds import source_kind
from afjax.distributed.notes import note
from afjax.errors import UserError
from afjax.model.model import Model
from afjax.model.saving import trained_with
from afjax.model.setup import wrong_leaf
from afjax.model.stored import load_adapter, load_unpruned_fusion, recorded_head
from afjax.model.task_model import TaskModel
from afjax.tasks.kinds import TASK_KINDS
from afjax.trees import Tree
from afjax.trunk.pretrained import Trunk, check_length


def load_task_model(
    store_folder: str | Path,
    trunk: Trunk,
    *,
    head: str = "",
    adapter: str = "",
    fusion: str = "",
    allow_mismatch: bool = False,
) -> TaskModel:
    """Loads a task model from a store: a head, with its adapter or fusion.

    A head's manifest records the digest of the adapter, fusion or trunk that it was trained with. If the record is
    missing, as in imported heads and older stores, a note is printed on stderr.

    Args:
      store_folder: The store.
      trunk: The encoder that the head was trained on. Its dtype is replaced by the dtype used in training.
      head: The head's name. Optional if the store records which head was trained with the adapter or fusion.
      adapter: The name of an adapter, if any.
      fusion: The name of a fusion, if any. With neither an adapter nor a fusion, only the head is loaded.
      allow_mismatch: Whether to accept an adapter or fusion that the head was not trained with.

    Returns:
      The model, with the task, labels, metrics and seed from the head's manifest.

    Raises:
      UserError: No name is given, both an adapter and a fusion are given, or a name does not exist; ``head`` is not
        given and no head, or more than one, was trained with the adapter or fusion; the trunk's weights, architecture
        or tokenizer do not match; a file is damaged; a fusion's adapters have changed since it was trained; or the head
        was trained with a different adapter or fusion.

    Example:
      >>> import jax
      >>> from afjax import Method, TaskConfig, TaskModel, Trunk, load_task_model, rows_from_lists, single_setup
      >>> from afjax.trees import tree_digest
      >>> from afjax.trunk.config import TrunkConfig
      >>> from afjax.trunk.encoder import init_trunk
      >>> sizes = {"hidden_size": 8, "num_layers": 2, "num_heads": 2, "intermediate_size": 16}
      >>> config = TrunkConfig(family="bert", vocab_size=30, max_positions=16, type_vocab_size=2, **sizes)
      >>> params = jax.jit(init_trunk, static_argnums=1)(jax.random.key(0), config)
      >>> trunk = Trunk(name="tiny", config=config, params=params, sha256=tree_digest(params), folder=None)
      >>> setup = single_setup(Method(), config, name="reviews", reads="pooled", num_outputs=2)
      >>> params, task = setup.init(jax.random.key(1), trunk.params), TaskConfig(name="reviews")
      >>> rows = rows_from_lists(["Far too long.", "A fine film."], ["bad", "good"])
      >>> model = TaskModel.from_params(setup.model, params, trunk, task, rows, max_length=16)
      >>> model.save("store")
      >>> load_task_model("store", trunk, adapter="reviews").labels
      ('bad', 'good')
    """
    if adapter and fusion:
        raise UserError(f'Both the adapter "{adapter}" and the fusion "{fusion}" were selected; choose only one.')
    if not (head or adapter or fusion):
        raise UserError("No model was selected; set adapter, fusion or head.")
    head = head or recorded_head(store_folder, "fusion" if fusion else "adapters", fusion or adapter)
    identity = trunk.identity()
    loaded_head = store.load(store_folder, "heads", head, trunk=identity)
    params: Tree = {"adapters": {}, "fusion": {}, "heads": {head: loaded_head.params}}
    fusion_config = FusionConfig()
    if fusion:
        fusion_config, fusion_params, adapters = load_unpruned_fusion(store_folder, fusion, trunk=identity)
        params["fusion"][fusion] = fusion_params
    else:
        adapters = load_adapters(store_folder, [adapter] if adapter else [], trunk)
    params["adapters"] = {name: tree for name, (_, tree) in adapters.items()}
    if fusion and not adapters:
        raise UserError(f'The fusion "{fusion}" records no adapters, so it is damaged; train it again.')
    for name, (config, tree) in adapters.items():
        if wrong := wrong_leaf(config, tree, trunk.config, trunk.params):
            raise UserError(
                f'The adapter "{name}" does not match the architecture in its manifest: {wrong}; restore the adapter '
                "from a copy, or train it again."
            )
    manifest = loaded_head.manifest
    task = from_dict(TaskConfig, manifest.task, f'the task of head "{head}"')
    _check_head(loaded_head, task)
    values = dict(manifest.config)
    del values["num_outputs"]
    max_length = values.pop("max_length")
    text_columns = stored_text_columns(values, head, task)
    check_length(max_length, trunk)
    model = TaskModel(
        # Use the dtype of the training run to reproduce its scores.
        trunk=dataclasses.replace(trunk, dtype=manifest.trunk.get("dtype", "float32")),
        model=Model(
            trunk=trunk.config,
            head_name=head,
            head=stored_head(values, f'the config of head "{head}"'),
            reads=TASK_KINDS[task.kind].reads,
            adapters=tuple((name, config) for name, (config, _) in adapters.items()),
            fusion_name=fusion,
            fusion=fusion_config,
        ),
        params=params,
        task=task,
        labels=manifest.labels,
        metrics=manifest.metrics,
        seed=manifest.seed,
        max_length=max_length,
        text_columns=text_columns,
    )
    return _with_record(model, manifest.trained_with, allow_mismatch)


def _check_head(head: store.Artifact, task: TaskConfig) -> None:
    """Raises UserError if a head's layers, config, labels and task are inconsistent."""
    manifest = head.manifest
    outputs, max_length = manifest.config.get("num_outputs"), manifest.config.get("max_length")
    if type(outputs) is not int or type(max_length) is not int or "output/bias" not in manifest.leaves:
        raise UserError(
            f'The head "{manifest.name}" is damaged: it has no output layer, or num_outputs ({outputs!r}) and '
            f"max_length ({max_length!r}) in its config are not integers. Restore it from a copy, or train it again."
        )
    labels = list(manifest.labels)
    if len(set(labels)) != len(labels) or "" in labels:
        raise UserError(f'The head "{manifest.name}" has duplicate or empty labels ({labels}); train it again.')
    bias = head.params["output"]["bias"]
    if bias.shape != (outputs,) or TASK_KINDS[task.kind].num_outputs(manifest.labels) != outputs:
        raise UserError(
            f'The head "{manifest.name}" has {bias.shape[0]} outputs for the labels {labels}; train it again.'
        )


def _with_record(model: TaskModel, record: Mapping[str, str], allow_mismatch: bool) -> TaskModel:
    """Checks that the head was trained with the model's adapter, fusion or trunk.

    ``head_record`` of the returned model is the head's record if it does not match, and an empty dict if there is no
    record.

    Raises:
      UserError: The record does not match, and ``allow_mismatch`` is False.
    """
    head = model.model.head_name
    if not record:
        note(f'The head "{head}" does not record the model that it was trained with, so a mismatch cannot be detected.')
        return dataclasses.replace(model, head_record={})
    actual = trained_with(model)
    # The trunk was already checked when the head was loaded.
    if record["kind"] == actual["kind"] and (record["kind"] == "trunk" or record["sha256"] == actual["sha256"]):
        return model
    if not allow_mismatch:
        raise UserError(
            f'The head "{head}" was trained with {_described(record)}, not with {_described(actual)}. Load the '
            "model that it was trained with, or allow the mismatch (allow_mismatch=True, --allow_mismatch)."
        )
    return dataclasses.replace(model, head_record=dict(record))


def _described(record: Mapping[str, str]) -> str:
    if record["kind"] == "trunk":
        return "only the trunk"
    kind = {"adapters": "adapter", "fusion": "fusion"}.get(record["kind"], record["kind"])
    return f'the {kind} "{record["name"]}" (SHA-256 {record["sha256"][:12]})'


def stored_text_columns(values: dict[str, Any], head: str, task: TaskConfig) -> int | None:
    """Pops ``text_columns`` from a stored head's config.

    Returns 1 for single texts, 2 for pairs, or None if unknown. Heads from earlier versions and from AdapterHub do not
    record the number. For these, it is inferred if the task names its text columns, or if all tasks of its kind or
    source have the same number of texts. Otherwise, a note is printed on stderr.
    """
    if "text_columns" in values:
        text_columns = values.pop("text_columns")
        return text_columns if text_columns in (1, 2) else None
    if task.text_a and task.kind in ("classification", "regression"):
        return 2 if task.text_b else 1
    if task.kind == "span":
        return 2
    if num_texts := source_kind(task.source).num_texts:
        return num_texts
    note(
        f'The head "{head}" does not record whether it was trained on single texts or on pairs, so the form of input '
        "rows is not checked."
    )
    return None


def load_adapters(store_folder: str | Path, names: Sequence[str], trunk: Trunk) -> dict[str, tuple[Adapter, Tree]]:
    """Loads adapters from a store, each with its architecture.

    Raises:
      UserError: A name does not exist, an adapter was trained on a different trunk, or a file is damaged.
    """
    identity = trunk.identity()
    return {name: load_adapter(store_folder, name, trunk=identity) for name in names}
