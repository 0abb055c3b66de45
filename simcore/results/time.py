"""How fast one step is, and what it is made of: the part of a result that is about time, JSON in and out."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["CommunicationTime", "Cost", "KernelTime", "Roofline", "StepTime"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CommunicationTime(_Frozen):
    """Collectives of one kind on one axis. `alone_s`: that they take with nothing beside them.

    `exposed_s`: kernels waited for them, other ranks that come late included; `hidden_s`: what of `alone_s` nobody
    waited for. Of messages between stages, those that the rank receives.
    """

    collective: str
    axis: str
    link: Literal["nvlink", "network", "self", "host"]
    calls: int
    alone_s: float
    exposed_s: float
    hidden_s: float


class KernelTime(_Frozen):
    """Kernels of one class and format, as long as they take alone; backward with recomputation."""

    kernel: str
    dtype: str
    forward_s: float
    backward_s: float
    optimizer_s: float
    flops: int
    bytes_moved: int


class Roofline(_Frozen):
    """What bounds the step, and how fast it could be.

    `seconds`: the step once more, by what it waits for: arithmetic, memory traffic, kernels too small for either,
    communication by the link that it crosses at worst (inside a node, over the network, to the host), kernels that
    take longer beside it, the host, other stages; `bound`: the largest. `limits`: seconds that it takes at least: all
    FLOPs at the dense peak of their format (those of vector units not counted), all bytes of memory, of NVLink, of the
    network and of copies to the host at the datasheets' bandwidths; `limit_s`: the longest of them, `limit` which.
    """

    bound: Literal["compute", "memory", "small_kernels", "nvlink", "network", "host_link", "contention", "host",
                   "bubble"]
    seconds: dict[str, float]
    limit: Literal["compute", "memory", "nvlink", "network", "host_link"]
    limit_s: float
    limits: dict[str, float]


class Cost(_Frozen):
    """What the GPUs cost, in USD; without a price, `note` says so and nothing has a cost.

    `per_step`: of one step on all GPUs. `run_s`, `gpu_hours`: of a whole run of `training.num_tokens`, where that is
    given.
    """

    price_per_gpu_hour: float | None = None
    price_date: str = ""
    price_source: str = ""
    per_step: float | None = None
    per_million_tokens: float | None = None
    run_s: float | None = None
    gpu_hours: float | None = None
    per_run: float | None = None
    note: str = ""


class StepTime(_Frozen):
    """Time of one steady step.

    `forward_s`, `backward_s`, `optimizer_s`: from the first of a pass to its end, waiting included. `parts`: the step
    by what the device does, on `ranks`, which end last; they add up to `step_s` (`simcore/timing/breakdown.py` says
    what they are). `model_tflops_per_gpu`: as `convention` counts a token's FLOPs ("rankscope": three times forward's
    products, attention and scan, twice where the base is frozen); `mfu` of the dense peak of `peak_dtype`.
    `executed_tflops_per_gpu`: what the matrix units of `ranks` do, recomputation included.
    """

    step_s: float = Field(gt=0)
    forward_s: float
    backward_s: float
    optimizer_s: float
    exposed_communication_s: float
    tokens_per_s_per_gpu: float
    model_tflops_per_gpu: float
    mfu: float
    convention: str = "rankscope"
    executed_tflops_per_gpu: float | None = None
    peak_tflops: float | None = None
    peak_dtype: str = ""
    ranks: tuple[str, ...] = ()
    parts: dict[str, float] = {}
    bubble_share: float | None = None
    communication: tuple[CommunicationTime, ...] = ()
    kernels: tuple[KernelTime, ...] = ()
    roofline: Roofline | None = None
    cost: Cost | None = None
