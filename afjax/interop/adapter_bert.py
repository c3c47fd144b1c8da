"""Imports the checkpoints of Houlsby et al. (2019), from google-research/adapter-bert.

A checkpoint holds the TensorFlow 1 variables of a complete fine-tuned model: the frozen BERT, the adapters
(``weights1``, ``biases1``, ``weights2`` and ``biases2``) after each sub-layer, all trained LayerNorms, the output layer
on BERT's frozen pooler, and the optimizer's state.
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from afjax.adapters.kinds import init_adapter
from afjax.config.adapters import ADAPTER_PRESETS, AdapterConfig
from afjax.config.heads import HeadConfig
from afjax.errors import UserError
from afjax.interop.bert_tables import (
    TENSORFLOW,
    Place,
    Table,
    Tensors,
    check_names,
    fill,
    shortened,
    slice_of,
    trunk_norms_table,
    trunk_table,
)
from afjax.interop.google_bert import optimizer_variables
from afjax.interop.paper_tasks import paper_model, paper_task
from afjax.interop.tensorflow_checkpoints import read_variables
from afjax.model.model import trunk_layer_norms
from afjax.model.task_model import TaskModel
from afjax.storage.paths import AnyPath
from afjax.trees import Tree, flatten
from afjax.trunk.pretrained import Trunk, load_trunk

_SLOTS = (("attention", "attention/output"), ("ffn", "output"))
_PARTS = (
    ("weights1", "down/kernel"),
    ("biases1", "down/bias"),
    ("weights2", "up/kernel"),
    ("biases2", "up/bias"),
)
_FIRST_BIAS = f"{TENSORFLOW.layer_scope(0)}/attention/output/adapters/biases1"
_HEAD: Table = {
    "output_weights": Place(path="output/kernel", transposed=True),
    "output_bias": Place(path="output/bias"),
}


def adapter_table(num_layers: int) -> Table:
    """Returns the table of the adapters and of all LayerNorms, which are part of the adapter's tree."""
    table: Table = {}
    for number in range(num_layers):
        for slot, scope in _SLOTS:
            for tensor, path in _PARTS:
                name = f"{TENSORFLOW.layer_scope(number)}/{scope}/adapters/{tensor}"
                table[name] = Place(path=f"{slot}/{path}", index=number)
    paths = {part: f"layer_norms/{part}" for part in ("embeddings", "attention", "ffn")}
    return table | trunk_norms_table(TENSORFLOW, num_layers, paths)


def from_adapter_bert(variables: Tensors, trunk: Trunk, *, where: str) -> tuple[AdapterConfig, Tree, Tree]:
    """Converts a checkpoint to an adapter's architecture and tree and a head's tree.

    Args:
      variables: The checkpoint's variables. Frozen variables may be missing.
      trunk: The pretrained BERT. Frozen weights in ``variables`` must be bit-identical to its weights.
      where: The name of the checkpoint in error messages.

    Raises:
      UserError: Variables are missing, unknown, of the wrong shape, or frozen but different from the trunk's (the
        message lists them), or the trunk has no pooler.
    """
    depth = trunk.config.num_layers
    table, frozen = adapter_table(depth), trunk_table(TENSORFLOW, depth)
    required = {**table, **_HEAD}
    check_names(variables, required, known=frozen.keys() | optimizer_variables(variables), where=where)
    if "pooler" not in trunk.params:
        raise UserError(
            f"The trunk {trunk.name} has no pooler, which the head of {where} reads; give a BERT that has one."
        )
    _check_frozen(variables, {name: frozen[name] for name in frozen.keys() - required.keys()}, trunk, where)
    # adapter-bert's biases have the shape [1, size].
    flat = {name: array.reshape(-1) if "/biases" in name else array for name, array in variables.items()}
    preset = ADAPTER_PRESETS["houlsby"]
    assert isinstance(preset, AdapterConfig)
    # All adapters of a checkpoint have the same size.
    config = dataclasses.replace(preset, size=flat[_FIRST_BIAS].size)
    shapes = jax.eval_shape(lambda: init_adapter(jax.random.key(0), config, trunk.config))
    shapes = {**shapes, "layer_norms": trunk_layer_norms(trunk.params)}
    outputs = variables["output_bias"].size
    width = trunk.config.hidden_size
    head = {"output": {"kernel": np.empty((width, outputs)), "bias": np.empty(outputs)}}
    return config, fill(shapes, table, flat, where=where), fill(head, _HEAD, variables, where=where)


def import_adapter_bert(
    source: AnyPath,
    trunk: str,
    *,
    name: str,
    task: str = "",
    labels: Sequence[str] = (),
    max_length: int = 128,
) -> TaskModel:
    """Loads the adapter and head of a checkpoint, ready to use or to save to a store.

    Args:
      source: The checkpoint, or a folder that contains exactly one checkpoint.
      trunk: The pretrained BERT that the checkpoint was trained from, as for ``load_trunk``. The checkpoint cannot
        identify it, because the pretrained LayerNorms were overwritten by the trained ones.
      name: Name of the adapter and the head.
      task: The benchmark's task. Defaults to ``name``.
      labels: Label names, in the order of the outputs. Defaults to the labels of the task in the authors' code, or
        0, 1, ... for other tasks.
      max_length: Tokens per row.

    Raises:
      UserError: The checkpoint or the trunk does not exist, they do not match, or the labels do not match the outputs.
    """
    loaded = load_trunk(trunk)
    config, adapter, head = from_adapter_bert(read_variables(source), loaded, where=str(source))
    outputs = head["output"]["bias"].size
    if outputs < 2:
        raise UserError(
            f"{source} has {outputs} output; adapter-bert only has classification, so there must be two or more."
        )
    return paper_model(
        loaded,
        paper_task(task or name, outputs, labels=labels, where=str(source)),
        name=name,
        head=head,
        # The authors' code hard-codes this rate.
        head_config=HeadConfig(pooling="first", pooler="trunk", dropout=0.1),
        adapter=(config, adapter),
        max_length=max_length,
    )


def _check_frozen(variables: Tensors, table: Table, trunk: Trunk, where: str) -> None:
    """Raises UserError unless a checkpoint's frozen weights are bit-identical to the trunk's."""
    leaves = flatten(trunk.params)
    different = sorted(
        name
        for name, place in table.items()
        if name in variables and not np.array_equal(variables[name], slice_of(leaves, place))
    )
    if different:
        raise UserError(
            f"Frozen weights in {where} are not equal to the trunk {trunk.name}'s: {shortened(different)} differ; "
            "give --trunk the BERT that training started from (afjax import bert converts Google's checkpoints)."
        )
