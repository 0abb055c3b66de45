"""Contradictions between the documents, X1 to X12, decided by the code of the frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from claims.asked import (
    FLEX,
    at_rest_gb,
    fullest,
    held_gb,
    num_params,
    peak_gb,
    ran,
    scenario,
    trained,
    verdict,
    visited,
    yes,
)
from claims.claim import REFUTED, REPRODUCED, Claim, Figure
from claims.document_a_counts import adapted, overhead_gb
from claims.document_a_layouts import SERVED, asked_of_bridge, bridge, total
from claims.document_b import at_work
from claims.document_c_table import full
from claims.document_d import unsloth
from simcore.inputs.loading import load
from simcore.results.report import Report
from simcore.simulate import check

__all__ = ["CLAIMS"]

EIGHT: Final = {"dp_shard": 8, "ep": 8}


def _per_token() -> Sequence[Figure]:
    return [Figure("A: experts of a token, by rows that are sent", 6.0, visited(), "6"),
            Figure("B: experts of a token", 5.0, visited(), "6", False, decides=True)]


def _active() -> Sequence[Figure]:
    whole = sum(num_params().values()) / 1e9
    return [Figure("D: at work, both embeddings counted", 3.6, at_work(), "X*6/128 + D", unit="billion"),
            Figure("A, B: at work", 3.5, at_work(), "X*6/128 + D", False, unit="billion", decides=True),
            Figure("A: all", 31.6, whole, "X + D", unit="billion", within=0.001),
            Figure("B: all", 30.0, whole, "X + D", False, unit="billion", decides=True)]


def _context() -> Sequence[Figure]:
    asked = load(SERVED)[0]
    rest = asked.model_dump(mode="json")
    admitted = [tokens for tokens in (262_144, 1_048_576) if check(type(asked).model_validate(
        rest | {"generation": rest["generation"] | {"max_model_len": tokens}})).status == "ok"]
    serving = ran(asked).serving
    assert serving is not None
    return [Figure("A: longest sequence; D: default", 262_144.0, float(max(admitted)), "262144", decides=True),
            Figure("D: memory holds a million tokens", "yes", yes(serving.longest >= 1_048_576), "yes", decides=True),
            Figure("keys and values of a million tokens on one of 4 GPUs", None,
                   1_048_576 * serving.kv_bytes_per_token / 1e9, "2**20*6*2*128*2", None, unit="GB")]


def _states() -> Sequence[Figure]:
    """Bytes of optimizer states a trained parameter, as each framework keeps them by default."""
    def per_parameter(report: Report) -> float:
        kept = fullest(report).at_rest.values()
        return sum(c.optimizer_bytes for c in kept) / trained(report)

    mesh, llama = {"dp_shard": 1}, "llama-3.2-3b"
    return [Figure("A: Adam, 8 bytes (FSDP2 with fp32 parameters)", 8.0, per_parameter(ran(scenario("fsdp2", mesh))),
                   "4 + 4"),
            Figure("C: Adam with a master, 12 bytes (ZeRO)", 12.0, per_parameter(ran(scenario("zero1", mesh))),
                   "4 + 4 + 4"),
            Figure("E: fp16 Adam, 4 bytes (torch AdamW of fp16 parameters)", 4.0, per_parameter(ran(scenario(
                "ddp", {"dp_replicate": 1}, precision={"params": "fp16", "compute": "fp16"}, model=llama))), "2 + 2"),
            Figure("E: all of them, Llama-3.2-3B", None, at_rest_gb(ran(scenario(
                "ddp", {"dp_replicate": 1}, precision={"params": "fp16", "compute": "fp16"}, model=llama)),
                "optimizer_bytes"), "4*B", None, unit="GB"),
            Figure("the same, Automodel's default for Llama", 4.0,
                   per_parameter(ran(scenario("automodel", {"dp_shard": 2}, model=llama))), "2 + 2")]


def _units() -> Sequence[Figure]:
    capacity = bridge(EIGHT).capacity_bytes
    assert capacity is not None
    return [Figure("80 GB of a card, for a program", 80.0, capacity / 1e9, "card", False, unit="GB",
                   decides=True),
            Figure("the same in units of 2^30", 80.0, capacity / 2**30, "card", unit="GiB")]


def _copies_of_adapters() -> Sequence[Figure]:
    def of_experts(framework: str) -> float:
        etp = {"etp": 1} if framework == "megatron" else {}
        patterns = {"target_modules": ["*experts"]} if framework == "automodel" else {}
        options = FLEX if framework == "megatron" else {}
        asked = scenario(framework, {**EIGHT, **etp}, options=options, method="lora", lora={"rank": 8, **patterns})
        return float(sum(rank.at_rest["expert_adapters"].num_params * rank.num_ranks for rank in ran(asked).ranks))

    return [Figure("Automodel: adapters of experts on 8 ranks: replicated", 8 * 8 * 26.755072,
                   of_experts("automodel") / 1e6, "8*AE", False, unit="million", decides=True),
            Figure("Automodel: the same: split over ep", 8 * 26.755072, of_experts("automodel") / 1e6, "8*AE",
                   unit="million"),
            Figure("Megatron: 8 ranks, each with its own", None, of_experts("megatron") / 1e6, "8*8*AX", None,
                   unit="million")]


def _sixty() -> Sequence[Figure]:
    alone = bridge({"dp_shard": 1})
    return [Figure("D: LoRA 16 with Unsloth's settings, 2048 tokens", 60.0, unsloth(2048), "2*(X + D) + 2048*162448",
                   unit="GiB", within=0.03),
            Figure("A: LoRA 32 under Megatron, nothing recomputed, 2048 tokens", 79.7, peak_gb(alone),
                   total(2048, "2*(X + D)", outside="ctx + libs"), unit="GB", within=0.03)]


def _defaults() -> Sequence[Figure]:
    report = bridge(EIGHT)
    return [Figure("A: LoRA on 8", "fits", verdict(report), "fits"),
            Figure("B: LoRA on 8, like full fine-tuning", "does not fit", verdict(report), "fits", False,
                   decides=True),
            Figure("a GPU of 8", None, peak_gb(report), total(2048), None, unit="GB")]


def _activations() -> Sequence[Figure]:
    def held(seq_len: int) -> float:
        return 24 * held_gb(full(24, seq_len=seq_len), "activation", "recompute")

    one = "24*4096*(76*20480 + 4*W)"
    return [Figure("C: 2 bytes a parameter, one sequence of 4096 on each of 24 GPUs", 200.0, held(4096), one,
                   unit="GB"),
            Figure("C: 2 bytes a parameter, 8192 tokens", 200.0, held(8192), f"2*{one}", False, unit="GB",
                   decides=True),
            Figure("C elsewhere: by tokens, 8192 of 4096", 2.0, held(8192) / held(4096), "2", unit="times")]


def _fewest() -> Sequence[Figure]:
    mesh = {"dp_shard": 4, "tp": 2, "ep": 8}
    legal = check(asked_of_bridge(mesh)).status == "ok"
    return [Figure("tp 2 with ep 8 and etp 1 on 8 GPUs is legal", "no", yes(legal), "yes", False, decides=True),
            Figure("weights of a GPU of the 8", None, held_gb(bridge(mesh), "sharded_param"),
                   "2*(X/8 + D/2) + 2*AM*32*0.6", None, unit="GB")]


def _out_proj() -> Sequence[Figure]:
    rule: dict[str, Any] = {"exclude_modules": ["*.out_proj"]}
    return [Figure("A: Mamba layers in which Megatron adapts out_proj", 23.0, float(adapted("megatron")[0]), "23"),
            Figure("A: Automodel's recipe adapts it", "no", yes(adapted("automodel", **rule)[0]), "no"),
            Figure("A: Automodel without that rule: layers in which it never learns", 23.0,
                   float(adapted("automodel")[1]), "23")]


CLAIMS: tuple[Claim, ...] = (
    Claim("X1", "5 or 6 experts of a token.", REFUTED, "6 of them.", _per_token),
    Claim("X2", "3.5 or 3.6 B at work, 30 or 31.6 B in all.", REFUTED,
          "With both embeddings counted, 3.6 and 31.6 are the rounded numbers; the others are rounded down.", _active),
    Claim("X3", "262,144 or a million tokens.", REPRODUCED,
          "No contradiction: the configuration says 262,144, and D names it as the default beside the million. Memory "
          "would hold a million; vLLM admits more than the configuration says by an override.", _context),
    Claim("X4", "8, 12 or 4 bytes of states a trained parameter.", REPRODUCED,
          "All three, by framework and format: moments in fp32, with a master, and moments in the 16 bits of the "
          "parameters.", _states),
    Claim("X5", "80 GB, in which unit.", REFUTED,
          "Units of 2^30: a card of 80 GB gives a program more than 80e9 bytes.", _units),
    Claim("X6", "2 to 4 GB of overhead, sometimes left out.", REFUTED,
          "CUDA context, NCCL's buffers, dispatcher and what the allocator cannot use: 2 GB with DeepEP, more than 4 "
          "with the default dispatcher, whose sends and receives have a buffer for each peer.", overhead_gb),
    Claim("X7", "Adapters lie on all ranks, or are split over ep.", REFUTED,
          "On all ranks they do not: Automodel splits those of experts over ep, Megatron gives each rank its own.",
          _copies_of_adapters),
    Claim("X8", "LoRA in 16 bits takes 60 GB, or 79.7.", REPRODUCED,
          "Both, of different jobs: the first in the unit of GPU tools and with activations on the host, the second "
          "with everything kept.", _sixty),
    Claim("X9", "LoRA by default on 8 GPUs, or on 16.", REFUTED, "It fits on 8.", _defaults),
    Claim("X10", "Activations are 2 bytes a parameter, or follow tokens.", REFUTED,
          "They follow tokens; at one length they happen to be 2 bytes a parameter (M38).", _activations),
    Claim("X11", "tp 2 needs 16 GPUs.", REFUTED, "With etp 1 it is legal on 8.", _fewest),
    Claim("X12", "Mamba's out_proj is forbidden, and counted.", REPRODUCED,
          "By framework: Megatron calls it as a module and adapts it; where a fused kernel reads its weight, recipes "
          "exclude it.", _out_proj),
)
