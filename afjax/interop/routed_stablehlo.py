"""Exports a routed model as a serialized ``jax.export`` function.

The function takes the adapters as arguments. Other programs can use it to serve many tasks without afjax, and can
replace an adapter by overwriting its slot in the arrays. Batch size and length are symbolic, so one file serves all
shapes.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, export
from safetensors.numpy import save

from afjax import __version__
from afjax.errors import UserError
from afjax.interop.stablehlo import INPUTS, PLATFORMS, check_platforms, prediction_settings
from afjax.serve.program import RoutedPlan, routed_outputs
from afjax.serve.routed_model import RoutedModel
from afjax.storage.paths import AnyPath, expanded, is_remote
from afjax.storage.writing import check_output, write_outputs
from afjax.trees import Tree, leaves_with_paths
from afjax.trunk.pretrained import check_length

FORMAT_VERSION = 1
PROGRAM, ARRAYS, DESCRIPTION = "program.stablehlo", "arrays.safetensors", "description.json"

_INPUTS = {name: ("[batch, length]", *description) for name, description in INPUTS.items()} | {
    "places": ("[batch, banks]", "int32", "each row's slot in every bank: its task's places, or zeros")
}


def export_routed(
    model: RoutedModel, folder: AnyPath, *, max_length: int | None = None, platforms: Sequence[str] = PLATFORMS
) -> dict[str, Any]:
    """Writes a routed model for ``jax.export.deserialize``, and its arrays.

    The arrays are the parameters of the trunk and of all tasks.

    Args:
      model: The model. All of its tasks must fit on the device at once.
      folder: The folder for the three files, created if necessary.
      max_length: Maximum number of tokens per row. The program refuses longer rows. Defaults to the
        largest that ``model`` supports.
      platforms: The platforms to export for. They need not be available on this machine.

    Returns:
      The contents of ``description.json``: inputs, outputs, each task's slots and head, and how to run the program.

    Raises:
      UserError: A platform is unknown, the trunk does not support the length, there are more tasks than slots on the
        device, or the folder is remote or cannot be written.
    """
    if is_remote(folder):
        raise UserError(
            f"The output {folder} is on an object store; export to a local folder and copy the files there."
        )
    platforms = check_platforms(platforms)
    max_length = model.max_length if max_length is None else max_length
    check_length(max_length, model.trunk)
    places = model.place_all()
    params = model.params()
    arrays = {path: np.asarray(leaf) for path, leaf in leaves_with_paths(params)}
    targets = [expanded(folder) / name for name in (PROGRAM, ARRAYS, DESCRIPTION)]
    for target in targets:
        check_output(target, make_folder=True)
    program = _program(model.plan, params, max_length, platforms)
    description = _description(model, places, program, max_length, platforms)
    text = json.dumps(description, indent=2) + "\n"
    write_outputs(dict(zip(targets, (program, save(arrays), text.encode()), strict=True)))
    return description


def _program(plan: RoutedPlan, params: Tree, max_length: int, platforms: tuple[str, ...]) -> bytes:
    paths, structure = [path for path, _ in leaves_with_paths(params)], jax.tree.structure(params)

    def run(arrays: Mapping[str, Array], tokens: Array, types: Array, mask: Array, places: Array) -> dict[str, Any]:
        tree = jax.tree.unflatten(structure, [arrays[path] for path in paths])
        return routed_outputs(plan, tree, {"tokens": tokens, "types": types, "mask": mask}, places)

    batch, length = export.symbolic_shape("batch, length", constraints=[f"length <= {max_length}"])
    num_banks = len(plan.slots) + len(plan.heads)
    inputs = [jax.ShapeDtypeStruct((batch, length), dtype) for dtype in (jnp.int32, jnp.int32, jnp.bool_)]
    inputs.append(jax.ShapeDtypeStruct((batch, num_banks), jnp.int32))
    shapes = {path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in leaves_with_paths(params)}
    return bytes(export.export(jax.jit(run), platforms=platforms)(shapes, *inputs).serialize())


def _description(
    model: RoutedModel, places: Mapping[str, Sequence[int]], program: bytes, max_length: int, platforms: tuple[str, ...]
) -> dict[str, Any]:
    tasks = {}
    for name, row in places.items():
        task = model.task(name)
        tasks[name] = {
            "places": list(row),
            "head": task.head_bank - len(model.plan.slots),
            "num_outputs": task.model.num_outputs,
            "kind": task.model.task.kind,
            "labels": list(task.model.labels),
            "scale": task.model.task.scale,
            "max_length": task.model.max_length,
            **prediction_settings(task.model.task),
        }
    pad_id = model.trunk.config.pad_id
    return {
        "format_version": FORMAT_VERSION,
        "sha256_of_program": hashlib.sha256(program).hexdigest(),
        "inputs": [
            {"name": name, "shape": shape, "dtype": dtype, "meaning": meaning}
            for name, (shape, dtype, meaning) in _INPUTS.items()
        ],
        "outputs": {
            "heads": "a list with one array per bank of heads: [batch, outputs], or [batch, length, outputs] for heads "
            "on tokens. A task's logits are the first num_outputs outputs of its head's bank, times its scale.",
            "embedding": "[batch, hidden_size], the trunk's sentence embedding if all places are 0",
        },
        "tasks": tasks,
        "max_length": max_length,
        "platforms": list(platforms),
        "trunk": model.trunk.identity(),
        "pad_id": pad_id,
        "versions": {"afjax": __version__, "jax": jax.__version__, "jaxlib": jax.lib.__version__},
        "run": [
            "import json, pathlib, jax, numpy as np  # and: pip install flatbuffers safetensors",
            "from jax import export",
            "from safetensors.numpy import load_file",
            f"about = json.loads(pathlib.Path({DESCRIPTION!r}).read_text())",
            f"exported = export.deserialize(bytearray(pathlib.Path({PROGRAM!r}).read_bytes()))",
            f"arrays = load_file({ARRAYS!r})",
            "tokens = np.array([[...], [...]], np.int32)  # by the trunk's tokenizer",
            "types = np.zeros_like(tokens)  # for pairs: by the tokenizer",
            f"mask = tokens != {pad_id}",
            "tasks = [about['tasks'][name] for name in ('...', '...')]  # one name per row",
            "places = np.array([task['places'] for task in tasks], np.int32)",
            "outputs = jax.jit(exported.call)(arrays, tokens, types, mask, places)",
            "heads = [np.asarray(outputs['heads'][task['head']][row]) for row, task in enumerate(tasks)]",
            "logits = [head[..., : task['num_outputs']] * task['scale'] for head, task in zip(heads, tasks)]",
        ],
    }
