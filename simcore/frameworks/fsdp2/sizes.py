"""Sizes of a plan from which FSDP2's hooks compute the amounts in their rows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from simcore.frameworks.common.optimizer_memory import OptimizerSizes, optimizer_sizes
from simcore.frameworks.fsdp2.unit_bytes import UnitBytes, Weigher
from simcore.models.blocks import Moe
from simcore.placement.plan import Plan

__all__ = ["Fsdp2Sizes", "fsdp2_sizes"]


@dataclass(frozen=True)
class Fsdp2Sizes:
    """Sizes of the buffers of each unit that the rank has, and of its optimizer's step (`program.hooks.Sizes`).

    `kinds`: sizes of units that differ; `units`: for each unit its index there. `is_on_host`: a CPU updates some.
    `counts`: bytes of the tokens of each expert, an fp32 number each, of all layers on the rank.
    """

    kinds: tuple[UnitBytes, ...]
    units: tuple[int, ...]
    optimizer: OptimizerSizes
    is_on_host: bool
    counts: int

    @property
    def weights(self) -> list[UnitBytes]:
        """Sizes of each unit."""
        return [self.kinds[kind] for kind in self.units]

    @property
    def numbers(self) -> tuple[int, ...]:
        """All sizes, as `renumbered` takes them."""
        update = self.optimizer
        return (*(size for kind in self.kinds for size in kind.numbers), update.held, update.flops, update.moved,
                update.newton_schulz, update.clipped, *update.messages, self.counts)

    @property
    def form(self) -> Hashable:
        """Settings on which rows depend besides sizes."""
        return self.units, self.is_on_host, tuple(kind.form for kind in self.kinds), len(self.optimizer.messages)

    def renumbered(self, numbers: Sequence[int]) -> Fsdp2Sizes:
        """Copy with other sizes."""
        left = iter(numbers)
        kinds = tuple(kind.renumbered(left) for kind in self.kinds)
        held, flops, moved, newton_schulz, clipped, *messages, counts = left
        update = OptimizerSizes(held, flops, moved, newton_schulz, clipped, tuple(messages))
        return Fsdp2Sizes(kinds, self.units, update, self.is_on_host, counts)


@lru_cache(maxsize=64)
def fsdp2_sizes(plan: Plan) -> Fsdp2Sizes:
    """Sizes of the plan's rank."""
    weigh, inside, numbers = Weigher(plan), set(plan.layers), dict[int, int]()
    weights = [weigh(unit) for unit in plan.framework.units if unit.first in inside]
    units = tuple(numbers.setdefault(id(weight), len(numbers)) for weight in weights)
    kinds = tuple({id(weight): weight for weight in weights}.values())
    away = any(placed.trainable and not placed.rests_here for kind, _ in plan.kind_counts
               for placed in plan.kinds[kind])
    return Fsdp2Sizes(kinds, units, optimizer_sizes(plan), away, 4 * sum(_experts(plan)))


def _experts(plan: Plan) -> list[int]:
    """Number of experts of each layer of the rank that has any."""
    blocks = (branch.block for layer in plan.layers
              for branch in plan.graph.kinds[plan.graph.layers[layer].kind].branches)
    return [block.num_experts for block in blocks if isinstance(block, Moe)]
