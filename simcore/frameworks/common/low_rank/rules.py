"""Weights that GaLore and APOLLO project, and the rules of a framework's table for them.

[Note: projected weights] transformers 5.23 `trainer_optimizer.py`, _setup_low_rank_optimizer: weights of `nn.Linear`
whose module's name holds one of the targets (`trainer_utils.py`, check_target_module_exists); all-linear: of all of
them. A head whose weight is the embedding's has none of its own. PEFT's factors are linears within the module that they
adapt. Experts that are one parameter are no linears. All other parameters get AdamW's moments. LLaMA-Factory ff6d4d12
`train/trainer_utils.py` chooses them by names in the same way.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

from simcore.frameworks.common.low_rank.refusals import LowRankUse
from simcore.frameworks.common.steps.low_rank import StepAlone
from simcore.frameworks.common.steps.projection import PROJECTOR, LowRankState, Part, Projection
from simcore.inputs.optimizers import LOW_RANK
from simcore.inputs.training import LowRank
from simcore.models.tensor import TensorSpec
from simcore.placement.framework import Optimizer, Rule, TensorPolicy
from simcore.placement.job import Draft, Job
from simcore.placement.layout import TensorLayout
from simcore.units import dtype_bytes

__all__ = ["UNKNOWN_LINEARS", "of_projections", "projecting", "projecting_optimizer"]

_SETUP: Final = "transformers 5.23 trainer_optimizer.py _setup_low_rank_optimizer"
UNKNOWN_LINEARS: Final = ("bailing_moe", "llama4_text", "mistral4", "nemotron-nas", "step3p5")
"""Families of repositories' own code, or without a class for text in transformers 5.23; Llama 4's router is a linear of
its own class."""
_PREFIX: Final = "base_model.model.model.language_model.layers."
_MASTER: Final = "master_param"
_FACTORS: Final = ("lora_a", "lora_b")


def projecting(job: Draft, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Returns the rules with one for projected weights before each, if the scenario's optimizer projects gradients."""
    asked = _settings(job)
    if asked is None:
        return rules
    return _with(rules, asked, _projection(job, asked))


@lru_cache(maxsize=64)
def _with(rules: tuple[Rule, ...], asked: LowRank, projection: Projection) -> tuple[Rule, ...]:
    """Equal settings share one tuple, by which policies of a model are cached."""
    return tuple(one for rule in rules for one in (_projected(rule, asked, projection), _whole(rule)))


def projecting_optimizer(job: Draft, use: LowRankUse) -> Optimizer:
    """Returns GaLore or APOLLO, whose own code is a loop over tensors; records what the scenario leaves open.

    `use`: whether it runs over the framework's parameters. IllegalLayout where upstream stops, NotYet where it runs and
    is not served.
    """
    optimizer, asked, at = job.scenario.training.optimizer, _settings(job), "training.optimizer"
    assert asked is not None
    projection = _projection(job, asked)
    use.check(job, is_drawn=projection.is_random)
    family = job.graph.architecture.family
    if job.graph.implementation != "hf" or job.graph.architecture.has_tower or family in UNKNOWN_LINEARS:
        raise job.not_yet(f"{at}.name", f"{optimizer.name} with layers of {family} of {job.graph.implementation}: with "
                          "a vision tower, or not by transformers' own linears")
    job.one_of(f"{at}.implementation", optimizer.implementation, ("auto", "for_loop"))
    job.one_of(f"{at}.moments", optimizer.moments, ("auto",))
    if optimizer.paged or optimizer.momentum:
        raise job.not_yet(f"{at}.name", f"{optimizer.name} with momentum or paged states")
    if job.scenario.training.method == "qlora" or job.scenario.training.lora.modules_to_save:
        raise job.not_yet(f"{at}.name", f"{optimizer.name} with qlora or modules_to_save")
    if optimizer.low_rank is None:
        job.note(f"{at}.low_rank", "rank 128 of all linears, std", "transformers 5.23 trainer_optimizer.py "
                 "_get_galore_optimizer, _get_apollo_optimizer; it asks for targets, LLaMA-Factory takes all")
    _check_targets(job, asked)
    _check_shapes(job, asked, projection)
    return Optimizer(optimizer.name, "for_loop")


def of_projections(job: Job) -> tuple[tuple[str, str, str, str], ...]:
    """Returns the assumptions about a step that projects gradients; () for other optimizers."""
    asked = _settings(job)
    if asked is None:
        return ()
    rows = [("training.optimizer.low_rank", "the step makes new projectors, as the first and each update_proj_gap-th "
             "does; those between hold less", "assumed", "galore-torch 1.0 galore_projector.py project"),
            ("time of projections", "as between new projectors; products by the bytes that they move", "assumed",
             "no time of an SVD is published or measured")]
    if not _projection(job, asked).is_random:
        rows.append(("workspace of an SVD", "a copy of its matrix, and none of cuSOLVER's own", "assumed",
                     "torch 2.13 native/cuda/linalg/BatchLinearAlgebraLib.cpp svd_cusolver"))
    return tuple(rows)


def _settings(job: Job) -> LowRank | None:
    optimizer = job.scenario.training.optimizer
    return (optimizer.low_rank or LowRank()) if optimizer.name in LOW_RANK else None


def _projection(job: Job, asked: LowRank) -> Projection:
    apollo = job.scenario.training.optimizer.name == "apollo"
    scales = ("tensor" if asked.scale_type == "tensor" else "channel") if apollo else ""
    return Projection(asked.rank, asked.proj_type, apollo and asked.proj != "svd", scales)


def _projected(rule: Rule, asked: LowRank, projection: Projection) -> Rule:
    """The rule for those tensors of `rule` that are projected."""
    return Rule(lambda spec: rule.matches(spec) and _is_target(spec, asked), _low(rule.policy, projection))


def _whole(rule: Rule) -> Rule:
    """The rule for all other tensors, which have AdamW's moments."""
    alone = StepAlone(dtype_bytes(_updated_in(rule.policy)))
    return Rule(rule.matches, replace(rule.policy, step_alone=alone)) if rule.policy.optimizer_states else rule


def _low(policy: TensorPolicy, projection: Projection) -> TensorPolicy:
    """The policy with states of low rank, in the dtype of the gradient, in place of the two moments."""
    dtype = _updated_in(policy)
    size = dtype_bytes(dtype)

    def layout(part: Part) -> TensorLayout:
        return TensorLayout(policy.at_rest.placements, dtype, extent=LowRankState(projection, part, size))

    names: dict[str, Part] = {PROJECTOR: "projector"}
    names |= {name: "moment" for name, _ in policy.optimizer_states if name != _MASTER}
    if projection.scales:
        names["scaled_grad"] = "norm"
    masters = tuple(one for one in policy.optimizer_states if one[0] == _MASTER)
    states = (*masters, *((name, layout(part)) for name, part in names.items()))
    return replace(policy, name=f"{policy.name}, projected", optimizer_states=states,
                   step_alone=StepAlone(size, projection))


def _updated_in(policy: TensorPolicy) -> str:
    """Dtype of the gradient that the optimizer sees: the master's, if a parameter has one."""
    return next((layout.dtype for name, layout in policy.optimizer_states if name == _MASTER), policy.grad.dtype)


def _is_target(spec: TensorSpec, asked: LowRank) -> bool:
    name, targets = _module(spec), asked.target_modules
    return bool(name) and (targets == "all-linear" or any(target in name for target in targets))


def _module(spec: TensorSpec) -> str:
    """Name of the `nn.Linear` in its layer whose weight the tensor is; "" for all others."""
    if spec.module == "linear" and len(spec.shape) == 2:
        return "lm_head" if spec.component in ("lm_head", "embedding") else spec.path
    is_factor = spec.module == "adapter" and len(spec.shape) == 2 and spec.path.rpartition(".")[2] in _FACTORS
    return spec.path if is_factor else ""


def _check_targets(job: Job, asked: LowRank) -> None:
    if asked.target_modules == "all-linear":
        return
    at = "training.optimizer.low_rank.target_modules"
    vague = [name for name in asked.target_modules
             if name in _PREFIX or not name.replace("_", "").replace(".", "").isalpha()]
    if vague:
        raise job.not_yet(at, f"{', '.join(vague)}: patterns, single layers, and parts of names that all modules share")
    found = [spec for layer in job.graph.layers for spec in job.graph.tensors[layer.kind] if _is_target(spec, asked)]
    if not found:
        raise job.illegal(at, f"No target modules found for {job.scenario.training.optimizer.name} "
                              f"({', '.join(asked.target_modules)})", _SETUP)


def _check_shapes(job: Job, asked: LowRank, projection: Projection) -> None:
    """Refuses projections that upstream's products or quotients stop at."""
    at = "training.optimizer.low_rank.proj_type"
    if projection.scales and projection.way == "full":
        raise job.illegal(at, "full rank projection is not implemented yet" if projection.is_random else
                          "'list' object has no attribute 'device'",
                          "apollo-torch 1.0.3 random_projector.py get_orthogonal_matrix, svd_projector.py project")
    trained = [spec for layer in job.graph.layers for spec in job.graph.tensors[layer.kind]
               if spec.trainable and spec.is_owned and _is_target(spec, asked)]
    for spec in trained:
        low, wide = projection.low(spec.shape), spec.shape[0] < spec.shape[1]
        if projection.scales == "channel" and low[wide] not in (1, spec.shape[wide]):
            raise job.illegal(at, f"{spec.name}: a factor for each of {low[wide]} channels of {spec.shape[wide]}: the "
                              "size of tensor a must match the size of tensor b",
                              "apollo-torch 1.0.3 apollo.py step: norm_dim is the shorter side's")
        if projection.way == "reverse_std" and not projection.scales and wide and low[0] <= low[1]:
            raise job.illegal(at, f"{spec.name}: mat1 and mat2 shapes cannot be multiplied ({low[0]} rows, rank "
                              f"{low[1]})", "galore-torch 1.0 galore_projector.py project_back")
