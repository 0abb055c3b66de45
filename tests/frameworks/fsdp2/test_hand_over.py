"""Hooks of FSDP2 in the order in which they run: outermost unit around its layers, backward in reverse."""

from __future__ import annotations

from typing import Any

import small

LAYERS = [f"model.layers.{i}" for i in range(4)]


def hooks(**given: Any) -> list[str]:
    return small.marks(small.program_of("fsdp2", {"dp_shard": 2}, model="llama-tiny", **given))


def passes(found: list[str], hook: str) -> list[str]:
    return [mark.split(":")[2] for mark in found if mark.startswith(f"{hook}:")]


def test_forward() -> None:
    found = hooks()
    forward = found[:found.index("bwd:begin")]
    assert passes(forward, "fwd:pre_forward_begin") == ["root", *LAYERS]
    assert passes(forward, "fwd:post_forward_end") == [*LAYERS, "root"]
    layer = [mark for mark in forward if mark.endswith("layers.2")]
    assert layer == [f"fwd:{hook}:model.layers.2" for hook in (
        "pre_forward_begin", "pre_forward_end", "post_forward_begin", "post_forward_end")]


def test_backward() -> None:
    found = hooks()
    assert passes(found, "bwd:pre_backward_begin") == ["root", *reversed(LAYERS)]
    assert passes(found, "bwd:post_backward_end") == [*reversed(LAYERS), "root"]
    assert next(mark for mark in found if mark.startswith("bwd:post_backward_begin")).endswith("grads=1")


def test_every_microbatch_passes_the_same_hooks() -> None:
    once, thrice = hooks(), hooks(microbatches=3)
    step = [mark for mark in once if mark.startswith(("fwd", "bwd"))]
    assert [mark for mark in thrice if mark.startswith(("fwd", "bwd"))] == 3 * step
    assert thrice[-3:] == once[-3:] == ["opt:begin", "opt:end", "step:end"]


def test_experts_have_hooks_inside_their_layer_and_again_in_a_replay() -> None:
    program = small.program_of("fsdp2", {"dp_shard": 4, "ep": 2}, recompute="full")
    found = small.marks(program)
    layer, inner = "model.layers.1", "model.layers.1._checkpoint_wrapped_module.mixer.experts"
    order = [found.index(f"{hook}:{name}") for hook, name in (
        ("fwd:pre_forward_begin", layer), ("fwd:pre_forward_begin", inner), ("fwd:post_forward_end", inner),
        ("fwd:post_forward_end", layer), ("bwd:pre_backward_begin", layer), ("recompute:pre_forward_begin", inner),
        ("bwd:post_backward_end", inner), ("bwd:post_backward_end", layer))]
    assert order == sorted(order)
