"""Tensors received across stage boundaries: the tracker for a rank's schedule, and layers that give their buffers back.

Input: the plan of a rank and the recording of its layers. Output: `tracker`, which the walk over a step calls, and
numbers of layers.
"""

from __future__ import annotations

from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.record_layers import RecordedLayers, keys_of
from simcore.program.stage_borders import Edges
from simcore.program.stage_buffers import StageBuffers
from simcore.program.stage_inputs import StageInput, StageInputs
from simcore.recording.tape import HIDDEN

__all__ = ["refilled", "tracker", "unheld"]


def tracker(plan: Plan, builder: Builder, borders: tuple[Edges, ...],
            given: frozenset[int]) -> StageInput | StageInputs | StageBuffers:
    """Tracker for tensors received across stage boundaries. `given`: layers of `unheld`."""
    if plan.framework.buffered_microbatches:
        return StageBuffers(plan, builder, borders, given)
    return (StageInput if len(plan.chunks) == 1 else StageInputs)(plan, builder, borders)


def unheld(plan: Plan, recording: RecordedLayers) -> frozenset[int]:
    """First layers of the rank's chunks that drop their input in forward, as none of their operators saves it.

    A buffer that the stage keeps for its input is then the stage's again (torch 2.13 `distributed/pipelining/stage.py`,
    fwd_cache and args_recv_info).
    """
    if not plan.framework.buffered_microbatches:
        return frozenset()
    firsts = [chunk[0] for chunk in plan.chunks if chunk[0] > 0]
    tiles = {first: recording.kinds[keys_of(plan)[first]] for first in firsts}
    return frozenset(first for first in firsts
                     if any(offset == -1 and slot == HIDDEN for tile in (
                         *(tile for tile, _, _ in tiles[first].forward), tiles[first].after)
                            for offset, slot, _ in tile.nets.tolist()))


def refilled(plan: Plan, recording: RecordedLayers) -> frozenset[int]:
    """Last layers of the rank's chunks whose received gradient is the stage's buffer again when they have used it.

    Where backward is split, a layer's second part still uses it. Where something is sent beside the output, the layer
    uses a sum of gradients, and the buffer is the stage's all the time.
    """
    split = plan.framework.schedule.splits_backward
    if not plan.framework.buffered_microbatches or split or len(recording.edges.keep_beside.rows):
        return frozenset()
    return frozenset(chunk[-1] for chunk in plan.chunks if chunk[-1] + 1 < len(plan.graph.layers))
