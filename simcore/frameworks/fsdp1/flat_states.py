"""States of bitsandbytes over flat parameters of FSDP1: what a part is decides whether it is paged or in 8 bits.

bitsandbytes 0.50.2 `optim/optimizer.py`: get_state_buffer pages states of 100,000 values or more, init_state keeps
those of fewer than 4096 in fp32. Without `use_orig_params` the optimizer's parameters are a rank's parts of flat ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from simcore.models.tensor import TensorSpec
from simcore.placement.framework import Rule, TensorPolicy, Unit
from simcore.placement.job import Job
from simcore.placement.layout import TensorLayout

__all__ = ["by_parts"]

_Group = tuple[int, frozenset[TensorSpec]]


def by_parts(job: Job, rules: tuple[Rule, ...], units: Sequence[Unit], ranks: int) -> tuple[Rule, ...]:
    """Returns the rules with states that are formatted by the elements of their unit's part; `ranks` share a unit.

    Raises NotYet for equal tensors, in units of several sizes, whose states would differ.
    """
    formats = [layout for rule in rules for _, layout in rule.policy.optimizer_states]
    limits = {layout.least_away for layout in formats} | {layout.blocks.least for layout in formats if layout.blocks}
    if limits <= {0}:
        return rules
    groups: dict[int, set[TensorSpec]] = {}
    for unit in units:
        specs = [spec for layer, numbers in unit.members for spec in (
            job.graph.tensors[job.graph.layers[layer].kind][number] for number in numbers) if spec.is_owned]
        part = -(-sum(spec.numel * spec.copies for spec in specs) // ranks)
        groups.setdefault(max((limit for limit in limits if limit <= part), default=0), set()).update(specs)
    if sum(map(len, groups.values())) > len(set().union(*groups.values())):
        raise job.not_yet("training.optimizer.moments", "states of 8 bits or paged ones over flat parameters of "
                          "several sizes, which keep states of equal tensors differently (served: use_orig_params)")
    return _grouped(rules, tuple(sorted(((least, frozenset(specs)) for least, specs in groups.items()),
                                        key=lambda group: group[0])))


@lru_cache(maxsize=64)
def _grouped(rules: tuple[Rule, ...], groups: tuple[_Group, ...]) -> tuple[Rule, ...]:
    """Equal settings share one tuple, by which policies of a model are cached."""
    part_of: Mapping[TensorSpec, int] = {spec: part for part, specs in groups for spec in specs}
    return tuple(one for rule in rules for one in (
        *(_for(rule, part, part_of) for part, _ in groups if rule.policy.optimizer_states), rule))


def _for(rule: Rule, part: int, part_of: Mapping[TensorSpec, int]) -> Rule:
    """The rule for tensors in parts of at least so many elements, and of fewer than the next limit."""
    return Rule(lambda t: part_of.get(t) == part and rule.matches(t), _formatted(rule.policy, part))


def _formatted(policy: TensorPolicy, part: int) -> TensorPolicy:
    """Its states in a part of so many elements; what is in fp32 has no scales."""
    return replace(policy, optimizer_states=tuple(
        (name, _settled(layout, part)) for name, layout in policy.optimizer_states
        if layout.blocks is None or layout.blocks.part != "scales" or part >= layout.blocks.least))


def _settled(layout: TensorLayout, part: int) -> TensorLayout:
    """The layout of a state in a part of so many elements, whatever a tensor's share of it is."""
    known = replace(layout, space=layout.space_of(part), least_away=0)
    if layout.blocks is None:
        return known
    if part < layout.blocks.least:
        return replace(known, dtype=layout.blocks.otherwise, blocks=None)
    return replace(known, blocks=replace(layout.blocks, least=0))
