"""Imports checkpoints of google-research/adapter-bert (Houlsby et al. 2019).

A checkpoint holds the TensorFlow 1 variables of a complete fine-tuned model: the frozen BERT, the adapters after each
sub-layer (``weights1``, ``biases1``, ``weights2`` and ``biases2``), the trained LayerNorms, the output layer on top of
BERT's frozen pooler, and the optimizer state.
"""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from afjax.adapters.kinds import init_adapter
from afjax.config.adapters import ADAPTER_PRESETS, AdapterConfig
from afjax.config.heads import HeadConfig
from afjax.display.words import first_of
from afjax.errors import UserError
from afjax.interop.bert_tables import TENSORFLOW, Place, Table, Tensors, check_names, fill, slice_of, trunk_table
from afjax.interop.google_bert import optimizer_variables
from afjax.interop.paper_tasks import paper_model, paper_task
from afjax.interop.tensorflow_checkpoints import read_variables
from afjax.model.model import trunk_layer_norms
from afjax.model.task_model import TaskModel
from afjax.storage.paths import AnyPath
from afjax.trees import Tree, flatten
from afjax.trunk.pretrained import Trunk, load_trunk

_SLOTS = (("attention", "attention/output"), ("ffn", "output"))
_PARTS = (("weights1", "down/kernel"), ("biases1", "down/bias"), ("weights2", "up/kernel"), ("biases2", "up/bias"))
_FIRST_BIAS = f"{TENSORFLOW.layer_scope(0)}/attention/output/adapters/biases1"
_HEAD: Table = {
    "output_weights": Place(path="output/kernel", transposed=True),
    "output_bias": Place(path="output/bias"),
}


def adapter_table(num_layers: int) -> Table:
    """Maps the adapters' and LayerNorms' variables to their paths in the adapter tree."""
    table: Table = {}
    for number in range(num_layers):
        for slot, scope in _SLOTS:
            for tensor, path in _PARTS:
                name = f"{TENSORFLOW.layer_scope(number)}/{scope}/adapters/{tensor}"
                table[name] = Place(path=f"{slot}/{path}", index=number)
    for name, place in trunk_table(TENSORFLOW, num_layers).items():
        if "/norm/" in place.path:
            path = place.path.removeprefix("layers/").replace("/norm/", "/")
            table[name] = dataclasses.replace(place, path=f"layer_norms/{path}")
    return table


def from_adapter_bert(variables: Tensors, trunk: Trunk, *, where: str) -> tuple[AdapterConfig, Tree, Tree]:
    """Converts a checkpoint to an adapter config and to adapter and head parameters.

    Args:
      variables: The checkpoint's variables. Frozen variables may be missing.
      trunk: The pretrained BERT. Frozen weights in ``variables`` must be bit-identical to its weights.
      where: The checkpoint's name in error messages.

    Raises:
      UserError: The trunk has no pooler, or some variables are missing, unknown, of the wrong shape, or frozen but
        different from the trunk's. The message lists them.
    """
    depth = trunk.config.num_layers
    table, frozen = adapter_table(depth), trunk_table(TENSORFLOW, depth)
    required = {**table, **_HEAD}
    check_names(variables, required, known=frozen.keys() | optimizer_variables(variables), where=where)
    if "pooler" not in trunk.params:
        raise UserError(
            f"The trunk {trunk.name} has no pooler, but the head of {where} needs one; use a BERT with a pooler."
        )
    _check_frozen(variables, {name: frozen[name] for name in frozen.keys() - required.keys()}, trunk, where)
    # adapter-bert's biases have the shape [1, size].
    flat = {name: array.reshape(-1) if "/biases" in name else array for name, array in variables.items()}
    preset = ADAPTER_PRESETS["houlsby"]
    assert isinstance(preset, AdapterConfig)
    # All adapters in a checkpoint have the same bottleneck size.
    config = dataclasses.replace(preset, size=flat[_FIRST_BIAS].size)
    shapes = jax.eval_shape(lambda: init_adapter(jax.random.key(0), config, trunk.config))
    shapes = {**shapes, "layer_norms": trunk_layer_norms(trunk.params)}
    outputs = variables["output_bias"].size
    width = trunk.config.hidden_size
    head = {"output": {"kernel": np.empty((width, outputs)), "bias": np.empty(outputs)}}
    return config, fill(shapes, table, flat, where=where), fill(head, _HEAD, variables, where=where)


def import_adapter_bert(
    source: AnyPath, trunk: str, *, name: str, task: str = "", labels: Sequence[str] = (), max_length: int = 128
) -> TaskModel:
    """Loads a checkpoint's adapter and head as a task model.

    Args:
      source: The checkpoint, or a folder that contains exactly one checkpoint.
      trunk: The pretrained BERT that training started from, as for ``load_trunk``. It cannot be inferred from the
        checkpoint, because training overwrote the pretrained LayerNorms.
      name: Name of the adapter and the head.
      task: Name of the task, as in the authors' code or in afjax. Defaults to ``name``.
      labels: Label names, in the order of the outputs. Defaults to the task's labels in the authors' code. For
        other tasks, the default is 0, 1, ...
      max_length: Maximum number of tokens per row.

    Raises:
      UserError: The checkpoint or the trunk does not exist, or the checkpoint does not match the trunk or the labels.
    """
    loaded = load_trunk(trunk)
    config, adapter, head = from_adapter_bert(read_variables(source), loaded, where=str(source))
    outputs = head["output"]["bias"].size
    if outputs < 2:
        raise UserError(
            f"{source} has {outputs} output; adapter-bert only supports classification, which needs at least two."
        )
    return paper_model(
        loaded,
        paper_task(task or name, outputs, labels=labels, where=str(source)),
        name=name,
        head=head,
        # The authors' code hard-codes this dropout rate.
        head_config=HeadConfig(pooling="first", pooler="trunk", dropout=0.1),
        adapter=(config, adapter),
        max_length=max_length,
    )


def _check_frozen(variables: Tensors, table: Table, trunk: Trunk, where: str) -> None:
    """Raises UserError unless frozen weights are bit-identical to the trunk's."""
    leaves = flatten(trunk.params)
    different = sorted(
        name
        for name, place in table.items()
        if name in variables and not np.array_equal(variables[name], slice_of(leaves, place))
    )
    if different:
        raise UserError(
            f"Frozen weights in {where} do not match the trunk {trunk.name}: {first_of(different)} differ; "
            "set --trunk to the BERT that training started from (afjax import bert converts Google's checkpoints)."
        )
