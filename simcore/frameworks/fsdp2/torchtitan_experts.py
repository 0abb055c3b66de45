"""Experts of torchtitan 0.2.2 on FSDP2: what it refuses, and how they are cut, kept, replayed and balanced.

Sources: `models/llama4/infra/parallelize.py`, `distributed/parallel_dims.py`, `components/optimizer.py`.
[Note: torchtitan's expert parallelism] in `operators/torchtitan/moe.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simcore.frameworks.common.hot_ranks import hot_ranks_assumption
from simcore.inputs.training import Draws, Recompute
from simcore.models.blocks import Attention, Moe
from simcore.operators.torchtitan.options import KEEP_EXCHANGE
from simcore.placement.job import Draft, Job

__all__ = ["assumptions", "check_compiled_experts", "check_experts", "counts_over", "experts_axes", "experts_dim",
           "keeps_exchange", "note_replays"]

EXPERTS = "torchtitan 0.2.2 models/llama4/infra/parallelize.py apply_fsdp"


def check_experts(job: Job) -> None:
    """Raises IllegalLayout for meshes and sizes of experts that torchtitan refuses, NotYet for others."""
    mesh = job.mesh
    if mesh.etp > 1 and mesh.ep == 1:
        raise job.illegal("mesh.etp", f"etp {mesh.etp} changes nothing without expert parallelism: tp cuts experts",
                          "torchtitan 0.2.2 models/llama4/infra/parallelize.py apply_moe_ep_tp")
    if mesh.etp > 1 and mesh.etp != mesh.tp:
        raise job.illegal("mesh.etp", f"Currently we only support ETP=TP or ETP=1, not {mesh.etp} beside tp {mesh.tp}",
                          "torchtitan 0.2.2 distributed/parallel_dims.py _validate")
    _check_widths(job)
    replica = mesh.dp_shard * mesh.cp * mesh.tp
    if replica % (mesh.ep * mesh.etp):
        raise job.illegal("mesh.ep", f"{replica} ranks of a replica must be a multiple of ep {mesh.ep} x etp "
                          f"{mesh.etp}", "torchtitan 0.2.2 distributed/parallel_dims.py build_mesh: efsdp = fsdp * tp "
                          "// (etp * ep)")
    if job.compute != "bf16":
        raise job.not_yet("training.precision.compute", f"experts in {job.compute}: torchtitan computes them in bf16")
    if isinstance(job.scenario.training.routing, Draws):
        raise job.not_yet("training.routing", "routing drawn at random in torchtitan's experts")


def check_compiled_experts(job: Job, name: str, options: Mapping[str, Any]) -> None:
    """Raises NotYet for layers with experts whose compiled parts were not measured. `name`: of the model, in words."""
    attention = [branch.block for kind in job.graph.kinds for branch in kind.branches
                 if isinstance(branch.block, Attention)]
    beside = {"latent attention": not attention, "tensor parallelism": job.mesh.tp > 1,
              "context parallelism": job.mesh.cp > 1,
              "products in fp8": job.scenario.training.precision.compute == "fp8",
              "flex_attention": options.get("attn") == "flex", "repeat_kv": bool(options.get("repeat_kv")),
              "layers that rotate nothing": not all(block.rotary for block in attention)}
    found = [what for what, there in beside.items() if there]
    if found:
        raise job.not_yet("framework_options.compile", f"what compiled blocks of torchtitan's {name} keep "
                          f"with {' and '.join(found)}")


def _check_widths(job: Job) -> None:
    """Raises IllegalLayout for experts whose rows, in bf16, torch's grouped products do not take."""
    parts = job.mesh.tp if job.mesh.ep == 1 else job.mesh.etp
    for block in (branch.block for kind in job.graph.kinds for branch in kind.branches):
        if isinstance(block, Moe) and (block.expert_ffn % parts or block.expert_ffn // parts % 8 or block.hidden % 8):
            raise job.illegal("mesh.etp" if job.mesh.ep > 1 else "mesh.tp", f"Expected mat_a stride along 0 dim to be "
                              f"multiple of 16 bytes: rows of {block.hidden} or {block.expert_ffn} / {parts} entries",
                              "torch 2.13 _meta_registrations.py _meta_grouped_mm_common")


def experts_dim(job: Job) -> int:
    """Returns the dimension of expert parallel tensors that the ranks of `experts_axes` cut: 1 if there are too many.

    IllegalLayout where they cannot cut it evenly. [Note: torchtitan's expert parallelism] in
    `operators/torchtitan/moe.py`.
    """
    block = next((branch.block for kind in job.graph.kinds for branch in kind.branches
                  if isinstance(branch.block, Moe)), None)
    share = job.mesh.axis(experts_axes(job)[0]).size
    if block is None or job.mesh.ep == 1 or share * job.mesh.ep <= block.num_experts:
        return 0
    width = block.expert_ffn * (2 if block.bias else 1)  # GPT-OSS: gate and up are one matrix
    for size in (width // job.mesh.etp, block.hidden):
        if size % share:
            raise job.illegal("mesh.ep", f"FSDP does not support uneven sharding on dim 1: {size} entries on {share} "
                              f"ranks; {EXPERTS}: efsdp x ep > num_experts",
                              "torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param.py _init_sharded_param")
    return 1


def experts_axes(job: Job) -> tuple[str, str]:
    """Returns the mesh axes over which experts of one rank are cut once more, and copied."""
    return ("expert_dp_shard", "expert_dp_replicate") if job.mesh.dp_replicate > 1 else ("expert_dp", "")


def counts_over(job: Job) -> str:
    """Returns the mesh axis over which tokens of experts are counted, "" for Qwen3, whose routers are not balanced.

    torchtitan 0.2.2 `models/*/__init__.py`: build_optimizers_with_moe_load_balancing, build_optimizers.
    """
    return "dp_cp" if job.has_experts and job.graph.architecture.family in KEEP_EXCHANGE else ""


def keeps_exchange(job: Draft, options: dict[str, Any]) -> bool:
    """Returns True if a checkpoint by operator keeps exchanged rows, as DeepSeek's and Llama 4's do from c4e22911 on.

    InputError if `options` say so where nothing is exchanged or kept.
    """
    recompute, has_list = job.scenario.training.recompute, job.graph.architecture.family in KEEP_EXCHANGE
    by_operator = isinstance(recompute, Recompute) and recompute.mode == "per_op"
    if job.mesh.ep == 1 or not (by_operator and has_list):
        given = {"keeps_exchange": options.get("keeps_exchange") is not None}
        job.refuse_idle(given, "keeps_exchange", "without expert parallelism and checkpoints by operator of "
                        "DeepSeek or Llama 4")
        return True
    return job.flag(options, "keeps_exchange", "torchtitan 0.2.2 models/deepseek_v3/infra/parallelize.py: "
                    "_op_sac_save_list", default=True)


def note_replays(job: Draft) -> None:
    """Notes that a replay gathers experts.

    [Note: experts gathered in a replay] The last layer's are, by operator, and were gathered ahead in forward.

    torch 2.13 `utils/checkpoint.py` raises then ("encountered during backward but not found in storage", pytorch/
    torchtitan issue 3427); torch before it, with which 0.2.2 was released, does not.
    """
    recompute, mesh = job.scenario.training.recompute, job.mesh
    by_operator = isinstance(recompute, Recompute) and recompute.mode == "per_op"
    if mesh.ep > 1 and by_operator and mesh.axis(experts_axes(job)[0]).size > 1:
        job.note("experts gathered in replays", "as before torch 2.13, which stops there (pytorch/torchtitan issue "
                 "3427)", "an assumption: torch 2.13 raises where FSDP2 "
                 "gathers experts in the replay by operator (pytorch/torchtitan issue 3427)")


def assumptions(job: Job, options: dict[str, Any]) -> tuple[tuple[str, str, str, str], ...]:
    """Returns the assumption about hot ranks as (key, value, kind, source), none without expert parallelism."""
    return hot_ranks_assumption(job)
