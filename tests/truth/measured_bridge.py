"""Rows of Megatron-Bridge's performance tables: the recipe that a release has for the printed layout, as a scenario.

A table prints model, GPUs, layout, batch and format; what is recomputed, graphed and overlapped is in the recipes
(`recipes/bridge.jsonl`, made by `probe_recipes.py`) and in what its scripts set for a whole family, written down here.
Sources: Megatron-Bridge v0.2.0 to v0.5.1, `scripts/performance` (`configs/*/*_pretrain.py`, `utils/overrides.py`) and
`src/megatron/bridge/recipes`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import printed_flops
from measured_runs import BUCKET, NANO, batch, degrees, over, restated, unsayable

RECIPES = Path(__file__).resolve().parent / "recipes" / "bridge.jsonl"
TAGS = {"25.11": "v0.2.0", "26.02": "v0.3.0", "26.02.01": "v0.3.1", "26.04": "v0.4.0", "26.04.01": "v0.4.1",
        "26.06": "v0.5.0", "26.06.01": "v0.5.1"}
"""Containers and the tag whose date is theirs; 26.08 (v0.6.0) has its recipes in functions of the package."""
ORDER = tuple(TAGS.values())
ROUNDED = ("26.04.01", "26.06.01", "26.08")
"""Releases whose tokens a second are whole samples: TFLOP/s say the time more finely."""

LLAMA_405B = over("llama-3.1-8b", hidden_size=16384, intermediate_size=53248, num_hidden_layers=126,
                  num_attention_heads=128, num_key_value_heads=8)
QWEN_235B = over("qwen3-30b-a3b", hidden_size=4096, num_hidden_layers=94, num_attention_heads=64,
                 moe_intermediate_size=1536)
MODELS = {
    "LLAMA3_8B": ("LLAMA3_8B", "llama-3-8b"),
    "LLAMA3_70B": ("LLAMA3_70B", "llama-3-70b"),
    "LLAMA3.1_405B": ("LLAMA31_405B", LLAMA_405B),
    "Qwen3_30B_a3B": ("QWEN3_30B_A3B", "qwen3-30b-a3b"),
    "Qwen3_235B_a22B": ("QWEN3_235B_A22B", QWEN_235B),
    "DeepSeekV3": ("DEEPSEEK_V3", over("deepseek-v3", mtp_num_layers=1)),
    "GPT OSS 120B": ("GPT_OSS_120B", over("gpt-oss-20b", num_hidden_layers=36, num_local_experts=128)),
    "Nemotron_3_Nano": ("NEMOTRON_3_NANO", NANO),
    "Nemotron_3_5_Lightning": ("NEMOTRON_3_5_LIGHTNING", over(
        NANO, mtp_num_layers=2, mtp_hybrid_override_pattern="*E", mtp_use_repeated_layer=True)),
    "Nemotron_3_Ultra": ("NEMOTRON_3_ULTRA", over("nemotron-3-ultra-550b-a55b", mtp_num_layers=2)),
    "Nemotron_3_Super": ("NEMOTRON_3_SUPER", "nemotron-3-super-120b-a12b"),
}
"""Name in the tables: name of its recipes, our model."""
FORMATS = {"BF16": "BF16", "FP8": "FP8_CS", "FP8-CS": "FP8_CS", "MXFP8": "FP8_MX", "FP8-MX": "FP8_MX", "NVFP4": "NVFP4"}
FP8 = {"FP8_CS": "tensorwise", "FP8_MX": "mxfp8"}
TOPOLOGY = {"H100": "dgx-h100", "B200": "dgx-b200", "B300": "dgx-b300", "GB200": "gb200-nvl72", "GB300": "gb300-nvl72"}
DEEPSEEK_STAGES = {16: "Et*4|(t*4|)*14t", 8: "Et*8|(t*8|)*6t*5"}
"""By chunks: `recipes/deepseek/deepseek_v3.py`, set_deepseek_v3_pipeline_model_parallel_layout; then `m` and `L`."""


def row(run):
    """Our row of a line of a table."""
    return restated(run, scenario) | {"step_s": step_s(run), "release": release(run)}


def release(run):
    """Of the container."""
    return run["framework"].split()[-1]


def step_s(run):
    """TFLOP/s and tokens a second are one observation: the finer of the two."""
    measured, flops = run["measured"], printed_flops.a_token(run["model"], run["seq_len"], release(run))
    if release(run) not in ROUNDED or flops is None or run["task"] != "pretrain":
        return measured["step_time_s"]
    tokens = run["global_batch"] * run["seq_len"] / run["gpus"]
    return round(flops * tokens / (measured["tflops_per_gpu"] * 1e12), 4)


# ---- which recipe ---------------------------------------------------------------------------------------------------
def names(run):
    """How names of the row's recipes begin; None for a model that is not written down."""
    known = MODELS.get(run["model"].partition(" (")[0])
    return known and known[0]


def wanted(run, name, fields):
    """Whether a recipe has the row's task, GPU, format and layout."""
    task = {"pretrain": "PRETRAIN", "sft": "SFT", "lora": "LORA"}[run["task"]]
    words = f"_{name}_"
    return (all(f"_{word}_" in words for word in (run["gpu_type"], _format(run)))
            and (task in name or "BASE_CONFIG" in name) and _layout(fields) == (
                run["tp"], run["pp"], run["vpp"] or 1, run["cp"], run["ep"] or 1, run["micro_batch"]))


def _layout(fields):
    keys = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
            "context_parallel_size", "expert_model_parallel_size", "micro_batch_size")
    return tuple(fields.get(key) or 1 for key in keys)


def nearest(run, recipes):
    """The recipe of the release; else of the next release that has one for this layout, or of the last before.

    Of several variants that one which has the printed batch.
    """
    own = ORDER.index(TAGS[release(run)]) if release(run) in TAGS else len(ORDER) if release(run) > "26.06" else -1
    fitting = [one for one in recipes if one["name"].startswith(names(run)) and wanted(run, one["name"], one["fields"])]

    def distance(one):
        ahead = ORDER.index(one["tag"]) - own
        return (ahead < 0, abs(ahead), one["fields"].get("global_batch_size") != run["global_batch"])
    return min(fitting, key=distance, default=None)


def _format(run):
    return FORMATS[run["precision"].split()[0]]


# ---- the scenario ---------------------------------------------------------------------------------------------------
def _recipe(run):
    if names(run) is None:
        unsayable(f"no model family: {run['model']}")
    if "tokendrop" in run["model"]:
        unsayable("tokens that are dropped: the capacity factor is not stated")
    if run["task"] != "pretrain":
        unsayable("packed lengths of the fine-tuning set are not stated")
    found = nearest(run, [json.loads(line) for line in RECIPES.read_text(encoding="utf-8").splitlines()])
    if found:
        return found["fields"]
    if not run["complete"]:
        unsayable("activations of a module on the host" if "fused_group_mlp" in str(run["config"]) else
                  "no release has a recipe for this layout: what it recomputes is not stated")
    return _restated(run["config"]["recipe"])


def _restated(recipe):
    """A recipe of the main branch (067f987d), as the collection restates it for a row of the same layout."""
    implementation, _, scope = recipe["cuda_graph"].partition(" ")
    kind, _, backend = recipe["dispatcher"].partition("/")
    return {"recompute_modules": re.findall(r"[a-z_]+", recipe["recompute"].partition("[")[2]),
            "cuda_graph_impl": implementation, "cuda_graph_scope": re.findall(r"[a-z_]+", scope),
            "moe_flex_dispatcher_backend": backend if kind == "flex" else None}


def scenario(run):
    """What a table prints, with what the recipe says."""
    fields = _recipe(run)
    fsdp = bool(fields.get("use_megatron_fsdp"))
    training = batch(run) | _recomputed(fields) | {
        "precision": _precision(run), "optimizer": _optimizer(run), "loss": "te_inplace"}
    if run["vpp"] and run["vpp"] > 1:
        training["pipeline"] = {"virtual_stages": run["vpp"]}
    if fields.get("cpu_offloading_num_layers"):
        training["offload"] = {"activations": "host"}
    mesh = degrees(run)
    options = _graphs(fields) | _experts(run, fields) | _stages(run, fields) | _overlap(run, mesh) | _narrow(run)
    options |= _fusions(run)
    if not fsdp:
        options |= _buckets(run, fields) | _gathers(run) | {"use_precision_aware_optimizer": _is_precise(run)}
    later = {"framework_version": "main 2026-08-22"} if release(run) >= "26.04" else {}
    return {"model": _model(run), "framework": "megatron_fsdp" if fsdp else "megatron", **later,
            "topology": _topology(run), "mesh": mesh, "training": training, "framework_options": options}


def _topology(run):
    """Of NVLink domains of 18 trays the queue is asked for the largest number of trays that divides those of the job.

    `utils/executors.py`, segment.
    """
    name, trays = TOPOLOGY[run["gpu_type"]], run["gpus"] // 4
    if not name.endswith("nvl72") or trays <= 18:
        return name
    return {"file": name, "gpus_per_node": 4 * max(part for part in range(1, 19) if trays % part == 0)}


def _model(run):
    """Tables name DeepSeek-V3 with and without its multi-token prediction; Super predicts two tokens by one module."""
    model = MODELS[run["model"].partition(" (")[0]][1]
    if "w/o MTP" in run["model"]:
        return "deepseek-v3"
    return over(model, mtp_num_layers=2) if names(run) == "NEMOTRON_3_SUPER" else model


def _precision(run):
    """Scripts of all families set grad_reduce_in_fp32 to False."""
    narrow = {"compute": "fp4"} if _format(run) == "NVFP4" else {"compute": "fp8"} if _format(run) in FP8 else {}
    return narrow | {"main_grads": "bf16", "grad_reduce": "bf16"}


def _is_precise(run):
    """`utils/overrides.py`, set_post_overrides: in bf16; DeepSeek's recipe in every format, with moments in bf16."""
    return _format(run) == "BF16" or names(run) == "DEEPSEEK_V3"


def _optimizer(run):
    return {"name": "adam"} | ({"moments": "bf16"} if names(run) == "DEEPSEEK_V3" else {})


def _recomputed(fields):
    """`utils/overrides.py`, _set_recompute_overrides."""
    if fields.get("recompute_num_layers"):
        return {"recompute": {"mode": "block", "num_layers": fields["recompute_num_layers"]}}
    return {"recompute": fields["recompute_modules"]} if fields.get("recompute_modules") else {}


def _graphs(fields):
    """A scope without an implementation captures nothing."""
    implementation, scope = fields.get("cuda_graph_impl", "none"), fields.get("cuda_graph_scope", [])
    if implementation in (None, "none"):
        return {}
    scope = [scope] if isinstance(scope, str) else scope
    return {"cuda_graph_impl": implementation} | ({"cuda_graph_scope": scope} if scope else {})


def _experts(run, fields):
    """A backend makes the dispatcher flex, but for Qwen3 235B outside NVL72, and GPT-OSS before v0.4.0."""
    if not run["ep"]:
        return {}
    backend = fields.get("moe_flex_dispatcher_backend")
    plain = ((names(run) == "QWEN3_235B_A22B" and run["gpu_type"] in ("H100", "B200", "B300"))
             or (names(run) == "GPT_OSS_120B" and release(run) < "26.04"))
    made = {}
    if backend and not plain:
        made = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": backend}
    if fields.get("moe_a2a_overlap"):
        made |= {"overlap_moe_expert_parallel_comm": True, "delay_wgrad_compute": True}
    if fields.get("cutedsl_fused_grouped_mlp"):
        made["use_transformer_engine_op_fuser"] = True
    if fields.get("fp8_dot_product_attention"):
        made["fp8_dot_product_attention"] = True
    return made


def _fusions(run):
    """`utils/overrides.py`, _set_common_perf_overrides: rotation; `configs/qwen/qwen3_llm_pretrain.py`: activation.

    Written down where providers of the family leave it out; in v0.2.0 to v0.6.0.
    """
    known = {"DEEPSEEK_V3": "apply_rope_fusion", "QWEN3_30B_A3B": "bias_activation_fusion",
             "QWEN3_235B_A22B": "bias_activation_fusion"}
    return {known[names(run)]: True} if names(run) in known else {}


def _stages(run, fields):
    """Recipes of Llama 405B and Qwen3 235B count embedding and loss as layers."""
    if names(run) in ("LLAMA31_405B", "QWEN3_235B_A22B") and run["pp"] > 1:
        return {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    if names(run) != "DEEPSEEK_V3" or run["pp"] == 1:
        return {}
    further = "" if "w/o MTP" in run["model"] else "m"
    layout = fields.get("pp_layout") or DEEPSEEK_STAGES[run["pp"] * (run["vpp"] or 1)] + further + "L"
    return {"pipeline_model_parallel_layout": layout}


def _overlap(run, mesh):
    """Llama's recipes overlap tensor parallel collectives, but not in NVFP4; those of Qwen3 on H100 do not."""
    overlaps = mesh.get("tp") and names(run).startswith("LLAMA") and _format(run) != "NVFP4"
    return {"tp_comm_overlap": True} if overlaps else {}


def _buckets(run, fields):
    """Whether the recipe has a `CommOverlapConfig`; v0.6.0's for Qwen3 in MXFP8 have none, nor ever those of Super.

    `configs/*/*_pretrain.py` and `recipes`; of GPT-OSS that for GB200 alone, since v0.4.0. Overlap of experts brings
    one.
    """
    name, is_new = names(run), release(run) >= "26.08"
    has_one = name.startswith(("LLAMA", "DEEPSEEK_V3", "NEMOTRON_3_NANO", "NEMOTRON_3_5_LIGHTNING")) or (
        name.startswith("QWEN3") and not (is_new and _format(run) == "FP8_MX")) or (
        name == "GPT_OSS_120B" and run["gpu_type"] == "GB200" and release(run) >= "26.04"
        and not (is_new and _format(run) == "FP8_MX"))
    return BUCKET if run["dp"] > 1 and (has_one or fields.get("moe_a2a_overlap")) else {}


SUPER = {"FP8_MX": {"fp8_recipe": "mxfp8", "moe_router_padding_for_quantization": True}, "NVFP4": {
    "fp4_param_gather": False, "moe_router_padding_for_quantization": True, "first_last_layers_bf16": True,
    "num_layers_at_start_in_bf16": 0, "num_layers_at_end_in_bf16": 14, "quant_recipe": {
        "*.linear_qkv": "bf16", "*.linear_proj": "bf16", "*mlp.fc[12]_latent_proj": "bf16", "mtp.*": "bf16",
        "*mixer.out_proj": "mxfp8"}}}
"""v0.4.0 `configs/nemotronh/nemotron_3_llm_pretrain.py`, set_nemotron_3_super_common_configs; te_quant.cfg."""
NOT_AHEAD = {"LLAMA3_70B": ("B200", "GB200", "GB300"), "LLAMA31_405B": ("B200", "GB200", "GB300"),
             "DEEPSEEK_V3": ("GB200", "GB300"), "QWEN3_235B_A22B": ("B200",)}
"""v0.2.0 `configs/*/*_pretrain.py`, where precision is fp8_mx."""


def _gathers(run):
    """Parameters are gathered after the step; in NVFP4 v0.5.0 `configs/llama/llama31_llm_pretrain.py`:124."""
    name, precision, gpu = names(run), _format(run), run["gpu_type"]
    late = release(run) == "25.11" and precision == "FP8_MX" and gpu in NOT_AHEAD.get(name, ())
    late |= release(run).startswith("26.06") and (name, precision, gpu) == ("LLAMA31_405B", "NVFP4", "GB200")
    return {"overlap_param_gather": False} if late else {}


def _narrow(run):
    """`utils/precision.py`, get_precision_config: current scaling without layers in bf16.

    NVFP4: parameters are in it since v0.5.0 (`training/mixed_precision.py`, bf16_with_nvfp4_mixed). Lightning: 067f987d
    `perf_recipes/nemotronh/gb200/nemotronh.py`, _build_nemotron_3_5_lightning_gb200_mxfp8.
    """
    if names(run) == "NEMOTRON_3_SUPER" and _format(run) in ("FP8_MX", "NVFP4"):
        return SUPER[_format(run)]
    if _format(run) == "NVFP4":
        return {"fp4_param_gather": release(run) >= "26.06"} if release(run) >= "26.04" else {}
    recipe = FP8.get(_format(run))
    made = {"keep_mtp_spec_in_bf16": True} if recipe and names(run) == "NEMOTRON_3_5_LIGHTNING" else {}
    return made | ({"fp8_recipe": recipe} if recipe else {}) | (
        {"first_last_layers_bf16": False} if recipe == "tensorwise" else {})
