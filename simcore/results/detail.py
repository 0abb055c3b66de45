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
    """Allocated bytes over the step by category, thinned: `values[i]` belongs to `categories[i]`.

    `event_index`: index of the program's row (order of issue); `time_s`: its time on the timeline. `layers`: the layer
    that runs at each sample, empty between layers.
    """

    categories: tuple[str, ...]
    event_index: tuple[int, ...]
    time_s: tuple[float, ...]
    phases: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]
    layers: tuple[str, ...] = ()


class AxisDigit(_Frozen):
    """An axis of the mesh: the coordinate of a rank on it is `rank // stride % size`."""

    name: str
    size: int
    stride: int


class TensorRow(_Frozen):
    """A tensor that is the same in `num_layers` layers of one kind, on one rank; bytes are of all of them together.

    `shape` and `copies`: before sharding. `num_elements`: of one layer, on this rank. `cut`: axes that shard it.
    `life`: name of its policy in the framework's table.
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
    """Owner of bytes at the peak: a tensor's name, in `num_layers` layers of a kind; bytes of all of them."""

    owner: str
    layers: str
    num_layers: int
    category: str
    bytes: int


class Span(_Frozen):
    """An interval on a stream of one rank, from `start_s` to `end_s`.

    Lane `compute`: kernels of a phase (`label`: their layer), or the reason of a wait: `host`, `bubble`,
    `communication`. Other lanes: a collective or copy (`kind`) on an axis (`label`), called by `layer`, with its
    payload's `bytes` and `dtype`; the compute stream waited for the last `exposed_s` of it. `meets`: text common to the
    spans of all classes that take part in the call. `count`: number of merged spans; their bytes are summed.
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
    """Allocations of one rank in a steady step, a row of the first columns each; persistent tensors come first.

    `owner`: index in `owners`, (layer, tensor, category). `born`, `died`: indices of moments, -1 if it is not freed; a
    moment has a time, a phase and a microbatch (of the simulated ones). At one moment frees come before allocations.
    `merged`: number of allocations that were merged by layer and category; 0: each is separate.
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
    """Detail of one class of ranks. `by_part`: memory over the step by the part of the model that holds it.

    `lifetimes`: for a memory snapshot, on request.
    """

    tensors: tuple[TensorRow, ...] = ()
    holders: tuple[Holder, ...] = ()
    by_part: MemorySeries | None = None
    spans: tuple[Span, ...] = ()
    lifetimes: Lifetimes | None = None


class Detail(_Frozen):
    """Detail of a report. `layers`: kind of each layer, by its path.

    Spans have the first `written_out` of `num_microbatches` and end at `end_s`; the others repeat the steady ones.
    """

    axes: tuple[AxisDigit, ...]
    ranks_per_node: int
    num_microbatches: int
    written_out: int
    end_s: float | None = None
    layers: dict[str, str] = {}
    classes: tuple[ClassDetail, ...] = ()
