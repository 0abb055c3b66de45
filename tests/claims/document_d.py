"""Document D: a guide to several GPUs with Unsloth, TRL and accelerate, and serving with vLLM, M55 to M58."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from claims.asked import at_rest_gb, gained_gb, peak_of, ran, scenario, trained, verdict, yes
from claims.claim import REFUTED, REPRODUCED, Between, Claim, Figure
from claims.document_a_layouts import SERVED
from claims.document_b import at_work
from simcore.inputs.loading import load
from simcore.results.report import Report

__all__ = ["CLAIMS", "unsloth"]

TARGETS: Final = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LORA: Final[dict[str, Any]] = {"method": "lora", "lora": {"rank": 16, "alpha": 16, "target_modules": TARGETS},
                               "precision": {"params": "bf16"}, "recompute": "full"}
ADAPTERS: Final = "16*(6*19456 + 23*12800)"
"""Attention's four linears in 6 layers, the shared expert's two in 23."""


def _alone(replicas: int = 1, **given: Any) -> Report:
    return ran(scenario("ddp", {"dp_replicate": replicas}, **{**LORA, "seq_len": 4096, **given}))


def unsloth(seq_len: int) -> float:
    """GiB that tensors take with Unsloth's settings: inputs of layers on the host, logits in chunks."""
    report = _alone(seq_len=seq_len, offload={"activations": "host"}, loss="cut")
    return peak_of(report).allocated_bytes / 2**30


def _sizes() -> Sequence[Figure]:
    return [Figure("parameters at work for a token", 3.6, at_work(), "X*6/128 + D", unit="billion"),
            *(Figure(f"LoRA in 16 bits on one GPU, {tokens} tokens", 60.0, unsloth(tokens),
                     f"2*(X + D) + 6*{ADAPTERS} + {tokens}*162448", unit="GiB", within=0.03)
              for tokens in (1024, 2048, 4096)),
            Figure("of it weights and adapters", None, at_rest_gb(_alone(), "params_bytes"),
                   f"2*(X + D + {ADAPTERS})", None, unit="GB")]


def _targets() -> Sequence[Figure]:
    told = _alone().adapters
    assert told is not None
    matched = any("in_proj" in name for name in told.adapted)
    return [Figure("gate_proj is a module", "yes", yes("gate_proj" not in told.unmatched_targets), "no", False,
                   decides=True),
            Figure("Mamba's in_proj is trained", "yes", yes(matched), "no", False, decides=True),
            Figure("trained at rank 16", None, trained(_alone()) / 1e6, ADAPTERS, None, unit="million")]


def _replicas() -> Sequence[Figure]:
    one, four = _alone(), _alone(4)
    full = ran(scenario("ddp", {"dp_replicate": 4}, precision={"params": "bf16"}, recompute="full"))
    tokens = 100 * gained_gb(one) / (peak_of(one).allocated_bytes / 1e9)
    hand = "4096*(54*5376 + 12*V)"
    return [Figure("a GPU of four holds of what one alone does", 1.0, at_rest_gb(four) / at_rest_gb(one), "1",
                   unit="times"),
            Figure("weights and adapters on each of four", None, at_rest_gb(four, "params_bytes"),
                   f"2*(X + D + {ADAPTERS})", None, unit="GB"),
            Figure("full fine-tuning on four under DDP", "does not fit", verdict(full), "does not fit"),
            Figure("memory that 4096 tokens take: the greater part", Between(50.0, 100.0), tokens,
                   f"100*{hand}/(2*(X + D) + {hand})", False, unit="%", decides=True)]


def _serving() -> Sequence[Figure]:
    report = ran(load(SERVED)[0])
    plain = report.serving
    assert plain is not None
    return [Figure("4 GPUs with 262,144 tokens and an adapter of rank 16", "fits",
                   "does not fit" if plain.refusal or plain.longest < 262_144 else "fits", "fits", decides=True),
            Figure("bytes of keys and values a token, on a GPU", None, float(plain.kv_bytes_per_token),
                   "6*2*128*2", None, unit="bytes"),
            Figure("GPUs that keep the same KV head", None, float(plain.kv_head_replicas), "4/2", None),
            Figure("weights of a GPU: all but routers and norms in quarters", None, plain.weight_bytes / 1e9,
                   "2*(X + D)/4", None, unit="GB")]


CLAIMS: tuple[Claim, ...] = (
    Claim("M55", "3.6 B parameters at work; LoRA in 16 bits in about 60 GB.", REPRODUCED,
          "In the unit that GPU tools show, and with Unsloth's settings, which leave almost nothing beside the "
          "weights.", _sizes),
    Claim("M56", "LoRA on q, k, v, o, gate, up and down projections.", REFUTED,
          "This model has no gate, and Mamba's input projection is not in the list.", _targets),
    Claim("M57", "DDP replicates the model, so four GPUs do not make it fit; context and its KV cache dominate.",
          REFUTED,
          "Every replica holds everything, that is so. But what tokens take is a small part, weights dominate; and a "
          "training step has no KV cache.", _replicas),
    Claim("M58", "vLLM with tp 4 serves 262,144 tokens and an adapter.", REPRODUCED,
          "Two KV heads are fewer than four GPUs, so each is kept twice, which the engine counts.", _serving),
)
