"""Table of DeepSpeed without ZeRO (stage 0): options and their defaults, refusals, tensor policies.

DeepSpeed 0.19.6 (edaa72212): `runtime/engine.py`, see [Note: stage 0] in `simcore/frameworks/deepspeed/strategy.py`.
Keys of `zero_optimization` change nothing: the engine reads them for a stage above 0 alone.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from simcore.frameworks.common import transformers as _transformers
from simcore.frameworks.common.afterwards import trainer_afterwards
from simcore.frameworks.common.checkpoint_files import plain_files
from simcore.frameworks.common.kernels import torch_libraries
from simcore.frameworks.common.liger import loss_with
from simcore.frameworks.common.low_rank.refusals import APART, SERVED
from simcore.frameworks.common.low_rank.rules import of_projections, projecting
from simcore.frameworks.common.qlora import STORAGE_OPTION, STORAGES, is_packed
from simcore.frameworks.common.torch import (
    States,
    all_or_no_checkpoint,
    check_named_adapters,
    states_of,
    torch_optimizer,
)
from simcore.frameworks.deepspeed.experts import layers as experts
from simcore.frameworks.deepspeed.rules import lies_like
from simcore.frameworks.deepspeed.split.matrices import check_matrices, cuts_of
from simcore.frameworks.deepspeed.split.sequences import FORMAT_OPTION, FORMATS, check_shared, shared_format
from simcore.frameworks.deepspeed.states.low_bit import check_states, own_optimizer
from simcore.frameworks.deepspeed.strategy import WholeStrategy
from simcore.frameworks.deepspeed.table import IN_COMPUTE, LOSSES, VERSIONS, packed_weights
from simcore.frameworks.preference import check_preference
from simcore.inputs.optimizers import OPTIMIZERS
from simcore.placement.capabilities import ONE_STAGE, Capabilities
from simcore.placement.framework import Framework, Optimizer, Rule, TensorPolicy, UpdateTime
from simcore.placement.job import Draft
from simcore.placement.layout import Partial, Placements, TensorLayout
from simcore.recording.number_formats import PackedWeights

__all__ = ["options_around", "whole_table"]

AXIS: Final = "dp_replicate"
ENGINE: Final = "deepspeed 0.19.6 runtime/engine.py"
_OWN: Final = "torch_adam"
CAPABILITIES: Final = Capabilities(
    axes=(AXIS, "cp", "tp", "ep", "etp"),
    axes_refusal=("stage 0 cuts nothing: its ranks are dp_replicate (write mesh.dp_replicate, or framework: zero1 to "
                  "zero3 for ranks of dp_shard)", "deepspeed 0.19.6 runtime/zero/config.py stage"),
    fixed={"training.sequence_parallel": "False", "training.precision.experts": "auto",
           "training.optimizer.master": "fp32", **ONE_STAGE})


def options_around(implementation: str) -> dict[str, tuple[Any, ...]]:
    """Returns the options of stage 0 around the layers of `implementation`: name -> allowed values or types."""
    return {_OWN: (None, True, False), FORMAT_OPTION: FORMATS, STORAGE_OPTION: STORAGES,
            **experts.LAYERS[implementation].options}


def whole_table(job: Draft) -> Framework:
    """Returns the table of stage 0 for a job: layouts of all tensors, settings.

    Raises IllegalLayout, InputError or NotYet for a job that is not served.
    """
    options = job.options(options_around(job.graph.implementation))
    _check(job, options)
    strategy = _strategy(job, options)
    return Framework(
        name="zero0", version=VERSIONS[0],
        rules=projecting(job, experts.with_experts(job, _rules(
            strategy.axis or AXIS, job.compute, states_of(job, plain=True), packed_weights(job, options),
            cuts_of(job.graph) if job.mesh.tp > 1 else (), casts=strategy.casts))),
        units=(),
        strategy=strategy,
        optimizer=_optimizer(job, strategy),
        compute_dtype=job.compute,
        checkpoint=all_or_no_checkpoint(job),
        loss=job.auto("training.loss", job.scenario.training.loss, *loss_with(options, _transformers.DEFAULTS.loss)),
        sequence_parallel=False,
        stages=(tuple(range(len(job.graph.layers))),),
        options=replace(experts.LAYERS[job.graph.implementation].layer_options(job, options),
                        embeddings_require_grad=_transformers.replayed(job),
                        sequences="heads", shards="tensors",
                        patches_require_grad=_transformers.asks_patches(job, options)),
        communicators=tuple(name for name in (strategy.axis, "cp", "tp", *experts.axes_of(job))
                            if name and job.mesh.axis(name).size > 1),
        files=experts.files_of(job, plain_files(job)),
        afterwards=trainer_afterwards(job, job.compute, whole=True),
        libraries=torch_libraries(job, options),
        assumptions=(*experts.assumptions(job), *of_projections(job)),
    )


def _check(job: Draft, options: dict[str, Any]) -> None:
    if job.compute not in ("bf16", "fp16", "fp32"):
        raise job.not_yet("training.precision.compute", f"{job.compute} under {job.scenario.framework}")
    CAPABILITIES.check(job)
    check_states(job)
    experts.refuse_capacity(job)
    experts.LAYERS[job.graph.implementation].check(job, options)
    experts.check_experts(job, 0)
    job.refuse_given(dict.fromkeys(IN_COMPUTE, job.compute))
    if job.scenario.training.method != "full":
        check_named_adapters(job)
    job.one_of("training.loss", job.scenario.training.loss, LOSSES)
    check_preference(job, options, second=True)
    check_shared(job, options)
    check_matrices(job)


def _strategy(job: Draft, options: dict[str, Any]) -> WholeStrategy:
    torchs = job.flag(options, _OWN, "the optimizer is the Trainer's (transformers 5.23 training_args.py); FusedAdam "
                      f"where DeepSpeed's configuration names Adam ({ENGINE} _configure_basic_optimizer)", default=True)
    axis = "dp_cp" if job.mesh.cp > 1 else AXIS
    return WholeStrategy(axis if job.mesh.axis(axis).size > 1 else "", not torchs and job.compute != "fp32",
                         job.compute != "fp32", shared_format(job, options, 0))


def _optimizer(job: Draft, strategy: WholeStrategy) -> Optimizer:
    optimizer, own = job.scenario.training.optimizer, job.scenario.framework_options.get(_OWN) is False
    if optimizer.name == "muon":
        raise job.illegal("training.optimizer.name", "muon under zero0: ZeRO's own stages make its updates; without "
                          "them matrices take plain steps along their gradients",
                          "deepspeed 0.19.6 runtime/zero/muon/muon_optimizer.py step")
    if own and not OPTIMIZERS[optimizer.name].is_adam:
        raise job.illegal(f"framework_options.{_OWN}", f"false with {optimizer.name}, which is no Adam",
                          f"{ENGINE} _configure_basic_optimizer")
    if own and optimizer.implementation not in ("auto", "fused"):
        raise job.illegal("training.optimizer.implementation", f"{optimizer.implementation}: DeepSpeed's own Adam is "
                          "one fused kernel (torch_adam: true for torch's)", "deepspeed 0.19.6 ops/adam/fused_adam.py")
    return own_optimizer(job) or torch_optimizer(
        job, "transformers 5.23 training_args.py: adamw_torch_fused from torch 2.8 on; deepspeed 0.19.6 "
        "ops/adam/fused_adam.py", "fused", plain=True, low_rank=SERVED if job.compute == "fp32" else APART)


@lru_cache(maxsize=64)
def _rules(axis: str, stored: str, kept: States, packed: PackedWeights | None, cuts: tuple[Placements, ...], *,
           casts: bool) -> tuple[Rule, ...]:
    """Rules of whole tensors: parameters and gradients in the format of products, masters and moments in fp32.

    `cuts`: every way in which ranks that share matrices cut one.
    """
    wide = TensorLayout((), "fp32")
    masters = ("master_param",) if casts else ()

    def policy(cut: Placements) -> TensorPolicy:
        rest = TensorLayout(cut, stored)
        return TensorPolicy("whole, tp" if cut else "whole", rest, rest,
                            TensorLayout((*cut, (axis, Partial())), stored), rest,
                            (*((name, TensorLayout(cut, "fp32")) for name in masters), *kept.of(cut, "fp32")))

    buffer = TensorPolicy("buffer", wide, wide, wide, wide, at_rest_category="buffer", updated=UpdateTime.NEVER)
    in_bits = () if packed is None else (Rule(is_packed, replace(
        policy(()), name="packed", at_rest=TensorLayout((), packed.storage, packed=packed))),)
    return (Rule(lambda t: t.is_buffer, buffer), *in_bits,
            *(Rule(lies_like(cut), policy(cut)) for cut in (*cuts, ())))
