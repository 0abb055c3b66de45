"""Frameworks under which GaLore and APOLLO stop, each with the rule, see `tests/truth/probe_low_rank_sharded.py`.

Where they run and are not described, they are not yet served.
"""

from __future__ import annotations

from typing import Final

from simcore.placement.job import Job

__all__ = ["check_framework", "check_layerwise"]

_FLAT: Final = ("IndexError: tuple index out of range: a projector needs rows and columns, and the optimizer sees "
                "parts of flat parameters, which have one dimension")
_AT: Final = "galore-torch 1.0 galore_projector.py project, apollo-torch 1.0.3 apollo.py step"
_ZERO: Final = (f"{_AT}; deepspeed 0.19.6 runtime/zero/stage_1_and_2.py, stage3.py; LLaMA-Factory ff6d4d12 "
                "hparams/parser.py: GaLore and APOLLO are incompatible with DeepSpeed yet")
_SETUP: Final = "transformers 5.23 trainer_optimizer.py _setup_low_rank_optimizer"
_DTENSOR: Final = "RuntimeError: aten.mm.default got mixed torch.Tensor and DTensor: the drawn matrix is a plain tensor"


def check_framework(job: Job, *, is_random: bool) -> None:
    """Raises an error for a job whose optimizer projects gradients, unless its framework's parameters are whole.

    `is_random`: projectors are drawn.
    """
    at, name, framework = "training.optimizer.name", job.scenario.training.optimizer.name, job.scenario.framework
    if framework in ("zero1", "zero2", "zero3"):
        raise job.illegal(at, f"{name}: {_FLAT}", _ZERO)
    if framework == "fsdp1" and job.mesh.dp_shard > 1 and job.scenario.framework_options.get(
            "sharding_strategy") != "NO_SHARD":
        raise job.illegal(at, f"{name}: {_FLAT}", f"{_AT}; torch 2.13 distributed/fsdp/_flat_param.py")
    if framework == "fsdp2" and is_random:
        raise job.illegal(at, f"{name}: {_DTENSOR}", "apollo-torch 1.0.3 random_projector.py stable_randn; torch 2.13 "
                          "distributed/tensor/_dispatch.py")
    if framework == "zero0" and is_random and job.compute == "bf16":
        raise job.illegal(at, f"{name}: KeyError: 'seed': each parameter's seed stays with the one that DeepSpeed's "
                          "fp32 copy takes the place of", "apollo-torch 1.0.3 apollo.py __init__; deepspeed 0.19.6 "
                          "runtime/bf16_optimizer.py, fp16/unfused_optimizer.py")
    job.one_of(at, framework, ("ddp",))


def check_layerwise(job: Job) -> None:
    """Raises an error if an optimizer that projects gradients cannot run inside backward.

    Each tensor has one of its own there: transformers and LLaMA-Factory call it layer-wise.
    """
    at, name = "framework_options.optimizer_in_bwd", job.scenario.training.optimizer.name
    if job.mesh.dp_replicate > 1:
        raise job.illegal(at, f"Layer-wise {name} does not support DDP at this time", _SETUP)
    if job.scenario.num_microbatches > 1:
        raise job.illegal(at, f"Layerwise {name} does not support gradient accumulation!", _SETUP)
