"""Imports checkpoints of Bert-n-Pals (Stickland & Murray 2019).

The authors' code is AsaCooperStickland/Bert-n-Pals. A checkpoint is the PyTorch state dict of a ``BertForMultiTask``:
the trunk, which was trained on all tasks, plus each task's module and output layer.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from afjax import store
from afjax.adapters.kinds import adapter_layers, init_adapter
from afjax.config.adapters import Adapter, LhucConfig, LowRankConfig, PalConfig, TopAttentionConfig, TopLayerConfig
from afjax.config.heads import HeadConfig
from afjax.config.values import check_name
from afjax.errors import UserError
from afjax.interop.bert_files import Case, bert_trunk, check_trunk_folder, hugging_face_config, read_bert_config
from afjax.interop.bert_tables import PYTORCH, Place, Table, Tensors, check_names, fill, trunk_table, weights_table
from afjax.interop.paper_tasks import paper_model, paper_task
from afjax.model.saving import artifacts, save_models
from afjax.model.task_model import TaskModel
from afjax.storage.paths import AnyPath, fetched, open_path
from afjax.store import reservations
from afjax.trees import Tree
from afjax.trunk.bert import WEIGHT_NAMES
from afjax.trunk.config import TrunkConfig
from afjax.trunk.config_file import trunk_config
from afjax.trunk.encoder import trunk_shapes
from afjax.trunk.family import dense_weights, norm_weights
from afjax.trunk.pretrained import Trunk, load_trunk, save_trunk
from afjax.trunk.weight_files import read_tensor_file

_ENCODER = "bert.encoder"
_SWITCHES = ("mult", "pals", "top", "bert_lay_top", "lhuc", "houlsby")


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A state dict converted to afjax's parameter trees.

    Attributes:
      trunk: The trunk's parameters.
      adapter: The config of the tasks' modules, or None if the tasks share everything except their output layers.
      modules: The modules' parameters, one tree per task. Empty if ``adapter`` is None.
      heads: The heads' parameters, one tree per task.
    """

    trunk: Tree
    adapter: Adapter | None
    modules: list[Tree]
    heads: list[Tree]


def from_bert_n_pals(tensors: Tensors, values: Mapping[str, Any], config: TrunkConfig, *, where: str) -> Checkpoint:
    """Converts a state dict to afjax's parameter trees.

    Args:
      tensors: The state dict.
      values: The config that the model was created with. It determines the kind of module.
      config: The trunk's config.
      where: The state dict's name in error messages.

    Raises:
      UserError: afjax does not support the kind of module, the copies of a shared matrix differ, or tensors are
        missing, unknown or of the wrong shape (the message lists them).
    """
    # DataParallel adds this prefix.
    if tensors and all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    num_tasks = sum(1 for name in tensors if name.startswith("classifier.") and name.endswith(".bias"))
    adapter = _architecture(tensors, values, config, where)
    trunk = trunk_table(PYTORCH, config.num_layers)
    heads = [_dense_table(f"classifier.{task}", "output") for task in range(max(1, num_tasks))]
    modules = [_module_table(adapter, task, config) for task in range(len(heads))] if adapter else []
    copies = _shared_copies(adapter, len(heads), config)
    expected_names = set(trunk).union(copies, *heads, *modules)
    check_names(tensors, expected_names, where=where)
    for name, original in copies.items():
        if not np.array_equal(tensors[name], tensors[original]):
            raise UserError(
                f"In {where}, {name} differs from {original}; afjax only supports PALs whose layers share that matrix."
            )
    shapes = jax.eval_shape(lambda: init_adapter(jax.random.key(0), adapter, config)) if adapter else {}
    return Checkpoint(
        trunk=fill(trunk_shapes(config), trunk, tensors, where=where),
        adapter=adapter,
        modules=[fill(shapes, table, tensors, where=where) for table in modules],
        heads=[_head(table, tensors, task, config, where) for task, table in enumerate(heads)],
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PalsFiles:
    """Paths of a trained model's files.

    Attributes:
      checkpoint: The state dict (``best_model.pth``), or its tensors as ``.safetensors``.
      config: The config that the model was trained with, such as ``pals_config.json``.
      vocab: The tokenizer's ``vocab.txt``. Defaults to the one next to ``config``.
      case: Whether the tokenizer lowercases ("uncased"). Defaults to "uncased" if no token has a capital letter.
    """

    checkpoint: AnyPath
    config: AnyPath
    vocab: AnyPath | None = None
    case: Case | None = None


def import_bert_n_pals(
    files: PalsFiles,
    *,
    tasks: Sequence[str],
    output: AnyPath,
    store_folder: AnyPath,
    name: str = "",
    max_length: int = 128,
    overwrite: bool = False,
) -> list[TaskModel]:
    """Converts a multi-task model.

    Its trunk is saved to a folder, and each task's module and head to a store.

    Args:
      files: The model's files.
      tasks: The tasks, in the order of the checkpoint's output layers, which is the training order.
      output: The trunk's folder, local or ``gs://``.
      store_folder: The store, local or ``gs://``.
      name: Prefix for names in the store (``NAME-TASK``). If empty, artifacts are named after their tasks.
      max_length: Maximum number of tokens per row.
      overwrite: Whether existing files and artifacts may be replaced.

    Returns:
      The saved models, in the order of ``tasks``.

    Raises:
      UserError: A file is missing or damaged, the files do not match each other, afjax does not support the kind of
        module, or a name is taken; nothing is written. Or the store cannot be written; then only the trunk's folder is.
    """
    check_trunk_folder(output, overwrite=overwrite)
    given = read_bert_config(files.config)
    # The authors' code ignores hidden_act and always uses the exact GELU.
    values = hugging_face_config({**given, "hidden_act": "gelu"}, gelu="exact", where=str(files.config))
    architecture = trunk_config(values, where=str(files.config))
    path = fetched(files.checkpoint)
    if not path.is_file():
        raise UserError(
            f"{files.checkpoint} is not a file; choose the state dict saved by the authors' code (best_model.pth)."
        )
    checkpoint = from_bert_n_pals(read_tensor_file(path), given, architecture, where=str(files.checkpoint))
    if len(tasks) != len(checkpoint.heads):
        raise UserError(
            f"{files.checkpoint} has {len(checkpoint.heads)} output layers, but --tasks names {len(tasks)}: "
            f"{', '.join(tasks)}; list all tasks in training order."
        )
    vocab = files.vocab or open_path(files.config).parent / "vocab.txt"
    with bert_trunk(output, checkpoint.trunk, values, vocab=vocab, case=files.case) as trunk:
        models = [_task_model(checkpoint, trunk, number, task, name, max_length) for number, task in enumerate(tasks)]
        _check_free(store_folder, models, overwrite)
        save_trunk(str(output), trunk)
        save_models(str(store_folder), models, overwrite=overwrite)
    saved = load_trunk(str(output))
    return [dataclasses.replace(model, trunk=saved) for model in models]


def _architecture(tensors: Tensors, values: Mapping[str, Any], config: TrunkConfig, where: str) -> Adapter | None:
    """Infers the config of the tasks' modules.

    Their kind is in ``values``, and their size follows from the tensors.
    """
    active = {switch for switch in _SWITCHES if values.get(switch)}
    # pals and bert_lay_top only select variants of other switches and have no effect without them.
    if not active & {"mult", "houlsby"}:
        active.discard("pals")
    if "top" not in active:
        active.discard("bert_lay_top")
    layers = tuple(
        number
        for number in range(config.num_layers)
        if any(name.startswith(f"{PYTORCH.layer_scope(number)}.multi_layers.") for name in tensors)
    )
    # The config does not record which layers have a module, because choosing them requires changing the authors' code.
    layer_subset = None if not layers or len(layers) == config.num_layers else layers
    first = f"{PYTORCH.layer_scope(layers[0] if layers else 0)}.multi_layers.0.aug_dense.bias"
    match sorted(active):
        case []:
            return None
        case ["mult", "pals"]:
            # The authors' code hard-codes the number of heads and applies GELU after the decoder.
            size = _size(tensors, f"{_ENCODER}.mult_aug_dense.0.bias", where)
            return PalConfig(size=size, num_heads=6, output_activation="gelu", layers=layer_subset)
        case ["mult"]:
            return LowRankConfig(size=_size(tensors, first, where), activation="gelu", layers=layer_subset)
        case ["top"]:
            return TopAttentionConfig(
                size=_size(tensors, f"{_ENCODER}.mult_dense.0.bias", where), num_layers=6, num_heads=12
            )
        case ["bert_lay_top", "top"]:
            return TopLayerConfig()
        case ["lhuc"]:
            return LhucConfig()
    raise UserError(
        f"The config of {where} turns on {' and '.join(sorted(active))}, which afjax does not support; the supported "
        "combinations are mult with pals, only mult, only top, top with bert_lay_top, and only lhuc."
    )


def _size(tensors: Tensors, name: str, where: str) -> int:
    """Returns a module's bottleneck size: the size of its down-projection's bias.

    The config's hidden_size_aug is not used, because a flag in the authors' code overrides it.
    """
    if name not in tensors:
        raise UserError(
            f"{where} lacks {name}, which its config requires; use the config that the checkpoint was trained with."
        )
    return tensors[name].size


def _module_table(adapter: Adapter, task: int, config: TrunkConfig) -> Table:
    """Maps the tensors of one task's module to their paths in the adapter tree.

    See :mod:`afjax.adapters`.
    """
    table: Table = {}
    on_top = f"{_ENCODER}.multi_layers.{task}"
    layers = [PYTORCH.layer_scope(number) for number in adapter_layers(adapter, config.num_layers)]
    match adapter:
        case PalConfig():
            table |= _dense_table(f"{_ENCODER}.mult_aug_dense.{task}", "shared/encode")
            table |= _dense_table(f"{_ENCODER}.mult_aug_dense2.{task}", "shared/decode")
            for index, layer in enumerate(layers):
                for part in ("query", "key", "value"):
                    table |= _dense_table(f"{layer}.multi_layers.{task}.attn.{part}", f"ffn/attention/{part}", index)
        case LowRankConfig():
            for index, layer in enumerate(layers):
                table |= _dense_table(f"{layer}.multi_layers.{task}.aug_dense", "ffn/encode", index)
                table |= _dense_table(f"{layer}.multi_layers.{task}.aug_dense2", "ffn/decode", index)
        case LhucConfig():
            for index, layer in enumerate(layers):
                table[f"{layer}.multi_lhuc.{task}.lhuc"] = Place(path="ffn/scale", index=index)
        case TopAttentionConfig():
            table |= _dense_table(f"{_ENCODER}.mult_dense.{task}", "top/encode")
            table |= _dense_table(f"{_ENCODER}.mult_dense2.{task}", "top/decode")
            attention_path = "top/layers/attention"
            for index in range(adapter.num_layers):
                for part in ("query", "key", "value"):
                    table |= _dense_table(f"{on_top}.{index}.self.{part}", f"{attention_path}/{part}", index)
                table |= _dense_table(f"{on_top}.{index}.output.dense", f"{attention_path}/output", index)
                norm = norm_weights(f"{on_top}.{index}.output.LayerNorm", f"{attention_path}/norm")
                table |= weights_table(PYTORCH, norm, index=index)
        case TopLayerConfig():
            table |= weights_table(PYTORCH, WEIGHT_NAMES.layers, on_top, "top/layer")
        case _:
            raise AssertionError("the authors' code has no other modules")
    return table


def _dense_table(name: str, path: str, index: int | None = None) -> Table:
    return weights_table(PYTORCH, dense_weights(name, path), index=index)


def _shared_copies(adapter: Adapter | None, num_tasks: int, config: TrunkConfig) -> dict[str, str]:
    """Maps the names of duplicate tensors to the names of their originals.

    A task's PALs share two projections, but the state dict repeats them in every layer.
    """
    if not isinstance(adapter, PalConfig):
        return {}
    return {
        f"{PYTORCH.layer_scope(number)}.multi_layers.{task}.{projection}.{kind}": (
            f"{_ENCODER}.mult_{projection}.{task}.{kind}"
        )
        for number in adapter_layers(adapter, config.num_layers)
        for task in range(num_tasks)
        for projection in ("aug_dense", "aug_dense2")
        for kind in ("weight", "bias")
    }


def _head(table: Table, tensors: Tensors, task: int, config: TrunkConfig, where: str) -> Tree:
    outputs = tensors[f"classifier.{task}.bias"].size
    shapes = {"output": {"kernel": np.empty((config.hidden_size, outputs)), "bias": np.empty(outputs)}}
    return fill(shapes, table, tensors, where=where)


def _task_model(
    checkpoint: Checkpoint, trunk: Trunk, number: int, task_name: str, prefix: str, max_length: int
) -> TaskModel:
    head = checkpoint.heads[number]
    where = f"The output layer {number} ({task_name})"
    task = paper_task(task_name, head["output"]["bias"].size, where=where)
    name = f"{prefix}-{task.name}" if prefix else task.name
    check_name(name, "head")
    adapter = None if checkpoint.adapter is None else (checkpoint.adapter, checkpoint.modules[number])
    # Leave the head's dropout unset: the authors' code uses the trunk's rate before the output layer.
    config = HeadConfig(pooling="first", pooler="trunk")
    return paper_model(trunk, task, name=name, head=head, head_config=config, adapter=adapter, max_length=max_length)


def _check_free(store_folder: AnyPath, models: Sequence[TaskModel], overwrite: bool) -> None:
    """Raises UserError for a repeated, taken or reserved name, or if the store is a file."""
    if open_path(store_folder).is_file():
        raise UserError(f"{store_folder} is a file; set --store to a folder.")
    names = [artifact for model in models for artifact in artifacts(model)]
    repeated = sorted({name for kind, name in names if names.count((kind, name)) > 1})
    if repeated:
        raise UserError(f"--tasks names {', '.join(repeated)} twice; each output layer needs its own task.")
    for kind, name in names:
        if not overwrite and name in store.names(store_folder, kind):
            raise UserError(
                f'"{name}" already exists in {kind} of the store {store_folder}; choose another prefix with --name, or '
                "replace it with --overwrite."
            )
        reservations.check(str(store_folder), kind, name)
