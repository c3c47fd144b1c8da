"""Counts the bytes of memory that a program's instructions read and write."""

from collections.abc import Iterable

from afjax.tpu.hlo import Array, Computation, Instruction
from afjax.tpu.hlo_instructions import FREE, FREE_CALLS, call_target, gather_chain, group_size


def memory_traffic(computation: Computation, instruction: Instruction) -> Iterable[tuple[Array, int]]:
    """Lists ``(array, bytes)`` that a top-level instruction reads and writes.

    Reading or updating a slice in place only counts the slice. For instance, each iteration of a scan over layers gets
    the stacked weights of all layers but only reads one layer's.
    """
    opcode = instruction.opcode
    if opcode in FREE or opcode.endswith("-done") or opcode == "async-update":
        return []
    if opcode == "custom-call" and call_target(instruction) in FREE_CALLS:
        return []
    operands = [operand.results for operand in computation.operands(instruction)]
    read = [array for arrays in operands for array in arrays]
    results = instruction.results
    match opcode:
        case "dynamic-slice" | "slice" | "gather":
            indices = read[1:] if opcode == "gather" else []
            return [(read[0], results[0].num_bytes), (results[0], results[0].num_bytes), *_full_traffic(indices)]
        case "dynamic-update-slice":
            return [(read[1], read[1].num_bytes), (results[0], read[1].num_bytes)]
        case "scatter":
            # The indices and updates are read; the updated elements are read and written.
            target, positions, updates = read[0], read[-2], read[-1]
            return [*_full_traffic([positions, updates]), (target, updates.num_bytes), (target, updates.num_bytes)]
        case "slice-start" | "dynamic-slice-start":
            # The results are the operand, the slice, and a flag.
            return [(read[0], results[1].num_bytes), (results[1], results[1].num_bytes)]
        case "copy-start":
            return _full_traffic([read[0], results[0]])
        case "fusion":
            inner = instruction.called("calls")
            reads = [
                (arrays[0], min(_bytes_read(inner, parameter), arrays[0].num_bytes))
                for arrays, parameter in zip(operands, inner.parameters, strict=True)
                if arrays
            ]
            return [*reads, *zip(results, _bytes_written(inner), strict=True)]
    if opcode.endswith("-start"):
        # The results include the operands, so compute the bytes written from the operands. An all-gather's output is
        # larger by the group size.
        share = group_size(instruction) if opcode == "all-gather-start" else 1
        return [*_full_traffic(read), *((array, share * array.num_bytes) for array in read)]
    return _full_traffic([*read, *results])


def _full_traffic(arrays: Iterable[Array]) -> list[tuple[Array, int]]:
    return [(array, array.num_bytes) for array in arrays]


def _bytes_read(fused: Computation, name: str) -> int:
    """Counts the bytes of an instruction's result that are read within a fusion.

    The instruction is usually a parameter.
    """
    array = fused.instructions[name].results[0]
    total = 0
    for user in fused.users[name]:
        positions = [number for number, operand in enumerate(user.operands) if operand == name]
        if _is_view(user):
            total += _bytes_read(fused, user.name)
            continue
        match user.opcode:
            case "dynamic-slice" | "slice" | "gather" if positions == [0]:
                total += user.results[0].num_bytes
            case "dynamic-update-slice" if positions == [0]:
                total += 0
            case "scatter" if positions == [0]:
                total += fused.instructions[user.operands[-1]].results[0].num_bytes
            case "fusion":
                inner = user.called("calls")
                total += sum(_bytes_read(inner, inner.parameters[number]) for number in positions)
            case "tuple":
                # The array is passed on without being read.
                total += 0
            case _:
                return array.num_bytes
    return min(total, array.num_bytes)


def _bytes_written(fused: Computation) -> list[int]:
    """Counts the bytes that a fusion writes to each of its results."""
    root = fused.instructions[fused.root]
    names = root.operands if root.opcode == "tuple" else (fused.root,)
    return [written for name in names for written in _bytes_written_by(fused, name)]


def _bytes_written_by(fused: Computation, name: str) -> list[int]:
    instruction = fused.instructions[name]
    if _is_view(instruction):
        return _bytes_written_by(fused, instruction.operands[0])
    # Parameters and the results of asynchronous starts are passed on without being written.
    is_passed_on = instruction.opcode == "parameter" or call_target(instruction) == "AsyncCollectiveStart"
    # A gathered array is written once; it is counted for the fusion that completes the collective.
    if is_passed_on or gather_chain(instruction):
        return [0 for _ in instruction.results]
    match instruction.opcode:
        case "fusion":
            return _bytes_written(instruction.called("calls"))
        case "dynamic-update-slice" | "scatter" if _is_parameter(fused, instruction.operands[0]):
            number = 1 if instruction.opcode == "dynamic-update-slice" else -1
            return [fused.instructions[instruction.operands[number]].results[0].num_bytes]
    return [array.num_bytes for array in instruction.results]


def _is_parameter(fused: Computation, name: str) -> bool:
    """Returns whether an instruction is a parameter or a view of one.

    Such an array can be updated in place.
    """
    instruction = fused.instructions[name]
    if _is_view(instruction):
        return _is_parameter(fused, instruction.operands[0])
    return instruction.opcode == "parameter"


def _is_view(instruction: Instruction) -> bool:
    """Returns whether an instruction within a fusion is a view of its operand.

    Only the used part of a view is read. Views are bitcasts, and fusions that consist of a single copy and alias their
    operand. The TPU compiler uses such copies to change the tiling of arrays with small dtypes, for instance stacked
    boolean dropout masks.
    """
    if instruction.opcode == "bitcast":
        return True
    if instruction.opcode != "fusion" or "output_to_operand_aliasing={{}: (0, {})}" not in instruction.attributes:
        return False
    inner = instruction.called("calls").instructions.values()
    return [step.opcode for step in inner] == ["parameter", "copy"]
