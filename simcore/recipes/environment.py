"""Variables of the environment that a launch script exports, and what becomes of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from simcore.errors import Problem
from simcore.inputs.document import Document
from simcore.recipes.imported import Decided, Imported, Left, Origin, overruled
from simcore.recipes.rows import Idle

__all__ = ["VARIABLES", "with_environment"]

VARIABLES: Final = (
    Idle(("NCCL_*", "UB_*", "TORCH_NCCL_*", "GLOO_*", "UCX_*", "NVSHMEM_*"), "how NCCL works"),
    Idle(("CUDA_*", "OMP_*", "PYTHON*", "TORCHINDUCTOR_*", "TRITON_*", "TOKENIZERS_*", "HF_*",
         "TRANSFORMERS_*", "WANDB_*", "SKIP_*", "NON_DETERMINSTIC_RESULTS", "ENABLE_*", "RUN_*", "N_REPEAT"),
        "queues, caches, logs and tests"),
    Idle(("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "RANK", "LOCAL_RANK", "RDZV_*", "HEAD_*", "FI_*", "LD_*", "PATH",
          "IBV_*", "MLX5_*"), "how ranks find each other, and libraries"),
    Idle(("NVTE_*",), "choices between kernels that attention_backend and the options say"),
)
"""Variables of the environment on which nothing depends that is simulated."""
_OF_LAUNCHERS: Final = frozenset({"NNODES", "NPROC_PER_NODE", "FORCE_TORCHRUN", "OPTIM_TORCH", "CUDA_VISIBLE_DEVICES"})
"""Variables by which llamafactory-cli starts ranks."""
_ACCELERATE: Final = ("ACCELERATE_USE_*", "ACCELERATE_MIXED_PRECISION", "ACCELERATE_DYNAMO_*", "FSDP_*",
                      "ACCELERATE_GRADIENT_ACCUMULATION_STEPS")
_CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"
_ALLOCATOR: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def with_environment(imported: Imported, variables: Sequence[tuple[str, str, str]]) -> Imported:
    """Copy of an imported recipe with the variables (name, value, place) of its launch script.

    They go before what the recipe itself sets (Megatron-Bridge 067f987d training/config.py:1984).
    """
    document, left = Document(imported.path, dict(imported.values)), list[Left]()
    for name, value, where in variables:
        if name not in (_CUBLAS, *_ALLOCATOR):
            imported = _with_other(imported, name, value, where)
            continue
        key = ("environment", "cublas_workspace_config" if name == _CUBLAS else "expandable_segments")
        settings = dict(part.partition(":")[::2] for part in value.split(","))
        is_expandable = settings.pop("expandable_segments", "").lower() == "true"
        goes_before = imported.values.get("environment", {}).get("expandable_segments", False)
        if name == _CUBLAS or is_expandable or goes_before:
            document = document.with_value(key, value if name == _CUBLAS else is_expandable, where)
            imported = overruled(imported, key, f"{name} of the launch goes before it ({where})")
            imported = replace(imported, origins={**imported.origins, key: Origin("recipe", where, name)})
        if name != _CUBLAS and settings:
            left.append(Left("not modelled", where, name, value, "settings of the allocator other than "
                                                                 "expandable_segments"))
    return replace(imported, values=document.data, left=(*imported.left, *left))


def _with_other(imported: Imported, name: str, value: str, where: str) -> Imported:
    """Copy with a variable that changes no memory in a list; accelerate's own, which change all, are refused."""
    told = {*(one.key for one in imported.left), *(one.key for one in imported.decides)}
    if name in told or any(f"{name}:" in problem.message for problem in (*imported.wrong, *imported.refused)):
        return imported
    if any(fnmatchcase(name, pattern) for pattern in _ACCELERATE):
        problem = Problem(where, f"not yet: {name}: settings of accelerate by a variable")
        return replace(imported, refused=(*imported.refused, problem))
    if name in _OF_LAUNCHERS:
        one = Decided(where, name, value, why="which ranks the launcher starts, and how")
        return replace(imported, decides=(*imported.decides, one))
    row = next((row for row in VARIABLES if any(fnmatchcase(name, pattern) for pattern in row.keys)), None)
    left = Left("no effect", where, name, value, row.why if row else "nothing that is simulated reads it")
    return replace(imported, left=(*imported.left, left))
