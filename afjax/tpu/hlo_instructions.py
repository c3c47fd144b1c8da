"""Facts about single instructions of a compiled program."""

import math
import re

from afjax.tpu.hlo import Instruction

# They move nothing and compute nothing by themselves.
FREE = frozenset(
    "add-dependency after-all bitcast constant domain get-tuple-element optimization-barrier parameter partition-id "
    "replica-id tuple".split()
)


FREE_CALLS = frozenset(
    "AllocateBuffer AssumeGatherIndicesInBound AsyncCollectiveDone AsyncCollectiveStart ConcatBitcast "
    "GatherScatterIndicesBitpacked".split()
)


def gather_chain(instruction: Instruction) -> str:
    """What tells a collective that goes on while fusions compute: each of these fusions names it again. Else empty."""
    found = re.search(r'chain_id="([^"]*)"', instruction.attributes)
    return f"{instruction.number('channel_id', 0)}/{found.group(1)}" if found else ""


def group_size(attributes: str, num_devices: int) -> int:
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


def call_target(instruction: Instruction) -> str:
    found = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
    return found.group(1) if found else "unknown"
