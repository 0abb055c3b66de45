"""Static buffers of experts and the paged stash: what a rank's experts keep for backward waits in pages.

[Note: paged stash]
Megatron-LM main 2026-08-22 `transformer/moe/token_dispatcher.py` (_HybridEPManager.setup_metadata): with
moe_expert_rank_capacity_factor f a dispatch has room for int(tokens x topk x f) rows, a multiple of 256, whatever the
routing, so the host need not know how many came. Kernels skip rows that hold nothing; tensors have all of them.

`transformer/moe/paged_stash.py`: with moe_paged_stash the tensors that TransformerEngine's fused grouped MLP marks
(`pytorch/utils.py`, mark_grouped_tensor; `ops/fused/grouped_mlp.py`, fuser_forward) are copied to pages when the
experts are done: the 8-bit columns of both inputs with their scales, the first product's output, and the
probabilities. Only rows that came are copied. The originals go when the next layer's experts begin
(PipelinePreScheduleFunction.forward). In backward, when a layer's experts are done, tensors for those of the next layer
down are allocated with all their rows and filled (.backward). A layer whose backward comes right after its forward
keeps its originals (PipelinePostScheduleFunction). Each paged tensor has a record of its pages, 8 bytes each.

The first step counts what is kept at the same time, the second allocates pages for as many rows, times
moe_paged_stash_buffer_size_factor_cuda, for each type and width (allocate_stash_buffers). Rows are counted as balanced
routing has them, or, if the factor is negative, as they came. A list of free pages, and a copy of it, have 8 bytes a
page each. What finds no page goes to pinned pages on the host, if
there are any (factor_cpu), else the step runs again without room and without pages (PagedStashRunner), as it does if
more rows come than there is room for.
"""

from __future__ import annotations

from typing import NamedTuple

from simcore.models.blocks import Moe
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.options import FUSED_MULTIPLE
from simcore.operators.megatron.rows import Rows
from simcore.recording.number_formats import Scaling
from simcore.recording.rows import Module
from simcore.recording.tape import COMPUTE_STREAM, STASH_BORDER, Kernel, Op, Section, Tape, Tensor

__all__ = ["ON_DEVICE", "Paged", "fused_rows", "group_start", "paged_tensors", "rows_with_room", "sections", "stash"]

ON_DEVICE = "framework_options.moe_paged_stash_buffer_size_factor_cuda"
"""Key of a scenario that says how many pages there are on the device."""
SCALED = 32
"""Rows that share a scale along columns (`paged_stash.py`, SCALE_INV_BLOCK_SIZE)."""


_TENSORS = 6
"""Tensors of a layer that go to pages, scales counted apart."""


class Paged(NamedTuple):
    """Kind of tensor that goes to pages: numbers of one type, `width` of them in a row of `size` bytes each.

    `dtype`: upstream's type, which tensors of one buffer share with their width. `rows`: tokens of a row.
    """

    dtype: str
    width: int
    size: int
    rows: int = 1


def paged_tensors(block: Moe) -> tuple[Paged, ...]:
    """Tensors that the experts of one layer keep, see [Note: paged stash]; experts are whole (etp 1)."""
    hidden, ffn = block.expert_hidden, block.expert_ffn
    return (Paged("uint8", hidden, 1), Paged("uint8", _lines(hidden), 1, SCALED),
            Paged("bf16", ffn * (2 if block.gated else 1), 2), Paged("fp32", 1, 4),
            Paged("e4m3", ffn, 1), Paged("e8m0", _lines(ffn), 1, SCALED))


def _lines(columns: int) -> int:
    """Scales of one row of blocks: TransformerEngine pads them to 128 (`number_formats.py`)."""
    return -(-columns // 128) * 128


def rows_with_room(tokens: int, top_k: int, factor: float) -> int:
    """Rows for which a dispatch has room, of a rank with `tokens` tokens and the capacity `factor`; 0 for none."""
    return -(-int(tokens * top_k * factor) // FUSED_MULTIPLE) * FUSED_MULTIPLE


def fused_rows(rows: int, experts: int) -> int:
    """Rows that are computed where `experts` experts share `rows` evenly: each part is a whole multiple."""
    return Scaling("mxfp8", transposes=False).padded_rows(rows, experts, FUSED_MULTIPLE)


def group_start(c: Context, x: Tensor) -> Tensor:
    """View of the experts' input `x`; marks where the stash's streams are waited for, in forward and in backward.

    `paged_stash_group_start`; `x` itself without a stash. In backward copies from pages begin there.
    """
    if not _pages(c):
        return x

    def back(tape: Tape, grads: Grads, _saved: Saved) -> Grads:
        tape.mark(STASH_BORDER)
        _copied(c)
        return grads

    c.tape.mark(STASH_BORDER)
    out = Tensor(x.storage, x.shape, x.dtype)
    c.node(out, (x,), (), back)
    return out


def stash(c: Context, rows: Rows, out: Tensor, *kept: Tensor) -> None:
    """Copies the tensors `kept`, which nodes have saved, to pages; nothing without a graph or a stash.

    The node of `out` keeps the numbers of their pages, and a flag for each tensor.
    """
    if not _pages(c):
        return
    for tensor in kept:
        assert tensor.storage is not None
        size = tensor.storage.num_bytes
        c.stashed.append((tensor.storage.slot, size, size * rows.computed // rows.held))
    _copied(c)
    pages = -(-rows.held // c.options.moe_paged_stash_page_size)
    c.tape.save(out.node, c.new(_TENSORS * (pages + 1), 1, "experts.page_records", "int64"))


def _pages(c: Context) -> bool:
    return c.options.moe_paged_stash and not c.run.no_grad


def _copied(c: Context) -> None:
    """A kernel for each tensor of data; its scales, which have one too, are counted with it."""
    module, c.tape.module = c.tape.module, Module.SHARED_EXPERTS
    for _, _, filled in c.stashed:
        c.tape.compute(Kernel.COPY, 0, 2 * filled, 1)
    c.tape.module = module


def sections(c: Context) -> tuple[Section, Section]:
    """(frees of the tensors that went to pages, allocations of those that they come back to) of a recorded layer."""
    frees, allocs = (tuple((op, 0, slot, sign * size, COMPUTE_STREAM, 0) for slot, size, _ in c.stashed)
                     for op, sign in ((Op.FREE, -1), (Op.ALLOC, 1)))
    return Section(frees), Section(allocs)
