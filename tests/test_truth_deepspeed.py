"""Messages and tensors of DeepSpeed itself: `tests/truth/probe_deepspeed.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.frameworks.deepspeed.offload_buffers import beside_tensors, touched
from simcore.frameworks.deepspeed.partitions import aligned, places
from simcore.frameworks.deepspeed.strategy import ZeroStrategy
from simcore.frameworks.deepspeed.zero12_hooks import LOOKED_AT
from simcore.frameworks.registry import at_rest_of
from simcore.placement.plan import Plan
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.recording.tape import Op

TRUTH: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/deepspeed/0.19.6.json").read_text(encoding="utf-8"))["cases"]
AWAY: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/deepspeed/offload-0.19.6.json").read_text(encoding="utf-8"))["cases"]
PRESETS = {"llama": "llama-3.2-3b", "qwen2": "qwen2.5-7b"}
OURS = {"all_reduce": "all_reduce", "all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}
THREE = [name for name, case in TRUTH.items() if case["stage"] == 3]
PARTS = [name for name, case in TRUTH.items() if case["stage"] < 3]


def given(name: str) -> dict[str, Any]:
    case = TRUTH[name]
    return {"model": {"config": PRESETS[case["type"]], "overrides": case["model"]}, "options": case["options"],
            "recompute": "full" if case["checkpoint"] else "none", "rank": case["rank"]}


def made(name: str) -> Program:
    case = TRUTH[name]
    return small.program_of(f"zero{case['stage']}", {"dp_shard": case["ranks"]}, microbatches=2, **given(name))


def plan(name: str) -> Plan:
    case = TRUTH[name]
    return small.plan_of(f"zero{case['stage']}", {"dp_shard": case["ranks"]}, **given(name))


def upstream(rows: list[list[Any]], collective: str) -> list[int]:
    """Without what is a few bytes: the norm and the search for infinities."""
    return [size for found, size in rows if OURS[found] == collective and size > 8]


@pytest.mark.parametrize("name", TRUTH)
def test_gradients_are_reduced_in_upstreams_buckets(name: str) -> None:
    collective = "reduce_scatter" if TRUTH[name]["stage"] == 3 else "all_reduce"
    theirs = [size for rows in TRUTH[name]["found"]["microbatches"] for size in upstream(rows, collective)]
    assert [size for *_, size in small.calls(made(name), collective)] == theirs


@pytest.mark.parametrize("name", THREE)
def test_parameters_are_gathered_in_upstreams_order(name: str) -> None:
    theirs = [size for rows in TRUTH[name]["found"]["microbatches"] for size in upstream(rows, "all_gather")]
    assert [size for _, phase, size in small.calls(made(name), "all_gather") if phase != "optimizer"] == theirs


@pytest.mark.parametrize("name", TRUTH)
def test_the_step_gathers_what_upstream_gathers(name: str) -> None:
    """The flat parameters at once, or small ones, which upstream gathers one by one."""
    ours = [size for _, phase, size in small.calls(made(name), "all_gather") if phase == "optimizer"]
    assert sum(ours) == sum(upstream(TRUTH[name]["found"]["step"], "all_gather"))


@pytest.mark.parametrize("name", PARTS)
def test_flat_buffers_have_upstreams_length(name: str) -> None:
    kept, program = TRUTH[name]["found"]["kept"], made(name)
    ours = plan(name)
    whole = sum(p.used for layer in ours.layers for p in ours.of_layer(layer) if p.trainable)
    padding = sum(size for *_, size in small.postings(program, "flat_buffer.padding"))
    assert 2 * kept["flat"][0] == 2 * whole + padding
    masters = sum(row[3] for row in program.columns.tolist() if row[0] == 0
                  and list(program.tables.slots)[row[2]][1] == "main_param")
    assert masters == 4 * kept["masters"][0]


@pytest.mark.parametrize("name", THREE)
def test_parts_have_upstreams_length(name: str) -> None:
    kept, ours = TRUTH[name]["found"]["kept"], plan(name)
    parts = [p.padded for layer in ours.layers for p in ours.of_layer(layer) if p.trainable]
    assert sorted(parts) == sorted(kept["parts"])
    assert sum(parts) == kept["gradients"][0] == sum(kept["masters"])
    program = made(name)
    assert [size for *_, size in small.postings(program, "ipg_bucket")] == [2 * kept["bucket"][0]]
    assert [size for _, phase, size in small.postings(program, "persistent") if phase == "build"] == [
        2 * sum(kept["persistent"])]


@pytest.mark.parametrize("name", THREE)
def test_groups_of_the_step_are_upstreams(name: str) -> None:
    found = [size for *_, size in small.postings(made(name), "fp32_grad") if size > 0]
    assert found == [4 * size for size in TRUTH[name]["found"]["kept"]["masters"]]


def _highest(sizes: list[int]) -> int:
    held = most = 0
    for size in sizes:
        held += size
        most = max(most, held)
    return most


@pytest.mark.parametrize("name", TRUTH)
def test_the_step_needs_what_upstream_needs(name: str) -> None:
    """Looking at gradients first; then for each group a flat copy, its copy in fp32, and both go."""
    program = made(name)
    names = list(program.tables.slots)
    rows = program.columns[program.phase == Phase.OPTIMIZER].tolist()
    ours = [size for op, _, slot, size, *_ in rows if op in (Op.ALLOC, Op.FREE) and names[slot][1] == "optim_temp"]
    theirs = TRUTH[name]["found"]["memory"]
    groups = 4 * len(TRUTH[name]["found"]["kept"]["masters"])
    assert [size for size in ours[2:] if abs(size) >= 100_000] == theirs[-groups:]
    assert ours[0] == -ours[1] >= _highest(theirs[:-groups])
    if TRUTH[name]["rank"] == 0 or TRUTH[name]["stage"] == 3:  # the rank that has the largest tensor
        assert ours[0] == _highest(theirs[:-groups])


@pytest.mark.parametrize("name", TRUTH)
def test_buckets_are_copied_where_upstream_copies_them(name: str) -> None:
    """Gradients of embedding and head are as long as a bucket of their own, which is one of them."""
    alone = 2 * TRUTH[name]["model"]["vocab_size"] * TRUTH[name]["model"]["hidden_size"]
    theirs = [size for size in TRUTH[name]["found"]["backward"] if size != alone]
    copies = [size for *_, size in small.postings(made(name), "flat_bucket") if size > 0]
    microbatches = 1 if TRUTH[name]["stage"] == 1 else 2  # upstream's are those of the last one
    assert [size for size in copies[-(len(copies) // microbatches):] if size >= 100_000] == theirs


# ---- offload --------------------------------------------------------------------------------------------------------
def away(name: str, build: Any) -> Any:
    case = AWAY[name]
    kept = {key: value for key, value in case["options"].items() if not key.startswith("offload")}
    where = {ours: "host" for theirs, ours in (("offload_optimizer", "optimizer"), ("offload_param", "params"))
             if theirs in case["options"]}
    return build(f"zero{case['stage']}", {"dp_shard": case["ranks"]}, microbatches=2, rank=case["rank"], offload=where,
                 model={"config": PRESETS[case["type"]], "overrides": case["model"]}, options=kept, recompute="full")


def held(plan: Plan) -> dict[str, int]:
    """Bytes on the host by owner, buffers and all."""
    found = dict(beside_tensors(plan, rounded=False))
    for layer in plan.layers:
        for what, _, num_bytes in (one for placed in plan.of_layer(layer) for one in placed.elsewhere):
            found[what] = found.get(what, 0) + num_bytes
    return found


@pytest.mark.parametrize("name", [name for name in AWAY if AWAY[name]["stage"] < 3])
def test_the_host_holds_what_zero2s_optimizer_holds_there(name: str) -> None:
    theirs, ours = AWAY[name]["found"]["offload"], held(away(name, small.plan_of))
    assert ours["optimizer states"] == 4 * sum(theirs["masters"] + theirs["moments"])
    assert ours["gradients"] == 4 * sum(theirs["gradients"]) + 2 * sum(theirs["accumulated"])
    assert ours["copies on their way"] == 2 * theirs["way_back"][0] + 2 * theirs["largest"][0]
    on_device = [size for *_, size in small.postings(away(name, small.program_of), "grad_buffer_for_offload")]
    assert on_device == [2 * theirs["largest"][1]]


@pytest.mark.parametrize("name", [name for name in AWAY if AWAY[name]["stage"] == 3])
def test_the_host_holds_what_zero3s_optimizer_holds_there(name: str) -> None:
    """Moments are made by DeepSpeedCPUAdam, like their masters; without offload_optimizer the rest is on the device."""
    theirs, ours = AWAY[name]["found"]["offload"], held(away(name, small.plan_of))
    is_away = "offload_optimizer" in AWAY[name]["options"]
    assert ours.get("optimizer states", 0) == 3 * 4 * sum(theirs["masters"]) * is_away
    assert ours.get("gradients", 0) == (4 * sum(theirs["gradients"]) + 2 * theirs["accumulated"][0]) * is_away
    assert ours.get("parameters", 0) == 2 * sum(theirs["parameters"])


def test_infinities_are_looked_for_in_whole_gradients() -> None:
    """Checks the tensors that overlap the partition of ZeRO-1 and 2; ZeRO-3 checks none in bf16."""
    for name, case in AWAY.items():
        theirs, ours = case["found"]["looked_at"], away(name, small.plan_of)
        strategy = ours.framework.strategy
        assert isinstance(strategy, ZeroStrategy)
        assert theirs == (sorted(touched(ours, strategy)) if strategy.stage < 3 else [])
        if theirs and case["rank"] == 0:
            taken = [size for *_, size in small.postings(away(name, small.program_of), "grad_on_its_way")]
            assert max(taken) == LOOKED_AT * max(theirs)


# ---- hpZ, the order of parts ----------------------------------------------------------------------------------
SHARDS: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/deepspeed/shards-0.19.6.json").read_text(encoding="utf-8"))["cases"]


def sharded(name: str, mesh: dict[str, int]) -> Program:
    case = SHARDS[name]
    return small.program_of(f"zero{case['stage']}", mesh, microbatches=2, recompute="full", options=case["options"],
                            model={"config": PRESETS[case["type"]], "overrides": case["model"]})


def test_tensors_are_dealt_out_as_upstream_deals_them() -> None:
    case = SHARDS["two, round robin"]
    ours = small.plan_of("zero2", {"dp_shard": 4}, options=case["options"],
                         model={"config": PRESETS[case["type"]], "overrides": case["model"]})
    assert [end - start for start, end in places(ours).values()] == case["found"]["kept"]["order"]
    theirs = [size for rows in case["found"]["microbatches"] for found, size, _ in rows if found == "all_reduce"]
    assert [size for *_, size in small.calls(sharded("two, round robin", {"dp_shard": 4}), "all_reduce")] == [
        size for size in theirs if size > 8]


def test_hpz_gathers_in_upstreams_groups() -> None:
    theirs = [(ranks, size) for rows in SHARDS["three, hpz"]["found"]["microbatches"]
              for found, size, ranks in rows if found == "all_gather_into_tensor"]
    ours = [(2 if axis == "dp_shard/2" else 4, size) for axis, phase, size in small.calls(
        sharded("three, hpz", {"dp_shard": 4}), "all_gather") if phase != "optimizer"]
    assert ours == theirs


def test_mics_scatters_over_all_ranks() -> None:
    """The reason of the refusal: a shard of two ranks owns halves, and each gets a quarter."""
    case = SHARDS["three, mics"]
    assert case["options"]["mics_shard_size"] == case["ranks"] // 2
    scattered = [row for rows in case["found"]["microbatches"] for row in rows if row[0] == "reduce_scatter_tensor"]
    assert {ranks for *_, ranks in scattered} == {case["ranks"]}
    summed = [row for row in case["found"]["microbatches"][1] if row[0] == "all_reduce_coalesced"]
    assert [size for _, size, _ in summed] == [size // 4 for _, size, _ in scattered[len(scattered) // 2:]]
    of_one = sum(size for _, size, _ in scattered) // 2  # microbatch
    assert of_one // case["ranks"] == 2 * sum(case["found"]["kept"]["parts"]) // 2


# ---- gradients apart ------------------------------------------------------------------------------------------
APART: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/deepspeed/apart-0.19.6.json").read_text(encoding="utf-8"))["cases"]


def apart(name: str) -> Program:
    case = APART[name]
    return small.program_of(f"zero{case['stage']}", {"dp_shard": case["ranks"]}, microbatches=2, rank=case["rank"],
                            options=case["options"], recompute="full" if case["checkpoint"] else "none",
                            model={"config": PRESETS[case["type"]], "overrides": case["model"]})


@pytest.mark.parametrize("name", APART)
def test_without_contiguous_gradients_the_same_is_sent_from_no_bucket(name: str) -> None:
    program, case = apart(name), APART[name]
    assert small.postings(program, "ipg_bucket") == []
    assert case["found"]["bucket"] == []
    for collective in ("all_reduce", "reduce_scatter", "all_gather"):
        theirs = [size for rows in case["found"]["microbatches"] for size in upstream(rows, collective)]
        ours = [size for _, phase, size in small.calls(program, collective) if phase != "optimizer"]
        assert ours == theirs
    alone = 2 * case["model"]["vocab_size"] * case["model"]["hidden_size"]
    copies = [size for *_, size in small.postings(program, "flat_bucket") if size > 0]
    last = copies[-(len(copies) // (1 if case["stage"] == 1 else 2)):]
    assert last == [size for size in case["found"]["backward"] if size != alone]


@pytest.mark.parametrize("name", [name for name in APART if APART[name]["stage"] < 3])
def test_gradients_of_the_ranks_part_are_whole_until_the_step(name: str) -> None:
    program = apart(name)
    gradients = {owner for owner, _ in program.tables.slots if owner.endswith(".grad")}
    freed = [-size for owner in gradients for _, phase, size in small.postings(program, owner) if phase == "optimizer"]
    assert sorted(freed) == APART[name]["found"]["averaged"]


def test_overlapped_gradients_of_others_go_one_reduction_later() -> None:
    """At the reduction of the second bucket those of the first are still there: 3 * 131072 bytes or more."""
    def most(name: str) -> int:
        program = apart(name)
        slots = {number for (owner, _), number in program.tables.slots.items() if owner.endswith(".grad")}
        held = highest = 0
        for op, _, slot, size, *_ in program.columns.tolist():
            held += size * (op in (Op.ALLOC, Op.FREE) and slot in slots)
            highest = max(highest, held)
        return highest

    assert most("two, overlapped") >= most("two") + 3 * 131072


# ---- averaged gradients ---------------------------------------------------------------------------------------
AVERAGED: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/deepspeed/averaged-0.19.6.json").read_text(encoding="utf-8"))["cases"]


def of_rank(name: str, build: Any) -> Any:
    case = AVERAGED[name]
    return build(f"zero{case['stage']}", {"dp_shard": case["ranks"]}, rank=case["rank"], options=case["options"],
                 model={"config": PRESETS[case["type"]], "overrides": case["model"]})


@pytest.mark.parametrize("name", AVERAGED)
def test_what_rests_of_gradients_is_of_whole_parameters_that_touch_the_part(name: str) -> None:
    """Under ZeRO-1 too: no parameter has a gradient of its own any more."""
    made, found = of_rank(name, small.plan_of), AVERAGED[name]["found"]
    rest = at_rest_of(made.framework).exact(made)
    grads = sum(r.grads_bytes for r in rest.values())
    assert found["own"] == 0
    assert grads + at_rest_of(made.framework).padding(made, rest, exact=True)[1] == sum(found["averaged"])
    assert grads <= 2 * aligned(made) // AVERAGED[name]["ranks"]


def test_a_class_has_averaged_gradients_as_long_as_its_ranks_longest() -> None:
    """Four ranks are one class; each was asked."""
    theirs = [sum(AVERAGED[f"two, rank {rank} of 4"]["found"]["averaged"]) for rank in range(4)]
    held = [size for *_, size in small.postings(of_rank("two, rank 0 of 4", small.program_of), "grads_in_partition")]
    assert max(held) == max(theirs)
