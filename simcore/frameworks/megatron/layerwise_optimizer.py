"""The layer-wise optimizer of Megatron-Core: every parameter is updated whole, by one rank of its data parallel group.

Core 0.16.1 `optimizer/layer_wise_optimizer.py` (`dist_muon`). Parameters are sorted by size and assigned to ranks in
turn, forth and back, dense ones over data and context parallel ranks, experts over expert data parallel ranks; a rank
keeps master and states only of its own parameters, and all gather the updated ones. Gradients are all-reduced, whole.

[Note: layer-wise parts of buffers]
Main of 2026-08-22 (d98e8a64) puts Muon's parameters in buffers whose equal parts hold whole matrices, and gathers them
in place (`_compute_per_buffer_param_layout`; `training/arguments.py`, use_layer_wise_param_layout). Adam's parameters
are cut by elements, as the distributed optimizer does. Matrices, in falling order of their work to orthogonalise, go to
the rank with the least work until then, as long as it has at most 1.3 times the mean of elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from simcore.inputs.optimizers import OPTIMIZERS
from simcore.models.tensor import TensorSpec
from simcore.placement.framework import LayerwiseShards, Rule
from simcore.placement.job import Job
from simcore.placement.layout import COPIES, Shard

__all__ = ["assumptions", "dealt"]

Parameter = tuple[int, bool, bool, int]
"""Elements on a rank, whether Muon updates it, whether it is an expert's; work to orthogonalise it."""
_SLACK = 1.3


def dealt(job: Job, rules: Sequence[Rule], stages: tuple[tuple[int, ...], ...], axes: tuple[str, str], *,
          by_parts: bool = False) -> tuple[LayerwiseShards, ...]:
    """Returns, for each pipeline rank, how many elements each data-parallel rank updates with Muon and with Adam.

    Empty unless the optimizer is dist_muon. `stages`: layer numbers of each chunk of the model. `axes`: mesh axes over
    whose ranks (dense, expert) parameters are distributed. `by_parts`: [Note: layer-wise parts of buffers].
    """
    kind = OPTIMIZERS[job.scenario.training.optimizer.name]
    if not kind.layerwise:
        return ()
    made = []
    for rank in range(job.mesh.pp):
        layers = [layer for chunk in stages[rank::job.mesh.pp] for layer in chunk]
        # Muon's parameter groups come first, and sorting keeps their order.
        found = sorted(_parameters(job, rules, layers, kind.matrix_states), key=lambda one: (one[0], not one[1]))
        deal = _pack if by_parts else _deal
        shares = [deal([one for one in found if one[2] == expert], job.mesh.axis(axes[expert]).size)
                  for expert in (False, True)]
        made.append(LayerwiseShards(axes, (shares[0], shares[1]), in_place=by_parts))
    return tuple(made)


def assumptions(job: Job, *, packed: bool) -> tuple[tuple[str, str, str, str], ...]:
    """Returns the assumptions about Muon, each (key, value, kind of assumption, source).

    Empty for another optimizer. `packed`: [Note: layer-wise parts of buffers].
    """
    kind = OPTIMIZERS[job.scenario.training.optimizer.name]
    plain = (("training.optimizer.name", "muon_tp_mode blockwise, split query, key and value, no Nesterov momentum",
              "assumed", "core 0.16.1 optimizer/optimizer_config.py:260: defaults"),)
    shared = (("training.optimizer.name", "the rank that keeps most is shown apart; the others stand for one another",
               "assumed", "core 0.16.1 optimizer/layer_wise_optimizer.py: shard_params"),)
    parts = (("framework_options.use_layer_wise_param_layout", "matrices packed as if into one bucket", "assumed",
              "Megatron-LM main optimizer/layer_wise_optimizer.py: with overlap_grad_reduce there are several"),)
    return plain * bool(kind.matrix_states) + shared * kind.layerwise + parts * packed


def _parameters(job: Job, rules: Sequence[Rule], layers: Sequence[int],
                matrix_states: tuple[str, ...]) -> Iterator[Parameter]:
    policies = {id(spec): next(rule.policy for rule in rules if rule.matches(spec))
             for specs in job.graph.tensors for spec in specs}
    for layer in layers:
        for spec in job.graph.tensors[job.graph.layers[layer].kind]:
            if spec.trainable and spec.is_owned:
                policy = policies[id(spec)]
                cuts = [(cut.dim, job.mesh.axis(axis).size) for axis,
                        cut in policy.at_rest.placements if isinstance(cut, Shard)]
                is_muons = any(name in matrix_states for name, _ in policy.optimizer_states)
                size = _local(spec, cuts)
                work = size * min(size // spec.shape[1], spec.shape[1]) if len(spec.shape) > 1 else size
                yield from [(size, is_muons, policy.name == "expert", work)] * _copies(spec, cuts)


def _local(spec: TensorSpec, cuts: Sequence[tuple[int, int]]) -> int:
    return spec.numel // math.prod(size for dim, size in cuts if dim != COPIES)


def _copies(spec: TensorSpec, cuts: Sequence[tuple[int, int]]) -> int:
    return spec.copies // math.prod(size for dim, size in cuts if dim == COPIES)


def _deal(parameters: Sequence[Parameter], ranks: int) -> tuple[tuple[int, int], ...]:
    """(Muon's, Adam's) elements of each rank: 0, 1, ..., ranks - 1, ranks - 1, ..., 0, 0, 1, ..."""
    turns = [*range(ranks), *reversed(range(ranks))]
    shares = [[0, 0] for _ in range(ranks)]
    for number, (size, is_muons, *_) in enumerate(parameters):
        shares[turns[number % len(turns)]][not is_muons] += size
    return tuple((muon, adam) for muon, adam in shares)


def _pack(parameters: Sequence[Parameter], ranks: int) -> tuple[tuple[int, int], ...]:
    """(Muon's, Adam's) elements of each rank, in one bucket: whole matrices, and equal parts of all the rest."""
    muons = [one for one in parameters if one[1]]
    adams = sum(one[0] for one in parameters if not one[1])
    most = sum(one[0] for one in muons) / ranks * _SLACK
    held, work = [0] * ranks, [0] * ranks
    for size, _, _, cost in sorted(muons, key=lambda one: -one[3]):
        fitting = [rank for rank in range(ranks) if held[rank] + size <= most]
        rank = min(fitting, key=work.__getitem__) if fitting else min(range(ranks), key=held.__getitem__)
        held[rank] += size
        work[rank] += cost
    return tuple((muon, -(-adams // ranks)) for muon in held)
