"""Rows of what users and scripts say of themselves: issues of LLaMA-Factory, scripts and a page of verl, Soup's log."""

from __future__ import annotations

from measured_runs import COMMON, batch, degrees, unsayable
from source_row import Always, Block, Missing, Number, Opinion, Unread, Words

OWN = "lengths of a data set of its own are not stated"
AWAY = {"optimizer": "host", "params": "host"}
ZERO = {"reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto", "overlap_comm": True,
        "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1_000_000_000,
        "stage3_max_reuse_distance": 1_000_000_000, "sub_group_size": 1_000_000_000, "contiguous_gradients": True}
"""LLaMA-Factory e64f55869 `examples/deepspeed/ds_z3_config.json`, and `ds_z3_offload_config.json`."""
FACTORY = COMMON | {
    "model": Words({"Meta-Llama-3-8B-Instruct": "llama-3-8b"}), "task": Words({"full": {}, "lora": Missing(OWN)}),
    "gpu_type": Words({"NVIDIA GeForce RTX 3090": {"usable_memory": "23.68 GiB"}, "A100": {}}),
    "framework": Always("LLaMA-Factory, DeepSpeed"), "sharding": Words({"zero3": "zero3", "zero2": Missing(OWN)}),
    "precision": Words({"fp16": {"compute": "fp16"}}), "recompute": Words({"gradient checkpointing": {
        "recompute": "full"}}),
    "optimizer": Words({"adamw_torch": {"name": "adamw"}}),
    "config": Block({
        "offload": Words({"none": {}, "optimizer and parameters": {"offload": AWAY}}),
        "cutoff_len": Unread("the longest example is shorter", Number()),
        "data": Words({"identity,alpaca_en_demo": {}, "of its own": Missing(OWN)})})}
"""A card of so much memory stands for a part of one that has eight on a host; of it nothing is timed."""


def factory(run):
    """The longest example of both data sets, 2,921 characters (`data/alpaca_en_demo.json`), at 4.4 a token of Llama 3.

    DeepSpeed's files are of April 2024, the nearest before the report.
    """
    config = run["config"]
    told = config["data"] | run["task"] | config["offload"]
    training = batch(run) | run["recompute"] | {"precision": run["precision"], "optimizer": run["optimizer"]} | told
    return {"model": run["model"], "framework": run["sharding"], "topology": "dgx-a100", "limits": run["gpu_type"],
            "mesh": degrees(run), "training": training, "framework_options": ZERO}


SOUP = COMMON | {
    "model": Words({"Llama-3.1-8B": "llama-3.1-8b"}), "gpu_type": Words({"NVIDIA H100 80GB HBM3": "dgx-h100"}),
    "framework": Always("Soup, TRL 0.26.2, transformers 4.57.6, PEFT 0.20.0"), "task": Always("lora"),
    "sharding": Always("none"), "precision": Words({"bf16": {"params": "fp32", "compute": "bf16"}}),
    "recompute": Words({"none": {}}),
    "optimizer": Words({"adamw_torch": {"name": "adamw", "implementation": "foreach"}}),
    "config": Block({
        "r": Number(), "alpha": Number(), "dropout": Number(), "target_modules": Words({"auto": ["q_proj", "v_proj"]}),
        "attention": Words({"sdpa": "sdpa", "flash_attention_2": "flash_attention_2"}),
        "liger": Words({False: {}, True: {"use_liger_kernel": True}})})}
"""`trainer/sft.py` gives from_pretrained no type, so that transformers 4 loads the base in fp32; the Trainer's bf16
is autocast. What the log leaves out is Soup's default (`config/schema.py`): no checkpointing, PEFT's modules of Llama.
"""


def soup(run):
    """TRL's trainer on one GPU, samples cut at 1,024 tokens; memory as `nvidia-smi` shows it."""
    config = run["config"]
    lora = {"rank": config["r"], "alpha": float(config["alpha"]), "dropout": config["dropout"], "dtype": "fp32",
            "target_modules": config["target_modules"]}
    training = batch(run) | run["recompute"] | {"method": "lora", "lora": lora, "precision": run["precision"],
                                                "optimizer": run["optimizer"]}
    return {"model": run["model"], "framework": "ddp", "implementation": "hf", "mesh": degrees(run), "topology": {
        "file": run["gpu_type"], "gpus_per_node": 1}, "training": training, "framework_options": {
            "attn_implementation": config["attention"]} | config["liger"]}


LENGTHS = "lengths of answers, which are not padded, are not stated"
VERL = COMMON | {
    "model": Always(*("Qwen2.5-7B-Instruct", "Qwen2.5-14B-Instruct", "Qwen2.5-32B-Instruct",
                                  "Qwen2.5-72B-Instruct", "DeepSeek 671b")),
    "gpu_type": Words({"H100": "dgx-h100", "H20 96GB": Missing("no machine with H20 is known")}),
    "framework": Always("verl, FSDP", "verl, Megatron"), "task": Always("GRPO"), "sharding": Always("fsdp1", "zero1"),
    "precision": Always("bf16"), "recompute": Always("full"), "optimizer": Always("adamw"),
    "complete": Opinion({False: False}),
    "config": Block({"prompts": Number(), "script": Always("examples/tuning", "examples/grpo_trainer"),
                     "fits_with": Unread("prompts of the largest step that ran", Number()),
                     "rollout_s": Unread("seconds of it alone", Number())})}


def verl(run):
    """Never a scenario."""
    _ = run["gpu_type"]  # a machine that is not known is told first
    return unsayable(LENGTHS)
