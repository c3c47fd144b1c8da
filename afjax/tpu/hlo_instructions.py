"""Interprets the opcodes and attributes of a compiled program's instructions."""

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
    """Returns the identifier of an asynchronous collective that overlaps fusions.

    Returns an empty string for other instructions. Every fusion that overlaps with the collective repeats it. With the
    identifier, the collective can be counted only once.
    """
    chain = instruction.search(r'chain_id="([^"]*)"')
    return f"{instruction.number('channel_id', 0)}/{chain}" if chain else ""


def group_size(instruction: Instruction) -> int:
    """Returns the number of devices in each group of a collective.

    Handles every format in which XLA writes ``replica_groups``, and the ``source_target_pairs`` of a permutation. If
    neither is present, the group has all devices.
    """
    attributes = instruction.attributes
    if pairs := re.search(r"source_target_pairs=\{(.*?)\}\}", attributes):
        return len(set(re.findall(r"\d+", pairs.group(1))))
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", attributes):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh.group(1))}
        # A full axis is written 'axis', and a sub-axis 'axis':(product of the preceding sub-axes)size.
        axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", mesh.group(2))
        return math.prod(int(part) if part else sizes[name] for name, part in axes)
    if tiles := re.search(r"replica_groups=\[(\d+),(\d+)\]<=", attributes):
        return int(tiles.group(2))
    if groups := re.search(r"replica_groups=\{\{([0-9,]+)\}", attributes):
        return len(groups.group(1).split(","))
    return instruction.module.num_devices


def call_target(instruction: Instruction) -> str:
    return instruction.search(r'custom_call_target="([^"]*)"') or "unknown"
