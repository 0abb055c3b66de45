"""Shares of a GPU's peaks that kernels reach, read from `topologies/efficiency/*.yaml` or from the user's file.

A topology file names one such file. Datasheet values and measured shares are in separate files, so that shares measured
on one machine can replace the shipped ones while the description of the machine stays as it is.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import Field

from simcore.inputs.document import named_at, read_document
from simcore.inputs.quantity import Duration, Frozen, Share, read_values
from simcore.inputs.shipped import data_folder, find_file

__all__ = ["Efficiency", "Host", "KernelShare", "Kernels", "LowPrecision", "Overlap", "efficiency_names",
           "find_efficiency", "load_efficiency"]


class LowPrecision(Frozen):
    """Factors on `KernelShare.compute` for kernels in fp8 and in fp4; None: no factor (1)."""

    fp8: Share | None = None
    fp4: Share | None = None


class KernelShare(Frozen):
    """Shares of a GPU's peaks that one class of kernels reaches.

    `compute`: share of the peak FLOP/s of the operands' format; None: the kernel's FLOPs run at the whole fp32 peak of
    the vector units. `memory`: share of the memory bandwidth.
    """

    compute: Share | None = None
    memory: Share


class Kernels(Frozen):
    """Shares of the GPU's peaks that each class of kernels reaches.

    The order is that of `simcore.timing.kernel.KERNELS`. `attention`: cuDNN and flash-attention 3, on GPUs that have
    them; `attention_flash2`: flash-attention 2 and torch's own; `attention_triton`: the first flash-attention in
    Triton; `attention_efficient`: torch's memory-efficient kernel (CUTLASS's, from xformers). `elementwise_eager`:
    torch's own operators without a compiler, each a kernel that reads and writes memory, also over views whose elements
    are not contiguous.
    """

    gemm: KernelShare
    grouped_gemm: KernelShare
    attention: KernelShare
    mamba_scan: KernelShare
    conv: KernelShare
    norm: KernelShare
    elementwise: KernelShare
    permute: KernelShare
    loss: KernelShare
    embedding: KernelShare
    optimizer: KernelShare
    copy_: KernelShare = Field(alias="copy")  # `copy` is a method of pydantic models
    attention_flash2: KernelShare
    attention_triton: KernelShare
    elementwise_eager: KernelShare
    attention_efficient: KernelShare


class Host(Frozen):
    """Times that the host (the CPU process of one GPU) needs to launch kernels and collectives.

    `module`: for one kernel of a Megatron-Core or TransformerEngine module; `operator`: for one of torch's own;
    `permutation`: for one permutation of a Megatron dispatcher, with its counts, maps and splits; `collective`: for one
    collective or message that does not block the host, including what ranks lose by waiting for one another. `graphed`:
    the share of these times that remains inside a CUDA graph. `filling`: the share by which modules take longer where
    deterministic algorithms fill the memory they allocate. `step`: once a step (Megatron's loop, clipping, a line of
    the log), never hidden behind kernels. `statistics`: the same of statistics of every tensor that a run may log:
    zeros of gradients, norms of parameters, memory, timers; 0 in a file that does not say it.
    """

    module: Duration
    permutation: Duration
    operator: Duration
    collective: Duration
    graphed: Share
    filling: Share
    step: Duration
    statistics: Duration = Duration(value="0 ms", source="not in the file")


class Overlap(Frozen):
    """Cost that remains of communication that runs at the same time as kernels.

    `contention`: the share of the common time by which kernels take longer next to a collective (NCCL takes
    multiprocessors and memory bandwidth). `expert`: the same of an exchange of tokens by DeepEP or HybridEP, which have
    few multiprocessors of their own. `tensor`: the share of its time that kernels still wait for a collective of tensor
    parallelism that the framework overlaps inside a layer.
    """

    contention: Share
    tensor: Share
    expert: Share


class Efficiency(Frozen):
    """One efficiency file: shares of its peaks that one kind of GPU reaches, launch times of its hosts.

    `low_precision`: factors on `kernels` in fp8 and fp4. `shortest`: the least time that any kernel takes. `in_line`:
    what a collective of torch takes more between kernels that wait for it than NCCL alone; 0 in a file that does not
    say it.
    """

    name: str
    low_precision: LowPrecision = LowPrecision()
    kernels: Kernels
    shortest: Duration
    in_line: Duration = Duration(value="0 us", source="not in the file")
    host: Host
    overlap: Overlap


def efficiency_names() -> tuple[str, ...]:
    """Names of the built-in efficiency files (`topologies/efficiency/`, without `.yaml`), sorted."""
    return tuple(sorted(_built_in()))


@lru_cache(maxsize=1)
def _built_in() -> dict[str, Path]:
    return {path.stem: path for path in data_folder("topologies").glob("efficiency/*.yaml")}


def load_efficiency(ref: str | Path, where: str = "efficiency", folder: Path = Path()) -> Efficiency:
    """Reads the built-in efficiency file named `ref`, or the file at path `ref`, relative to `folder`.

    InputError: no such name or file (the error names the place `where`, which asked for it), or wrong keys and
    quantities (all of them at once).
    """
    path = find_efficiency(ref, where, folder)
    with named_at(where, path):
        return read_values(Efficiency, read_document(path))


def find_efficiency(ref: str | Path, where: str = "efficiency", folder: Path = Path()) -> Path:
    """Path of the built-in efficiency file named `ref`, or of the file at path `ref`.

    The path is relative to `folder`. InputError, with `where` as its place, if there is neither.
    """
    return find_file("efficiency", ref, _built_in(), where, folder)
