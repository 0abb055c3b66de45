"""Whose kernels torch runs, which time alone knows: of attention, and whether something compiles its operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from simcore.job import Job
from simcore.libraries import Libraries

__all__ = ["SDPA_BACKENDS", "torch_libraries"]

SDPA_BACKENDS: Final = ("cudnn", "flash")
"""Values of the option `sdpa_backend`, torch's SDPBackend in small letters."""
_RULE: Final = ("torch 2.13 ATen/native/transformers/cuda/sdp_utils.cpp, check_prefer_cudnn_attention: on compute "
                "capability 9.0 and 10.0 with cuDNN 9.15.1 or later; else flash-attention 2")


def torch_libraries(job: Job, options: Mapping[str, Any]) -> Libraries:
    """Torch's own linears and operators, and the attention that it chooses where a scenario does not."""
    return Libraries(attention=_attention(job, options), eager=not options.get("compile"))


def _attention(job: Job, options: Mapping[str, Any]) -> str:
    if job.graph.implementation == "llmfoundry":  # models/mpt/configuration_mpt.py: attn_impl triton
        return "attention_flash2" if options.get("attn_impl") == "flash" else "attention_triton"
    given = str(options.get("attn_implementation", ""))
    if given.startswith(("fl", "kernels")):  # flash-attention 2 or FlexAttention, or flash-attention 3 from the hub
        return "attention_flash2" if given.startswith("fl") else "attention"
    default = "cudnn" if job.compute_capability in ((9, 0), (10, 0)) else "flash"
    backend = job.auto("framework_options.sdpa_backend", str(options.get("sdpa_backend") or "auto"), default, _RULE)
    return "attention" if backend == "cudnn" else "attention_flash2"
