"""Time of one step and its parts: the part of a result that is about time, JSON in and out."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["CommunicationTime", "Cost", "KernelTime", "Roofline", "StepTime"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CommunicationTime(_Frozen):
    """Collectives of one kind on one mesh axis in one step of a rank that ends last: their number and seconds.

    `alone_s`: their time if nothing else ran. `exposed_s`: time that kernels waited for them, including waiting for
    late ranks; `hidden_s`: the part of `alone_s` beside kernels. Messages between stages are those that the rank
    receives.
    """

    collective: str
    axis: str
    link: Literal["nvlink", "network", "self", "host"]
    calls: int
    alone_s: float
    exposed_s: float
    hidden_s: float


class KernelTime(_Frozen):
    """Kernels of one class and number format in one step of a rank that ends last: their times and work.

    Times in each phase are those on an idle device; backward includes recomputation, forward the loss.
    """

    kernel: str
    dtype: str
    forward_s: float
    backward_s: float
    optimizer_s: float
    flops: int
    bytes_moved: int


class Roofline(_Frozen):
    """The resource that bounds the step on a rank that ends last, and lower limits of its time by the datasheet.

    `seconds`: the step divided by the reason of its time: arithmetic, memory traffic, kernels too small for either,
    communication by the link that it crosses at worst (inside a node, over the network, to the host), longer kernels
    during communication, the host, other stages; `bound`: the largest. `limits`: lower limits in seconds: all FLOPs at
    the dense peak of their format (those of vector units not counted), all bytes of memory, of NVLink, of the network
    and of copies to the host at the datasheets' bandwidths; `limit_s`: the longest of them, `limit` which.
    """

    bound: Literal["compute", "memory", "small_kernels", "nvlink", "network", "host_link", "contention", "host",
                   "bubble"]
    seconds: dict[str, float]
    limit: Literal["compute", "memory", "nvlink", "network", "host_link"]
    limit_s: float
    limits: dict[str, float]


class Cost(_Frozen):
    """Cost of the GPUs, in USD; without a price, `note` says so and all costs are None.

    `per_step`: of one step on all GPUs. `run_s`, `gpu_hours`: of the whole run, if the scenario states its length.
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
    """Time of one steady step (any but the first) in seconds, and rates that follow from it.

    `ranks`: the class that ends last, to which all times of parts belong. `forward_s`, `backward_s`, `optimizer_s`:
    time in each, waiting included. `exposed_communication_s`: time that kernels waited for collectives, messages and
    copies. `parts`: the step by activity of the device; they add up to `step_s` (defined in
    `simcore/timing/breakdown.py`). `bubble_share`: share of the step spent waiting for other pipeline stages.
    `model_tflops_per_gpu`: as `convention` counts a token's FLOPs ("rankscope": three times forward's products,
    attention and scan, twice where the base is frozen; "(training)": of a step with phases, whose other
    phases count as time without FLOPs); `mfu` of the dense peak of `peak_dtype`.
    `executed_tflops_per_gpu`: rate of the matrix units of `ranks`, recomputation included.
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
