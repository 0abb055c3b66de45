"""Document B: the page of Megatron-Bridge on Nemotron 3 Nano, M30 to M35."""

from __future__ import annotations

from collections.abc import Sequence

from claims.asked import FLEX, at_rest_gb, fullest, num_params, peak_gb, ran, scenario, trained, verdict, visited, yes
from claims.claim import REFUTED, REPRODUCED, UNTESTABLE, Claim, Figure
from claims.document_a_layouts import bridge, total

__all__ = ["CLAIMS", "at_work"]


def at_work() -> float:
    """Billions of parameters that a token meets, both embeddings counted: experts by rows that are sent."""
    counted = num_params()
    idle = counted["routed_experts"] * (1 - visited() / 128)
    return (sum(counted.values()) - idle) / 1e9


def _experts_per_token() -> Sequence[Figure]:
    whole = sum(num_params().values()) / 1e9
    told = bridge({"dp_shard": 8, "ep": 8}).adapters
    assert told is not None
    layers = (("Mamba-2", "mixer.in_proj", 23), ("MoE", "mlp.shared_experts.linear_fc1", 23),
              ("attention", "self_attention.linear_qkv", 6))
    return [*(Figure(f"{name} layers, by their adapters", float(count), float(told.adapted.get(module, 0)), str(count))
              for name, module, count in layers),
            Figure("parameters of 128 routed experts in 23 layers, and a shared one of twice the width", 29.83,
                   sum(num_params()[part] for part in ("routed_experts", "shared_experts")) / 1e9, "X + S",
                   unit="billion"),
            Figure("experts that a token visits, by rows that are sent", 5.0, visited(), "6", False, decides=True),
            Figure("parameters at work for a token, both embeddings counted", 3.5, at_work(), "X*6/128 + D", False,
                   unit="billion"),
            Figure("parameters", 30.0, whole, "X + D", False, unit="billion")]


def _full_on_two_nodes() -> Sequence[Figure]:
    """Bytes at rest on a GPU before any activation, on one node and on two."""
    one, two = (ran(scenario("megatron", {"dp_shard": ranks, "ep": 8})) for ranks in (8, 16))
    return [Figure("8 GPUs", "does not fit", verdict(one), "does not fit", decides=True),
            Figure("16 GPUs", "fits", verdict(two), "fits", decides=True),
            Figure("parameters, gradients and states of a GPU, 8 GPUs", None, at_rest_gb(one),
                   "6*(X/8 + D) + 12*(X + D)/8", None, unit="GB", share=0.005),
            Figure("the same on 16 GPUs", None, at_rest_gb(two), "6*(X/8 + D) + 12*(X + D)/16", None, unit="GB",
                   share=0.005)]


def _only_adapters() -> Sequence[Figure]:
    report = bridge({"dp_shard": 8, "ep": 8})
    held = fullest(report).at_rest.values()
    share = 100 * trained(report) / sum(c.num_params for c in held)
    return [Figure("a checkpoint of adapters holds less than 1 % of a rank's parameters", "yes", yes(share < 1), "yes",
                   decides=True),
            Figure("trained, of what a rank holds", None, share, "100*32*AM/(X/8 + D + 32*AM)", None, unit="%"),
            Figure("trained on a rank", None, trained(report) / 1e6, "32*AM", None, unit="million")]


def _pretraining() -> Sequence[Figure]:
    mesh = {"dp_shard": 8, "tp": 4, "ep": 8, "etp": 1}
    report = ran(scenario("megatron", mesh, seq_len=8192, global_batch_size=3072, recompute=["moe", "layernorm"],
                          options=FLEX))
    return [Figure("tp 4, ep 8 on 4 nodes", "fits", verdict(report), "fits", decides=True),
            Figure("parameters, gradients and states of a GPU", None, at_rest_gb(report),
                   "6*(X/8 + D/4) + 12*(X + D)/32", None, unit="GB")]


def _lora_like_full() -> Sequence[Figure]:
    report = bridge({"dp_shard": 8, "ep": 8})
    full = ran(scenario("megatron", {"dp_shard": 8, "ep": 8, "etp": 1}))
    return [Figure("LoRA on 8 GPUs", "does not fit", verdict(report), "fits", False, decides=True),
            Figure("LoRA on 8: a GPU", None, peak_gb(report), total(2048), None, unit="GB"),
            Figure("full on 8: gradients and states of a GPU", None,
                   at_rest_gb(full, "grads_bytes", "optimizer_bytes"), "4*(X/8 + D) + 12*(X + D)/8", None, unit="GB")]


CLAIMS: tuple[Claim, ...] = (
    Claim("M30", "23 Mamba-2 and 23 MoE layers, 6 of attention; 128 experts and a shared one, 5 of them for a token; "
          "3.5 B of 30 B parameters at work.", REFUTED,
          "A token visits 6 routed experts (num_experts_per_tok of the published configuration; the page of today says "
          "6 too). The layers hold. Parameters at work and in all are rounded down.", _experts_per_token),
    Claim("M31", "A LoRA checkpoint holds adapters only, and is merged before export.", REPRODUCED,
          "What is trained is half a per cent of what a rank holds.", _only_adapters),
    Claim("M32", "Pretraining with tp 4 and ep 8 on 4 nodes of H100.", REPRODUCED,
          "It fits with the selective recomputation of the recipe (0.3.1 has this layout; main has tp 1).",
          _pretraining),
    Claim("M33", "Full fine-tuning with ep 8 needs two nodes of 8 H100.", REPRODUCED,
          "On 8 GPUs no two ranks share an expert's optimizer states: bf16 weights, twice as much of fp32 "
          "gradients and 12 bytes for every parameter of its experts leave too little for a sequence.",
          _full_on_two_nodes),
    Claim("M34", "LoRA: the rest is as in full fine-tuning, so two nodes.", REFUTED,
          "Without gradients and states of the base one node is enough.", _lora_like_full),
    Claim("M35", "Environment variables and script paths.", UNTESTABLE, "No figure.", tuple),
)
