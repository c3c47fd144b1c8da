"""Parses the text of a compiled XLA program, ``compiled.as_text()``.

Each line is an instruction. Its shape may be a tuple, and array shapes include the memory layout::

    ROOT %dot.3 = bf16[32,768]{1,0:T(8,128)(2,1)S(1)} dot(%copy.1, %param.2), lhs_contracting_dims={1}, ...

In the braces, ``1,0`` lists the dimensions from minor to major. ``T(8,128)`` is the tile: the two minormost dimensions
are padded to multiples of its sizes. ``S(1)`` is the memory space: on a TPU, 0 (the default) is HBM and 1 is vector
memory.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from functools import cached_property

from afjax.errors import UserError

# Bits per element, for dtypes whose name does not contain this number (unlike f32). Tokens and opaque values have no
# elements.
_BITS = {"pred": 8, "token": 0, "opaque": 0, "bf16": 16, "c64": 64, "c128": 128}

_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([0-9,<=\s]*)\](?:\{([^{}]*)\})?")
_HEADER = re.compile(r"^(?:ENTRY )?%?([\w.\-]+)\s*\(.*->.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")


@dataclasses.dataclass(frozen=True)
class Array:
    """One result array of an instruction.

    Attributes:
      dtype: XLA's dtype name: ``f32``, ``bf16``, ``s32``, ``pred``.
      dims: The shape.
      minor_to_major: The dimensions from minor to major. Empty if the text has no layout.
      tile: Tile sizes. The minormost dimensions are padded to multiples of these; the last size is for the minormost
        dimension. Empty if there is no padding.
      space: The memory space; 0 is the device's main memory.
    """

    dtype: str
    dims: tuple[int, ...]
    minor_to_major: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()
    space: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of memory, including padding to whole tiles."""
        physical = [self.dims[axis] for axis in reversed(self.minor_to_major)] or list(self.dims)
        tile = self.tile[-len(physical) :] if physical else ()
        first = len(physical) - len(tile)
        for axis, multiple in enumerate(tile, start=first):
            physical[axis] = math.ceil(physical[axis] / multiple) * multiple
        return math.ceil(math.prod(physical) * _bits(self.dtype) / 8)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
      name: The name, without the percent sign.
      opcode: The operation, such as ``dot``, ``fusion`` or ``all-reduce-start``.
      results: The result arrays. Nested tuples are flattened in order.
      operands: Names of the operands' instructions.
      inside: The text between the parentheses: a constant's value, a parameter's number, or the operands.
      attributes: The text after the parentheses.
      module: The program.
    """

    name: str
    opcode: str
    results: tuple[Array, ...]
    operands: tuple[str, ...]
    inside: str
    attributes: str
    module: "Module" = dataclasses.field(repr=False, compare=False)

    def search(self, pattern: str) -> str:
        """Returns the first group of a pattern's first match in the attributes; empty if there is no match."""
        match = re.search(pattern, self.attributes)
        return match.group(1) if match else ""

    def called(self, attribute: str) -> "Computation":
        """Looks up the computation named by an attribute such as ``calls``, ``to_apply`` or ``body``."""
        name = self.search(rf"\b{attribute}=%?([\w.\-]+)")
        assert name, f"{self.opcode} {self.name} has no {attribute}"
        return self.module.computations[name]

    def numbers(self, attribute: str) -> tuple[int, ...]:
        """Parses a list attribute such as ``lhs_contracting_dims={1,2}``.

        Empty if the attribute is missing.
        """
        numbers = self.search(rf"\b{attribute}=\{{([0-9,]*)\}}").split(",")
        return tuple(int(number) for number in numbers if number)

    def number(self, attribute: str, default: int) -> int:
        """Parses an attribute such as ``feature_group_count=1``, or returns ``default``."""
        return int(self.search(rf"\b{attribute}=(\d+)") or default)

    @property
    def op_name(self) -> str:
        """The JAX operation that the instruction was compiled from; empty if unknown.

        For example, ``jit(step)/dot_general``.
        """
        return self.search(r'op_name="([^"]*)"')


@dataclasses.dataclass(frozen=True)
class Computation:
    """A computation: instructions in execution order.

    Attributes:
      name: The computation's name.
      instructions: ``{name: instruction}``, in execution order.
      root: Name of the instruction whose results the computation returns.
    """

    name: str
    instructions: Mapping[str, Instruction]
    root: str

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Parameter names, ordered by parameter number."""
        names_by_number = {int(i.inside): name for name, i in self.instructions.items() if i.opcode == "parameter"}
        return tuple(names_by_number[number] for number in sorted(names_by_number))

    @cached_property
    def users(self) -> Mapping[str, list[Instruction]]:
        """The users of each instruction's result: ``{name: [user, ...]}``."""
        users: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                users[operand].append(instruction)
        return users

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """Returns the instructions that produce the operands of ``instruction``."""
        return [self.instructions[name] for name in instruction.operands]


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program.

    Attributes:
      computations: ``{name: computation}``.
      entry: Name of the entry computation.
      num_devices: Number of devices that run the program (partitions times replicas).
    """

    computations: Mapping[str, Computation]
    entry: str
    num_devices: int


def parse_module(text: str) -> Module:
    """Parses a program's text.

    Raises:
      UserError: The text is not a compiled program.
    """
    entry = re.search(r"^ENTRY %?([\w.\-]+)\s*\(.*->.*\{\s*$", text, re.MULTILINE)
    if not entry:
        raise UserError(
            "This is not the text of a compiled program: it has no ENTRY. Pass the result of compiled.as_text()."
        )
    counts = [re.search(rf"^HloModule .*\b{field}=(\d+)", text) for field in ("num_partitions", "replica_count")]
    computations: dict[str, Computation] = {}
    module = Module(computations, entry.group(1), math.prod(int(match.group(1)) for match in counts if match))
    name, root = "", ""
    instructions: dict[str, Instruction] = {}
    for line in text.splitlines():
        if header := _HEADER.match(line):
            name, root, instructions = header.group(1), "", {}
        elif line.startswith("}") and name:
            computations[name] = Computation(name, instructions, root or next(reversed(instructions)))
            name = ""
        elif name and (start := _INSTRUCTION.match(line)):
            instruction = _parse_instruction(module, start.group(2), line[start.end() :])
            instructions[instruction.name] = instruction
            root = instruction.name if start.group(1) else root
    return module


def _parse_instruction(module: Module, name: str, text: str) -> Instruction:
    """Parses the right-hand side of an instruction, ``f32[2]{0} add(%a, %b), ...``."""
    cut = _closing_parenthesis(text, 0) + 1 if text.startswith("(") else text.index(" ")
    shape, text = text[:cut], text[cut:].lstrip()
    begin = text.index("(")
    end = _closing_parenthesis(text, begin)
    opcode, inside, attributes = text[:begin], text[begin + 1 : end], text[end + 1 :]
    # Do not search constants for operands, because a string constant may contain any character.
    operands = () if opcode in ("constant", "parameter") else tuple(re.findall(r"%([\w.\-]+)", inside))
    return Instruction(name, opcode, _parse_arrays(shape), operands, inside, attributes, module)


def _parse_arrays(shape: str) -> tuple[Array, ...]:
    arrays = []
    for dtype, dims, layout in _ARRAY.findall(shape):
        order, _, details = layout.partition(":")
        tile = re.search(r"T\(([0-9,]+)\)", details)
        space = re.search(r"S\((\d+)\)", details)
        arrays.append(
            Array(
                dtype,
                tuple(int(re.sub(r"[<=\s]", "", size)) for size in dims.split(",") if size),
                tuple(int(axis) for axis in order.split(",") if axis),
                tuple(int(size) for size in tile.group(1).split(",")) if tile else (),
                int(space.group(1)) if space else 0,
            )
        )
    return tuple(arrays)


def _closing_parenthesis(text: str, begin: int) -> int:
    """Returns the position of the parenthesis that closes the one at ``begin``."""
    depth = 0
    for parenthesis in re.compile(r"[()]").finditer(text, begin):
        depth += 1 if parenthesis.group() == "(" else -1
        if not depth:
            return parenthesis.start()
    raise UserError(f'The program\'s text is truncated in the line "{text[:80]}".')


def _bits(dtype: str) -> int:
    if dtype in _BITS:
        return _BITS[dtype]
    match = re.match(r"[a-z]+(\d+)", dtype)
    if not match:
        raise UserError(f'The program has arrays with the unknown dtype "{dtype}", so their size cannot be computed.')
    return int(match.group(1))
