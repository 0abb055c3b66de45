"""Records of all kinds of Megatron-Core's layers against published and measured bytes, FLOPs and collectives."""

from __future__ import annotations

import pytest

from every import expect_of_every
from operators.megatron.kinds import (
    ATTENTION,
    EVERY,
    HEAD,
    LLAMA,
    LOSS,
    MAMBA,
    MOE,
    NORM,
    H,
    T,
    check_closed,
    kept_in,
    run_of,
)
from simcore.models.blocks import LayerKind
from simcore.operators.megatron.implementation import record
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.recording.rows import Module
from simcore.recording.tape import Kernel, Op, Section

WORKLOADS: list[dict[str, object]] = [
    {}, {"lora": 32}, {"frozen": True}, {"checkpoint": "full"}, {"checkpoint": "moe,layernorm"},
    {"checkpoint": "moe_act"}, {"checkpoint": "shared_experts,core_attn,mlp"},
    {"tp": 2, "sequence_parallel": True, "ep": 8},
    {"tp": 2, "sequence_parallel": True, "etp": 2, "ep": 4, "lora": 32}, {"tp": 2}, {"cp": 2, "ep": 8},
    {"ep": 8, "options": MegatronOptions(dispatcher="flex")},
    {"ep": 8, "options": MegatronOptions(bias_activation_fusion=False, moe_router_dtype="bf16")},
    {"tp": 2, "sequence_parallel": True, "etp": 2, "options": MegatronOptions(moe_router_dtype="bf16")},
    {"checkpoint": "moe", "options": MegatronOptions(bias_activation_fusion=False)},
    {"checkpoint": "mla_up_proj"}, {"checkpoint": "mla_up_proj,layernorm,core_attn,mlp", "tp": 2,
                                    "sequence_parallel": True, "ep": 8},
    {"checkpoint": "mla_up_proj,layernorm,moe", "frozen": True},
    {"tp": 2, "ep": 8, "options": MegatronOptions(apply_rope_fusion=True)},
    {"checkpoint": "mla_up_proj", "options": MegatronOptions(apply_rope_fusion=True)},
    {"tp": 2, "options": MegatronOptions(attention_backend="unfused", gradient_accumulation_fusion=False)},
    {"options": MegatronOptions(attention_backend="unfused", masked_softmax_fusion=False)},
    {"checkpoint": "core_attn", "options": MegatronOptions(attention_backend="flash")},
    {"ep": 4, "options": MegatronOptions(dispatcher="allgather")},
    {"tp": 2, "sequence_parallel": True, "etp": 2, "options": MegatronOptions(dispatcher="allgather")},
    {"ep": 2, "options": MegatronOptions(moe_permute_fusion=False, deterministic_mode=True)},
    {"lora": 8, "checkpoint": "moe_act,layernorm"}, {"lora": 8, "input_requires_grad": False, "first": True},
]


@pytest.mark.parametrize("kind", EVERY, ids=lambda k: k.name)
def test_all_that_is_born_dies(kind: LayerKind) -> None:
    def closed(options: dict[str, object]) -> None:
        for loss in ("megatron", "megatron_unfused", "te", "te_inplace") if kind is LOSS else ("megatron",):
            run = run_of(kind, tokens=512, loss=loss, **options)  # type: ignore[arg-type]
            check_closed(kind, run, record(kind, run, {}, {}))

    expect_of_every(((str(options), options) for options in WORKLOADS), closed)


# research/activations.md table 1.1, rows "Megatron alltoall"; attention and Mamba of "frozen" from section 1.2.
@pytest.mark.parametrize(("kind", "options", "per_token"), [
    (MAMBA, {}, 55_972), (MOE, {}, 105_248), (ATTENTION, {}, 28_292), (NORM, {}, 5_380),
    (MAMBA, {"lora": 32}, 56_100), (MOE, {"lora": 32}, 106_144), (ATTENTION, {"lora": 32}, 28_420),
    (MAMBA, {"lora": 8}, 56_004), (ATTENTION, {"lora": 8}, 28_324),
    (MAMBA, {"frozen": True}, 42_404), (ATTENTION, {"frozen": True}, 22_916),
    (MOE, {"checkpoint": "moe_act"}, 82_976),
    (MOE, {"checkpoint": "shared_experts"}, 105_248 - 4 * 3712),
    (MAMBA, {"checkpoint": "full"}, 5_376), (ATTENTION, {"checkpoint": "full"}, 5_376),
    (MAMBA, {"checkpoint": "moe,layernorm"}, 55_972),
], ids=str)
def test_kept_bytes_are_the_closed_forms(kind: LayerKind, options: dict[str, object], per_token: int) -> None:
    assert kept_in(kind, run_of(kind, ep=8, **options)) == per_token * T  # type: ignore[arg-type]


def _modules(section: Section, op: Op = Op.COMPUTE) -> dict[Module, set[int]]:
    """Kernels, or collectives between them, of each module."""
    found: dict[Module, set[int]] = {}
    for row in section.rows:
        if row[0] == op:
            found.setdefault(Module(row[4] & 7 if op is Op.COMPUTE else row[5]), set()).add(row[2])
    return found


@pytest.mark.parametrize("checkpoint", ["none", "full", "moe_act"])
def test_kernels_know_their_module(checkpoint: str) -> None:
    """Kernels name the modules that a CUDA graph may hold: forward, replays and backward are alike."""
    tape = record(MOE, run_of(MOE, checkpoint=checkpoint, ep=8), {}, {})
    for found in (_modules(tape.forward), _modules(tape.backward)):
        assert set(found) == {Module.MOE_ROUTER, Module.SHARED_EXPERTS, Module.MOE_PREPROCESS, Module.MOE}
        assert found[Module.MOE_PREPROCESS] == {Kernel.PERMUTE}
        assert [m for m, kernels in found.items() if Kernel.GROUPED_GEMM in kernels] == [Module.MOE]
        assert Kernel.NORM in found[Module.MOE_ROUTER]
        assert Kernel.GEMM in found[Module.SHARED_EXPERTS]
    assert set(_modules(tape.forward, Op.COLLECTIVE)) == {Module.MOE, Module.MOE_PREPROCESS}  # its counts
    both = record(LLAMA, run_of(LLAMA, tp=2, checkpoint=checkpoint), {}, {})
    for section in (both.forward, both.backward):
        assert set(_modules(section)) == set(_modules(section, Op.COLLECTIVE)) == {Module.ATTN, Module.MLP}
    assert set(_modules(record(MAMBA, run_of(MAMBA), {}, {}).forward)) == {Module.MAMBA}


@pytest.mark.parametrize("tp", [2, 4])
def test_tensor_and_sequence_parallelism_split_what_is_kept(tp: int) -> None:
    # activations.md section 4 with /tp; rsigma is one number for a *local* row, so it is split too.
    run = {"tp": tp, "sequence_parallel": True, "ep": 8}
    assert kept_in(MAMBA, run_of(MAMBA, **run)) == 55_972 * T // tp  # type: ignore[arg-type]
    assert kept_in(MOE, run_of(MOE, **run)) == 105_248 * T // tp  # type: ignore[arg-type]


def test_flops_of_a_forward_pass_are_counted_ones() -> None:
    # research/time.md section 1: projections, scan, experts, attention at 8192.
    def flops(kind: LayerKind, *kernels: Kernel) -> int:
        rows = record(kind, run_of(kind, ep=8), {}, {}).forward.rows
        return sum(r[3] for r in rows if r[0] == Op.COMPUTE and r[2] in kernels) // T

    assert flops(MAMBA, Kernel.GEMM) == 55_394_304 + 22_020_096
    assert flops(MAMBA, Kernel.CONV) == 49_152
    assert flops(MAMBA, Kernel.MAMBA_SCAN) == pytest.approx(3_416_064, rel=0.005)
    assert flops(MOE, Kernel.GEMM, Kernel.GROUPED_GEMM) == 688_128 + 119_734_272 + 39_911_424
    assert flops(ATTENTION, Kernel.GEMM) == 46_792_704
    assert flops(ATTENTION, Kernel.ATTENTION) == 67_108_864
    assert flops(HEAD, Kernel.GEMM) == 704_643_072


def test_collectives_of_dispatch_and_sequence_parallelism() -> None:
    def sent(kind: LayerKind, **options: object) -> dict[tuple[str, str, str], list[int]]:
        comms: dict[tuple[str, str, str], int] = {}
        tape = record(kind, run_of(kind, **options), {}, comms)  # type: ignore[arg-type]
        names = {row: key for key, row in comms.items()}
        found: dict[tuple[str, str, str], list[int]] = {}
        for r in tape.forward.rows:
            if r[0] == Op.COLLECTIVE:
                found.setdefault(names[r[2]], []).append(r[3])
        return found

    rows = 6 * T
    assert sent(MOE, ep=8) == {("all_gather", "ep", "int64"): [8 * 8 * 128],
                               ("all_to_all", "ep", "bf16"): [rows * 2 * H] * 2,
                               ("all_to_all", "ep", "fp32"): [4 * rows]}
    assert sent(MOE) == {}
    assert sent(MAMBA, tp=2, sequence_parallel=True) == {
        ("all_gather", "tp", "bf16"): [2 * H * T], ("reduce_scatter", "tp", "bf16"): [2 * H * T]}
    assert sent(MAMBA, tp=2) == {("all_reduce", "tp", "bf16"): [2 * H * T]}
    assert sent(LOSS, tp=2) == {("all_reduce", "tp", "fp32"): [4 * T, 8 * T]}
    assert sent(LOSS, tp=2, loss="megatron_unfused") == {("all_reduce", "tp", "fp32"): [4 * T] * 3}
