"""Rules for runs of fine-tuning tools: Unsloth, ms-swift, axolotl; and reports of issues."""

from __future__ import annotations

from measured_runs import CARDS, COMMON, Recomputed, batch, degrees, over, unsayable
from source_row import Always, Block, Missing, Number, Words

# ---- Unsloth --------------------------------------------------------------------------------------------------------
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
EIGHT_BITS = {"name": "adamw", "implementation": "bitsandbytes", "moments": "int8"}
SWITCH = Words({True: True, False: False})
OFFLOADED = {"recompute": "full", "offload": {"activations": "host"}}
UNSLOTH = COMMON | {
    "model": Words({"Llama-3.1-8B-Instruct": "llama-3.1-8b", "Llama-3.3-70B-Instruct": "llama-3-70b"}),
    "gpu_type": Words(CARDS),
    "framework": Words({"Unsloth (offloaded GC + cut cross entropy)": "unsloth", "Unsloth": "unsloth",
                        "HF Transformers+PEFT+FA2": "transformers", "HF+FA2": "transformers"}),
    "task": Always("qlora max context"), "sharding": Always("none"),
    "precision": Always("4-bit nf4 base, bf16 compute"),
    "recompute": Words({"unsloth GC with CPU offload of checkpoints": OFFLOADED, "full GC": {"recompute": "full"},
                        "GC": {"recompute": "full"}}),
    "peft": Words({"qlora r32 all linear": {"method": "qlora", "lora": {"rank": 32, "target_modules": LINEARS}}}),
    "optimizer": Words({"adamw_8bit (unsloth default; not stated)": EIGHT_BITS, None: EIGHT_BITS})}


def unsloth(run):
    """The longest sequence that fits a card of so many GB: there what a program may use of it is full.

    4-bit NF4 with double quantisation (the checkpoints that Unsloth publishes), rank 32 on all linears, 8-bit AdamW.
    "HF Transformers+PEFT+FA2": PEFT's guide to quantised training, which calls prepare_model_for_kbit_training, and the
    Trainer's autocast. Unsloth: its own layers, checkpoints on the host, cut cross entropy.
    """
    training = batch(run) | run["peft"] | run["recompute"] | {"optimizer": run["optimizer"]}
    options, alloc = {"attn_implementation": "flash_attention_2"}, {}
    if run["framework"] == "unsloth":
        training |= OFFLOADED | {"loss": "cut"}  # its table for 70B leaves out what its checkpoints are
        alloc = {"environment": {"expandable_segments": True}}  # unsloth c67183f1 __init__.py:58
        options["FastLanguageModel"] = "2024.12"  # of the release that brought both, in the month of Llama 3.3
    else:
        options["prepare_model_for_kbit_training"] = True
    if degrees(run):
        unsayable("a run of several processes")
    return alloc | {"model": run["model"], "framework": "ddp", "topology": "dgx-a100", "mesh": {},
                    "training": training, "framework_options": options,
                    "limits": {"usable_memory": f"{run['gpu_type']} GiB"}}


# ---- ms-swift -------------------------------------------------------------------------------------------------------
SWIFT_ZERO = {
    "zero2": {"reduce_bucket_size": 200_000_000, "allgather_bucket_size": 200_000_000, "overlap_comm": False},
    "zero3": {"reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
              "stage3_param_persistence_threshold": "auto", "overlap_comm": False, "sub_group_size": 1_000_000_000,
              "stage3_max_live_parameters": 1_000_000_000, "stage3_max_reuse_distance": 1_000_000_000},
}
"""ms-swift 3602360a `swift/config/zero2.json` and `zero3.json`, which `--deepspeed zero2` names."""
QWEN_15 = {"pipeline": {"layers": [13, 11]}}, {"moe_router_dtype": "fp32"}
"""decoder_last_pipeline_num_layers 11 of 24, moe_router_dtype fp32."""
QWEN_235B = over("qwen3-30b-a3b", hidden_size=4096, num_hidden_layers=94, num_attention_heads=64,
                 moe_intermediate_size=1536)
QWEN_14B = over("qwen2.5-7b", hidden_size=5120, intermediate_size=13824, num_hidden_layers=48, num_attention_heads=40,
                num_key_value_heads=8)
QWEN_72B = over("qwen2.5-7b", hidden_size=8192, intermediate_size=29568, num_hidden_layers=80, num_attention_heads=64,
                num_key_value_heads=8)
SWIFT_MODELS = {  # the model, and what its script says of training and of options
    "Qwen1.5-MoE-A2.7B": ("qwen1.5-moe-a2.7b", *QWEN_15), "Qwen3-30B-A3B": ("qwen3-30b-a3b", {}, {}),
    "Qwen3-30B-A3B-Base": ("qwen3-30b-a3b", {}, {}), "Qwen3-235B-A22B-Instruct-2507": (QWEN_235B, {}, {}),
    "Qwen2.5-7B": ("qwen2.5-7b", {}, {}), "Qwen2.5-14B": (QWEN_14B, {}, {}), "Qwen2.5-72B-Instruct": (QWEN_72B, {}, {})}
"""Shapes of models without a preset are those of their published configurations."""
SWIFT = COMMON | {
    "model": Words(SWIFT_MODELS), "task": Always("sft"), "precision": Always("bf16"),
    "gpu_type": Words(dict.fromkeys(("A800 80GB", "80GB A100/A800 (doc env; not stated in script)", "A100"),
                                    "dgx-a100")),
    "framework": Words({"Megatron-SWIFT": "megatron", "ms-swift + DeepSpeed ZeRO-3": "deepspeed",
                        "ms-swift + DeepSpeed": "deepspeed"}),
    "sharding": Words({"zero1": "megatron", "zero2": "zero2", "zero3": "zero3"}),
    "recompute": Recomputed({"full uniform n=1": {"recompute": "full"}, "full": {"recompute": "full"}, "none": {},
                             "gradient checkpointing (full)": {"recompute": "full"},
                             "selective": {"recompute": ["core_attn"]}}),
    "peft": Words({None: {}, "lora r8 alpha32 all-linear": {"method": "lora", "lora": {
        "rank": 8, "alpha": 32.0, "target_modules": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]}},
        "lora (4-bit or fp8? see script)": Missing("batch and format of the frozen base not stated")}),
    "optimizer": Words({"adam fp32 states, distributed optimizer": {},
                        "adam fully CPU-offloaded": {"offload": {"optimizer": "host"}}}),
    "config": Block({"packing": SWITCH, "sequence_parallel": SWITCH, "cross_entropy_fusion": Always(True)})}


def swift(run):
    """Script headers: whole GiB on the device. Packed rows say so; unpacked ones are padded to the full length."""
    if not run["complete"]:
        unsayable("batch and format of the frozen base not stated")
    config, (model, layout, options) = run["config"], run["model"]
    training = batch(run) | run["recompute"] | {"optimizer": {"name": "adam"}} | layout | run["optimizer"] | run["peft"]
    if config["packing"]:
        training["lengths"] = "packed"
    made = {"model": model, "topology": run["gpu_type"], "mesh": degrees(run), "training": training}
    if run["framework"] == "deepspeed":
        # Packing is refused without flash attention: `swift/arguments/sft_args.py`, _check_padding_free.
        config.leave("sequence_parallel")  # one of Megatron
        return made | {"framework": run["sharding"], "framework_options": SWIFT_ZERO[run["sharding"]] | {
            "attn_implementation": "flash_attention_2"}}
    training |= {"sequence_parallel": config["sequence_parallel"], "loss": "megatron"}
    return made | {"framework": run["sharding"]} | ({"framework_options": options} if options else {})


# ---- axolotl --------------------------------------------------------------------------------------------------------
VISION = "no model family: Qwen3.5-27B"
AXOLOTL_MODELS = {  # what its file says beyond the others
    "gpt-oss-20b LoRA": ({}, {"use_kernels": True}), "gpt-oss-20b FFT FSDP2": ({}, {}),
    "gpt-oss-20b FFT FSDP2 offload": ({"params": "host", "optimizer": "host", "gradients": "host"},
                                      {"use_kernels": True}),
    "Granite-4.0-H-Tiny (hybrid Mamba2/MoE) FFT": Missing("no model family: Granite-4.0-H-Tiny"),
    "Qwen3-Next-80B-A3B QLoRA": Missing("no model family: Qwen3-Next-80B-A3B"), "Qwen3.5-27B QLoRA": Missing(VISION),
    "Qwen3.5-27B FFT (vision frozen)": Missing(VISION)}
"""Of the files of gpt-oss two have `use_kernels: true`; the offloaded one has `offload_params: true`."""
WHOLE, PARTS = {}, {size: {"limits": {"usable_memory": f"{size} GB"}} for size in (24, 48)}
"""Cards of less than 80 GB: a part of one that has them."""
AXOLOTL = COMMON | {
    "model": Words(AXOLOTL_MODELS), "framework": Always("axolotl"), "task": Always("finetune"),
    "gpu_type": Words({"1x80GB class": WHOLE, "1x48GB": PARTS[48], "8x48GB": PARTS[48], "2x24GB": PARTS[24]}),
    "sharding": Words({"none": "ddp", "fsdp2": "fsdp2"}),
    "precision": Words({"bf16": {"params": "bf16"}, "4-bit base": Missing("a base of 4 bits")}),
    "recompute": Words({"gradient checkpointing": {"recompute": "full"}}),
    "peft": Words({
        None: {}, "lora r=8 alpha=16 targets=True params=None": {"method": "lora", "lora": {"rank": 8, "alpha": 16.0}},
        "qlora r=16 alpha=8 targets=['linear_attn.in_proj_ba', 'linear_attn.in_proj_qkvz', 'linear_attn.out_proj', "
        "'shared_expert.up_proj', 'shared_expert.down_proj', 'shared_expert.gate_proj', 'shared_expert_gate', "
        "'q_proj', 'v_proj', 'k_proj', 'o_proj'] params=None": Missing(VISION),
        "qlora r=16 alpha=32 targets=['q_proj', 'k_proj', 'v_proj', 'o_proj', 'down_proj', 'up_proj'] "
        "params=None": Missing(VISION)}),
    "optimizer": Words({
        "adamw_bnb_8bit": {"name": "adamw", "implementation": "bitsandbytes", "moments": "int8"},
        "adamw_torch_8bit": {"name": "adamw", "moments": "int8"}, "adamw_torch_fused": {
            "name": "adamw", "implementation": "fused"}, "adamw_torch_4bit": Missing("moments of 4 bits")}),
    "config": Block({
        "packing": Words({True: {"lengths": "packed"}, False: {}}), "cce": Words({True: {"loss": "cut"}}),
        "flash_attention": Words({one: one for one in ("flash_attention_2", "kernels-community/vllm-flash-attn3")}),
        "quantize_moe_experts": Always(None, True), "liger": Always(False), "base_model": Always(
            "ibm-granite/granite-4.0-tiny-preview", "Qwen/Qwen3-Next-80B-A3B-Instruct", "openai/gpt-oss-20b",
            "Qwen/Qwen3.5-27B")})}


def axolotl(run):
    """README figures, "about N GiB" on the device, of yaml files with packing and a cut cross entropy.

    The files say `attn_implementation: kernels-community/vllm-flash-attn3` and `reshard_after_forward: true`. All three
    have `activation_offloading: true`. The figures stand in the README since axolotl's commit ba3dba3e4 (6 August
    2025), which pins accelerate 9359a019; that asks the model for `no_sync`, which FSDP2 has not, so gradients are
    reduced after every microbatch. Accelerate defers it from 1.11.0 on (its commit ec92b1af, September 2025), as does
    the release 1.13.0 that axolotl 067b021c8 pins: whole gradients of 20B parameters would not fit the 48 GB card.
    """
    (offload, kernels), config = run["model"], run["config"]
    training = batch(run) | run["recompute"] | config["packing"] | config["cce"] | {
        "precision": run["precision"], "offload": {"activations": "host"} | offload, "optimizer": run["optimizer"]}
    if run["peft"]:  # offload replaces recompute (axolotl `loaders/model.py`, _apply_activation_checkpointing)
        training |= run["peft"] | {"recompute": "none"}
    sharded = {"reshard_after_forward": True, "sync_gradients": "every"} if run["sharding"] == "fsdp2" else {}
    return {"model": "gpt-oss-20b", "framework": run["sharding"], "topology": "dgx-a100", "mesh": degrees(run),
            "training": training, **run["gpu_type"], "framework_options": {
                "attn_implementation": config["flash_attention"]} | sharded | kernels}


# ---- issues ---------------------------------------------------------------------------------------------------------
OF_ISSUES = ("tp", "pp", "cp", "dp", "gpus")
ISSUES = COMMON | {name: Number(or_none=True) for name in OF_ISSUES} | {
    "model": Words({"Nemotron-3-Nano-30B-A3B": Missing("lengths and batch not stated"), "Qwen3-VL-30B-A3B-Instruct":
                    Missing("no model family: Qwen3-VL (vision tower)")}),
    "gpu_type": Always("A100 80GB", "H100 80GB"), "framework": Always("NeMo-RL DPO DTensor", "HF + DeepSpeed ZeRO-2"),
    "task": Always("DPO full, CPU offload, AC, seq ~3.2-3.4k", "full SFT"), "sharding": Always("fsdp2", "zero2"),
    "precision": Always(None, "bf16"), "recompute": Always(None, "gradient checkpointing"), "optimizer": Always(None)}


def issue(run):
    """Never a scenario: reports leave out what it would need."""
    return unsayable(f"not written down: {run['model']}")
