"""What pictures show beyond the answer, JSON in and out: tensors of a rank, who holds the peak, streams over time.

It is made only when somebody asks for it. Classes of ranks stand in the order of the report's `ranks`.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict

__all__ = ["MAX_DETAILED", "AxisDigit", "ClassDetail", "Detail", "Holder", "Lifetimes", "MemorySeries", "Span",
           "TensorRow"]

MAX_DETAILED: Final = 8
"""Scenarios up to which a page tells everything about each."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MemorySeries(_Frozen):
    """Allocated bytes over the step by category, thinned: `values[i]` belongs to `categories[i]`.

    `event_index` numbers the postings of the program (the issue clock); `time_s` dates them on the timeline. `layers`:
    the layer at work at each sample, empty between layers.
    """

    categories: tuple[str, ...]
    event_index: tuple[int, ...]
    time_s: tuple[float, ...]
    phases: tuple[str, ...]
    values: tuple[tuple[int, ...], ...]
    layers: tuple[str, ...] = ()


class AxisDigit(_Frozen):
    """An axis of the mesh: a rank stands at `rank // stride % size` on it."""

    name: str
    size: int
    stride: int


class TensorRow(_Frozen):
    """A tensor that is alike in `num_layers` layers of one kind, on one rank; bytes are of all of them together.

    `shape` and `copies`: before anybody splits it. `num_elements`: of one layer, on this rank. `cut`: by which axes.
    `life`: its name in the framework's table.
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
    """Who holds bytes at the peak: a tensor's name, in `num_layers` layers of a kind; bytes of all of them."""

    owner: str
    layers: str
    num_layers: int
    category: str
    bytes: int


class Span(_Frozen):
    """Something on a stream of one rank, from `start_s` to `end_s`.

    Lane `compute`: kernels of a phase (`label`: their layer), or what they wait for: `host`, `bubble`, `communication`.
    Other lanes: a collective or copy (`kind`) on an axis (`label`), called by `layer`, with its payload's `bytes` and
    `dtype`; of its end `exposed_s` were waited for. `meets`: the same text in spans of other classes that are the other
    ends of it. `count`: of so many that were drawn together; their bytes are summed.
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
    """Allocations of one rank in a steady step, a row of the first columns each: what rests comes first.

    `owner`: a number of `owners`, (layer, tensor, category). `born`, `died`: numbers of moments, -1 if it lives on; a
    moment has a date, a phase and a microbatch (of those that were written out). At one moment deaths come before
    births. `merged`: so many allocations are told together, by layer and category; 0: each by itself.
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
    """Of one class of ranks. `by_part`: memory over the step by the part of the model that holds it.

    `lifetimes`: for a snapshot of memory, where that was asked for.
    """

    tensors: tuple[TensorRow, ...] = ()
    holders: tuple[Holder, ...] = ()
    by_part: MemorySeries | None = None
    spans: tuple[Span, ...] = ()
    lifetimes: Lifetimes | None = None


class Detail(_Frozen):
    """`layers`: the kind of each layer, by its path.

    `written_out` of `num_microbatches` are in the spans, which end at `end_s`; the others repeat the steady ones.
    """

    axes: tuple[AxisDigit, ...]
    ranks_per_node: int
    num_microbatches: int
    written_out: int
    end_s: float | None = None
    layers: dict[str, str] = {}
    classes: tuple[ClassDetail, ...] = ()
