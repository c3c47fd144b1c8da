"""Facts about single instructions of a compiled program."""

import math
import re

from afjax.tpu.hlo import Instruction

# Opcodes that neither move data nor compute anything.
FREE = frozenset(
    "add-dependency after-all bitcast constant domain get-tuple-element optimization-barrier parameter partition-id "
    "replica-id tuple".split()
)

# Targets of custom calls that neither move data nor compute anything.
FREE_CALLS = frozenset(
    "AllocateBuffer AssumeGatherIndicesInBound AsyncCollectiveDone AsyncCollectiveStart ConcatBitcast "
    "GatherScatterIndicesBitpacked".split()
)


def gather_chain(instruction: Instruction) -> str:
    """Returns the identifier of a collective that runs while fusions compute.

    Each of these fusions contains the collective again. With the identifier it can be counted once. The result is empty
    for all other instructions.
    """
    match = re.search(r'chain_id="([^"]*)"', instruction.attributes)
    return f"{instruction.number('channel_id', 0)}/{match.group(1)}" if match else ""


def group_size(attributes: str, num_devices: int) -> int:
    """Returns the number of devices per group of a collective.

    Parses all forms of ``replica_groups`` that XLA writes, and the ``source_target_pairs`` of a permutation. Without
    either, the group has ``num_devices``.
    """
    if pairs := re.search(r"source_target_pairs=\{(.*?)\}\}", attributes):
        return len(set(re.findall(r"\d+", pairs.group(1))))
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", attributes):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh.group(1))}
        # An axis is written 'axis', and a part of an axis 'axis':(product of the preceding parts)size.
        axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", mesh.group(2))
        return math.prod(int(part) if part else sizes[name] for name, part in axes)
    if tiles := re.search(r"replica_groups=\[(\d+),(\d+)\]<=", attributes):
        return int(tiles.group(2))
    if groups := re.search(r"replica_groups=\{\{([0-9,]+)\}", attributes):
        return len(groups.group(1).split(","))
    return num_devices


def call_target(instruction: Instruction) -> str:
    match = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
    return match.group(1) if match else "unknown"
