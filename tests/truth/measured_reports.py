"""Rows of what users and scripts say of themselves: issues of LLaMA-Factory, scripts and a page of verl."""

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
