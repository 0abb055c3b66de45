"""Megatron-Bridge's verification cards: one run of a recipe each, with its time and sometimes its memory.

Memory is printed after iteration 2, before CUDA graphs are captured: they are no part of the reading.
"""

from __future__ import annotations

import json
import re

import measured_bridge
from measured_runs import BUCKET, NANO, batch, degrees, listed_modules, over, unsayable

TE_INPLACE_COMMITS = ("600d069b824d", "968ab25dd0e8")
"""Megatron-Bridge commits that lock TransformerEngine 2.17 (its cross entropy works in place); the others lock 2.18."""
FP8_RECIPES = {"fp8_cs": "tensorwise", "fp8_ds": "delayed", "fp8_mx": "mxfp8"}
"""Megatron-Bridge 067f987d `perf_recipes/_common.py`, _perf_precision."""
MODELS = {
    "Moonlight-16B-A3B": "moonlight-16b-a3b", "Nemotron-3-Nano-4B": "nemotron-3-nano-4b", "Qwen3-8B": "qwen3-8b",
    "Qwen3-30B-A3B": "qwen3-30b-a3b", "gpt-oss-20b": "gpt-oss-20b",
    "gpt-oss-120b": over("gpt-oss-20b", num_hidden_layers=36, num_local_experts=128),
}
IN_TABLES = {"DeepSeek-V3": "DeepSeekV3", "gpt-oss-120b": "GPT OSS 120B", "Qwen3-30B-A3B": "Qwen3_30B_a3B"}
ADAPTED = {"Moonlight-16B-A3B": ["linear_q_proj", "linear_kv_down_proj", "linear_kv_up_proj", "linear_proj"]}
"""067f987d `recipes/*/h100/`: rank 8 and alpha 16 on the attention's linears."""
TULU_LENGTH = 571
"""Tokens of packed sequences of tulu3, sum of squares over sum: what FLOPs the card of Lightning's fine-tuning prints
(26.649 GFLOP a token = 26.537 + 196,608 a token of length)."""


def card(run):
    """The scenario of a card."""
    if run["model"].startswith("Nemotron-3.5-Lightning"):
        return _lightning(run)
    table = as_table_row(run)
    if table:
        return measured_bridge.scenario(table)
    if run["model"] not in MODELS:
        unsayable(f"no model family: {run['model']}")
    if not run["complete"]:
        unsayable("the ten steps include a cold start" if "cold start" in run["notes"] else "batch not stated")
    return _recipe(run)


def as_table_row(run):
    """A card of a benchmark as the performance tables would print it; None for another card."""
    name, precision = IN_TABLES.get(run["model"]), {"bf16": "BF16", "fp8_mx": "MXFP8"}.get(run["precision"])
    is_benchmark = re.search(r"pretrain_(performance|weak_scaling)", run["id"])
    if run["group"] != "mbridge-card" or not (is_benchmark and name and precision):
        return None
    return run | {"model": name, "precision": precision, "task": "pretrain",
                  "framework": "Megatron-Bridge / NeMo container 26.08"}


def _lightning(run):
    """A hybrid predicts further tokens in Megatron-LM's main branch alone, of which these commits are."""
    config = run["config"]
    fsdp = "fsdp" in run["task"]
    training = batch(run) | _lengths(run) | _adapters(run) | {
        "precision": _formats(run), "optimizer": {"name": "adam"}, "loss": _loss(run)}
    options = {} if fsdp else {"use_precision_aware_optimizer": _is_benchmark(config["recipe"])}
    options |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
    options |= {} if fsdp else _graphs(run)
    if run["task"] == "pretrain" and run["dp"] > 1:
        options |= BUCKET
    if run["precision"] in FP8_RECIPES:
        options["fp8_recipe"] = FP8_RECIPES[run["precision"]]
        # Bridge 067f987d `perf_recipes/nemotronh/gb200/nemotronh.py`, _build_nemotron_3_5_lightning_gb200_mxfp8
        options["keep_mtp_spec_in_bf16"] = run["precision"] == "fp8_mx"
    model = over(NANO, mtp_num_layers=int(config["mtp_num_layers"]), mtp_hybrid_override_pattern="*E",
                 mtp_use_repeated_layer=True)
    return {"model": model, "framework": "megatron_fsdp" if fsdp else "megatron",
            "framework_version": "main 2026-08-22", "topology": measured_bridge.TOPOLOGY[run["gpu_type"]],
            "mesh": degrees(run), "training": training, "framework_options": options}


def _recipe(run):
    """What the row restates of its recipe; cross entropy, and what else it does not, is the family's own."""
    optimizer = json.loads(run["optimizer"].removeprefix("adam "))
    moments = {"moments": "bf16"} if optimizer["exp_avg_dtype"] == "bfloat16" else {}
    formats = _formats(run)
    precise = bool(moments) or (run["task"] == "pretrain" and formats["main_grads"] == "bf16")
    training = batch(run) | _lengths(run) | _recomputed(run) | {
        "precision": formats, "optimizer": {"name": "adam"} | moments}
    training |= _adapters(run)
    mesh = degrees(run)
    if run["ep"] and not run["etp"]:
        mesh["etp"] = 1  # tp of them would need more ranks than there are
    options = _dispatcher(run) | _graphs(run) | {"use_precision_aware_optimizer": precise}
    if run["model"].startswith("Moonlight") and run["dp"] > 1:  # alone of these, 067f987d `recipes/moonlight/h100/`
        options |= BUCKET
    return {"model": MODELS[run["model"]], "framework": "megatron", "framework_version": "main 2026-08-22",
            "topology": measured_bridge.TOPOLOGY[run["gpu_type"]], "mesh": mesh, "training": training,
            "framework_options": options}


def _is_benchmark(recipe):
    """`..._8gpu_gb200_bf16_config`: the runner switches the precision-aware optimizer on for these."""
    return re.search(r"_\d+gpu_[a-z0-9]+_(bf16|fp8\w*)_", recipe) is not None


def _formats(run):
    """Main gradients are what the recipe reduces in; in Nano 4B's it is an argument: bf16 to pretrain, else fp32."""
    told = run["config"]["grad_reduce_fp32"]
    wide = run["task"] != "pretrain" if told == "grad_reduce_in_fp32" else told == "True"
    grads = "fp32" if wide else "bf16"
    return {"compute": "fp8" if run["precision"].startswith("fp8") else "bf16", "main_grads": grads,
            "grad_reduce": grads}


def _loss(run):
    """Fine-tuning recipes compute the native cross entropy, pretraining recipes that of TransformerEngine."""
    if run["task"] == "sft":
        return "megatron"
    return "te_inplace" if run["framework"].split()[1] in TE_INPLACE_COMMITS else "te"


def _lengths(run):
    if not (run["config"]["features"] or {}).get("sequence_packing"):
        return {}
    tulu = "--dataset tulu3" in run["config"]["command_overrides"]
    return {"lengths": "packed"} | ({"packed_length": TULU_LENGTH} if tulu else {})


def _adapters(run):
    if not run["peft"]:
        return {}
    return {"method": "lora", "lora": {"rank": 8, "alpha": 16.0, "target_modules": ADAPTED.get(
        run["model"], ["linear_qkv", "linear_proj"])}}


def _recomputed(run):
    """Core attention is what Bridge's default recomputes; a fused one keeps nothing of it."""
    return {} if "default" in run["recompute"] else listed_modules(run)


def _graphs(run):
    implementation, scope = (*(run["config"].get("cuda_graph") or ()), None, None)[:2]
    if implementation in (None, "none"):
        return {}
    names = re.findall(r"[a-z_]+", scope or "")
    return {"cuda_graph_impl": implementation} | ({"cuda_graph_scope": names} if names else {})


def _dispatcher(run):
    kind, backend = (*(run["config"].get("dispatcher") or ()), None, None)[:2]
    if kind != "flex":
        return {"moe_token_dispatcher_type": kind} if kind else {}
    return {"moe_token_dispatcher_type": kind, "moe_flex_dispatcher_backend": backend}
