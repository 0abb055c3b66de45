"""Capacity of an expert rank, and the paged stash: options and rules of Megatron-LM main (2026-08-22).

What they do is told in `operators/megatron/stash.py`, [Note: paged stash].
"""

from __future__ import annotations

from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.models.blocks import Moe, Mtp
from simcore.operators.megatron.stash import fused_rows, rows_with_room
from simcore.placement.job import Job
from simcore.placement.packing import pack_sequences
from simcore.placement.token_dispatch import received_per_token

__all__ = ["STASH_OPTIONS", "stash_assumptions", "stash_options"]

CAPACITY: Final = "moe_expert_rank_capacity_factor"
STASH: Final = "moe_paged_stash"
_PAGE: Final = f"{STASH}_page_size"
_FACTORS: Final = (f"{STASH}_buffer_size_factor_cuda", f"{STASH}_buffer_size_factor_cpu")
STASH_OPTIONS: Final = {CAPACITY: (None, float), STASH: (True, False), _PAGE: (int,),
                        **dict.fromkeys(_FACTORS, (float,))}
_RULE: Final = "main 2026-08-22 transformer/transformer_config.py"
_MOST: Final = 64.0
"""Largest factor that is read: more than all rows of an expert group on one rank in published layouts."""


def stash_options(job: Job, options: dict[str, object]) -> dict[str, Any]:
    """Returns the layers' options (`MegatronOptions`) that the scenario sets of these; {} for none.

    Raises IllegalLayout for what Megatron-LM or TransformerEngine refuse, NotYet for what is not modelled, InputError
    for an option that changes nothing.
    """
    for name in (STASH, CAPACITY):
        if options.get(name) and not job.scenario.framework_version.startswith("main"):
            raise job.illegal(f"framework_options.{name}", f"core 0.16.1 has no {name}",
                              f"{_RULE}:1019; use framework_version: main 2026-08-22")
    made: dict[str, Any] = {name: options[name] for name in STASH_OPTIONS if options.get(name) is not None}
    _check_factors(job, made)
    if not options.get(CAPACITY):
        if options.get(STASH):
            raise job.illegal(f"framework_options.{STASH}", "moe_paged_stash requires moe_expert_rank_capacity_factor "
                              "to be set; there is no need to use paged stashing without it.", f"{_RULE}:2213")
        for name in (_PAGE, *_FACTORS):
            job.refuse_idle(options, name, f"without {STASH}")
        return {}
    _check_dispatch(job, options)
    _check_room(job, float(made[CAPACITY]))
    if not options.get(STASH):
        for name in (_PAGE, *_FACTORS):
            job.refuse_idle(options, name, f"without {STASH}")
        return made
    _check_stash(job)
    return made


def stash_assumptions(options: dict[str, object]) -> tuple[tuple[str, str, str, str], ...]:
    """Returns assumptions about the options, each (key, value, kind, source); () without them."""
    if not options.get(CAPACITY):
        return ()
    made = ((CAPACITY, "no rank gets more rows than there is room for; kernels skip empty rows", "assumed",
             "main 2026-08-22 moe/token_dispatcher.py; a step with more runs twice (PagedStashRunner)"),)
    if not options.get(STASH):
        return made
    return (*made, (STASH, "pages are there from the first step on; copies run beside exchanges of tokens and what "
                    "comes before experts",
                    "assumed", "main 2026-08-22 moe/paged_stash.py: the second step allocates them; copies have a "
                    "stream of their own, for which the next experts wait"))


def _check_factors(job: Job, made: dict[str, Any]) -> None:
    for name, least in ((CAPACITY, 0.0), *((factor, -_MOST) for factor in _FACTORS)):
        value = made.get(name, 1.0)
        if not least <= value <= _MOST or (value == 0 and name != _FACTORS[1]):
            raise InputError(Problem(job.scenario.where("framework_options", name),
                                     f"{name}: expected a factor of at most {_MOST:g}, got {value}"))


def _check_dispatch(job: Job, options: dict[str, object]) -> None:
    key = f"framework_options.{CAPACITY}"
    if options.get("moe_token_dispatcher_type") != "flex" or options.get("moe_flex_dispatcher_backend") != "hybridep":
        raise job.illegal(key, "moe_expert_rank_capacity_factor requires moe_flex_dispatcher_backend to be 'hybridep' "
                          "or 'ncclep'.", f"{_RULE}:1868")
    if job.mesh.ep * job.mesh.etp == 1:
        raise job.illegal(key, "Flex token dispatcher requires TPxEP > 1", "main 2026-08-22 moe/token_dispatcher.py, "
                          "MoEFlexTokenDispatcher")
    if not options.get("use_transformer_engine_op_fuser"):
        raise job.illegal(key, "moe_expert_rank_capacity_factor with the 'hybridep' backend requires "
                          "use_transformer_engine_op_fuser=True or moe_use_grouped_tensor=True.", f"{_RULE}:1876")
    if job.mesh.etp > 1:
        raise job.illegal("mesh.etp", "experts over several tensor parallel ranks are not fused, and have no room of a "
                          "fixed size", "main 2026-08-22 moe/experts.py, _is_fused_impl_supported")


def _check_room(job: Job, factor: float) -> None:
    """Raises NotYet if more rows come than there is room for: upstream then runs the step again, without room."""
    training, mesh = job.scenario.training, job.mesh
    packed = pack_sequences(training)
    tokens = -(-packed.batch * (packed.seq // mesh.cp) // (mesh.tp if training.sequence_parallel is not False else 1))
    for block in _experts(job):
        here = block.num_experts // mesh.ep
        rows = tokens * received_per_token(training.routing, block.top_k, mesh.ep) >> 16
        rows = fused_rows(rows, here)
        if rows > (most := rows_with_room(tokens, block.top_k, factor)):
            raise job.not_yet(f"framework_options.{CAPACITY}", f"{rows} rows of experts, and room for {most}: the "
                              "step runs again without a capacity (PagedStashRunner)")


def _experts(job: Job) -> list[Moe]:
    return [branch.block for kind in job.graph.kinds for branch in kind.branches if isinstance(branch.block, Moe)]


def _check_stash(job: Job) -> None:
    key, training = f"framework_options.{STASH}", job.scenario.training
    if training.method != "full":
        raise job.illegal(key, "Columnwise data is not set for grouped tensor: experts are frozen",
                          "TransformerEngine d0067d0d pytorch/utils.py, mark_grouped_tensor")
    again = training.recompute
    if again != "none" and not (isinstance(again, tuple) and "moe" not in again):
        raise job.not_yet(key, "pages of experts whose layers run again in backward")
    if any(isinstance(kind.block, Mtp) and kind.block.depths > 1 for kind in job.graph.kinds):
        raise job.not_yet(key, "pages of a module of multi-token prediction that runs several times")
