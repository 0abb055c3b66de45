"""Records of where GaLore and APOLLO run or stop, which a framework's table hands over with its optimizer.

Measured by `tests/truth/probe_low_rank_sharded.py`. Where they run and are not described, they are not yet served.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simcore.placement.job import Job

__all__ = ["APART", "NOT_SERVED", "OF_DTENSORS", "OF_FLAT_UNITS", "OF_ZERO", "SERVED", "LowRankUse", "check_layerwise"]

_AT: Final = "galore-torch 1.0 galore_projector.py project, apollo-torch 1.0.3 apollo.py step"
_SETUP: Final = "transformers 5.23 trainer_optimizer.py _setup_low_rank_optimizer"
_FLAT: Final = ("IndexError: tuple index out of range: a projector needs rows and columns, and the optimizer sees "
                "parts of flat parameters, which have one dimension")


@dataclass(frozen=True, slots=True)
class LowRankUse:
    """Use of optimizers that project gradients over the parameters of a framework: it stops, runs, or is not served.

    `stops`: (upstream's words, their place) at which it stops; () where it does not. `only_drawn`: only with projectors
    that are drawn, as APOLLO's are by default. `is_served`: its step is described.
    """

    stops: tuple[str, str] | tuple[()] = ()
    only_drawn: bool = False
    is_served: bool = False

    def check(self, job: Job, *, is_drawn: bool) -> None:
        """Raises IllegalLayout where upstream stops, NotYet where it runs and is not served."""
        at, optimizer = "training.optimizer.name", job.scenario.training.optimizer.name
        if self.stops and (is_drawn or not self.only_drawn):
            words, rule = self.stops
            raise job.illegal(at, f"{optimizer}: {words}", rule)
        if not self.is_served:
            job.one_of(at, job.scenario.framework, ("ddp", "zero0"))


SERVED: Final = LowRankUse(is_served=True)
NOT_SERVED: Final = LowRankUse()
OF_ZERO: Final = LowRankUse((_FLAT, f"{_AT}; deepspeed 0.19.6 runtime/zero/stage_1_and_2.py, stage3.py; LLaMA-Factory "
                             "ff6d4d12 hparams/parser.py: GaLore and APOLLO are incompatible with DeepSpeed yet"))
"""Parts of flat masters."""
OF_FLAT_UNITS: Final = LowRankUse((_FLAT, f"{_AT}; torch 2.13 distributed/fsdp/_flat_param.py"))
"""Parts of FSDP 1's flat parameters."""
OF_DTENSORS: Final = LowRankUse((
    "RuntimeError: aten.mm.default got mixed torch.Tensor and DTensor: the drawn matrix is a plain tensor",
    "apollo-torch 1.0.3 random_projector.py stable_randn; torch 2.13 distributed/tensor/_dispatch.py"), only_drawn=True)
"""Shards of FSDP 2."""
APART: Final = LowRankUse((
    "KeyError: 'seed': each parameter's seed stays with the one that DeepSpeed's fp32 copy takes the place of",
    "apollo-torch 1.0.3 apollo.py __init__; deepspeed 0.19.6 runtime/bf16_optimizer.py, fp16/unfused_optimizer.py"),
    only_drawn=True, is_served=True)
"""Masters in fp32 of whole parameters in 16 bits."""


def check_layerwise(job: Job) -> None:
    """Raises an error if an optimizer that projects gradients cannot run inside backward.

    Each tensor has one of its own there: transformers and LLaMA-Factory call it layer-wise.
    """
    at, name = "framework_options.optimizer_in_bwd", job.scenario.training.optimizer.name
    if job.mesh.dp_replicate > 1:
        raise job.illegal(at, f"Layer-wise {name} does not support DDP at this time", _SETUP)
    if job.scenario.num_microbatches > 1:
        raise job.illegal(at, f"Layerwise {name} does not support gradient accumulation!", _SETUP)
