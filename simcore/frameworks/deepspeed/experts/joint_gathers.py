"""Gathers of AutoEP's parameters under ZeRO-3 that DeepSpeed waits for together, and the point at which it stops.

[Note: gathers over two groups] DeepSpeed 0.19.6 `runtime/zero/partition_parameters.py`: what is gathered ahead is sent
for each group of ranks, and all its handles are one (MultipleAllGatherHandles), for which every parameter's own module
waits again. The handle of a group's only parameter marks it as there each time (AllGatherHandle.wait, NoGatherHandle),
also if its own module is over and its data are freed by then. The next module that uses it in the step finds nothing,
and stops ("size mismatch, ... vec (0)"). A step ends with all parameters parted (stage3.py, _partition_all_parameters).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from simcore.errors import IllegalLayout, Problem
from simcore.frameworks.deepspeed.experts.layers import axis_of
from simcore.placement.plan import Plan

__all__ = ["JointGathers", "by_ranks"]

Key = tuple[int, int, int]
"""(layer number of the whole model, index in the layer, expert) of a parameter."""
_RULE = "deepspeed 0.19.6 runtime/zero/partition_parameters.py AllGatherHandle.wait"


def by_ranks(plan: Plan, keys: Sequence[Key]) -> list[tuple[str, list[Key]]]:
    """Returns (mesh axis, parameters) of what one gather of several sends (`all_gather_coalesced`, params_by_group)."""
    axes = {key: axis_of(plan.of_layer(key[0])[key[1]]) for key in keys}
    return [(axis, [key for key in keys if axes[key] == axis]) for axis in dict.fromkeys(axes.values())]


class JointGathers:
    """Gathers over several groups of ranks of which parameters were not requested yet, at one point of the step.

    [Note: gathers over two groups].
    """

    def __init__(self) -> None:
        self.kept: list[tuple[set[Key], list[Key]]] = []
        self.lost = set[Key]()

    def arrived(self, groups: Sequence[Sequence[Key]]) -> None:
        """Adds a gather that a module has waited for, as the parameters of each of its groups of ranks."""
        alone = [keys[0] for keys in groups if len(keys) == 1]
        if alone and len(groups) > 1:
            self.kept.append(({key for keys in groups for key in keys}, alone))

    def asked(self, keys: Iterable[Key], there: Container[Key], coming: Container[Key]) -> None:
        """Takes the parameters `keys` that a module requests, beside those that are there and those on their way.

        Raises IllegalLayout where the module uses one that is marked as there, but freed.
        """
        asked = set(keys)
        if self.lost & asked:
            raise IllegalLayout(Problem(
                "framework_options.stage3_prefetch_bucket_size", "DeepSpeed stops: a parameter that it gathered ahead "
                "together with one of other ranks is freed, but marked as there, when a module uses it again "
                "(stage3_prefetch_bucket_size: 0 gathers none together; a larger stage3_max_reuse_distance frees "
                "none before)", _RULE))
        for waiting, alone in self.kept:
            if waiting & asked:
                self.lost.update(key for key in alone if key not in there and key not in coming)
                waiting.difference_update(asked)
        self.kept = [gather for gather in self.kept if gather[0]]

    def begin_microbatch(self) -> None:
        """Forgets gathers that no module has requested: they are released."""
        self.kept.clear()

    def end_step(self) -> None:
        """Forgets what is marked as there: all parameters are parted again."""
        self.lost.clear()
