"""Where in the model an instruction comes from, in words: XLA keeps JAX's nested names, transformations included."""

from __future__ import annotations

import re

_WRAPPED = re.compile(r"^(?:jvp|transpose|vmap|checkpoint|rematted_computation|remat\d*)\((.*)\)$")
_PLUMBING = re.compile(r"^(?:jit\(.*\)|while|body|cond|closed_call|checkpoint|rematted_computation|shard_map|pjit|)$")
_KEPT = re.compile(r"dynamic_(?:update_)?(?:slice|index_in_dim)")


def part(scope: str) -> str:
    """ "backward: layers/feed_forward" for "jit(step)/transpose(jvp(layers))/while/body/closed_call/feed_forward/dot_general".

    What a loop over layers writes for its backward pass, or reads there, is "… (kept between passes)".
    """
    direction = "backward: " if "transpose(" in scope else "forward: " if "jvp(" in scope else ""
    names: list[str] = []
    for name in scope.split(";")[0].split("/"):
        while wrapped := _WRAPPED.match(name):
            name = wrapped[1]
        if not _PLUMBING.match(name) and "->" not in name:  # an einsum's subscripts name the operation once more
            names.append(name)
    inner = names[:-1] if len(names) > 1 else names  # the last one is the operation
    kept = " (kept between passes)" if _KEPT.search(scope) and "while" in scope else ""
    return f"{direction}{'/'.join(name for name in inner if not _KEPT.search(name)) or 'other'}{kept}"
