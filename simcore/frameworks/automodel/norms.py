"""Norms under NeMo Automodel: `BackendConfig.rms_norm`, of its own layers alone.

[Note: kernels of norms]
0.7.0 `components/models/common/utils.py`, initialize_rms_norm_module. `torch_fp32`, the default, is a custom operator
whose kernels a compiler does not fuse: it casts its input to fp32, writes the norm in fp32 and casts that back; it
keeps the input and the weight. TransformerEngine's, torch's and Quack's are one kernel each, which keeps the inverse
root of each row too (torch 2.13 `_fused_rms_norm`; TransformerEngine `module/rmsnorm.py`; quack-kernels `rmsnorm.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from simcore.operators.automodel.options import AutomodelOptions
from simcore.operators.automodel.sparse import QWEN3_5
from simcore.placement.job import Draft

__all__ = ["NORM_NAME", "NORM_OPTIONS", "OWN_NORMS", "with_norms"]

NORM_NAME: Final = "backend.rms_norm"
NORM_OPTIONS: Final[dict[str, Any]] = {NORM_NAME: ("torch_fp32", "te", "torch", "quack")}
OWN_NORMS: Final = ("qwen3", *QWEN3_5)
"""Decoders whose norms are transformers', or their own, whatever is asked (`models/{qwen3,qwen3_5_moe}/model.py`)."""


def with_norms(job: Draft, options: dict[str, object], layers: AutomodelOptions) -> AutomodelOptions:
    """Options of the layers with the norm that is asked for; InputError where that changes nothing."""
    if job.graph.architecture.decoder in OWN_NORMS:
        job.refuse_idle(options, NORM_NAME, f"in Automodel's {job.graph.architecture.decoder}, whose norms are its own")
    if not layers.wide_norms:
        job.refuse_idle(options, NORM_NAME, "before 0.7.0, whose norms keep the same tensors")
    if options.get(NORM_NAME, "torch_fp32") == "torch_fp32":
        return layers
    return replace(layers, wide_norms=False, keeps_norm_rstd=True)
