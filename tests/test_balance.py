"""Bytes that come go: no owner below zero, and a step ends with what it began with, whatever is switched on."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import small
from simcore.memory.ledger import balance, running
from simcore.program.outline import Phase

LORA: dict[str, Any] = {"method": "lora", "lora": {"rank": 8}}
MESHES = {
    "fsdp2": [{"dp_shard": 1}, {"dp_shard": 3}, {"dp_replicate": 2, "dp_shard": 4, "ep": 4}],
    "automodel": [{"dp_shard": 3}, {"dp_shard": 4, "ep": 2}, {"dp_shard": 2, "ep": 2},
                  {"pp": 2, "dp_shard": 4, "ep": 2}],
    "megatron": [{"dp_shard": 3}, {"dp_shard": 4, "ep": 2, "tp": 2, "etp": 1}, {"pp": 5, "dp_shard": 2, "ep": 2}],
    "ddp": [{}, {"dp_replicate": 3}],
    "zero0": [{}, {"dp_replicate": 3}],
    "zero1": [{"dp_shard": 1}, {"dp_shard": 3}], "zero2": [{"dp_shard": 3}],
    "zero3": [{"dp_shard": 1}, {"dp_shard": 3}],
    "fsdp1": [{}, {"dp_shard": 3}, {"dp_shard": 2, "dp_replicate": 2}],
}
CASES = [(name, mesh, recompute, method) for name, meshes in MESHES.items()
         for mesh, recompute, method in product(meshes, ("none", "full"), ({}, LORA))]


@pytest.mark.parametrize(("name", "mesh", "recompute", "method"), CASES)
@pytest.mark.parametrize("model", [small.TINY, "llama-tiny"])
def test_a_step_ends_with_what_it_began_with(name: str, mesh: dict[str, int], recompute: str, method: dict[str, Any],
                                             model: str) -> None:
    if model == "llama-tiny":  # no experts, four layers, 1000 words
        mesh = {**mesh, "ep": 1} | ({"pp": 2} if "pp" in mesh else {})
    count = mesh.get("pp", 1) + 2
    size = mesh.get("dp_replicate", 1) * mesh.get("dp_shard", 1) * mesh.get("tp", 1)
    if name == "fsdp1":  # it takes a layer whose parameters are not all trained in no other way
        method = {**method, "options": {"use_orig_params": True}}
    for stage in range(mesh.get("pp", 1)):
        program = small.program_of(name, mesh, rank=stage * size, microbatches=count, recompute=recompute, model=model,
                                   **method)
        program.check()
        total = running(program)
        built = int(total[program.phase == Phase.BUILD].max())  # outputs of the last step are freed as this one begins
        assert int(total[-1]) == built > 0
        assert balance(program).end_bytes == built
        assert balance(program).peak_bytes == int(total.max()) > built


@pytest.mark.parametrize("options", [
    {"reshard_after_forward": False}, {"reshard_after_forward": 2}, {"sync_gradients": "every"}, {"prefetch": 2},
    {"experts": "ignored"}, {"set_last_reshard": False}, {"wrap": "separate_embedding_head"}])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_options_of_fsdp2_keep_the_balance(options: dict[str, Any], recompute: str) -> None:
    program = small.program_of("fsdp2", {"dp_shard": 4, "ep": 2}, microbatches=3, options=options, recompute=recompute)
    program.check()
    total = running(program)
    assert total[-1] == total[np.flatnonzero(program.phase == Phase.BUILD)[-1]]
