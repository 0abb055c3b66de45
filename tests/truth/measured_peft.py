"""Rows of PEFT's comparison of methods: a fine-tuning of Llama 3.2 3B on one L40S, method by method.

The script (5d602fdbf `method_comparison/MetaMathQA/run.py`) prints tokens and seconds of every 250 steps: their means
are the length of a sequence and the time of a step, without evaluation. Its memory is not compared: what is allocated
behind a step holds the step's outputs, logits and a cache of keys and values, for which a scenario has no key; the
highest reading is of evaluation, of 50 sequences that are generated together.
"""

from __future__ import annotations

from measured_runs import COMMON, batch, degrees
from source_row import Always, Block, Listed, Number, Unread, Words

MODULES = ("q_proj", "v_proj", "up_proj", "gate_proj", "down_proj")
VOCABULARY = COMMON | {
    "model": Words({"meta-llama/Llama-3.2-3B": "llama-3.2-3b"}), "gpu_type": Words({"NVIDIA L40S": "l40s"}),
    "framework": Always("PEFT, its own loop"), "task": Always("full", "lora"), "sharding": Always("none"),
    "precision": Words({"bfloat16": {"params": "bf16"}}), "recompute": Words({"none": {}}),
    "optimizer": Words({"AdamW": {"name": "adamw", "implementation": "foreach"}}),
    "config": Block({
        "r": Number(), "lora_alpha": Number(), "use_dora": Words({False: {}, True: {
            "use_dora": True}}),
        "target_modules": Listed(MODULES), "use_rslora": Unread("scales adapters: values", Always(False, True)),
        "tokens_of_a_step": Unread("the mean length is of it", Number()),
        "attn_implementation": Words({None: "sdpa"}), "compile": Always(False)})}
"""`autocast_adapter_dtype` is true: adapters are in fp32."""


def peft(run):
    """Its own loop, which holds the outputs, and with them the logits, while backward runs."""
    config = run["config"]
    training = batch(run) | run["recompute"] | {"precision": run["precision"], "optimizer": run["optimizer"],
                                                "loss": "hf_keep_logits"}
    if run["task"] == "lora":
        training |= {"method": "lora", "lora": {
            "rank": config["r"], "alpha": float(config["lora_alpha"]), "dtype": "fp32",
            "target_modules": config["target_modules"], **config["use_dora"]}}
    return {"model": run["model"], "framework": "ddp", "implementation": "hf", "topology": {
        "file": run["gpu_type"], "gpus_per_node": 1}, "mesh": degrees(run), "training": training,
        "framework_options": {"attn_implementation": config["attn_implementation"]}}
