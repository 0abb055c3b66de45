"""Texts about memory of other programs: what each is, with lines of public issues."""

from __future__ import annotations

import pytest

from simcore.validation.out_of_memory.other_texts import read_others


@pytest.mark.parametrize(("line", "kind", "told"), [
    # https://github.com/NVIDIA/Megatron-LM/issues/1509
    ("TENCENT64:47604:53083 [0] include/alloc.h:103 NCCL WARN Cuda failure 2 'out of memory'", "NCCL", "its buffers"),
    # https://github.com/NVIDIA/nccl/issues/1235
    ("ng30903:3063028 [3] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes", "NCCL", "its buffers"),
    ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1296, unhandled cuda error", "NCCL",
     "a CUDA call inside NCCL failed"),
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cuBLAS", "its handle"),
    # https://github.com/vllm-project/vllm/issues/27508
    ("(EngineCore_DP0 pid=223840) ERROR 10-25 13:08:43 [core.py:708]     raise ValueError(\"No available memory for "
     "the cache blocks. \"", "vLLM", "nothing is left for the KV cache"),
    ("ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be stored in KV "
     "cache (4096).", "vLLM", "no room for one sequence"),
    ("ValueError: Free memory on device (6.9/8.0 GiB) on startup is less than desired GPU memory utilization (0.9, 7.2 "
     "GiB).", "vLLM", "another process"),
    # https://github.com/TideDra/lmm-r1/issues/43
    ("(ActorModelRayActor pid=348952) RuntimeError: CUDA Error: out of memory at cumem_allocator.cpp", "CUDA",
     "the GPU was full"),
    ("RuntimeError: CUDA error: out of memory", "CUDA", "the GPU was full"),
    ("[enforce fail at alloc_cpu.cpp:75] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 1000 "
     "bytes.", "host", "the host's memory was full"),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.", "host", "was killed"),
    ("  exitcode  : -9 (pid: 4711)", "host", "was killed"),
    ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", "host", "was killed"),
])
def test_what_a_text_is(line: str, kind: str, told: str) -> None:
    (text,) = read_others(f"some line\n{line}\n{line}\n")
    assert (text.kind, text.lines) == (kind, 2)
    assert told in text.meaning
    assert text.line == line.strip()[:200]


def test_kinds_come_in_order_and_once() -> None:
    text = "CUDA error: out of memory\nNCCL WARN Cuda failure 2 'out of memory'\nx CUDA error: out of memory"
    assert [(one.kind, one.lines) for one in read_others(text)] == [("CUDA", 2), ("NCCL", 1)]


@pytest.mark.parametrize("text", ["", "memory: 12.3GiB(1%)", "Sending process 1 closing signal SIGTERM", "exit code 1",
                                  "exitcode  : -15", "loss: -9.5",
                                  "CUDA out of memory. Tried to allocate 2.00 GiB", "NCCL INFO Connected all rings"])
def test_what_says_nothing_about_memory(text: str) -> None:
    assert read_others(text) == []
