"""Rows of AMD's Primus: tables of two of its articles, by Megatron-LM on MI300X, MI325X and MI355X.

Sources: `docs/tech_blogs` of AMD-AGI/Primus. The article on projections restates rates of AMD's page of results;
layouts are printed, all else is in the files that the article's commit has (2eb9dc7d `examples/megatron/configs`, of
which there are none for MI325X: those of MI300X are followed). Their global batch is that of one host.
"""

from __future__ import annotations

from measured_runs import COMMON, batch, degrees, unsayable
from source_row import Always, Block, Missing, Number, Words

BATCHES = "neither micro batch nor global batch is stated"
HOSTS = "the global batch of a run on several hosts is not stated"
SHARDED = Missing("parameters that torch's FSDP2 shards under Megatron (use_torch_fsdp2)")
FP8 = {"precision": {"compute": "fp8", "grad_reduce": "fp32", "main_grads": "fp32"}}
VOCABULARY = COMMON | {
    "model": Words({"Llama 3.1 8B": "llama-3.1-8b", "Llama 3.1 70B": "llama-3-70b",
                    "Mixtral 8x22B": Missing(HOSTS), "Llama2-7B": Missing(BATCHES), "Qwen3-235B": Missing(BATCHES)}),
    "gpu_type": Words({"MI300": "mi300x", "MI325X": "mi325x", "MI355": "mi355x", "MI355X": "mi355x"}),
    "framework": Always("Primus, Megatron"), "task": Always("pretrain"), "vpp": Always(None, 1, 2, 3, 4),
    "sharding": Words({"zero1": {"use_distributed_optimizer": True}, "fsdp2": SHARDED}),
    "precision": Words({"FP8": FP8, "BF16": {}}), "recompute": Words({"none": {}, None: {}}),
    "optimizer": Words({"adam": {"name": "adam"}}),
    "config": Block({"schedule": Always("1f1b", "1f1b-interleaved", "zbb", "zbv", "v-half", "v-min"),
                     "hosts": Number(), "file": Always("MI300X/llama3.1_8B-FP8-pretrain.yaml")})}


def primus(run):
    """Megatron's own optimizer and buffers; delayed scaling, of which the gathered weights are none."""
    config = run["config"]
    if config.get("hosts", 1) > 1 and run["global_batch"] is None:
        unsayable(HOSTS)
    training = batch(run) | run["recompute"] | run["precision"] | {"optimizer": run["optimizer"], "loss": "te"}
    return {"model": run["model"], "framework": "megatron", "topology": run["gpu_type"], "mesh": degrees(run),
            "training": training, "framework_options": run["sharding"] | {
                "fp8_recipe": "delayed", "fp8_format": "hybrid", "fp8_param_gather": False,
                "overlap_grad_reduce": True, "overlap_param_gather": True, "gradient_accumulation_fusion": False}}
