"""Bytes that a rank keeps on the host during a step, against sizes by hand."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.placement.on_host import host_bytes, waiting_bytes

LLAMA: dict[str, Any] = {"model": "llama-tiny", "recompute": "full"}


@pytest.mark.parametrize("tokens", [0, 1, 64])
def test_every_layers_input_waits_for_its_replay(tokens: int) -> None:
    plan = small.plan_of("fsdp2", {"dp_shard": 2}, offload={"activations": "host"}, **LLAMA)
    layers, hidden = plan.graph.num_blocks, plan.graph.architecture.hidden
    assert waiting_bytes(plan, tokens) == host_bytes(plan, tokens) == layers * tokens * hidden * 2


def test_what_rests_there_is_added() -> None:
    parts = dict.fromkeys(("params", "gradients", "optimizer"), "host")
    resting, both = (small.plan_of("fsdp2", {"dp_shard": 2}, offload=given, **LLAMA)
                     for given in (parts, parts | {"activations": "host"}))
    assert waiting_bytes(resting, 64) == 0
    assert 0 < host_bytes(resting, 64) == host_bytes(both, 64) - waiting_bytes(both, 64)
