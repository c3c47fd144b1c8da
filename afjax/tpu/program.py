"""Counts a compiled program's operations, memory traffic, collectives and memory.

All counts are for one chip. XLA's ``cost_analysis()`` counts a loop's body only once, which underestimates a scan over
layers. This module therefore walks the program's text and multiplies each loop body by its trip count. Otherwise it
follows XLA's HloCostAnalysis: a multiply-add is two operations, elementwise arithmetic is one operation per element of
the result, a reduction is one operation per addition, and functions such as ``exp`` are not counted.
"""

import collections
import dataclasses
import re
from collections.abc import Iterable

import jax

from afjax.tpu.hlo import Computation, Instruction, parse_module
from afjax.tpu.hlo_flops import count_flops
from afjax.tpu.hlo_instructions import FREE_CALLS, call_target, gather_chain, group_size
from afjax.tpu.hlo_traffic import memory_traffic
from afjax.tpu.loops import Value, constant_state, evaluate, trip_count

_COLLECTIVES = tuple(
    "all-gather all-reduce all-to-all collective-broadcast collective-permute ragged-all-to-all reduce-scatter".split()
)


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective operation in a program.

    Attributes:
      kind: ``all-reduce``, ``all-gather``, ``reduce-scatter``, ``all-to-all``, ``collective-permute`` and so on.
      num_bytes: Bytes of the full arrays on one chip: the result for an all-gather, otherwise the operands. Arrays that
        are sent together are summed.
      times: How often it runs per step.
      group_size: Number of devices in each group.
    """

    kind: str
    num_bytes: int
    times: int
    group_size: int


@dataclasses.dataclass(frozen=True)
class Work:
    """The work that one chip does in one execution of a program.

    Attributes:
      flops: Floating-point operations. Like XLA's count, this includes integer arithmetic.
      matmul_flops: Operations in matrix products.
      bytes_accessed: Bytes that top-level instructions read and write, including padding to tiles.
      hbm_bytes: The part of ``bytes_accessed`` in main memory, as opposed to the chip's vector memory.
      collectives: The collectives, in program order.
      uncounted: Targets of custom calls (such as hand-written kernels) whose operations are not included in ``flops``.
    """

    flops: int = 0
    matmul_flops: int = 0
    bytes_accessed: int = 0
    hbm_bytes: int = 0
    collectives: tuple[Collective, ...] = ()
    uncounted: tuple[str, ...] = ()

    def __add__(self, other: "Work") -> "Work":
        return Work(
            flops=self.flops + other.flops,
            matmul_flops=self.matmul_flops + other.matmul_flops,
            bytes_accessed=self.bytes_accessed + other.bytes_accessed,
            hbm_bytes=self.hbm_bytes + other.hbm_bytes,
            collectives=self.collectives + other.collectives,
            uncounted=tuple(sorted({*self.uncounted, *other.uncounted})),
        )


@dataclasses.dataclass(frozen=True)
class Memory:
    """A program's use of one chip's main memory, in bytes.

    Attributes:
      arguments: Inputs: parameters, optimizer state, batch.
      outputs: Results.
      aliased: Results that reuse the memory of donated arguments.
      temporaries: Memory allocated for intermediate arrays.
      code: The program itself.
      in_use: Peak size of all live arrays, including arguments and results, according to the compiler.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    code: int
    in_use: int

    @property
    def peak(self) -> int:
        """Total memory.

        A donated argument and the result that reuses its memory count once. The total is usually larger than
        ``in_use``. Because libtpu 0.0.42 only rejects programs whose ``in_use`` exceeds the chip's memory, a program
        whose ``peak`` exceeds it may still compile.
        """
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


@dataclasses.dataclass(frozen=True)
class Program:
    """The work and memory of a compiled program on one chip."""

    work: Work
    memory: Memory


def read_program(compiled: jax.stages.Compiled) -> Program:
    """Computes the work and memory of a compiled step.

    Args:
      compiled: The result of ``jax.jit(step).lower(...).compile()``, for any devices.

    Raises:
      UserError: The trip count of a loop is unknown.
    """
    return Program(count_work(compiled.as_text() or ""), read_memory(compiled))


def read_memory(compiled: jax.stages.Compiled) -> Memory:
    """Returns the compiler's memory analysis, in bytes per device."""
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
    """Counts a program's work from its text, ``compiled.as_text()``.

    Raises:
      UserError: The text is not a compiled program, or the trip count of a loop is unknown.
    """
    module = parse_module(text)
    entry = module.computations[module.entry]
    return _walk(entry, (None,) * len(entry.parameters), times=1, fused=False)


def _walk(
    computation: Computation, arguments: tuple[Value, ...], *, times: int, fused: bool, chains: set[str] | None = None
) -> Work:
    """Counts a computation's work.

    Args:
      computation: The computation to walk.
      arguments: The known values of its parameters, which determine the trip counts of nested loops.
      times: How often the computation runs per step.
      fused: Whether the computation is the body of a fusion, whose intermediate arrays do not go through memory.
      chains: Identifiers of the asynchronous collectives counted so far (:func:`gather_chain`).
    """
    known_values: dict[str, Value] = {}
    chains = set() if chains is None else chains
    total = Work()

    def values(instruction: Instruction) -> tuple[Value, ...]:
        return tuple(evaluate(computation, name, arguments, known_values) for name in instruction.operands)

    for instruction in computation.instructions.values():
        opcode = instruction.opcode
        if opcode == "while":
            start = values(instruction)[0]
            trips = trip_count(instruction, start)
            state = (constant_state(instruction, start, trips),)
            for part, runs in (("body", trips), ("condition", trips + 1)):
                total += _walk(instruction.called(part), state, times=times * runs, fused=fused)
            continue
        if opcode == "conditional":
            total += _walk_conditional(instruction, values(instruction), times=times, fused=fused)
            continue
        if opcode in ("call", "async-start"):
            inner = instruction.called("to_apply" if opcode == "call" else "calls")
            total += _walk(inner, values(instruction), times=times, fused=fused)
            continue
        if opcode == "fusion":
            inner = instruction.called("calls")
            total += _walk(inner, values(instruction), times=times, fused=True, chains=chains)
        flops = times * count_flops(computation, instruction)
        traffic = [] if fused else list(memory_traffic(computation, instruction))
        is_uncounted = opcode == "custom-call" and call_target(instruction) not in FREE_CALLS
        collectives: tuple[Collective, ...] = ()
        kind, chain = opcode.removesuffix("-start"), gather_chain(instruction)
        if kind in _COLLECTIVES and not (chain and chain in chains):
            chains.add(chain)
            collectives = (_collective(computation, instruction, kind, times),)
        total += Work(
            flops=flops,
            matmul_flops=flops if opcode in ("dot", "convolution") else 0,
            bytes_accessed=times * sum(share for _, share in traffic),
            hbm_bytes=times * sum(share for array, share in traffic if array.space == 0),
            collectives=collectives,
            uncounted=(call_target(instruction),) if is_uncounted else (),
        )
    return total


def _walk_conditional(instruction: Instruction, operands: tuple[Value, ...], *, times: int, fused: bool) -> Work:
    """Counts the most expensive branch of a conditional.

    At compile time, it is not known which branch will run.
    """
    listed = instruction.search(r"branch_computations=\{([^}]*)\}")
    computations = [instruction.module.computations[name] for name in re.findall(r"%?([\w.\-]+)", listed)]
    computations = computations or [instruction.called(f"{case}_computation") for case in ("true", "false")]
    branches = [
        _walk(computation, (value,), times=times, fused=fused)
        for computation, value in zip(computations, operands[1:], strict=True)
    ]
    return max(branches, key=lambda branch: branch.flops)


def _collective(computation: Computation, instruction: Instruction, kind: str, times: int) -> Collective:
    arrays = [array for operand in computation.operands(instruction) for array in operand.results]
    size = group_size(instruction)
    if kind == "all-reduce" and "reduce-scatter" in computation.name:
        # The TPU compiler implements a reduce-scatter as a fusion (%all-reduce-scatter) of an all-reduce and a slice.
        kind = "reduce-scatter"
    gathered = size if kind == "all-gather" else 1
    return Collective(
        kind=kind, num_bytes=gathered * sum(array.num_bytes for array in arrays), times=times, group_size=size
    )


def total_by_kind(collectives: Iterable[Collective]) -> dict[str, int]:
    """Sums the bytes per step for each kind of collective."""
    totals: dict[str, int] = collections.defaultdict(int)
    for collective in collectives:
        totals[collective.kind] += collective.num_bytes * collective.times
    return dict(totals)
