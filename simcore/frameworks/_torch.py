"""What tables around plain PyTorch share: defaults of a trainer, optimizers, and checkpointing of whole layers."""

from __future__ import annotations

from dataclasses import dataclass

from simcore.framework import Optimizer
from simcore.job import Job

__all__ = ["Defaults", "all_or_no_checkpoint", "refuse_virtual_stages", "torch_optimizer"]


Sourced = tuple[str, str]
"""A value, and where it stands."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the trainer around a model's code sets where a scenario does not. "compute": the type of the products.

    `stored`: parameters at rest; `reduce`: gradients while they are reduced; `sync`: after which microbatches.
    `root_resharded`: whether a root unit that wraps all but the layers reshards after forward; `last_follows`: whether
    a unit of norm and head does what `reshard_after_forward: true` says. `reshard`: the default in words.
    `loss_inside`: the model itself computes the loss, so the root's hooks run around it.
    """

    stored: Sourced
    reduce: Sourced
    optimizer: Sourced
    loss: Sourced
    wrap: str
    sync: str
    root_resharded: bool
    last_follows: bool
    loss_inside: bool
    reshard: Sourced


def torch_optimizer(job: Job, source: str, default: str = "foreach") -> Optimizer:
    """`torch.optim`, by default of the framework's kind (`source` says where); SGD has no temporaries, as if fused."""
    optimizer, framework = job.scenario.training.optimizer, job.scenario.framework
    if optimizer.name not in ("adamw", "adam", "sgd"):
        raise job.not_yet("training.optimizer.name", f"{optimizer.name} under {framework}")
    if optimizer.implementation not in ("auto", "foreach", "fused", "for_loop"):
        raise job.not_yet("training.optimizer.implementation", f"{optimizer.implementation} under {framework}")
    kind = job.auto("training.optimizer.implementation", optimizer.implementation, default, source)
    return Optimizer(optimizer.name, "fused" if optimizer.name == "sgd" else kind)


def all_or_no_checkpoint(job: Job) -> str:
    """`none` or `full`: every layer whole, or none."""
    recompute = job.scenario.training.recompute
    if recompute in ("none", "full"):
        return str(recompute)
    raise job.not_yet("training.recompute", f"selective checkpointing under {job.scenario.framework}")


def refuse_virtual_stages(job: Job) -> None:
    """NotYet: torch has such schedules, with FSDP2 units of several stages on a rank."""
    if job.scenario.training.pipeline.virtual_stages > 1:
        raise job.not_yet("training.pipeline.virtual_stages", f"virtual stages under {job.scenario.framework}")
