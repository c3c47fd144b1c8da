"""Reports the cost of a run on a TPU slice, based on its compiled programs."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from afjax.display.words import counted
from afjax.distributed.sharding import ROWS, check_batch, make_mesh
from afjax.errors import is_out_of_memory
from afjax.tpu.chips import Topology, get_topology
from afjax.tpu.minimum_flops import minimum_flops
from afjax.tpu.plan import Plan
from afjax.tpu.program import Program, read_program, total_by_kind
from afjax.tpu.roofline import Roofline, roofline
from afjax.tpu.steps import best_bytes, compile_eval_step, compile_train_step, trained_bytes

# If an estimate is more than this many times as large as the largest compiled step, a larger step is compiled.
_GROWTH = 4
# The maximum number of larger steps, and of corrections of the estimate. Compiling takes longer for large batches.
_LARGER_STEPS, _CORRECTIONS = 3, 3


@dataclasses.dataclass(frozen=True)
class Step:
    """The cost of a compiled step.

    Attributes:
      program: The step's work and memory on one chip.
      compile_s: Seconds spent tracing and compiling.
      minimum_flops: Minimum number of operations in one chip's share of the matrix products.
      roofline: Lower bounds on the time per step.
    """

    program: Program
    compile_s: float
    minimum_flops: float
    roofline: Roofline


@dataclasses.dataclass(frozen=True)
class Report:
    """The cost of a run on a slice.

    Attributes:
      plan: The run.
      topology: The slice.
      train, evaluate: The steps. None if the batch does not fit in the chip's memory, so the training step does not
        compile.
      gradient_bytes: Bytes of one step's gradients, for all slots.
      best_bytes: Bytes of the best parameters so far on one chip, for all slots. They are not part of the steps.
      fitting_batch: Estimate of the largest batch that fits, in rows over all chips, extrapolated from the memory of
        smaller batches. None if it was not requested, if no batch fits, or if the plan has several slots.
      fitting_slots: Estimate of the largest number of slots that fits. None unless the plan has several slots.
    """

    plan: Plan
    topology: Topology
    train: Step | None
    evaluate: Step | None
    gradient_bytes: int
    best_bytes: int
    fitting_batch: int | None
    fitting_slots: int | None = None


def report(plan: Plan, topology: Topology, *, fit: bool = True) -> Report:
    """Compiles a run's steps for a slice and computes their cost.

    Args:
      plan: The run.
      topology: The slice.
      fit: Whether to estimate the largest batch that fits. This compiles the training step at least once more.

    Raises:
      UserError: The TPU compiler is not installed, or the mesh or the batch size does not fit the number of chips.
    """
    mesh = make_mesh(plan.mesh, get_topology(topology).devices)
    check_batch(plan.settings.batch_size, mesh)
    train = train_step(plan, mesh, topology)
    evaluate = _eval_step(plan, mesh, topology) if train else None
    best, together = best_bytes(plan, mesh), plan.slots > 1

    def step_of(number: int) -> Step | None:
        sized = plan.with_slots(number) if together else plan.with_batch(number)
        return _with_kept(train_step(sized, mesh, topology), sized.slots * best)

    number, unit = (plan.slots, 1) if together else (plan.settings.batch_size, _row_parts(mesh))
    first = _with_kept(train, plan.slots * best)
    largest = largest_number(step_of, number, first, topology.chip.hbm_bytes, unit=unit) if fit else None
    return Report(
        plan,
        topology,
        train,
        evaluate,
        gradient_bytes=plan.slots * trained_bytes(plan, mesh),
        best_bytes=plan.slots * best,
        fitting_batch=None if together else largest,
        fitting_slots=largest if together else None,
    )


def _with_kept(step: Step | None, size: int) -> Step | None:
    """Adds ``size`` bytes that a run keeps on the chip to the memory of its step."""
    if step is None:
        return None
    memory = dataclasses.replace(step.program.memory, arguments=step.program.memory.arguments + size)
    return dataclasses.replace(step, program=dataclasses.replace(step.program, memory=memory))


def _row_parts(mesh: Mesh) -> int:
    return math.prod(mesh.shape[axis] for axis in ROWS)


def train_step(plan: Plan, mesh: Mesh, topology: Topology) -> Step | None:
    """Compiles the training step and computes its cost.

    Returns None if it does not fit in the chip's memory.
    """
    try:
        compiled, seconds = compile_train_step(plan, mesh)
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
    return _step(plan, plan.trained, compiled, seconds, mesh, topology)


def _eval_step(plan: Plan, mesh: Mesh, topology: Topology) -> Step:
    compiled, seconds = compile_eval_step(plan, mesh)
    return _step(plan, "nothing", compiled, seconds, mesh, topology)


def _step(
    plan: Plan, trained: Any, compiled: jax.stages.Compiled, seconds: float, mesh: Mesh, topology: Topology
) -> Step:
    program = read_program(compiled)
    # Compute the minimum for one chip's rows, because every chip folds fusions for itself. A tensor axis splits this
    # work further.
    parts, choices = _row_parts(mesh), 4 if plan.kinds[0] == "multiple_choice" else 1
    least = minimum_flops(
        plan.model,
        trained,
        batch_size=plan.settings.batch_size // parts * choices,
        length=plan.length,
        num_outputs=max(plan.outputs),
        top_k=plan.top_k,
    )
    slots = 1 if trained == "nothing" else plan.slots
    return Step(program, seconds, slots * least / mesh.shape["tensor"], roofline(program.work, topology))


def largest_number(
    compile_step: Callable[[int], Step | None], number: int, first: Step | None, memory: int, *, unit: int
) -> int | None:
    """Estimates the largest number of rows or slots that fits in memory.

    Memory is extrapolated linearly from the plan's number and half of it. Larger steps are compiled if the estimate is
    far above the plan's number, and to correct the estimate.

    Args:
      compile_step: Compiles the step with a number of rows or slots. Returns None if it does not fit.
      number: The plan's number of rows or slots.
      first: The step with this number.
      memory: The chip's memory in bytes.
      unit: The result is a multiple of this number.

    Returns:
      The estimate, or None if not even ``unit`` fits.
    """
    train, limit = first, math.inf
    while train is None:
        limit, number = number - unit, number // 2 // unit * unit
        if not number:
            return None
        train = compile_step(number)
    # The second point for the extrapolation: half the number, or twice the number if it cannot be halved.
    other_number = number // 2 // unit * unit or 2 * number
    other = compile_step(other_number) if other_number <= limit else None
    if other is None:
        return number
    largest = _extrapolated(memory, (other_number, other), (number, train))
    for _ in range(_LARGER_STEPS):
        if largest <= _GROWTH * number or _GROWTH * number > limit:
            break
        larger = compile_step(_GROWTH * number)
        if larger is None:
            limit = _GROWTH * number - unit
        else:
            other_number, other, number, train = number, train, _GROWTH * number, larger
            largest = _extrapolated(memory, (other_number, other), (number, train))
    # Correct the estimate with its own memory.
    for _ in range(_CORRECTIONS):
        estimate = _rounded(min(largest, limit), unit, number)
        if not number < estimate <= _GROWTH * number:
            return estimate
        last = compile_step(estimate)
        if last is None:
            limit, largest = estimate - unit, math.isqrt(number * estimate)
            continue
        largest = _extrapolated(memory, (number, train), (estimate, last))
        if last.program.memory.peak <= memory:
            number, train = estimate, last
        if abs(largest - estimate) < estimate / 20:
            break
    return _rounded(min(largest, limit), unit, number)


def _rounded(number: float, unit: int, least: int) -> int:
    """Rounds down to a multiple of ``unit`` that is at least ``least``. Infinity is rounded to ``least``."""
    return least if math.isinf(number) else max(least, int(number // unit * unit))


def _extrapolated(memory: int, first: tuple[int, Step], second: tuple[int, Step]) -> float:
    """Extrapolates the number of rows or slots that fits in ``memory`` bytes.

    Args:
      memory: The chip's memory in bytes.
      first, second: Two numbers with their steps.
    """
    (first_number, first_step), (number, step) = first, second
    bytes_each = (step.program.memory.peak - first_step.program.memory.peak) / (number - first_number)
    # If memory does not grow between small steps, larger ones have to be compiled.
    return number + (memory - step.program.memory.peak) / bytes_each if bytes_each > 0 else math.inf


# The cost of one step on one chip, by JSON key. The values are null if the step does not fit.
FIGURES: Mapping[str, Callable[[Step], Any]] = {
    "compile_s": lambda step: step.compile_s,
    "flops_per_chip": lambda step: step.program.work.flops,
    "matmul_flops_per_chip": lambda step: step.program.work.matmul_flops,
    "minimum_flops_per_chip": lambda step: step.minimum_flops,
    "memory_gb_per_chip": lambda step: step.program.memory.peak / 1e9,
    "in_use_gb_per_chip": lambda step: step.program.memory.in_use / 1e9,
    "argument_gb_per_chip": lambda step: step.program.memory.arguments / 1e9,
    "temporary_gb_per_chip": lambda step: step.program.memory.temporaries / 1e9,
    "output_gb_per_chip": lambda step: (step.program.memory.outputs - step.program.memory.aliased) / 1e9,
    "hbm_traffic_gb_per_chip": lambda step: step.program.work.hbm_bytes / 1e9,
    "all_reduce_bytes": lambda step: total_by_kind(step.program.work.collectives).get("all-reduce", 0),
    "collective_bytes": lambda step: total_by_kind(step.program.work.collectives),
    "compute_s": lambda step: step.roofline.compute_s,
    "hbm_s": lambda step: step.roofline.hbm_s,
    "interconnect_s": lambda step: step.roofline.interconnect_s,
    "step_s": lambda step: step.roofline.step_s,
    "bound": lambda step: step.roofline.bound,
}


def to_json(found: Report) -> dict[str, Any]:
    """Converts a report to a JSON object with the cost of one step on one chip.

    Keys for the evaluation step have the prefix ``eval_``. ``fits`` is true if the training step compiles. Because the
    compiler only checks ``in_use_gb_per_chip``, the total ``memory_gb_per_chip`` may still exceed the chip's memory.
    """
    plan, topology = found.plan, found.topology
    values: dict[str, Any] = {
        "title": plan.title,
        "topology": topology.name,
        "num_chips": topology.num_chips,
        "batch_size": plan.settings.batch_size,
        "max_length": plan.length,
        "slots": plan.slots,
        "fits": found.train is not None,
        "hbm_gb_per_chip": topology.chip.hbm_bytes / 1e9,
        "gradient_bytes": found.gradient_bytes,
        "best_parameters_gb_per_chip": found.best_bytes / 1e9,
        "largest_batch_size": found.fitting_batch,
        "largest_slots": found.fitting_slots,
    }
    for prefix, step in (("", found.train), ("eval_", found.evaluate)):
        values |= {f"{prefix}{name}": None if step is None else figure(step) for name, figure in FIGURES.items()}
    return values


def to_lines(found: Report) -> list[str]:
    """Formats a report as lines of text."""
    plan, topology = found.plan, found.topology
    rows = plan.settings.batch_size
    lines = [
        f"{plan.title}: {counted(rows, 'row')} of {plan.length} tokens on {topology.name}, "
        f"{counted(topology.num_chips, 'chip')}",
        f"trained: {found.gradient_bytes / 1e6:.1f} MB of gradients per step",
        f"kept: {found.best_bytes / 1e6:.1f} MB per chip for the best parameters, in addition to the memory below",
    ]
    if len(set(plan.kinds)) > 1:
        lines.append(f"steps: with a batch of the costliest kind of task, {plan.kinds[0]}")
    for title, step in (("training step", found.train), ("evaluation step", found.evaluate)):
        if step is not None:
            lines += ["", f"{title} on one chip, compiled in {step.compile_s:.0f} s", *_step_lines(step, topology)]
            if plan.slots > 1 and step is found.train:
                lines.append(_per_run_line(step, plan.slots))
    if found.train is None:
        lines += ["", f"{_fitted(plan)} does not fit {topology.chip.hbm_bytes / 1e9:.1f} GB of memory per chip."]
    if found.fitting_batch is not None:
        lines += ["", f"Largest batch that fits: about {counted(found.fitting_batch, 'row')} of {plan.length} tokens."]
    elif found.fitting_slots is not None:
        lines += ["", f"Largest number of runs that fits: about {found.fitting_slots}."]
    elif found.train is None:
        what = "batch" if plan.slots == 1 else "number of runs"
        lines += [f"No smaller {what} fits either: shard the parameters with mesh.fsdp, or use more chips."]
    return lines


def _fitted(plan: Plan) -> str:
    return "The batch" if plan.slots == 1 else f"The step of {plan.slots} runs"


def _per_run_line(step: Step, slots: int) -> str:
    work = step.program.work
    return (
        f"  per run       {work.flops / slots / 1e12:8.3f} TFLOP, {work.hbm_bytes / slots / 1e9:.3f} GB moved, "
        f"{step.roofline.step_s / slots * 1e3:.2f} ms at best, with {slots} runs per step"
    )


def _step_lines(step: Step, topology: Topology) -> list[str]:
    work, memory, line = step.program.work, step.program.memory, step.roofline
    ratio = work.flops / step.minimum_flops if step.minimum_flops else float("nan")
    lines = [
        f"  operations    {work.flops / 1e12:8.3f} TFLOP, {work.matmul_flops / 1e12:.3f} in matrix products; at least "
        f"{step.minimum_flops / 1e12:.3f} needed (ratio {ratio:.3f})",
        f"  memory        {memory.peak / 1e9:8.3f} GB of {topology.chip.hbm_bytes / 1e9:.1f}: arguments "
        f"{memory.arguments / 1e9:.3f}, temporaries {memory.temporaries / 1e9:.3f}, new outputs "
        f"{(memory.outputs - memory.aliased) / 1e9:.3f}, code {memory.code / 1e9:.3f}",
        f"  in use        {memory.in_use / 1e9:8.3f} GB at most at any time, by the compiler's count",
        f"  memory moved  {work.hbm_bytes / 1e9:8.3f} GB",
    ]
    if memory.peak > topology.chip.hbm_bytes:
        lines.append(
            "  It compiles, because the memory in use at any time fits. The total does not, so the step may fail on a "
            "TPU."
        )
    kinds = total_by_kind(work.collectives)
    lines += [f"  {kind:<14}{size / 1e6:8.1f} MB" for kind, size in sorted(kinds.items())]
    lines += [
        f"  at best       {line.step_s * 1e3:8.2f} ms, bound by {line.bound} (compute {line.compute_s * 1e3:.2f}, hbm "
        f"{line.hbm_s * 1e3:.2f}, interconnect {line.interconnect_s * 1e3:.2f}); {line.sum_s * 1e3:.2f} without "
        "overlap"
    ]
    if work.uncounted:
        lines.append(f"  not counted   {', '.join(work.uncounted)}")
    return lines
