"""A program's text is read as XLA means it."""

from __future__ import annotations

import pytest

from tpulm.plan import hlo


def test_arrays_are_as_large_as_their_tiles_make_them():
    for shape, size in (
        ("f32[2,3]{1,0}", 24),
        ("f32[768,2]{0,1:T(2,128)}", 768 * 2 * 4),  # 768 lies along the 128 of the tile
        ("f32[768,2]{1,0:T(8,128)}", 768 * 128 * 4),  # 2 does, and is filled up
        ("bf16[5,3]{1,0:T(8,128)(2,1)}", 8 * 128 * 2),
        ("pred[7]{0:T(1024)}", 1024),
        ("s32[]{:T(256)}", 4),
        ("u4[16]{0}", 8),
        ("f8e4m3fn[16]{0}", 16),
        ("token[]", 0),
    ):
        (array,) = hlo.arrays(shape)
        assert array.bytes == size, shape
    on_chip, in_hbm = hlo.arrays("(f32[8]{0:T(1024)S(1)}, f32[8]{0:T(1024)})")
    assert (on_chip.memory_space, in_hbm.memory_space) == (1, 0)
    with pytest.raises(ValueError, match="ENTRY"):
        hlo.parse("HloModule nothing")


def test_where_an_instruction_comes_from():
    layers, recomputed = "while/body/closed_call", "closed_call/checkpoint/rematted_computation"
    for scope, words in (
        (f"jit(step)/jvp(layers)/{layers}/feed_forward/dot_general", "forward: layers/feed_forward"),
        (f"jit(step)/transpose(jvp(layers))/while/body/{recomputed}/attention/mix/exp", "backward: layers/attention/mix"),
        (f"jit(step)/jvp(layers)/{layers}/attention/mix/bhlk,bhmk->bhlm/dot_general", "forward: layers/attention/mix"),
        ("jit(step)/transpose(jvp(discriminator))/layers/while/body/jit(dynamic_index_in_dim)/dynamic_slice",
         "backward: discriminator/layers (kept between passes)"),
        ("jit(step)/optimizer/add", "optimizer"),
        ("jit(step)/transpose(jvp(masked_head))/reshape;jit(step)/jvp(gather)/reshape", "backward: masked_head"),
        ("", "other"),
    ):  # fmt: skip
        assert hlo.part(scope) == words


def test_a_kernels_metadata_may_have_several_lines():
    kernel = '  %a = f32[8]{0} custom-call(), frontend_attributes={kernel_metadata={\n "x": 1\n}}, metadata={}'
    text = f"ENTRY %main (a: x) -> y {{\n{kernel}\n  ROOT %b = f32[8]{{0}} negate(%a)\n}}\n"
    assert list(hlo.parse(text).entry.instructions) == ["a", "b"]
