"""Texts about memory that are not from torch's allocator: what each is, in a line.

[Note: sources of the texts]
CUDA's `out of memory` through torch's checks (`c10/cuda/CUDAException.cpp`) and cuBLAS's handle
(`aten/src/ATen/cuda/CublasHandlePool.cpp`); NCCL 2.21 `include/alloc.h` (`NCCL WARN Cuda failure 2 'out of memory'`,
`Failed to CUDA calloc 6291456 bytes`) and torch's `ProcessGroupNCCL` (`Call to CUDA function failed`); vLLM 0.12
`vllm/v1/core/kv_cache_utils.py`, `vllm/v1/worker/gpu_worker.py`, `vllm/v1/worker/gpu_model_runner.py`; torch
`c10/core/impl/alloc_cpu.cpp` (`DefaultCPUAllocator: can't allocate memory`); Ray's memory monitor; Slurm's and the
kernel's killing of processes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from simcore.validation.logs.lines import lines_with

__all__ = ["Told", "read_others"]

Kind = Literal["CUDA", "cuBLAS", "NCCL", "vLLM", "host"]


@dataclass(frozen=True)
class Told:
    """One kind of text in a log: `kind` by whom, its `meaning`, its first `line` (cut), and number of `lines`."""

    kind: Kind
    meaning: str
    line: str
    lines: int


_ENGINE = "vLLM's engine did not start: "
_NO_ROOM = _ENGINE + "the KV cache has no room for one sequence of generation.max_model_len"
_UNHANDLED = "a CUDA call inside NCCL failed; out of memory if it says so, else NCCL_DEBUG=WARN tells why"
_KILLED = "a process was killed, most likely because the host's memory was full, not the GPU's"
_NCCL = ("NCCL found no memory for its buffers, which are outside of torch's allocator: what that reserves has to "
         "leave room for them")
_CUDA = ("the CUDA driver had no memory for a request outside of torch's allocator, such as the context: the GPU was "
         "full, often of another process")
_CUBLAS = "cuBLAS found no memory for its handle, which is outside of torch's allocator"
_HOST = "the host's memory was full, not the GPU's"

# (by whom, words that a line has, pattern of the line or "", meaning)
_TEXTS: Final[tuple[tuple[Kind, str, str, str], ...]] = (
    ("vLLM", "No available memory for the cache blocks", "",
     _ENGINE + "weights, activations and graphs fill its share of the GPU (generation.gpu_memory_utilization), nothing "
               "is left for the KV cache"),
    ("vLLM", "is larger than the maximum number of tokens", "max seq len", _NO_ROOM),
    ("vLLM", "To serve at least one request with the model", "", _NO_ROOM),
    ("vLLM", "is less than desired GPU memory utilization", "Free memory on device",
     _ENGINE + "another process holds memory of its share of the GPU (generation.gpu_memory_utilization)"),
    ("vLLM", "out of memory occurred when warming up sampler", "",
     _ENGINE + "logits of all sequences (generation.max_num_seqs) do not fit beside its cache"),
    ("NCCL", "NCCL WARN Cuda failure", r"failure (?:2 )?'out of memory'", _NCCL),
    ("NCCL", "Failed to CUDA calloc", "", _NCCL),
    ("NCCL", "unhandled cuda error", "NCCL", _UNHANDLED),
    ("NCCL", "ncclUnhandledCudaError", "", _UNHANDLED),
    ("cuBLAS", "CUBLAS_STATUS_ALLOC_FAILED", "", _CUBLAS),
    ("cuBLAS", "CUBLAS_STATUS_NOT_INITIALIZED", "cublasCreate", _CUBLAS),
    ("CUDA", "rror: out of memory", r"CUDA (?:driver )?[Ee]rror: out of memory", _CUDA),
    ("CUDA", "cuda runtime error (2)", "", _CUDA),
    ("CUDA", "cudaErrorMemoryAllocation", "", _CUDA),
    ("host", "DefaultCPUAllocator: ", "memory", _HOST),
    ("host", "Cannot allocate memory", "", _HOST),
    ("host", "MemoryError", r"(?<![A-Za-z])MemoryError\b", _HOST),
    ("host", "oom_kill", "", _KILLED), ("host", "oom-kill", "", _KILLED),
    ("host", "Out of memory: Killed process", "", _KILLED),
    ("host", "OUT_OF_MEMORY", r"\bOUT_OF_MEMORY\b", _KILLED),
    ("host", "running low on memory", "", _KILLED),
    ("host", "Signal 9 (SIGKILL) received", "", _KILLED),
    ("host", ": -9", r"exit ?code {0,3}: -9\b", _KILLED),
)
_PATTERNS: Final = tuple((kind, word, re.compile(pattern), meaning) for kind, word, pattern, meaning in _TEXTS)


def read_others(text: str) -> list[Told]:
    """Kinds of texts in a log, in the order of their first lines; [] without any."""
    present = [row for row in _PATTERNS if row[1] in text]
    first: dict[str, Told] = {}
    for line in lines_with(text, [word for _, word, _, _ in present]):
        for kind, word, pattern, meaning in present:
            if word in line and pattern.search(line):
                known = first.get(meaning)
                first[meaning] = Told(kind, meaning, known.line if known else line.strip()[:200],
                                      1 + (known.lines if known else 0))
                break
    return list(first.values())
