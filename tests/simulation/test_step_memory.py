"""Memory of a step without its report is that of the report, and so is its time without reasons."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.inputs.scenario import Scenario
from simcore.search.judge import Refused, Sized, judged, timed
from simcore.simulate import simulate
from simcore.simulation.step_memory import is_plain

NANO, LLAMA = "nemotron-3-nano-30b-a3b", "llama-3-8b"
LAYOUTS: list[tuple[str, str, dict[str, int], dict[str, Any]]] = [
    ("fsdp2", LLAMA, {"dp_shard": 8}, {"global_batch_size": 32}),
    ("fsdp2", NANO, {"dp_shard": 8, "ep": 8}, {"method": "lora"}),
    ("automodel", NANO, {"pp": 2, "dp_shard": 4, "ep": 4}, {"global_batch_size": 64}),
    ("megatron", NANO, {"tp": 2, "dp_shard": 4, "ep": 4, "etp": 1}, {"global_batch_size": 64, "method": "lora"}),
    ("megatron", LLAMA, {"pp": 4, "tp": 2}, {"global_batch_size": 64, "recompute": "full"}),
    ("megatron_fsdp", LLAMA, {"dp_shard": 8}, {}),
    ("zero3", LLAMA, {"dp_shard": 8}, {"global_batch_size": 32}),
    ("zero2", LLAMA, {"dp_shard": 7}, {"offload": {"optimizer": "host"}}),
    ("fsdp1", LLAMA, {"dp_shard": 8}, {"global_batch_size": 32}),
    ("ddp", "llama-3.2-1b", {}, {"seq_len": 512, "recompute": "full", "precision": {"params": "bf16"},
                                 "optimizer": {"implementation": "bitsandbytes", "paged": True}}),
]


def scenario(framework: str, model: str, mesh: dict[str, int], training: dict[str, Any], **more: Any) -> Scenario:
    return Scenario.model_validate({"name": "lean", "model": model, "framework": framework, "topology": "dgx-h100",
                                    "mesh": mesh, "training": {"seq_len": 4096, **training}, **more})


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: f"{one[0]}-{one[2]}")
def test_a_search_reads_what_the_report_says(layout: tuple[str, str, dict[str, int], dict[str, Any]]) -> None:
    asked = scenario(*layout)
    report, (sized,), (clocked,) = simulate(asked), judged(asked, [{}]), timed(asked, [{}])
    assert is_plain(asked)
    assert report.status == "ok", report.problems
    assert report.time is not None
    assert report.evidence is not None
    assert isinstance(sized, Sized)
    assert clocked is not None
    assert (sized.verdict, sized.peak_bytes, sized.headroom_bytes) == (
        report.job_verdict, report.highest_bytes, report.headroom_bytes)
    assert report.time.cost is not None
    assert (clocked.step_s, clocked.tokens_per_s_per_gpu, clocked.mfu, clocked.usd_per_million_tokens,
            clocked.evidence) == (
        report.time.step_s, report.time.tokens_per_s_per_gpu, report.time.mfu, report.time.cost.per_million_tokens,
        report.evidence.kind)
    assert sized.least_s <= clocked.step_s


@pytest.mark.parametrize("usable", ["79 GiB", "30 GiB", "20 GiB", "14 GiB"])
def test_reading_and_writing_the_model_count_too(usable: str) -> None:
    """The limit is moved through the verdicts; a load of the whole model on each rank can be the worst moment."""
    asked = scenario("fsdp2", LLAMA, {"dp_shard": 8}, {"method": "lora", "recompute": "full"},
                     checkpoint={"load": "every_rank"}, limits={"usable_memory": usable})
    report, (sized,) = simulate(asked), judged(asked, [{}])
    assert report.job_verdict == ("oom" if sized is None else sized.verdict if isinstance(sized, Sized) else None)


@pytest.mark.parametrize("more", [
    {"evaluation": {"micro_batch_size": 8}}, {"checkpoint": {"export": "job"}}])
def test_phases_that_are_asked_for_count_too(more: dict[str, Any]) -> None:
    asked = scenario("fsdp2", "llama-3.2-1b", {"dp_shard": 2}, {}, **more)
    report, (sized,) = simulate(asked), judged(asked, [{}])
    assert not is_plain(asked)
    if report.status == "ok":
        assert isinstance(sized, Sized)
        assert (sized.verdict, sized.peak_bytes) == (report.job_verdict, report.highest_bytes)
    else:
        assert isinstance(sized, Refused)
