"""Messages of ZeRO among ranks that share sequences (Ulysses): `tests/truth/probe_zero_sequences.py`."""

from __future__ import annotations

import json
from typing import Any

import small
from checkout import ROOT
from simcore.frameworks.deepspeed.split.sequences import FORMAT_OPTION
from simcore.frameworks.deepspeed.strategy import ZeroStrategy
from simcore.program.program import Program

FOLDER = ROOT / "tests/truth/deepspeed"
FEW: dict[str, Any] = json.loads((FOLDER / "sequences-0.19.6.json").read_text("utf-8"))["cases"]
DRAWN: dict[str, Any] = json.loads((FOLDER / "drawn-sequences-0.19.6.json").read_text("utf-8"))["cases"]
PRESETS = {"llama": "llama-3.2-3b", "qwen2": "qwen2.5-7b"}
OURS = {"all_reduce": "all_reduce", "all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter",
        "all_to_all_single": "all_to_all"}


def asked(case: dict[str, Any]) -> dict[str, Any]:
    wire = {FORMAT_OPTION: case["wire"]} if case.get("wire", "fp32") != "fp32" else {}
    return {"options": case["options"] | wire, "seq_len": case["seq"],
            "recompute": "full" if case["checkpoint"] else "none",
            "model": {"config": PRESETS[case["type"]], "overrides": case["model"]}}


def mesh_of(case: dict[str, Any]) -> dict[str, int]:
    return {"dp_shard" if case["stage"] else "dp_replicate": case["ranks"] // case["sp"], "cp": case["sp"]}


def made(case: dict[str, Any]) -> Program:
    return small.program_of(f"zero{case['stage']}", mesh_of(case), microbatches=case["steps"], **asked(case))


def theirs(case: dict[str, Any], call: str) -> list[tuple[int, int]]:
    """(bytes, ranks of the group) of each call in the microbatches, without numbers of a few bytes."""
    return [(size, ranks) for rows in case["found"]["microbatches"] for name, size, ranks, times in rows
            for _ in range(times) if name == call and size > 8]


def ours(case: dict[str, Any], program: Program, call: str) -> list[tuple[int, int]]:
    """The same of the program; positions are gathered by another call."""
    size_of = {"cp": case["sp"], "dp_shard_cp": case["ranks"], "dp_cp": case["ranks"]}
    return [(size, size_of[axis]) for axis, phase, size in small.calls(program, OURS[call])
            if phase != "optimizer" and (call, axis) != ("all_gather_into_tensor", "cp")]


def test_everything_is_sent_that_upstream_sends_call_by_call() -> None:
    wrong = {name: call for name, case in (FEW | DRAWN).items() for call in OURS
             if ours(case, made(case), call) != theirs(case, call)}
    assert wrong == {}
    assert len(DRAWN) >= 40


def test_parts_and_buckets_are_upstreams() -> None:
    """ZeRO-3 cuts each parameter over all ranks, and its bucket is in fp32; ZeRO-1 and 2 send fp32, whatever is set."""
    for name, case in (FEW | DRAWN).items():
        plan, kept = small.plan_of(f"zero{case['stage']}", mesh_of(case), **asked(case)), case["found"]["kept"]
        if case["stage"] == 0:
            continue
        strategy = plan.framework.strategy
        assert isinstance(strategy, ZeroStrategy)
        wire = case.get("wire", "fp32")
        assert kept["formats"] == [{"fp32": "float32", "bf16": "bfloat16"}[wire]], name
        assert strategy.reduce_dtype == (wire if case["stage"] == 3 else "fp32"), name
        if case["stage"] == 3:
            parts = [placed.padded for layer in plan.layers for placed in plan.of_layer(layer) if placed.spec.is_owned]
            assert sorted(parts) == sorted(kept["parts"]), name
            (bucket,) = {size for *_, size in small.postings(made(case), "ipg_bucket")}
            assert bucket == {"fp32": 4, "bf16": 2}[wire] * kept["bucket"][0], name


def test_copies_that_are_sent_are_cast_as_upstream_casts_them() -> None:
    """Copies of the last microbatch: a flat one, and (but for ZeRO-3, whose bucket is wide) its copy in fp32.

    ZeRO-3's shards are cast back. Gradients of embedding and head are as long as their half, and are no copies.
    """
    for name, case in FEW.items():
        if name == "three, small bucket":  # there gradients in bf16 are as long as copies of others in fp32
            continue
        alone = 2 * case["model"]["vocab_size"] * case["model"]["hidden_size"]
        rows, is_cast = case["found"]["microbatches"][-1], case.get("wire") != "bf16" or case["stage"] == 2
        sent = {size for call, size, *_ in rows if call in ("all_reduce", "reduce_scatter_tensor")}
        found = sum(size for size in case["found"]["copies"]
                    if size > 0 and size != alone and (is_cast or size in sent))
        if case["stage"] == 3 and is_cast:
            found += sum(size // ranks // 2 * times for call, size, ranks, times in rows if call.startswith("reduce"))
        copies = [size for *_, size in small.postings(made(case), "flat_bucket") if size > 0]
        assert sum(copies[-(len(copies) // (1 if case["stage"] < 2 else case["steps"])):]) == found, name
