"""Programs' texts written by hand: figures follow from the shapes in them."""

import re
import textwrap

import pytest

from hacpo_jax.parallel.hlo import Collective, Program, Shape, parse


def program(text: str, unknown_trips: int = 1) -> Program:
    return parse(textwrap.dedent(text), unknown_trips)


LOOP = """\
    HloModule jit_f

    %body (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
      %p = (s32[], f32[4,8]{1,0}) parameter(0)
      %x = f32[4,8]{1,0} get-tuple-element(%p), index=1
      %w = f32[8,8]{1,0} constant({...})
      %dot.1 = f32[4,8]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      %i = s32[] get-tuple-element(%p), index=0
      ROOT %t = (s32[], f32[4,8]{1,0}) tuple(%i, %dot.1)
    }

    %until (q: (s32[], f32[4,8])) -> pred[] {
      %q = (s32[], f32[4,8]{1,0}) parameter(0)
      %j = s32[]{:T(128)} get-tuple-element(%q), index=0
      %n = s32[]{:T(128)} constant(5)
      ROOT %lt = pred[]{:T(512)} compare(%j, %n), direction=LT, metadata={op_name="lt"}
    }

    ENTRY %main (a: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
      %a = (s32[], f32[4,8]{1,0}) parameter(0)
      ROOT %loop = (s32[], f32[4,8]{1,0}) while(%a), condition=%until, body=%body
    }
    """
ONE_DOT = 2 * 4 * 8 * 8


def test_a_loop_counts_as_often_as_its_condition_says():
    assert program(LOOP, unknown_trips=3).flops() == 5 * ONE_DOT


@pytest.mark.parametrize(("first", "step", "turns"), [(0, 1, 8), (0, 2, 4), (1, 2, 4), (3, 1, 5)])
def test_a_loop_that_is_unrolled_turns_less_often(first, step, turns):
    text = """\
    %body (p: (u32[], f32[4,8], u32[])) -> (u32[], f32[4,8], u32[]) {
      %p = (u32[], f32[4,8]{1,0}, u32[]) parameter(0)
      %i = u32[] get-tuple-element(%p), index=0
      %x = f32[4,8]{1,0} get-tuple-element(%p), index=1
      %step = u32[] get-tuple-element(%p), index=2
      %w = f32[8,8]{1,0} constant({...})
      %dot.1 = f32[4,8]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      %copy.1 = u32[] copy(%i)
      %next = u32[] add(%copy.1, %step)
      ROOT %t = (u32[], f32[4,8]{1,0}, u32[]) tuple(%next, %dot.1, %step)
    }

    %until (q: (u32[], f32[4,8], u32[])) -> pred[] {
      %q = (u32[], f32[4,8]{1,0}, u32[]) parameter(0)
      %j = u32[] get-tuple-element(%q), index=0
      %n = u32[] constant(8)
      ROOT %lt = pred[] compare(%j, %n), direction=LT
    }

    ENTRY %main (a: f32[4,8]) -> f32[4,8] {
      %a = f32[4,8]{1,0} parameter(0)
      %first = u32[] constant(FIRST)
      %by = u32[] constant(STEP)
      %start = (u32[], f32[4,8]{1,0}, u32[]) tuple(%first, %a, %by)
      %loop = (u32[], f32[4,8]{1,0}, u32[]) while(%start), condition=%until, body=%body
      ROOT %out = f32[4,8]{1,0} get-tuple-element(%loop), index=1
    }
    """
    text = text.replace("FIRST", str(first)).replace("STEP", str(step))
    assert program(text).flops() == turns * ONE_DOT


def test_a_trip_count_of_the_compiler_is_taken():
    known = 'body=%body, backend_config={"known_trip_count":{"n":"7"}}'
    assert program(LOOP.replace("body=%body", known)).flops() == 7 * ONE_DOT


def test_a_loop_that_may_stop_early_turns_as_often_as_one_is_told():
    both = "%stop = pred[] parameter(1)\n      ROOT %both = pred[] and(%lt, %stop)"
    text = LOOP.replace("ROOT %lt", "%lt").replace(
        "    }\n\n    ENTRY", f"      {both}\n    }}\n\n    ENTRY"
    )
    assert program(text, unknown_trips=11).flops() == 11 * ONE_DOT


def test_loops_within_loops_multiply():
    text = """\
    %inner (p: f32[2,2]) -> f32[2,2] {
      %p = f32[2,2] parameter(0)
      ROOT %d = f32[2,2] dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    }

    %outer (p.1: f32[2,2]) -> f32[2,2] {
      %p.1 = f32[2,2] parameter(0)
      ROOT %w.1 = f32[2,2] while(%p.1), condition=%c, body=%inner, TURNS(3)
    }

    ENTRY %main (a: f32[2,2]) -> f32[2,2] {
      %a = f32[2,2] parameter(0)
      ROOT %w.2 = f32[2,2] while(%a), condition=%c, body=%outer, TURNS(4)
    }
    """
    told = r'backend_config={"known_trip_count":{"n":"\1"},"known_init_step":{"init":"0"}}'
    text = re.sub(r"TURNS\((\d)\)", told, text)
    assert program(text).flops() == 3 * 4 * 2 * 2 * 2 * 2


def entry(*lines: str) -> Program:
    rows = "\n".join(f"  {line}" for line in lines)
    return parse(f"ENTRY %main (a: f32[1]) -> f32[1] {{\n{rows}\n}}\n")


def test_a_product_with_batch_axes():
    found = entry(
        "%a = bf16[3,4,5]{2,1,0} parameter(0)",
        "%b = bf16[3,5,6]{2,1,0} parameter(1)",
        "ROOT %d = bf16[3,4,6]{2,1,0} dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}, "
        "rhs_batch_dims={0}, rhs_contracting_dims={1}",
    )
    assert found.flops() == 2 * 3 * 4 * 6 * 5


def test_a_product_as_a_convolution():
    found = entry(
        "%a = bf16[16,64]{1,0:T(8,128)(2,1)} parameter(0)",
        "%b = bf16[64,32]{1,0:T(8,128)(2,1)} parameter(1)",
        "ROOT %c = bf16[16,32]{1,0} convolution(%a, %b), dim_labels=bf_io->bf",
    )
    assert found.flops() == 2 * 16 * 32 * 64


def test_a_spatial_axis_that_stands_for_a_batch():
    # 16 rows of [22, 24] times [24, 30], each with its own: of 16 taps one is not padding.
    found = entry(
        "%a = f32[16,22,24]{2,1,0} parameter(0)",
        "%b = f32[16,24,30]{2,1,0} parameter(1)",
        "ROOT %c = f32[16,22,30]{2,1,0} convolution(%a, %b), "
        "window={size=16 stride=15 lhs_dilate=16}, dim_labels=0bf_0io->0bf",
    )
    assert found.flops() == 2 * 16 * 22 * 30 * 24


def test_taps_on_padding_do_not_count():
    # 3 taps at 4 places, those outside of either end left out.
    found = entry(
        "%a = f32[1,4,2]{2,1,0} parameter(0)",
        "%b = f32[3,2,5]{2,1,0} parameter(1)",
        "ROOT %c = f32[1,4,5]{2,1,0} convolution(%a, %b), window={size=3 pad=1_1}, "
        "dim_labels=b0f_0io->b0f",
    )
    assert found.flops() == 2 * (3 * 4 - 2) * 2 * 5


@pytest.mark.parametrize(("kernel", "products"), [("fwd", 2), ("dkv", 4), ("dq", 3)])
def test_kernels_of_splash_attention(kernel, products):
    found = entry(
        "%m = s8[1,2,2]{2,1,0} parameter(0)",
        "%q = bf16[3,8,256,16]{3,2,1,0} parameter(1)",
        "%k = bf16[3,2,256,16]{3,2,1,0} parameter(2)",
        "%v = bf16[3,2,256,16]{3,2,1,0} parameter(3)",
        f"%splash_mha_{kernel}_segmented.1 = (f32[4,256,16]{{2,1,0}}, bf16[3,8,256,16]{{3,2,1,0}}) "
        'custom-call(%m, %q, %k, %v), custom_call_target="tpu_custom_call"',
    )
    # Pairs of tokens that a causal mask leaves, in 3 rows with 8 heads of 16 each.
    pairs = sum(range(1, 257))
    assert found.flops() == products * 2 * pairs * 3 * 8 * 16


def test_other_kernels_count_as_nothing():
    found = entry(
        "%a = f32[8] parameter(0)",
        'ROOT %k = f32[8] custom-call(%a), custom_call_target="tpu_custom_call"',
    )
    assert found.flops() == 0


@pytest.mark.parametrize(
    ("line", "expected", "moved"),
    [
        (
            "%g = f32[8,4]{1,0} all-gather(%x), channel_id=1, replica_groups=[2,4]<=[8], "
            "dimensions={0}",
            Collective("all-gather", 1, 4, (Shape("f32", (8, 4)),)),
            8 * 4 * 4 * 3 / 4,
        ),
        (
            "%r = bf16[2,4]{1,0} all-reduce(%y), replica_groups={{0,1},{2,3}}, to_apply=%add",
            Collective("all-reduce", 1, 2, (Shape("bf16", (2, 4)),)),
            2 * 2 * 4 * 2 / 2,
        ),
        (
            "%s = f32[2,4]{1,0} reduce-scatter(%z), channel_id=3, "
            "replica_groups=mesh['x'=4,'y'=2] {'x'}, to_apply=%add",
            Collective("reduce-scatter", 1, 4, (Shape("f32", (8, 4)),)),
            8 * 4 * 4 * 3 / 4,
        ),
        (
            "%s = f32[2,4]{1,0} all-to-all(%x), replica_groups=mesh['a'=2,'b'=16], "
            "device_ids=([2,16]T(1,0)) {'b'}, dimensions={0}",
            Collective("all-to-all", 1, 16, (Shape("f32", (2, 4)),)),
            2 * 4 * 4 * 15 / 16,
        ),
        (
            "%s = f32[2,4]{1,0} all-to-all(%x), replica_groups=mesh['x'=8,'y'=2] {'x':(1)4,'y'}",
            Collective("all-to-all", 1, 8, (Shape("f32", (2, 4)),)),
            2 * 4 * 4 * 7 / 8,
        ),
        (
            "%p = (f32[2,4]{1,0}, f32[2,4]{1,0}, u32[]) collective-permute-start(%x), "
            "source_target_pairs={{0,1},{1,0}}",
            Collective("collective-permute", 1, 1, (Shape("f32", (2, 4)),)),
            2 * 4 * 4,
        ),
        (
            "%q = (f32[2,4]{1,0}, f32[8,4]{1,0}) all-gather-start(%x), replica_groups={{0,1,2,3}}",
            Collective("all-gather", 1, 4, (Shape("f32", (8, 4)),)),
            8 * 4 * 4 * 3 / 4,
        ),
    ],
)
def test_collectives(line, expected, moved):
    found = entry(
        "%x = f32[2,4]{1,0:T(8,128)} parameter(0)",
        "%y = bf16[2,4]{1,0} parameter(1)",
        "%z = f32[8,4]{1,0} parameter(2)",
        line,
    ).collectives()
    assert found == [expected]
    assert found[0].moved == moved


def test_parts_of_one_exchange_count_once():
    start = "%g1 = f32[8,4] all-gather(%x), channel_id=7, replica_groups={{0,1,2,3}}"
    end = "%g2 = f32[8,4] all-gather(%x), channel_id=7, replica_groups={{0,1,2,3}}"
    other = "%g3 = f32[8,4] all-gather(%x), channel_id=8, replica_groups={{0,1,2,3}}"
    found = entry("%x = f32[2,4] parameter(0)", start, end, other).collectives()
    assert len(found) == 2


def test_several_arrays_in_one_exchange():
    found = entry(
        "%x = f32[2,4] parameter(0)",
        "%y = f32[3] parameter(1)",
        "%r = (f32[2,4]{1,0}, /*index=1*/f32[3]{0}) all-reduce(%x, %y), replica_groups={{0,1}}",
    ).collectives()
    assert [one.whole for one in found] == [(Shape("f32", (2, 4)), Shape("f32", (3,)))]
    assert found[0].moved == 2 * (8 + 3) * 4 / 2


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("f32", 40), ("bf16", 20), ("pred", 10), ("s4", 5), ("u64", 80), ("token", 0)],
)
def test_bytes_of_ten_elements(dtype, size):
    assert Shape(dtype, (2, 5)).bytes == size
