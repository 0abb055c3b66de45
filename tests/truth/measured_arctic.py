"""Rows of recipes for long sequences: ArcticTraining's files, which say what the driver counted, under DeepSpeed.

A file says model, machine, length and what goes to the host; beside its length stands "NV": memory of the device in GiB
(b28638e `arctic_training/debug/utils.py`:133), as its authors read it. What a file leaves out is DeepSpeed's default:
`config/trainer.py`, build_deepspeed_config, puts its own values in the place of a missing block alone.
"""

from __future__ import annotations

from measured_runs import COMMON, batch, degrees, unsayable
from source_row import Always, Block, Words

SWITCH = Words({True: True, False: False})
VOCABULARY = COMMON | {
    "model": Words({"meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b", "Qwen/Qwen3-32B": "qwen3-32b",
                    "meta-llama/Llama-3.1-70B-Instruct": "llama-3-70b"}),
    "gpu_type": Words({"H100 80GB": "dgx-h100", "H200": "dgx-h200"}), "task": Always("sft"),
    "framework": Always("ArcticTraining, DeepSpeed ZeRO-3"), "sharding": Always("zero3"), "precision": Always("bf16"),
    "recompute": Words({"full": {"recompute": "full"}}),
    "optimizer": Words({"cpu_adam": {"name": "adam"}}),
    "config": Block({
        "offload_param": Words({"cpu": {"params": "host"}, None: {}}),
        "offload_optimizer": Words({"cpu": {"optimizer": "host"}}),
        "attention": Words(dict.fromkeys(("flash_attention_2", "flash_attention_3"), "flash_attention_2")),
        "type": Words({"huggingface": {}, "liger": {"use_liger_kernel": True}}),
        "activation_checkpoint_cpu_offload": SWITCH, "tiled_mlp_compute": SWITCH,
        "allocator": Words({"expandable_segments:True": {"expandable_segments": True}})})}
"""`model.gradient_checkpointing_enable` is the default (`model/hf_factory.py`). Both flash attentions keep queries,
keys, values, the output and a number a row and head. The allocator's setting is that of the folder's README."""


def arctic(run):
    """Full fine-tuning of packs as long as the file says, less than one conversation."""
    config = run["config"]
    if run["cp"] > 1:
        unsayable("DeepSpeed's sequence parallelism under ZeRO-3 (Ulysses)")
    away = config["offload_param"] | config["offload_optimizer"]
    if config["activation_checkpoint_cpu_offload"]:
        away |= {"activations": "host"}
    options = {"attn_implementation": config["attention"]} | config["type"]
    if config["tiled_mlp_compute"]:
        options["tiled_mlp_compute"] = True
    training = batch(run) | run["recompute"] | {"lengths": "packed", "optimizer": run["optimizer"], "offload": away}
    if config["type"]:
        training["loss"] = "liger"
    machine = {"file": run["gpu_type"], "gpus_per_node": min(run["gpus"], 8)}
    return {"model": run["model"], "framework": "zero3", "topology": machine, "environment": config["allocator"],
            "mesh": degrees(run), "training": training, "framework_options": options}
