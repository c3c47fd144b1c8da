"""Finds the trip counts of loops in a compiled program.

A scan over layers is compiled to a ``while`` with a counter in its state. If XLA knows the trip count, it records it in
the ``backend_config``. Otherwise the loop is interpreted: its integer scalars are evaluated iteration by iteration
until the condition is false.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from afjax.errors import UserError
from afjax.tpu.hlo import Computation, Instruction

# An integer, a tuple of values, or None for a value that is unknown at compile time.
Value = Any

_MOST_TRIPS = 100_000
_COPIES = ("copy", "convert", "bitcast", "reshape", "copy-start", "copy-done", "optimization-barrier")
_BINARY: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "maximum": max,
    "minimum": min,
    "and": operator.and_,
    "or": operator.or_,
}


def trip_count(loop: Instruction, start: Value) -> int:
    """Finds how often a ``while`` runs its body.

    Args:
      loop: The ``while`` instruction.
      start: The initial state, from :func:`evaluate`.

    Raises:
      UserError: The trip count is unknown.
    """
    if recorded := loop.search(r'"known_trip_count":\{"n":"(\d+)"\}'):
        return int(recorded)
    condition, body = loop.called("condition"), loop.called("body")
    state, trips = start, 0
    while trips <= _MOST_TRIPS:
        runs = evaluate(condition, condition.root, (state,))
        if runs is None:
            break
        if not runs:
            return trips
        after = evaluate(body, body.root, (state,))
        if after == state:
            break
        state = after
        trips += 1
    raise UserError(
        f'The compiled program\'s loop "{loop.name}" ({loop.op_name or "of unknown origin"}) does not record how often '
        "it runs, so its cost is unknown; compile a step whose loops have a fixed length."
    )


def constant_state(loop: Instruction, start: Value, trips: int) -> Value:
    """Replaces values that change between a loop's iterations with None.

    The values are the loop's initial state. A value counts as changing if the first iteration changes it. If there is
    only one iteration, nothing is replaced.
    """
    if not isinstance(start, tuple) or trips == 1:
        return start
    body = loop.called("body")
    after = evaluate(body, body.root, (start,))
    if not isinstance(after, tuple):
        return None
    return tuple(old if old == new else None for old, new in zip(start, after, strict=True))


def evaluate(
    computation: Computation, name: str, arguments: tuple[Value, ...], known: dict[str, Value] | None = None
) -> Value:
    """Evaluates an instruction as far as possible at compile time.

    Args:
      computation: The computation that contains the instruction.
      name: The instruction's name.
      arguments: Values of the computation's parameters.
      known: Cache of values, by instruction name.

    Returns:
      The value, or None if it is unknown.
    """
    known = {} if known is None else known
    if name not in known:
        known[name] = _evaluate(computation, computation.instructions[name], arguments, known)
    return known[name]


def _evaluate(
    computation: Computation, instruction: Instruction, arguments: tuple[Value, ...], known_values: dict[str, Value]
) -> Value:
    opcode = instruction.opcode
    if not any(not array.dims and array.dtype[0] in "sup" for array in instruction.results):
        # Only integer and boolean scalars (s32, u32, pred) are evaluated.
        return None

    def operand(number: int) -> Value:
        return evaluate(computation, instruction.operands[number], arguments, known_values)

    match opcode:
        case "parameter":
            return arguments[int(instruction.inside)]
        case "constant":
            return _literal(instruction)
        case "tuple":
            return tuple(operand(number) for number in range(len(instruction.operands)))
        case "get-tuple-element":
            elements = operand(0)
            return elements[instruction.number("index", 0)] if isinstance(elements, tuple) else None
        case "fusion" | "call":
            inner = instruction.called("calls" if opcode == "fusion" else "to_apply")
            values = tuple(operand(number) for number in range(len(instruction.operands)))
            return evaluate(inner, inner.root, values)
        case "compare":
            left, right = operand(0), operand(1)
            direction = instruction.search(r"direction=([A-Z]{2})")
            if not direction or None in (left, right):
                return None
            return int(getattr(operator, direction.lower())(left, right))
        case "not":
            value = operand(0)
            return int(not value) if value is not None and instruction.results[0].dtype == "pred" else None
        case "select":
            chosen = operand(0)
            return None if chosen is None else operand(1 if chosen else 2)
    if opcode in _COPIES:
        return operand(0)
    if opcode in _BINARY:
        left, right = operand(0), operand(1)
        return None if left is None or right is None else _BINARY[opcode](left, right)
    return None


def _literal(instruction: Instruction) -> int | None:
    if instruction.inside in ("true", "false"):
        return int(instruction.inside == "true")
    return int(instruction.inside) if re.fullmatch(r"-?\d+", instruction.inside) else None
