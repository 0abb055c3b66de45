"""Document B: the page of Megatron-Bridge on Nemotron 3 Nano, M30 to M35."""

from __future__ import annotations

from collections.abc import Sequence

from claims.asked import NANO, at_rest_gb, num_params, ran, scenario
from claims.claim import REFUTED, REPRODUCED, UNTESTABLE, Claim, Figure
from simcore.models.graph import model_config

__all__ = ["CLAIMS"]


def _experts_per_token() -> Sequence[Figure]:
    config = model_config(NANO, None, "model")
    letters = str(config["hybrid_override_pattern"])
    counted = num_params()
    routed, shared = int(config["n_routed_experts"]), int(config["n_shared_experts"])
    chosen = int(config["num_experts_per_tok"])
    idle = counted["routed_experts"] * (routed - chosen) // routed + counted["embedding"]
    return [Figure("Mamba-2 layers", 23, letters.count("M")), Figure("MoE layers", 23, letters.count("E")),
            Figure("attention layers", 6, letters.count("*")), Figure("routed experts", 128, routed),
            Figure("shared experts", 1, shared), Figure("experts that a token visits", 5, chosen),
            Figure("parameters at work for a token, embedding left out", 3.5, (sum(counted.values()) - idle) / 1e9,
                   unit="billion", within=0.1),
            Figure("parameters", 30.0, sum(counted.values()) / 1e9, unit="billion", within=0.06)]


def _full_on_two_nodes() -> Sequence[Figure]:
    """Bytes at rest on a GPU before any activation, on one node and on two."""
    one, two = (ran(scenario("megatron", {"dp_shard": ranks, "ep": 8})) for ranks in (8, 16))
    return [Figure("8 GPUs", "does not fit", "fits" if one.verdict == "fits" else "does not fit"),
            Figure("16 GPUs", "fits", "fits" if two.verdict == "fits" else "does not fit"),
            Figure("parameters, gradients and states of a GPU, 8 GPUs", 82.6, at_rest_gb(one), unit="GB"),
            Figure("the same on 16 GPUs", 58.9, at_rest_gb(two), unit="GB")]


def _only_adapters() -> Sequence[Figure]:
    report = ran(scenario("megatron", {"dp_shard": 8, "ep": 8, "etp": 1}, method="lora", lora={"rank": 32},
                          options={"moe_token_dispatcher_type": "flex"}))
    counted = report.ranks[0].at_rest
    trained = sum(c.num_trainable_params for c in counted.values())
    return [Figure("a checkpoint of adapters holds less than 1 % of a rank's parameters", "yes",
                   "yes" if trained < 0.01 * sum(c.num_params for c in counted.values()) else "no")]


def _pretraining() -> Sequence[Figure]:
    mesh = {"dp_shard": 8, "tp": 4, "ep": 8, "etp": 1}
    report = ran(scenario("megatron", mesh, seq_len=8192, global_batch_size=3072, recompute=["moe", "layernorm"],
                          options={"moe_token_dispatcher_type": "flex"}))
    return [Figure("tp 4, ep 8 on 4 nodes", "fits", report.verdict or ""),
            Figure("GPUs", 32.0, float(sum(rank.num_ranks for rank in report.ranks)))]


def _lora_like_full() -> Sequence[Figure]:
    report = ran(scenario("megatron", {"dp_shard": 8, "ep": 8, "etp": 1}, method="lora", lora={"rank": 32},
                          options={"moe_token_dispatcher_type": "flex"}))
    return [Figure("LoRA on 8 GPUs", "oom", report.verdict or "")]


CLAIMS: tuple[Claim, ...] = (
    Claim("M31", "A LoRA checkpoint holds adapters only, and is merged before export.", REPRODUCED,
          "What is trained is a third of a per cent of what a rank holds.", _only_adapters),
    Claim("M32", "Pretraining with tp 4 and ep 8 on 4 nodes of H100.", REPRODUCED,
          "It fits with the selective recomputation of the recipe (0.3.1 has this layout; main has tp 1).",
          _pretraining),
    Claim("M34", "LoRA: the rest is as in full fine-tuning, so two nodes.", REFUTED,
          "Without states of the base one node is enough.", _lora_like_full),
    Claim("M35", "Environment variables and script paths.", UNTESTABLE, "No figure.", tuple),
    Claim("M30", "23 Mamba-2 and 23 MoE layers, 6 of attention; 128 experts and a shared one, 5 of them for a token; "
          "3.5 B of 30 B parameters at work.", REFUTED,
          "A token visits 6 routed experts (num_experts_per_tok of the published configuration; the page of today says "
          "6 too). Everything else holds.", _experts_per_token),
    Claim("M33", "Full fine-tuning with ep 8 needs two nodes of 8 H100.", REPRODUCED,
          "On 8 GPUs nobody shares an expert's optimizer states: bf16 weights, twice as much of fp32 "
          "gradients and 12 bytes for every parameter of its experts are more than a GPU has before any activation.",
          _full_on_two_nodes),
)
