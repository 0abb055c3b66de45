"""Rules for runs of NeMo Automodel: its blog, its tables of performance, its docs."""

from __future__ import annotations

from measured_runs import COMMON, NANO, batch, degrees, over, unsayable
from source_row import Always, Block, Missing, Unread, Words

# ---- the blog -------------------------------------------------------------------------------------------------------
BLOG = COMMON | {
    "model": Words({"Nemotron-3-Nano-30B-A3B": NANO}), "gpu_type": Words({"H100 80GB SXM": "dgx-h100"}),
    "framework": Words({"HF Transformers v4 hub code + FSDP2, eager attention, expert for-loop": "transformers",
                        "NeMo AutoModel EP=8, TE attn/linear/norm, gmm experts + DeepEP": "automodel"}),
    "task": Always("full finetune step (fwd+loss+bwd timed)"), "sharding": Always("fsdp2"),
    "precision": Words({"pure bf16 params, bf16 reduce (FSDP2 MixedPrecisionPolicy bf16/bf16)":
                        {"params": "bf16", "grad_reduce": "bf16"}}),
    "recompute": Always("none (scripts enable no activation checkpointing)"),
    "optimizer": Words({
        "torch.optim.Adam, bf16 states, foreach default": {"name": "adam", "implementation": "foreach"},
        "torch.optim.Adam, bf16 states, foreach=False": {"name": "adam", "implementation": "for_loop"}}),
    "config": Block({"attention": Words({"eager": "eager", "TE": "te"}), "data": Always("random tokens"),
                     "timed_steps": Unread("how many steps the time is of"),
                     "reshard_after_forward": Always("fully_shard default per layer")})}


def blog(run):
    """The source's scripts: `bench_v5.py --v4`, and `bench_automodel.py`."""
    attention = run["config"]["attention"]
    training = batch(run) | {"precision": run["precision"], "optimizer": run["optimizer"]}
    made = {"model": run["model"], "topology": run["gpu_type"], "mesh": degrees(run)}
    if run["framework"] == "transformers":
        # The repository's own layers, a unit each and a root, no reshard given; the script holds the output, and with
        # it the logits, while backward runs.
        return made | {"framework": "fsdp2", "implementation": "hub", "training": training | {
            "loss": "hf_keep_logits"}, "framework_options": {"attn_implementation": attention}}
    # The script gives the model its labels and takes the loss that it computes itself. It ran eleven days before
    # release 0.4.0, whose layers are those of its commit.
    return made | {"framework": "automodel", "framework_version": "0.4.0", "training": training | {"loss": "causal"},
                   "framework_options": {"dispatcher": "deepep"}}


# ---- tables of performance ------------------------------------------------------------------------------------------
TE_NORM = {"backend.rms_norm": "te"}
"""As these files say (`model.backend`); layers of releases before 0.7.0 have one norm."""
OSS_120B = over("gpt-oss-20b", num_hidden_layers=36, num_local_experts=128)
QWEN_32B = over("qwen2.5-7b", hidden_size=5120, intermediate_size=27648, num_hidden_layers=64, num_attention_heads=40,
                num_key_value_heads=8)
NOT_WRITTEN = Missing("a benchmark recipe that is not written down here yet")
PREFETCHED = {"enable_fsdp2_prefetch": True, "enable_compile": True}
STAGES = Missing("how this file's layers are shared out over stages is not written down here")
LLAMA_70B = ("llama-3-70b", "masked_fp32", PREFETCHED | {"defer_fsdp_grad_sync": False, "enable_async_tensor_parallel":
                                                        True}, {"sequence_parallel": True})
PERF_MODELS = {  # model, loss, options, and what else the file says
    "DeepSeek-V3 671B": ("deepseek-v3", "masked", {"dispatcher": "hybridep", "enable_fsdp_optimizations": True},
                         {"framework_version": "main 2026-06-08"}),
    "Nemotron V3 Nano 30B (26.02)": (
        NANO, "masked", {"dispatcher": "deepep", "enable_fsdp_optimizations": True, "attn": "sdpa"},
        {"framework_version": "0.3.0"}),
    "Nemotron V3 Ultra 550B (26.04)": (over("nemotron-3-ultra-550b-a55b", mtp_num_layers=2), "auto",
                                       TE_NORM | {"dispatcher": "deepep"}, {}),
    "Qwen3 MoE 30B": ("qwen3-30b-a3b", "masked", TE_NORM | {
        "dispatcher": "deepep", "enable_fsdp_optimizations": True}, {}),
    "GPT-OSS 20B": ("gpt-oss-20b", "masked", TE_NORM | {"dispatcher": "deepep", "attn": "flex"}, {"ep": 8}),
    "GPT-OSS 120B": (OSS_120B, "masked", TE_NORM | {"dispatcher": "deepep", "attn": "flex"}, {"ep": 64}),
    "gpt-oss-120b": NOT_WRITTEN,
    "Qwen2.5 7B": ("qwen2.5-7b", "masked_fp32", {}, {"implementation": "hf"}),  # force_hf
    "Qwen2.5 32B": (QWEN_32B, "masked_fp32", PREFETCHED, {}),
    "Qwen2.5 32B 2-node": (QWEN_32B, "masked_fp32", PREFETCHED | {"defer_fsdp_grad_sync": False}, {}),
    "Llama3 8B": ("llama-3.1-8b", "masked_fp32", {}, {"implementation": "hf"}),
    "Llama3 70B": LLAMA_70B, "Llama3 70B 2-node": LLAMA_70B,
    "Nemotron V3 Super 120B (26.02)": (
        "nemotron-3-super-120b-a12b", "masked", {"dispatcher": "deepep", "attn": "sdpa",
                                                 "moe.reshard_after_forward": True}, {"framework_version": "0.3.0"}),
    "DeepSeek V3 671B": STAGES, "Kimi K2": STAGES,
}
"""By model: Automodel 36044ad3 `examples/llm_benchmark`: models, losses and options of the yaml files. Of Ultra the
table counts two further tokens, as its file asks for. Versions are of rows that name a commit or a container: 26.02
is of February 2026, and so is 0.3.0. `ep`: of rows that do not restate their file's."""
BACKENDS = ("TE + fsdp2_prefetch", "TE + DeepEP + TorchSDPA", "TE + DeepEP + torch_mm", "TE + DeepEP",
            "TE + DeepEP + FlexAttn", "TE + triton",
            "TE + triton + fsdp2_prefetch")
PERF = COMMON | {
    "model": Words(PERF_MODELS), "gpu_type": Words({"H100 80GB SXM (DGX)": "dgx-h100", "GB200 192GB": "gb200-nvl72"}),
    "framework": Always("NeMo AutoModel FSDP2 + HybridEP", *(f"NeMo AutoModel (FSDP2), {one}" for one in BACKENDS)),
    "task": Always("pretrain", "lora"), "sharding": Always("fsdp2"), "vpp": Always(None, 1, 4, 8),
    "precision": Words({"bf16 params/compute": {"params": "bf16"}, "bf16": {"params": "bf16"},
                        "mxfp8": NOT_WRITTEN}),
    "recompute": Words({"full per-block AC": {"recompute": "full"}, "none": {},
                        "see yaml": {}}),  # gpt-oss: 120B has activation_checkpointing: false, 20B leaves it out
    "optimizer": Words({"torch Adam(W), bf16 states": {"name": "adam"}, "torch Adam bf16 states": {"name": "adam"}}),
    "peft": Words({None: {}, "lora rank 16 all *_proj": {
        "method": "lora", "lora": {"rank": 16, "alpha": 32.0, "target_modules": ["*_proj"]}}}),
    "config": Block({"lbs": Unread("restates the micro batch"), "grad_accum": Unread("follows from the batches"),
                     "backend": Always(*BACKENDS), "yaml": Always("examples/llm_benchmark")}, or_none=True)}
"""The backend is in the file of the model, which is followed; so is the dispatcher."""


def perf(run):
    """Rows of benchmark files; a gate that balances, bf16 parameters and torch's Adam."""
    if not run["complete"]:
        unsayable("the number of GPUs is not stated")
    model, loss, options, more = run["model"]
    more = dict(more)
    ep = more.pop("ep", None)
    if model == "llama-3-70b" and run.told("task") == "pretrain":
        unsayable("TransformerEngine's fused Adam")  # custom_llama3_1_70b_pretrain_benchmark_8nodes.yaml
    mesh = degrees(run) | ({"ep": ep} if ep else {})
    training = batch(run) | run["recompute"] | {"loss": loss, "precision": run["precision"],
                                                "optimizer": run["optimizer"]} | run["peft"]
    training |= {"sequence_parallel": True} if more.pop("sequence_parallel", False) else {}
    experts = {"fake_balanced_gate": True} if mesh.get("ep") else {}
    return {"model": model, "framework": "automodel", **more, "topology": run["gpu_type"], "mesh": mesh,
            "training": training, "framework_options": options | experts}


# ---- the docs -------------------------------------------------------------------------------------------------------
DOCS = COMMON | {
    "model": Words({"Llama-3.2-1B": Missing(
        "format of the parameters, unit of the reading and global batch not stated")}),
    "gpu_type": Always("H100 80GB"), "framework": Always("NeMo AutoModel"), "task": Always("full finetune"),
    "sharding": Always("fsdp2"), "precision": Always("bf16 (assumed)"), "recompute": Always("none", "full"),
    "optimizer": Always("AdamW")}


def docs(run):
    """Never a scenario: the source leaves out what it would need."""
    return unsayable(f"not written down: {run['model']}")
