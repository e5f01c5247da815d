from __future__ import annotations

import pytest

from tpulm.plan.hlo import part


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        ("jit(step)/jvp(layers)/while/body/closed_call/feed_forward/dot_general", "forward: layers/feed_forward"),
        (
            "jit(step)/transpose(jvp(layers))/while/body/closed_call/checkpoint/rematted_computation/attention/mix/exp",
            "backward: layers/attention/mix",
        ),
        (
            "jit(step)/jvp(layers)/while/body/closed_call/attention/mix/bhlk,bhmk->bhlm/dot_general",
            "forward: layers/attention/mix",
        ),
        (
            "jit(step)/transpose(jvp(discriminator))/layers/while/body/jit(dynamic_index_in_dim)/dynamic_slice",
            "backward: discriminator/layers (kept between passes)",
        ),
        ("jit(step)/optimizer/add", "optimizer"),
        ("jit(step)/transpose(jvp(masked_head))/reshape;jit(step)/jvp(gather)/reshape", "backward: masked_head"),
        ("", "other"),
    ],
)
def test_where_an_instruction_comes_from(scope: str, words: str):
    assert part(scope) == words
