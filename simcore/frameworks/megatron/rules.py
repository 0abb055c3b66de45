"""Layouts of Megatron's tensors: cut over tensor and expert parallel ranks by the names of their dimensions.

Optimizer states are cut over data parallel ranks on top, dense and experts' over their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from simcore.frameworks.megatron.precision import Formats
from simcore.inputs.optimizers import OPTIMIZERS
from simcore.models.graph import ModelGraph
from simcore.models.tensor import TensorSpec
from simcore.placement.framework import Matches, Rule, TensorPolicy
from simcore.placement.job import Job
from simcore.placement.layout import COPIES, Flat, Partial, Placements, Shard, TensorLayout

__all__ = ["rank_numel", "rules", "rules_of", "shard_axes", "whole_layout"]

TP_DIMS = ("vocab", "heads", "ffn", "shared_ffn", "mamba_in", "mamba_conv", "mamba_heads", "mamba_inner", "tp_rank",
           "tp_in", "tp_out", "delta_in", "delta_conv", "value_heads")
ETP_DIMS = ("expert_ffn", "etp_rank", "etp_in", "etp_out")


@dataclass(frozen=True, slots=True)
class _Choice:
    """Settings that policies depend on, apart from the tensor.

    `axes`: see `shard_axes`; `splits_experts`: experts have groups of their own.
    """

    made: Formats
    compute: str
    axes: tuple[str, str]
    splits_experts: bool
    optimizer: str
    has_momentum: bool


def rules(job: Job, made: Formats) -> tuple[Rule, ...]:
    """Returns the table's rules: one for each way to cut tensors, by the names of their dimensions.

    `made`: dtypes of parameters, gradients and optimizer states.
    """
    optimizer = job.scenario.training.optimizer
    momentum = optimizer.momentum != 0
    return _rules(job.graph, _Choice(made, job.compute, shard_axes(job), _splits_experts(job), optimizer.name,
                                     momentum))


def _splits_experts(job: Job) -> bool:
    """True under expert parallelism, and on main where ranks cut experts' matrices otherwise than dense ones.

    Core 0.16.1 extensions/transformer_engine.py:1506; Megatron-LM d98e8a64 extensions/transformer_engine.py:2439.
    """
    is_main = job.scenario.framework_version.startswith("main")
    return job.mesh.ep > 1 or (is_main and job.mesh.etp != job.mesh.tp)


@lru_cache(maxsize=256)
def _rules(graph: ModelGraph, choice: _Choice) -> tuple[Rule, ...]:
    return rules_of(graph, lambda spec: _policy(spec, choice))


def rules_of(graph: ModelGraph, policy_of: Callable[[TensorSpec], TensorPolicy]) -> tuple[Rule, ...]:
    """Returns one rule for each set of tensors of `graph` that are cut alike; every tensor matches one.

    They have equal names of dimensions, component and stored dtype, and are all, or none, experts and buffers. The
    policy is `policy_of` the first of them.
    """
    made_of: dict[_Key, Rule] = {}
    for specs in graph.tensors:
        for spec in specs:
            key = _key(spec)
            if key not in made_of:
                made_of[key] = Rule(_same(key), policy_of(spec))
    return tuple(made_of.values())


_Key = tuple[tuple[str, ...], str, bool, bool, str]


def _key(spec: TensorSpec) -> _Key:
    return spec.dims, spec.component, spec.copies > 1, spec.is_buffer, spec.stored


def _same(key: _Key) -> Matches:
    def matches(spec: TensorSpec) -> bool:
        return _key(spec) == key

    return matches


def _is_expert(spec: TensorSpec, choice: _Choice) -> bool:
    """Experts may have buffers of their own (`_splits_experts`), those of multi-token prediction with them."""
    return choice.splits_experts and (spec.copies > 1 or spec.component in ("routed_experts", "expert_adapters"))


def whole_layout(spec: TensorSpec) -> Placements:
    """Returns a tensor's cuts by tensor and expert parallelism, as (mesh axis, `Shard`) pairs.

    Without those by data parallelism; empty for a tensor that is whole.
    """
    cut: list[tuple[str, Shard]] = []
    if spec.copies > 1:
        cut.append(("ep", Shard(COPIES, even=True)))
    for place, dim in enumerate(spec.dims):
        axis = "ep" if dim == "experts" else "tp" if dim in TP_DIMS else "etp" if dim in ETP_DIMS else ""
        if axis:
            cut.append((axis, Shard(place, even=True)))
    return tuple(cut)


def rank_numel(job: Job, layers: Iterable[int]) -> int:
    """Returns the elements of all parameters of `layers` (their numbers) on one rank, whole over data parallel ranks.

    What Megatron counts as `p.nelement()` before it wraps the model.
    """
    counts = Counter(job.graph.layers[layer].kind for layer in layers)
    return sum(count * _whole_numel(job, spec) for kind, count in counts.items()
               for spec in job.graph.tensors[kind] if not spec.is_buffer)


def _whole_numel(job: Job, spec: TensorSpec) -> int:
    numel = spec.numel * spec.copies
    for axis, _ in whole_layout(spec):
        numel //= job.mesh.axis(axis).size
    return numel


def _policy(spec: TensorSpec, choice: _Choice) -> TensorPolicy:
    placements, made = whole_layout(spec), choice.made
    if spec.is_buffer:
        layout = TensorLayout(placements, spec.stored or made.params)
        return TensorPolicy("buffer", layout, layout, layout, layout, at_rest_category="buffer")
    expert = _is_expert(spec, choice)
    axis = choice.axes[expert]
    dealt = OPTIMIZERS[choice.optimizer].layerwise  # whole parameters: a cut is the mean of all ranks
    whole: Placements = ((axis, Flat("buffer")),) if made.scatter or dealt else ()
    rest = TensorLayout(placements, spec.stored or made.params)
    return TensorPolicy(
        "expert" if expert else "dense", rest, TensorLayout(placements, choice.compute),
        TensorLayout((*placements, (axis, Partial())), made.grads), TensorLayout(placements, made.grads),
        _states(spec, (*placements, *whole), choice),
        grads_persist=True, at_rest_category="sharded_param", unreduced_grad_category="")


def _states(spec: TensorSpec, placements: Placements, choice: _Choice) -> tuple[tuple[str, TensorLayout], ...]:
    """[Note: optimizer on the host] core 0.16.1 optimizer/cpu_offloading/hybrid_optimizer.py.

    Whole parameters are given to the CPU until the fraction is reached: here the same share of each. Of theirs the host
    has the fp32 master, the moments, and gradients in pinned memory; the rest keeps an fp32 master on the device.
    """
    made, formats = choice.made, [("master_param", choice.made.master)]
    kind = OPTIMIZERS[choice.optimizer]
    kept = kind.matrix_states if kind.matrix_states and _is_matrix(spec) else kind.states
    formats += [(name, made.moments) for name in kept]
    if choice.has_momentum:
        formats += [(name, "fp32") for name in kind.momentum_states]
    if not made.offloaded:
        return tuple((name, TensorLayout(placements, dtype)) for name, dtype in formats)
    away = made.offloaded
    states = [(name, TensorLayout(placements, dtype, "host", away)) for name, dtype in formats]
    states.append(("grad_copy", TensorLayout(placements, "fp32", "host_pinned", away)))
    if away < 1:
        states += [(name, TensorLayout(placements, dtype, share=1 - away)) for name, dtype in formats]
    return tuple(states)


def _is_matrix(spec: TensorSpec) -> bool:
    """Tells whether Muon updates a parameter: those of two dimensions, but word embeddings and the output layer.

    Core 0.16.1 optimizer/muon.py:252; learned positions are matrices like others (language_module.py:181 marks the
    other two alone). Adam has the rest.
    """
    return len(spec.shape) == 2 and spec.dims[0] != "vocab"


def shard_axes(job: Job) -> tuple[str, str]:
    """Returns the mesh axes over which optimizer states of (dense, expert) parameters are cut.

    With several optimizer instances (dp_replicate) each instance's ranks cut them. IllegalLayout if experts do not
    divide.
    """
    copies = job.mesh.dp_replicate
    if copies == 1:
        return "dp_cp", "expert_dp"
    if job.mesh.expert_dp % copies:
        raise job.illegal("mesh.dp_replicate", f"expert data parallel size {job.mesh.expert_dp} must be divisible by "
                          f"{copies} optimizer instances", "core 0.16.1 parallel_state.py: "
                          "num_distributed_optimizer_instances")
    return "dp_shard_cp", f"expert_dp/{job.mesh.expert_dp // copies}"
