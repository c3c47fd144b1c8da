"""Counts of operations and bytes equal known values and XLA's own counts."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from xla_flags import HAS_OLDER_EMITTERS

from afjax.errors import UserError
from afjax.model.model import Model
from afjax.nn.layers import dropout
from afjax.tpu.chips import get_topology, parse_topology
from afjax.tpu.hlo import parse_module
from afjax.tpu.program import Collective, Work, count_work, read_program, total_by_kind

# The v5e compiler's output for jnp.einsum("bqhd,bkhd->bhqk") with 8 rows on 4 chips, without backend_config.
ATTENTION_SCORES = """\
HloModule jit__lambda, is_scheduled=true, num_partitions=4

%fused_computation.2 (param_0.3: f32[2,16,4,32]) -> bf16[2,16,4,32] {
  %param_0.3 = f32[2,16,4,32]{3,2,1,0:T(4,128)} parameter(0)
  ROOT %copy.5 = bf16[2,16,4,32]{3,1,2,0:T(8,128)(2,1)} copy(%param_0.3), metadata={op_name="q"}
}

%fused_computation.1 (param_0.1: f32[2,16,4,32]) -> bf16[2,16,4,32] {
  %param_0.1 = f32[2,16,4,32]{3,2,1,0:T(4,128)S(1)} parameter(0)
  ROOT %copy.3 = bf16[2,16,4,32]{3,1,2,0:T(8,128)(2,1)} copy(%param_0.1), metadata={op_name="k"}
}

%fused_computation (param_0.2: f32[2,16,4,32], param_1.2: f32[2,16,4,32]) -> f32[2,4,16,16] {
  %param_1.2 = f32[2,16,4,32]{3,2,1,0:T(4,128)} parameter(1)
  %fusion.2 = bf16[2,16,4,32]{3,1,2,0:T(8,128)(2,1)} fusion(%param_1.2), kind=kLoop, calls=%fused_computation.2
  %param_0.2 = f32[2,16,4,32]{3,2,1,0:T(4,128)S(1)} parameter(0)
  %fusion.1 = bf16[2,16,4,32]{3,1,2,0:T(8,128)(2,1)} fusion(%param_0.2), kind=kLoop, calls=%fused_computation.1
  ROOT %convolution-base-dilated.1 = f32[2,4,16,16]{3,2,1,0:T(8,128)} convolution(%fusion.2, %fusion.1), \
window={size=2x4 stride=1x3 lhs_dilate=2x4}, dim_labels=0b1f_0o1i->01bf
}

ENTRY %main.0_spmd (param: f32[2,16,4,32], param.1: f32[2,16,4,32]) -> f32[2,4,16,16] {
  %param.1 = f32[2,16,4,32]{3,2,1,0:T(4,128)} parameter(1), metadata={op_name="k"}
  %copy-start = (f32[2,16,4,32]{3,2,1,0:T(4,128)S(1)}, f32[2,16,4,32]{3,2,1,0:T(4,128)}, u32[]{:S(2)}) \
copy-start(%param.1), cross_program_prefetch_index=0
  %param = f32[2,16,4,32]{3,2,1,0:T(4,128)} parameter(0), metadata={op_name="q"}
  %copy-done = f32[2,16,4,32]{3,2,1,0:T(4,128)S(1)} copy-done(%copy-start)
  ROOT %fusion = f32[2,4,16,16]{3,2,1,0:T(8,128)} fusion(%copy-done, %param), kind=kOutput, calls=%fused_computation
}
"""

# A scan over stacked layer weights, structured like the v5e compiler's output. The counter passes through a copy. Its
# step is a constant, its limit is in the loop's state, and backend_config has no trip count.
SCAN = """\
HloModule jit_loss, is_scheduled=true, num_partitions=4

%slice_fusion (param_0: f32[3,128,128], param_1: s32[]) -> f32[128,128] {
  %param_0 = f32[3,128,128]{2,1,0:T(8,128)} parameter(0)
  %param_1 = s32[]{:T(128)S(6)} parameter(1)
  %constant.50 = s32[]{:T(128)} constant(0)
  %dynamic_slice.52 = f32[1,128,128]{2,1,0:T(8,128)} dynamic-slice(%param_0, %param_1, %constant.50, %constant.50), \
dynamic_slice_sizes={1,128,128}
  ROOT %bitcast.43 = f32[128,128]{1,0:T(8,128)} bitcast(%dynamic_slice.52)
}

%dense_fusion (param_2: f32[3,128,128], param_3: s32[], param_4: f32[8,128]) -> f32[8,128] {
  %param_4 = f32[8,128]{1,0:T(8,128)} parameter(2)
  %param_2 = f32[3,128,128]{2,1,0:T(8,128)} parameter(0)
  %param_3 = s32[]{:T(128)S(6)} parameter(1)
  %fusion.5 = f32[128,128]{1,0:T(8,128)} fusion(%param_2, %param_3), kind=kLoop, calls=%slice_fusion
  ROOT %convolution.5 = f32[8,128]{1,0:T(8,128)} convolution(%param_4, %fusion.5), dim_labels=bf_io->bf
}

%update_fusion (param_5: f32[3,8,128], param_6: s32[], param_7: f32[8,128]) -> f32[3,8,128] {
  %param_5 = f32[3,8,128]{2,1,0:T(8,128)} parameter(0)
  %param_7 = f32[8,128]{1,0:T(8,128)} parameter(2)
  %bitcast.46 = f32[1,8,128]{2,1,0:T(8,128)} bitcast(%param_7)
  %param_6 = s32[]{:T(128)S(6)} parameter(1)
  %constant.51 = s32[]{:T(128)} constant(0)
  ROOT %dynamic-update-slice.9 = f32[3,8,128]{2,1,0:T(8,128)} \
dynamic-update-slice(%param_5, %bitcast.46, %param_6, %constant.51, %constant.51)
}

%body (state: (s32[], f32[8,128], f32[3,8,128], f32[3,128,128], s32[])) -> \
(s32[], f32[8,128], f32[3,8,128], f32[3,128,128], s32[]) {
  %state = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}, f32[3,8,128]{2,1,0:T(8,128)}, f32[3,128,128]{2,1,0:T(8,128)}, \
/*index=4*/s32[]{:T(128)}) parameter(0)
  %get-tuple-element.0 = s32[]{:T(128)} get-tuple-element(%state), index=0
  %copy.9 = s32[]{:T(128)S(6)} copy(%get-tuple-element.0)
  %constant.1 = s32[]{:T(128)} constant(STEP)
  %add.23 = s32[]{:T(128)} add(%copy.9, %constant.1)
  %get-tuple-element.1 = f32[8,128]{1,0:T(8,128)} get-tuple-element(%state), index=1
  %get-tuple-element.2 = f32[3,8,128]{2,1,0:T(8,128)} get-tuple-element(%state), index=2
  %get-tuple-element.3 = f32[3,128,128]{2,1,0:T(8,128)} get-tuple-element(%state), index=3
  %get-tuple-element.4 = s32[]{:T(128)} get-tuple-element(%state), index=4
  %update = f32[3,8,128]{2,1,0:T(8,128)} fusion(%get-tuple-element.2, %copy.9, %get-tuple-element.1), kind=kLoop, \
calls=%update_fusion
  %dense = f32[8,128]{1,0:T(8,128)} fusion(%get-tuple-element.3, %copy.9, %get-tuple-element.1), kind=kOutput, \
calls=%dense_fusion
  ROOT %tuple.52 = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}, f32[3,8,128]{2,1,0:T(8,128)}, \
f32[3,128,128]{2,1,0:T(8,128)}, s32[]{:T(128)}) \
tuple(%add.23, %dense, %update, %get-tuple-element.3, /*index=4*/%get-tuple-element.4)
}

%condition (state.1: (s32[], f32[8,128], f32[3,8,128], f32[3,128,128], s32[])) -> pred[] {
  %state.1 = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}, f32[3,8,128]{2,1,0:T(8,128)}, f32[3,128,128]{2,1,0:T(8,128)}, \
/*index=4*/s32[]{:T(128)}) parameter(0)
  %counter = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  %limit = s32[]{:T(128)} get-tuple-element(%state.1), index=4
  ROOT %lt.10 = pred[]{:T(512)} compare(%counter, %limit), direction=DIRECTION
}

ENTRY %main.5_spmd (w: f32[3,128,128], x: f32[8,128], n: s32[]) -> f32[8,128] {
  %w = f32[3,128,128]{2,1,0:T(8,128)} parameter(0)
  %x = f32[8,128]{1,0:T(8,128)} parameter(1)
  %n = s32[]{:T(128)} parameter(2)
  %constant.57 = s32[]{:T(128)} constant(START)
  %limit.1 = s32[]{:T(128)} LIMIT
  %copy.4 = s32[]{:T(128)} copy(%constant.57)
  %custom-call = f32[3,8,128]{2,1,0:T(8,128)} custom-call(), custom_call_target="AllocateBuffer"
  %tuple.50 = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}, f32[3,8,128]{2,1,0:T(8,128)}, \
f32[3,128,128]{2,1,0:T(8,128)}, s32[]{:T(128)}) tuple(%copy.4, %x, %custom-call, %w, /*index=4*/%limit.1)
  %while.30 = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}, f32[3,8,128]{2,1,0:T(8,128)}, \
f32[3,128,128]{2,1,0:T(8,128)}, s32[]{:T(128)}) while(%tuple.50), condition=%condition, body=%body, \
metadata={op_name="jit(loss)/jvp()/while"}
  ROOT %result = f32[8,128]{1,0:T(8,128)} get-tuple-element(%while.30), index=1
}
"""

# In this program, an all-gather starts and ends inside fusions, and one all-reduce sums two arrays.
COLLECTIVES = """\
HloModule jit_f, is_scheduled=true, num_partitions=16

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%start (param_0.110: bf16[16,768]) -> (bf16[16,768], bf16[256,768], u32[]) {
  %param_0.110 = bf16[16,768]{1,0:T(8,128)(2,1)} parameter(0)
  %all-gather.26 = bf16[256,768]{1,0:T(8,128)(2,1)} all-gather(%param_0.110), channel_id=12, \
replica_groups=mesh['axis_0'=16,'axis_1'=1] {'axis_0'}, dimensions={0}, frontend_attributes={chain_id="0"}
  ROOT %custom-call.6 = (bf16[16,768]{1,0:T(8,128)(2,1)}, bf16[256,768]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) \
custom-call(%all-gather.26), custom_call_target="AsyncCollectiveStart"
}

%done (param_0.126: bf16[16,768], param_1.132: bf16[256,768], param_2.99: u32[]) -> bf16[256,768] {
  %param_0.126 = bf16[16,768]{1,0:T(8,128)(2,1)} parameter(0)
  %param_1.132 = bf16[256,768]{1,0:T(8,128)(2,1)} parameter(1)
  %all-gather.34 = bf16[256,768]{1,0:T(8,128)(2,1)} all-gather(%param_0.126), channel_id=12, \
replica_groups=mesh['axis_0'=16,'axis_1'=1] {'axis_0'}, dimensions={0}, frontend_attributes={chain_id="0"}
  %param_2.99 = u32[]{:S(2)} parameter(2)
  ROOT %custom-call.8 = bf16[256,768]{1,0:T(8,128)(2,1)} custom-call(%param_0.126, %param_1.132, %all-gather.34, \
%param_2.99), custom_call_target="AsyncCollectiveDone"
}

%all-reduce-scatter (param_0: f32[512]) -> f32[128] {
  %param_0 = f32[512]{0:T(128)} parameter(0)
  %all-reduce.1 = f32[512]{0:T(128)} all-reduce(%param_0), channel_id=3, replica_groups=[4,4]<=[16], to_apply=%add
  %constant.3 = s32[]{:T(128)} constant(0)
  ROOT %dynamic-slice.3 = f32[128]{0:T(128)} dynamic-slice(%all-reduce.1, %constant.3), dynamic_slice_sizes={128}
}

ENTRY %main (a: bf16[16,768], b: f32[512], c: bf16[1024]) -> bf16[256,768] {
  %a = bf16[16,768]{1,0:T(8,128)(2,1)} parameter(0)
  %b = f32[512]{0:T(128)} parameter(1)
  %c = bf16[1024]{0:T(256)(2,1)} parameter(2)
  %fusion.0 = (bf16[16,768]{1,0:T(8,128)(2,1)}, bf16[256,768]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) fusion(%a), \
kind=kCustom, calls=%start
  %get-tuple-element.0 = bf16[16,768]{1,0:T(8,128)(2,1)} get-tuple-element(%fusion.0), index=0
  %get-tuple-element.1 = bf16[256,768]{1,0:T(8,128)(2,1)} get-tuple-element(%fusion.0), index=1
  %get-tuple-element.2 = u32[]{:S(2)} get-tuple-element(%fusion.0), index=2
  %fusion.1 = f32[128]{0:T(128)} fusion(%b), kind=kCustom, calls=%all-reduce-scatter
  %both = (f32[512]{0:T(128)}, bf16[1024]{0:T(256)(2,1)}) all-reduce-start(%b, %c), channel_id=5, \
replica_groups={{0,1,2,3,4,5,6,7},{8,9,10,11,12,13,14,15}}, to_apply=%add, \
metadata={op_name="jit(f)/transpose(jvp(Encoder))/dot_general"}
  %both-done = (f32[512]{0:T(128)}, bf16[1024]{0:T(256)(2,1)}) all-reduce-done(%both)
  %moved = f32[512]{0:T(128)} collective-permute(%b), channel_id=6, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
  ROOT %fusion.2 = bf16[256,768]{1,0:T(8,128)(2,1)} fusion(%get-tuple-element.0, %get-tuple-element.1, \
%get-tuple-element.2), kind=kCustom, calls=%done
}
"""

# The v5e compiler's output for a loop that writes a mask into a stack of masks, and for a loop that reads a mask from
# the stack.
MASKS = """\
HloModule jit_step, is_scheduled=true, num_partitions=1

%copy_fusion.1 (input.1: pred[10,32,128]) -> pred[10,32,128] {
  %input.1 = pred[10,32,128]{2,1,0:T(32,128)(4,1)} parameter(0)
  ROOT %copy.1 = pred[10,32,128]{2,1,0:T(8,128)(4,1)} copy(%input.1)
}

%copy_fusion.2 (input.2: pred[32,128]) -> pred[32,128] {
  %input.2 = pred[32,128]{1,0:T(32,128)(4,1)} parameter(0)
  ROOT %copy.2 = pred[32,128]{1,0:T(8,128)(4,1)} copy(%input.2)
}

%put (param_0: pred[10,32,128], param_1: s32[], param_2: pred[32,128]) -> pred[10,32,128] {
  %param_0 = pred[10,32,128]{2,1,0:T(32,128)(4,1)} parameter(0)
  %fusion.1 = pred[10,32,128]{2,1,0:T(8,128)(4,1)} fusion(%param_0), kind=kLoop, \
output_to_operand_aliasing={{}: (0, {})}, calls=%copy_fusion.1
  %param_2 = pred[32,128]{1,0:T(32,128)(4,1)} parameter(2)
  %fusion.2 = pred[32,128]{1,0:T(8,128)(4,1)} fusion(%param_2), kind=kLoop, \
output_to_operand_aliasing={{}: (0, {})}, calls=%copy_fusion.2
  %bitcast.1 = pred[1,32,128]{2,1,0:T(8,128)(4,1)} bitcast(%fusion.2)
  %param_1 = s32[]{:T(128)} parameter(1)
  %constant.1 = s32[]{:T(128)} constant(0)
  ROOT %dynamic-update-slice.1 = pred[10,32,128]{2,1,0:T(32,128)(4,1)} \
dynamic-update-slice(%fusion.1, %bitcast.1, %param_1, %constant.1, %constant.1)
}

%take (param_3: pred[10,32,128], param_4: s32[], param_5: f32[32,128]) -> f32[32,128] {
  %param_3 = pred[10,32,128]{2,1,0:T(32,128)(4,1)} parameter(0)
  %fusion.3 = pred[10,32,128]{2,1,0:T(8,128)(4,1)} fusion(%param_3), kind=kLoop, \
output_to_operand_aliasing={{}: (0, {})}, calls=%copy_fusion.1
  %param_4 = s32[]{:T(128)} parameter(1)
  %constant.2 = s32[]{:T(128)} constant(0)
  %dynamic-slice.1 = pred[1,32,128]{2,1,0:T(8,128)(4,1)} \
dynamic-slice(%fusion.3, %param_4, %constant.2, %constant.2), dynamic_slice_sizes={1,32,128}
  %bitcast.2 = pred[32,128]{1,0:T(8,128)(4,1)} bitcast(%dynamic-slice.1)
  %param_5 = f32[32,128]{1,0:T(8,128)} parameter(2)
  %constant.3 = f32[]{:T(128)} constant(0)
  %zeros = f32[32,128]{1,0:T(8,128)} broadcast(%constant.3), dimensions={}
  ROOT %select.1 = f32[32,128]{1,0:T(8,128)} select(%bitcast.2, %param_5, %zeros)
}

ENTRY %main (stack: pred[10,32,128], index: s32[], mask: pred[32,128], x: f32[32,128]) -> f32[32,128] {
  %stack = pred[10,32,128]{2,1,0:T(32,128)(4,1)} parameter(0)
  %index = s32[]{:T(128)S(6)} parameter(1)
  %mask = pred[32,128]{1,0:T(32,128)(4,1)} parameter(2)
  %x = f32[32,128]{1,0:T(8,128)} parameter(3)
  %masks = pred[10,32,128]{2,1,0:T(32,128)(4,1)} fusion(%stack, %index, %mask), kind=kLoop, calls=%put
  ROOT %dropped = f32[32,128]{1,0:T(8,128)} fusion(%masks, %index, %x), kind=kLoop, calls=%take
}
"""


def scan(start: int = 0, limit: str = "constant(3)", step: int = 1, direction: str = "LT") -> str:
    fields = {"START": str(start), "LIMIT": limit, "STEP": str(step), "DIRECTION": direction}
    text = SCAN
    for name, value in fields.items():
        text = text.replace(f"({name})", f"({value})").replace(f" {name}\n", f" {value}\n")
    return text.replace("=DIRECTION", f"={direction}")


def test_batched_product_is_counted_as_a_convolution_over_window_axes() -> None:
    work = count_work(ATTENTION_SCORES)
    assert work.flops == work.matmul_flops == 2 * 2 * 4 * 16 * 16 * 32


def test_bytes_include_padding_and_main_memory_is_counted_separately() -> None:
    # The last axis is padded to 128. It has 32 elements in the queries and keys, and 16 in the scores.
    query, scores = 4 * 2 * 16 * 4 * 128, 4 * 2 * 4 * 16 * 128
    work = count_work(ATTENTION_SCORES)
    assert work.bytes_accessed == 2 * query + 2 * query + scores
    assert work.hbm_bytes == work.bytes_accessed - 2 * query


def test_scan_counts_every_trip_and_only_slices_of_stacked_arrays() -> None:
    work = count_work(scan())
    assert work.matmul_flops == 3 * 2 * 8 * 128 * 128
    # The other operations update and compare the counter. There are three additions and four comparisons.
    assert work.flops - work.matmul_flops == 3 + 4
    weights, rows = 4 * 128 * 128, 4 * 8 * 128
    # The remaining bytes are copies of the counter, which is a scalar that is padded to a tile.
    assert 0 < work.bytes_accessed - 3 * (weights + 2 * rows + 2 * rows) < 20_000


def test_stacked_masks_that_change_tiling_are_counted_once() -> None:
    mask, x = 32 * 128, 4 * 32 * 128
    # The mask is read, written to the stack, and read from the stack. x is read, and an array of its size is written.
    assert count_work(MASKS).hbm_bytes == 3 * mask + 2 * x
    without_aliasing = MASKS.replace(
        "output_to_operand_aliasing={{}: (0, {})}, calls=%copy_fusion.1", "calls=%copy_fusion.1"
    )
    assert count_work(without_aliasing).hbm_bytes > 3 * 10 * mask


@settings(deadline=None)
@given(st.integers(-5, 5), st.integers(-5, 40), st.integers(1, 4))
def test_trip_count_of_increasing_counters(start: int, limit: int, step: int) -> None:
    work = count_work(scan(start, f"constant({limit})", step))
    assert work.matmul_flops == len(range(start, limit, step)) * 2 * 8 * 128 * 128


@settings(deadline=None)
@given(st.integers(-5, 40), st.integers(-5, 5), st.integers(1, 4))
def test_trip_count_of_decreasing_counters(start: int, limit: int, step: int) -> None:
    work = count_work(scan(start, f"constant({limit})", -step, "GT"))
    assert work.matmul_flops == len(range(start, limit, -step)) * 2 * 8 * 128 * 128


def test_known_trip_count_is_used() -> None:
    known = 'body=%body, backend_config={"known_trip_count":{"n":"7"}},'
    assert count_work(scan(limit="copy(%n)").replace("body=%body,", known)).matmul_flops == 7 * 2 * 8 * 128 * 128


@pytest.mark.parametrize("text", [scan(limit="copy(%n)"), scan(step=0)])
def test_loop_with_an_unknown_trip_count_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r'loop "while.30" \(jit\(loss\)/jvp\(\)/while\) .*how often'):
        count_work(text)


def test_text_that_is_not_a_program_is_refused() -> None:
    with pytest.raises(UserError, match="has no ENTRY"):
        count_work("HloModule nothing")


def test_collectives_count_once_and_sum_the_arrays_sent_together() -> None:
    assert count_work(COLLECTIVES).collectives == (
        Collective("all-gather", 2 * 256 * 768, 1, 16),
        Collective("reduce-scatter", 4 * 512, 1, 4),
        Collective("all-reduce", 4 * 512 + 2 * 1024, 1, 8),
        Collective("collective-permute", 4 * 512, 1, 4),
    )
    assert total_by_kind(count_work(COLLECTIVES).collectives)["all-gather"] == 2 * 256 * 768


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{}", 16),
        ("{{0,1},{2,3}}", 2),
        ("[2,8]<=[8,2]T(1,0)", 8),
        ("mesh['data'=4,'model'=4] {'data'}", 4),
        ("mesh['data'=4,'model'=4] {'data','model'}", 16),
        ("mesh['data'=8,'model'=2] {'data':(2)4}", 4),
    ],
)
def test_every_notation_of_device_groups_is_parsed(groups: str, size: int) -> None:
    text = COLLECTIVES.replace("[4,4]<=[16]", groups)
    assert [c.group_size for c in count_work(text).collectives if c.kind == "reduce-scatter"] == [size]


def test_prefetched_slice_counts_only_the_bytes_fetched() -> None:
    # The operand is in parentheses, as in the compiler's output.
    fetch = (
        "slice-start(%param.1), slice={[0:1], [0:16], [0:4], [0:32]}\n"
        "  %copy-done = f32[2,16,4,32]{3,2,1,0:T(4,128)S(1)} copy-done(%slice-start)"
    )
    array, part = "f32[2,16,4,32]{3,2,1,0:T(4,128)}", "f32[1,16,4,32]{3,2,1,0:T(4,128)S(1)}"
    lines = ATTENTION_SCORES.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("  %copy-start"))
    lines[begin] = f"  %slice-start = (({array}), {part}, s32[]{{:T(128)S(2)}}) {fetch}"
    del lines[begin + 2]
    whole, sliced = count_work(ATTENTION_SCORES), count_work("\n".join(lines))
    assert whole.bytes_accessed - sliced.bytes_accessed == 2 * 4 * 16 * 4 * 128
    assert whole.hbm_bytes - sliced.hbm_bytes == 4 * 16 * 4 * 128


def test_custom_kernel_is_reported_as_uncounted() -> None:
    text = ATTENTION_SCORES.replace("copy-done(%copy-start)", 'custom-call(%param.1), custom_call_target="my_kernel"')
    assert count_work(text).uncounted == ("my_kernel",)


def test_most_expensive_branch_is_counted() -> None:
    def branches(chosen: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.lax.cond(chosen, lambda: x @ y, lambda: x + y)

    matrix = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    compiled = jax.jit(branches).lower(jax.ShapeDtypeStruct((), bool), matrix, matrix).compile()
    assert count_work(compiled.as_text()).matmul_flops == 2 * 64**3


def shape_struct(*shape: int, dtype: Any = jnp.float32, sharding: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def dense_layers(kernels: tuple[jax.Array, jax.Array], x: jax.Array) -> jax.Array:
    return jnp.tanh(jax.nn.gelu(x @ kernels[0]) @ kernels[1]).sum()


def attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", query, key))
    return jnp.square(jnp.einsum("bhqk,bkhd->bqhd", weights, value)).sum()


def layer_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    centered = x - x.mean(-1, keepdims=True)
    return jnp.square(centered * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * scale[None]).sum()


def embedding(table: jax.Array, tokens: jax.Array) -> jax.Array:
    return jnp.tanh(table[tokens]).sum()


PROGRAMS = {
    "dense": (dense_layers, ((shape_struct(64, 128), shape_struct(128, 32)), shape_struct(48, 64)), 0),
    "attention": (attention, (shape_struct(4, 16, 2, 64),) * 3, (0, 1, 2)),
    "layer_norm": (layer_norm, (shape_struct(32, 96), shape_struct(96)), (0, 1)),
    "embedding": (embedding, (shape_struct(100, 16), shape_struct(4, 8, dtype=jnp.int32)), 0),
}


def agrees_with_xla(compiled: jax.stages.Compiled, work: Work) -> bool:
    return work.flops == pytest.approx(compiled.cost_analysis()["flops"], rel=0.005)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_without_loops_agree_with_xla(name: str) -> None:
    function, inputs, argnums = PROGRAMS[name]
    # The tests usually use older emitters, because they compile faster. The older emitters would turn the
    # embedding's scatter into a loop.
    options: dict[str, Any] = {"xla_cpu_use_fusion_emitters": True} if HAS_OLDER_EMITTERS else {}
    compiled = jax.jit(jax.grad(function, argnums)).lower(*inputs).compile(compiler_options=options)
    assert agrees_with_xla(compiled, read_program(compiled).work)


def test_unrolled_steps_agree_with_xla_and_scanned_steps_with_unrolled_steps(
    make_model: Callable[..., Model], compile_gradients: Callable[..., jax.stages.Compiled]
) -> None:
    unrolled, scanned = (
        compile_gradients(make_model(reads="tokens", scan_layers=scan_layers), "full") for scan_layers in (False, True)
    )
    unrolled_work, scanned_work = read_program(unrolled).work, read_program(scanned).work
    assert agrees_with_xla(unrolled, unrolled_work)
    # Only the matrix products are compared, because XLA repeats some elementwise operations in straight-line code.
    assert scanned_work.matmul_flops == unrolled_work.matmul_flops


def test_scan_has_the_same_counts_as_unrolled_layers() -> None:
    def loss(kernels: jax.Array, x: jax.Array, *, unroll: bool) -> jax.Array:
        return jax.lax.scan(lambda x, kernel: (jnp.tanh(x @ kernel), None), x, kernels, unroll=unroll)[0].sum()

    step = jax.jit(jax.grad(loss, (0, 1)), static_argnames="unroll")
    unrolled_work, scanned_work = (
        read_program(step.lower(shape_struct(5, 64, 64), shape_struct(32, 64), unroll=unroll).compile()).work
        for unroll in (True, False)
    )
    assert scanned_work.matmul_flops == unrolled_work.matmul_flops == 3 * 5 * 2 * 32 * 64 * 64
    assert scanned_work.flops == pytest.approx(unrolled_work.flops, rel=0.02)


def test_donated_arguments_count_once() -> None:
    state = shape_struct(256, 256)
    step = jax.jit(lambda state, x: state + x[None], donate_argnums=0)
    memory = read_program(step.lower(state, shape_struct(256)).compile()).memory
    size = 4 * 256 * 256
    assert (memory.arguments, memory.outputs, memory.aliased) == (size + 4 * 256, size, size)
    assert size < memory.peak < 1.5 * size
    assert size < memory.in_use <= memory.peak


def test_every_instruction_of_a_real_program_is_parsed() -> None:
    compiled = jax.jit(jax.grad(attention)).lower(*(shape_struct(4, 16, 2, 8),) * 3).compile()
    text = compiled.as_text()
    module = parse_module(text)
    parsed = sum(len(computation.instructions) for computation in module.computations.values())
    assert parsed == sum(" = " in line for line in text.splitlines() if line.startswith("  "))


@pytest.mark.usefixtures("needs_libtpu")
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_for_tpus_agree_with_xla(name: str) -> None:
    function, inputs, argnums = PROGRAMS[name]
    here = NamedSharding(tpu_mesh("v5e:2x2"), PartitionSpec())
    inputs = jax.tree.map(lambda x: shape_struct(*x.shape, dtype=x.dtype, sharding=here), inputs)
    compiled = jax.jit(jax.grad(function, argnums)).lower(*inputs).compile()
    assert agrees_with_xla(compiled, read_program(compiled).work)


@pytest.mark.usefixtures("needs_libtpu")
def test_tpu_scan_has_the_same_counts_as_unrolled_layers_and_reduces_gradients() -> None:
    mesh = tpu_mesh("v5e:2x2")
    kernels = shape_struct(3, 128, 128, sharding=NamedSharding(mesh, PartitionSpec()))
    x = shape_struct(32, 128, sharding=NamedSharding(mesh, PartitionSpec("data")))

    def loss(kernels: jax.Array, x: jax.Array, *, unroll: bool) -> jax.Array:
        return jax.lax.scan(lambda x, kernel: (jnp.tanh(x @ kernel), None), x, kernels, unroll=unroll)[0].sum()

    programs = [
        read_program(jax.jit(jax.grad(loss), static_argnames="unroll").lower(kernels, x, unroll=unroll).compile())
        for unroll in (True, False)
    ]
    # With 8 rows per chip, the forward pass has 3 products. The backward pass has 5 products, or 6 if the gradient with
    # respect to x is computed, although it is not needed.
    assert [program.work.matmul_flops for program in programs] in (
        [8 * 2 * 8 * 128 * 128, 9 * 2 * 8 * 128 * 128],
        [9 * 2 * 8 * 128 * 128] * 2,
    )
    for program in programs:
        assert total_by_kind(program.work.collectives) == {"all-reduce": 4 * 3 * 128 * 128}
        assert {collective.group_size for collective in program.work.collectives} == {4}


def tpu_mesh(name: str) -> Mesh:
    return Mesh(np.array(get_topology(parse_topology(name)).devices), ("data",))


@pytest.mark.usefixtures("needs_libtpu")
def test_random_bits_of_dropout_in_a_loop_are_drawn_once() -> None:
    here = NamedSharding(tpu_mesh("v5e:2x2"), PartitionSpec())
    keys = jax.ShapeDtypeStruct((3,), jax.eval_shape(jax.random.key, 0).dtype, sharding=here)

    def loss(x: jax.Array, keys: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, key: (jnp.sin(dropout(key, x, 0.1)), None), x, keys)[0].sum()

    text = jax.jit(jax.grad(loss)).lower(shape_struct(256, 384, sharding=here), keys).compile().as_text()
    # The generator has 20 rounds with one xor each. Another xor combines the two words of a draw.
    assert len(re.findall(r"u32\[(?:1,)?256,384\]\S* xor\(", text)) == 21
