"""Exports a task model as a function that JAX can run without afjax.

The function takes ``tokens``, ``types`` and ``mask`` and returns the logits. Batch size, length and number of choices
are symbolic: one file serves all shapes, and JAX compiles it once per shape. Because the weights are constants in the
program, there is only one file to copy and no parameter tree to restore. The drawback is that every compiled program
contains a copy of the weights.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, export

from afjax import __version__
from afjax.config.tasks import TaskConfig
from afjax.errors import UserError, did_you_mean
from afjax.model.task_model import TaskModel
from afjax.storage.paths import AnyPath, expanded, is_remote
from afjax.storage.writing import check_output, write_outputs
from afjax.tasks.kinds import TASK_KINDS
from afjax.trees import tree_digest
from afjax.trunk.pretrained import check_length

FORMAT_VERSION = 1
PLATFORMS = ("cpu", "cuda", "tpu")
# The serialized format has signed 32-bit offsets, which leaves 2 GiB for the weights and the program itself.
MAX_WEIGHT_BYTES = 2**31 - 2**24

INPUTS = {
    "tokens": ("int32", "token ids from the trunk's tokenizer; shorter rows are padded"),
    "types": ("int32", "token type ids from that tokenizer, or 0 if it has none"),
    "mask": ("bool", "true for tokens, false for padding"),
}


def export_stablehlo(
    task_model: TaskModel, path: AnyPath, *, max_length: int | None = None, platforms: Sequence[str] = PLATFORMS
) -> dict[str, Any]:
    """Writes a task model for ``jax.export.deserialize``, and a JSON description.

    Neither file is written if the export fails.

    Args:
      task_model: The model. A fusion is folded with its adapters, as for prediction.
      path: The file to write. Its description is written to :func:`description_path`.
      max_length: Maximum number of tokens per row. The program refuses longer rows. Defaults to the training run's.
      platforms: The platforms to export for, from ``PLATFORMS``. They need not be available on this machine.

    Returns:
      The contents of the JSON file.

    Raises:
      UserError: A platform is unknown, the trunk does not support the length, the weights exceed ``MAX_WEIGHT_BYTES``
        (almost 2 GiB), or ``path`` is remote or cannot be written.
    """
    if is_remote(path):
        raise UserError(f"The output {path} is on an object store; export to a local file and copy both files there.")
    platforms = check_platforms(platforms)
    max_length = task_model.max_length if max_length is None else max_length
    check_length(max_length, task_model.trunk)
    targets = (expanded(path), description_path(path))
    # Check the output paths first, because exporting takes a while.
    for target in targets:
        check_output(target)
    data, shapes = _serialize(task_model, max_length, platforms)
    contents = _description(task_model, targets[0].name, data, shapes, max_length, platforms)
    write_outputs({targets[0]: data, targets[1]: (json.dumps(contents, indent=2) + "\n").encode()})
    return contents


def description_path(path: AnyPath) -> Path:
    """Returns the path of an exported file's JSON description."""
    return expanded(f"{os.fspath(path)}.json")


def prediction_settings(task: TaskConfig) -> dict[str, Any]:
    """Returns the settings that a task's predictions depend on in addition to its logits, by the kind's name."""
    if task.kind == "span":
        return {"span": dataclasses.asdict(task.span)}
    return {"multi_label": {"threshold": task.multi_label.threshold}} if task.kind == "multi_label" else {}


def check_platforms(platforms: Sequence[str]) -> tuple[str, ...]:
    """Validates the platforms and strips spaces from their names.

    Raises:
      UserError: The list is empty, or a platform is unknown or repeated.
    """
    names = tuple(name.strip() for name in platforms)
    for name in names:
        if name not in PLATFORMS:
            raise UserError(
                f'Unknown platform "{name}"; choose one or more of {", ".join(PLATFORMS)}.{_suggestion(name)}'
            )
    if not names or len(set(names)) != len(names):
        raise UserError(
            f"The platforms are {', '.join(names) or 'none'}; list one or more of {', '.join(PLATFORMS)}, each only "
            "once."
        )
    return names


def _suggestion(platform: str) -> str:
    return ' For an NVIDIA GPU, use "cuda".' if platform == "gpu" else did_you_mean(platform, PLATFORMS)


def _serialize(task_model: TaskModel, max_length: int, platforms: tuple[str, ...]) -> tuple[bytes, tuple[str, str]]:
    """Serializes the model.

    Returns the bytes, and the shapes of the inputs and the logits as text.
    """
    model, params = task_model.for_inference()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    if size > MAX_WEIGHT_BYTES:
        raise UserError(
            f"The weights take {size / 2**30:.2f} GiB, but one file holds less than 2 GiB; export a model with a "
            "smaller trunk, or one trained with trunk_dtype=bfloat16."
        )
    # Constants must be on a single device, even if the model's parameters are sharded.
    weights = jax.tree.map(jnp.asarray, params)
    scale = task_model.task.scale

    def predict(tokens: Array, types: Array, mask: Array) -> Array:
        logits = model(weights, {"tokens": tokens, "types": types, "mask": mask}).logits
        return logits if scale == 1.0 else logits * jnp.asarray(scale, logits.dtype)

    has_choices = TASK_KINDS[task_model.task.kind].has_choices
    axes = "batch, choices, length" if has_choices else "batch, length"
    shape = export.symbolic_shape(axes, constraints=[f"length <= {max_length}"])
    arguments = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for dtype, _ in INPUTS.values()]
    exported = export.export(jax.jit(predict), platforms=platforms)(*arguments)
    return bytes(exported.serialize()), (f"[{axes}]", str(list(exported.out_avals[0].shape)))


def _description(
    task_model: TaskModel,
    file_name: str,
    data: bytes,
    shapes: tuple[str, str],
    max_length: int,
    platforms: tuple[str, ...],
) -> dict[str, Any]:
    model, params, kind = task_model.model, task_model.params, TASK_KINDS[task_model.task.kind]
    used = [("adapters", name) for name, _ in model.adapters]
    used += [("fusion", model.fusion_name)] if model.fusion_name else []
    used += [("heads", model.head_name)]
    pad_id = model.trunk.pad_id
    example = "[[[...]]]" if kind.has_choices else "[[...]]"
    return {
        "format_version": FORMAT_VERSION,
        "file": {"name": file_name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()},
        "inputs": [
            {"name": name, "shape": shapes[0], "dtype": dtype, "meaning": meaning}
            for name, (dtype, meaning) in INPUTS.items()
        ],
        "outputs": [{"name": "logits", "shape": shapes[1], "dtype": "float32", "meaning": kind.text.logits}],
        "max_length": max_length,
        "platforms": list(platforms),
        "task": {"name": task_model.task.name, "kind": kind.name, **prediction_settings(task_model.task)},
        "labels": list(task_model.labels),
        "trunk": task_model.trunk.identity(),
        "pad_id": pad_id,
        "sha256_of_trees": {f"{root}/{name}": tree_digest(params[root][name]) for root, name in used},
        "versions": {"afjax": __version__, "jax": jax.__version__, "jaxlib": jax.lib.__version__},
        "run": [
            "import pathlib, jax, numpy as np  # and: pip install flatbuffers",
            "from jax import export",
            f"exported = export.deserialize(bytearray(pathlib.Path({file_name!r}).read_bytes()))",
            f"tokens = np.array({example}, np.int32)  # by the trunk's tokenizer",
            "types = np.zeros_like(tokens)  # for pairs: by the tokenizer",
            f"mask = tokens != {pad_id}",
            "logits = jax.jit(exported.call)(tokens, types, mask)",
        ],
    }
