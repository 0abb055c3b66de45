"""torch's DistributedDataParallel, torch 2.13, around Hugging Face models; on one GPU plain training without it.

Parameters, gradients and states are unsharded on every rank, in the dtype of the products (`model.to(dtype)`): nothing
is cast. The only axis of the mesh is `dp_replicate`. Rules: `torch/nn/parallel/distributed.py`, see [Note: the reducer]
in `simcore/frameworks/ddp/strategy.py`. Buffers that are broadcast before forward (`broadcast_buffers`, rotary
frequencies) are not counted as traffic.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from simcore.frameworks.common import transformers as _transformers
from simcore.frameworks.common.afterwards import kept_logits, trainer_afterwards
from simcore.frameworks.common.autocast import AUTOCAST_OPTIONS, Mixed, head_given, is_widened, stays_wide, widens_at
from simcore.frameworks.common.checkpoint_files import plain_files
from simcore.frameworks.common.compiled_layers import LAYERS_ALONE
from simcore.frameworks.common.compiled_layers import assumptions as of_compiled_layers
from simcore.frameworks.common.expert_modules import LAYERS, check_autocast
from simcore.frameworks.common.kernels import FUSED, torch_libraries
from simcore.frameworks.common.liger import loss_with
from simcore.frameworks.common.low_rank.refusals import SERVED
from simcore.frameworks.common.low_rank.rules import of_projections, projecting
from simcore.frameworks.common.qlora import (
    EXPERTS_OPTION,
    OUTLIERS,
    SKIP_OPTION,
    STORAGE_OPTION,
    STORAGES,
    THRESHOLD_OPTION,
    TUNE_OPTION,
    is_cast_by_product,
    is_expert,
    is_head,
    is_packed,
    packed_of,
    packs_experts,
    packs_head,
)
from simcore.frameworks.common.torch import (
    States,
    all_or_no_checkpoint,
    check_named_adapters,
    is_hidden_matrix,
    states_of,
    torch_optimizer,
)
from simcore.frameworks.ddp.strategy import DdpStrategy
from simcore.frameworks.ddp.unsloth import (
    FAST_MERGE,
    FAST_OPTION,
    FAST_RELEASES,
    XFORMERS,
    adapter_dtype,
    asks_for_gradient,
    checkpointed,
    fast_layers,
    fast_mixed,
    kept_inputs,
)
from simcore.frameworks.preference import check_preference
from simcore.inputs.optimizers import OPTIMIZERS
from simcore.models.blocks import Attention
from simcore.models.class_blocks import ScaledPatches
from simcore.models.vision_blocks import Patches, RowPatches
from simcore.operators.hf.chunked import LM_HEAD
from simcore.operators.hf.options import HfOptions
from simcore.placement.afterwards import Afterwards
from simcore.placement.capabilities import ONE_STAGE, PLAIN_TORCH, Capabilities
from simcore.placement.framework import Framework, Rule, TensorPolicy, UpdateTime
from simcore.placement.job import Draft, Job
from simcore.placement.layout import Partial, Placements, TensorLayout
from simcore.recording.layer import KEPT, KEPT_ALONE, PREFERENCE
from simcore.recording.number_formats import PackedWeights

__all__ = ["VERSIONS", "options_around", "table"]

VERSIONS = ("torch 2.13",)
RULE: Final = "torch 2.13 torch/nn/parallel/distributed.py"
MIB: Final = 2**20
_RESTING: Final = ("mistral3", "qwen3_5", "qwen3_5_moe")
"""Families whose vision tower may rest."""
_WIDE: Final = "wide_embedding_states"
_WIDE_FRONTS: Final = (Patches, RowPatches, ScaledPatches)
_OF_ALL: Final[dict[str, tuple[Any, ...]]] = {
    "bucket_cap_mb": (None, int),
    "gradient_as_bucket_view": (None, True, False),
    "find_unused_parameters": (False,),
    "static_graph": (False,),
    "optimizer_in_bwd": (True, False),
    STORAGE_OPTION: STORAGES,
}
_OF_HF: Final[dict[str, tuple[Any, ...]]] = {
    "compile": (True, False, LAYERS_ALONE),
    **_transformers.LAYER_OPTIONS,
    "attn_implementation": (None, "eager", "sdpa", "flash_attention_2", "flex_attention", XFORMERS,
                            _transformers.VLLM_FLASH_ATTN3),
    "use_kernels": (True, False),
    FAST_OPTION: FAST_RELEASES,
    **AUTOCAST_OPTIONS,
    TUNE_OPTION: (True, False),
    THRESHOLD_OPTION: (None, float, 0),
    SKIP_OPTION: (None, list),
    EXPERTS_OPTION: (True, False),
    _WIDE: (True, False),
}
CAPABILITIES: Final = Capabilities(
    axes=("dp_replicate",),
    axes_refusal=("DistributedDataParallel replicates: its ranks are dp_replicate", RULE),
    offload=("activations",), fixed={**PLAIN_TORCH, **ONE_STAGE}, no_capacity=_transformers.NO_CAPACITY)
LOSSES: Final = ("auto", "hf", "hf_keep_logits", "cut", "liger", "chunked", LM_HEAD, *KEPT_ALONE, "log_probs",
                 *sorted(PREFERENCE))


def options_around(implementation: str) -> dict[str, tuple[Any, ...]]:
    """Returns the options that DDP takes around the layers of `implementation`: name -> allowed values or types."""
    return _OF_ALL | (_OF_HF if implementation == "hf" else dict(LAYERS[implementation].options)) | (
        {FAST_OPTION: FAST_RELEASES} if implementation == "hub" else {})


def table(job: Draft) -> Framework:
    """Returns DDP's table for a job: layouts of all tensors, settings.

    Raises IllegalLayout, InputError or NotYet for a job that is not served.
    """
    options = job.options(options_around(job.graph.implementation))
    _check(job, options)
    mixed = _mixed(job, options)
    check_preference(job, options, second=True)
    _check_tower(job, mixed)
    if mixed.autocast:
        check_autocast(job)
    options, stored = options | {"autocast": mixed.autocast}, mixed.stored  # on where fp32 parameters ask for it, too
    return Framework(
        name="ddp", version=VERSIONS[0],
        rules=projecting(job, _rules(
            stored, adapter_dtype(job, options, stored), job.compute, states_of(job, plain=True),
            _states_of_embeddings(job, options), packed_of(job, options),
            UpdateTime.GRADIENT_READY if options.get("optimizer_in_bwd") else UpdateTime.OPTIMIZER_STEP,
            head=packs_head(job, options), experts=packs_experts(job, options), mixed=mixed)),
        units=(),
        strategy=_reducer(job, options),
        optimizer=torch_optimizer(job, "torch 2.13 optim/adam.py: foreach by default on CUDA", "foreach", plain=True,
                                  by_matrix=not _alters_parameters(job, options), low_rank=SERVED),
        compute_dtype=job.compute,
        checkpoint=all_or_no_checkpoint(job),
        kept_inputs=kept_inputs(job, options),
        loss=job.auto("training.loss", job.scenario.training.loss, *loss_with(options, _transformers.DEFAULTS.loss)),
        sequence_parallel=False,
        stages=(tuple(range(len(job.graph.layers))),),
        options=_layer_options(job, options, mixed),
        communicators=("dp_replicate",) if job.mesh.dp_replicate > 1 else (),
        files=plain_files(job),
        afterwards=_afterwards(job, options, stored),
        libraries=torch_libraries(job, options),
        assumptions=_assumptions(job, options),
    )


def _afterwards(job: Job, options: dict[str, Any], stored: str) -> Afterwards:
    """Evaluation of transformers' Trainer and merge of PEFT; with Unsloth's layers its own merge on the device."""
    plain = trainer_afterwards(job, kept_logits(job, stored), whole=True)
    merges = options.get(FAST_OPTION) and job.scenario.checkpoint.merge == "device"
    return replace(plain, merge=FAST_MERGE) if merges else plain


def _check(job: Draft, options: dict[str, Any]) -> None:
    CAPABILITIES.check(job)
    _check_resting(job)
    LAYERS[job.graph.implementation].check(job, options)
    if options.get("optimizer_in_bwd") and job.mesh.dp_replicate > 1:
        raise job.not_yet("framework_options.optimizer_in_bwd", "an optimizer inside backward of gradients that are "
                          "reduced in buckets (torch's _apply_optimizer_in_backward)")
    if job.scenario.training.method != "full":
        check_named_adapters(job)
    _check_sinks(job, options)
    job.one_of("training.loss", job.scenario.training.loss, LOSSES)


def _check_sinks(job: Job, options: dict[str, Any]) -> None:
    """Refuses flash-attn with sinks, which get no gradient, so that a bucket is never full."""
    unused = str(options.get("attn_implementation", "")).startswith(("flash", "kernels"))
    sinks = any(isinstance(b.block, Attention) and b.block.sinks for kind in job.graph.kinds for b in kind.branches)
    if unused and sinks and job.mesh.dp_replicate > 1 and job.scenario.training.method == "full":
        raise job.illegal("framework_options.attn_implementation", "Expected to have finished reduction in the prior "
                          "iteration: sinks get no gradient from this kernel, and find_unused_parameters is off",
                          "torch 2.13 csrc/distributed/c10d/reducer.cpp ensure_prior_reduction_finished")


def _mixed(job: Draft, options: dict[str, Any]) -> Mixed:
    """Dtypes of mixed precision; gradients are reduced in the dtype in which parameters are stored."""
    mixed, requested = fast_mixed(job, options), job.scenario.training.precision.grad_reduce
    if requested not in ("auto", mixed.stored):
        raise job.not_yet("training.precision.grad_reduce", f"gradients reduced in {requested} by a hook")
    if options.get("compile") == LAYERS_ALONE and (mixed.autocast or options.get(FAST_OPTION)):
        raise job.not_yet("framework_options.compile", "compiled layers under autocast, or of Unsloth")
    return mixed


def _check_tower(job: Job, mixed: Mixed) -> None:
    """Raises NotYet for a vision tower some of whose parameters are in fp32 beside products in 16 bits.

    But for those that are recorded as axolotl leaves them, whose norms are cast back.
    """
    if not job.graph.architecture.has_tower or (mixed.stored == job.compute and not mixed.casts_back):
        return
    if mixed.stored != job.compute or not any(isinstance(kind.block, _WIDE_FRONTS) for kind in job.graph.kinds):
        raise job.not_yet("training.precision.params", "a vision tower with parameters in fp32 under autocast, as "
                          "prepare_model_for_kbit_training leaves it")


def _check_resting(job: Job) -> None:
    """Raises NotYet for a tower that is given no images but those that were measured, and for ranks that wait for it.

    Beside it their decoders run as they do in models of text (transformers 5.23 `models/qwen3_5`, `models/mistral3`).
    Others do not: Gemma 3 and 4 make masks of token types all the same, Qwen 2.5 VL and 3 VL three positions a token.
    """
    if not job.graph.architecture.resting:
        return
    family = job.graph.architecture.family
    if family not in _RESTING:
        raise job.not_yet("training.images", f"a model with a vision tower that is given text alone, of {family} under "
                          f"ddp (served: {', '.join(_RESTING)})")
    waits = job.scenario.training.method == "full" or any(
        spec.rests and spec.module == "adapter" for specs in job.graph.tensors for spec in specs)
    if waits and job.mesh.dp_replicate > 1:
        raise job.not_yet("training.images", "ranks whose buckets wait for gradients of a vision tower that is given "
                          "text alone (find_unused_parameters)")


def _reducer(job: Draft, options: dict[str, Any]) -> DdpStrategy:
    if job.mesh.dp_replicate == 1:
        return DdpStrategy()
    view = job.flag(options, "gradient_as_bucket_view", f"{RULE}: gradient_as_bucket_view=False", default=False)
    requested_mb = options.get("bucket_cap_mb")
    cap = job.auto("framework_options.bucket_cap_mb", "auto" if requested_mb is None else str(requested_mb), "25",
                   f"{RULE}: _set_bucket_cap_mb, 25 MiB; the first bucket 1 MiB if none is given")
    return DdpStrategy("dp_replicate", MIB if requested_mb is None else int(cap) * MIB, int(cap) * MIB, view)


def _layer_options(job: Draft, options: dict[str, Any], mixed: Mixed) -> HfOptions:
    """Options of the layers; bytes of kernels that are fused if compiled are known for torchao's weights only."""
    return replace(
        checkpointed(job, options, LAYERS[job.graph.implementation].layer_options(job, _attention(options))),
        embeddings_require_grad=_transformers.replayed(job) or asks_for_gradient(job, options),
        patches_require_grad=_transformers.asks_patches(job, options),
        autocast=mixed.autocast, wide_tower=mixed.casts_back and job.graph.architecture.has_tower,
        hidden=mixed.stream if mixed.autocast else "", widens_at=widens_at(job, mixed),
        head_given=head_given(job, mixed), wide_logits=job.scenario.training.loss in KEPT,
        compile=bool(options.get("compile")) and bool(options.get(TUNE_OPTION)),
        has_outlier_threshold=options.get(THRESHOLD_OPTION) != 0, unsloth=fast_layers(job, options))


def _attention(options: dict[str, Any]) -> dict[str, Any]:
    """Options of attention.

    FlexAttention keeps what flash-attn keeps: query, key, value, output and log-sum-exp of rows.
    """
    if options.get("attn_implementation") != "flex_attention":
        return options
    return options | {"attn_implementation": "flash_attention_2"}


def _assumptions(job: Job, options: dict[str, Any]) -> tuple[tuple[str, str, str, str], ...]:
    training = job.scenario.training
    rows = [OUTLIERS] if training.method == "qlora" and training.quantization.format == "int8" else []
    rows += [*of_compiled_layers(job, options), *of_projections(job)]
    if options.get("compile") is True:
        rows.append(("framework_options.compile", "layers as if they were eager, a chunked loss as compiled; "
                      f"their pointwise kernels move {FUSED} of the bytes", "assumed",
                      "not modelled: a compiled layer keeps no more than an eager one, and launches less"))
    if options.get("attn_implementation") == "flex_attention":
        rows.append(("framework_options.attn_implementation", "keeps and needs what flash-attn does", "assumed",
                      "torch 2.13 nn/attention/flex_attention.py: out and logsumexp; its block mask is not counted"))
    return tuple(rows)


def _alters_parameters(job: Job, options: dict[str, Any]) -> bool:
    """True if Muon is not served: where parameters are adapters, in fp32 in part, or updated in backward."""
    mixed = job.scenario.training.method != "full" or bool(options.get("optimizer_in_bwd"))
    return mixed or job.scenario.training.precision.params not in ("auto", "fp32", job.compute)


def _states_of_embeddings(job: Job, options: dict[str, Any]) -> States:
    """Settings of the optimizer for embeddings, which transformers' Trainer may except from 8 bits.

    [Note: states of embeddings] transformers 5.23 `trainer.py`, create_optimizer: beside 8-bit states of bitsandbytes
    it registers `optim_bits: 32` for the weight of every nn.Embedding, a tied head's too; a head of its own is a
    linear. Other ways to shard have parameters of their own, which bitsandbytes does not find (0.50.2
    `optim/optimizer.py`, check_overrides compares identities).
    """
    kept = states_of(job, plain=True)
    if not options.get(_WIDE):
        return kept
    if kept.low_bit != "bitsandbytes" or kept.moments != "int8":
        job.refuse_idle(options, _WIDE, "without moments of 8 bits by bitsandbytes")
    return replace(kept, moments="fp32")


@lru_cache(maxsize=64)
def _rules(stored: str, adapter: str, compute: str, kept: States, embeddings: States, packed: PackedWeights | None,
           updated: UpdateTime, *, head: bool, experts: bool, mixed: Mixed) -> tuple[Rule, ...]:
    """Rules of unsharded tensors.

    Adapters may have another dtype; frozen linears, the `head` and `experts` may be in 4 bits.
    """
    rest = TensorLayout((), "fp32")
    buffer = TensorPolicy("buffer", rest, rest, rest, rest, at_rest_category="buffer", updated=UpdateTime.NEVER)
    unsharded = _policy("whole", stored, kept, updated)
    in_bits: tuple[Rule, ...] = ()
    if packed is not None:
        in_bits = (Rule(lambda t: is_packed(t) or (head and is_head(t)) or (experts and is_expert(t)), replace(
            unsharded, name="packed", at_rest=TensorLayout((), packed.storage, packed=packed),
            in_use=TensorLayout((), compute))),)
    if packed is not None and packed.storage != "int8":
        in_bits += (Rule(is_cast_by_product, _policy("biases", compute, kept, updated)),)
    in_fp32 = _policy("wide", "fp32", kept, updated)
    wide = (Rule(stays_wide, in_fp32),) if mixed.casts_back else (Rule(is_widened, in_fp32),) if mixed.widens else ()
    factors = replace(buffer, name="factors", at_rest=TensorLayout((), stored))
    return (Rule(lambda t: t.module == "factors", factors), Rule(lambda t: t.is_buffer, buffer), *in_bits,
            Rule(lambda t: t.module == "adapter", _policy("adapters", adapter, kept, updated)), *wide,
            *([Rule(lambda t: t.module == "embedding", _policy("embeddings", stored, embeddings, updated))]
              if embeddings != kept else []),
            *([Rule(is_hidden_matrix, _policy(f"whole, {kept.name}", stored, kept, updated, hidden=True))]
              if OPTIMIZERS[kept.name].matrix_states else []),
            Rule(lambda t: True, unsharded))


def _policy(name: str, stored: str, kept: States, updated: UpdateTime, *, hidden: bool = False) -> TensorPolicy:
    summand: Placements = (("dp_replicate", Partial()),)
    rest = TensorLayout((), stored)
    return TensorPolicy(name, rest, rest, TensorLayout(summand, stored), rest,
                kept.of((), stored, hidden=hidden), updated=updated)
