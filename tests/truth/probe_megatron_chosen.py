"""Asks Megatron-Bridge's main for the parameters of small models whose indexers choose keys: GLM-5, and 5.2.

    PYTHONPATH=MEGATRON:BRIDGE/src python tests/truth/probe_megatron_chosen.py

MEGATRON, BRIDGE: Megatron-LM d98e8a64 and Megatron-Bridge 067f987d. It writes models/glm5-main-2026-08-22.json:
names and shapes on rank 0 of each case, in registration order, and elements of the published sizes, which are built on
meta. TransformerEngine is replaced by `te_stub`, which has its constructors alone. `buckets`: those of Megatron-FSDP on
one rank of 8.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from oracle import drawn_megatron, fsdp_flat
from oracle.worker import isolated

from megatron.core import parallel_state as ps  # isort: skip
from megatron.core.transformer.transformer_layer import TransformerLayer  # isort: skip

STORED = Path(__file__).parent / "models" / "glm5-main-2026-08-22.json"
SMALL: dict[str, Any] = {
    "hidden_size": 128, "vocab_size": 1024, "num_hidden_layers": 5, "intermediate_size": 176, "num_attention_heads": 8,
    "num_key_value_heads": 8, "q_lora_rank": 48, "kv_lora_rank": 40, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 24, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 56,
    "first_k_dense_replace": 1, "index_n_heads": 3, "index_head_dim": 16, "index_topk": 8}
CASES: dict[str, dict[str, Any]] = {
    "glm-5": {"world": 1, "preset": "glm-5", "fields": {**SMALL, "mtp_num_layers": 1}},
    "glm-5.2": {"world": 1, "preset": "glm-5.2", "fields": {**SMALL, "index_topk_freq": 2,
                                                            "index_skip_topk_offset": 2}},
    "whole-glm-5": {"world": 1, "preset": "glm-5"},
    "whole-glm-5.2": {"world": 1, "preset": "glm-5.2", "fields": {"mtp_num_layers": 1}},
}


BUCKETS: tuple[dict[str, Any], ...] = (
    {"rank": 3}, {"rank": 5, "ep": 2}, {"rank": 6, "tp": 2, "ep": 4}, {"rank": 2, "cp": 2, "ep": 2},
    {"rank": 7, "preset": "glm-5.2", "fields": {**SMALL, "index_topk_freq": 2}})


def bucketed(case: dict[str, Any]) -> dict[str, Any]:
    """Unit, whether of experts, chunk, elements and a rank's part of each bucket."""
    chunks, _ = drawn_megatron.built_rank(case)
    groups = {False: ps.get_data_parallel_group(with_context_parallel=True), True: ps.get_expert_data_parallel_group()}
    found = fsdp_flat.buckets(chunks[0], [TransformerLayer], 40_000_000, {key: of.size() for key, of in groups.items()},
                              {key: of.rank() for key, of in groups.items()})
    return {"case": case, "buckets": [[one[key] for key in ("unit", "expert", "chunk", "numel", "shard")]
                                      for one in found]}


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """Names and shapes of a small model, the number of elements of a published one."""
    chunks, _ = drawn_megatron.built_rank(case)
    found = [(name, tuple(p.shape), p.numel()) for chunk in chunks for name, p in chunk.named_parameters()]
    if "hidden_size" in case.get("fields", {}):
        return {"case": case, "tensors": [f"{name} {'x'.join(map(str, shape))}" for name, shape, _ in found]}
    return {"case": case, "elements": sum(count for _, _, count in found)}


if __name__ == "__main__":
    rows = {name: isolated(measured, case) for name, case in CASES.items()}
    whole = {"world": 8, "etp": 1, "preset": "glm-5", "fields": SMALL}
    rows["buckets"] = [isolated(bucketed, {**whole, **case}) for case in BUCKETS]
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    STORED.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
