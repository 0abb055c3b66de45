"""Offload under every framework: refused by name, or its copies take time and its bytes are on the host."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

import small
from simcore.frameworks.registry import known_frameworks
from simcore.results.report import Report
from simcore.search.judge import Sized, judged
from simcore.simulate import simulate

PARTS = ("params", "gradients", "optimizer", "activations")
OFFLOADS: list[dict[str, Any]] = [
    *({part: "host"} for part in PARTS), {"params": "host", "optimizer": "host"},
    {"gradients": "host", "optimizer": "host"}, {"params": "host", "gradients": "host", "optimizer": "host"},
    {"optimizer": {"space": "host", "fraction": 0.5}}, {"activations": {"space": "host", "fraction": 0.5}}]
DENSE, MOE = "llama-3-8b", "nemotron-3-tiny"
KINDS: list[tuple[str, str, dict[str, Any]]] = [
    *((name, "auto", {}) for name in known_frameworks()), ("fsdp2", "hub", {}), ("fsdp2", "torchtitan", {}),
    ("fsdp2", "kempnerforge", {}), ("ddp", "auto", {"FastLanguageModel": True})]
"""(framework, implementation, framework options)."""


Case = tuple[str, str, dict[str, Any], str, str, str]
"""One of `KINDS`, then model, method, recompute."""


def simulated(case: Case, offload: dict[str, Any]) -> Report:
    framework, implementation, options, model, method, recompute = case
    mesh: dict[str, int] = {} if options else {"ddp": {"dp_replicate": 2}}.get(framework, {"dp_shard": 2})
    targets = ["q_proj", "v_proj"] if options or implementation == "torchtitan" else "auto"
    more: dict[str, Any] = {} if method == "full" else {"lora": {"rank": 8, "target_modules": targets}}
    return simulate(small.scenario(framework, mesh, model=model, seq_len=512, method=method, options=options,
                                   implementation=implementation, recompute=recompute, offload=offload, **more))


def copied_s(report: Report) -> float:
    assert report.time is not None
    return sum(row.alone_s for row in report.time.communication if row.collective == "copy")


CASES: list[Case] = [(*kind, model, method, recompute) for kind in KINDS
         for model, method, recompute in product((DENSE, MOE), ("full", "lora", "qlora"), ("none", "full"))]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_offloaded_takes_time(case: Case) -> None:
    plain = simulated(case, {})
    if plain.time is None:
        pytest.skip(plain.problems[0].message)
    for offload in OFFLOADS:
        found = simulated(case, offload)
        if found.status != "ok":
            assert found.problems[0].message
            continue
        assert found.time is not None
        peak = found.ranks[0].peak
        assert peak is not None
        assert peak.host_bytes > 0, offload
        assert copied_s(found) > 0, offload
        assert found.time.step_s > plain.time.step_s, offload


def test_every_offload_is_offered_somewhere() -> None:
    """The test above would say nothing if everything were refused."""
    for name in ("ddp", "fsdp1", "fsdp2", "megatron", "zero1", "zero2", "zero3"):
        assert any(simulated(case, offload).status == "ok" for case in CASES if case[0] == name and case[3] == DENSE
                   for offload in OFFLOADS), name


def test_a_job_whose_states_a_host_has_no_room_for_is_out_of_memory_for_a_search_too() -> None:
    base = small.scenario("zero3", {"dp_shard": 1}, model="qwen2.5-7b", seq_len=4096, recompute="full",
                          topology="rtx-4090", offload=dict.fromkeys(PARTS[:3], "host"))
    report = simulate(base, timed=False)
    assert (report.verdict, report.job_verdict) == ("fits", "oom")
    assert report.host is not None
    assert [phase.host_verdict for phase in report.host.phases if phase.phase == "first_step"] == ["oom"]
    assert [one.verdict for one in judged(base, [{}]) if isinstance(one, Sized)] == ["oom"]
    roomy = small.scenario("zero3", {"dp_shard": 1}, model="qwen2.5-7b", seq_len=4096, recompute="full",
                           topology="dgx-h100", offload=dict.fromkeys(PARTS[:3], "host"))
    assert simulate(roomy, timed=False).job_verdict == "fits"
    assert [one.verdict for one in judged(roomy, [{}]) if isinstance(one, Sized)] == ["fits"]
