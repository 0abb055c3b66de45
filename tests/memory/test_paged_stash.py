"""Pages of the paged stash: as many as Megatron-LM's own code allocates, and short where its own are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simcore.errors import NotYet
from simcore.memory.paged_stash import layers_at_once, sized
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.operators.megatron.stash import Paged
from simcore.pipeline.schedule import Schedule

STEPS = json.loads((Path(__file__).parents[1] / "truth/stash/paged_stash.json").read_text(encoding="utf-8"))
TENSORS = (Paged("uint8", 64, 1), Paged("uint8", 64, 1, 32), Paged("bfloat16", 64, 2), Paged("float32", 1, 4),
           Paged("float8_e4m3fn", 32, 1), Paged("float8_e8m0fnu", 32, 1, 32))
"""Tensors of the probe's layers."""


@pytest.mark.parametrize("step", STEPS, ids=lambda step: str(step["case"]))
def test_pages_are_those_that_megatron_allocates(step: dict[str, Any]) -> None:
    case = step["case"]
    name = "1f1b" if case["chunks"] == 1 else "interleaved"
    schedule = Schedule(name, case["stages"], case["chunks"], case["stages"])
    layers = layers_at_once(schedule, case["stage"], case["microbatches"], [case["layers"]] * case["chunks"])
    options = MegatronOptions(moe_paged_stash=True, moe_paged_stash_buffer_size_factor_cuda=case["cuda"])
    balanced = int(case["rows"] * case["capacity"]) // case["capacity"]
    if step["overflow"]:
        with pytest.raises(NotYet, match="the step runs again"):
            sized(TENSORS, layers, (int(balanced), case["rows"]), options)
        return
    made = sized(TENSORS, layers, (int(balanced), case["rows"]), options)
    assert {f"{one.dtype} x {one.width}": one.pages for one in made} == step["buffers"]


def test_what_finds_no_page_on_the_device_is_told() -> None:
    """Four layers of 64 rows, of which three go to pages, and pages of 1.05 for two: one layer's are on the host."""
    layers = layers_at_once(Schedule(), 0, 1, [4])
    assert layers == (4, 3)
    options = MegatronOptions(moe_paged_stash=True, moe_paged_stash_buffer_size_factor_cuda=0.5,
                              moe_paged_stash_buffer_size_factor_cpu=0.5)
    with pytest.raises(NotYet, match=r"bf16 x 8 are short by 1\.00 KiB: the rest goes to pages on the host"):
        sized((Paged("bf16", 8, 2),), layers, (64, 64), options)


def test_a_list_of_free_pages_and_its_copy_name_the_hosts_pages_too() -> None:
    options = MegatronOptions(moe_paged_stash=True, moe_paged_stash_buffer_size_factor_cuda=2.0,
                              moe_paged_stash_buffer_size_factor_cpu=1.0)
    made, = sized((Paged("bf16", 8, 2),), layers_at_once(Schedule(), 0, 1, [3]), (640, 640), options)
    assert made.num_bytes == 60 * 64 * 8 * 2 + 2 * 8 * (60 + 30)
