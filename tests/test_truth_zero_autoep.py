"""Messages and tensors of DeepSpeed's own experts (AutoEP): `tests/truth/probe_zero_autoep.py`."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

import small
import zero3_calls
from checkout import ROOT
from simcore.errors import IllegalLayout
from simcore.frameworks.deepspeed.partitions import groups_of
from simcore.models.blocks import Branch, Moe
from simcore.operators.autoep.implementation import deepspeed_experts
from simcore.operators.hf.moe import moe
from simcore.operators.hf.options import HfOptions
from simcore.operators.shared.layer_borders import hidden_state, nothing, run_backward
from simcore.placement.plan import Plan
from simcore.program.program import Program
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Op, Param, Tape

FOLDER = ROOT / "tests/truth/deepspeed"
FEW: dict[str, Any] = json.loads((FOLDER / "autoep-0.19.6.json").read_text("utf-8"))["cases"]
DRAWN: dict[str, Any] = json.loads((FOLDER / "drawn-autoep-0.19.6.json").read_text("utf-8"))["cases"]
TAPES: dict[str, Any] = json.loads((FOLDER / "autoep-tape-0.19.6.json").read_text("utf-8"))["cases"]
STOPS: dict[str, Any] = {name: case for name, case in (FEW | DRAWN).items() if "stops" in case["found"]}
CASES: dict[str, Any] = {name: case for name, case in (FEW | DRAWN).items() if name not in STOPS}
PRESETS = {"qwen3_moe": "qwen3-30b-a3b", "qwen2_moe": "qwen1.5-moe-a2.7b", "mixtral": "mixtral-8x7b"}
OURS = {"all_reduce": "all_reduce", "all_gather_into_tensor": "all_gather", "all_to_all_single": "all_to_all",
        "reduce_scatter_tensor": "reduce_scatter"}


def asked(case: dict[str, Any]) -> dict[str, Any]:
    return {"options": case["options"], "seq_len": 32, "recompute": "full" if case["checkpoint"] else "none",
            "rank": case["rank"], "implementation": "autoep",
            "model": {"config": PRESETS[case["type"]], "overrides": case["model"]}}


def mesh_of(case: dict[str, Any]) -> dict[str, int]:
    return {"dp_shard" if case["stage"] else "dp_replicate": case["ranks"], "ep": case["ep"]}


def made(case: dict[str, Any]) -> Program:
    return small.program_of(f"zero{case['stage']}", mesh_of(case), microbatches=case["steps"],
                            top_k=case["model"]["num_experts_per_tok"], **asked(case))


def placed(case: dict[str, Any]) -> Plan:
    return small.plan_of(f"zero{case['stage']}", mesh_of(case), **asked(case))


def theirs(rows: list[list[Any]], call: str) -> list[tuple[int, int]]:
    """(bytes, ranks of the group) of each call, without numbers of a few bytes, and of groups of one rank."""
    return [(size, ranks) for name, size, ranks, times in rows for _ in range(times)
            if name == call and size > 8 and ranks > 1]


def ours(case: dict[str, Any], program: Program, call: str, *, step: bool) -> list[tuple[int, int]]:
    size_of = {"ep": case["ep"], "expert_dp": case["ranks"] // case["ep"], "dp_shard": case["ranks"],
               "dp_replicate": case["ranks"]}
    return [(size, size_of[axis]) for axis, phase, size in small.calls(program, OURS[call])
            if (phase == "optimizer") is step and size_of[axis] > 1 and size > 8]


def alike(stage: int, call: str, calls: list[tuple[int, int]], *, step: bool) -> Any:
    """Calls as they are compared: stage 3's gathers for each group of ranks, and behind its update their sum.

    A gather over two groups is two calls, in the order of a set (`partition_parameters.py`, params_by_group).
    """
    if stage < 3 or call != "all_gather_into_tensor":
        return calls
    found = {ranks: [size for size, of in calls if of == ranks] for _, ranks in calls}
    return {ranks: sum(sizes) for ranks, sizes in found.items()} if step else found


def test_everything_is_sent_that_upstream_sends_call_by_call() -> None:
    """Counts and rows to the ranks of experts and back; gradients of all ranks, and of those with the same experts."""
    wrong: list[tuple[str, ...]] = []
    for name, case in CASES.items():
        program, found = made(case), case["found"]
        for call in OURS:
            sent = [one for rows in found["microbatches"] for one in theirs(rows, call)]
            for step, rows in ((False, sent), (True, theirs(found["step"], call))):
                mine = ours(case, program, call, step=step)
                if alike(case["stage"], call, mine, step=step) != alike(case["stage"], call, rows, step=step):
                    wrong.append((name, call, "step" if step else ""))
    assert wrong == []
    assert len(set(DRAWN) & set(CASES)) >= 40


def test_every_call_of_stage_3_has_gathered_what_upstreams_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements, parameters on their way and bytes of flat buffers in the last microbatch, over both groups of ranks."""
    wrong = []
    for name, case in CASES.items():
        if case["stage"] == 3:
            found = zero3_calls.fetched(partial(made, case | {"steps": 1}), monkeypatch)
            if found != [rest for _, *rest in case["found"]["fetched"]]:
                wrong.append(name)
            monkeypatch.undo()
    assert wrong == []


def test_where_upstream_stops_the_layout_is_refused() -> None:
    """A parameter that is gathered ahead alone, beside experts of other ranks, is freed and still marked as there."""
    for case in STOPS.values():
        assert case["found"]["stops"].startswith("size mismatch")
        with pytest.raises(IllegalLayout, match="stage3_prefetch_bucket_size: 0"):
            made(case)
    assert len(STOPS) > 3


def test_a_rank_has_the_tensors_that_upstreams_has_in_their_order() -> None:
    for name, case in CASES.items():
        plan = placed(case)
        shapes = [list(one.used_shape) for layer in plan.layers for one in plan.of_layer(layer)
                  if one.spec.is_owned and not one.spec.is_buffer]
        assert shapes == [shape for _, shape in case["found"]["tensors"]], name


def test_experts_are_taken_out_of_the_group_of_all_others() -> None:
    """The first flat buffer has no experts; lengths of all of them are those that the step gathers."""
    for name, case in CASES.items():
        if 0 < case["stage"] < 3:
            dense, *_ = groups_of(placed(case))
            assert [numel for *_, numel in dense.entries] == case["found"]["kept"]["order"], name


# ---- the block's own memory -----------------------------------------------------------------------------------------
TOKENS, HIDDEN, LEAST = 64, 128, 2000


def recorded(case: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Bytes of allocations and frees (negative) of forward and backward of one block."""
    ep, shared = case["ep"], case["type"] == "qwen2_moe"
    experts = case["model"].get("num_experts") or case["model"]["num_local_experts"]
    block = Moe(HIDDEN, experts, 2, 96, 64 * shared, gated=True, router="softmax",
                normalised=case["type"] == "mixtral", shared_gate=shared)
    local = experts // ep
    shapes = {"router.gate.weight": (experts, HIDDEN), "experts.w1": (local, 96, HIDDEN),
              "experts.w2": (local, HIDDEN, 96), "experts.w3": (local, 96, HIDDEN),
              "shared_experts.gate_proj.weight": (64, HIDDEN), "shared_experts.up_proj.weight": (64, HIDDEN),
              "shared_experts.down_proj.weight": (HIDDEN, 64), "shared_experts_gate.weight": (1, HIDDEN)}
    run = LayerWorkload(1, TOKENS, "bf16", {f"mlp.{name}": Param(f"mlp.{name}", shape, "bf16", trainable=True)
                                            for name, shape in shapes.items()}, ep=ep,
                        options=HfOptions(experts=deepspeed_experts))
    tape = Tape({}, {})
    x = hidden_state(tape, run, TOKENS, HIDDEN)
    out = moe(tape, run, Branch(name="mlp", norm="norm", block=block), x)
    forward = tape.cut()
    backward = run_backward(tape, out, x.node, nothing)
    first, second = ([row[3] for row in section.rows if row[0] in (Op.ALLOC, Op.FREE) and abs(row[3]) >= LEAST]
                     for section in (forward, backward))
    return first, second


def settled(events: list[int]) -> list[int]:
    """Events whose last frees, which come when the block returns, are in order of size."""
    last = next(at for at in range(len(events), 0, -1) if events[at - 1] > 0)
    return [*events[:last], *sorted(events[last:])]


def test_a_block_makes_and_drops_tensors_as_upstreams_does_one_by_one() -> None:
    """The gradient that comes in is dropped here when it was cast; the probe keeps it, and drops the output last."""
    passed = 2 * TOKENS * HIDDEN
    for name, case in TAPES.items():
        (forward, backward), found = recorded(case), case["found"]
        assert settled(forward) == settled([one for one in found["forward"] if abs(one) >= LEAST]), name
        theirs = [one for one in found["backward"] if abs(one) >= LEAST]
        assert backward.pop(backward.index(2 * passed) + 1) == -passed, name  # its copy in fp32 is there
        theirs.reverse()
        theirs.remove(-passed)
        assert settled(backward) == settled(theirs[::-1]), name
