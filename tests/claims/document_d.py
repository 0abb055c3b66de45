"""Document D: a guide to several GPUs with Unsloth, TRL and accelerate, and serving with vLLM, M55 to M58."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from claims.asked import at_rest_gb, fullest, num_params, ran, scenario
from claims.claim import REFUTED, REPRODUCED, Claim, Figure
from simcore.inputs.loading import load
from simcore.results.report import Report

__all__ = ["CLAIMS"]

SERVING = Path(__file__).resolve().parents[2] / "scenarios" / "nano-grpo" / "serve.yaml"
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LORA: dict[str, Any] = {"method": "lora", "lora": {"rank": 16, "alpha": 16, "target_modules": TARGETS}, "seq_len": 4096}


def _alone() -> Report:
    return ran(scenario("ddp", {"dp_replicate": 1}, recompute="full", precision={"params": "bf16"}, **LORA))


def _sizes() -> Sequence[Figure]:
    counted = num_params()
    idle = counted["routed_experts"] * (128 - 6) // 128
    return [Figure("parameters at work for a token", 3.6, (sum(counted.values()) - idle) / 1e9, unit="billion"),
            Figure("LoRA in 16 bits: the weights alone", 60.0, at_rest_gb(_alone(), "params_bytes"), unit="GB")]


def _targets() -> Sequence[Figure]:
    told = _alone().adapters
    assert told is not None
    matched = any("in_proj" in name for name in told.adapted)
    return [Figure("gate_proj is a module", "yes", "no" if "gate_proj" in told.unmatched_targets else "yes"),
            Figure("Mamba's in_proj is trained", "yes", "yes" if matched else "no")]


def _replicas() -> Sequence[Figure]:
    one, four = (ran(scenario("ddp", {"dp_replicate": gpus}, recompute="full", precision={"params": "bf16"}, **LORA))
                 for gpus in (1, 4))
    held = fullest(one).peak
    assert held is not None
    return [Figure("a GPU of four holds of what one alone does", 1.0, at_rest_gb(four) / at_rest_gb(one), unit="times"),
            Figure("a KV cache is in training's memory", "yes", "yes" if held.by_category.get("kv_cache") else "no")]


@cache
def _served() -> tuple[Report, ...]:
    return tuple(ran(asked) for asked in load(SERVING))


def _serving() -> Sequence[Figure]:
    plain, narrow = _served()[0].serving, _served()[1].serving
    assert plain is not None
    assert narrow is not None
    return [Figure("copies of a KV head with tp 4", 2.0, float(plain.kv_head_replicas)),
            Figure("longest sequence that is let in", 262_144.0, float(min(plain.longest, 262_144))),
            Figure("an fp8 cache, of the bytes a token", 0.5, narrow.kv_bytes_per_token / plain.kv_bytes_per_token)]


CLAIMS: tuple[Claim, ...] = (
    Claim("M55", "3.6 B parameters at work; LoRA in 16 bits in about 60 GB.", REFUTED,
          "The weights alone are 63 GB in bf16; without offload they cannot take less.", _sizes),
    Claim("M56", "LoRA on q, k, v, o, gate, up and down projections.", REFUTED,
          "This model has no gate, and Mamba's input projection is not in the list.", _targets),
    Claim("M57", "DDP replicates the model, so four GPUs do not make it fit; context and its KV cache dominate.",
          REFUTED,
          "Every replica holds everything, that is so. But a training step has no KV cache.", _replicas),
    Claim("M58", "vLLM with tp 4: two KV heads are copied twice; 262,144 tokens; an fp8 cache is half.", REPRODUCED,
          "The engine's own rules for heads, pages and formats.", _serving),
)
