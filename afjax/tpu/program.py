"""Counts what a compiled program does on one chip: operations, memory traffic, collectives, memory.

XLA's own ``cost_analysis()`` counts the body of a loop once, and a scan over layers is a loop. Here the program's text
is walked, loops as often as they run. Otherwise the conventions are those of XLA's HloCostAnalysis: a multiply-add is
two operations, elementwise arithmetic one for every entry of its result, a reduction one for every entry it adds to
another, and functions such as ``exp`` none.
"""

import collections
import dataclasses
import re
from collections.abc import Iterable

import jax

from afjax.tpu.hlo import Computation, Instruction, Module, parse_module
from afjax.tpu.hlo_flops import count_flops
from afjax.tpu.hlo_instructions import FREE_CALLS, call_target, gather_chain, group_size
from afjax.tpu.hlo_traffic import memory_traffic
from afjax.tpu.loops import Value, called, constant_state, evaluate, trip_count

_COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
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
        flops = count_flops(module, computation, instruction)
        count.flops += times * flops
        if opcode in ("dot", "convolution"):
            count.matmul_flops += times * flops
        if opcode == "custom-call" and call_target(instruction) not in FREE_CALLS:
            count.uncounted.add(call_target(instruction))
        kind = opcode.removesuffix("-start")
        chain = gather_chain(instruction)
        if kind in _COLLECTIVES and not (chain and chain in chains):
            chains.add(chain)
            count.collectives.append(_collective(module, computation, instruction, kind, times))
        if not fused:
            for array, share in memory_traffic(module, computation, instruction):
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


def _collective(
    module: Module, computation: Computation, instruction: Instruction, kind: str, times: int
) -> Collective:
    arrays = [array for operand in computation.operands(instruction) for array in operand.results]
    size = group_size(instruction.attributes, module.num_devices)
    if kind == "all-reduce" and "reduce-scatter" in computation.name:
        # The TPU's compiler writes a reduce-scatter as a fusion, %all-reduce-scatter, of an all-reduce and a slice.
        kind = "reduce-scatter"
    gathered = size if kind == "all-gather" else 1
    return Collective(
        kind=kind,
        dtype="+".join(sorted({array.dtype for array in arrays})),
        num_bytes=gathered * sum(array.num_bytes for array in arrays),
        times=times,
        group_size=size,
        op_name=_shorten(instruction.op_name),
    )


def _shorten(op_name: str) -> str:
    """The innermost parts of a path such as ``jit(step)/transpose(jvp(Encoder))/ffn/dot_general``, of 60 characters."""
    parts = op_name.split("/")
    while len(parts) > 1 and (len("/".join(parts)) > 60 or parts[0].startswith("jit(")):
        parts = parts[1:]
    return "/".join(parts)


def total_by_kind(collectives: Iterable[Collective]) -> dict[str, int]:
    """Bytes a step of each kind of collective."""
    totals: dict[str, int] = collections.defaultdict(int)
    for collective in collectives:
        totals[collective.kind] += collective.num_bytes * collective.times
    return dict(totals)
