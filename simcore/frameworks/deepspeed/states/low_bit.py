"""States of 8 or 4 bits and paged states of ZeRO's flat parts.

[Note: states of flat parts] DeepSpeed 0.19.6 takes an optimizer that it does not know with
`zero_allow_untested_optimizer` (`runtime/engine.py`, _do_optimizer_sanity_check), which transformers 5.23
(`integrations/deepspeed.py`, deepspeed_optim_sched) and accelerate 1.15 (`accelerator.py`, _prepare_deepspeed) set. It
hands over masters, not parameters: a flat one for each parameter group (stages 1 and 2) or each sub-group (stage 3),
so that a block of 256 values reaches over many parameters, and what is exceptional of a parameter counts for the whole
part: fewer than 4,096 values stay in fp32, fewer than 100,000 are not paged (bitsandbytes 0.50.2 `optim/optimizer.py`,
init_state, get_state_buffer), and torchao quantizes no part whose length is not a multiple of 256 (0.18.0
`optim/adam.py`, _new_buffer). An override for embeddings, which transformers' Trainer registers, finds none of these
masters. With offload_optimizer it refuses such an optimizer (_configure_optimizer), unless
`zero_force_ds_cpu_optimizer` is false; accelerate makes its own DeepSpeedCPUAdam of it (`utils/deepspeed.py`,
map_pytorch_optim_to_deepspeed), with states in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from simcore.frameworks.common.torch import states_of
from simcore.inputs.optimizers import OPTIMIZERS
from simcore.placement.framework import Optimizer
from simcore.placement.job import Job
from simcore.placement.layout import TensorLayout
from simcore.placement.plan import Plan
from simcore.units import dtype_bytes

__all__ = ["StateForm", "beside_tensors_of", "check_states", "flat_layout", "own_optimizer", "state_forms",
           "sub_groups"]

StateForm = tuple[str, str, str]
"""Name, dtype and memory space of a state of each element of a flat part."""
_RULE: Final = "deepspeed 0.19.6 runtime/engine.py _configure_optimizer"


def check_states(job: Job) -> None:
    """Raises IllegalLayout or NotYet for moments that DeepSpeed's stages do not keep, or keep elsewhere."""
    optimizer, framework = job.scenario.training.optimizer, job.scenario.framework
    if optimizer.moments not in ("auto", "fp32", "int8", "int4"):
        raise job.not_yet("training.optimizer.moments", f"{optimizer.moments} under {framework}")
    kept = states_of(job, plain=True)
    if not kept.low_bit:
        return
    if job.scenario.training.offload.part("optimizer")[1]:
        at = "moments" if optimizer.moments in ("int8", "int4") else "paged" if optimizer.paged else "implementation"
        raise job.illegal(f"training.optimizer.{at}", "You are using ZeRO-Offload with a client provided optimizer "
                          f"({kept.low_bit}): either use DeepSpeedCPUAdam, as accelerate does in its place (write "
                          "moments: auto, implementation: cpu)", _RULE)
    for axis in ("tp", "ep"):
        if getattr(job.mesh, axis) > 1:
            raise job.not_yet(f"mesh.{axis}", f"states of {kept.low_bit} under {framework} with {axis}")


def own_optimizer(job: Job) -> Optimizer | None:
    """Returns the kernel of DeepSpeed's own that its configuration names: FusedLion. None for other optimizers.

    NotYet for one whose states are there before its first step (torch's Adagrad): DeepSpeed makes it anew for its
    masters (0.19.6 `stage_1_and_2.py`, `stage3.py`, initialize_optimizer_states), and the states that the first had
    made of whole parameters stay beside.
    """
    optimizer = job.scenario.training.optimizer
    kind = OPTIMIZERS[optimizer.name]
    if kind.is_early:
        raise job.not_yet("training.optimizer.name", f"{optimizer.name} under DeepSpeed on the device, which keeps the "
                          "states of whole parameters in 16 bits beside those of masters (served: offload of the "
                          "optimizer)")
    is_own = "deepspeed" in kind.libraries and "fused" not in kind.forms  # ops/lion/fused_lion.py
    return Optimizer(optimizer.name, "fused") if is_own and optimizer.implementation == "fused" else None


def flat_layout(job: Job, axis: str, stage: int, sub_group: int) -> TensorLayout | None:
    """Returns the layout of one state of a flat part; None where it is fp32 by torch, on the device or the host.

    `axis`: of the ranks that share what is trained; `sub_group`: elements of a sub-group (stage 3).
    """
    kept = states_of(job, plain=True)
    if not kept.low_bit:
        return None
    layout = kept.of((), "fp32")[0][1]
    if layout.blocks is not None:
        layout = replace(layout, blocks=replace(layout.blocks, part=""))
    spaces = {layout.space_of(numel) for numel in _parts(job, axis, stage, sub_group)}
    if len(spaces) > 1:
        raise job.not_yet("training.optimizer.paged", "sub-groups of which some have fewer than 100,000 elements, "
                          "and are not paged (sub_group_size)")
    return replace(layout, space=max(spaces, default="device"), least_away=0)


def state_forms(job: Job, layout: TensorLayout | None) -> tuple[StateForm, ...]:
    """Returns the states of an element beside its master. `layout`: as `flat_layout` returns it."""
    kept = replace(states_of(job, plain=True), paged=False)
    if job.scenario.training.offload.part("optimizer")[1]:
        return tuple((name, "fp32", "") for name in OPTIMIZERS[kept.name].host_states)
    dtype, space = ("fp32", "device") if layout is None else (layout.dtype, layout.space)
    return tuple((name, dtype, "" if space == "device" else space) for name, _ in kept.of((), "fp32", flat=True))


def _parts(job: Job, axis: str, stage: int, sub_group: int) -> list[int]:
    """Elements of the rank's flat parts, before anything is placed: no matrices are shared here."""
    ranks = job.mesh.axis(axis).size
    sizes = [numel for layer in job.graph.layers for spec in job.graph.tensors[layer.kind]
             if spec.trainable and spec.is_owned for numel in [spec.numel // spec.copies] * spec.copies]
    if stage < 3:
        return [-(-sum(sizes) // (2 * ranks)) * 2]
    return list(sub_groups([-(-numel // ranks) for numel in sizes], sub_group))


def sub_groups(parts: Sequence[int], size: int) -> Iterator[int]:
    """Yields the elements of each sub-group of the optimizer, from those of the parameters (`parts`).

    A sub-group is closed when it has reached `size` elements, with a size of 0 by each parameter
    (`_create_fp16_sub_groups`).
    """
    filled = 0
    for part in parts:
        filled += part
        if filled >= size:
            yield filled
            filled = 0
    if filled:
        yield filled


def beside_tensors_of(plan: Plan, moments: TensorLayout | None, parts: Sequence[int]) -> dict[str, int]:
    """Returns the bytes on the device of the rank's flat states, by name, beyond those that its tensors count.

    They are alignment, scales, and what a part that stays in fp32 takes more. `moments`: layout of a state of a part;
    `parts`: elements of each.
    """
    found = {}
    for name, layout in _states(plan):
        counted = sum(count * plan.kinds[kind].state_bytes.get(name, 0) for kind, count in plan.kind_counts)
        own = moments if name != "master_param" else None
        found[name] = sum(_on_device(own or layout, numel) for numel in parts) - counted
    return found


def _on_device(layout: TensorLayout, numel: int) -> int:
    away = layout.space != "device"
    if layout.blocks is None:
        return 0 if away else numel * dtype_bytes(layout.dtype)
    return replace(layout.blocks, part="scales" if away else "").num_bytes(numel, layout.dtype)


def _states(plan: Plan) -> tuple[tuple[str, TensorLayout], ...]:
    policies = (p.policy for kind, _ in plan.kind_counts for p in plan.kinds[kind] if p.trainable)
    return next((policy.optimizer_states for policy in policies), ())
