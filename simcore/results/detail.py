"""The optional `detail` of a report, for figures: tensors of a rank, owners at the peak, spans of streams over time.

It is made only on request. Classes of ranks are in the order of the report's `ranks`. JSON in and out.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict

__all__ = ["MAX_DETAILED", "AxisDigit", "ClassDetail", "Detail", "Holder", "Lifetimes", "MemorySeries", "Span",
           "TensorRow"]

MAX_DETAILED: Final = 8
"""Number of scenarios up to which a page shows the detail of each."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MemorySeries(_Frozen):
    """Allocated bytes of one rank over the step by category, at up to a few hundred moments.

    `values[i]` belongs to `categories[i]`. Each inner list has an entry for each moment, as all other fields.
    `event_index`: index of the operation in order of issue, from the first after the persistent allocations; `time_s`:
    its time in seconds since the step began (0 without times); `phases`: its phase. `layers`: the layer that runs then,
    "" between layers.
    """

    categories: tuple[str, ...]
    event_index: tuple[int, ...]
    time_s: tuple[float, ...]
    phases: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]
    layers: tuple[str, ...] = ()


class AxisDigit(_Frozen):
    """One axis of the mesh; a rank's coordinate on it is `rank // stride % size`."""

    name: str
    size: int
    stride: int


class TensorRow(_Frozen):
    """A tensor that is the same in `num_layers` layers of one kind, on one rank.

    Bytes are of all of them together. `shape` and `copies`: before sharding. `num_elements`: of one layer, on this
    rank. `cut`: mesh axes that shard it, such as `tp 2: dim 0`. `life`: name of the framework's rule for where and when
    its bytes exist.
    """

    layers: str
    num_layers: int
    name: str
    component: str
    dtype: str
    shape: tuple[int, ...]
    copies: int
    num_elements: int
    cut: tuple[str, ...]
    params_bytes: int
    grads_bytes: int
    optimizer_bytes: int
    trainable: bool
    life: str = ""


class Holder(_Frozen):
    """Tensors of one name (`owner`) that hold bytes at the peak, in `num_layers` layers of one kind.

    `bytes` are those of all these layers together.
    """

    owner: str
    layers: str
    num_layers: int
    category: str
    bytes: int


class Span(_Frozen):
    """One interval on a stream of one rank; times are in seconds since the step began.

    Lane `compute`: kernels of a phase (`label`: their layer), or the reason of a wait: `host`, `bubble`,
    `communication`. Other lanes: a collective or copy (`kind`) on an axis (`label`), called by `layer`, with its
    payload's `bytes` and `dtype`; the compute stream waited for the last `exposed_s` of it. `microbatch`: index among
    the simulated ones. `meets`: text common to the spans of all classes that take part in the call. `count`: number of
    merged spans; their bytes are summed.
    """

    lane: str
    kind: str
    label: str
    start_s: float
    end_s: float
    exposed_s: float = 0.0
    microbatch: int = 0
    count: int = 1
    layer: str = ""
    bytes: int = 0
    dtype: str = ""
    meets: str = ""


class Lifetimes(_Frozen):
    """Allocations of one rank in a steady step.

    Entry i of `owner`, `bytes`, `born` and `died` is allocation i. `owner`: index in `owners`, (layer, tensor,
    category). `born`, `died`: indices of moments, -1 if it is not freed; a moment has an entry in `time_us`, `phases`
    and `microbatches` (of the simulated ones). Persistent tensors come first. At one moment frees come before
    allocations. `merged`: number of allocations that were merged by layer and category; 0: each is separate.
    """

    owners: tuple[tuple[str, str, str], ...]
    owner: tuple[int, ...]
    bytes: tuple[int, ...]
    born: tuple[int, ...]
    died: tuple[int, ...]
    time_us: tuple[int, ...]
    phases: tuple[str, ...]
    microbatches: tuple[int, ...]
    merged: int = 0


class ClassDetail(_Frozen):
    """Data for pictures of one class of ranks: tensors, owners at the peak, memory and streams over time.

    `by_part`: memory over the step by the kind of layer that holds it. `spans`: intervals on its streams. `lifetimes`:
    of allocations, on request.
    """

    tensors: tuple[TensorRow, ...] = ()
    holders: tuple[Holder, ...] = ()
    by_part: MemorySeries | None = None
    spans: tuple[Span, ...] = ()
    lifetimes: Lifetimes | None = None


class Detail(_Frozen):
    """Data for pictures of a report; `classes` are in the order of the report's `ranks`.

    `layers`: kind of each layer, by its path. Spans show the first `written_out` of `num_microbatches` and end at
    `end_s`; the others repeat the steady ones.
    """

    axes: tuple[AxisDigit, ...]
    ranks_per_node: int
    num_microbatches: int
    written_out: int
    end_s: float | None = None
    layers: dict[str, str] = {}
    classes: tuple[ClassDetail, ...] = ()
