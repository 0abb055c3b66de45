"""Buckets that are gathered ahead and reduced into a queue, against Megatron-FSDP's own pipelines."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.frameworks.megatron_fsdp.buckets import Bucket, rank_buckets
from simcore.frameworks.megatron_fsdp.chunks import lay_in_chunks
from simcore.program.program import Program
from simcore.recording.tape import RECOMPUTE_END, Op

HERE = ROOT / "tests/truth/megatron_fsdp"
CASES: list[tuple[str, dict[str, Any]]] = [
    (version, case) for version in ("core 0.16.1", "main 2026-08-22")
    for case in json.loads((HERE / f"{version.replace(' ', '-')}.json").read_text("utf-8"))["steps"]
    if "plain" not in case]
STEPS = [pytest.param(version, case, id="-".join([version, *(f"{k}={v}" for k, v in case.items() if k != "found")]))
         for version, case in CASES if "copies" not in case]
OF_COPIES = [pytest.param(version, case, id=f"{version}-copies={case['copies']}-sent={case.get('sent')}")
             for version, case in CASES if "copies" in case]
MODEL = {"config": "llama-tiny", "overrides": {"num_hidden_layers": 5}}
UNIT = 2560
"""Elements of a unit of the model that was run."""
STARTS = {"fwd:begin": "forward", "bwd:begin": "backward", "opt:begin": "step"}
EVENTS = {("unsharded_bucket", Op.ALLOC): "gather", ("unsharded_bucket", Op.FREE): "release",
          ("unsharded_grad_bucket", Op.ALLOC): "fill", ("unsharded_grad_bucket", Op.FREE): "drop"}


def program(options: dict[str, Any] | None = None, version: str = "auto", mesh: dict[str, int] | None = None,
            **given: Any) -> Program:
    return small.program_of("megatron_fsdp", mesh or {"dp_shard": 8}, model=MODEL, options=options, version=version,
                            **given)


def events(made: Program) -> list[str]:
    """As the truth spells them. A bucket's number is that of its first layer: the root's is 0."""
    owners = {slot: name for (name, _), slot in made.tables.slots.items()}
    scatters = {number for (name, _, _), number in made.tables.comms.items() if name == "reduce_scatter"}
    found = []
    for row in made.columns:
        op, layer, slot = Op(row[0]), int(row[1]), int(row[2])
        if op == Op.MARK:
            found.append(STARTS.get(made.event(row, 0), ""))
        elif op == Op.COLLECTIVE and slot in scatters:
            found.append(f"reduce {layer}")
        elif what := EVENTS.get((owners.get(slot, ""), op)):
            found.append(f"{what} {layer}")
    found = [event for event in found if event]
    return found[found.index("forward"):]


def asked(case: dict[str, Any]) -> dict[str, Any]:
    """The case's options, sizes in units of ours."""
    unit = rank_buckets(small.plan_of("megatron_fsdp", {"dp_shard": 8}, model=MODEL))[1].numel
    size = case["unit_size"]
    options = {} if size is None else {"suggested_communication_unit_size": max(1, size // UNIT * unit)}
    given = {"double_buffer": "fsdp_double_buffer", "gathers_first": "fsdp_all_gather_in_start_param_sync"}
    return options | {option: case[key] for key, option in given.items() if key in case}


@pytest.mark.parametrize(("version", "case"), OF_COPIES)
def test_copies_that_share_the_optimizer_exchange_parts_of_shards(version: str, case: dict[str, Any]) -> None:
    """Gathered before every gather of the first microbatch, reduced in the last one; the root is bucket 0."""
    copies, kept = case["copies"], case["found"]["kept"]
    made = program(asked(case) | {"outer_dp_sharding_strategy": "optim"}, version,
                   {"dp_shard": 8 // copies, "dp_replicate": copies}, microbatches=case["microbatches"],
                   recompute="full" if case.get("recompute") else "none")
    names = {number: name for (name, axis, _), number in made.tables.comms.items() if axis == "dp_replicate"}
    found, told = [], {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}
    for row in made.columns:
        if row[0] == Op.MARK and made.event(row, 0) in STARTS:
            found.append(STARTS[made.event(row, 0)])
        elif row[0] == Op.COLLECTIVE and row[2] in names:
            found.append(f"{names[row[2]]} {'unit' if row[1] else 'root'}")
    of_size = {str(kept[0]["params"]): "root", str(kept[1]["params"]): "unit"}
    expected = [f"{told[name]} {of_size[size]}" if name in told else name
                for name, _, size in (event.partition(" ") for event in case["found"]["events"])
                if name in (*told, *STARTS.values())]
    assert found[found.index("forward"):] == expected


def test_gradients_are_sent_in_a_format_of_their_own() -> None:
    """Whole ones are in it, and a copy of each reduced shard between copies, until its bucket is freed."""
    case = next(case for _, case in CASES if "sent" in case)
    options = asked(case) | {"outer_dp_sharding_strategy": "optim"}
    made = program(options, "main 2026-08-22", {"dp_shard": 4, "dp_replicate": 2}, microbatches=2,
                   precision={"main_grads": "fp32", "grad_reduce": "bf16"})
    buckets = rank_buckets(small.plan_of("megatron_fsdp", {"dp_shard": 4, "dp_replicate": 2}, model=MODEL,
                                         version="main 2026-08-22", options=options))
    assert case["found"]["widths"] == {"whole": 2, "between": 2}
    assert {size for _, _, size in small.postings(made, "unsharded_grad_bucket") if size > 0} == {
        2 * bucket.numel for bucket in buckets}
    casts = [size for _, _, size in small.postings(made, "hsdp_comm_gbuf")]
    expected = [event.split() for event in case["found"]["events"] if event.startswith(("cast", "uncast"))]
    last = expected[next(i for i, event in enumerate(expected) if event[0] == "cast"):]
    assert casts == [2 * buckets[int(event[1])].shard * (1 if event[0] == "cast" else -1) for event in last]
    rest = sum(part.grads_bytes for part in small.plan_of(
        "megatron_fsdp", {"dp_shard": 4, "dp_replicate": 2}, model=MODEL, version="main 2026-08-22", options=options,
        precision={"main_grads": "fp32", "grad_reduce": "bf16"}).at_rest().values())
    assert rest == 4 * sum(part.num_params for part in small.plan_of(
        "megatron_fsdp", {"dp_shard": 4}, model=MODEL).at_rest().values())


LINEAR: tuple[tuple[int, ...], ...] = ((64, 16), (64,), (16, 64), (16,))


@pytest.mark.parametrize(("version", "case"), OF_COPIES)
def test_a_bucket_is_padded_to_all_ranks_of_copies(version: str, case: dict[str, Any]) -> None:
    for kept, shapes in zip(case["found"]["kept"], (((64, 16), (16,), (16,), (64, 16), (64,)),
                                                    ((16,), (16,), *LINEAR)), strict=False):
        made = Bucket(0, "dp_cp", 8 // case["copies"], "bf16", True, (), lay_in_chunks(shapes, 8),
                      case["copies"])
        assert (made.numel, made.shard, made.shard, made.state_shard) == tuple(
            kept[name] for name in ("numel", "params", "grads", "masters"))


@pytest.mark.parametrize(("version", "case"), STEPS)
def test_a_step_is_the_real_one(version: str, case: dict[str, Any]) -> None:
    made = program(asked(case), version, microbatches=case["microbatches"],
                   recompute="full" if case.get("recompute") else "none")
    if not case.get("double_buffer"):
        assert events(made) == case["found"]
        return
    seen = ("forward", "backward", "step", "reduce", "gather")  # nothing is allocated where buffers are shared
    untold = ("gather 0",) * version.startswith("main")  # in place
    assert [event for event in calls(made) if event.startswith(seen) and event not in untold] == [
        event for event in case["found"] if event.startswith(seen)]


def calls(made: Program) -> list[str]:
    """Events of a program; gathers are recognised by their collectives."""
    gathers = {number for key, number in made.tables.comms.items() if key[:2] == ("all_gather", "dp_cp")}
    found = []
    for row in made.columns:
        if row[0] == Op.MARK:
            found.append(STARTS.get(made.event(row, 0), ""))
        elif row[0] == Op.COLLECTIVE:
            found.append(f"{'gather' if row[2] in gathers else 'reduce'} {row[1]}")
    return found[found.index("forward"):]


def test_a_gradient_bucket_is_made_after_the_replay() -> None:
    """With the first gradient of its layer, as upstream's `get_main_grad` does."""
    made = program(recompute="full")
    slot = made.tables.slots["unsharded_grad_bucket", "unsharded_grad"]
    ends = [number for number, row in enumerate(made.columns) if row[0] == Op.MARK and row[2] == RECOMPUTE_END]
    fills = [number for number, row in enumerate(made.columns) if row[0] == Op.ALLOC and row[2] == slot]
    kept = sorted(ends + fills[1:])  # the root's comes first
    assert kept[::2] == ends
    assert kept[1::2] == fills[1:]


def test_two_buffers_are_shared_for_good() -> None:
    buckets = rank_buckets(small.plan_of("megatron_fsdp", {"dp_shard": 8}, model=MODEL))
    made = program({"fsdp_double_buffer": True, "log_params_norm": True})
    for name, size in (("unsharded_bucket", 2), ("unsharded_grad_bucket", 4)):
        assert small.postings(made, name)[0] == (1, "build", 2 * size * buckets[1].numel)
        assert sum(amount for *_, amount in small.postings(made, name)) == 2 * size * buckets[1].numel
    assert small.postings(made, "reduced_grad_shard") == []


def test_main_keeps_what_is_in_no_unit() -> None:
    """The embedding, the last norm and the head; they are gathered again in every step."""
    buckets = rank_buckets(small.plan_of("megatron_fsdp", {"dp_shard": 8}, model=MODEL))
    made = program({"log_params_norm": True}, "main 2026-08-22")
    assert sum(amount for *_, amount in small.postings(made, "unsharded_bucket")) == 2 * buckets[0].numel
    assert [call for call in small.calls(made, "all_gather") if call[0] == "dp_cp"].count(
        ("dp_cp", "optimizer", 2 * buckets[0].numel)) == 1


def test_what_the_step_before_has_gathered_is_there_when_it_begins() -> None:
    buckets = rank_buckets(small.plan_of("megatron_fsdp", {"dp_shard": 8}, model=MODEL))
    built = [size for _, phase, size in small.postings(program(), "unsharded_bucket") if phase == "build"]
    assert sum(built) == sum(2 * bucket.numel for bucket in buckets)


def test_a_norm_of_the_parameters_frees_it() -> None:
    """It is gathered twice then: after the step, and again in the next forward."""
    made = program({"log_params_norm": True})
    assert [phase for _, phase, _ in small.postings(made, "unsharded_bucket") if phase == "build"] == []
    assert sum(size for *_, size in small.postings(made, "unsharded_bucket")) == 0
    gathers = [phase for axis, phase, _ in small.calls(made, "all_gather") if axis == "dp_cp"]
    assert gathers.count("optimizer") == 6
    assert gathers.count("forward") == 6 + 5


def test_gradients_are_reduced_in_every_microbatch() -> None:
    buckets = rank_buckets(small.plan_of("megatron_fsdp", {"dp_shard": 8}, model=MODEL))
    sent = [size for _, _, size in small.calls(program(microbatches=3), "reduce_scatter")]
    assert sum(sent) == 3 * sum(4 * bucket.numel for bucket in buckets)


def test_a_reduced_shard_lives_for_a_moment() -> None:
    shards = [size for *_, size in small.postings(program(), "reduced_grad_shard")]
    buckets = rank_buckets(small.plan_of("megatron_fsdp", {"dp_shard": 8}, model=MODEL))
    assert sorted(size for size in shards if size > 0) == sorted(4 * bucket.shard for bucket in buckets)
    assert sum(shards) == 0


def test_sixteen_bit_gradients_are_copied_before_the_step() -> None:
    made = program(precision={"main_grads": "bf16"})
    copies = [(phase, size) for _, phase, size in small.postings(made, "fp32_grad_shard")]
    plan = small.plan_of("megatron_fsdp", {"dp_shard": 8}, model=MODEL)
    assert copies == [("backward", 4 * sum(p.local for layer in plan.layers for p in plan.of_layer(layer)))]


def test_one_rank_gathers_nothing() -> None:
    """A group of one keeps whole buffers, and still makes a reduced copy."""
    made = small.program_of("megatron_fsdp", {}, model=MODEL)
    assert small.calls(made, "all_gather") == small.calls(made, "reduce_scatter") == []
    assert small.postings(made, "unsharded_bucket") == small.postings(made, "unsharded_grad_bucket") == []
    assert small.postings(made, "reduced_grad_shard") != []
