"""MLPerf Training logs: one result of a round, a benchmark and a system each, with its time and sometimes its memory.

Configurations are those of the shell files that the row names, with what the training scripts beside them fix:
mlcommons/training_results_v5.0 at 0fdc28f01325, `NVIDIA/benchmarks/llama2_70b_lora/implementations/
nyx_n1_ngc25.04_nemo` (`train.py`, `conf/megatron_gpt_peft_tuning_config.yaml`) and `Nebius/benchmarks/llama31_405b`
(`pretrain.py`, `conf/custom.yaml`); training_results_v5.1 at 441d65f4445c, `NVIDIA/benchmarks/{llama2_70b_lora,
llama31_8b}/implementations/nemo`. Every word of a row is looked up; one that no table here knows is a KeyError.

Scenarios cannot say, and rows therefore do not: clocks and `vboost`, `nvls`, the order of ranks (`rank_order`),
param_gather_with_optim_step.
"""

from __future__ import annotations

import re

from measured_runs import GIB, kept_out, mesh_of, over, unsayable
from source_row import Unsayable

__all__ = ["row", "scenario"]

MODELS = {
    "Llama-2-70B": "llama-2-70b", "Llama-3.1-8B": "llama-3.1-8b", "Llama-3.1-405B": "llama-3.1-405b",
    "DeepSeek-V3 671B-A37B (1 MTP layer)": over("deepseek-v3", mtp_num_layers=1),
    "GPT-3 175B": over("gpt2", n_embd=12288, n_layer=96, n_head=96, n_positions=2048, vocab_size=51200, attn_pdrop=0.0,
                       resid_pdrop=0.0, embd_pdrop=0.0)}
MACHINES = {
    "H100": "dgx-h100", "H200": "dgx-h200", "H200-NVL": "h200-nvl", "B200": "dgx-b200", "B300": "dgx-b300",
    "GB200": "gb200-nvl72", "GB300": "gb300-nvl72", "L40S": "l40s", "MI300X": "mi300x", "MI325X": "mi325x",
    "MI350X": "mi350x", "MI355X": "mi355x"}
OLDER = ("H100", "H200", "H200-NVL", "L40S")
"""GPUs whose LoRA results all ran NeMo of containers 24.04 (TransformerEngine 1.6) and 24.09 (1.11), also in v5.0 and
v5.1: `Dockerfile` of each submitter. Its yaml says disable_parameter_transpose_cache."""
TRAYS_OF_A_DOMAIN = 18

# ---- words of `precision` -------------------------------------------------------------------------------------------
NOTHING = {}
FP8_PARAMS = {"fp8_param_gather": True}
WORDS = {
    "fp8 delayed linear": {"compute": "fp8", "fp8_recipe": "delayed"},
    "fp8 delayed (yaml default) linear": {"compute": "fp8", "fp8_recipe": "delayed"},
    "fp8 tensorwise linear": {"compute": "fp8", "fp8_recipe": "tensorwise"},
    "fp8 tensorwise(current) by yaml default linear": {"compute": "fp8", "fp8_recipe": "tensorwise"},
    "mxfp8 linear + mxfp8 param gather (grad buffer reused)": {"compute": "fp8", "fp8_recipe": "mxfp8"} | FP8_PARAMS,
    "nvfp4 linear": {"compute": "fp4"},
    "fp8 attention": {"fp8_dot_product_attention": True},
    "bf16 attention": NOTHING,
    "fp8 frozen weights": FP8_PARAMS,
    "frozen weights: fp8 storage not stated by env": FP8_PARAMS,
    "fp8 params": FP8_PARAMS,
    "bf16 params": {"fp8_param_gather": False},
    "precision-aware adam": {"use_precision_aware_optimizer": True},
    "mxfp8 LM head": {"fp8_output_proj": True},
    "bf16 activations": NOTHING,
    "adam fp32 states unless noted": NOTHING,
    "adam": NOTHING,
}
"""What each part of a row's `precision` says. v5.1 keeps frozen weights of LoRA in fp8 without a flag:
`custom_llama.py` builds the model under `te.fp8_model_init`."""
UNSAYABLE = {
    "mxfp4 linear (hadamard)": "linears in mxfp4",
    "pre-quantized fp4 frozen weights": "frozen weights in fp4, quantised before the run",
    "nvfp4 linear pre-quantized": "frozen weights in fp4, quantised before the run",
    "healing to fp8 at step 350": "frozen weights in fp4, quantised before the run",
    "bf16 grad reduce": "linears in mxfp4",
}
INFERRED = re.compile(r" \(chosen by step time: .*\)$")

GRAPHS = {"none": "", "per layer": "transformer_engine", "mcore (per layer)": "transformer_engine",
          "full_iteration": "full_iteration", "full_iteration (yaml default scope)": "full_iteration"}
"""By `cuda_graph`. Core's own graphs of layers are taken to hold what TransformerEngine's hold."""
RECOMPUTED = {"none": {}, "full/block n=21": {"recompute": {"mode": "block", "num_layers": 21}}}
FLAGS = {None: False, "0": False, "1": True, "False": False, "True": True, False: False, True: True}


def row(run):
    """Our row of a result; every one of them ran, so that its verdict is `fits`."""
    measured = run["measured"]
    made = {"id": run["id"], "group": "mlperf-" + run["config"]["benchmark"].replace("_", "-"),
            "source": run["source"]}
    try:
        made["scenario"] = scenario(run)
    except Unsayable as reason:
        made["not_modelled"] = str(reason)
    peak = measured["peak_alloc_gib"]
    made["readings"] = [{"of": "allocated_peak", "rank": 0, "bytes": round(peak * GIB)}] if peak else []
    return made | {"verdict": "fits", "step_s": measured["step_time_s"], "kind": "tuned",
                   "release": run["config"]["round"]} | kept_out(run["config_group"])


def scenario(run):
    """The scenario of a result, without its name."""
    config = run["config"]
    if config.get("same_logs_as"):
        unsayable("the log files of another result, handed in again")
    if not run["complete"] or config.get("cuda_graph") == "not recoverable":
        unsayable("configuration not recovered")
    if "name only" in (config["config_path"] or ""):
        unsayable("of its configuration file only the name is known")
    if config.get("healing_precision") or INFERRED.search(run["precision"]):
        unsayable("the format was told by the step time" if INFERRED.search(run["precision"]) else
                  "frozen weights in fp4, quantised before the run")
    said = _precision(run)
    compute = said.pop("compute")
    formats = {"compute": compute, "main_grads": "bf16", "grad_reduce": "bf16"}
    training = {"seq_len": run["seq_len"], "micro_batch_size": run["micro_batch"],
                "global_batch_size": run["global_batch"], "precision": formats, "optimizer": {"name": "adam"},
                **RECOMPUTED[run["recompute"]]}
    if "sequence_parallel" in config:
        training["sequence_parallel"] = config["sequence_parallel"] and run["tp"] > 1
    stages = {"virtual_stages": run["vpp"]} if run["pp"] > 1 and run["vpp"] > 1 else {}
    training |= {"pipeline": stages} if stages else {}
    options = said | _graphs(run, said) | TASKS[config["benchmark"]](run, training)
    if FLAGS[config.get("use_te_ops")]:
        options["use_transformer_engine_op_fuser"] = True
    return {"model": MODELS[run["model"]], "framework": "megatron", "framework_version": _version(run, options),
            "topology": _topology(run), "mesh": mesh_of(run), "training": training, "framework_options": options}


def _version(run, options):
    """NeMo up to 25.09 has a core before 0.16; that of v6.0 is of April 2026.

    Attention in 8 bits beside linears in nvfp4 came to main after core 0.16.1; the branch of v5.1 had it already.
    """
    eight = "fp4_param_gather" in options and "fp8_dot_product_attention" in options
    return "main 2026-08-22" if run["config"]["round"] == "v6.0" or eight else "auto"


def _precision(run):
    """Options of the words of `precision`."""
    parts = run["precision"].split(", ")
    made = {}
    for part in parts:
        if part in UNSAYABLE:
            unsayable(UNSAYABLE[part])
        made |= WORDS[part]
    if made["compute"] == "fp4":
        made.pop("fp8_param_gather", None)
        made["fp4_param_gather"] = False
    elif made["fp8_recipe"] == "tensorwise":
        made["first_last_layers_bf16"] = False  # conf/custom.yaml: FIRST_LAST_LAYERS_BF16 is never set
    told = FLAGS[run["config"].get("fp8_dpa")]
    if "fp8_dpa" in run["config"] and told != made.get("fp8_dot_product_attention", False):
        raise KeyError(f"{run['id']}: precision and fp8_dpa differ")
    return made


def _graphs(run, options):
    """Of 8B with FULL_CUDA_GRAPH=0 the scope is `full`, layer by layer (`conf/custom.yaml`), not the whole step."""
    told = run["config"]["cuda_graph"]
    by_layer = told.endswith("(yaml default scope)") and run["model"] == "Llama-3.1-8B"
    implementation = "transformer_engine" if by_layer else GRAPHS[told]
    if implementation != "full_iteration" or _version(run, options) != "auto":
        return {"cuda_graph_impl": implementation} if implementation else {}
    return {"cuda_graph_impl": "local", "cuda_graph_scope": implementation}


def _topology(run):
    name = MACHINES[run["config"]["gpu_class"]]
    trays = run["gpus"] // 4
    if not name.endswith("nvl72") or trays <= TRAYS_OF_A_DOMAIN:
        return name
    return {"file": name, "gpus_per_node": 4 * max(part for part in range(1, 19) if trays % part == 0)}


# ---- benchmarks -----------------------------------------------------------------------------------------------------
def _lora(run, training):
    """`train.py`: rank 16 on QKV and projection, dropout before, core's own cross entropy, nothing overlapped."""
    config, peft = run["config"], run["peft"]
    training |= {"method": "lora", "lora": {
        "rank": peft["rank"], "alpha": float(peft["alpha"]), "dropout": peft["dropout"], "dropout_position": "pre",
        "target_modules": peft["targets"]}}
    made = {"overlap_grad_reduce": False, "overlap_param_gather": False, "cross_entropy_loss_fusion": False}
    if run["cp"] > 1:
        made["cp_comm_type"] = "a2a"  # the yaml's default
    if FLAGS[config["fp8_activation_input_store"]]:
        made["activation_func_fp8_input_store"] = True
    if config["gpu_class"].startswith("MI"):
        made["disable_parameter_transpose_cache"] = True  # AMD's megatron_gpt_peft_tuning_config.yaml
    elif config["gpu_class"] in OLDER:
        made |= {"disable_parameter_transpose_cache": True, "TransformerEngine": "1.11"}
    return made | _overlapped_tp(run)


def _dense(run, training):
    """`pretrain.py`, `conf/custom.yaml`: fused cross entropy, for 8B in 25.09 TransformerEngine's, then in place."""
    config = run["config"]
    newer = run["model"] == "Llama-3.1-8B" and config.get("use_te_ops") is not None  # config_common_8b.sh of 25.09
    training["loss"] = "te_inplace" if newer else "megatron"
    made = _overlapped_dp(config)
    if made["overlap_grad_reduce"]:
        made["bucket_size"] = 768_000_000 if newer else 134_217_728
    if FLAGS[config.get("defer_embedding_wgrad")] and run["pp"] > 1:  # NeMo's callback wants stages for it
        made |= {"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": 50}
    if config.get("asym_pp_embed_loss") == ["True", "True"]:
        made |= {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    return made | _overlapped_tp(run)


def _overlapped_dp(config):
    """Rows of v6.0 name the two by themselves."""
    told = ("grad_overlap", "param_overlap") if config["round"] == "v6.0" else (
        "overlap_grad_reduce", "overlap_param_gather")
    return dict(zip(("overlap_grad_reduce", "overlap_param_gather"), (FLAGS[config[key]] for key in told), strict=True))


def _overlapped_tp(run):
    """User buffers need sequence parallelism, and so more than one rank."""
    return {"tp_comm_overlap": True} if run["tp"] > 1 and run["config"]["tp_comm_overlap"] and \
        run["config"]["sequence_parallel"] else {}


def _gpt3(run, _training):
    """training_results_v4.0 6fe954378efe, NeMo of 24.04: `conf/custom.yaml` (no dropout), `conf/optim/
    distributed_fused_adam.yaml`: bf16 gradients in buckets of 200 MB, both overlapped; core's own cross entropy.
    """
    return {"overlap_grad_reduce": True, "overlap_param_gather": True, "bucket_size": 100_000_000,
            "cross_entropy_loss_fusion": False, **_overlapped_tp(run)}


ROOM = re.compile(r"expert rank capacity factor (\d+) with paged stash$")
"""Of `routing`: rows for which a rank has room, times those of balanced routing."""


def _deepseek(run, training):
    """`config_GB300_64x4x240xtp1pp4ep32cp1_mxfp8_full_cg.sh`, as the row restates it."""
    config = run["config"]
    training["loss"] = "te"
    kind, backend = config["dispatcher"]
    room = ROOM.search(config["routing"])
    return {"moe_expert_rank_capacity_factor": float(room[1]), "moe_paged_stash": True,
            "use_transformer_engine_op_fuser": True,  # main transformer_config.py:1876 asks for it
            "moe_token_dispatcher_type": kind, "moe_flex_dispatcher_backend": backend,
            "overlap_moe_expert_parallel_comm": True, "delay_wgrad_compute": True,
            "pipeline_model_parallel_layout": config["pipeline_layout"],
            **_overlapped_dp(config)}


TASKS = {"llama2_70b_lora": _lora, "llama31_8b": _dense, "llama31_405b": _dense, "gpt3": _gpt3,
         "deepseekv3_671b": _deepseek}
