"""Options of `fully_shard` jobs as a strategy and a `Wrapping`: prefetch, when gradients are reduced, what reshards.

Rules: torch 2.13 `torch/distributed/fsdp/_fully_shard/`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simcore.frameworks.common.torch import Defaults
from simcore.frameworks.fsdp2.checks import FRONT, OUTSIDE, RULE, TAIL, TOWER_OPTION, is_norm_apart, is_separate
from simcore.frameworks.fsdp2.pairs.rules import reads_head_apart
from simcore.frameworks.fsdp2.split.matrices import ties_again
from simcore.frameworks.fsdp2.split.mixtures import dispatches
from simcore.frameworks.fsdp2.strategy import Fsdp2Strategy
from simcore.frameworks.fsdp2.trainers import TRAINERS
from simcore.frameworks.fsdp2.units import Wrapping
from simcore.placement.job import Draft, Job
from simcore.recording.number_formats import PackedWeights

__all__ = ["strategy", "wrapping"]

_SYNC = {
    "last": "the trainer turns set_requires_gradient_sync off but for the last microbatch (its no_sync), so "
            "that whole gradients stay between microbatches",
    "every": "the trainer never turns set_requires_gradient_sync off: each backward pass reduces"}


def strategy(job: Draft, options: dict[str, Any], given: Defaults) -> Fsdp2Strategy:
    """Returns the settings of FSDP2's hooks (prefetch, times of reduction, resharding) as one `Fsdp2Strategy`.

    `options`: the framework options that the scenario sets, by name; `given`: the trainer's values for the others.
    [Note: FSDP2 under pipeline stages] A stage keeps its parameters whole, and reduces when the last pass is over.
    torch 2.13 `distributed/pipelining/stage.py`, backward_maybe_with_nosync: no backward pass reshards or reduces;
    perform_reduce_grad does, unit by unit.
    """
    prefetch = options.get("prefetch") or 0
    ahead = job.mesh.ep > 1 and TRAINERS[job.graph.implementation].gathers_experts_ahead
    if ahead:
        job.refuse_idle(options, "prefetch", "beside expert parallelism, whose units are gathered ahead one by one")
    made = Fsdp2Strategy(prefetch, prefetch, gathers_experts_ahead=ahead,
                         counts_over=TRAINERS[job.graph.implementation].counts_over(job),
                         divides_alone="all" if ahead else "experts" if dispatches(job) else "")
    if job.mesh.pp > 1:
        job.refuse_idle(options, "set_is_last_backward", "beside pipeline stages, which call it themselves")
        return replace(made, sync="end", reshard_after_backward=False)
    if job.scenario.num_microbatches == 1:  # the last one, which any setting reduces and waits for
        return replace(made, sync="every")
    sync = options.get("sync_gradients", given.sync)
    if "sync_gradients" not in options:
        job.note("framework_options.sync_gradients", sync, _SYNC[sync])
    return replace(made, sync=sync, finish=options.get("set_is_last_backward", "every"))


def _reshard_policy(job: Job, reshard: object, shards: int) -> bool | int:
    """A group of 1 means False, of all shards True (torch 2.13 `_fsdp_init.py`, `_get_post_forward_mesh_info`)."""
    assert isinstance(reshard, (bool, int))
    if isinstance(reshard, bool) or reshard == 1:
        return reshard is True
    if reshard < 1 or shards % reshard:
        raise job.illegal("framework_options.reshard_after_forward", "if passing reshard_after_forward as an int, it "
                          f"should be a factor of {shards}, not {reshard}", f"{RULE} _get_post_forward_mesh_info")
    return True if reshard == shards else reshard


def wrapping(job: Draft, options: dict[str, Any], reduce: str, packed: PackedWeights | None, *,
             fully: bool) -> Wrapping:
    """Returns which parts of the model are units, how each reshards, and their dtypes, as one `Wrapping`.

    `options`: the framework options that the scenario sets, by name; `packed`: the format of packed weights, or None.
    By default children reshard, and the trainer decides for the root, which torch 2.13 itself does not reshard.
    `set_reshard_after_forward` of the last layer is of all units inside it too (`_fully_shard.py`, recurse). `fully`:
    experts are wrapped by `fully_shard` too; `reduce`: dtype of reduced gradients.
    """
    mesh, asked = job.mesh, options.get("reshard_after_forward")
    given: Defaults = TRAINERS[job.graph.implementation].defaults
    shards, last = mesh.axis("dp_shard_cp").size, options.get("set_last_reshard")
    axes = TRAINERS[job.graph.implementation].experts_axes(job)
    share = mesh.axis(axes[0]).size
    in_stages = mesh.pp > 1
    children = (not in_stages or given.reshard_in_stages[0].startswith("true")) if asked is None else asked
    return Wrapping(
        root=options.get("wrap") != TAIL and _reshard_policy(
            job, given.root_resharded if asked is None else asked, shards),
        layers=_reshard_policy(job, children, shards),
        last=_reshard_policy(job, children if last is None else last, shards),
        head=given.last_follows and asked is True,
        experts=_reshard_policy(job, children, share) if fully else True,
        last_experts=_reshard_policy(job, children if last is None else last, share) if fully else True,
        separate=is_separate(job, options),
        norm_in_root=options.get("wrap") == TAIL and is_norm_apart(job),
        ties_again=ties_again(job),
        embedding_apart=options.get("wrap") == FRONT,
        loss_inside=given.loss_inside and job.scenario.training.loss not in OUTSIDE,
        experts_unit=fully,
        experts_apart=mesh.ep > 1,
        packed_apart=packed is not None and packed.storage == "uint8" and not packed.is_tensor,
        replicates=mesh.dp_replicate > 1,
        checkpointed=fully and TRAINERS[job.graph.implementation].checkpoint(job) != "none",
        experts_axes=axes,
        head_rests=reads_head_apart(job, options),
        tower_layers=options.get(TOWER_OPTION) != "root",
        compute=job.compute,
        reduce=reduce,
        joins_copies=bool(options.get("packed_experts")))
