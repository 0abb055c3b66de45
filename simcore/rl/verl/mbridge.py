"""Export of Megatron's parameters by mbridge, tensor after tensor: what a rank holds of it at once.

[Note: mbridge's export]
mbridge 0.15.1 (which verl b178a3cd installs) `core/bridge.py:297` export_weights, `core/util.py:292`
broadcast_from_megatron_pp. Every rank goes through the parameters of all stages: the stage that has one broadcasts its
part to the others, which receive it in a tensor of their own; parts of tensor-parallel ranks are gathered in a list and
concatenated, those of a gated MLP twice (gates, ups, and both: `_weight_merge_across_tp`); queries, keys and values are
copied apart (`_weight_to_hf_format`), gates and ups are views. An expert of each rank is gathered, and these are merged
and passed on one after the other. Names of the loop keep a tensor until the next takes its place: the whole of the one
before is there while the next is gathered, and what of it was passed on until the next is. Collectives are those of
Megatron-Bridge (`refit.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simcore.placement.mesh import Mesh
from simcore.placement.plan import Placed, Plan
from simcore.rl.step.refit import Gathered, gathered
from simcore.timing.routes import Routes

__all__ = ["Exported", "exported", "highest", "of_placed", "pieces"]

_SENT: Final = 2
"""Bytes of an element: parameters are in 16 bits."""
_QKV, _GATED = "linear_qkv.weight", "linear_fc1.weight"


@dataclass(frozen=True, slots=True)
class Exported:
    """One parameter of the export, bytes of each step.

    `part`: that a stage sends; `gathers`: of all ranks' parts; `merges`: made of them at once; `copies`: passed on
    apart. `stays`: of the gathered and merged after it; `kept`: of what was passed on, until the next is. `largest`: of
    the largest tensor that is passed on; `among`: of the expert before that was gathered with it.
    """

    part: int
    gathers: int
    merges: int
    copies: int
    stays: int
    kept: int
    largest: int
    among: int = 0


def exported(plans: Sequence[Plan], routes: Routes) -> Gathered:
    """Sizes in bytes and time in ns of the export; `plans`: of one rank of each pipeline stage."""
    found = list(_parameters(plans))
    return replace(gathered(plans, routes), transient=highest(found), largest=max(one.largest for one in found))


def pieces(plans: Sequence[Plan]) -> Iterator[int]:
    """Bytes of the tensors that are passed on, in order: gates and ups, queries, keys and values apart."""
    for plan in plans:
        for placed in _placed(plan):
            yield from _pieces(placed)


def _placed(plan: Plan) -> Iterator[Placed]:
    return (placed for layer in plan.layers for placed in plan.of_layer(layer)
            if placed.spec.is_owned and not placed.spec.is_buffer)


def _pieces(placed: Placed) -> list[int]:
    size = placed.spec.numel * _SENT
    if placed.spec.name.endswith(_GATED):
        return [size // 2] * 2 * placed.spec.copies
    return [size] * placed.spec.copies


def _parameters(plans: Sequence[Plan]) -> Iterator[Exported]:
    for plan in plans:
        for placed in _placed(plan):
            times = min(2, max(1, placed.spec.copies // plan.mesh.ep)) if placed.spec.copies > 1 else 1
            yield from [of_placed(placed, plan.mesh)] * times  # all after the second are as it


def of_placed(placed: Placed, mesh: Mesh) -> Exported:
    """Bytes of one parameter's export, of experts of one on each rank."""
    full = placed.spec.numel * _SENT
    part = math.prod(placed.used_shape) * _SENT if mesh.pp > 1 else 0
    gated, apart = placed.spec.name.endswith(_GATED), full if placed.spec.name.endswith(_QKV) else 0
    largest = full // 2 if gated else full
    if placed.spec.copies > 1:
        return _expert(full, part, mesh, gated=gated)
    if full == math.prod(placed.used_shape) * _SENT:
        return Exported(part, 0, 0, apart, 0, apart or part, largest)
    return Exported(part, full, full * (1 + gated), apart, full, apart or full, largest)


def _expert(full: int, part: int, mesh: Mesh, *, gated: bool) -> Exported:
    """One expert of each rank: gathered together, then merged one after the other, with tp even if it is whole."""
    gathers, merged = full * mesh.ep * (mesh.ep > 1), full * (mesh.tp > 1)
    return Exported(part, gathers, merged * (1 + gated), 0, gathers + merged, full if gathers or merged else part,
                    full // 2 if gated else full, merged * (mesh.ep > 1))


def highest(found: Sequence[Exported]) -> int:
    """Most bytes at once on a rank, of another stage than the tensor's if there are several."""
    most = before = kept = received = 0
    for one in found:
        most = max(most, before + received + one.part, before + one.part + one.gathers,
                   one.part + one.gathers + one.merges + max(kept, one.among),
                   one.part + one.stays + one.copies + kept)
        before, kept = (one.stays or one.part) + one.copies, one.kept
        received = one.part if one.stays else 0  # otherwise it is the whole
    return most
