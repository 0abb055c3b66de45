"""Jobs that the tests of Megatron's tables ask for, and what is read of their answers."""

from __future__ import annotations

from typing import Any

import small
from simcore.simulate import simulate

PRECISE = {"use_precision_aware_optimizer": True}
OWNING = PRECISE | {"fp8_recipe": "delayed"}
TIED = {"config": "llama-tiny", "overrides": {"tie_word_embeddings": True}}
DEEP = {"config": "llama-tiny", "overrides": {"num_hidden_layers": 8}}
FORMATS = ({"optimizer": {"moments": "bf16"}}, {"optimizer": {"master": "bf16"}}, {"optimizer": {"master": "none"}})


def small_model(preset: str, **more: int) -> dict[str, Any]:
    return {"config": preset, "overrides": {
        "hidden_size": 256, "vocab_size": 1024, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4, **more}}

QWEN3_MOE = small_model("qwen3-30b-a3b", head_dim=32, moe_intermediate_size=64, num_experts=8, num_experts_per_tok=2)


def refused_with(status: str, told: str, mesh: dict[str, int] | None = None, **given: Any) -> None:
    report = simulate(small.scenario("megatron", mesh or {"dp_shard": 2}, **given))
    assert report.status == status
    assert told in report.problems[0].message
    assert bool(report.problems[0].rule) == (status == "illegal")
    assert report.problems[0].message.startswith("not yet") == (status == "error")


def defaults(mesh: dict[str, int] | None = None, **given: Any) -> dict[str, str]:
    report = simulate(small.scenario("megatron", mesh or {"dp_shard": 2}, **given))
    assert report.status == "ok", report.problems
    found = [a for a in report.assumptions if a.kind == "default"]
    assert all(a.source for a in found)
    return {a.what: a.value for a in found}


def assumed(**given: Any) -> set[str]:
    report = simulate(small.scenario("megatron", {"dp_shard": 2}, **given))
    return {a.what for a in report.assumptions if a.kind == "assumed"}


def master(**given: Any) -> int:
    """Bytes of the embedding's master."""
    placed = small.plan_of("megatron", **given).of_layer(0)[0]
    return dict(placed.states)["master_param"]

DEEPSEEK = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 8,
            "num_experts_per_tok": 2, "moe_intermediate_size": 64, "num_key_value_heads": 8,
            "first_k_dense_replace": 1}
V2, V3 = small_model("deepseek-v2-lite", **DEEPSEEK), small_model("deepseek-v3", **DEEPSEEK, q_lora_rank=96)


def predicting(modules: int = 1, **more: Any) -> dict[str, Any]:
    return {"config": V3["config"], "overrides": {**V3["overrides"], "mtp_num_layers": modules, **more}}


# ---- pipeline stages -------------------------------------------------------------------------------------------------
def layer_counts(mesh: dict[str, int], **given: Any) -> list[int]:
    """Layers of each chunk, in the order of the model; the embedding, and norm, head and loss not counted."""
    _, table = small.prepared("megatron", mesh, **{"model": DEEP, "microbatches": 8} | given)
    found = [len(stage) for stage in table.stages]
    return [found[0] - 1, *found[1:-1], found[-1] - 3]

OVERLAP = {"overlap_moe_expert_parallel_comm": True}


def small_moe_gpt() -> dict[str, Any]:
    return {"config": "gpt2", "overrides": {
        "n_embd": 256, "n_head": 8, "n_layer": 2, "vocab_size": 1024, "n_positions": 64, "add_bias_linear": False,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}}
