"""Variables that a recipe sets for its workers and its engine (`env_vars`), and what becomes of each.

NeMo RL 7ea279ab; vLLM 0.25.1 `envs.py` for those whose names begin with VLLM.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Unmodelled, read_rows

__all__ = ["read_environment", "read_variables"]

_ALLOCATOR: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"

_VARIABLES: Final[tuple[Idle | Unmodelled, ...]] = (
    Unmodelled(("VLLM_USE_FLASHINFER_MOE_FP16", "VLLM_USE_FLASHINFER_MOE_FP8", "VLLM_USE_DEEP_GEMM",
                "VLLM_MOE_USE_DEEP_GEMM", "VLLM_ATTENTION_BACKEND"), "kernels of the engine are not told apart"),
    Unmodelled(("VLLM_FLASHINFER_ALLREDUCE_BACKEND", "VLLM_ALLREDUCE_USE_SYMM_MEM"),
               "ways and buffers of the engine's sums are those of its own choice"),
    Idle(("VLLM_USE_RAY_V2_EXECUTOR_BACKEND", "VLLM_RAY_DP_PACK_STRATEGY"), "how the engine's ranks are started"),
    Unmodelled(("NCCL_ALGO", "NCCL_PROTO", "NCCL_MNNVL_ENABLE"),
               "ways and buffers of exchanges: rates and buffers are those of NCCL's own choice"),
    Unmodelled(("NRL_REFIT_BUFFER_MEMORY_RATIO", "NRL_REFIT_NUM_BUFFERS"), "buffers through which weights go to "
               "engines on GPUs of their own (utils/packed_tensor.py:25): two, of 2% of the device each"),
    Unmodelled(("NVTE_FP8_BLOCK_SCALING_FP32_SCALES",), "scales of fp8 in blocks that are no powers of two (TE "
               "docs/envvars.rst): they are of the same size"),
    Idle(("TORCH_CUDA_ARCH_LIST",), "for which devices code is compiled, before the first step"),
    Unmodelled(("*",), "a variable that this reader does not know"),
)
"""Variables that recipes set, each with what it does; the first row that names one decides."""


def read_environment(reader: Reader, draft: Draft, block: str) -> None:
    """Reads the variables of the workers that `block` describes."""
    for name in _ALLOCATOR:
        said = reader.text(f"{block}.env_vars.{name}")
        settings = {part.partition(":")[0]: part.partition(":")[2].lower() for part in said.value.split(",")
                    if part} if said else {}
        grows = settings.pop("expandable_segments", "") == "true"
        if settings:
            draft.unmodelled(said, "settings of the allocator other than expandable_segments")
            if grows:
                draft.infer("environment.expandable_segments", value=True, rule=f"{name} says so",
                            where=said.where if said else "")
        elif grows:
            draft.put("environment.expandable_segments", said, value=True)
        else:
            draft.idle(said, "the default")
    draft.put("environment.cublas_workspace_config", reader.text(f"{block}.env_vars.{_CUBLAS}"))
    read_variables(reader, draft, block)


def read_variables(reader: Reader, draft: Draft, block: str) -> None:
    """Lists the variables of `block` that no key of a scenario says."""
    read_rows(reader, draft, [replace(row, keys=tuple(f"{block}.env_vars.{name}" for name in row.keys))
                              for row in _VARIABLES])
