"""Variables of the environment that a launch script exports, and what becomes of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final, Literal

from simcore.errors import Problem
from simcore.inputs.document import Document
from simcore.recipes.imported import Decided, Imported, Left, Origin, overruled
from simcore.recipes.rows import Idle, Unmodelled

__all__ = ["SETTINGS", "row_of", "with_environment"]

SETTINGS: Final[tuple[Idle | Unmodelled, ...]] = (
    Unmodelled(("CUDA_DEVICE_MAX_CONNECTIONS",), "queues that streams share, by which an exchange may wait for a "
               "product (docs/performance-guide.md:219): streams are taken to run beside each other"),
    Unmodelled(("NVTE_*_LAYERNORM_SM_MARGIN",), "multiprocessors that norms leave to exchanges (TE "
               "pytorch/module/layernorm_linear.py:1589): norms are timed on all of them"),
    Unmodelled(("NVTE_NORM_*_USE_CUDNN",), "norms by cuDNN (TE common/normalization/common.cpp:556): time and "
               "workspace are those of TE's own kernels"),
    Unmodelled(("NVTE_USE_FAST_MATH",), "faster, less exact casts (TE pytorch/csrc/extensions/cast.cpp:187)"),
    Unmodelled(("NVTE_DPA_FP8_RECIPE",), "a recipe of its own for fp8 within attention (TE docs/envvars.rst:253)"),
    Unmodelled(("CUDNNFE_CLUSTER_OVERLAP_MARGIN",), "multiprocessors that cuDNN's grouped products leave to other "
               "kernels (perf_recipes alone name it)"),
    Unmodelled(("NCCL_NVLS_ENABLE",), "whether NCCL reduces in the switch, and its buffers for that (Megatron-LM "
               "core/transformer/moe/README.md:142): rates and buffers are those of NCCL's own choice"),
    Unmodelled(("NCCL_CTA_POLICY", "NCCL_P2P_NET_CHUNKSIZE"), "multiprocessors and pieces of NCCL's exchanges "
               "(scripts/performance/utils/overrides.py:295, :301): rates are those of its own choice"),
    Unmodelled(("TORCH_NCCL_HIGH_PRIORITY",), "exchanges go before products that wait for multiprocessors "
               "(docs/recipe-usage.md:327): both run at their rates"),
    Idle(("NCCL_GRAPH_REGISTER",), "whether buffers of captured exchanges are registered: 0 where segments expand "
         "(Megatron-LM core/transformer/cuda_graphs.py:2195), as simulated"),
    Idle(("TORCH_NCCL_AVOID_RECORD_STREAMS",), "PyTorch has had no other way since 2.8 (ProcessGroupNCCL.cpp calls "
         "the variable deprecated), as simulated"),
    Idle(("NCCL_IGNORE_CPU_AFFINITY",), "threads of NCCL on the host"),
)
"""Variables that recipes set too, each with what it does (Megatron-Bridge 067f987d where no other project is named)."""
_VARIABLES: Final[tuple[Idle | Unmodelled, ...]] = (
    *SETTINGS,
    Unmodelled(("NCCL_ALGO", "NCCL_PROTO", "NCCL_*BUFFSIZE", "NCCL_NVLS_*", "NCCL_*NCHANNELS*", "NCCL_*CTAS",
                "NCCL_NTHREADS", "NCCL_CUMEM_*", "NCCL_P2P_*", "NCCL_SHM_*", "NCCL_NET_GDR_*", "NCCL_IB_DISABLE",
                "NCCL_MNNVL_*", "NCCL_COLLNET_*", "TORCH_NCCL_USE_TENSOR_REGISTER_*", "UB_*"),
               "ways and buffers of exchanges: rates and buffers are those of NCCL's own choice"),
    Unmodelled(("NVTE_FUSED_ATTN*", "NVTE_FLASH_ATTN", "NVTE_UNFUSED_ATTN"),
               "which kernel computes attention: it is the one that attention_backend says"),
    Unmodelled(("NVTE_ALLOW_NONDETERMINISTIC_ALGO",), "kernels that repeat bit by bit (TE docs/envvars.rst:205): time "
               "and workspace are those of the others"),
    Idle(("NVTE_DEBUG*",), "messages"),
    Idle(("NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE",), "which states of checkpoints may be read, before the first step"),
    Unmodelled(("NVTE_*",), "a choice within TransformerEngine: its own is simulated"),
    Unmodelled(("CUDA_LAUNCH_BLOCKING",), "a host that waits for every kernel: it is taken to run ahead"),
    Unmodelled(("PYTORCH_*", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32*"), "settings of PyTorch that are not followed"),
    Unmodelled(("OMP_*", "MKL_*"), "threads of the host's own work, whose rate is that of the topology"),
    Idle(("NCCL_DEBUG*", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT", "NCCL_IB_GID_*",
          "NCCL_IB_SL", "NCCL_IB_TC", "NCCL_IB_PCI_*", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_OOB_*",
          "NCCL_BLOCKING_WAIT",
          "NCCL_ASYNC_ERROR_HANDLING", "NCCL_TIMEOUT", "NCCL_SET_*", "NCCL_CHECK*", "NCCL_TOPO_*", "NCCL_CONF_FILE",
          "NCCL_HOME", "NCCL_VERSION", "NCCL_LAUNCH_MODE", "TORCH_NCCL_*", "GLOO_*", "UCX_*", "NVSHMEM_*"),
         "messages, waits and network devices of exchanges, whose links the topology has"),
    Unmodelled(("NCCL_*",), "ways and buffers of exchanges: rates and buffers are those of NCCL's own choice"),
    Unmodelled(("NUM_OF_HYBRID_EP_RANKS_*", "NVLINK_DOMAIN_SIZE", "USE_MNNVL", "NUM_OF_TOKENS_PER_CHUNK_*"),
               "ranks of an NVLink domain and pieces of HybridEP's exchanges, which alone reads it: links are those of "
               "the topology, buffers of the order of DeepEP's"),
    Unmodelled(("MAMBA_DETERMINISTIC", "CAUSAL_CONV1D_DETERMINISTIC"), "kernels of Mamba that repeat bit by bit "
               "(Megatron-LM docs/user-guide/deterministic-training.md:33): time and workspace are those of others"),
    Unmodelled(("TORCHDYNAMO_DISABLE",), "functions that torch.compile would fuse run kernel by kernel: they are "
               "counted as fused"),
    Unmodelled(("CUDA_MODULE_LOADING",),
            "whether kernels are loaded at the start: the context is as large as when they "
               "are loaded as they come"),
    Unmodelled(("CUBLAS*", "CUDNN*", "TORCH_CUDNN_*", "TORCH_BLAS_*", "TORCH_LINALG_*", "FLASH_ATTENTION_*",
                "TORCHINDUCTOR_MAX_AUTOTUNE*", "TORCH_COMPILE_*"),
                "choices of kernels: they are timed as the usual ones"),
    Idle(("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH", "CUDA_CACHE_*", "CUDA_VERSION",
          "CUDA_ARCH*", "PYTHON*", "TORCHINDUCTOR_*", "TRITON_*", "TOKENIZERS_*", "HF_*",
         "TRANSFORMERS_*", "WANDB_*", "SKIP_*", "NON_DETERMINSTIC_RESULTS", "ENABLE_*", "RUN_*", "N_REPEAT"),
        "devices, caches, logs and tests"),
    Unmodelled(("CUDA_*",), "a setting of CUDA that is not followed"),
    Idle(("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "RANK", "LOCAL_RANK", "RDZV_*", "HEAD_*", "FI_*", "LD_*", "PATH",
          "IBV_*", "MLX5_*"), "how ranks find each other, and libraries"),
)
"""Variables of the environment that no key of a scenario says; the first row that names one decides."""
_EMPTY: Final = Idle(("*",), "set to nothing, as without it")
_DEFAULTS: Final = {"NVTE_ALLOW_NONDETERMINISTIC_ALGO": "1"}
"""Value of a variable that is not set (Megatron-LM d98e8a64 core/extensions/transformer_engine.py:2156)."""
_OTHER: Final = Idle(("*",), "nothing that is simulated reads it")
_OF_LAUNCHERS: Final = frozenset({"NNODES", "NPROC_PER_NODE", "FORCE_TORCHRUN", "OPTIM_TORCH", "CUDA_VISIBLE_DEVICES"})
"""Variables by which llamafactory-cli starts ranks."""
_ACCELERATE: Final = ("ACCELERATE_USE_*", "ACCELERATE_MIXED_PRECISION", "ACCELERATE_DYNAMO_*", "FSDP_*",
                      "ACCELERATE_GRADIENT_ACCUMULATION_STEPS")
_PROGRAM: Final = re.compile(r"\brun_(?:sft|dpo|grpo)\w*\.py\b")
_CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"
_ALLOCATOR: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def with_environment(imported: Imported, variables: Sequence[tuple[str, str, str]]) -> Imported:
    """Copy of an imported recipe with the variables (name, value, place) of its launch script.

    They go before what the recipe itself sets (Megatron-Bridge 067f987d training/config.py:1984), but not before what
    the program sets anew.
    """
    document, left = Document(imported.path, dict(imported.values)), list[Left]()
    for name, value, where in variables:
        if name not in (_CUBLAS, *_ALLOCATOR):
            imported = _with_other(imported, name, value, where)
            continue
        if name in imported.sets_anew:
            left.append(Left("no effect", where, name, value, "the program sets it anew for the ranks"))
            continue
        key = ("environment", "cublas_workspace_config" if name == _CUBLAS else "expandable_segments")
        settings = dict(part.partition(":")[::2] for part in value.split(","))
        is_expandable = settings.pop("expandable_segments", "").lower() == "true"
        goes_before = imported.values.get("environment", {}).get("expandable_segments", False)
        if name == _CUBLAS or is_expandable or goes_before:
            document = document.with_value(key, value if name == _CUBLAS else is_expandable, where)
            imported = overruled(imported, key, f"{name} of the launch goes before it ({where})")
            imported = replace(imported, origins={**imported.origins, key: Origin("recipe", where, name)})
        if name != _CUBLAS and not is_expandable and not goes_before and not settings:
            told = Decided(where, name, value, why="segments do not expand, as without it")
            imported = replace(imported, decides=(*imported.decides, told))
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
    if name == "COMMAND" and _PROGRAM.search(value):
        one = Decided(where, name, value, why="the command that NeMo RL's ray.sub starts")
        return replace(imported, decides=(*imported.decides, one))
    row = row_of(name, value)
    kind: Literal["no effect", "not modelled"] = "not modelled" if isinstance(row, Unmodelled) else "no effect"
    return replace(imported, left=(*imported.left, Left(kind, where, name, value, row.why)))


def row_of(name: str, value: str) -> Idle | Unmodelled:
    """Row of a variable: the first that names it, unless its value is what is taken without it."""
    if not value:
        return _EMPTY
    if value == _DEFAULTS.get(name):
        return Idle((name,), "its default: as without it")
    return next((row for row in _VARIABLES if any(fnmatchcase(name, pattern) for pattern in row.keys)), _OTHER)
