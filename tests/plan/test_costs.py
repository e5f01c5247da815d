"""Everything is counted as often as it is executed, and products as XLA counts them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from programs import AHEAD, LOOP

from devices import first
from tpulm import config
from tpulm.plan import analysis, costs, hlo
from tpulm.special_tokens import SpecialTokens
from tpulm.train.program import PretrainingProgram

PRODUCT = 2 * 256 * 64 * 128
SLICE = 256 * 128 * 2  # bytes of what the loop keeps in a round


def test_a_loops_body_counts_for_each_round():
    counted, write = costs.count(hlo.parse(LOOP), devices=8), "forward: layers (kept between passes)"
    assert (counted.flops, counted.cycles, counted.unknown_loops) == (12 * PRODUCT, 12 * 1300, 0)
    assert counted.collectives == [costs.Collective("all-reduce", 4096, 8, 12, "jit(step)/jvp(layers)/while/body/psum")]
    assert counted.bytes_by_part[write] == 12 * (2 * SLICE + 4)  # of what is written in place the slice, and the counter
    assert counted.cycles_by_part == {"forward: layers/feed_forward": 12_000, write: 3_600}
    (kept, *_) = analysis.largest(hlo.parse(LOOP), 5)
    assert kept == analysis.Buffer("bf16[12,256,128]", 12 * SLICE, "forward: layers/feed_forward", stacked=True)
    unmodelled = LOOP.replace('"300"}', '"300","cost_model_type":"COST_MODEL_TYPE_INVALID"}')
    assert costs.count(hlo.parse(unmodelled), 8, 100).cycles == 12 * 1300, "no more than estimated"


def test_a_loop_without_a_readable_bound_counts_once_and_is_told():
    counted = costs.count(hlo.parse(LOOP.replace("direction=LT", "direction=NE")), devices=8)
    assert (counted.unknown_loops, counted.flops) == (1, PRODUCT)


def test_what_is_copied_beside_other_work_counts_as_bytes_alone():
    counted = costs.count(hlo.parse(AHEAD), devices=1)
    piece = 24 * 256 * 2  # read from HBM by the one copy, written to it by the other
    assert (counted.bytes, counted.unestimated_bytes, counted.cycles) == (2 * piece, 0, 0)


def test_the_devices_of_a_collective():
    sizes = {
        "replica_groups=[2,4]<=[8]": 4,
        "replica_groups={{0,1},{2,3}}": 2,
        "replica_groups=mesh['axis_0'=2,'axis_1'=1,'axis_2'=4] {'axis_0','axis_2'}, x": 8,
        "channel_id=3": 8,
    }
    assert {attributes: costs.group_size(attributes, devices=8) for attributes in sizes} == sizes


def test_products_count_as_xla_counts_them():
    """Plain and batched products, which XLA's cost analysis counts right where there are no loops."""

    def function(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
        return jnp.einsum("bij,bjk->bik", c, jnp.broadcast_to(a @ b, (3, 16, 8)))

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((16, 32), (32, 8), (3, 4, 16))]
    compiled = jax.jit(function).lower(*shapes).compile()
    counted = costs.count(hlo.parse(compiled.as_text() or ""), devices=1)
    assert counted.flops == 2 * 16 * 32 * 8 + 2 * 3 * 4 * 16 * 8


def test_convolutions_count_what_is_no_padding():
    """The TPU compiler writes batched products, of 32 x 12 heads here, as convolutions whose windows meet one element each."""
    scores = "window={size=32x12 stride=31x11 lhs_dilate=32x12}, dim_labels=01bf_01oi->01bf"
    mixed = "window={size=32x12 stride=32x12 pad=31_31x11_11 lhs_dilate=31x11 rhs_reversal=1x1}, dim_labels=01fb_01oi->01fb"
    for result, attributes, left, right, products in (
        ("f32[32,12,128,128]{2,3,1,0}", scores, "bf16[32,12,128,64]", "bf16[32,12,128,64]", 32 * 12 * 128 * 64 * 128),
        ("bf16[32,12,128,64]{2,3,1,0}", mixed, "bf16[32,12,128,128]", "bf16[32,12,64,128]", 32 * 12 * 128 * 128 * 64),
        ("bf16[8,4]{1,0}", "dim_labels=bf_io->bf", "bf16[8,16]", "bf16[16,4]", 8 * 16 * 4),
    ):
        text = f"ENTRY %main (a: x) -> y {{\n  %it = {result} convolution(%a, %b), {attributes}\n}}"
        instruction = hlo.parse(text).entry.instructions["it"]
        inputs, kernel = (next(hlo.arrays(operand)) for operand in (left, right))
        assert costs.convolution_flops(instruction, inputs, kernel) == 2 * products, result


def test_splitting_parameters_over_devices_sends_parameters_and_not_activations():
    sizes = {"model.num_layers": 2, "model.hidden_size": 64, "model.num_heads": 8, "model.intermediate_size": 128}
    more = {"data.sequence_length": 64, "train.batch_size": 256, "hardware.fsdp": 2}
    more |= {"hardware.unroll": False, "model.dropout": 0.0, "model.attention_dropout": 0.0}
    run = config.load("bert-tiny", sizes | more)
    program = PretrainingProgram(run, vocab_size=256, special=SpecialTokens(0, 1, 2, 3, 4), devices=first(2))
    counted = costs.count(hlo.parse(program.lowered_step.compile().as_text() or ""), devices=2)
    sent = sum(one.bytes * one.times for one in counted.collectives)
    parameters = 4 * program.num_parameters
    activations = run.train.batch_size * run.data.sequence_length * run.model.hidden_size * 4  # of one place in one layer
    assert activations > 10 * parameters / run.model.num_layers
    assert sent < 8 * parameters
