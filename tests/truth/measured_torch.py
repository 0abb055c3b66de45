"""Rules for runs of PyTorch's own sharding: fms-fsdp, llm-foundry, torchtitan, KempnerForge, torchtune."""

from __future__ import annotations

import re

from measured_runs import COMMON, batch, degrees, over, unsayable
from source_row import Always, Block, Missing, Number, Unread, Words

FUSED = {"name": "adamw", "implementation": "fused"}

# ---- fms-fsdp -------------------------------------------------------------------------------------------------------
LLAMA_2 = {"Llama-2-7B": (4096, 11008, 32, 32), "Llama-2-13B": (5120, 13824, 40, 40),
           "Llama-2-34B": (8192, 22016, 48, 8), "Llama-2-70B": (8192, 28672, 80, 8)}
FMS = COMMON | {
    "model": Words(LLAMA_2), "task": Always("pretrain"),
    "gpu_type": Words({"A100 80GB, 400Gbps": "dgx-a100", "H100 80GB, 800Gbps": "dgx-h100"}),
    "framework": Always("PyTorch FSDP1 (fms-fsdp), compile, SDPA flash"),
    "sharding": Words({"hsdp": "hsdp", "zero3 (FSDP1)": "fsdp"}),
    "precision": Words({"bf16 (pure bf16 policy)": {"params": "fp32", "grad_reduce": "bf16"}}),
    "recompute": Words({"none": {}, "selective AC": Missing("the share of blocks that is recomputed is not stated")}),
    "optimizer": Words({"AdamW": FUSED})}


def fms(run):
    """Blocks compiled, FSDP1 in its published strategy: answered as FSDP2 over compiled blocks of torchtitan."""
    training = batch(run) | run["recompute"] | {"precision": run["precision"], "optimizer": run["optimizer"]}
    hidden, ffn, layers, kv = run["model"]
    model = over("llama-3-8b", hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers, head_dim=128,
                 num_attention_heads=hidden // 128, num_key_value_heads=min(kv, hidden // 128), vocab_size=32000)
    if (run["sharding"] == "hsdp") != (run["dp_shard"] < run["dp"]):
        unsayable(f"{run['sharding']} over {run['dp_shard']} of {run['dp']} ranks")
    run.leave("tp", "pp", "cp", "gpus")
    return {"model": model, "framework": "fsdp2", "implementation": "torchtitan", "topology": run["gpu_type"],
            "mesh": {"dp_replicate": run["dp"] // run["dp_shard"], "dp_shard": run["dp_shard"]},
            "training": training, "framework_options": {"compile": True}}


# ---- llm-foundry ----------------------------------------------------------------------------------------------------
SWEPT = {"MPT-1b": "flash", "MPT-3b": "flash", "MPT-7b": "flash", "MPT-13b": "triton", "MPT-30b": "triton",
         "MPT-70b": "flash"}
"""Kernels of attention by `sweep.py`, for runs on 128 GPUs or more; Triton's is the default elsewhere."""
MIXED = {"params": "fp32", "grad_reduce": "bf16"}
FOUNDRY = COMMON | {
    "model": Words(SWEPT), "task": Always("pretrain"),
    "gpu_type": Words({"H100 80GB SXM": "dgx-h100", "A100 80GB SXM": "dgx-a100", "A100 40GB SXM": "dgx-a100-40gb"}),
    "framework": Always("llm-foundry (Composer FSDP1, flash-attn triton, torch 2.0-2.1)"),
    "sharding": Words({"zero3 (FSDP1 FULL_SHARD)": "FULL_SHARD", "zero2 (FSDP1 SHARD_GRAD_OP)": "SHARD_GRAD_OP"}),
    "precision": Words({"amp_bf16 mixed (fp32 master)": MIXED, "bf16": MIXED,
                        "amp_fp8 mixed (fp32 master)": MIXED | {"compute": "fp8"}}),
    "recompute": Words({"full AC": {"recompute": "full"}, "none": {}}),
    "optimizer": Words({"decoupled_adamw (yaml default)": {"name": "adamw", "implementation": "for_loop"}}),
    "config": Block({**{name: Number() for name in ("d_model", "layers", "heads", "vocab")}, "tied": Always(True),
                     "mlp_ratio": Always(4), "grad_accum": Unread("follows from the batches"),
                     "alibi_or_learned": Words({"learned pos emb (param count varies with seq)": {"alibi": False}})})}


def foundry(run):
    """llm-foundry's own MPT, with biases and learned positions, which the source's counts of parameters are.

    llm-foundry b2a43a147 and 5e85bd62d `scripts/train/benchmarking` (what the tables were made with), `yamls/pretrain`:
    low precision LayerNorm, FSDP's mixed precision PURE: shards in fp32, everything else in bf16. `bf16` is what
    Composer called amp_bf16 before 0.12 (commit bd774514e): it has no precision that stores parameters in 16 bits.
    FSDP1 with Composer's prefetches, but in `sweep.py`, which asks for both. Linears of runs in fp8 are
    TransformerEngine's (`fc_type: te`).
    """
    config, kernel = run["config"], run["model"]
    model = over("mpt-7b", d_model=config["d_model"], n_layers=config["layers"], n_heads=config["heads"],
                 max_seq_len=run["seq_len"], vocab_size=config["vocab"], no_bias=False,
                 attn_config=config["alibi_or_learned"])
    training = batch(run) | run["recompute"] | {"precision": run["precision"], "optimizer": run["optimizer"]}
    swept = run["gpu_type"] == "dgx-h100" and run["gpus"] >= 128
    options = {"attn_impl": kernel if swept else "triton", "sharding_strategy": run["sharding"]}
    if swept:
        options |= {"forward_prefetch": True, "backward_prefetch": "BACKWARD_PRE"}
    return {"model": model, "framework": "fsdp1", "implementation": "llmfoundry", "topology": run["gpu_type"],
            "mesh": degrees(run), "training": training,
            "checkpoint": {"load": "none", "save": "none"},  # init_device: meta
            "framework_options": options}


# ---- torchtitan -----------------------------------------------------------------------------------------------------
TITAN_GPUS = {  # machines whose H100 have 96 GB of HBM2e and 500 W; Blackwell by the memory that a row says is there
    "H100 96GB HBM2e 2.4TB/s, 500W (Grand Teton)": "h100-96gb-hbm2e",
    "H100 95 GiB usable (96GB Grand Teton, 400Gb/s)": "h100-96gb-hbm2e", "H200 141GB SXM, 400Gb/s RDMA": "dgx-h200",
    "H100 of torchao's page (its bf16 run prints 47.65GiB(50.16%) in torchtitan 7a04053a)": "h100-96gb-hbm2e",
    "8x MI300X": "mi300x",
    "Blackwell ~184.3 GiB usable (110.95 GiB = 60.2%)": "gb200-nvl72", "GB200 (64 nodes x 4)": "gb200-nvl72",
    "Blackwell ~276.6 GiB usable (74.71 GiB = 27.01%)": "gb300-nvl72", "B200 178.35 GiB": "dgx-b200"}
LLAMA_405B = over("llama-3.1-8b", hidden_size=16384, intermediate_size=53248, num_hidden_layers=126,
                  num_attention_heads=128, num_key_value_heads=8)
LLAMA_70B = over("llama-3.1-8b", hidden_size=8192, intermediate_size=28672, num_hidden_layers=80,
                 num_attention_heads=64, num_key_value_heads=8)
QWEN_32B = over("qwen3-8b", hidden_size=5120, intermediate_size=25600, num_hidden_layers=64, num_attention_heads=64)
TITAN_MODELS = {
    "Llama-3.1-8B": "llama-3.1-8b", "Llama-3.1-405B": LLAMA_405B, "Llama-3.1-70B": LLAMA_70B, "Qwen3-32B": QWEN_32B,
    "DeepSeek-V3-16B (torchtitan flavor)": "deepseek-v2-lite", "Llama-4-Scout-17B-16E": Missing("batch not stated"),
    "Qwen3-30B-A3B": Missing("batch not stated"),  # through transformers' layers
    "MoE model not named (31.3 GFLOP/token by tflops/tps)": Missing("model not named")}
FP8, GATHERED = {"compute": "fp8"}, {"fp8_all_gather": True}
TITAN_PRECISIONS = {  # what differs from fp32 parameters and reduction, and options
    "bf16": ({}, {}), "bf16 mixed, fp32 params": ({}, {}), "bf16+float8": (FP8, {}),
    "bf16+float8 tensorwise": (FP8, {}), "bf16+float8 rowwise": (FP8, {"fp8_recipe": "rowwise"}),
    "bf16+float8 tensorwise, fp8 all-gather": (FP8, GATHERED),
    "bf16+float8 rowwise_with_gw_hp": Missing("gradients of weights in 16 bits beside products in fp8"),
    "nvfp4-85pct": Missing("the share of layers in fp4 has no key"),
    "mxfp8": ({"compute": "fp8"}, {"fp8_recipe": "mxfp8"})}
UNSTATED = Missing("which activations are recomputed is not stated")
PER_OP = {"recompute": {"mode": "per_op"}}
TITAN_RECOMPUTED = {
    "selective AC (per-op SAC, titan default option of Dec 2024)": PER_OP, "full AC": {"recompute": "full"},
    "selective AC (llama3_8b.toml default, option op)": PER_OP, "none": {}, "config default": UNSTATED,
    "config default (SAC?)": UNSTATED, "selective op per toml at commit (run may differ)": Missing(
        "a copy: later_rows.jsonl has it with the file that its message names"),
    "selective AC (deepseek_v3_16b.toml, option op)": PER_OP}
ONE_STAGE, TWO_STAGES = 1, 2
"""Schedules of several stages have two a rank by default (torchtitan distributed/pipeline_parallel.py)."""
SCHEDULES = {"1f1b": ONE_STAGE, "1F1B": ONE_STAGE, "interleaved": TWO_STAGES,
             "Interleaved1F1B 8 microbatches 8 stages": TWO_STAGES}
SWITCH = Words({True: True, False: False})
TITAN = COMMON | {
    "model": Words(TITAN_MODELS), "vpp": Number(or_none=True), "gpu_type": Words(TITAN_GPUS),
    "framework": Always("torchtitan"), "task": Always("pretrain"), "sharding": Always("fsdp2"),
    "precision": Words(TITAN_PRECISIONS), "recompute": Words(TITAN_RECOMPUTED),
    "optimizer": Words({"AdamW fused fp32 params/states (bf16 mixed precision)": FUSED, "AdamW fused fp32": FUSED}),
    "config": Block({
        "compile": Words({True: True, False: False, "loss": "loss"}), "async_tp": SWITCH,
        "schedule": Words(SCHEDULES), "pp_microbatch_size": Number(), "attention": Words({
            "SDPA mem-efficient": "efficient", "SDPA": "sdpa", "FlexAttention": "flex"}),
        "dispatcher": Words({"HybridEP": Missing("the local batch is not stated")}),
        "ep": Number(), "fsdp_experts": Number(), "software": Words({"2025-03": "202503", "2025-08": "202508"}),
        **{name: Unread("restates the batch") for name in ("local_batch", "local_tokens", "max_tokens_per_rank")},
        **{name: Unread("restates the model") for name in ("params_total", "sparse", "active")}}, or_none=True)}
DEEPSEEK_ATTENTION = {"b109f7d71": "efficient", "8a749c618": "efficient", "f738a03bf": None, "aa1d37414": "flex"}
"""By commit, `torchtitan/models/deepseek_v3`: up to f738a03bf (22 August 2025) its 16B flavor goes through SDPA, of
which "the only available backend for DeepSeekV3 is efficient attention kernel"; that commit, which logs both, made
FlexAttention the default, as which it is in 0.2.2."""


def torchtitan(run):
    """FSDP2 over torchtitan's own layers: fp32 parameters and reduction, bf16 compute, fused AdamW."""
    model, recompute, (narrow, options) = run["model"], run["recompute"], run["precision"]
    if not run["complete"]:
        unsayable("the local batch is not stated")
    config = run["config"]
    training = batch(run) | recompute | {
        "precision": {"params": "fp32", "grad_reduce": "fp32"} | narrow, "optimizer": run["optimizer"]}
    training["micro_batch_size"] = _titan_micro_batch(run)
    if config.get("schedule", ONE_STAGE) == TWO_STAGES:
        training |= {"pipeline": {"virtual_stages": run["vpp"] or TWO_STAGES}}
    run.leave("vpp")
    options = _titan_wrapping(run) | ({"compile": _titan_compiled(run)} if config.get("compile") else {}) | options
    if config.get("async_tp"):
        options["async_tp"] = True
    if run["pp"] > 1 and _titan_returns_outputs(run):
        options["return_outputs"] = True
    options |= _titan_attention(run) | _titan_repeats(run)
    if (run["ep"] or 1) > 1 and recompute == PER_OP and "@f738a03bf" in run["source"]:
        options["keeps_exchange"] = False  # its llama3/infra/parallelize.py, _save_list, has no all_to_all_single
    return {"model": model, "framework": "fsdp2", "implementation": "torchtitan", "topology": run["gpu_type"],
            "mesh": degrees(run), "training": training, "framework_options": options}


def _titan_micro_batch(run):
    """Sequences of a microbatch: until commit 5e2033c75 (7 April 2025) a batch was cut in as many as there are stages.

    `pipeline_parallel_microbatches` had that default; the collection tells the later one, of one sequence a microbatch.
    """
    told, batch_size = run["config"].get("pp_microbatch_size"), batch(run)["micro_batch_size"]
    if run["pp"] == 1:
        return batch_size
    dated = _titan_dated(run)
    return batch_size // run["pp"] if dated and dated < "202504" else told or 1


def _titan_dated(run):
    """Year and month of the software, or in the name of the source's file; None where it is a commit's message."""
    told = run["config"].get("software")
    if told:
        return told
    dated = re.search(r"_(20\d{2})-?(\d{2})_", run["source"])
    return dated and dated[1] + dated[2]


REPEATED = {"d66b72a6a": True, "af35cfb15": False}
"""By commit of a message: whether its layers repeated keys and values (until ff0829c10, 27 January 2026)."""


def _titan_repeats(run):
    """Llama 3 and Qwen3 copied keys and values for every head before attention; latent attention has none to copy."""
    if "deepseek" in run.told("model").lower():
        return {}
    dated = _titan_dated(run)
    repeats = dated < "202602" if dated else REPEATED[re.search(r"@([0-9a-f]+)", run["source"])[1]]
    return {"repeat_kv": True} if repeats else {}


def _titan_attention(run):
    """cuDNN on B200 alone (3b85aa31f, May 2025), on all GPUs after the last of these.

    Flash takes no values as wide as DeepSeek's (torch's sdp_utils.cpp), the next in torchtitan's list does.
    """
    told = run["config"].get("attention")
    if "deepseek" not in run.told("model").lower():
        return {"sdpa_backend": told or "flash"}
    commit = re.search(r"@([0-9a-f]+)", run["source"])[1]
    if commit not in DEEPSEEK_ATTENTION:
        unsayable(f"which attention DeepSeek's layers have at {commit} is not written down")
    kernel = told or DEEPSEEK_ATTENTION[commit]
    return {"attn": "flex"} if kernel == "flex" else {"sdpa_backend": kernel}


def _titan_wrapping(run):
    """Until torchtitan's commit 83e694105 (July 2025) only blocks and the root were wrapped, and the last block kept.

    Published sources of before are dated in their file names.
    """
    dated = _titan_dated(run)
    if dated and dated < "202508":
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
    if run["config"]["compile"] == "loss":
        return "loss"
    dated = _titan_dated(run)
    return "model" if dated and "202412" <= dated < "202504" else True


# ---- KempnerForge ---------------------------------------------------------------------------------------------------
def kempner_shape(hidden, layers, heads, kv):
    """`ffn auto(1.3x)` is Llama's rule: two thirds of 4 x hidden, x 1.3, up to a multiple of 256 (4096 gives 14336)."""
    ffn = int(1.3 * int(8 * hidden / 3))
    return {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv,
            "head_dim": hidden // heads, "intermediate_size": -(-ffn // 256) * 256}


def kempner_experts(experts):
    """A model of KempnerForge with so many experts, two a token."""
    return over("mixtral-8x7b", num_local_experts=experts, num_experts_per_tok=2, vocab_size=128256,
                **kempner_shape(2048, 24, 16, 4))


KEMPNER_7B = over("llama-3.1-8b", **kempner_shape(4096, 32, 32, 8))
KEMPNER_13B = over("llama-3.1-8b", **kempner_shape(5120, 40, 40, 8))
KEMPNER_MODELS = {
    "Llama-3 style 7B": KEMPNER_7B, "Llama-3 style 7b": KEMPNER_7B, "Llama-3 style 13B": KEMPNER_13B,
    "Llama-3 style 13b": KEMPNER_13B, "Llama-3 style 29b": Missing(
        "the 29B shape is in a file of the source that the row does not restate"),
    **{f"Llama-3 MoE E={experts} top2 (d2048 L24 h16 kv4 vocab128256 ffn auto1.3x)": kempner_experts(experts)
       for experts in (8, 16, 64)},
    "Llama-3 MoE ~4B (d2048 L24 h16 kv4 E8 top2)": Missing("gradient accumulation not stated")}
SHAPES = Always("d4096 L32 h32 kv8 ffn 14336", "d5120 L40 h40 kv8 ffn auto(1.3x)")
KEMPNER = COMMON | {
    "model": Words(KEMPNER_MODELS), "task": Always("pretrain"), "sharding": Always("none", "fsdp2"),
    "gpu_type": Words({f"H200 141GB ({where})": "dgx-h200" for where in (
        "4 per node, NVLink; NDR400 IB", "4/node", "2 nodes x 4", "8x4")}),
    "framework": Always("KempnerForge (PyTorch FSDP2/DTensor TP)", "KempnerForge", "KempnerForge FSDP2",
                        "KempnerForge FSDP2+EP"),
    "precision": Always("bf16 mixed (fp32 master)", "bf16 mixed", "bf16"),
    "recompute": Words({"full AC": {"recompute": "full"}, "selective AC": {"recompute": ["core_attn"]}, "none": {}}),
    "optimizer": Words({"AdamW fused fp32": FUSED, "AdamW fused": FUSED, "AdamW": FUSED}),
    "config": Block({"compile": SWITCH, "packed_experts": SWITCH, "dims": SHAPES, "vocab": Always(128256),
                     "grad_accum": Unread("follows from the batches"),
                     "config_file": Always("configs/train/*.toml in repo")}, or_none=True)}


def kempner(run):
    """Its own layers and plan. Rows say "fp32 master"; the code casts the whole model to bf16, without another copy."""
    if not run["complete"]:
        unsayable("gradient accumulation not stated" if run["global_batch"] is None else
                  "how FSDP wraps the experts is not stated")
    config = run["config"]
    training = batch(run) | run["recompute"] | {"optimizer": run["optimizer"]}
    options = {"compile": True} if config.get("compile") else {}
    if "packed_experts" in config:
        options["packed_experts"] = config["packed_experts"]
    return {"model": run["model"], "framework": "fsdp2", "implementation": "kempnerforge", "topology": run["gpu_type"],
            "mesh": degrees(run), "training": training, "framework_options": options}


# ---- torchtune ------------------------------------------------------------------------------------------------------
NOT_STATED = "which activations are recomputed or offloaded is not stated"
LENGTHS = "batches are not packed: their lengths are not stated"
MLP_AND_MORE = ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
EIGHT_BITS = {"name": "adamw", "implementation": "bitsandbytes", "moments": "int8"}
IN_BACKWARD = {"optimizer_in_bwd": True}
LADDER_LORA = {"method": "lora", "lora": {"rank": 64, "alpha": 128.0, "target_modules": MLP_AND_MORE}}
TORCHTUNE = COMMON | {
    **{name: Number(or_none=True) for name in ("tp", "pp", "cp", "dp")},
    "model": Words({"Llama-3.1-8B": "llama-3.1-8b", "Llama-3.1-70B": Missing(NOT_STATED), "Llama-3.1-405B": Missing(
        NOT_STATED), "Llama-3.2-3B": "llama-3.2-3b", "Llama-2-7B": Missing(LENGTHS)}),
    "gpu_type": Words({"RTX 4090 24GB": "rtx-4090", "A100 80GB": "dgx-a100", "RTX A6000 48GB": Missing(NOT_STATED),
                       "consumer 24GB class (unstated)": Missing(LENGTHS), None: Missing(LENGTHS)}),
    "framework": Always("torchtune"),
    "task": Words({"full": "full", "full finetune": "full", "lora": "lora", "qlora": "qlora",
                   "full + CPU offload": Missing(NOT_STATED), "lora model init only": Missing(LENGTHS)}),
    "sharding": Words({"none": "none", "fsdp2": "fsdp2", None: Missing(LENGTHS)}),
    "precision": Words({"bf16 (pure)": {"params": "bf16"}, "bf16": {"params": "bf16"}}),
    "recompute": Words({  # also what is offloaded
        "none": {}, "full AC": {"recompute": "full"}, "full AC + activation offload": {
            "recompute": "full", "offload": {"activations": "host"}},
        "config dependent": Missing(NOT_STATED), None: Missing(LENGTHS)}),
    "peft": Words({None: {}, "lora rank per recipe 3B_lora_single_device": LADDER_LORA,
                   "lora rank 8 attn q,v,output + mlp (recipe default)": {},  # of the one recipe that is written down
                   "lora r=64 alpha=128 q,v": Missing(LENGTHS), "lora r=64 alpha=128 all": Missing(LENGTHS)}),
    "optimizer": Words({  # the optimizer, and options
        "AdamW fused": (FUSED, {}), "AdamW": (FUSED, {}), "AdamW bf16": (FUSED, {}),
        "AdamW bf16, optimizer fused in backward (no grad buffer)": (FUSED, IN_BACKWARD),
        "AdamW8bit opt-in-bwd": (EIGHT_BITS, IN_BACKWARD), "AdamW fused, FSDP CPU offload": Missing(NOT_STATED),
        "PagedAdamW8bit, optimizer-in-backward (8B_full_single_device)": Missing(NOT_STATED),
        None: Missing(LENGTHS)}),
    "config": Block({"compile": SWITCH, "chunked_ce": Words({True: "chunked", False: "hf"})}, or_none=True)}


def torchtune(run):
    """One process without sharding: `ddp` of one rank. bf16 parameters and states.

    torchtune bd2a0fc7: `torch.optim.AdamW` is fused in its recipes (3B_lora_single_device.yaml and all but ten of 159
    entries; that of 3B_full_single_device.yaml is another optimizer, which the ladder replaces); packed batches go to
    FlexAttention (`modules/attention_utils.py`, _SUPPORTS_FLEX_ATTENTION: from torch 2.5 on any such GPU).
    """
    if run["task"] == "qlora" and run["sharding"] == "none":
        return _torchtune_qlora(run)
    if not run["complete"]:
        unsayable(LENGTHS if "not packed" in run["notes"] or run["seq_len"] is None else NOT_STATED)
    (optimizer, options), config = run["optimizer"], run["config"]
    training = batch(run) | run["recompute"] | {
        "loss": config["chunked_ce"], "precision": run["precision"], "lengths": "packed",
        "optimizer": optimizer} | run["peft"]
    if degrees(run) or run["sharding"] != "none":
        unsayable("a run of several processes")
    return {"model": run["model"], "framework": "ddp", "topology": run["gpu_type"], "mesh": {}, "training": training,
            "framework_options": {"compile": _compiled_by_torchtune(run), "attn_implementation": "flex_attention"}
            | options}


def _compiled_by_torchtune(run):
    """`training/_compile.py`: each layer. What compiled layers with adapters keep was not measured: as eager."""
    return "layers" if run["config"]["compile"] and not run["peft"] else run["config"]["compile"]


def _torchtune_qlora(run):
    """`recipes/configs/llama3_1/8B_qlora_single_device.yaml` of the source's commit, with what the README changes.

    The README says batch, length, compile and no accumulation; the file has checkpointing, no offload, rank 8, fused
    AdamW, chunks of logits. There is one such recipe and one such figure.
    """
    if run.told("recompute") != "config dependent":
        unsayable("another recipe than the one that is written down")
    if degrees(run) or run["peft"]:
        unsayable("another recipe than the one that is written down")
    training = batch(run) | {
        "method": "qlora", "recompute": "full", "loss": "chunked", "precision": run["precision"], "lengths": "packed",
        "optimizer": run["optimizer"][0], "lora": {"rank": 8, "alpha": 16.0, "target_modules": MLP_AND_MORE}}
    return {"model": run["model"], "framework": "ddp", "topology": run["gpu_type"], "mesh": {}, "training": training,
            "framework_options": {"compile": True, "attn_implementation": "flex_attention", "quantize_base": True}}
