"""Asks Megatron-FSDP of megatron-core how it lays tensors in buckets, and when those are gathered and reduced.

    python tests/truth/probe_megatron_fsdp.py > tests/truth/megatron_fsdp/core-0.16.1.json

`buckets`: the small models of `probe_gpt.py` on one rank of 8, also with Megatron-Bridge's adapters (`lora`: their
rank); `steps`: the second step of a small model whose five layers are units, over a fake process group of 8
(`oracle/fsdp_flat.py`). With main (d98e8a64) on `PYTHONPATH`, and its modules that need Triton replaced, steps alone,
and those of options that the release does not have, and of adapters, which it refuses. `stages`: the second step of one
stage, by core's own 1F1B (`oracle/fsdp_stages.py`).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import probe_gpt
from json_lines import listed
from oracle import fsdp_flat, fsdp_stages, megatron, te_stub
from oracle.apart import run_apart

from megatron.core import parallel_state as ps  # isort: skip
from megatron.core.transformer.transformer_layer import TransformerLayer  # isort: skip

LAYOUTS: list[dict[str, Any]] = [
    {"family": "gpt2", "tp": 2, "ep": 1, "rank": 0, "bucket_size": None},
    {"family": "gpt2", "tp": 1, "ep": 1, "rank": 5, "bucket_size": 100_000},
    {"family": "qwen2", "tp": 2, "ep": 1, "rank": 7, "bucket_size": 40_000_000},
    {"family": "qwen3_moe", "tp": 1, "ep": 2, "rank": 3, "bucket_size": 40_000_000},
    {"family": "mixtral", "tp": 2, "ep": 4, "rank": 6, "bucket_size": 40_000_000},
    {"family": "qwen3_moe", "tp": 1, "ep": 1, "rank": 1, "bucket_size": 300_000},
    {"family": "deepseek_v2", "tp": 1, "ep": 2, "rank": 0, "bucket_size": 40_000_000},
    {"family": "deepseek_v3", "tp": 2, "ep": 2, "rank": 2, "bucket_size": 40_000_000},
    {"family": "qwen2", "tp": 1, "ep": 1, "rank": 3, "bucket_size": 40_000_000, "lora": 8,
     "targets": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]},
    {"family": "qwen3_moe", "tp": 2, "ep": 2, "rank": 2, "bucket_size": 300_000, "lora": 6,
     "targets": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]},
    {"family": "deepseek_v2", "tp": 1, "ep": 4, "rank": 6, "bucket_size": None, "lora": 16,
     "targets": ["linear_kv_up_proj", "linear_fc2"]},
]
STEPS: list[dict[str, Any]] = [
    {"layers": 5, "microbatches": 2, "unit_size": None},
    {"layers": 5, "microbatches": 1, "unit_size": 2 * 2560},
    {"layers": 5, "microbatches": 2, "unit_size": 4 * 2560},
    {"layers": 5, "microbatches": 1, "unit_size": 1},
    {"layers": 5, "microbatches": 1, "unit_size": 7 * 2560},
    {"layers": 5, "microbatches": 2, "unit_size": None, "recompute": True},
    {"layers": 5, "microbatches": 2, "unit_size": 4 * 2560, "recompute": True},
    {"layers": 5, "microbatches": 2, "unit_size": None, "double_buffer": True},
    {"layers": 5, "microbatches": 1, "unit_size": 1, "double_buffer": True},
    {"layers": 5, "microbatches": 2, "unit_size": 4 * 2560, "recompute": True, "double_buffer": True},
]
COPIES: list[dict[str, Any]] = [
    {"layers": 5, "microbatches": 2, "unit_size": 2 * 2560, "copies": 2},
    {"layers": 5, "microbatches": 1, "unit_size": 2 * 2560, "copies": 4, "recompute": True},
]
OF_MAIN: list[dict[str, Any]] = [
    {"layers": 5, "microbatches": 2, "unit_size": 2 * 2560, "gathers_first": False},
    {"layers": 5, "microbatches": 1, "unit_size": 4 * 2560, "double_buffer": True, "gathers_first": False},
    *COPIES,
    {"layers": 5, "microbatches": 2, "unit_size": 2 * 2560, "copies": 2, "sent": "bfloat16"},
]
OF_ADAPTERS: list[dict[str, Any]] = [
    {"layers": 5, "microbatches": 2, "unit_size": None, "plain": []},
    {"layers": 5, "microbatches": 2, "unit_size": 2 * 2560, "plain": [0, 1]},
    {"layers": 5, "microbatches": 2, "unit_size": 2 * 2560, "plain": [3], "gathers_first": False},
    {"layers": 5, "microbatches": 2, "unit_size": 2 * 2560, "plain": [], "recompute": True},
    {"layers": 5, "microbatches": 2, "unit_size": None, "plain": [1], "double_buffer": True},
    {"layers": 5, "microbatches": 2, "unit_size": 2 * 2560, "plain": [0], "copies": 2},
    {"layers": 5, "microbatches": 1, "unit_size": 1, "plain": [0, 2, 4]},
]
STAGES: list[dict[str, Any]] = [
    {"stage": 0, "stages": 2, "layers": 3, "microbatches": 3, "unit_size": None},
    {"stage": 1, "stages": 2, "layers": 3, "microbatches": 3, "unit_size": 4000},
    {"stage": 1, "stages": 4, "layers": 3, "microbatches": 4, "unit_size": 8000, "recompute": True},
    {"stage": 0, "stages": 4, "layers": 2, "microbatches": 2, "unit_size": 1},
    {"stage": 2, "stages": 4, "layers": 3, "microbatches": 5, "unit_size": None, "double_buffer": True},
    {"stage": 0, "stages": 2, "layers": 2, "microbatches": 2, "unit_size": None, "frees_outputs": True},
    {"stage": 1, "stages": 2, "layers": 2, "microbatches": 2, "unit_size": None, "frees_outputs": True},
]
STAGES_WITH_ADAPTERS: list[dict[str, Any]] = [
    {"stage": 0, "stages": 2, "layers": 3, "microbatches": 3, "unit_size": 4000, "plain": []},
    {"stage": 1, "stages": 2, "layers": 3, "microbatches": 2, "unit_size": None, "plain": [0, 2]},
]
IS_MAIN = "fsdp_all_gather_in_start_param_sync" in {field.name for field in fields(fsdp_flat.DdpConfig)}


def asked_buckets(case: dict[str, Any]) -> Any:
    """The buckets of one rank of 8."""
    fsdp_flat.start(8, case["rank"])
    te_stub.use_dummy_rng()
    ps.initialize_model_parallel(
        tensor_model_parallel_size=case["tp"], expert_model_parallel_size=case["ep"], expert_tensor_parallel_size=1,
        create_gloo_process_groups=False)
    model = probe_gpt.built(case["family"], case["tp"], case["ep"])
    if "lora" in case:
        megatron.apply_lora(model, {"lora": case["lora"], "target_modules": case["targets"]})
    model = model.bfloat16()  # as core's Float16Module does
    groups = {False: ps.get_data_parallel_group(with_context_parallel=True), True: ps.get_expert_data_parallel_group()}
    return fsdp_flat.buckets(model, [TransformerLayer], case["bucket_size"],
                             {expert: group.size() for expert, group in groups.items()},
                             {expert: group.rank() for expert, group in groups.items()})


def asked_step(case: dict[str, Any]) -> Any:
    """What happens in one step."""
    fsdp_flat.start(8, 0)
    fsdp_flat.without_gpu()
    first = {"fsdp_all_gather_in_start_param_sync": case["gathers_first"]} if "gathers_first" in case else {}
    if "copies" in case:
        first |= {"outer_dp_sharding_strategy": "optim", "copies": case["copies"], "sent": case.get("sent", "")}
    made = fsdp_flat.Noted(8, case["layers"], recompute=case.get("recompute", False), **first,
                           suggested_communication_unit_size=case["unit_size"],
                           fsdp_double_buffer=case.get("double_buffer", False), plain=case.get("plain"))
    if "sent" in case:
        made.listen_to_casts()
    found = made.step(case["microbatches"])
    if "copies" not in case:
        return found
    return {"kept": made.kept(), "events": found} | ({"widths": made.widths} if "sent" in case else {})


def asked(case: dict[str, Any]) -> Any:
    """Events of upstream in one case."""
    return {"buckets": asked_buckets, "steps": asked_step, "stages": fsdp_stages.run}[_kind(case)](case)


def _kind(case: dict[str, Any]) -> str:
    return "stages" if "stages" in case else "steps" if "layers" in case else "buckets"


def text(rows: dict[str, list[dict[str, Any]]]) -> str:
    """A row a line."""
    return "{" + ",\n".join(f'"{key}": {listed(some)}' for key, some in rows.items() if some) + "}"


def main() -> None:
    """Each case in a process of its own."""
    of_version = (*OF_MAIN, *OF_ADAPTERS, *STAGES_WITH_ADAPTERS) if IS_MAIN else (*LAYOUTS, *COPIES)
    made = run_apart({str(number): case for number, case in enumerate((*STEPS, *STAGES, *of_version))}, asked).values()
    print(text({key: [row for row in made if _kind(row) == key] for key in ("buckets", "steps", "stages")}))


if __name__ == "__main__":
    main()
