"""How Megatron's tensors live: cut over tensor and expert parallel ranks by the names of their dimensions.

Optimizer states are cut over data parallel ranks on top, dense and experts' over their own.
"""

from __future__ import annotations

from simcore.form import COPIES, Flat, Form, Layout, Partial, Shard
from simcore.framework import Life, Matches, Moment, Rule
from simcore.frameworks._megatron_formats import Formats
from simcore.job import Job
from simcore.tensor import TensorSpec

__all__ = ["rules", "shard_axes"]

TP_DIMS = ("vocab", "heads", "ffn", "shared_ffn", "mamba_in", "mamba_conv", "mamba_heads", "mamba_inner", "tp_rank",
           "tp_in", "tp_out")
ETP_DIMS = ("expert_ffn", "etp_rank", "etp_in", "etp_out")


def rules(job: Job, made: Formats) -> tuple[Rule, ...]:
    """One rule for each way in which tensors are cut: by the names of their dimensions."""
    made_of: dict[tuple[tuple[str, ...], str, bool, bool], Rule] = {}
    for specs in job.graph.tensors:
        for spec in specs:
            key = (spec.dims, spec.component, spec.copies > 1, spec.is_buffer)
            if key not in made_of:
                made_of[key] = Rule(_same(key), _life(job, spec, made))
    return tuple(made_of.values())


def _same(key: tuple[tuple[str, ...], str, bool, bool]) -> Matches:
    def matches(spec: TensorSpec) -> bool:
        return (spec.dims, spec.component, spec.copies > 1, spec.is_buffer) == key

    return matches


def _is_expert(job: Job, spec: TensorSpec) -> bool:
    """Experts have buffers of their own only under expert parallelism.

    Core 0.16.1 extensions/transformer_engine.py: `param.allreduce = not (is_expert and expert_parallel)`.
    """
    return job.mesh.ep > 1 and spec.component in ("routed_experts", "expert_adapters")


def _layout(spec: TensorSpec) -> Layout:
    cut: list[tuple[str, Shard]] = []
    if spec.copies > 1:
        cut.append(("ep", Shard(COPIES, even=True)))
    for place, dim in enumerate(spec.dims):
        axis = "ep" if dim == "experts" else "tp" if dim in TP_DIMS else "etp" if dim in ETP_DIMS else ""
        if axis:
            cut.append((axis, Shard(place, even=True)))
    return tuple(cut)


def _life(job: Job, spec: TensorSpec, made: Formats) -> Life:
    layout = _layout(spec)
    if spec.is_buffer:
        form = Form((), spec.stored or made.params)
        return Life("buffer", form, form, form, form, rest_category="buffer")
    expert = _is_expert(job, spec)
    axis = shard_axes(job)[expert]
    whole: Layout = ((axis, Flat("buffer")),) if made.scatter else ()
    rest = Form(layout, made.params)
    return Life(
        "expert" if expert else "dense", rest, Form(layout, job.compute),
        Form((*layout, (axis, Partial())), made.grads), Form(layout, made.grads),
        _states(job, (*layout, *whole), made), Moment.NEVER, Moment.NEVER, Moment.BUCKET_FULL,
        grads_persist=True, rest_category="sharded_param", grad_made_category="")


def _states(job: Job, layout: Layout, made: Formats) -> tuple[tuple[str, Form], ...]:
    states: list[tuple[str, Form]] = [("master_param", Form(layout, made.master))]
    if job.scenario.training.optimizer.name != "sgd":
        states += [("exp_avg", Form(layout, made.moments)), ("exp_avg_sq", Form(layout, made.moments))]
    return tuple(states)


def shard_axes(job: Job) -> tuple[str, str]:
    """(dense, expert) axes over which optimizer states are cut; several optimizer instances cut a part of them."""
    copies = job.mesh.dp_replicate
    if copies == 1:
        return "dp_cp", "expert_dp"
    if job.mesh.expert_dp % copies:
        raise job.illegal("mesh.dp_replicate", f"expert data parallel size {job.mesh.expert_dp} must be divisible by "
                          f"{copies} optimizer instances", "core 0.16.1 parallel_state.py: "
                          "num_distributed_optimizer_instances")
    return "dp_shard_cp", f"expert_dp/{job.mesh.expert_dp // copies}"
