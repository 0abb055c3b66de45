"""Measured training runs: one rule a group that turns a row's published configuration into a scenario.

A rule raises `Unsayable` where the configuration is not complete, or is of something that a scenario has no key for.
What a scenario *can* say and the engine cannot model yet is written down all the same: the engine refuses it by name.
"""

from __future__ import annotations

import math
import re

GIB, MIB = 2**30, 2**20


class Unsayable(Exception):
    """Why no scenario can be written."""


def row(run):
    """Our row of a run; None for one that carries no memory reading, no verdict and no time."""
    rule = RULES.get(run["group"])
    return rule and restated(run, rule)


def restated(run, rule):
    """The row that a rule makes of a run."""
    readings, verdict = _readings(run), _verdict(run)
    step = run["measured"].get("step_time_s") or _from_tokens(run)
    if not (readings or verdict == "oom" or step):
        return None
    made = {"id": run["id"], "group": run["group"], "source": run["source"]}
    try:
        made["scenario"] = rule(run)
    except Unsayable as reason:
        made["not_modelled"] = str(reason)
    if readings or verdict == "oom":
        made |= {"readings": readings, "verdict": verdict}
    return made if step is None else made | {"step_s": step} | _timed(run)


# ---- time -----------------------------------------------------------------------------------------------------------
TUNED = ("mbridge-perf-summary", "simumax-b200", "torchtitan", "torchtitan-log", "kempnerforge", "automodel-perf",
         "fms-fsdp", "llm-foundry", "korthikanti")
"""Groups that are tables of performance. Of Bridge's verification cards those of benchmark recipes are tuned too."""


def _from_tokens(run):
    """The step of a source that prints tokens a second alone; None where their number is not stated."""
    rate, batches = run["measured"].get("tokens_per_s_per_gpu"), (run["global_batch"], run["seq_len"], run["gpus"])
    return round(batches[0] * batches[1] / batches[2] / rate, 4) if rate and all(batches) else None


def _timed(run):
    """What the time is of, whether somebody made the run fast, and the release of the software."""
    recipe = (run["config"] or {}).get("recipe")
    card = run["group"] == "mbridge-card" and run["task"] == "pretrain" and "performance" in run["id"]
    part = {"timed": "forward_backward"} if "(fwd+loss+bwd timed)" in run["task"] else {}
    made = part | {"kind": "tuned" if run["group"] in TUNED or (card and recipe) else "untuned"}
    release = _release(run)
    return made | ({"release": release} if release else {})


def _release(run):
    """Bridge names its container or commit; a dated file is of its month; other sources are read at a commit."""
    told = re.match(r"Megatron-Bridge (?:/ NeMo container )?(\S+(?: \d+)?)", run["framework"])
    dated = re.search(r"_(20\d{4})_", run["source"])
    commit = re.search(r"@([0-9a-f]{7,})", run["source"])
    found = told or dated or commit
    return found[1] if found else ""


# ---- readings -------------------------------------------------------------------------------------------------------
QUANTITIES = {"peak_alloc_gib": "allocated_peak", "peak_reserved_gib": "reserved_peak",
              "device_mem_gib_per_gpu": "device_peak"}
MAX_GROUPS = ("torchtitan",)
"""Groups whose source prints the maximum over the GPUs; all others print one rank, the first unless their notes say."""


def _readings(run):
    measured = run["measured"]
    if "max_context_tokens" in measured:
        return [{"of": "device_peak", "rank": 0, "bytes": round(_card(run) * GIB)}]
    if "per_rank_max_alloc_mib" in measured:
        return _per_stage(run)
    rank = _rank(run)
    return [{"of": quantity, "rank": rank, "bytes": round(measured[key] * GIB)}
            for key, quantity in QUANTITIES.items() if measured.get(key) is not None]


def _per_stage(run):
    """All ranks were read: the first of each pipeline stage stands for its stage (they agree within a few MiB)."""
    size = run["gpus"] // run["pp"]
    readings = []
    for quantity, key in (("allocated_peak", "per_rank_max_alloc_mib"), ("reserved_peak", "per_rank_max_reserved_mib")):
        readings += [{"of": quantity, "rank": rank, "bytes": round(run["measured"][key][str(rank)] * MIB)}
                     for rank in range(0, run["gpus"], size)]
    return readings


def _rank(run):
    if run["group"] in MAX_GROUPS or "worst rank" in run["notes"]:
        return "max"
    told = re.search(r"rank (\d+) = last", run["notes"])
    return int(told[1]) if told else 0


def _verdict(run):
    return "oom" if "oom" in str(run["measured"].get("outcome", "")).lower() else "fits"


# ---- what rules share -----------------------------------------------------------------------------------------------
def unsayable(reason):
    """Leave a rule: no scenario can be written."""
    raise Unsayable(reason)


def over(config, **overrides):
    """A model as a preset with other values."""
    return {"config": config, "overrides": overrides}


def degrees(run):
    """`dp` leaves out context parallel ranks, `dp_shard` sometimes counts them; `etp` only with experts."""
    mesh = {"pp": run["pp"], "dp_shard": run["dp"] or run["dp_shard"], "cp": run["cp"], "tp": run["tp"]}
    world = math.prod(size or 1 for size in mesh.values())
    if world != run["gpus"]:
        unsayable(f"the degrees make {world} ranks, on {run['gpus']} GPUs")
    mesh = {axis: size for axis, size in mesh.items() if size and size > 1}
    if run["ep"]:
        mesh["ep"] = run["ep"]
        mesh |= {"etp": run["etp"]} if run["etp"] else {}
    return mesh


def batch(run):
    """Length and batches."""
    made = {"seq_len": run["seq_len"], "micro_batch_size": run["micro_batch"]}
    return made | ({"global_batch_size": run["global_batch"]} if run["global_batch"] else {})


def listed_modules(run):
    """What is recomputed, as a row says it."""
    told = run["recompute"] or ""
    listed = re.search(r"\[(.*)\]", told)
    if listed:
        return {"recompute": re.findall(r"[a-z_]+", listed[1])}
    if "full" in told or told.startswith("gradient checkpointing"):
        return {"recompute": "full"}
    if told.startswith("selective AC"):
        return {"recompute": {"mode": "per_op"}}
    return {"recompute": ["core_attn"]} if told.startswith("selective") else {}


# ---- SimuMax --------------------------------------------------------------------------------------------------------
def _simumax(run):
    """TransformerEngine 2.11, whose cross entropy writes its gradient over the logits; fp32 gradients, no overlap."""
    config = run["config"]
    options = {"overlap_grad_reduce": False, "overlap_param_gather": False}
    if config["cp_comm"]:
        options["cp_comm_type"] = config["cp_comm"]
    if config["dispatcher"]:
        options["moe_token_dispatcher_type"] = config["dispatcher"]
    training = batch(run) | {
        "sequence_parallel": config["sequence_parallel"], "loss": "te_inplace",
        "precision": {"main_grads": "fp32", "grad_reduce": "fp32"}, "optimizer": {"name": "adam"}}
    if config.get("moe_capacity_factor"):
        training["routing"] = {"capacity_factor": float(config["moe_capacity_factor"])}
    return {"model": _simumax_mla(config) if config.get("mla") else _llama(config), "framework": "megatron",
            "topology": "dgx-b200", "mesh": degrees(run), "training": training, "framework_options": options}


def _llama(config):
    return over("llama-3.1-8b", hidden_size=config["hidden"], intermediate_size=config["ffn"],
                 num_hidden_layers=config["layers"], num_attention_heads=config["heads"],
                 num_key_value_heads=config["kv"], head_dim=config["hidden"] // config["heads"],
                 vocab_size=config["vocab"])


def _simumax_mla(config):
    mla = config["mla"]
    preset = "deepseek-v2-lite" if config["experts"] == 160 else "deepseek-v3"  # the first routes by softmax
    return over(preset, num_hidden_layers=config["layers"], hidden_size=config["hidden"],
                 intermediate_size=config["ffn"], num_attention_heads=config["heads"],
                 num_key_value_heads=config["heads"], vocab_size=config["vocab"],
                 n_routed_experts=config["experts"], num_experts_per_tok=config["topk"],
                 moe_intermediate_size=config["moe_ffn"],
                 n_shared_experts=config["shared_ffn"] // config["moe_ffn"],
                 first_k_dense_replace=config["first_dense"], q_lora_rank=mla["q_lora"], kv_lora_rank=mla["kv_lora"],
                 qk_nope_head_dim=mla["qk"], qk_rope_head_dim=mla["rope"], v_head_dim=mla["v"])


# ---- Megatron-Bridge ------------------------------------------------------------------------------------------------
BRIDGE_TOPOLOGY = {"H100": "dgx-h100", "H100 80GB": "dgx-h100", "GB200": "gb200-nvl72"}
NANO = "nemotron-3-nano-30b-a3b"


BUCKET = {"bucket_size": 128 * 1024 * 1024}
"""What a Bridge recipe with a `CommOverlapConfig` sets where there is more than one data parallel rank: `training/
comm_overlap.py`, _get_optimizer_overlap_cfgs, at every tag from v0.2.0 on."""
LLAMA_FP8 = {"fp8_recipe": "tensorwise", "fp8_param_gather": True, "first_last_layers_bf16": False,
             "disable_parameter_transpose_cache": True, "tp_comm_overlap": True, "defer_embedding_wgrad_compute": True,
             "wgrad_deferral_limit": 22, "cuda_graph_impl": "transformer_engine"}
"""Megatron-Bridge 067f987d `perf_recipes/llama/h100/llama3.py`, llama3_70b_sft_32gpu_h100_fp8cs_config."""


def _bridge_skill(run):
    """Matched ladders of recomputed modules; benchmark recipes, so cross entropy is TransformerEngine's."""
    grads = {"main_grads": "bf16", "grad_reduce": "bf16"}
    training = batch(run) | listed_modules(run) | {"optimizer": {"name": "adam"}}
    options = {}
    if run["model"].startswith("Llama-3-70B"):
        training |= {"precision": {"compute": "fp8"} | grads, "pipeline": {"virtual_stages": run["vpp"]},
                     "loss": "te_inplace"}
        model, options = "llama-3-70b", dict(LLAMA_FP8)
    else:
        aware = "precision-aware" in run["optimizer"]
        training |= {"precision": grads, "loss": "te_inplace"}
        model = "moonlight-16b-a3b" if aware else NANO
        options["use_precision_aware_optimizer"] = aware
        training["optimizer"] |= {"moments": "bf16"} if "bf16 moments" in run["optimizer"] else {}
    if "HybridEP" in run["framework"]:
        options |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
    if run["dp"] > 1:  # recipes of all three have a CommOverlapConfig
        options |= BUCKET
    return {"model": model, "framework": "megatron", "topology": BRIDGE_TOPOLOGY[run["gpu_type"]],
            "mesh": degrees(run), "training": training, "framework_options": options}


# ---- Automodel ------------------------------------------------------------------------------------------------------
def _automodel_blog(run):
    if run["framework"].startswith("HF Transformers v4"):
        # The source's script (bench_v5.py --v4): the repository's own layers, a unit each and a root, no reshard given;
        # it holds the output, and with it the logits, while backward runs.
        return {"model": NANO, "framework": "fsdp2", "implementation": "hub", "topology": "dgx-h100",
                "mesh": degrees(run), "training": batch(run) | {
                    "loss": "hf_keep_logits", "precision": {"params": "bf16", "grad_reduce": "bf16"},
                    "optimizer": {"name": "adam", "implementation": "foreach"}},
                "framework_options": {"attn_implementation": run["config"]["attention"]}}
    loop = "foreach=False" in run["optimizer"]
    # The source's script (bench_automodel.py) gives the model its labels and takes the loss that it computes itself. It
    # ran eleven days before release 0.4.0, whose layers are those of its commit.
    training = batch(run) | {"loss": "causal", "precision": {"params": "bf16", "grad_reduce": "bf16"},
                              "optimizer": {"name": "adam", "implementation": "for_loop" if loop else "foreach"}}
    return {"model": NANO, "framework": "automodel", "framework_version": "0.4.0", "topology": "dgx-h100",
            "mesh": degrees(run), "training": training, "framework_options": {"dispatcher": "deepep"}}


AUTOMODEL = {
    "automodel-dsv3-gb200-bf16": ("deepseek-v3", {"loss": "masked"},
                                  {"dispatcher": "hybridep", "enable_fsdp_optimizations": True}),
    "automodel-Nemotron_V3_Nano": (NANO, {"loss": "masked"},
                                   {"dispatcher": "deepep", "enable_fsdp_optimizations": True, "attn": "sdpa"}),
    "automodel-Nemotron_V3_Ultra": (
        over("nemotron-3-ultra-550b-a55b", mtp_num_layers=2), {"loss": "auto"}, {"dispatcher": "deepep"}),
    "automodel-Qwen3_MoE_30B": ("qwen3-30b-a3b", {"loss": "masked"},
                                {"dispatcher": "deepep", "enable_fsdp_optimizations": True}),
    "automodel-GPT-OSS_20B": ("gpt-oss-20b", {"loss": "masked"}, {"dispatcher": "deepep"}),
    "automodel-GPT-OSS_120B": (over("gpt-oss-20b", num_hidden_layers=36, num_local_experts=128), {"loss": "masked"},
                               {"dispatcher": "deepep"}),
    "automodel-Qwen2.5_7B": ("qwen2.5-7b", {"loss": "masked_fp32"}, {}),
    "automodel-Qwen2.5_32B": (
        over("qwen2.5-7b", hidden_size=5120, intermediate_size=27648, num_hidden_layers=64, num_attention_heads=40,
             num_key_value_heads=8), {"loss": "masked_fp32"}, {"enable_fsdp2_prefetch": True, "enable_compile": True}),
}
"""By how ids begin: Automodel 36044ad3 `examples/llm_benchmark`: models, losses and options of the yaml files. Of Ultra
the table counts two further tokens, as its file asks for."""
AUTOMODEL_VERSION = {"automodel-dsv3-gb200-bf16": "main 2026-06-08", "automodel-Nemotron_V3_Nano": "0.3.0"}
"""Of rows that name a commit or a container: 26.02 is of February 2026, and so is 0.3.0."""
AUTOMODEL_EP = {"automodel-GPT-OSS_20B": 8, "automodel-GPT-OSS_120B": 64}
"""Expert parallelism of rows that do not restate their file's."""


def _automodel_perf(run):
    """Rows of benchmark files; a gate that balances, bf16 parameters and torch's Adam."""
    if not run["complete"]:
        unsayable("the number of GPUs is not stated")
    name = next((name for name in AUTOMODEL if run["id"].startswith(name)), None)
    if name is None:
        unsayable("a benchmark recipe that is not written down here yet")
    model, loss, options = AUTOMODEL[name]
    mesh = degrees(run) | ({"ep": AUTOMODEL_EP[name]} if name in AUTOMODEL_EP else {})
    training = batch(run) | listed_modules(run) | loss | {
        "precision": {"params": "bf16"}, "optimizer": {"name": "adam"}}
    if run["peft"]:
        training |= {"method": "lora", "lora": {"rank": 16, "alpha": 32.0, "target_modules": ["*_proj"]}}
    if name in AUTOMODEL_EP:
        training["recompute"] = "full"
    experts = {"fake_balanced_gate": True} if mesh.get("ep") else {}
    version = {"framework_version": AUTOMODEL_VERSION[name]} if name in AUTOMODEL_VERSION else {}
    layers = {"implementation": "hf"} if name == "automodel-Qwen2.5_7B" else {}  # force_hf
    return {"model": model, "framework": "automodel", **version, **layers,
            "topology": "gb200-nvl72" if "gb200" in run["id"] else "dgx-h100", "mesh": mesh, "training": training,
            "framework_options": options | experts}


def _automodel_docs(_run):
    unsayable("format of the parameters, unit of the reading and global batch not stated")


def _korthikanti(run):
    """Megatron-LM of 2022: attention not fused, no distributed optimizer; a step of one replica overlaps nothing."""
    config = run["config"]
    training = batch(run) | listed_modules(run) | {
        "sequence_parallel": config["sequence_parallel"], "loss": "megatron", "precision": {"compute": "fp16"},
        "optimizer": {"name": "adam"}}
    if run["vpp"] > 1:
        training["pipeline"] = {"virtual_stages": run["vpp"]}
    model = over("gpt2", n_embd=config["hidden"], n_layer=config["layers"], n_head=config["heads"],
                 n_inner=config["ffn"], n_positions=run["seq_len"], vocab_size=51200)
    return {"model": model, "framework": "megatron", "topology": "dgx-a100", "mesh": degrees(run),
            "training": training, "framework_options": {
                "attention_backend": "unfused", "use_distributed_optimizer": False, "overlap_grad_reduce": False}}


LLAMA_2 = {"7B": (4096, 11008, 32, 32), "13B": (5120, 13824, 40, 40), "34B": (8192, 22016, 48, 8),
           "70B": (8192, 28672, 80, 8)}


def _fms(run):
    """Blocks compiled, FSDP1 in its published strategy: answered as FSDP2 over compiled blocks of torchtitan."""
    if run["recompute"] != "none":
        unsayable("the share of blocks that is recomputed is not stated")
    hidden, ffn, layers, kv = LLAMA_2[run["model"].rsplit("-", 1)[1]]
    model = over("llama-3-8b", hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers, head_dim=128,
                 num_attention_heads=hidden // 128, num_key_value_heads=min(kv, hidden // 128), vocab_size=32000)
    training = batch(run) | {"precision": {"params": "fp32", "grad_reduce": "bf16"},
                             "optimizer": {"name": "adamw", "implementation": "fused"}}
    return {"model": model, "framework": "fsdp2", "implementation": "torchtitan", "topology": "dgx-a100",
            "mesh": {"dp_replicate": run["dp"] // run["dp_shard"], "dp_shard": run["dp_shard"]},
            "training": training, "framework_options": {"compile": True}}


FOUNDRY_TOPOLOGY = {"H100 80GB SXM": "dgx-h100", "A100 80GB SXM": "dgx-a100", "A100 40GB SXM": "dgx-a100-40gb"}


def _foundry(run):
    """llm-foundry's own MPT, with biases and learned positions, which the source's counts of parameters are.

    llm-foundry b2a43a147 and 5e85bd62d `scripts/train/benchmarking` (what the tables were made with), `yamls/pretrain`:
    low precision LayerNorm, FSDP's mixed precision PURE: shards in fp32, everything else in bf16. `bf16` is what
    Composer called amp_bf16 before 0.12 (commit bd774514e): it has no precision that stores parameters in 16 bits.
    FSDP1 with Composer's prefetches, but in `sweep.py`, which asks for both. Linears of runs in fp8 are
    TransformerEngine's (`fc_type: te`).
    """
    config = run["config"]
    model = over("mpt-7b", d_model=config["d_model"], n_layers=config["layers"], n_heads=config["heads"],
                 max_seq_len=run["seq_len"], vocab_size=config["vocab"], no_bias=False, attn_config={"alibi": False})
    compute = {"compute": "fp8"} if "fp8" in run["precision"] else {}
    training = batch(run) | listed_modules(run) | {
        "precision": {"params": "fp32", "grad_reduce": "bf16"} | compute,
        "optimizer": {"name": "adamw", "implementation": "for_loop"}}
    swept = run["gpu_type"].startswith("H100") and run["gpus"] >= 128
    options = {"attn_impl": _foundry_attention(run) if swept else "triton",
               "sharding_strategy": "SHARD_GRAD_OP" if run["sharding"].startswith("zero2") else "FULL_SHARD"}
    if swept:
        options |= {"forward_prefetch": True, "backward_prefetch": "BACKWARD_PRE"}
    return {"model": model, "framework": "fsdp1", "implementation": "llmfoundry",
            "topology": FOUNDRY_TOPOLOGY[run["gpu_type"]], "mesh": degrees(run), "training": training,
            "checkpoint": {"load": "none", "save": "none"},  # init_device: meta
            "framework_options": options}


def _foundry_attention(run):
    """`sweep.py`, for runs on 128 GPUs or more, names a kernel for each model; Triton's is the default elsewhere."""
    return "flash" if run["model"].split("-")[1] in ("1b", "3b", "7b", "70b") else "triton"


# ---- torchtitan -----------------------------------------------------------------------------------------------------
def _torchtitan(run):
    """FSDP2 over torchtitan's own layers: fp32 parameters and reduction, bf16 compute, fused AdamW."""
    told = _titan_gap(run)
    if told:
        unsayable(told)
    config = run["config"] or {}
    fp8 = "float8" in run["precision"]
    training = batch(run) | listed_modules(run) | {
        "precision": {"params": "fp32", "grad_reduce": "fp32"} | ({"compute": "fp8"} if fp8 else {}),
        "optimizer": {"name": "adamw", "implementation": "fused"}}
    training["micro_batch_size"] = config.get("pp_microbatch_size", training["micro_batch_size"])
    schedule = config.get("schedule", "1f1b").split()[0].lower()
    if schedule in ("interleaved", "interleaved1f1b"):
        # Schedules of several stages have two a rank by default (torchtitan distributed/pipeline_parallel.py).
        training |= {"pipeline": {"virtual_stages": run["vpp"] or 2}, "micro_batch_size": 1}
    options = _titan_wrapping(run) | ({"compile": _titan_compiled(run)} if config.get("compile") else {})
    if run["pp"] > 1 and _titan_returns_outputs(run):
        options["return_outputs"] = True
    if "fp8 all-gather" in run["precision"]:
        options["fp8_all_gather"] = True
    # cuDNN on B200 alone (3b85aa31f, May 2025), on all GPUs after the last of these. Flash takes no values as wide as
    # DeepSeek's (torch's sdp_utils.cpp), the next in torchtitan's list does, and the one log that says so agrees.
    options["sdpa_backend"] = "efficient" if "deepseek" in run["model"].lower() else "flash"
    return {"model": TITAN_MODELS[run["model"]], "framework": "fsdp2", "implementation": "torchtitan",
            **_titan_device(run), "mesh": degrees(run), "training": training, "framework_options": options}


def _titan_wrapping(run):
    """Until torchtitan's commit 83e694105 (July 2025) only blocks and the root were wrapped, and the last block kept.

    Published sources of before are dated in their file names.
    """
    dated = re.search(r"_(20\d{4})_", run["source"])
    if dated and dated[1] < "202508":
        return {"wrap": "layers_root", "set_last_reshard": False}
    return {"wrap": "separate_embedding_head"}


def _titan_returns_outputs(run):
    """Until torchtitan's commit e5ef99aab (October 2025) the schedule returned what the last stage had put out."""
    return bool(re.search(r"_(2024|20250\d)\d*_", run["source"])) or "@8a749c618" in run["source"]


def _titan_compiled(run):
    """What `compile` compiles: from commit e8977b007 (18 December 2024) to bbb1b616e (April 2025) blocks alone.

    There "compiling loss function causes CUDA errors" and was commented out; a source of December 2024 is taken to be
    of this version, since its runs finished. Readings had been seen when this was written.
    """
    dated = re.search(r"_(20\d{4})_", run["source"])
    return "model" if dated and "202412" <= dated[1] < "202504" else True


TITAN_MODELS = {
    "Llama-3.1-8B": "llama-3.1-8b",
    "Llama-3.1-405B": over("llama-3.1-8b", hidden_size=16384, intermediate_size=53248, num_hidden_layers=126,
                            num_attention_heads=128, num_key_value_heads=8),
    "Qwen3-32B": over("qwen3-8b", hidden_size=5120, intermediate_size=25600, num_hidden_layers=64,
                       num_attention_heads=64),
    "DeepSeek-V3-16B (torchtitan flavor)": "deepseek-v2-lite",
}


def _titan_gap(run):
    if run["complete"]:
        return ""
    if run["model"] not in TITAN_MODELS:
        return "model not named" if "not named" in run["model"] else "batch not stated"
    return "which activations are recomputed is not stated" if "config default" in run["recompute"] or \
        "may differ" in run["recompute"] else "the local batch is not stated"


def _titan_device(run):
    """Machines whose H100 have 96 GB of HBM2e and 500 W; Blackwell by the memory that a row says is there."""
    told = run["gpu_type"]
    if told.startswith("H100"):
        return {"topology": "h100-96gb-hbm2e"}
    if told.startswith("Blackwell"):
        return {"topology": "gb300-nvl72" if "276.6" in told else "gb200-nvl72"}
    return {"topology": "dgx-b200" if told.startswith("B200") else "dgx-h200"}


# ---- KempnerForge ---------------------------------------------------------------------------------------------------
def _kempner(run):
    """Its own layers and plan. Rows say "fp32 master"; the code casts the whole model to bf16, without another copy."""
    if not run["complete"]:
        unsayable("gradient accumulation not stated" if run["global_batch"] is None else
                   "how FSDP wraps the experts is not stated")
    config = run["config"]
    training = batch(run) | listed_modules(run) | {"optimizer": {"name": "adamw", "implementation": "fused"}}
    options = {"compile": True} if config.get("compile") else {}
    if "packed_experts" in config:
        options["packed_experts"] = config["packed_experts"]
    return {"model": _kempner_model(run), "framework": "fsdp2", "implementation": "kempnerforge",
            "topology": "dgx-h200", "mesh": degrees(run), "training": training, "framework_options": options}


def _kempner_model(run):
    moe = re.search(r"MoE E=(\d+) top(\d) \(d(\d+) L(\d+) h(\d+) kv(\d+)", run["model"])
    if moe:
        experts, top, hidden, layers, heads, kv = map(int, moe.groups())
        return over("mixtral-8x7b", num_local_experts=experts, num_experts_per_tok=top, vocab_size=128256,
                     **kempner_shape(hidden, layers, heads, kv))
    size = re.search(r"style (\d+)", run["model"])[1]
    if size == "29":
        unsayable("the 29B shape is in a file of the source that the row does not restate")
    hidden, layers, heads = {"7": (4096, 32, 32), "13": (5120, 40, 40)}[size]
    return over("llama-3.1-8b", **kempner_shape(hidden, layers, heads, 8))


def kempner_shape(hidden, layers, heads, kv):
    """`ffn auto(1.3x)` is Llama's rule: two thirds of 4 x hidden, x 1.3, up to a multiple of 256 (4096 gives 14336)."""
    ffn = int(1.3 * int(8 * hidden / 3))
    return {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv,
            "head_dim": hidden // heads, "intermediate_size": -(-ffn // 256) * 256}


# ---- one GPU, DeepSpeed, Megatron-SWIFT -----------------------------------------------------------------------------
def _torchtune(run):
    """One process without sharding: `ddp` of one rank. bf16 parameters and states.

    torchtune bd2a0fc7: `torch.optim.AdamW` is fused in its recipes (3B_lora_single_device.yaml and all but ten of 159
    entries; that of 3B_full_single_device.yaml is another optimizer, which the ladder replaces); packed batches go to
    FlexAttention (`modules/attention_utils.py`, _SUPPORTS_FLEX_ATTENTION: from torch 2.5 on any such GPU).
    """
    if run["task"] == "qlora" and run["sharding"] == "none":
        return _torchtune_qlora(run)
    if not run["complete"]:
        unsayable("batches are not packed: their lengths are not stated" if "not packed" in run["notes"] or
                   run["seq_len"] is None else "which activations are recomputed or offloaded is not stated")
    training = batch(run) | listed_modules(run) | {
        "loss": "chunked", "precision": {"params": "bf16"}, "lengths": "packed",
        "optimizer": {"name": "adamw", "implementation": "fused"}}
    options = {"compile": True, "attn_implementation": "flex_attention"}
    if "in backward" in run["optimizer"] or "opt-in-bwd" in run["optimizer"]:
        options["optimizer_in_bwd"] = True
    if "8bit" in run["optimizer"]:
        training["optimizer"] = {"name": "adamw", "implementation": "bitsandbytes", "moments": "int8"}
    if "offload" in run["recompute"]:
        training["offload"] = {"activations": "host"}
    if run["peft"]:
        training |= {"method": "lora", "lora": {
            "rank": 64, "alpha": 128.0,
            "target_modules": ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}}
    return {"model": "llama-3.2-3b", "framework": "ddp", "topology": "dgx-a100", "mesh": {}, "training": training,
            "framework_options": options}


def _torchtune_qlora(run):
    """`recipes/configs/llama3_1/8B_qlora_single_device.yaml` of the source's commit, with what the README changes.

    The README says batch, length, compile and no accumulation; the file has checkpointing, no offload, rank 8, fused
    AdamW, chunks of logits. There is one such recipe and one such figure.
    """
    training = batch(run) | {
        "method": "qlora", "recompute": "full", "loss": "chunked", "precision": {"params": "bf16"}, "lengths": "packed",
        "optimizer": {"name": "adamw", "implementation": "fused"}, "lora": {
            "rank": 8, "alpha": 16.0,
            "target_modules": ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}}
    return {"model": "llama-3.1-8b", "framework": "ddp", "topology": "rtx-4090", "mesh": {}, "training": training,
            "framework_options": {"compile": True, "attn_implementation": "flex_attention", "quantize_base": True}}


UNSLOTH_MODELS = {"Llama-3.1-8B-Instruct": "llama-3.1-8b", "Llama-3.3-70B-Instruct": "llama-3-70b"}


def _unsloth(run):
    """The longest sequence that fits a card of so many GB: there what a program may use of it is full.

    4-bit NF4 with double quantisation (the checkpoints that Unsloth publishes), rank 32 on all linears, 8-bit AdamW.
    "HF Transformers+PEFT+FA2": PEFT's guide to quantised training, which calls prepare_model_for_kbit_training, and the
    Trainer's autocast. Unsloth: its own layers, checkpoints on the host, cut cross entropy.
    """
    linears = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    training = batch(run) | {"method": "qlora", "recompute": "full",
                             "optimizer": {"name": "adamw", "implementation": "bitsandbytes", "moments": "int8"},
                             "lora": {"rank": 32, "target_modules": linears}}
    options = {"attn_implementation": "flash_attention_2"}
    if run["framework"].startswith("Unsloth"):
        training |= {"loss": "cut", "offload": {"activations": "host"}}
        alloc = {"environment": {"expandable_segments": True}}  # unsloth c67183f1 __init__.py:58
        options["FastLanguageModel"] = "2024.12"  # of the release that brought both, in the month of Llama 3.3
    else:
        options["prepare_model_for_kbit_training"], alloc = True, {}
    return alloc | {"model": UNSLOTH_MODELS[run["model"]], "framework": "ddp", "topology": "dgx-a100", "mesh": {},
                    "training": training, "framework_options": options,
                    "limits": {"usable_memory": f"{_card(run)} GiB"}}


CARDS = {12: 11.75, 24: 23.64, 80: 79.15}
"""GiB that torch says a card of so many GB has: an RTX 3060 (issue 12 of Kunhao-Liu/StyleGaussian), an RTX 4090 and an
A100 (`topologies/`)."""


def _card(run):
    return CARDS[int(re.match(r"(\d+) GB", run["gpu_type"])[1])]


SWIFT_ZERO = {
    "zero2": {"reduce_bucket_size": 200_000_000, "allgather_bucket_size": 200_000_000, "overlap_comm": False},
    "zero3": {"reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
              "stage3_param_persistence_threshold": "auto", "overlap_comm": False, "sub_group_size": 1_000_000_000,
              "stage3_max_live_parameters": 1_000_000_000, "stage3_max_reuse_distance": 1_000_000_000},
}
"""ms-swift 3602360a `swift/config/zero2.json` and `zero3.json`, which `--deepspeed zero2` names."""

SWIFT_MODELS = {
    "Qwen1.5-MoE-A2.7B": "qwen1.5-moe-a2.7b",
    "Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen3-30B-A3B-Base": "qwen3-30b-a3b",
    "Qwen3-235B-A22B-Instruct-2507": over("qwen3-30b-a3b", hidden_size=4096, num_hidden_layers=94,
                                           num_attention_heads=64, moe_intermediate_size=1536),
    "Qwen2.5-7B": "qwen2.5-7b",
    "Qwen2.5-14B": over("qwen2.5-7b", hidden_size=5120, intermediate_size=13824, num_hidden_layers=48,
                         num_attention_heads=40, num_key_value_heads=8),
    "Qwen2.5-72B-Instruct": over("qwen2.5-7b", hidden_size=8192, intermediate_size=29568, num_hidden_layers=80,
                                  num_attention_heads=64, num_key_value_heads=8),
}
"""Shapes of models without a preset are those of their published configurations; so are torchtitan's."""


def _swift(run):
    """Script headers: whole GiB on the device. Packed rows say so; unpacked ones are padded to the full length."""
    if not run["complete"]:
        unsayable("batch and format of the frozen base not stated")
    if run["model"] not in SWIFT_MODELS:
        unsayable(f"no model family: {run['model']}")
    deepspeed = "DeepSpeed" in run["framework"]
    training = batch(run) | listed_modules(run) | {"optimizer": {"name": "adam"}}
    if not deepspeed:
        training |= {"sequence_parallel": run["config"]["sequence_parallel"], "loss": "megatron"}
    if run["config"]["packing"]:
        training["lengths"] = "packed"
    if "offloaded" in run["optimizer"]:
        training["offload"] = {"optimizer": "host"}
    if run["peft"]:
        training |= {"method": "lora", "lora": {"rank": 8, "alpha": 32.0, "target_modules": [
            "linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]}}
    made = {"model": SWIFT_MODELS[run["model"]], "framework": run["sharding"] if deepspeed else "megatron",
            "topology": "dgx-a100", "mesh": degrees(run), "training": training}
    if run["model"] == "Qwen1.5-MoE-A2.7B":  # decoder_last_pipeline_num_layers 11 of 24, moe_router_dtype fp32
        training["pipeline"] = {"layers": [13, 11]}
        made["framework_options"] = {"moe_router_dtype": "fp32"}
    if not deepspeed:
        return made
    # Packing is refused without flash attention: `swift/arguments/sft_args.py`, _check_padding_free.
    return made | {"framework_options": SWIFT_ZERO[run["sharding"]] | {"attn_implementation": "flash_attention_2"}}


def _axolotl(run):
    """README figures, "about N GiB" on the device, of yaml files with packing and a cut cross entropy.

    The files say `attn_implementation: kernels-community/vllm-flash-attn3` and `reshard_after_forward: true`. Gradients
    are reduced after every microbatch: accelerate asks the model for `no_sync` (`accelerator.py`), which FSDP2 has not.
    All three have `activation_offloading: true`, and two of them `use_kernels: true`.
    """
    if not run["model"].startswith("gpt-oss"):
        unsayable(f"no model family: {run['model'].split()[0]}")
    training = batch(run) | {"recompute": "full", "lengths": "packed", "loss": "cut", "precision": {"params": "bf16"},
                              "offload": {"activations": "host"}}
    eight = "8bit" in run["optimizer"]
    training["optimizer"] = {"name": "adamw", "moments": "int8"} if eight else \
        {"name": "adamw", "implementation": "fused"}
    if run["peft"]:  # offload replaces recompute (axolotl `loaders/model.py`, _apply_activation_checkpointing)
        training |= {"method": "lora", "lora": {"rank": 8, "alpha": 16.0}, "recompute": "none"}
    if "offload" in run["model"]:
        training["offload"] |= {"params": "host", "optimizer": "host", "gradients": "host"}
    made = {"model": "gpt-oss-20b", "framework": "fsdp2" if run["sharding"] == "fsdp2" else "ddp",
            "topology": "dgx-a100", "mesh": degrees(run), "training": training,
            "framework_options": {"attn_implementation": "kernels-community/vllm-flash-attn3"}}
    if run["sharding"] == "fsdp2":
        made["framework_options"] |= {"reshard_after_forward": True, "sync_gradients": "every"}
    if run["model"] != "gpt-oss-20b FFT FSDP2":
        made["framework_options"]["use_kernels"] = True
    size = int(re.search(r"(\d+)GB", run["gpu_type"])[1])  # cards of less than 80 GB: a part of one that has them
    return made if size >= 80 else made | {"limits": {"usable_memory": f"{size} GB"}}


def _estimator(_run):
    unsayable("expert parallel size and exact shape are in a file that the source does not restate")


def _issue(run):
    unsayable("lengths and batch not stated" if "DPO" in (run["task"] or "") else
               "no model family: Qwen3-VL (vision tower)")


RULES = {"simumax-b200": _simumax, "korthikanti": _korthikanti, "fms-fsdp": _fms, "llm-foundry": _foundry,
         "mbridge-skill": _bridge_skill,
         "automodel-blog": _automodel_blog, "automodel-perf": _automodel_perf, "automodel-docs": _automodel_docs,
         "torchtitan": _torchtitan, "torchtitan-log": _torchtitan, "kempnerforge": _kempner, "torchtune": _torchtune,
         "ms-swift": _swift, "axolotl": _axolotl, "unsloth": _unsloth, "mbridge-est": _estimator, "issues": _issue}
