"""Rows of Megatron-Bridge's performance tables: the recipe that a release has for the printed layout, as a scenario.

A table prints model, GPUs, layout, batch and format; what is recomputed, graphed and overlapped is in the recipes
(`recipes/bridge.jsonl`, made by `probe_recipes.py`) and in what its scripts set for a whole family, written down here.
Sources: Megatron-Bridge v0.2.0 to v0.5.1, `scripts/performance` (`configs/*/*_pretrain.py`, `utils/overrides.py`) and
`src/megatron/bridge/recipes`.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import printed_flops
from measured_runs import BUCKET, COMMON, MODULES, NANO, Recomputed, batch, degrees, over, restated, unsayable
from source_row import Always, Block, Listed, Missing, Number, Prose, SourceRow, Unheard, Unread, Words

from simcore.recipes.bridge.named import recipes

RECIPES = Path(__file__).resolve().parent / "recipes" / "bridge.jsonl"
TAGS = {"25.11": "v0.2.0", "26.02": "v0.3.0", "26.02.01": "v0.3.1", "26.04": "v0.4.0", "26.04.01": "v0.4.2",
        "26.06": "v0.5.0", "26.06.01": "v0.5.1"}
"""Containers and their tag: 067f987d `docs/versions1.json`. 26.08 (v0.6.0) has its recipes in functions of the package;
of 25.09 (v0.1.0) none are read."""
RELEASES = ("25.09", *TAGS, "26.08")
ORDER = tuple(TAGS.values())
ROUNDED = ("26.04.01", "26.06.01", "26.08")
"""Releases whose tokens a second are whole samples: TFLOP/s say the time more finely."""

LLAMA_405B = over("llama-3.1-8b", hidden_size=16384, intermediate_size=53248, num_hidden_layers=126,
                  num_attention_heads=128, num_key_value_heads=8)
QWEN_235B = over("qwen3-30b-a3b", hidden_size=4096, num_hidden_layers=94, num_attention_heads=64,
                 moe_intermediate_size=1536)
DEEPSEEK = ("DEEPSEEK_V3", over("deepseek-v3", mtp_num_layers=1))
DROPPED = Missing("tokens that are dropped: the capacity factor is not stated")
MODELS = {
    "LLAMA3_8B": ("LLAMA3_8B", "llama-3-8b"),
    "LLAMA3_70B": ("LLAMA3_70B", "llama-3-70b"),
    "LLAMA3.1_405B": ("LLAMA31_405B", LLAMA_405B),
    "Qwen3_30B_a3B": ("QWEN3_30B_A3B", "qwen3-30b-a3b"), "Qwen3_30B_a3B (tokendrop)": DROPPED,
    "Qwen3_235B_a22B": ("QWEN3_235B_A22B", QWEN_235B), "Qwen3_235B_a22B (tokendrop)": DROPPED,
    "DeepSeekV3": DEEPSEEK, "DeepSeekV3 (w/ MTP)": DEEPSEEK, "DeepSeekV3 (w/o MTP)": ("DEEPSEEK_V3", "deepseek-v3"),
    "DeepSeekV3 (tokendrop)": DROPPED, "DeepSeekV4 Flash": Missing("no model family: DeepSeekV4 Flash"),
    "GPT OSS 120B": ("GPT_OSS_120B", over("gpt-oss-20b", num_hidden_layers=36, num_local_experts=128)),
    "Kimi_K2": Missing("what the scripts set for Kimi K2 is not written down here"),
    "Nemotron_3_Nano": ("NEMOTRON_3_NANO", NANO),
    "Nemotron_3_5_Lightning": ("NEMOTRON_3_5_LIGHTNING", over(
        NANO, mtp_num_layers=2, mtp_hybrid_override_pattern="*E", mtp_use_repeated_layer=True)),
    "Nemotron_3_Ultra": ("NEMOTRON_3_ULTRA", over("nemotron-3-ultra-550b-a55b", mtp_num_layers=2)),
    "Nemotron_3_Super": ("NEMOTRON_3_SUPER", over("nemotron-3-super-120b-a12b", mtp_num_layers=2)),
}
"""Name in the tables: name of its recipes, our model. Tables name DeepSeek-V3 with and without its multi-token
prediction; Super predicts two tokens by one module."""
FORMATS = {"BF16": "BF16", "FP8": "FP8_CS", "FP8-CS": "FP8_CS", "FP8-CS (default column)": "FP8_CS", "MXFP8": "FP8_MX",
           "FP8-MX": "FP8_MX", "NVFP4": "NVFP4"}
FP8 = {"FP8_CS": "tensorwise", "FP8_MX": "mxfp8"}
TOPOLOGY = {"H100": "dgx-h100", "B200": "dgx-b200", "B300": "dgx-b300", "GB200": "gb200-nvl72", "GB300": "gb300-nvl72"}
DEEPSEEK_STAGES = {16: "Et*4|(t*4|)*14t", 8: "Et*8|(t*8|)*6t*5"}
"""By chunks: `recipes/deepseek/deepseek_v3.py`, set_deepseek_v3_pipeline_model_parallel_layout; then `m` and `L`."""


# ---- words of a row -------------------------------------------------------------------------------------------------
IMPLEMENTATIONS = ("none", "local", "transformer_engine", "full_iteration")
CAPTURED = ("attn", "mamba", "mlp", "moe", "moe_router", "moe_preprocess", "full_iteration")


class Graphs:
    """CUDA graphs as a row restates them: an implementation and what it captures, `full` or a list."""

    def meaning(self, told):
        implementation, scope = told if isinstance(told, list) else (told or "").split(" ", 1)
        if implementation is None and scope is None:
            return {}
        scopes = re.findall(r"[^\s,'\[\]]+", scope)
        unknown = [one for one in scopes if one not in (*CAPTURED, "full")]
        if implementation not in IMPLEMENTATIONS or unknown:
            raise Unheard(f"known: {', '.join(IMPLEMENTATIONS)} with full or a list of {', '.join(CAPTURED)}")
        return {"cuda_graph_impl": implementation, "cuda_graph_scope": scopes}


class Scopes:
    """What graphs capture, as presets say it: a list, or one word."""

    def meaning(self, told):
        return Listed((*CAPTURED, "full")).meaning([told] if isinstance(told, str) else told or [])


SWITCH = Words({True: True, False: False})
BACKENDS = Words({None: None, "hybridep": "hybridep", "deepep": "deepep"})
DTYPES = Always("float32", "bfloat16", "float16")
OF_MAIN = "of the layout that main's recipe has: the table's is followed"
RESTATED = {
    "recompute": Recomputed({"none": {}}), "cuda_graph": Graphs(),
    "dispatcher": Words({"flex/hybridep": "hybridep", "flex/deepep": "deepep", "alltoall/None": None,
                         "alltoall/deepep": None, "alltoall/hybridep": None}),
    "offload": Words({None: None, "[]": None, "['fused_group_mlp']": Missing("activations of a module on the host")}),
    "recipe": Prose(), "optim": Unread("the scripts' is followed", Block(dict.fromkeys(
        ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"), DTYPES))),
    "fsdp": Unread("that of the release's recipe is followed", Always(None, "False", "True")),
    **dict.fromkeys(("tp", "pp", "ep", "mbs"), Unread(OF_MAIN))}
VOCABULARY = COMMON | {
    "model": Words(MODELS), "vpp": Number(or_none=True), "gpu_type": Words(TOPOLOGY),
    "framework": Words({f"Megatron-Bridge / NeMo container {one}": one for one in RELEASES}),
    "task": Words({"pretrain": "PRETRAIN"} | dict.fromkeys(("sft", "lora"), Missing(
        "packed lengths of the fine-tuning set are not stated"))),
    "precision": Words({f"{told} (bf16 params; FP8=current scaling unless MX)": one for told, one in FORMATS.items()}),
    "sharding": Unread("that of the release's recipe is followed", Always("zero1", "zero3")),
    "recompute": Unread("restates main's recipe", Recomputed({"none": {}, None: {}})),
    "peft": Always(None, "lora (recipe default; see config)"), "optimizer": Always("adam"),
    "config": Block({"recipe": Block(RESTATED)}, or_none=True)}
"""Of a line of a performance table. `config.recipe` and what follows from it are of the main branch."""
PRESET = {
    **dict.fromkeys(("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
                     "expert_model_parallel_size", "micro_batch_size", "global_batch_size"), Number()),
    "virtual_pipeline_model_parallel_size": Number(or_none=True), "recompute_num_layers": Number(),
    "cpu_offloading_num_layers": Number(), "recompute_modules": Listed(MODULES),
    "cuda_graph_impl": Words({None: "none"} | {one: one for one in IMPLEMENTATIONS}), "cuda_graph_scope": Scopes(),
    "moe_flex_dispatcher_backend": BACKENDS, "pp_layout": Prose(),
    **dict.fromkeys(("moe_a2a_overlap", "use_megatron_fsdp", "cutedsl_fused_grouped_mlp", "fp8_dot_product_attention",
                     "nccl_ub"), SWITCH),
    "num_gpus": Unread("the table's is followed"), "expert_tensor_parallel_size": Unread("the table's is followed"),
    "peft": Unread("fine-tuning is not converted", Always("lora", "none", None))}
"""Of a preset of `scripts/performance` (WorkloadBaseConfig); what is left out has its default."""


def row(run):
    """Our row of a line of a table."""
    run = SourceRow(run, VOCABULARY, run["id"])
    return restated(run, scenario) | {"step_s": step_s(run), "release": run["framework"]}


def step_s(run):
    """TFLOP/s and tokens a second are one observation: the finer of the two."""
    measured, release = run["measured"], run["framework"]
    flops = printed_flops.a_token(run.told("model"), run["seq_len"], release)
    if release not in ROUNDED or flops is None or run.told("task") != "pretrain":
        return measured["step_time_s"]
    tokens = run["global_batch"] * run["seq_len"] / run["gpus"]
    return round(flops * tokens / (measured["tflops_per_gpu"] * 1e12), 4)


# ---- which recipe ---------------------------------------------------------------------------------------------------
def family(run):
    """How names of the row's recipes begin."""
    return run["model"][0]


@cache
def presets():
    """Every preset of every tag, in the order of tags: tag, name, and fields that differ from the default."""
    lines = [json.loads(line) for line in RECIPES.read_text(encoding="utf-8").splitlines()]
    return [one | {"tag": tag} for tag in ORDER for one in lines if tag in one["tags"]]


def main_recipe(name):
    """Values of a recipe of Megatron-Bridge 067f987d by dotted key. Raises Unheard for another name."""
    if name not in recipes():
        raise Unheard(f"recipe {name!r} is none of Megatron-Bridge 067f987d")
    return recipes()[name]


def wanted(run, name, fields):
    """Whether a preset has the row's task, GPU, format and layout."""
    words = f"_{name}_"
    return (all(f"_{word}_" in words for word in (run.told("gpu_type"), run["precision"]))
            and (run["task"] in name or "BASE_CONFIG" in name) and _layout(fields) == (
                run["tp"], run["pp"], run["vpp"] or 1, run["cp"], run["ep"] or 1, run["micro_batch"]))


def _layout(fields):
    keys = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
            "context_parallel_size", "expert_model_parallel_size", "micro_batch_size")
    return tuple(fields.get(key) or 1 for key in keys)


def nearest(run):
    """The preset of the release; else of the next release that has one for this layout, or of the last before.

    Of several variants that one which has the printed batch.
    """
    own = {release: place - 1 for place, release in enumerate(RELEASES)}[run["framework"]]
    fitting = [one for one in presets() if one["name"].startswith(family(run)) and wanted(
        run, one["name"], one["fields"])]

    def distance(one):
        ahead = ORDER.index(one["tag"]) - own
        return (ahead < 0, abs(ahead), one["fields"].get("global_batch_size") != run["global_batch"])
    return min(fitting, key=distance, default=None)


# ---- the scenario ---------------------------------------------------------------------------------------------------
def _recipe(run):
    """What the preset of the row says; without one what a row restates of the main branch's recipe."""
    family(run)
    if run.told("task") != "pretrain":
        run["task"]
    found = nearest(run)
    if found:
        return SourceRow(found["fields"], PRESET, f"{found['tag']} {found['name']}")
    restated_recipe = run["config"].get("recipe")
    if not run["complete"]:
        if restated_recipe:
            restated_recipe["offload"]
        unsayable("no release has a recipe for this layout: what it recomputes is not stated")
    return _restated(restated_recipe)


def _restated(recipe):
    """A recipe of the main branch (067f987d), as the collection restates it for a row of the same layout."""
    fields = recipe["cuda_graph"] | {"moe_flex_dispatcher_backend": recipe["dispatcher"]}
    modules = recipe["recompute"].get("recompute", [])
    return SourceRow(fields | {"recompute_modules": modules}, PRESET, f"main {recipe.told('recipe')}")


def scenario(run):
    """What a table prints, with what the recipe says."""
    fields, precision = _recipe(run), run["precision"]
    fsdp = fields.get("use_megatron_fsdp", False)
    training = batch(run) | _recomputed(fields) | {
        "precision": _precision(precision), "optimizer": _optimizer(run), "loss": LOSS[run["framework"]]}
    if run["vpp"] and run["vpp"] > 1:
        training["pipeline"] = {"virtual_stages": run["vpp"]}
    if fields.get("cpu_offloading_num_layers"):
        training["offload"] = {"activations": "host"}
    mesh = degrees(run)
    options = _graphs(fields) | _experts(run, fields) | _stages(run, fields) | _overlap(run, mesh) | _narrow(run)
    options |= _fusions(run)
    if fields.get("cpu_offloading_num_layers"):
        options["cpu_offloading_num_layers"] = fields["cpu_offloading_num_layers"]
    if not fsdp:
        options |= _buckets(run, fields) | _gathers(run) | {"use_precision_aware_optimizer": _is_precise(run)}
    later = {"framework_version": "main 2026-08-22"} if run["framework"] >= "26.04" else {}
    run.leave("config", "complete", "etp")
    return {"model": run["model"][1], "framework": "megatron_fsdp" if fsdp else "megatron", **later,
            "topology": _topology(run), "mesh": mesh, "training": training, "framework_options": options,
            **_allocator(run, fields)}


LOSS = dict.fromkeys(RELEASES, "te_inplace")
"""Releases lock TransformerEngine 2.9 to 2.17.1 (`uv.lock` at each tag; v0.6.0, which is 26.08: 2.17.1+4329ff84), whose
cross entropy writes its gradient over the logits. The main branch has had 2.18 since c. 13 August 2026."""


def _topology(run):
    """Of NVLink domains of 18 trays the queue is asked for the largest number of trays that divides those of the job.

    `utils/executors.py`, segment.
    """
    name, trays = run["gpu_type"], run["gpus"] // 4
    if not name.endswith("nvl72") or trays <= 18:
        return name
    return {"file": name, "gpus_per_node": 4 * max(part for part in range(1, 19) if trays % part == 0)}


EARLY = {("LLAMA31_405B", "GB200"): ("FP8_CS", "FP8_MX")}
LATER = EARLY | {("LLAMA31_405B", "GB300"): ("FP8_CS", "FP8_MX")}
ANY = tuple(FORMATS.values())
EXPANDABLE = {
    "25.09": EARLY | {("DEEPSEEK_V3", "GB200"): ("BF16",)}, "25.11": EARLY,
    **dict.fromkeys(("26.02", "26.02.01"), EARLY | {("DEEPSEEK_V3", "H100"): ANY}),
    "26.04": LATER | {("DEEPSEEK_V3", "H100"): ANY, ("DEEPSEEK_V3", "GB200"): ANY},
    "26.04.01": LATER | {("LLAMA31_405B", "GB200"): ("FP8_CS", "FP8_MX", "NVFP4"), **{
        ("DEEPSEEK_V3", gpu): ANY for gpu in ("H100", "GB200", "B200")}, ("NEMOTRON_3_SUPER", "GB300"): ("NVFP4",)}}
"""Rows of pretraining whose launcher sets `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`, by release: family and
GPU, and its formats. v0.2.0 to v0.4.2 `scripts/performance/perf_plugins.py`, _set_model_specific_environment_variables;
v0.1.0rc4 `setup_experiment.py`:116."""


def _allocator(run, fields):
    """Segments that grow: by rows up to 26.04.01, for all but Llama under FSDP in 26.06, by the recipe in 26.08.

    v0.5.0 and v0.5.1 `scripts/performance/utils/executors.py`, PERF_ENV_VARS, `perf_plugins.py`
    remove_allocator_env_vars; v0.6.0 in recipes, read from the main branch three days later.
    """
    release, name = run["framework"], family(run)
    if release in EXPANDABLE:
        grows = run["precision"] in EXPANDABLE[release].get((name, run.told("gpu_type")), ())
    elif release in ("26.06", "26.06.01"):
        grows = not (fields.get("nccl_ub") or (name.startswith("LLAMA") and fields.get("use_megatron_fsdp")))
    else:
        return allocator(run["config"]["recipe"]["recipe"])
    return {"environment": {"expandable_segments": True}} if grows else {}


def allocator(recipe):
    """The scenario's environment by a recipe of the main branch."""
    told = main_recipe(recipe).get("env_vars.PYTORCH_CUDA_ALLOC_CONF", "")
    return {"environment": {"expandable_segments": True}} if "expandable_segments:True" in told.split(",") else {}


def _precision(precision):
    """Scripts of all families set grad_reduce_in_fp32 to False."""
    narrow = {"NVFP4": {"compute": "fp4"}, "FP8_CS": {"compute": "fp8"}, "FP8_MX": {"compute": "fp8"}, "BF16": {}}
    return narrow[precision] | {"main_grads": "bf16", "grad_reduce": "bf16"}


def _is_precise(run):
    """`utils/overrides.py`, set_post_overrides: in bf16; DeepSeek's recipe in every format, with moments in bf16."""
    return run["precision"] == "BF16" or family(run) == "DEEPSEEK_V3"


def _optimizer(run):
    return {"name": "adam"} | ({"moments": "bf16"} if family(run) == "DEEPSEEK_V3" else {})


def _recomputed(fields):
    """`utils/overrides.py`, _set_recompute_overrides."""
    if fields.get("recompute_num_layers"):
        return {"recompute": {"mode": "block", "num_layers": fields["recompute_num_layers"]}}
    return {"recompute": fields["recompute_modules"]} if fields.get("recompute_modules") else {}


def _graphs(fields):
    """A scope without an implementation captures nothing."""
    implementation, scope = fields.get("cuda_graph_impl", "none"), fields.get("cuda_graph_scope", [])
    if implementation == "none":
        return {}
    return {"cuda_graph_impl": implementation} | ({"cuda_graph_scope": scope} if scope else {})


def _experts(run, fields):
    """A backend makes the dispatcher flex, but for Qwen3 235B outside NVL72, and GPT-OSS before v0.4.0."""
    if not run["ep"]:
        return {}
    backend = fields.get("moe_flex_dispatcher_backend")
    plain = ((family(run) == "QWEN3_235B_A22B" and run.told("gpu_type") in ("H100", "B200", "B300"))
             or (family(run) == "GPT_OSS_120B" and run["framework"] < "26.04"))
    made = {}
    if backend and not plain:
        made = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": backend}
    if fields.get("moe_a2a_overlap"):
        made |= {"overlap_moe_expert_parallel_comm": True, "delay_wgrad_compute": True}
    if fields.get("cutedsl_fused_grouped_mlp"):
        made["use_transformer_engine_op_fuser"] = True
    if fields.get("fp8_dot_product_attention"):
        made["fp8_dot_product_attention"] = True
    return made | _rooms(run, fields) | _head(run)


def _rooms(run, fields):
    """Rooms of experts and pages for what they keep, where a graph holds the whole iteration of 26.06 and later.

    v0.5.0 and v0.5.1 `scripts/performance/configs/{deepseek,gpt_oss,qwen}`, set_full_iter_cg_configs; v0.6.0
    `perf_recipes/{deepseek,gpt_oss,qwen}/common.py`. Half as many pages again on the host, which none need.
    """
    if run["framework"] < "26.06" or fields.get("cuda_graph_impl") != "full_iteration":
        return {}
    return {"moe_expert_rank_capacity_factor": 1.5, "moe_paged_stash": True,
            "moe_paged_stash_buffer_size_factor_cuda": 1.2}


IN_8_BITS = {"DEEPSEEK_V3": {"GB300": "26.06", "GB200": "26.06", "B300": "26.06.01"},
             "GPT_OSS_120B": {"GB300": "26.06", "GB200": "26.06"}}
"""First release whose head of the vocabulary computes in mxfp8, by family and GPU (v0.5.0, v0.5.1, v0.6.0)."""


def _head(run):
    """`configs/{deepseek,gpt_oss}/*_llm_pretrain.py`; v0.6.0 `perf_recipes`: where the format is mxfp8."""
    first = IN_8_BITS.get(family(run), {}).get(run.told("gpu_type"))
    has_one = first and run["precision"] == "FP8_MX" and run["framework"] >= first
    return {"fp8_output_proj": True} if has_one else {}


def _fusions(run):
    """`utils/overrides.py`, _set_common_perf_overrides: rotation; `configs/qwen/qwen3_llm_pretrain.py`: activation.

    Written down where providers of the family leave it out; in v0.2.0 to v0.6.0.
    """
    known = {"DEEPSEEK_V3": "apply_rope_fusion", "QWEN3_30B_A3B": "bias_activation_fusion",
             "QWEN3_235B_A22B": "bias_activation_fusion"}
    return {known[family(run)]: True} if family(run) in known else {}


def _stages(run, fields):
    """Recipes of Llama 405B and Qwen3 235B count embedding and loss as layers."""
    if family(run) in ("LLAMA31_405B", "QWEN3_235B_A22B") and run["pp"] > 1:
        return {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    if family(run) != "DEEPSEEK_V3" or run["pp"] == 1:
        return {}
    further = "" if "w/o MTP" in run.told("model") else "m"
    layout = fields.get("pp_layout") or DEEPSEEK_STAGES[run["pp"] * (run["vpp"] or 1)] + further + "L"
    return {"pipeline_model_parallel_layout": layout}


def _overlap(run, mesh):
    """Llama's recipes overlap tensor parallel collectives, but not in NVFP4; those of Qwen3 on H100 do not."""
    overlaps = mesh.get("tp") and family(run).startswith("LLAMA") and run["precision"] != "NVFP4"
    return {"tp_comm_overlap": True} if overlaps else {}


def _buckets(run, fields):
    """Whether the recipe has a `CommOverlapConfig`; v0.6.0's for Qwen3 in MXFP8 have none, nor ever those of Super.

    `configs/*/*_pretrain.py` and `recipes`; of GPT-OSS that for GB200 alone, since v0.4.0. Overlap of experts brings
    one.
    """
    name, is_new = family(run), run["framework"] >= "26.08"
    has_one = name.startswith(("LLAMA", "DEEPSEEK_V3", "NEMOTRON_3_NANO", "NEMOTRON_3_5_LIGHTNING")) or (
        name.startswith("QWEN3") and not (is_new and run["precision"] == "FP8_MX")) or (
        name == "GPT_OSS_120B" and run.told("gpu_type") == "GB200" and run["framework"] >= "26.04"
        and not (is_new and run["precision"] == "FP8_MX"))
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
    name, precision, gpu = family(run), run["precision"], run.told("gpu_type")
    late = run["framework"] == "25.11" and precision == "FP8_MX" and gpu in NOT_AHEAD.get(name, ())
    late |= run["framework"].startswith("26.06") and (name, precision, gpu) == ("LLAMA31_405B", "NVFP4", "GB200")
    return {"overlap_param_gather": False} if late else {}


def _narrow(run):
    """`utils/precision.py`, get_precision_config: current scaling without layers in bf16.

    NVFP4: parameters are in it since v0.5.0 (`training/mixed_precision.py`, bf16_with_nvfp4_mixed). Lightning: 067f987d
    `perf_recipes/nemotronh/gb200/nemotronh.py`, _build_nemotron_3_5_lightning_gb200_mxfp8.
    """
    if family(run) == "NEMOTRON_3_SUPER" and run["precision"] in ("FP8_MX", "NVFP4"):
        return SUPER[run["precision"]]
    if run["precision"] == "NVFP4":
        return {"fp4_param_gather": run["framework"] >= "26.06"} if run["framework"] >= "26.04" else {}
    recipe = FP8.get(run["precision"])
    made = {"keep_mtp_spec_in_bf16": True} if recipe and family(run) == "NEMOTRON_3_5_LIGHTNING" else {}
    return made | ({"fp8_recipe": recipe} if recipe else {}) | (
        {"first_last_layers_bf16": False} if recipe == "tensorwise" else {})
