"""Whose attention torch runs: by the GPU where a scenario does not say, and what that is worth in time."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.simulate import simulate


def _attention(topology: str = "dgx-h100", framework: str = "fsdp2", mesh: dict[str, int] | None = None,
               **given: Any) -> str:
    _, table = small.prepared(framework, {"dp_shard": 2} if mesh is None else mesh, topology=topology, **given)
    return table.libraries.attention


@pytest.mark.parametrize(("topology", "kernel"), [
    ("dgx-h100", "attention"), ("dgx-b200", "attention"), ("dgx-b300", "attention_flash2"),
    ("dgx-a100", "attention_flash2")])
def test_cudnn_comes_first_on_hopper_and_the_first_blackwell(topology: str, kernel: str) -> None:
    assert _attention(topology) == kernel


@pytest.mark.parametrize(("options", "kernel"), [
    ({"sdpa_backend": "flash"}, "attention_flash2"), ({"sdpa_backend": "cudnn"}, "attention"),
    ({"attn_implementation": "flash_attention_2"}, "attention_flash2")])
def test_a_scenario_may_say(options: dict[str, Any], kernel: str) -> None:
    assert _attention(options=options) == kernel


@pytest.mark.parametrize(("framework", "mesh"), [("ddp", {"dp_replicate": 2}), ("zero2", {"dp_shard": 2})])
def test_every_framework_over_torch_asks_it(framework: str, mesh: dict[str, int]) -> None:
    assert _attention(framework=framework, mesh=mesh) == "attention"


def test_the_choice_is_listed_and_is_worth_time() -> None:
    cudnn, flash = (simulate(small.scenario("fsdp2", {"dp_shard": 8}, model="llama-3.1-8b", seq_len=8192,
                                              options={"sdpa_backend": told}))
                    for told in ("cudnn", "flash"))
    assert cudnn.time is not None
    assert flash.time is not None
    assert cudnn.time.step_s < flash.time.step_s
    auto = simulate(small.scenario("fsdp2", {"dp_shard": 2}, seq_len=4096))
    assert {a.value for a in auto.assumptions if a.what == "framework_options.sdpa_backend"} == {"cudnn"}
