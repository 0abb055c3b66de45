"""`fp8.enabled` under NeMo Automodel 0.7.0: torchao's Float8Linear with a scale a tensor, gathered in fp8 by FSDP2.

0.7.0 `components/quantization/fp8.py` (apply_fp8_to_model: every linear layer but those that `filter_fqns` names and
those with a side that is no multiple of 16), `_transformers/infrastructure.py:714`: under FSDP2 the recipe's block
`compile` is not read, so the linears run without a compiler, as `operators/shared/float8_linear.py` has them. Layers
are Automodel's own dense ones, or transformers'.
"""

from __future__ import annotations

from typing import Final

from simcore.frameworks.common.te_recipes import check_device
from simcore.frameworks.common.torch import with_fp8_layers
from simcore.models.graph import ModelGraph
from simcore.models.tensor import TensorSpec
from simcore.operators.automodel.dense import DENSE
from simcore.placement.job import Draft, Job

__all__ = ["FLOAT8_OPTIONS", "float8_assumptions", "in_float8", "is_float8", "runs_float8"]

FLOAT8_OPTIONS: Final = {"fp8_all_gather": (True, False)}
_AT: Final = "training.precision.compute"
_SIDE: Final = 16
_RULE: Final = "torch 2.13 aten/src/ATen/native/cuda/ScaledBlas.cpp _scaled_mm"


def in_float8(job: Draft, options: dict[str, object]) -> ModelGraph:
    """Returns the job's model with its layers' linears marked; lm_head keeps its format.

    Raises IllegalLayout for GPUs and lengths that the products do not take, NotYet for what is not modelled.
    """
    family, mesh = job.graph.architecture.family, job.mesh
    if job.has_experts or (job.graph.implementation != "hf" and family not in DENSE):
        raise job.not_yet(_AT, f"{family} in 8 bits by torchao under automodel (served: {', '.join(DENSE)} and dense "
                          "layers of transformers)")
    if job.scenario.training.method != "full":
        raise job.not_yet("training.method", "adapters beside products in 8 bits under automodel")
    if options.get("fp8_all_gather") is not True:
        raise job.not_yet("framework_options.fp8_all_gather", "torchao's linears over weights that are gathered in 16 "
                          "bits under automodel (served: fp8_all_gather: true)")
    for axis, size in (("tp", mesh.tp), ("cp", mesh.cp), ("pp", mesh.pp)):
        if size > 1:
            raise job.not_yet(f"mesh.{axis}", "torchao's linears under automodel over more than data")
    if mesh.dp_shard * mesh.dp_replicate == 1:
        raise job.not_yet("mesh.dp_shard", "torchao's linears under automodel on one GPU, where nothing is gathered")
    check_device(job, "tensorwise")
    _check_shapes(job)
    return with_fp8_layers(job.graph)


def _check_shapes(job: Job) -> None:
    training = job.scenario.training
    tokens = training.micro_batch_size * training.seq_len
    if tokens % _SIDE:
        raise job.illegal("training.seq_len", f"{tokens} tokens of a microbatch: a product in 8 bits requires a "
                          f"multiple of {_SIDE}", _RULE)
    for specs in job.graph.tensors:
        for spec in specs:
            if is_float8(spec) and any(side % _SIDE for side in spec.shape):
                raise job.not_yet(_AT, f"{spec.name} of {spec.shape[0]} x {spec.shape[1]}, which torchao leaves in 16 "
                                  "bits")


def is_float8(spec: TensorSpec) -> bool:
    """True for the weight of a linear layer that is converted."""
    return spec.module == "linear" and spec.component not in ("lm_head", "embedding") and len(spec.shape) == 2


def runs_float8(job: Job) -> bool:
    """True if the job's linears are torchao's."""
    return bool(job.narrow) and not any(spec.module == "fp8" for specs in job.graph.tensors for spec in specs)


def float8_assumptions(job: Job) -> tuple[tuple[str, str, str, str], ...]:
    """Returns what the report says about torchao's linears, as (key, value, kind, source); () without them."""
    if not runs_float8(job):
        return ()
    return ((_AT, "linears by torchao without a compiler; casts of shards before they are gathered are left out",
             "derived", "0.7.0 _transformers/infrastructure.py:714: compile_model is not called under FSDP2; torchao "
             "0.18 float8/float8_linear.py, measured alone"),)
