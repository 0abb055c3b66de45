"""The libraries below a framework: whose kernels run, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["FULL_ITERATION", "NOTHING_LOGGED", "KernelLibraries", "Logged"]

FULL_ITERATION: Final = "full_iteration"


@dataclass(frozen=True, slots=True)
class Logged:
    """Numbers that a trainer gathers from all ranks after a step, and waits for.

    `calls`: collectives of single numbers; `lists`: those of them that gather into a list with a tensor for each rank,
    which is filled with zeros, and which torch then copies to.
    """

    calls: int = 0
    lists: int = 0


NOTHING_LOGGED: Final = Logged()


@dataclass(frozen=True, slots=True)
class KernelLibraries:
    """Libraries that compute the kernels of a job, and how they are called.

    Memory (workspaces: `simcore/memory/workspace.py`): `graph_pool_bytes`: the most that pools of CUDA graphs
    may add to the peak, in the upper end of a band. `date`: the month of torch and TransformerEngine, whose defaults
    changed. `te_linears`: TransformerEngine's linears, not torch's; `te_grouped`: its grouped GEMM for experts;
    `te_overlap`: its user buffers for tensor parallel overlap, `user_buffer_bytes` for each element of a layer's whole
    input. `core_buffers`: Megatron-Core's global buffer and rotary cache; `core_attention`: its own attention, which
    keeps scores in the global buffer. `dispatcher`: how tokens reach experts: "nccl", "deepep", "hybridep".

    Time: `attention`: the class of kernel ("attention": cuDNN's and flash-attention 3, "attention_flash2",
    "attention_triton", "attention_efficient"); `eager`: torch's operators run one by one, nothing compiles them;
    `fused`: bytes that pointwise kernels move after a compiler joined them, as a fraction of the bytes before;
    `module_calls`: the host launches whole modules, not single operators of torch; `te_calls`: where it launches
    operators, the exceptions, (kernel, name of the module, a `rows.Module` in small letters) that are launched as
    modules; `launches_each`: a group's products are calls of cuBLAS, one each (TransformerEngine 2.18
    `common/gemm/cublaslt_gemm.cu`, multi_stream_cublas_gemm), and not one kernel; `graphs`: modules that are captured
    in CUDA graphs, or FULL_ITERATION: forward and backward of the step; `fills`: torch's deterministic algorithms are
    on, and each `empty` of a module launches a kernel that fills it (torch 2.13 `utils/deterministic.py`,
    fill_uninitialized_memory; operators of torch fill no such tensors); `waits_for_messages`: the host waits at each
    send and receive between stages until the device has reached it; `overlapped`: mesh axes with collectives inside a
    layer that run at the same time as kernels of that layer; `pipelined`: number of ranks of tensor parallelism whose
    collectives run in pieces beside products, 0 for none; `paired`: part of the passes, 0 to 1, that run in pairs of a
    forward and a backward pass, whose kernels and exchanges of tokens run at the same time; `beside_exchanges`: what
    runs on a separate stream at the same time as exchanges: "shared_experts", kernels of a shared expert; "stash",
    copies to pages and back, which also run beside the kernels before experts; `beside_attention`: messages around a
    ring of context parallelism run at the same time as attention; `grad_passes`: times that gradients are read or
    written before the optimizer's step, once by their norm and twice by its product with all of them; `counts_zeros`:
    after that step torch goes over all gradients, one by one, to log how many of their numbers are zero; `logged`: what
    the host gathers after each step, while the device waits.
    """

    date: str = "2026-07"
    te_linears: bool = False
    te_grouped: bool = False
    te_overlap: bool = False
    user_buffer_bytes: int = 0
    core_buffers: bool = False
    core_attention: bool = False
    dispatcher: str = "nccl"
    attention: str = "attention_flash2"
    eager: bool = False
    fused: float = 1.0
    module_calls: bool = False
    te_calls: tuple[tuple[str, str], ...] = ()
    launches_each: bool = False
    graphs: tuple[str, ...] = ()
    graph_pool_bytes: int = 0
    fills: bool = False
    waits_for_messages: bool = False
    overlapped: tuple[str, ...] = ()
    pipelined: int = 0
    paired: float = 0.0
    beside_exchanges: tuple[str, ...] = ()
    beside_attention: bool = False
    grad_passes: int = 0
    counts_zeros: bool = False
    logged: Logged = NOTHING_LOGGED
