"""Sequences that ranks share under FSDP, as verl's workers do it: which axis shards then, and what is refused.

LLaMA-Factory's rewrite runs the same exchanges (ff6d4d12 `v1/plugins/model_plugins/parallelization/seq_comm.py`).

verl b178a3cd `workers/fsdp_workers.py` __init__: the mesh of FSDP has all ranks, groups that share sequences are
neighbours in it; `operators/shared/sequences/verl.py` has the exchanges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simcore.models.blocks import Attention, Mlp, Moe
from simcore.placement.job import Job

__all__ = ["check_split", "shard_axis"]


def shard_axis(job: Job) -> str:
    """Axis whose ranks share a flat parameter: those that split sequences too."""
    return "dp_shard_cp" if job.mesh.cp > 1 else "dp_shard"


def check_split(job: Job, options: Mapping[str, Any]) -> None:
    """Refuses sequences that ranks share, but as verl's patch of flash-attention does it (Ulysses)."""
    if job.graph.implementation != "hf" or options.get("attn_implementation") != "flash_attention_2":
        raise job.not_yet("mesh.cp", f"{job.scenario.framework} with context parallelism (served with transformers' "
                          "layers: verl's exchanges around attn_implementation: flash_attention_2)")
    blocks = [branch.block for kind in job.graph.kinds for branch in kind.branches]
    if any(not isinstance(block, Attention | Mlp | Moe) for block in blocks) or job.graph.architecture.has_tower:
        raise job.not_yet("mesh.cp", "sequences that ranks share through other layers than attention and MLPs")
    ranks = job.mesh.cp
    for block in (block for block in blocks if isinstance(block, Attention)):
        if block.sinks or block.window:
            raise job.not_yet("mesh.cp", "sequences that ranks share with sinks or a window")
        if block.num_heads % ranks or (block.num_kv_heads % ranks and ranks % block.num_kv_heads):
            raise job.illegal("mesh.cp", f"{ranks}: {block.num_heads} heads and {block.num_kv_heads} of keys must be "
                              "divisible by it, or it by those of keys", "verl b178a3cd models/transformers/"
                              "monkey_patch.py:333 apply_monkey_patch")
        if job.scenario.training.loss == "log_probs" and block.num_kv_heads % ranks:
            raise job.not_yet("mesh.cp", f"{block.num_kv_heads} heads of keys over {ranks} ranks, which LLaMA-Factory "
                              "does not repeat")
    if job.scenario.training.seq_len % ranks:
        raise job.not_yet("mesh.cp", f"sequences that {ranks} does not divide, which verl pads")
