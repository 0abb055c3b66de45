"""Contradictions between the documents, X1 to X12, decided by the code of the frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from claims.asked import GB, NANO, fullest, num_params, ran, scenario
from claims.claim import REFUTED, REPRODUCED, Claim, Figure
from simcore.hardware.topology import load_topology
from simcore.models.graph import model_config
from simcore.results.report import Report

__all__ = ["CLAIMS"]

LORA: dict[str, Any] = {"method": "lora", "lora": {"rank": 32, "alpha": 32}}
FLEX = {"moe_token_dispatcher_type": "flex"}


def _config(field: str) -> int:
    return int(model_config(NANO, None, "model")[field])


def _per_token() -> Sequence[Figure]:
    return [Figure("A: experts of a token", 6.0, float(_config("num_experts_per_tok"))),
            Figure("B: experts of a token", 5.0, float(_config("num_experts_per_tok")))]


def _active() -> Sequence[Figure]:
    counted = num_params()
    idle = counted["routed_experts"] * (128 - 6) // 128
    active = (sum(counted.values()) - idle) / 1e9
    return [Figure("D: at work, both embeddings counted", 3.6, active, unit="billion"),
            Figure("A, B: at work", 3.5, active, unit="billion"),
            Figure("A: all", 31.6, sum(counted.values()) / 1e9, unit="billion", within=0.001)]


def _context() -> Sequence[Figure]:
    longest = float(_config("max_position_embeddings"))
    return [Figure("A: longest sequence", 262_144.0, longest), Figure("D: longest sequence", 1_048_576.0, longest)]


def _states() -> Sequence[Figure]:
    """Bytes of optimizer states a trained parameter, as each framework keeps them by default."""
    def per_parameter(report: Report) -> float:
        kept = fullest(report).at_rest["mamba"]
        return kept.optimizer_bytes / kept.num_trainable_params

    mesh = {"dp_shard": 1}
    return [Figure("A: Adam, 8 bytes", 8.0, per_parameter(ran(scenario("fsdp2", mesh)))),
            Figure("C: Adam with a master, 12 bytes", 12.0, per_parameter(ran(scenario("zero1", mesh)))),
            Figure("E: fp16 Adam, 4 bytes", 4.0, per_parameter(ran(scenario("zero1", mesh, precision={
                "compute": "fp16"}))))]


def _units() -> Sequence[Figure]:
    memory = load_topology("dgx-h100").device.memory
    return [Figure("80 GB of a card, for a program", 80.0, memory.usable.si / GB, unit="GB"),
            Figure("the same in units of 2^30", 80.0, memory.usable.si / 2**30, unit="GiB")]


def _overhead() -> Sequence[Figure]:
    peak = fullest(ran(scenario("megatron", {"dp_shard": 8, "ep": 8, "etp": 1}, options=FLEX, **LORA))).peak
    assert peak is not None
    return [Figure("between what is allocated and what the device holds", 3.0,
                   (peak.device_bytes - peak.allocated_bytes) / GB, unit="GB", within=0.5)]


def _copies_of_adapters() -> Sequence[Figure]:
    def of_experts(framework: str) -> int:
        mesh = {"dp_shard": 8, "ep": 8} | ({"etp": 1} if framework == "megatron" else {})
        patterns = {"target_modules": ["*experts"]} if framework == "automodel" else {}
        options = FLEX if framework == "megatron" else {}
        asked = scenario(framework, mesh, options=options, method="lora", lora={"rank": 8, **patterns})
        return sum(rank.at_rest["expert_adapters"].num_params * rank.num_ranks for rank in ran(asked).ranks)

    return [Figure("Automodel: adapters of experts on all ranks, of one copy", 8.0, of_experts("automodel")
                   / (8 * 26_755_072), unit="times"),
            Figure("Megatron: every rank has its own", "yes", "yes" if of_experts("megatron") > 0 else "no")]


def _sixty() -> Sequence[Figure]:
    peak = fullest(ran(scenario("ddp", {"dp_replicate": 1}, method="lora", precision={"params": "bf16"},
                                recompute="full", lora={"rank": 8}))).peak
    assert peak is not None
    return [Figure("D: LoRA in 16 bits on one GPU", 60.0, peak.device_bytes / GB, unit="GB"),
            Figure("A: the same", 79.7, peak.device_bytes / GB, unit="GB", within=0.15)]


def _defaults() -> Sequence[Figure]:
    report = ran(scenario("megatron", {"dp_shard": 8, "ep": 8, "etp": 1}, options=FLEX, **LORA))
    return [Figure("A: LoRA on 8", "fits", report.verdict or ""),
            Figure("B: LoRA needs what full fine-tuning does, 16", "oom", report.verdict or "")]


def _activations() -> Sequence[Figure]:
    def held(seq_len: int) -> float:
        peak = fullest(ran(scenario("megatron", {"dp_shard": 8, "ep": 8, "etp": 1}, options=FLEX, seq_len=seq_len,
                                    **LORA))).peak
        assert peak is not None
        return peak.by_category.get("activation", 0) / GB

    return [Figure("C: 2 bytes a parameter, whatever the tokens", held(2048), held(4096), unit="GB"),
            Figure("C elsewhere: by tokens", 2 * held(2048), held(4096), unit="GB", within=0.1)]


def _fewest() -> Sequence[Figure]:
    mesh = {"dp_shard": 4, "tp": 2, "ep": 8, "etp": 1}
    report = ran(scenario("megatron", mesh, options=FLEX, **LORA))
    return [Figure("tp 2 with ep 8, GPUs", 16.0, float(sum(rank.num_ranks for rank in report.ranks)))]


def _out_proj() -> Sequence[Figure]:
    def adapted(framework: str, **lora: object) -> str:
        mesh = {"dp_shard": 8, "ep": 8} | ({"etp": 1} if framework == "megatron" else {})
        options = FLEX if framework == "megatron" else {}
        told = ran(scenario(framework, mesh, options=options, method="lora", lora={"rank": 8, **lora})).adapters
        assert told is not None
        return "yes" if any("out_proj" in name for name in told.adapted) else "no"

    return [Figure("A: Megatron adapts Mamba's out_proj", "yes", adapted("megatron")),
            Figure("A: Automodel's recipe adapts it", "no", adapted("automodel", exclude_modules=["*.out_proj"]))]


CLAIMS: tuple[Claim, ...] = (
    Claim("X1", "5 or 6 experts of a token.", REFUTED, "6.", _per_token),
    Claim("X2", "3.5 or 3.6 B at work, 30 or 31.6 B in all.", REFUTED,
          "As many are at work with both embeddings; without the first they are fewer than either says.", _active),
    Claim("X3", "262,144 or a million tokens.", REFUTED, "The configuration says 262,144.", _context),
    Claim("X4", "8, 12 or 4 bytes of states a trained parameter.", REFUTED,
          "8 under FSDP2 with fp32 parameters, 12 under ZeRO; fp16 training has 12 too, never 4.", _states),
    Claim("X5", "80 GB, in which unit.", REFUTED, "An H100 of 80 GB gives a program 84.9 GB, or 79.1 GiB.", _units),
    Claim("X6", "2 to 4 GB of overhead, sometimes left out.", REPRODUCED,
          "CUDA context, NCCL's buffers, dispatcher and what the allocator cannot use.", _overhead),
    Claim("X7", "Adapters lie on all ranks, or are split over ep.", REFUTED,
          "On all ranks they do not: Automodel splits those of experts over ep, Megatron gives each rank its own.",
          _copies_of_adapters),
    Claim("X8", "LoRA in 16 bits takes 60 GB, or 79.7.", REFUTED,
          "More than the weights in any case, and they alone are more than the first says.", _sixty),
    Claim("X9", "LoRA by default on 8 GPUs, or on 16.", REFUTED, "It fits on 8.", _defaults),
    Claim("X10", "Activations are 2 bytes a parameter, or follow tokens.", REFUTED,
          "They follow tokens.", _activations),
    Claim("X11", "tp 2 needs 16 GPUs.", REFUTED, "With etp 1 it is legal on 8.", _fewest),
    Claim("X12", "Mamba's out_proj is forbidden, and counted.", REPRODUCED,
          "By framework: Megatron calls it as a module and adapts it; where a fused kernel reads its weight, recipes "
          "exclude it.", _out_proj),
)
