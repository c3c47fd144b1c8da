"""Checks and converts the tensors of PyTorch files."""

from collections.abc import Mapping

import numpy as np

from afjax.display.words import first_of
from afjax.errors import UserError
from afjax.trees import Tree

Shapes = Mapping[str, tuple[int, ...]]


def check_shapes(where: str, expected: Shapes, actual: Shapes) -> None:
    """Raises UserError if tensors are missing, unknown or of the wrong shape.

    The message lists the tensors.

    Args:
      where: The file, for error messages.
      expected: The shapes required by the settings and the trunk.
      actual: The shapes in the file.
    """
    listed = [f"-{name}" for name in expected if name not in actual]
    listed += [f"+{name}" for name in actual if name not in expected]
    if listed:
        raise UserError(
            f"{where}: the tensors do not match the settings (- missing, + unexpected): {first_of(listed)}. Download "
            "all files again, or use the trunk that they were trained on."
        )
    wrong = [
        f"{name} {list(actual[name])} (expected: {list(shape)})"
        for name, shape in expected.items()
        if actual[name] != shape
    ]
    if wrong:
        raise UserError(
            f"{where}: some tensor shapes do not match the settings and the trunk: {first_of(wrong)}; use the trunk "
            "that the weights were trained on."
        )


def linear_shapes(outputs: Mapping[str, int], inputs: int) -> dict[str, tuple[int, ...]]:
    """Computes the shapes of linear layers' tensors, by name.

    Args:
      outputs: The number of outputs of each layer, by module name.
      inputs: The number of inputs of all layers.
    """
    weights: dict[str, tuple[int, ...]] = {f"{module}.weight": (size, inputs) for module, size in outputs.items()}
    return weights | {f"{module}.bias": (size,) for module, size in outputs.items()}


def dense_tree(tensors: Mapping[str, np.ndarray], module: str) -> Tree:
    """Converts a linear layer's tensors to ``{kernel, bias}`` in float32."""
    kernel = np.ascontiguousarray(tensors[f"{module}.weight"].T, np.float32)  # [inputs, outputs]
    return {"kernel": kernel, "bias": np.asarray(tensors[f"{module}.bias"], np.float32)}
