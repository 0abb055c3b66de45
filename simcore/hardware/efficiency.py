"""What kernels reach of a GPU's peaks, read from `topologies/efficiency/*.yaml` or a file of one's own.

A topology file names one. Datasheets and measurements stay apart, so that shares measured on one machine can be put in
the place of ours without touching what the machine is.
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
    """What is left of a kernel's compute share when it runs in a low-precision format."""

    fp8: Share | None = None
    fp4: Share | None = None


class KernelShare(Frozen):
    """What a kernel reaches of the peak (None: it runs on the fp32 vector units) and of the memory bandwidth."""

    compute: Share | None = None
    memory: Share


class Kernels(Frozen):
    """The closed set of kernel classes; order is that of `simcore.timing.kernel.KERNELS`.

    `attention` is what cuDNN and flash-attention 3 reach where the GPU has them, `attention_flash2` what
    flash-attention 2 and torch's own do, `attention_triton` what the first flash-attention in Triton does,
    `attention_efficient` what torch's memory-efficient kernel (CUTLASS's of xformers) does.
    `elementwise_eager`: passes of torch's own operators, one each, over views as they lie, where nothing compiles them.
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
    """How long the host of such a GPU is busy: what bounds a step of small kernels.

    `module`: with one kernel of a Megatron-Core or TransformerEngine module; `operator`: with one of torch's own;
    `permutation`: with one permutation of a Megatron dispatcher, and the counts, maps and splits that go with it;
    `collective`: with one collective, or a message that it does not stop for, what ranks lose by waiting for one
    another included. `graphed`: the share that is left inside a CUDA graph. `filling`: by this share modules take
    longer where deterministic algorithms fill what they allocate. `step`: once a step (Megatron's loop, clipping,
    logging), not hidden.
    """

    module: Duration
    permutation: Duration
    operator: Duration
    collective: Duration
    graphed: Share
    filling: Share
    step: Duration


class Overlap(Frozen):
    """What is left of communication that runs beside kernels.

    `contention`: by this share of the time that both run, kernels beside a collective take longer (NCCL takes
    multiprocessors and memory bandwidth). `tensor`, `expert`: the share that stays exposed where the framework
    overlaps the collectives of tensor or expert parallelism inside a layer.
    """

    contention: Share
    tensor: Share
    expert: Share


class Efficiency(Frozen):
    """Of one kind of GPU and the hosts it comes with. `shortest`: the least time that a kernel takes."""

    name: str
    low_precision: LowPrecision = LowPrecision()
    kernels: Kernels
    shortest: Duration
    host: Host
    overlap: Overlap


def efficiency_names() -> tuple[str, ...]:
    """Names of the built-in files, sorted."""
    return tuple(sorted(_built_in()))


@lru_cache(maxsize=1)
def _built_in() -> dict[str, Path]:
    return {path.stem: path for path in data_folder("topologies").glob("efficiency/*.yaml")}


def load_efficiency(ref: str | Path, where: str = "efficiency", folder: Path = Path()) -> Efficiency:
    """Load the built-in file of that name, or the file at that path, which starts from `folder`.

    InputError: unknown name or file (asked for at `where`), a key or a quantity that is wrong (all of them at once).
    """
    path = find_efficiency(ref, where, folder)
    with named_at(where, path):
        return read_values(Efficiency, read_document(path))


def find_efficiency(ref: str | Path, where: str = "efficiency", folder: Path = Path()) -> Path:
    """The built-in file of that name, or the file at that path, which starts from `folder`; InputError at `where`."""
    return find_file("efficiency", ref, _built_in(), where, folder)
