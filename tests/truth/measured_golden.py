"""Golden values of Megatron-LM's functional tests: the rule that turns a case's configuration into a scenario.

The last rank logs. `allocated_peak` is the highest reading of the whole run, `allocated_peak_first` that of iteration 1
(no Adam states before its optimizer step), `allocated_end` what is allocated after the optimizer step, before gradients
are zeroed. Options are written where they differ from Megatron-Bridge's recipes, whose defaults `framework: megatron`
stands for; the overlap switches and the distributed optimizer are always written.
"""

from __future__ import annotations

GROUPS = {"gpt": "mcore-golden-gpt", "moe": "mcore-golden-moe", "hybrid": "mcore-golden-hybrid",
          "nemotron": "mcore-golden-hybrid", "mixtral": "mcore-golden-moe"}
TOPOLOGY = {"A100": "dgx-a100", "H100": "dgx-h100", "GB200": "gb200-nvl72"}
OTHER_MODELS = {"bert": "BERT", "t5": "T5 (encoder and decoder)", "multimodal-llava": "LLaVA (vision tower)",
                "mimo": "MIMO (vision tower)"}
# What the collection says of a row and no scenario can say, by the first words it uses.
UNSAYABLE = {
    "reinforcement-learning run": "a reinforcement-learning step: rollouts and offload between phases are not stated",
    "teacher model": "distillation with a teacher model beside the student",
    "flextron": "Flextron: several widths of one model in a step",
    "world size not stated": "world size not stated",
    "vocabulary size unknown": "vocabulary size unknown from the case files",
}
UNFUSED = "attention backend auto, which ran unfused: the configuration does not say so"
LATER_CONTAINER = "2026-05-07"
"""Since then tests of the environment dev run in pytorch:26.04-py3, before in 26.02 (Megatron-LM 5fe3f06658,
docker/.ngc_version.dev); lts stays with 25.09."""
OTHER_GPU = "values of another GPU's run: the file is an inferred copy"
INFERRED = (UNFUSED, OTHER_GPU)
"""Reasons that the collection infers from the reading itself: such a row has its configuration as it was published."""


def copied_from(golden):
    """The file that has the same iteration times: the same run, stored twice; "" for none."""
    return next((flag.removeprefix("copy_of:") for flag in golden["flags"] if flag.startswith("copy_of:")), "")


def row(golden):
    """Our row of one golden file."""
    made = {"id": golden["id"], "group": group(golden), "source": golden["source"]}
    reason = _reason(golden)
    made |= {"not_modelled": reason} if reason else {"scenario": scenario(golden)}
    if reason in INFERRED:
        made["as_published"] = scenario(golden)
    measured = golden["measured"]
    readings = [_reading("allocated_peak", measured["peak_bytes"]), _reading("allocated_end", measured["steady_bytes"])]
    if measured["first_iteration"] == 1:
        readings.append(_reading("allocated_peak_first", measured["peak_iter1_bytes"]))
    return made | {"readings": readings, "verdict": "fits", "step_s": measured["iteration_time_s_median"],
                   "kind": "untuned", "release": f"{golden['environment']} {golden['golden_changed']}"}


def unfiled(run):
    """A golden file that only the collection of runs has: its YAML as written, defaults are Megatron-LM's own."""
    measured = run["measured"]
    made = {"id": run["id"], "source": run["source"],
            "group": GROUPS[run["source"].split("/test_cases/")[1].partition("/")[0]]}
    made |= {"not_modelled": "world size not stated"} if run["gpus"] is None else {"scenario": scenario({
        "case": run["model"], "config": _filled(run["config"]), "raw_args": run["config"], "dp": run["dp"],
        "gpu": run["gpu_type"].split()[0], "environment": "", "memory_values_changed": "",
        "env_vars": _suite_variables(run["config"])})}
    return made | {
        "readings": [_reading("allocated_peak", measured["peak_alloc_bytes"]),
                     _reading("allocated_end", measured["steady_alloc_bytes"]),
                     _reading("allocated_peak_first", round(measured["first_iter_peak_alloc_gib"] * 2**30))],
        "verdict": "fits", "step_s": measured["step_time_s"], "kind": "untuned"}


def _suite_variables(raw):
    """The collection leaves variables out; in the other one all deterministic GPT cases and hybrids set this one."""
    sets = raw.get("deterministic-mode") or "hybrid-layer-pattern" in raw
    return {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if sets else {}


def _filled(raw):
    """The configuration of a dense or hybrid case from its YAML: what is left out is Megatron-LM's default.

    Defaults: d98e8a64 `megatron/training/arguments.py`. Without a tokenizer's name the suite gives GPT-2's files. Made
    from the YAMLs of the 298 language models in the other collection, these fields are equal to the ones that it
    lists, but for runs of reinforcement learning, MLA's positions and five vocabularies.
    """
    hidden, heads, tp = raw["hidden-size"], raw["num-attention-heads"], raw["tensor-model-parallel-size"]
    swiglu, biased = bool(raw.get("swiglu")), not raw.get("disable-bias-linear")
    tokens = raw["vocab-size"] if raw.get("tokenizer-type") == "NullTokenizer" else 50257
    rows = raw.get("make-vocab-size-divisible-by", 128) * tp
    pattern = raw.get("hybrid-layer-pattern") or raw.get("hybrid-override-pattern")
    ssm = {"hybrid_pattern": pattern, "mamba_head_dim": 64, "mamba_groups": 8, "mamba_state": 128} if pattern else {}
    switches = {name: bool(raw.get(key)) for name, key in SWITCHES.items()}
    return switches | ssm | {name: raw.get(key, default) for name, (key, default) in VALUES.items()} | {
        "dtype": "bf16", "grad_reduce_dtype": "fp32", "hidden": hidden, "heads": heads, "tp": tp,
        "groups": raw["num-query-groups"] if raw.get("group-query-attention") else heads,
        "head_dim": raw.get("kv-channels", hidden // heads), "swiglu": swiglu, "bias": biased,
        "ffn": raw.get("ffn-hidden-size", int(4 * hidden * 2 / 3 / 64) * 64 if swiglu else 4 * hidden),
        "sp": bool(raw.get("sequence-parallel")) and tp > 1, "padded_vocab": -(-tokens // rows) * rows,
        "bias_gelu_fusion": biased and not swiglu, "masked_softmax_fusion": not raw.get("no-masked-softmax-fusion"),
        "grad_accum_fusion": not raw.get("no-gradient-accumulation-fusion"), "mask_in_loader": True}


SWITCHES = {"dist_opt": "use-distributed-optimizer", "overlap_grad_reduce": "overlap-grad-reduce",
            "overlap_param_gather": "overlap-param-gather", "high_bw": "ddp-pad-buckets-for-high-nccl-busbw",
            "untie": "untie-embeddings-and-output-weights", "squared_relu": "squared-relu",
            "qk_layernorm": "qk-layernorm", "deterministic": "deterministic-mode", "mla": "multi-latent-attention",
            "tp_comm_overlap": "tp-comm-overlap", "a2a_overlap": "overlap-moe-expert-parallel-comm",
            "op_fuser": "use-transformer-engine-op-fuser", "defer_embedding_wgrad": "defer-embedding-wgrad-compute"}
VALUES = {"impl": ("transformer-impl", "transformer_engine"), "optimizer": ("optimizer", "adam"),
          "opt_instances": ("num-distributed-optimizer-instances", 1), "pp": ("pipeline-model-parallel-size", 1),
          "cp": ("context-parallel-size", 1), "seq": ("seq-length", None), "mbs": ("micro-batch-size", None),
          "gbs": ("global-batch-size", None), "layers": ("num-layers", None),
          "max_pos": ("max-position-embeddings", None),
          "norm": ("normalization", "LayerNorm"), "pos": ("position-embedding-type", "learned_absolute"),
          "adrop": ("attention-dropout", 0.1), "hdrop": ("hidden-dropout", 0.1),
          "attention_backend": ("attention-backend", "auto")}


def _reading(quantity, num_bytes):
    return {"of": quantity, "rank": "last", "bytes": num_bytes}


def group(golden):
    """Runs that resumed from a checkpoint are apart: their peak includes loading it."""
    if golden["model"] in OTHER_MODELS:
        return "mcore-golden-other"
    return "mcore-golden-resumed" if golden["second_run"] else GROUPS[golden["model"]]


def _reason(golden):
    if golden["model"] in OTHER_MODELS:
        return f"no model family: {OTHER_MODELS[golden['model']]}"
    for start, told in UNSAYABLE.items():
        if any(reason.startswith(start) for reason in golden["not_modelled"]):
            return told
    flags = {flag.partition("(")[0] for flag in golden["flags"]}
    if "peak_matches_unfused_attention" in flags:
        return UNFUSED
    return OTHER_GPU if "a100_file_with_h100_workspaces" in flags else ""


def scenario(golden):
    """The scenario of a case: what ran, how it was laid out, how it was trained."""
    config = golden["config"]
    return {"model": _model(config), "framework": "megatron_fsdp" if config.get("fsdp") else "megatron",
            **_version(golden), "topology": TOPOLOGY[golden["gpu"]], "mesh": _mesh(golden),
            "training": _training(config),
            "framework_options": _options(config) | _context(golden), **_environment(golden)}


def _version(golden):
    """A `|` in a hybrid's pattern is a word of versions after core 0.16.1; their container is a later one too."""
    later = "|" in golden["config"].get("hybrid_pattern", "") or (
        golden["environment"] == "dev" and golden["memory_values_changed"] >= LATER_CONTAINER)
    return {"framework_version": "main 2026-08-22"} if later else {}


# ---- model ----------------------------------------------------------------------------------------------------------
def _model(config):
    """A hybrid, DeepSeek (latent attention, RMSNorm, SwiGLU), or GPT-2 with changes.

    The vocabulary is the padded one, which is what is stored.
    """
    if config.get("hybrid_pattern"):
        return _hybrid(config)
    latent = config["mla"] and config["norm"] == "RMSNorm" and config["swiglu"] and not config["bias"]
    return _deepseek(config) if latent else _gpt(config)


def _gpt(config):
    """GPT-2 has biases, LayerNorm, learned positions and GELU; what else a case has is written in Megatron's words."""
    overrides = {"n_embd": config["hidden"], "n_layer": config["layers"], "n_head": config["heads"],
                 "n_inner": config["ffn"], "n_positions": config["max_pos"], "vocab_size": config["padded_vocab"],
                 "tie_word_embeddings": not config["untie"]}
    overrides |= {"attn_pdrop": config["adrop"], "resid_pdrop": config["hdrop"], "embd_pdrop": config["hdrop"]}
    changes = {  # key: (as it ran, as GPT-2 has it)
        "normalization": (config["norm"], "LayerNorm"), "add_bias_linear": (config["bias"], True),
        "position_embedding_type": (config["pos"], "learned_absolute"),
        "activation_function": ("relu2" if config["squared_relu"] else "gelu", "gelu"),
        "swiglu": (config["swiglu"], False), "qk_layernorm": (config["qk_layernorm"], False),
        "num_query_groups": (config["groups"], config["heads"]), "multi_latent_attention": (config["mla"], False),
        "mtp_num_layers": (config.get("mtp", 0), 0)}
    overrides |= {key: ran for key, (ran, usual) in changes.items() if ran != usual}
    if config["mla"]:
        overrides |= _latent(config)
    return {"config": "gpt2", "overrides": overrides | (_gpt_experts(config) if config.get("experts") else {})}


def _gpt_experts(config):
    """Some cases have dense layers first (moe-layer-freq), and a router by sigmoid."""
    dense = config.get("moe_layer_pattern", "").count("0")
    score = config.get("score_fn", "softmax")
    return _experts(config) | ({"first_k_dense_replace": dense} if dense else {}) | (
        {"moe_router_score_function": score} if score != "softmax" else {})


def _deepseek(config):
    pattern = config["moe_layer_pattern"]
    overrides = {
        "hidden_size": config["hidden"], "vocab_size": config["padded_vocab"], "intermediate_size": config["ffn"],
        "num_hidden_layers": len(pattern), "first_k_dense_replace": pattern.count("0"),
        "num_attention_heads": config["heads"], "num_key_value_heads": config["heads"], **_latent(config),
        "n_routed_experts": config["experts"], "num_experts_per_tok": config["topk"],
        "moe_intermediate_size": config["moe_ffn"],
        "n_shared_experts": config.get("shared_ffn", 0) // config["moe_ffn"],
        "tie_word_embeddings": not config["untie"], "max_position_embeddings": config["max_pos"]}
    if config.get("mtp"):
        overrides["mtp_num_layers"] = config["mtp"]
    return {"config": "deepseek-v3", "overrides": overrides}


def _latent(config):
    return {"q_lora_rank": config["q_lora"], "kv_lora_rank": config["kv_lora"],
            "qk_nope_head_dim": config["qk_head_dim"], "qk_rope_head_dim": config["qk_pos_dim"],
            "v_head_dim": config["v_head_dim"]}


def _experts(config):
    return {"n_routed_experts": config["experts"], "num_experts_per_tok": config["topk"],
            "moe_intermediate_size": config["moe_ffn"],
            "moe_shared_expert_intermediate_size": config.get("shared_ffn", 0)}


def _hybrid(config):
    """Megatron's Mamba layers without a head count have 2 x hidden / head_dim heads (`ssm/mamba_mixer.py`)."""
    pattern, *heads = config["hybrid_pattern"].replace("|", "").split("/")
    overrides = {
        "hidden_size": config["hidden"], "vocab_size": config["padded_vocab"], "intermediate_size": config["ffn"],
        "tie_word_embeddings": not config["untie"], "num_attention_heads": config["heads"],
        "num_key_value_heads": config["groups"], "head_dim": config["head_dim"],
        "max_position_embeddings": config["max_pos"], "hybrid_override_pattern": pattern,
        "num_hidden_layers": len(pattern), "n_groups": config["mamba_groups"],
        "mamba_num_heads": config.get("mamba_heads", 2 * config["hidden"] // config["mamba_head_dim"]),
        "mamba_head_dim": config["mamba_head_dim"], "ssm_state_size": config["mamba_state"]}
    if config.get("experts"):
        overrides |= _experts(config)
    if config["norm"] != "RMSNorm":
        overrides |= {"normalization": config["norm"], "add_bias_linear": config["bias"],
                      "mlp_hidden_act": _activation(config), "position_embedding_type": config["pos"],
                      "hidden_dropout": config["hdrop"], "attention_dropout": config["adrop"]}
    if heads:
        overrides |= {"mtp_num_layers": len(heads), "mtp_hybrid_override_pattern": heads[0],
                      "mtp_use_repeated_layer": config["mtp_repeat"]}
    return {"config": "nemotron-3-nano-30b-a3b", "overrides": overrides}


def _activation(config):
    return "silu" if config["swiglu"] else "relu2" if config["squared_relu"] else "gelu"


# ---- layout ---------------------------------------------------------------------------------------------------------
def _mesh(golden):
    config, dp = golden["config"], golden["dp"]
    mesh = {"pp": config["pp"], "dp_replicate": config["opt_instances"], "dp_shard": dp // config["opt_instances"],
            "cp": config["cp"], "tp": config["tp"]}
    mesh = {axis: size for axis, size in mesh.items() if size > 1}
    if config.get("experts"):
        mesh |= {"ep": config["ep"], "etp": config["etp"]}
    return mesh


def _training(config):
    made = {"seq_len": config["seq"], "micro_batch_size": config["mbs"], "global_batch_size": config["gbs"],
            "sequence_parallel": config["sp"], "loss": "te" if config.get("xent_fusion") == "te" else "megatron"}
    if config.get("recompute_modules"):
        made["recompute"] = config["recompute_modules"]
    segments = config.get("hybrid_pattern", "").partition("/")[0].split("|")
    chunks = config.get("vpp") or max(1, len(segments) // config["pp"])
    if chunks > 1:
        made["pipeline"] = {"virtual_stages": chunks}
    if len(segments) > 1:
        made.setdefault("pipeline", {})["layers"] = [len(segment) for segment in segments]
    compute = "fp8" if config.get("fp8") else config["dtype"]
    grads = config["grad_reduce_dtype"]
    made["precision"] = {"compute": compute, "main_grads": grads, "grad_reduce": grads}
    if compute == "fp8" and config["dtype"] == "fp32":  # neither --bf16 nor --fp16: all but the linears is in fp32
        made["precision"]["params"] = "fp32"
    # Later versions say dist_muon as muon with the distributed optimizer; a layout of its buffers came later still.
    made["optimizer"] = {"name": "dist_muon" if _is_layer_wise(config) else config["optimizer"]}
    return made


def _is_layer_wise(config):
    return config["optimizer"] == "muon" and config["dist_opt"]


def _context(golden):
    """What only the YAML says: how attention crosses context parallel ranks, and the router's format."""
    kind, router = (golden["raw_args"].get(name) for name in ("cp-comm-type", "moe-router-dtype"))
    crosses = {} if kind in (None, "p2p") else {"cp_comm_type": kind}
    if golden["config"]["squared_relu"] and golden["config"].get("experts"):
        crosses["use_fused_weighted_squared_relu"] = bool(golden["raw_args"].get("use-fused-weighted-squared-relu"))
    if _is_layer_wise(golden["config"]):  # the others were read before there was a layout
        crosses["use_layer_wise_param_layout"] = golden["case"].endswith("_param_layout")
    warm = golden["raw_args"].get("cuda-graph-warmup-steps")
    crosses |= {} if warm is None else {"cuda_graph_warmup_steps": warm}
    limit = golden["raw_args"].get("wgrad-deferral-limit")
    crosses |= {"wgrad_deferral_limit": limit} if limit else {}
    return crosses | ({"moe_router_dtype": router} if router else {}) | _sharded(golden) | _fp8(golden)


def _sharded(golden):
    """Megatron-FSDP's own arguments. All its cases say `--log-params-norm: true`, which the collection leaves out."""
    if not golden["config"].get("fsdp"):
        return {}
    return {"data_parallel_sharding_strategy": golden["raw_args"]["data-parallel-sharding-strategy"],
            "log_params_norm": True}


def _fp8(golden):
    """Megatron-LM's own defaults differ from Bridge's presets, so all that decides bytes is written."""
    config, raw = golden["config"], golden["raw_args"]
    if not config.get("fp8"):
        return {}
    made = {"fp8_format": config["fp8"], "fp8_recipe": config["fp8_recipe"],
            "fp8_param_gather": config["fp8_param_gather"],
            "first_last_layers_bf16": bool(raw.get("first-last-layers-bf16"))}
    counts = {name: raw[name.replace("_", "-")] for name in ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
              if name.replace("_", "-") in raw}
    return made | counts


def _environment(golden):
    """The one variable of a case that changes memory."""
    given = (golden.get("env_vars") or {}).get("CUBLAS_WORKSPACE_CONFIG")
    return {"environment": {"cublas_workspace_config": given}} if given else {}


def _options(config):
    fused = "xent_fusion" in config
    wanted = {  # option: (as it ran, as Megatron-Bridge's recipes have it)
        "transformer_impl": (config["impl"], "transformer_engine"),
        "attention_backend": (config["attention_backend"], "auto"),
        "deterministic_mode": (config["deterministic"], False),
        "masked_softmax_fusion": (config["masked_softmax_fusion"], True),
        "cross_entropy_loss_fusion": (fused, True),
        "gradient_accumulation_fusion": (config["grad_accum_fusion"], True),
        "create_attention_mask": (config["mask_in_loader"], False),
        "bias_activation_fusion": (config["bias_gelu_fusion"] or not config["bias"], True),
        "tp_comm_overlap": (config["tp_comm_overlap"], False),
        "overlap_moe_expert_parallel_comm": (config["a2a_overlap"], False),
        "defer_embedding_wgrad_compute": (config["defer_embedding_wgrad"], False),
        "use_transformer_engine_op_fuser": (config["op_fuser"], False),
        "ddp_pad_buckets_for_high_nccl_busbw": (config["high_bw"], False),
        "cuda_graph_impl": (config.get("cuda_graph", "none"), "none"),
        "pipeline_model_parallel_layout": (_unquoted(config.get("pp_layout")), None),
        "moe_latent_size": (config.get("moe_latent"), None),
        "moe_grouped_gemm": (config.get("grouped_gemm", True), True),
        "moe_permute_fusion": (config.get("permute_fusion", True), True),
    }
    made = {"use_distributed_optimizer": config["dist_opt"] and not _is_layer_wise(config),
            "overlap_grad_reduce": config["overlap_grad_reduce"]}
    if made["use_distributed_optimizer"]:
        made["overlap_param_gather"] = config["overlap_param_gather"]
    if config.get("experts"):
        made["moe_token_dispatcher_type"] = config["dispatcher"]
    return made | {name: ran for name, (ran, default) in wanted.items() if ran != default}


def _unquoted(layout):
    """A case quotes the signs that a shell would read: `(tt\\|)`."""
    return layout and layout.replace("\\", "")
