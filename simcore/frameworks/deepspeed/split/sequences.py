"""Sequences that ranks share under DeepSpeed (Ulysses): what ZeRO cuts over then, and what is refused.

[Note: shared sequences] accelerate 1.15.0 `accelerator.py`:2424 (`sp_size`) registers DeepSpeed's attention for
transformers' (`simcore/operators/shared/sequences/deepspeed.py`) and hands its groups to the engine: ranks that share
sequences are neighbours, and each stage reduces and cuts over all ranks (0.19.6, edaa72212 `utils/groups.py`,
_get_sequence_data_parallel_group). The engine then reduces in `seq_parallel_communication_data_type`, fp32 by default
(`runtime/engine.py`:1857). ZeRO-3's bucket is in that format; a gradient that is larger than it is cast before. ZeRO-1,
2 (`stage_1_and_2.py`:1847: in fp32, whatever is set) and stage 0 cast the flat copy. transformers 5.23
`integrations/deepspeed.py` weighs the losses of the ranks by their tokens (deepspeed_sp_compute_loss).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.models.blocks import Attention, Mlp, Moe
from simcore.operators.hf.chunked import LM_HEAD
from simcore.placement.job import Draft, Job

__all__ = ["FORMATS", "FORMAT_OPTION", "axis_of_shards", "check_shared", "shared_format"]

FORMAT_OPTION: Final = "seq_parallel_communication_data_type"
"""Format in which ranks that share sequences reduce gradients."""
FORMATS: Final = (None, "fp32", "bf16", "fp16")
"""Its values."""
_CLASS: Final = "deepspeed 0.19.6 runtime/sequence_parallel/ulysses_sp.py"


def axis_of_shards(job: Job) -> str:
    """Returns the axis over which ZeRO cuts: all ranks, those that share sequences among them."""
    return "dp_shard_cp" if job.mesh.cp > 1 else "dp_shard"


def shared_format(job: Draft, options: Mapping[str, Any], stage: int) -> str:
    """Returns the format in which ranks that share sequences reduce gradients; without them "", as computed."""
    given, at = options.get(FORMAT_OPTION), f"framework_options.{FORMAT_OPTION}"
    if given and (job.mesh.cp == 1 or stage in (1, 2)):
        job.note(at, "changes no number", "deepspeed 0.19.6 runtime/engine.py:1857: read where ranks share sequences"
                 if job.mesh.cp == 1 else "deepspeed 0.19.6 runtime/zero/stage_1_and_2.py:1847: fp32 in any case")
    if job.mesh.cp == 1:
        return ""
    found = "fp32" if stage in (1, 2) else job.auto(at, given or "auto", "fp32",
                                                    "deepspeed 0.19.6 runtime/constants.py")
    job.one_of(at, found, ("fp32", job.compute))
    return found


def check_shared(job: Job, options: Mapping[str, Any]) -> None:
    """Refuses sequences that ranks share where DeepSpeed's class has no place for them, or it is not served."""
    if job.mesh.cp == 1:
        return
    ranks, scenario = job.mesh.cp, job.scenario
    if options.get("attn_implementation") == "eager":
        raise job.illegal("framework_options.attn_implementation", "eager isn't currently supported by Ulysses "
                          "sequence parallelism because it requires a 4D attention_mask",
                          f"{_CLASS} register_with_transformers")
    blocks = [branch.block for kind in job.graph.kinds for branch in kind.branches]
    if any(not isinstance(block, Attention | Mlp | Moe) for block in blocks) or job.graph.architecture.has_tower:
        raise job.not_yet("mesh.cp", "sequences that ranks share through other layers than attention and MLPs")
    for block in (block for block in blocks if isinstance(block, Attention)):
        if block.sinks or block.window:
            raise job.not_yet("mesh.cp", "sequences that ranks share with sinks or a window")
        if block.num_heads % ranks:
            raise job.illegal("mesh.cp", f"Attention head count {block.num_heads} is not divisible by SP size {ranks}",
                              f"{_CLASS} UlyssesSPAttentionHF")
        if block.num_kv_heads % ranks and ranks % block.num_kv_heads:
            raise job.illegal("mesh.cp", f"KV attention head count {block.num_kv_heads} is not divisible by SP size "
                              f"{ranks} or vice versa", f"{_CLASS} UlyssesSPAttentionHF")
    if scenario.training.lengths == "packed":
        raise job.not_yet("training.lengths", "packs that ranks share under DeepSpeed")
    job.one_of("training.loss", scenario.training.loss, ("auto", "hf", "hf_keep_logits", "cut", "liger", LM_HEAD))
    if scenario.training.seq_len % ranks:
        raise job.illegal("training.seq_len", f"batch's seqlen={scenario.training.seq_len} isn't divisible by "
                          f"sp-size={ranks}", f"{_CLASS} UlyssesSPDataLoaderAdapter")
