"""The layer-wise optimizer of Megatron-Core: every parameter is updated whole, by one rank of its data parallel group.

Core 0.16.1 `optimizer/layer_wise_optimizer.py` (`dist_muon`). Parameters are sorted by size and dealt out to and fro,
dense ones over data and context parallel ranks, experts over theirs; a rank keeps master and states of its own alone,
and all gather what the others updated. Gradients are all-reduced and whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from simcore.form import COPIES, Shard
from simcore.framework import Dealt, Rule
from simcore.job import Job
from simcore.tensor import TensorSpec

__all__ = ["assumptions", "dealt"]

Parameter = tuple[int, bool, bool]
"""Elements on a rank, whether Muon updates it, whether it is an expert's."""


def dealt(job: Job, rules: Sequence[Rule], stages: tuple[tuple[int, ...], ...], axes: tuple[str, str]
          ) -> tuple[Dealt, ...]:
    """Who updates how much, for each pipeline rank."""
    if job.scenario.training.optimizer.name != "dist_muon":
        return ()
    made = []
    for rank in range(job.mesh.pp):
        layers = [layer for chunk in stages[rank::job.mesh.pp] for layer in chunk]
        # Muon's parameter groups come first, and sorting keeps their order.
        found = sorted(_parameters(job, rules, layers), key=lambda one: (one[0], not one[1]))
        shares = [_deal([one for one in found if one[2] == expert], job.mesh.axis(axes[expert]).size)
                  for expert in (False, True)]
        made.append(Dealt(axes, (shares[0], shares[1])))
    return tuple(made)


def assumptions(job: Job) -> tuple[tuple[str, str, str, str], ...]:
    """Of Muon, alone or layer-wise."""
    name = job.scenario.training.optimizer.name
    plain = (("training.optimizer.name", "muon_tp_mode blockwise, split query, key and value, no Nesterov momentum",
              "assumed", "core 0.16.1 optimizer/optimizer_config.py:260: defaults"),)
    shared = (("training.optimizer.name", "the rank that keeps most is shown apart; the others stand for one another",
               "assumed", "core 0.16.1 optimizer/layer_wise_optimizer.py: shard_params"),)
    return plain * name.endswith("muon") + shared * (name == "dist_muon")


def _parameters(job: Job, rules: Sequence[Rule], layers: Sequence[int]) -> Iterator[Parameter]:
    lives = {id(spec): next(rule.life for rule in rules if rule.matches(spec))
             for specs in job.graph.tensors for spec in specs}
    for layer in layers:
        for spec in job.graph.tensors[job.graph.layers[layer].kind]:
            if spec.trainable and spec.is_owned:
                life = lives[id(spec)]
                cuts = [(cut.dim, job.mesh.axis(axis).size) for axis, cut in life.rest.layout if isinstance(cut, Shard)]
                is_muons = any(name == "momentum_buffer" for name, _ in life.states)
                yield from [(_local(spec, cuts), is_muons, life.name == "expert")] * _copies(spec, cuts)


def _local(spec: TensorSpec, cuts: Sequence[tuple[int, int]]) -> int:
    return spec.numel // math.prod(size for dim, size in cuts if dim != COPIES)


def _copies(spec: TensorSpec, cuts: Sequence[tuple[int, int]]) -> int:
    return spec.copies // math.prod(size for dim, size in cuts if dim == COPIES)


def _deal(parameters: Sequence[Parameter], ranks: int) -> tuple[tuple[int, int], ...]:
    """(Muon's, Adam's) elements of each rank: 0, 1, ..., ranks - 1, ranks - 1, ..., 0, 0, 1, ..."""
    turns = [*range(ranks), *reversed(range(ranks))]
    shares = [[0, 0] for _ in range(ranks)]
    for number, (size, is_muons, _) in enumerate(parameters):
        shares[turns[number % len(turns)]][not is_muons] += size
    return tuple((muon, adam) for muon, adam in shares)
