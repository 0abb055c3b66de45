"""`backend.te_fp8` under NeMo Automodel 0.7.0: recipes, which products are in 8 bits, the copies of weights that stay.

0.7.0 `components/models/common/utils.py` (TEFp8Config, BackendConfig), `recipes/llm/train_ft.py` (te_autocast around
forward); TransformerEngine 2.15, the version of its lock. `backend.linear: te` makes all linear layers of attention,
dense MLPs, shared experts and lm_head TransformerEngine's; `backend.experts: te` the routed experts. In 8 bits the
autocast takes whatever of both there is. What layers keep: `operators/automodel/te_fp8.py`.

[Note: lasting copies] Each module keeps its weight's copies from the step's first microbatch on and never frees them:
of the whole gathered weight, not of this rank's shard of it (`_fp8_workspaces`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

from simcore.frameworks.automodel.float8 import FLOAT8_OPTIONS, float8_assumptions, in_float8, runs_float8
from simcore.frameworks.common.te_recipes import check_device, scaling_of, weight_copies
from simcore.models.graph import ModelGraph
from simcore.models.tensor import TensorSpec
from simcore.operators.automodel.head import LINEAR_LOSSES
from simcore.operators.automodel.options import AutomodelOptions
from simcore.operators.automodel.sparse import SPARSE
from simcore.placement.job import Draft, Job
from simcore.recording.number_formats import Scaling

__all__ = ["FP8_OPTIONS", "fp8_assumptions", "in_fp8", "refuse_idle_formats", "with_fp8"]

RECIPES: Final = {"current": "tensorwise", "block": "blockwise", "mxfp8": "mxfp8"}
"""Upstream's words for the recipes."""
FP8_OPTIONS: Final = {
    "te_fp8": tuple(RECIPES), "backend.linear": ("te", "torch"), "backend.experts": ("torch_mm", "te")}
_AT: Final = "training.precision.compute"
_CONFIG: Final = "0.7.0 models/common/utils.py BackendConfig"


def in_fp8(job: Draft, options: dict[str, object]) -> ModelGraph:
    """Returns the job's model, its products of 8 bits marked, with the copies of weights that stay as buffers.

    Those of layers with experts are TransformerEngine's, of others torchao's (`float8`).

    Raises IllegalLayout for GPUs, shapes and backends without them, NotYet for layers that are not served in 8 bits.
    """
    if job.graph.implementation != "automodel" or job.graph.architecture.decoder not in SPARSE:
        return in_float8(job, options)
    if job.scenario.training.method != "full":
        raise job.not_yet("training.method", "adapters beside products in 8 bits under automodel")
    if any(_is_grouped(spec) and spec.module == "bias" for specs in job.graph.tensors for spec in specs):
        raise job.not_yet(_AT, "experts with biases in 8 bits under automodel")
    recipe = _recipe(job, options)
    check_device(job, recipe)
    linears, experts = _backends(job, options)
    scaling = scaling_of(job, recipe)
    linear_loss = job.scenario.training.loss in LINEAR_LOSSES
    _check_shapes(job, scaling, linears=linears, experts=experts)
    return _marked(job.graph, scaling, linears, experts, linear_loss)


def _recipe(job: Draft, options: dict[str, object]) -> str:
    said = job.auto("framework_options.te_fp8", str(options.get("te_fp8", "auto")), "current",
                    "0.7.0 models/common/utils.py TEFp8Config")
    return RECIPES[said]


def _backends(job: Draft, options: dict[str, object]) -> tuple[bool, bool]:
    """True for linear layers, and for routed experts, that are TransformerEngine's; its experts need a dispatcher."""
    linear = job.auto("framework_options.backend.linear", str(options.get("backend.linear", "auto")), "te",
                      f"{_CONFIG}: te where TransformerEngine is installed")
    experts = job.auto("framework_options.backend.experts", str(options.get("backend.experts", "auto")), "torch_mm",
                       f"{_CONFIG}: torch_mm on GPUs")
    grouped = experts == "te" and job.has_experts and job.mesh.ep > 1 and options.get("dispatcher") != "torch"
    if linear != "te" and not grouped:
        raise job.illegal("framework_options.backend.linear", "te_fp8 requires at least one TE backend (linear='te' or "
                          f"experts='te'), but got linear='{linear}', experts='{experts}'", _CONFIG)
    return linear == "te", grouped


def _check_shapes(job: Job, scaling: Scaling, *, linears: bool, experts: bool) -> None:
    rows, columns = (32, 32) if scaling.recipe == "mxfp8" else (8, 16)
    rule = "TransformerEngine 2.15 pytorch/utils.py assert_dim_for_fp8_exec; pytorch/tensor/mxfp8_tensor.py"
    training = job.scenario.training
    tokens = training.micro_batch_size * training.seq_len // job.mesh.cp
    if tokens % rows and linears:
        raise job.illegal("training.seq_len", f"{tokens} tokens of a microbatch: {scaling.recipe} requires a multiple "
                          f"of {rows}", rule)
    for specs in job.graph.tensors:
        for spec in specs:
            if (linears and _is_linear(spec)) or (experts and _is_grouped(spec)):
                out_features, in_features = _sides(spec)
                if out_features % rows or in_features % columns:
                    raise job.illegal(_AT, f"{spec.name} is {out_features} x {in_features}: {scaling.recipe} requires "
                                      f"multiples of {rows} and {columns}", rule)


def _is_linear(spec: TensorSpec) -> bool:
    return spec.module == "linear" and spec.is_owned


def _is_grouped(spec: TensorSpec) -> bool:
    return spec.component == "routed_experts"


def _sides(spec: TensorSpec) -> tuple[int, int]:
    """(output, input) features; Automodel's experts lie the other way round."""
    first, second = spec.shape[-2:]
    return (second, first) if _is_grouped(spec) else (first, second)


@lru_cache(maxsize=64)
def _marked(graph: ModelGraph, scaling: Scaling, linears: bool, experts: bool, linear_loss: bool) -> ModelGraph:  # noqa: FBT001 - a key of the cache
    """The model with its layers in 8 bits marked. Losses that take the head's weight do not call its module."""
    kinds, tensors = [], []
    for kind, specs in zip(graph.kinds, graph.tensors, strict=True):
        own = linears and not (linear_loss and kind.name == "head")
        chosen = [spec for spec in specs if (own and _is_linear(spec)) or (experts and _is_grouped(spec))]
        kinds.append(replace(kind, fp8=bool(chosen)))
        tensors.append((*specs, *(copy for spec in chosen for copy in _copies(spec, scaling))))
    return graph.with_kinds(tuple(kinds), tuple(tensors), [layer.kind for layer in graph.layers])


def _copies(spec: TensorSpec, scaling: Scaling) -> list[TensorSpec]:
    """[Note: lasting copies]; of experts one an expert."""
    lead = spec.shape[:-2]
    sizes = zip(("fp8", "fp8_columns"), weight_copies(scaling, *_sides(spec)), strict=True)
    return [TensorSpec(f"{spec.name}.{name}", (*lead, size), (*spec.dims[:-2], "bytes"), spec.component, "fp8", "uint8",
                       is_buffer=True, trainable=False) for name, size in sizes if size]


def with_fp8(job: Job, options: dict[str, object], layers: AutomodelOptions) -> AutomodelOptions:
    """Returns the layers' options with those of TransformerEngine's products in 8 bits, where the job has some."""
    if not job.narrow or runs_float8(job):
        return layers
    scaling = scaling_of(job, RECIPES[str(options.get("te_fp8", "current"))])
    grouped = {_is_grouped(spec) for specs in job.graph.tensors for spec in specs if spec.module == "fp8"}
    return replace(layers, fp8_recipe=scaling.recipe, fp8_transposes=scaling.transposes, fp8_linears=False in grouped,
                   fp8_experts=True in grouped)


def refuse_idle_formats(job: Draft, options: dict[str, object]) -> None:
    """Raises InputError for options of products in 8 bits that the job does not have."""
    float8 = runs_float8(job)
    for name in FP8_OPTIONS if float8 or not job.narrow else ():
        job.refuse_idle(options, name, "without products in 8 bits by TransformerEngine: memory is counted alike")
    for name in () if float8 else FLOAT8_OPTIONS:
        job.refuse_idle(options, name, "without products in 8 bits by torchao")


def fp8_assumptions(job: Job) -> tuple[tuple[str, str, str, str], ...]:
    """Returns what the report says about products in 8 bits, as (key, value, kind, source); () without them."""
    if not job.narrow or runs_float8(job):
        return float8_assumptions(job)
    told = "as TransformerEngine's modules under Megatron: inputs kept in fp8, whole copies of weights in fp8"
    return ((_AT, told, "derived", "TransformerEngine 2.15 module/{linear,grouped_linear,fp8_padding}.py, 0.7.0 "
             "models/common/utils.py, moe/experts.py, read, not run under Automodel"),)
