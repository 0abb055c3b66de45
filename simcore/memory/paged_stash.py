"""Pages of the paged stash, which Megatron-LM allocates at the second step and keeps.

Rules and sources: [Note: paged stash] in `operators/megatron/stash.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simcore.errors import NotYet, Problem
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.operators.megatron.stash import ON_DEVICE, Paged, fused_rows, paged_tensors, rows_with_room
from simcore.pipeline.schedule import Schedule, actions, lowered_microbatches
from simcore.placement.plan import Plan
from simcore.units import format_bytes

__all__ = ["Buffer", "Layers", "layers_at_once", "sized", "stash_buffers"]

_ENTRY = 8
"""Bytes of a page's number (int64)."""


class Layers(NamedTuple):
    """Layers with experts, times microbatches, whose tensors wait for backward at the same time.

    `counted`: all of them; `paged`: without a layer whose backward comes right after its forward.
    """

    counted: int
    paged: int


class Buffer(NamedTuple):
    """Pages of one type and width: `pages` on the device, `host_pages` in pinned memory, each of `page_bytes`."""

    dtype: str
    width: int
    page_bytes: int
    pages: int
    host_pages: int

    @property
    def num_bytes(self) -> int:
        """Bytes on the device: pages, and two lists of all pages' numbers, the host's too."""
        return self.pages * self.page_bytes + 2 * _ENTRY * (self.pages + self.host_pages)


def layers_at_once(schedule: Schedule, stage: int, microbatches: int, of_chunk: Sequence[int]) -> Layers:
    """Most layers with experts that wait at the same time on a rank of `stage`, in a step of `microbatches`.

    `of_chunk`: number of layers with experts in each of the rank's chunks.
    """
    order = actions(schedule, stage, lowered_microbatches(schedule, microbatches))
    counted = paged = now = 0
    for action, following in zip(order, (*order[1:], None), strict=True):
        now += of_chunk[action.chunk] if action.forward else -of_chunk[action.chunk]
        stays = following is not None and action.forward and following.key == (False, *action.key[1:])
        counted, paged = max(counted, now), max(paged, now - (stays and of_chunk[action.chunk] > 0))
    return Layers(counted, paged)


def stash_buffers(plan: Plan, tokens: int, rows: int, microbatches: int) -> tuple[Buffer, ...]:
    """Buffers of the plan's rank; () without a stash or experts.

    `tokens`: of a microbatch in the rank's residual stream; `rows`: copies of tokens that its experts receive.
    Raises NotYet if the pages on the device do not hold them.
    """
    options = plan.framework.options
    block = next((found for layer in plan.layers if (found := plan.graph.experts_of(layer))), None)
    if block is None or not (isinstance(options, MegatronOptions) and options.moe_paged_stash):
        return ()
    layers = layers_at_once(plan.framework.schedule, plan.stage, microbatches,
                            [sum(plan.graph.experts_of(layer) is not None for layer in chunk) for chunk in plan.chunks])
    factor = options.moe_expert_rank_capacity_factor
    counts = int(rows_with_room(tokens, block.top_k, factor) // factor), fused_rows(
        rows, block.num_experts // plan.mesh.ep)
    return sized(paged_tensors(block), layers, counts, options)


def sized(tensors: Sequence[Paged], layers: Layers, counts: tuple[int, int], options: MegatronOptions) -> tuple[
        Buffer, ...]:
    """Buffers for the `tensors` of each layer; `counts`: rows of a rank if routing is balanced, and as they come.

    Raises NotYet if the pages on the device do not hold them.
    """
    made = list[Buffer]()
    page = options.moe_paged_stash_page_size
    for dtype, width, size in dict.fromkeys((one.dtype, one.width, one.size) for one in tensors):
        alike = [one.rows for one in tensors if (one.dtype, one.width) == (dtype, width)]
        pages, host = (_pages(alike, layers.counted, factor, counts, page) for factor in (
            options.moe_paged_stash_buffer_size_factor_cuda, options.moe_paged_stash_buffer_size_factor_cpu))
        made.append(Buffer(dtype, width, page * width * size, pages, host))
        _check(made[-1], layers.paged * sum(-(-(counts[1] // rows) // page) for rows in alike))
    return tuple(made)


def _pages(rows_of: Sequence[int], layers: int, factor: float, counts: tuple[int, int], page: int) -> int:
    """Pages for tensors of one buffer: a negative factor counts rows that came, any other one balanced ones."""
    return -(-int(layers * sum(counts[factor < 0] // rows for rows in rows_of) * abs(factor)) // page)


def _check(buffer: Buffer, needed: int) -> None:
    if needed > buffer.pages:
        fits = needed <= buffer.pages + buffer.host_pages
        then = "the rest goes to pages on the host" if fits else "the step runs again without (PagedStashRunner)"
        short = format_bytes((needed - buffer.pages) * buffer.page_bytes)
        raise NotYet(Problem(ON_DEVICE, f"not yet: pages of {buffer.dtype} x {buffer.width} are short by {short}: "
                             f"{then}"))
