"""The optimizer's step of one parameter: its bytes and operations, and whether it runs inside backward.

[Note: optimizer in backward] torch's `Tensor.register_post_accumulate_grad_hook`: one optimizer a parameter, whose hook
steps and drops the gradient (torchtune bd2a0fc7 `training/memory.py`, register_optim_in_bwd_hooks). Of a plain
parameter autograd calls it when AccumulateGrad has run (`UpdateTime.GRADIENT_READY`: the tape frees the gradient); of
one that FSDP2 shards, FSDP2 does when the unit's gradients are reduced (torch 2.13 `_fsdp_collectives.py`,
foreach_reduce; `UpdateTime.AFTER_REDUCE`: the hooks free them).
"""

from __future__ import annotations

from simcore.inputs.optimizers import OPTIMIZERS, SIZING_STATES
from simcore.placement.framework import UpdateTime
from simcore.placement.plan import Placed, Plan
from simcore.recording.rows import Step
from simcore.units import dtype_bytes

__all__ = ["is_updated_in_backward", "made_after_backward", "moment_dtype", "step_of"]


def is_updated_in_backward(placed: Placed) -> bool:
    """True if the optimizer updates this tensor inside backward, before `optimizer.step()`."""
    return placed.trainable and placed.policy.updated in (UpdateTime.GRADIENT_READY, UpdateTime.AFTER_REDUCE)


def made_after_backward(plan: Plan) -> int:
    """Returns the bytes of optimizer states on the rank of `plan` that the first step allocates after its backward.

    The memory peak of the first backward is lower than those of later steps by these bytes. 0 if any tensor of the
    model is updated inside backward, or if states are made with the optimizer.
    """
    if any(is_updated_in_backward(placed) for kind in plan.kinds for placed in kind):
        return 0  # an upper bound of that peak: they are made one by one
    return 0 if OPTIMIZERS[plan.framework.optimizer.name].is_early else plan.born_in_step()


def step_of(placed: Placed, implementation: str) -> Step:
    """Returns the step of this rank's part of one parameter, Adam's but for policies with `step_alone`.

    Temporary bytes, FLOPs and bytes moved. `implementation`: as in `Optimizer`. Temporaries (torch 2.13
    `optim/adam.py`): with foreach the square root of the second moment; with for_loop a quotient of the same size too;
    none in fused kernels and in those of 8-bit states.
    """
    if placed.policy.step_alone is not None:
        return placed.policy.step_alone(placed.used_shape)
    size = placed.local * dtype_bytes(moment_dtype(placed))
    held = {"foreach": size, "for_loop": 2 * size}.get(implementation, 0)
    return Step(held, 12 * placed.local,
                3 * placed.state_bytes // 2 + 3 * placed.local * dtype_bytes(placed.policy.grad.dtype))


def moment_dtype(placed: Placed) -> str:
    """Returns the dtype of the state that a step holds copies of; without one, of its master or itself at rest."""
    states = dict(placed.policy.optimizer_states)
    sizing = next((name for name in states if name in SIZING_STATES), "master_param")
    return states[sizing].dtype if sizing in states else placed.policy.at_rest.dtype
