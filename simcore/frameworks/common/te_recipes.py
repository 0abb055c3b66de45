"""Devices on which TransformerEngine runs a recipe of 8 or 4 bits, and copies of weights that outlast a pass.

TransformerEngine 2.18 `pytorch/quantization.py`, `pytorch/utils.py`; 2.15 has the same rules.
"""

from __future__ import annotations

from simcore.placement.job import Job
from simcore.recording.number_formats import Scaling

__all__ = ["check_device", "scaling_of", "weight_copies"]

_RULE = "TransformerEngine 2.18 pytorch/quantization.py"


def scaling_of(job: Job, recipe: str) -> Scaling:
    """Returns the recipe as the job's GPUs run it: whether products read 8 bits along rows alone."""
    have = job.compute_capability
    return Scaling(recipe, not ((10, 0) <= have < (12, 0) or have >= (13, 0)))  # is_non_tn_fp8_gemm_supported


def check_device(job: Job, recipe: str) -> None:
    """Raises IllegalLayout for GPUs without the recipe: check_fp8_support, check_mxfp8_support, check_nvfp4_support."""
    have = job.compute_capability
    need = (10, 0) if recipe in ("mxfp8", "nvfp4") else (9, 0) if recipe == "blockwise" else (8, 9)
    if have < need:
        raise job.illegal("training.precision.compute", f"{job.narrow} by {recipe}: device compute capability "
                          f"{need[0]}.{need[1]} or higher required, the topology has {'.'.join(map(str, have))}", _RULE)
    if recipe == "mxfp8" and have >= (12, 0):
        raise job.illegal("training.precision.compute", "MXFP8 (for all gemm layouts) is not supported on 12.0+ "
                          "architectures yet", _RULE)


def weight_copies(scaling: Scaling, out_features: int, in_features: int) -> tuple[int, int]:
    """Bytes of a weight's quantised copies, scales included: (along rows, along columns; 0 where it needs none)."""
    rows = scaling.copy_bytes(out_features, in_features, squares=True)
    columns = scaling.copy_bytes(out_features, in_features, along_columns=True, squares=True)
    return rows, columns if scaling.has_columns else 0
