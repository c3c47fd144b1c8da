"""Counts what a compiled program does on one chip: operations, memory traffic, collectives, memory.

XLA's own ``cost_analysis()`` counts the body of a loop once, and a scan over layers is a loop. Here the program's text
is walked, loops as often as they run. Otherwise the conventions are those of XLA's HloCostAnalysis: a multiply-add is
two operations, elementwise arithmetic one for every entry of its result, a reduction one for every entry it adds to
another, and functions such as ``exp`` none.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterable

import jax
import numpy as np

from afjax.tpu.hlo import Array, Computation, Instruction, Module, parse_module
from afjax.tpu.loops import Value, called, constant_state, evaluate, trip_count

_ARITHMETIC = frozenset(
    "abs add and ceil clamp compare complex convert count-leading-zeros divide floor imag is-finite maximum minimum "
    "multiply negate not or popcnt real reduce-precision remainder round-nearest-afz round-nearest-even select "
    "shift-left shift-right-arithmetic shift-right-logical sign subtract xor".split()
)
_COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
# They move nothing and compute nothing by themselves.
_FREE = frozenset(
    "add-dependency after-all bitcast constant domain get-tuple-element optimization-barrier parameter partition-id "
    "replica-id tuple".split()
)
_FREE_CALLS = frozenset(
    "AllocateBuffer AssumeGatherIndicesInBound AsyncCollectiveDone AsyncCollectiveStart ConcatBitcast "
    "GatherScatterIndicesBitpacked".split()
)


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective operation of the program.

    Attributes:
      kind: ``all-reduce``, ``all-gather``, ``reduce-scatter``, ``all-to-all``, ``collective-permute``.
      dtype: Of its arrays; several are joined by ``+``.
      num_bytes: The whole arrays' on one chip: what an all-reduce, reduce-scatter or all-to-all reads there, what an
        all-gather gives; arrays that travel together are summed.
      times: How often a step runs it.
      group_size: How many devices take part in each of its groups.
      op_name: The JAX operation it comes from, from the innermost functions on; may be empty.
    """

    kind: str
    dtype: str
    num_bytes: int
    times: int
    group_size: int
    op_name: str


@dataclasses.dataclass(frozen=True)
class Work:
    """What one run of the program does on one chip.

    Attributes:
      flops: All floating-point operations, and integer arithmetic, which XLA counts along.
      matmul_flops: Those of matrix products.
      bytes_accessed: What top-level operations read and write, the padding of arrays to the chip's tiles included.
      hbm_bytes: What of it is in the main memory and not in the chip's vector memory.
      collectives: In the order of the program.
      uncounted: Targets of custom calls (hand-written kernels, say) whose operations are not in ``flops``.
    """

    flops: int
    matmul_flops: int
    bytes_accessed: int
    hbm_bytes: int
    collectives: tuple[Collective, ...]
    uncounted: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one chip's main memory that a program takes.

    Attributes:
      arguments: Its inputs: parameters, optimizer state, batch.
      outputs: Its results.
      aliased: Results that lie where donated arguments were.
      temporaries: The room that the compiler's layout of memory has for intermediate arrays.
      code: The program itself.
      in_use: The most that arrays, arguments and results included, take at a time, by the compiler's own count.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    code: int
    in_use: int

    @property
    def peak(self) -> int:
        """All of it together; donated arguments and the results in their place count once.

        Mostly more than is ``in_use`` at any time, by which libtpu 0.0.42 goes where it refuses a program: one whose
        ``peak`` is beyond the chip's memory may compile.
        """
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program: what one run does, and the memory it takes; both of one chip."""

    work: Work
    memory: Memory


def read_program(compiled: jax.stages.Compiled) -> Program:
    """Reads a compiled step.

    Args:
      compiled: Of ``jax.jit(step).lower(...).compile()``, for whatever devices.

    Raises:
      UserError: A loop does not say how often it runs.
    """
    return Program(count_work(compiled.as_text() or ""), read_memory(compiled))


def read_memory(compiled: jax.stages.Compiled) -> Memory:
    """The compiler's own account of the memory that a program takes on each device."""
    statistics = compiled.memory_analysis()
    assert statistics is not None, "CPU, GPU and TPU programs all have one"
    return Memory(
        arguments=statistics.argument_size_in_bytes,
        outputs=statistics.output_size_in_bytes,
        aliased=statistics.alias_size_in_bytes,
        temporaries=statistics.temp_size_in_bytes,
        code=statistics.generated_code_size_in_bytes,
        in_use=statistics.peak_memory_in_bytes,
    )


def count_work(text: str) -> Work:
    """Counts what a program does from its text, ``compiled.as_text()``.

    Raises:
      UserError: The text is no program's, or a loop does not say how often it runs.
    """
    module = parse_module(text)
    entry = module.computations[module.entry]
    count = _Count()
    _walk(module, entry, (None,) * len(entry.parameters), count, times=1, fused=False)
    return Work(
        flops=count.flops,
        matmul_flops=count.matmul_flops,
        bytes_accessed=count.bytes_accessed,
        hbm_bytes=count.hbm_bytes,
        collectives=tuple(count.collectives),
        uncounted=tuple(sorted(count.uncounted)),
    )


@dataclasses.dataclass
class _Count:
    """The sums of :class:`Work` so far."""

    flops: int = 0
    matmul_flops: int = 0
    bytes_accessed: int = 0
    hbm_bytes: int = 0
    collectives: list[Collective] = dataclasses.field(default_factory=list)
    uncounted: set[str] = dataclasses.field(default_factory=set)

    def add(self, other: "_Count") -> None:
        for name in ("flops", "matmul_flops", "bytes_accessed", "hbm_bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.collectives += other.collectives
        self.uncounted |= other.uncounted


def _walk(
    module: Module,
    computation: Computation,
    arguments: tuple[Value, ...],
    count: _Count,
    *,
    times: int,
    fused: bool,
    chains: set[str] | None = None,
) -> None:
    """Adds what a computation does.

    Args:
      module: The program.
      computation: The part of it.
      arguments: What is known of its parameters' values: lengths of loops within loops are found from them.
      count: Added to.
      times: How often a step runs it.
      fused: Whether it is the inside of a fusion, whose arrays do not go through memory.
      chains: The collectives met so far that go on while several fusions run.
    """
    known: dict[str, Value] = {}
    chains = set() if chains is None else chains

    def values(instruction: Instruction) -> tuple[Value, ...]:
        return tuple(evaluate(module, computation, name, arguments, known) for name in instruction.operands)

    for instruction in computation.instructions.values():
        opcode = instruction.opcode
        if opcode == "while":
            start = values(instruction)[0]
            trips = trip_count(module, instruction, start)
            state = (constant_state(module, instruction, start, trips),)
            for part, runs in (("body", trips), ("condition", trips + 1)):
                inner = called(module, instruction, part)
                _walk(module, inner, state, count, times=times * runs, fused=fused)
            continue
        if opcode == "conditional":
            _walk_conditional(module, computation, instruction, values(instruction), count, times=times, fused=fused)
            continue
        if opcode in ("call", "async-start"):
            inner = called(module, instruction, "to_apply" if opcode == "call" else "calls")
            _walk(module, inner, values(instruction), count, times=times, fused=fused)
            continue
        if opcode == "fusion":
            inner = called(module, instruction, "calls")
            _walk(module, inner, values(instruction), count, times=times, fused=True, chains=chains)
        flops = _flops(module, computation, instruction)
        count.flops += times * flops
        if opcode in ("dot", "convolution"):
            count.matmul_flops += times * flops
        if opcode == "custom-call" and _target(instruction) not in _FREE_CALLS:
            count.uncounted.add(_target(instruction))
        kind = opcode.removesuffix("-start")
        chain = _chain(instruction)
        if kind in _COLLECTIVES and not (chain and chain in chains):
            chains.add(chain)
            count.collectives.append(_collective(module, computation, instruction, kind, times))
        if not fused:
            for array, share in _traffic(module, computation, instruction):
                count.bytes_accessed += times * share
                count.hbm_bytes += times * share if array.space == 0 else 0


def _walk_conditional(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    operands: tuple[Value, ...],
    count: _Count,
    *,
    times: int,
    fused: bool,
) -> None:
    """Adds the branch with the most operations; which one runs is not known before."""
    listed = re.search(r"branch_computations=\{([^}]*)\}", instruction.attributes)
    if listed:
        names = re.findall(r"%?([\w.\-]+)", listed.group(1))
    else:
        names = [instruction.computation(f"{case}_computation") or "" for case in ("true", "false")]
    branches = []
    for name, value in zip(names, operands[1:], strict=True):
        branch = _Count()
        _walk(module, module.computations[name], (value,), branch, times=times, fused=fused)
        branches.append(branch)
    count.add(max(branches, key=lambda branch: branch.flops))


def _flops(module: Module, computation: Computation, instruction: Instruction) -> int:
    """Operations of one instruction by itself: a fusion's are those of the instructions in it."""
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
            return (arrays[0].size - size) * _flops_of_applied(module, instruction)
        case "reduce-window":
            return _window_reductions(instruction, arrays[0]) * _flops_of_applied(module, instruction)
        case "map":
            return size * _flops_of_applied(module, instruction)
        case "scatter":
            updates = arrays[-1]
            return updates.size * _flops_of_applied(module, instruction)
        case "sort":
            return arrays[0].size * max(arrays[0].size - 1, 0).bit_length()
        case "all-reduce" | "all-reduce-start":
            # As XLA does: of two devices.
            return sum(array.size for array in arrays)
    return 0


def _flops_of_applied(module: Module, instruction: Instruction) -> int:
    """Of one application of the function that a reduction or a scatter is given."""
    applied = called(module, instruction, "to_apply")
    return sum(_flops(module, applied, inner) for inner in applied.instructions.values())


@dataclasses.dataclass(frozen=True)
class _WindowDimension:
    """One axis of a window, as XLA has it: the input is spread out by ``base_dilation``, the window by ``dilation``."""

    size: int
    stride: int
    padding: int
    base_dilation: int
    dilation: int


def _window(attributes: str, rank: int) -> list[_WindowDimension]:
    """``window={size=2x4 stride=1x3 pad=0_0x3_3 lhs_dilate=2x4}``; ``rank`` axes of size 1 where there is none."""
    found = re.search(r"\bwindow=\{([^}]*)\}", attributes)
    if not found:
        return [_WindowDimension(1, 1, 0, 1, 1)] * rank
    fields = dict(part.split("=") for part in found.group(1).split())
    sizes = [int(number) for number in fields["size"].split("x")]

    def numbers(name: str, default: int) -> list[int]:
        given = fields.get(name)
        return [int(number.split("_")[0]) for number in given.split("x")] if given else [default] * len(sizes)

    return [
        _WindowDimension(*dimension)
        for dimension in zip(
            sizes,
            numbers("stride", 1),
            numbers("pad", 0),
            numbers("lhs_dilate", 1),
            numbers("rhs_dilate", 1),
            strict=True,
        )
    ]


def _window_reductions(instruction: Instruction, array: Array) -> int:
    """Entries that a ``reduce-window`` adds to another.

    A window that holds the whole axis wherever it stands is how the TPU's compiler writes a sum that is spread over
    the axis again, in a softmax say: the axis is summed once.
    """
    window = _window(instruction.attributes, len(array.dims))
    rows, summed = instruction.results[0].size, 1
    for dimension, size, result_size in zip(window, array.dims, instruction.results[0].dims, strict=True):
        if size > 1 and dimension == _WindowDimension(2 * size - 1, 1, size - 1, 1, 1):
            rows, summed = rows // result_size, summed * size
        else:
            summed *= dimension.size
    return rows * (summed - 1)


def _convolution_multiplications(instruction: Instruction, left: Array, right: Array) -> int:
    """Multiply-adds of a convolution, which is what the TPU's compiler makes of a matrix product.

    A plain product is ``dim_labels=bf_io->bf``: batch times output features times input features. Axes that a product
    has beyond these become window axes (``0bf_0io->0bf``), with strides and dilations so chosen that every output meets
    its own entry of the kernel and zeros otherwise. Zeros of the padding and the dilation are not counted: of every
    window axis those pairs of output and kernel position count that meet a true input.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    assert labels is not None, f"convolution {instruction.name} has no dim_labels"
    inputs, kernel, outputs = labels.groups()
    spatial = sorted(label for label in outputs if label.isdigit())
    window = _window(instruction.attributes, len(spatial))
    result = instruction.results[0]
    pairs = math.prod(
        _meeting_pairs(dimension, left.dims[inputs.index(label)], result.dims[outputs.index(label)])
        for label, dimension in zip(spatial, window, strict=True)
    )
    # The kernel's input features are those of one group.
    batch = left.dims[inputs.index("b")] // instruction.number("batch_group_count", 1)
    return pairs * batch * right.dims[kernel.index("i")] * right.dims[kernel.index("o")]


@functools.cache
def _meeting_pairs(window: _WindowDimension, input_size: int, output_size: int) -> int:
    """Pairs of an output and a kernel position along one axis at which there is an input, and no padding."""
    outputs = np.arange(output_size) * window.stride - window.padding
    pairs = 0
    for position in range(window.size):
        places = outputs + position * window.dilation
        inside = (places >= 0) & (places < input_size * window.base_dilation)
        pairs += int((inside & (places % window.base_dilation == 0)).sum())
    return pairs


def _collective(
    module: Module, computation: Computation, instruction: Instruction, kind: str, times: int
) -> Collective:
    arrays = [array for operand in computation.operands(instruction) for array in operand.results]
    group_size = _group_size(instruction.attributes, module.num_devices)
    if kind == "all-reduce" and "reduce-scatter" in computation.name:
        # The TPU's compiler writes a reduce-scatter as a fusion, %all-reduce-scatter, of an all-reduce and a slice.
        kind = "reduce-scatter"
    gathered = group_size if kind == "all-gather" else 1
    return Collective(
        kind=kind,
        dtype="+".join(sorted({array.dtype for array in arrays})),
        num_bytes=gathered * sum(array.num_bytes for array in arrays),
        times=times,
        group_size=group_size,
        op_name=_shorten(instruction.op_name),
    )


def _chain(instruction: Instruction) -> str:
    """What tells a collective that goes on while fusions compute: each of these fusions names it again. Else empty."""
    found = re.search(r'chain_id="([^"]*)"', instruction.attributes)
    return f"{instruction.number('channel_id', 0)}/{found.group(1)}" if found else ""


def _group_size(attributes: str, num_devices: int) -> int:
    """From ``replica_groups``, in each of the forms that XLA writes, or a permutation's ``source_target_pairs``."""
    if pairs := re.search(r"source_target_pairs=\{(.*?)\}\}", attributes):
        return len(set(re.findall(r"\d+", pairs.group(1))))
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", attributes):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh.group(1))}
        # 'axis', or a part of it, 'axis':(product of the parts before)size.
        axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", mesh.group(2))
        return math.prod(int(part) if part else sizes[name] for name, part in axes)
    if tiles := re.search(r"replica_groups=\[(\d+),(\d+)\]<=", attributes):
        return int(tiles.group(2))
    if groups := re.search(r"replica_groups=\{\{([0-9,]+)\}", attributes):
        return len(groups.group(1).split(","))
    return num_devices


def _shorten(op_name: str) -> str:
    """The innermost parts of a path such as ``jit(step)/transpose(jvp(Encoder))/ffn/dot_general``, of 60 characters."""
    parts = op_name.split("/")
    while len(parts) > 1 and (len("/".join(parts)) > 60 or parts[0].startswith("jit(")):
        parts = parts[1:]
    return "/".join(parts)


def _target(instruction: Instruction) -> str:
    found = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
    return found.group(1) if found else "unknown"


def _traffic(module: Module, computation: Computation, instruction: Instruction) -> Iterable[tuple[Array, int]]:
    """``(array, bytes)`` that a top-level instruction reads and writes.

    Reading a slice out of an array, or writing one in place, costs the slice: a scan over layers holds the weights of
    all layers, and a layer reads its own.
    """
    opcode = instruction.opcode
    if opcode in _FREE or opcode.endswith("-done") or opcode == "async-update":
        return []
    if opcode == "custom-call" and _target(instruction) in _FREE_CALLS:
        return []
    operands = [operand.results for operand in computation.operands(instruction)]
    read = [array for arrays in operands for array in arrays]
    results = instruction.results
    match opcode:
        case "dynamic-slice" | "slice" | "gather":
            indices = read[1:] if opcode == "gather" else []
            return [(read[0], results[0].num_bytes), (results[0], results[0].num_bytes), *_whole(indices)]
        case "dynamic-update-slice":
            return [(read[1], read[1].num_bytes), (results[0], read[1].num_bytes)]
        case "scatter":
            # The updates, the entries that they are added to, and those written.
            target, places, updates = read[0], read[-2], read[-1]
            return [*_whole([places, updates]), (target, updates.num_bytes), (target, updates.num_bytes)]
        case "slice-start" | "dynamic-slice-start":
            # Its results are the operand, the slice, and a flag.
            return [(read[0], results[1].num_bytes), (results[1], results[1].num_bytes)]
        case "copy-start":
            return _whole([read[0], results[0]])
        case "fusion":
            inner = called(module, instruction, "calls")
            reads = [
                (arrays[0], min(_read_of(module, inner, parameter), arrays[0].num_bytes))
                for arrays, parameter in zip(operands, inner.parameters, strict=True)
                if arrays
            ]
            return [*reads, *zip(results, _written(module, inner), strict=True)]
    if opcode.endswith("-start"):
        # Its results hold the operands too; the gathered ones are as much larger as there are devices.
        share = _group_size(instruction.attributes, module.num_devices) if opcode == "all-gather-start" else 1
        return [*_whole(read), *((array, share * array.num_bytes) for array in read)]
    return _whole([*read, *results])


def _whole(arrays: Iterable[Array]) -> list[tuple[Array, int]]:
    return [(array, array.num_bytes) for array in arrays]


def _read_of(module: Module, fused: Computation, name: str) -> int:
    """Bytes that a fusion reads of what one of its instructions gives, a parameter say."""
    array = fused.instructions[name].results[0]
    total = 0
    for user in fused.users[name]:
        places = [number for number, operand in enumerate(user.operands) if operand == name]
        if _is_view(module, user):
            total += _read_of(module, fused, user.name)
            continue
        match user.opcode:
            case "dynamic-slice" | "slice" | "gather" if places == [0]:
                total += user.results[0].num_bytes
            case "dynamic-update-slice" if places == [0]:
                total += 0
            case "scatter" if places == [0]:
                total += fused.instructions[user.operands[-1]].results[0].num_bytes
            case "fusion":
                inner = called(module, user, "calls")
                total += sum(_read_of(module, inner, inner.parameters[number]) for number in places)
            case "tuple":
                # Handed on as it is.
                total += 0
            case _:
                return array.num_bytes
    return min(total, array.num_bytes)


def _written(module: Module, fused: Computation) -> list[int]:
    """Bytes that a fusion writes of each of its results."""
    root = fused.instructions[fused.root]
    names = root.operands if root.opcode == "tuple" else (fused.root,)
    return [written for name in names for written in _written_of(module, fused, name)]


def _written_of(module: Module, fused: Computation, name: str) -> list[int]:
    instruction = fused.instructions[name]
    if _is_view(module, instruction):
        return _written_of(module, fused, instruction.operands[0])
    match instruction.opcode:
        case "parameter":
            # Handed on as it is.
            return [0 for _ in instruction.results]
        case "custom-call" if _target(instruction) == "AsyncCollectiveStart":
            return [0 for _ in instruction.results]
        case _ if _chain(instruction):
            # What it gathers is written once, and counts where it is done.
            return [0 for _ in instruction.results]
        case "fusion":
            return _written(module, called(module, instruction, "calls"))
        case "dynamic-update-slice" | "scatter" if _is_parameter(module, fused, instruction.operands[0]):
            number = 1 if instruction.opcode == "dynamic-update-slice" else -1
            return [fused.instructions[instruction.operands[number]].results[0].num_bytes]
    return [array.num_bytes for array in instruction.results]


def _is_parameter(module: Module, fused: Computation, name: str) -> bool:
    """Whether it is a parameter, seen another way perhaps: then it is changed where it lies."""
    instruction = fused.instructions[name]
    if _is_view(module, instruction):
        return _is_parameter(module, fused, instruction.operands[0])
    return instruction.opcode == "parameter"


def _is_view(module: Module, instruction: Instruction) -> bool:
    """Whether an instruction within a fusion is its operand seen another way, of which only what is used is read.

    Besides bitcasts these are fusions of one copy that is said to lie where its operand does: how the TPU's compiler
    takes small entries, the booleans of a stack of dropout masks say, from one tiling to another.
    """
    if instruction.opcode == "bitcast":
        return True
    if instruction.opcode != "fusion" or "output_to_operand_aliasing={{}: (0, {})}" not in instruction.attributes:
        return False
    inner = called(module, instruction, "calls").instructions.values()
    return [step.opcode for step in inner] == ["parameter", "copy"]


def total_by_kind(collectives: Iterable[Collective]) -> dict[str, int]:
    """Bytes a step of each kind of collective."""
    totals: dict[str, int] = collections.defaultdict(int)
    for collective in collectives:
        totals[collective.kind] += collective.num_bytes * collective.times
    return dict(totals)
