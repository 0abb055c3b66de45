"""Rules for runs of Megatron by others than its own tests: SimuMax's, Korthikanti's, and Megatron-Bridge's skills."""

from __future__ import annotations

from measured_runs import BUCKET, COMMON, NANO, Recomputed, batch, degrees, over, unsayable
from source_row import Always, Block, Missing, Number, Unread, Words

# ---- SimuMax --------------------------------------------------------------------------------------------------------
SIMUMAX = COMMON | {
    "model": Words({"llama3_70b truncated to 12 layers": "llama-3.1-8b", "llama3_405b truncated to 4 layers":
                    "llama-3.1-8b", "deepseekv2 truncated to 4 layers": "deepseek-v2-lite",  # routes by softmax
                    "deepseekv3 truncated to 4 layers": "deepseek-v3"}),
    "gpu_type": Words({"B200 SXM 180GB (1 node)": "dgx-b200-simumax"}),
    "framework": Words({"Megatron-LM 23e00ed0963c + TE 2.11.0 + torch 2.10 (NGC 26.01)": {"loss": "te_inplace"}}),
    "task": Always("pretrain"), "sharding": Always("zero1"), "recompute": Always("none"),
    "precision": Words({"bf16, fp32 grad accumulation/reduce, fp32 master+Adam":
                        {"main_grads": "fp32", "grad_reduce": "fp32"}}),
    "optimizer": Words({"adam fp32 (distributed optimizer)": {"name": "adam"}}),
    "config": Block({
        **{name: Number() for name in ("layers", "hidden", "ffn", "heads", "kv", "vocab", "experts", "topk", "moe_ffn",
                                       "shared_ffn", "first_dense", "moe_capacity_factor")},
        "mla": Block({name: Number() for name in ("q_lora", "kv_lora", "qk", "rope", "v")}),
        "sequence_parallel": Words({True: True, False: False}), "cross_entropy_fusion": Always("TE"),
        "cp_comm": Words({None: None, "a2a": "a2a", "p2p": "p2p", "allgather": "all_gather", "a2a+p2p": "a2a+p2p"}),
        "grad_overlap": Words({False: False, True: True}), "param_overlap": Words({False: False, True: True}),
        "dispatcher": Words({None: None, "alltoall": "alltoall", "allgather": "allgather"})})}


def simumax(run):
    """TransformerEngine 2.11, whose cross entropy writes its gradient over the logits; fp32 gradients, no overlap."""
    config = run["config"]
    options = {"overlap_grad_reduce": config["grad_overlap"], "overlap_param_gather": config["param_overlap"]}
    if config["cp_comm"]:
        options["cp_comm_type"] = config["cp_comm"]
    if config["dispatcher"]:
        options["moe_token_dispatcher_type"] = config["dispatcher"]
    training = batch(run) | {"sequence_parallel": config["sequence_parallel"], **run["framework"],
                             "precision": run["precision"], "optimizer": run["optimizer"]}
    if config.get("moe_capacity_factor"):
        training["routing"] = {"capacity_factor": float(config["moe_capacity_factor"])}
    model = _latent(run["model"], config) if "mla" in config else _llama(run["model"], config)
    return {"model": model, "framework": "megatron", "topology": run["gpu_type"], "mesh": degrees(run),
            "training": training, "framework_options": options}


def _llama(preset, config):
    return over(preset, hidden_size=config["hidden"], intermediate_size=config["ffn"],
                num_hidden_layers=config["layers"], num_attention_heads=config["heads"],
                num_key_value_heads=config["kv"], head_dim=config["hidden"] // config["heads"],
                vocab_size=config["vocab"])


def _latent(preset, config):
    mla = config["mla"]
    return over(preset, num_hidden_layers=config["layers"], hidden_size=config["hidden"],
                intermediate_size=config["ffn"], num_attention_heads=config["heads"],
                num_key_value_heads=config["heads"], vocab_size=config["vocab"],
                n_routed_experts=config["experts"], num_experts_per_tok=config["topk"],
                moe_intermediate_size=config["moe_ffn"],
                n_shared_experts=config["shared_ffn"] // config["moe_ffn"],
                first_k_dense_replace=config["first_dense"], q_lora_rank=mla["q_lora"], kv_lora_rank=mla["kv_lora"],
                qk_nope_head_dim=mla["qk"], qk_rope_head_dim=mla["rope"], v_head_dim=mla["v"])


# ---- Korthikanti and others, 2022 -----------------------------------------------------------------------------------
KORTHIKANTI = COMMON | {
    "model": Always("GPT 22B", "GPT 175B (GPT-3)", "GPT 530B (MT-NLG)"),
    "gpu_type": Words({"A100 80GB SXM": "dgx-a100"}), "framework": Always("Megatron-LM 2022"),
    "task": Always("pretrain"), "sharding": Always("ddp (dp=1)"), "vpp": Number(),
    "precision": Words({"fp16 mixed": {"compute": "fp16"}}), "optimizer": Words({"adam": {"name": "adam"}}),
    "recompute": Words({"full": {"recompute": "full"}, "selective core_attn (no flash)": {"recompute": ["core_attn"]}}),
    "config": Block({**{name: Number() for name in ("layers", "hidden", "ffn", "heads")},
                     "vocab": Words({"51200 (paper)": 51200}), "flash_attention": Words({False: "unfused"}),
                     "sequence_parallel": Words({True: True, False: False})})}


def korthikanti(run):
    """Megatron-LM of 2022: attention not fused, no distributed optimizer; a step of one replica overlaps nothing."""
    config = run["config"]
    training = batch(run) | run["recompute"] | {
        "sequence_parallel": config["sequence_parallel"], "loss": "megatron", "precision": run["precision"],
        "optimizer": run["optimizer"]}
    if run["vpp"] > 1:
        training["pipeline"] = {"virtual_stages": run["vpp"]}
    model = over("gpt2", n_embd=config["hidden"], n_layer=config["layers"], n_head=config["heads"],
                 n_inner=config["ffn"], n_positions=run["seq_len"], vocab_size=config["vocab"])
    return {"model": model, "framework": "megatron", "topology": run["gpu_type"], "mesh": degrees(run),
            "training": training, "framework_options": {
                "attention_backend": config["flash_attention"], "use_distributed_optimizer": False,
                "overlap_grad_reduce": False}}


# ---- Megatron-Bridge's skills ---------------------------------------------------------------------------------------
LLAMA_FP8 = {"fp8_recipe": "tensorwise", "fp8_param_gather": True, "first_last_layers_bf16": False,
             "disable_parameter_transpose_cache": True, "tp_comm_overlap": True, "defer_embedding_wgrad_compute": True,
             "wgrad_deferral_limit": 22, "cuda_graph_impl": "transformer_engine"}
"""Megatron-Bridge 067f987d `perf_recipes/llama/h100/llama3.py`, llama3_70b_sft_32gpu_h100_fp8cs_config."""
HYBRIDEP = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
BF16_GRADS = {"main_grads": "bf16", "grad_reduce": "bf16"}
SKILL_MODULES = Words({  # the model, and what it has otherwise than others
    "Moonlight-16B-A3B (1 dense + 26 MLA+MoE layers)": "moonlight-16b-a3b", "Nemotron-3-Nano-30B-A3B": NANO,
    "Llama-3-70B": "llama-3-70b"})
SKILL = COMMON | {
    "model": SKILL_MODULES, "vpp": Number(or_none=True), "gpu_type": Words({"H100 80GB": "dgx-h100"}),
    "framework": Words({  # options that it names; 600d069b locks TransformerEngine 2.17.1
        "Megatron-Bridge 600d069b824d / mcore 24bad8e677d2": {},
        "Megatron-Bridge 600d069b824d / mcore 24bad8e677d2, HybridEP, TE CUDA graphs attn+mamba": HYBRIDEP,
        "Megatron-Bridge PR 3107": {}}),
    "task": Always("pretrain", "sft"), "sharding": Always("zero1", "zero1 (expert-DP=2)"),
    "precision": Words({"bf16": BF16_GRADS, "bf16, grad reduce bf16, fp32 main grads/params/moments": BF16_GRADS,
                        "FP8 current scaling, bf16 params": {"compute": "fp8"} | BF16_GRADS}),
    "recompute": Recomputed({"none/unstated": {}, "none": {}}),
    "optimizer": Words({  # whether precision-aware, and what differs from Adam's usual states
        "adam precision-aware: fp32 main params, bf16 main grads, bf16 moments "
        "(recipe moonlight_16b_pretrain_8gpu_h100_bf16_config)": (True, {"moments": "bf16"}),
        "adam fp32 states, distributed optimizer": (False, {}), "adam": (False, {})}),
    "config": Block({"recipe": Words({"llama3_70b_sft_32gpu_h100_fp8cs_config": LLAMA_FP8}),
                     "sequence_parallel": Always(True), "data": Always("mock"),
                     **{name: Unread("restates the model's published configuration") for name in (
                         "hf", "layers", "hidden", "experts", "topk", "moe_ffn", "shared_ffn", "heads", "kv",
                         "head_dim", "mamba_heads", "mamba_head_dim", "state", "groups", "vocab")},
                     "steps": Unread("says which steps the time is of")})}


def bridge_skill(run):
    """Matched ladders of recomputed modules; benchmark recipes, so cross entropy is TransformerEngine's."""
    config, (aware, moments) = run["config"], run["optimizer"]
    training = batch(run) | run["recompute"] | {"optimizer": {"name": "adam"}, "precision": run["precision"]}
    if "recipe" in config:
        training |= {"pipeline": {"virtual_stages": run["vpp"]}, "loss": "te_inplace"}
        options = dict(config["recipe"])
    else:
        training["loss"] = "te_inplace"
        options = {"use_precision_aware_optimizer": aware}
        training["optimizer"] |= moments
    options |= run["framework"]
    if run["dp"] > 1:  # recipes of all three have a CommOverlapConfig
        options |= BUCKET
    return {"model": run["model"], "framework": "megatron", "topology": run["gpu_type"], "mesh": degrees(run),
            "training": training, "framework_options": options}


# ---- an estimator's table -------------------------------------------------------------------------------------------
ESTIMATOR = COMMON | {
    "model": Words({"Mixtral-8x2B reduced 4 layers (hidden 2048, 8 experts, vocab 32000, ffn 5440)": Missing(
        "expert parallel size and exact shape are in a file that the source does not restate")}),
    "gpu_type": Always("8-GPU node (unstated)"), "framework": Always("Megatron-LM mcore"), "task": Always("pretrain"),
    "sharding": Always("zero1"), "precision": Always("bf16"), "recompute": Always(None), "optimizer": Always(None)}


def estimator(run):
    """Never a scenario: the source leaves out what it would need."""
    return unsayable(f"not written down: {run['model']}")
