"""User buffers of TransformerEngine under tp_comm_overlap: their size, and formats that they cannot hold."""

from __future__ import annotations

from simcore.frameworks.megatron.fp8 import Fp8
from simcore.placement.job import Job

__all__ = ["check_user_buffers", "user_buffer_bytes"]


def check_user_buffers(job: Job, options: dict[str, object], made: Fp8 | None) -> None:
    """Raises IllegalLayout if tp_comm_overlap is on with a block recipe (blockwise, nvfp4).

    TransformerEngine's user buffers cannot gather those formats.
    """
    if made and options.get("tp_comm_overlap") and made.scaling.recipe in ("blockwise", "nvfp4"):
        raise job.illegal("framework_options.tp_comm_overlap", f"Unsupported quantizer for Userbuffers: "
                          f"{job.narrow}_recipe {made.scaling.recipe}", "TransformerEngine 2.18 pytorch/module/base.py")


def user_buffer_bytes(made: Fp8 | None) -> int:
    """Returns the bytes of TE's user buffers for each element of a layer's input.

    Six for gathers, in fp8 where layers are; four bf16 for sums. Layers in bf16, if others are in fp8, have a second
    set (Bridge 0.3.1 `training/initialize.py`, quantization_modes).
    """
    plain = 2 * (6 + 4)
    return plain if made is None else 6 + 2 * 4 + plain * bool(made.start or made.end)
