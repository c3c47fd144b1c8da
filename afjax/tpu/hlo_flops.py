"""Counts the floating-point operations of a compiled program's instructions."""

import dataclasses
import functools
import math
import re

import numpy as np

from afjax.tpu.hlo import Array, Computation, Instruction

_ARITHMETIC = frozenset(
    "abs add and ceil clamp compare complex convert count-leading-zeros divide floor imag is-finite maximum minimum "
    "multiply negate not or popcnt real reduce-precision remainder round-nearest-afz round-nearest-even select "
    "shift-left shift-right-arithmetic shift-right-logical sign subtract xor".split()
)


def count_flops(computation: Computation, instruction: Instruction) -> int:
    """Counts the operations of one instruction.

    The count is 0 for a fusion, because the instructions inside it are counted separately.
    """
    opcode = instruction.opcode
    size = instruction.results[0].size if instruction.results else 0
    if opcode in _ARITHMETIC:
        return size
    arrays = [operand.results[0] for operand in computation.operands(instruction) if operand.results]
    match opcode:
        case "dot":
            return 2 * size * math.prod(arrays[0].dims[axis] for axis in instruction.numbers("lhs_contracting_dims"))
        case "convolution":
            return 2 * _convolution_multiplications(instruction, arrays[0], arrays[1])
        case "reduce":
            return (arrays[0].size - size) * _flops_of_applied(instruction)
        case "reduce-window":
            return _window_reductions(instruction, arrays[0]) * _flops_of_applied(instruction)
        case "map":
            return size * _flops_of_applied(instruction)
        case "scatter":
            updates = arrays[-1]
            return updates.size * _flops_of_applied(instruction)
        case "sort":
            return arrays[0].size * max(arrays[0].size - 1, 0).bit_length()
        case "all-reduce" | "all-reduce-start":
            # Like XLA, count one addition per element, as if there were two devices.
            return sum(array.size for array in arrays)
    return 0


def _flops_of_applied(instruction: Instruction) -> int:
    """Counts the operations in the function that a reduction, map or scatter applies."""
    applied = instruction.called("to_apply")
    return sum(count_flops(applied, inner) for inner in applied.instructions.values())


@dataclasses.dataclass(frozen=True)
class _WindowDimension:
    """One axis of an XLA window.

    ``base_dilation`` dilates the input, and ``dilation`` dilates the window.
    """

    size: int
    stride: int
    padding: int
    base_dilation: int
    dilation: int


def _window(instruction: Instruction, rank: int) -> list[_WindowDimension]:
    """Parses an attribute like ``window={size=2x4 stride=1x3 pad=0_0x3_3}``.

    Returns:
      The axes of the window. If the attribute is missing, ``rank`` axes of size 1.
    """
    window = instruction.search(r"\bwindow=\{([^}]*)\}")
    if not window:
        return [_WindowDimension(1, 1, 0, 1, 1)] * rank
    fields = dict(part.split("=") for part in window.split())
    sizes = [int(number) for number in fields["size"].split("x")]

    def numbers(name: str, default: int) -> list[int]:
        given = fields.get(name)
        return [int(number.split("_")[0]) for number in given.split("x")] if given else [default] * len(sizes)

    strides, paddings = numbers("stride", 1), numbers("pad", 0)
    base_dilations, dilations = numbers("lhs_dilate", 1), numbers("rhs_dilate", 1)
    axes = zip(sizes, strides, paddings, base_dilations, dilations, strict=True)
    return [_WindowDimension(*axis) for axis in axes]


def _window_reductions(instruction: Instruction, array: Array) -> int:
    """Counts how often a ``reduce-window`` applies its function.

    A window that covers the whole axis at every position makes each output the sum over that axis. This is how the TPU
    compiler implements a sum that is broadcast back along its axis, for instance in a softmax. Such an axis counts as
    summed only once.
    """
    window = _window(instruction, len(array.dims))
    rows, summed = instruction.results[0].size, 1
    for dimension, size, result_size in zip(window, array.dims, instruction.results[0].dims, strict=True):
        if size > 1 and dimension == _WindowDimension(2 * size - 1, 1, size - 1, 1, 1):
            rows, summed = rows // result_size, summed * size
        else:
            summed *= dimension.size
    return rows * (summed - 1)


def _convolution_multiplications(instruction: Instruction, left: Array, right: Array) -> int:
    """Counts the multiply-adds of a convolution.

    The TPU compiler turns matrix products into convolutions. A plain product is ``dim_labels=bf_io->bf``: batch times
    output features times input features. Batch axes of the product become window axes (``0bf_0io->0bf``), whose strides
    and dilations pair every output position with its own kernel element and otherwise with zeros. Zeros from padding
    and dilation are not counted: along every window axis, a pair of output and kernel positions counts only if it reads
    an input element.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    assert labels is not None, f"convolution {instruction.name} has no dim_labels"
    inputs, kernel, outputs = labels.groups()
    spatial = sorted(label for label in outputs if label.isdigit())
    window = _window(instruction, len(spatial))
    result = instruction.results[0]
    pairs = math.prod(
        _meeting_pairs(dimension, left.dims[inputs.index(label)], result.dims[outputs.index(label)])
        for label, dimension in zip(spatial, window, strict=True)
    )
    # The kernel already has only one group's input features, so only the batch is divided by the number of groups.
    batch = left.dims[inputs.index("b")] // instruction.number("batch_group_count", 1)
    return pairs * batch * right.dims[kernel.index("i")] * right.dims[kernel.index("o")]


@functools.cache
def _meeting_pairs(window: _WindowDimension, input_size: int, output_size: int) -> int:
    """Counts pairs of output and kernel positions that read an input element.

    The positions are along one axis. All other pairs read a zero from padding or dilation.
    """
    outputs = np.arange(output_size) * window.stride - window.padding
    pairs = 0
    for position in range(window.size):
        inputs = outputs + position * window.dilation
        inside = (inputs >= 0) & (inputs < input_size * window.base_dilation)
        pairs += int((inside & (inputs % window.base_dilation == 0)).sum())
    return pairs
