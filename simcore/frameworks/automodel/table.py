"""NeMo Automodel 0.7.0: FSDP2 units over a dense mesh, experts over their own (ep_shard x ep) mesh.

`main 2026-06-08` is a snapshot before it (77f112399), only for DeepSeek-V3.

[Note: Automodel's two paths]
With ep > 1 `moe/parallelizer.py` wraps experts (when ep_shard > 1), the fp32 Mamba holder, the block, embedding, head
and inner model, and nothing is resharded after forward unless asked (`MoEParallelizerConfig.reshard_after_forward`,
False). With ep = 1 layers are wrapped and resharded, embedding and head only if they train: Nemotron-H by
`models/nemotron_v3/parallelization.py`, all others by `distributed/parallelizer.py`, which keeps the last layer
gathered and tied tables with the root, and gathers ahead by order if `enable_fsdp2_prefetch` says so (False,
`distributed/config.py:344`, though its text says True). Experts are cut on dimension 0 over ep and on dimension 1 over
ep_shard, which takes in dp_replicate: they are never replicated by HSDP, and `expert_dp` here is Automodel's
`ep_shard`. Parameters rest in the checkpoint's bf16 and so do Adam's moments; A_log, D and dt_bias stay fp32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

from simcore.frameworks.automodel.assumptions import assumptions, is_forced
from simcore.frameworks.automodel.attention import (
    ATTENTION_OPTION,
    ATTENTIONS,
    BACKENDS,
    attention_library,
    attention_of,
    rings_by_te,
    rope_of,
    runs_flex,
    te_calls,
    with_backend,
)
from simcore.frameworks.automodel.checks import QUANTISED, check
from simcore.frameworks.automodel.compiled import COMPILE_OPTIONS, runs_compiled
from simcore.frameworks.automodel.families import BY_TRANSFORMERS, has_mixer, trains_stem
from simcore.frameworks.automodel.float8 import FLOAT8_OPTIONS, is_float8, runs_float8
from simcore.frameworks.automodel.lora import EFFICIENT_OPTION, runs_by_operators
from simcore.frameworks.automodel.norms import NORM_NAME, NORM_OPTIONS, with_norms
from simcore.frameworks.automodel.optimizers.choice import OPTIMIZER_OPTIONS, kept_states, matrix_rules, optimizer_of
from simcore.frameworks.automodel.pipeline import (
    STAGE_OPTIONS,
    deferred_reduction,
    held_by_stages,
    schedule_of,
    stages_of,
)
from simcore.frameworks.automodel.policies import (
    EVERY,
    NEMO_RL,
    OLDER,
    POLICY_OPTIONS,
    casts_outputs,
    grad_passes,
    hub_options,
    is_older,
    loss_by_default,
    patched_by_liger,
    rests_on_host,
    stored_by_default,
    ties_again,
    trains_policies,
    unreplayed,
)
from simcore.frameworks.automodel.te_fp8 import FP8_OPTIONS, refuse_idle_formats, with_fp8
from simcore.frameworks.automodel.tensor_parallel import (
    SPLITS,
    gathers_logits,
    is_cut_late,
    split_by_inputs,
    split_of,
    turns_adapters_from,
)
from simcore.frameworks.automodel.token_exchange import dispatcher_of
from simcore.frameworks.automodel.units import is_sharded, units
from simcore.frameworks.common import transformers as _transformers
from simcore.frameworks.common.afterwards import AUTOMODEL_FILES, AUTOMODEL_LOOP, trainer_afterwards
from simcore.frameworks.common.checkpoint_files import automodel_files
from simcore.frameworks.common.hot_ranks import fullest_load
from simcore.frameworks.common.kernels import SDPA_BACKENDS
from simcore.frameworks.common.liger import LIGER_OPTION, every_kernel
from simcore.frameworks.common.qlora import STORAGE_OPTION, STORAGES, is_packed, packed_of
from simcore.frameworks.common.torch import States, all_or_no_checkpoint
from simcore.frameworks.fsdp2.strategy import Fsdp2Strategy
from simcore.models.blocks import Attention, GatedDeltaNet
from simcore.operators.automodel.options import RELEASE_0_7_0, SNAPSHOT_2026_06_08, AutomodelOptions, Dispatcher
from simcore.operators.hf.options import HfOptions
from simcore.placement.framework import Framework, Padding, Rule, TensorPolicy
from simcore.placement.job import Draft, Job
from simcore.placement.layout import Partial, Placements, Shard, TensorLayout
from simcore.placement.libraries import KernelLibraries
from simcore.recording.number_formats import PackedWeights
from simcore.recording.options import ImplementationOptions

__all__ = ["OPTIONS", "VERSIONS", "table"]

VERSIONS = ("0.7.0", "main 2026-06-08", "0.4.0", "0.3.0", NEMO_RL, OLDER)
_LAYERS = {"0.7.0": RELEASE_0_7_0, "main 2026-06-08": SNAPSHOT_2026_06_08, "0.4.0": SNAPSHOT_2026_06_08,
           "0.3.0": SNAPSHOT_2026_06_08, NEMO_RL: replace(SNAPSHOT_2026_06_08, keeps_logits=False)}
_BESIDE = ("0.4.0", "0.3.0", NEMO_RL, OLDER)
"""Releases that run the shared expert on a stream of its own (0.4.0 moe/layers.py, MoE.forward; gone with
e42584e30, 2026-05-22)."""
_ONE_TYPE = ("main 2026-06-08", *_BESIDE)
"""Those that keep all parameters of a layer in one (`_fp32_params` came with 4bdfc405c, 2026-06-23); what lay in it has
its name here all the same."""
OPTIONS = {
    "reshard_after_forward": (None, True, False),
    "moe.reshard_after_forward": (None, True, False),
    "enable_fsdp2_prefetch": (True, False),
    **dict.fromkeys(("fsdp2_forward_prefetch_depth", "fsdp2_backward_prefetch_depth"), (0, int)),
    "defer_fsdp_grad_sync": (True, False),
    "enable_fsdp_optimizations": (True, False),
    "dispatcher": ("deepep", "hybridep", "torch"),
    "attn": BACKENDS,
    "backend.rope": ("torch", "quack"),
    ATTENTION_OPTION: ATTENTIONS,
    "sdpa_backend": SDPA_BACKENDS,
    "fake_balanced_gate": (True, False),
    "moe_rank_scaling": (True, False),
    EFFICIENT_OPTION: (True, False), LIGER_OPTION: (True, False),
    STORAGE_OPTION: STORAGES,
    **STAGE_OPTIONS, **COMPILE_OPTIONS, **NORM_OPTIONS, **FP8_OPTIONS, **FLOAT8_OPTIONS, **OPTIMIZER_OPTIONS,
    **POLICY_OPTIONS,
}


def table(job: Draft) -> Framework:
    """Returns Automodel's table for a job: layouts of all tensors, FSDP2 units, settings.

    Raises IllegalLayout, InputError or NotYet for a job that is not served.
    """
    options = job.options(OPTIONS)
    check(job)
    training = job.scenario.training
    stored = job.auto("training.precision.params", training.precision.params, *stored_by_default(job))
    reduce = job.auto("training.precision.grad_reduce", training.precision.grad_reduce, "fp32",
                      "0.7.0 config.py:328 MixedPrecisionPolicy")
    _note_defaults(job, stored)
    stages = stages_of(job)
    version = _version(job)
    made = Framework(
        name="automodel", version=version,
        rules=_rules(job, stored, options, holds_fp32=version not in _ONE_TYPE),
        units=units(job, stages, options, reduce, holds_fp32=version not in _ONE_TYPE),
        strategy=_strategy(job, options),
        optimizer=optimizer_of(job, options, stored, plain=not is_sharded(job), on_host=rests_on_host(job)),
        compute_dtype=job.compute,
        checkpoint=all_or_no_checkpoint(job),
        loss=job.auto("training.loss", training.loss, *loss_by_default(job)),
        kept_whole=unreplayed(job),
        sequence_parallel=False,
        stages=stages,
        schedule=schedule_of(job, options),
        options=replace(_layer_options(job, options, version), lora_by_operators=runs_by_operators(job, options)),
        communicators=_communicators(job),
        files=automodel_files(job), fullest_load=1.0 if is_forced(options) else fullest_load(job),
        afterwards=trainer_afterwards(job, "", whole=False, loop=AUTOMODEL_LOOP, writes=AUTOMODEL_FILES),
        padding=Padding(1, "0.7.0 components/datasets/utils.py default_collater: pad_seq_len_divisible None"),
        libraries=KernelLibraries(dispatcher=dispatcher_of(job, options).replace("torch", "nccl"),
                            attention=attention_library(job, options), te_calls=te_calls(job, options),
                            beside_exchanges=("shared_experts",) * (version in _BESIDE),
                            beside_attention=rings_by_te(job, options), grad_passes=grad_passes(job, options)),
        assumptions=assumptions(job, options, is_read=version in _BESIDE, has_liger=job.graph.implementation == "hf" and
                                patched_by_liger(job, options)),
    )
    return held_by_stages(made, job, options, released=version == VERSIONS[0])


def _note_defaults(job: Draft, stored: str) -> None:
    """Notes the defaults of values that the scenario leaves open; `stored`: the format of parameters."""
    training = job.scenario.training
    if training.method != "full" and stored == "fp32" and _casts_frozen(job):
        source = "0.7.0 _transformers/infrastructure.py:683: PEFT stores them in the compute dtype"
        job.note("precision of frozen parameters", job.compute, source)
    if training.method == "qlora":
        job.auto("implementation", job.scenario.implementation, "hf", f"{QUANTISED}: transformers' loader packs them")
    elif job.graph.architecture.family in BY_TRANSFORMERS:
        job.auto("implementation", job.scenario.implementation, *_RAN[job.graph.implementation])


_RAN = {"automodel": ("automodel", "0.7.0 _transformers/registry.py MODEL_ARCH_MAPPING: it has own code"),
        "hf": ("hf", "0.7.0 _transformers/registry.py MODEL_ARCH_MAPPING: no own code, transformers' is run")}
_OF_HF = HfOptions(automodel=RELEASE_0_7_0, grouped_experts=True)
"""Replayed on one rank by transformers' own gradient_checkpointing_enable (0.7.0 distributed/model_parallelizer.py),
on several by a wrapper of each layer (distributed/parallelizer.py:397)."""
def _version(job: Job) -> str:
    given = job.scenario.framework_version
    return VERSIONS[0] if given == "auto" else given


def _layer_options(job: Draft, options: dict[str, object], version: str) -> ImplementationOptions:
    """Options of transformers' layers: with Liger's kernels if it has some for them and the option is not off."""
    refuse_idle_formats(job, options)
    if job.graph.implementation == "hub":
        return hub_options(job, options)
    if job.graph.implementation != "hf":
        job.refuse_idle(options, LIGER_OPTION, "in Automodel's own layers")
        made, seen = _chosen(job, options, _LAYERS[version]), job.graph.architecture.has_tower
        narrow = seen and job.graph.architecture.family != "kimi_vl"  # kimi_vl_collate_fn leaves images in fp32
        pixels, stem = "bf16" if narrow else "fp32", trains_stem(job.graph)
        return replace(made, masks_padding=seen, pixels=pixels, trains_stem=stem,
                       fp32_unit=version not in _ONE_TYPE and is_sharded(job), attends=has_mixer(job.graph, Attention),
                       recurs=has_mixer(job.graph, GatedDeltaNet), keeps_logits=made.keeps_logits or seen,  # held
                       agrees=job.mesh.dp_replicate == 1)
    for name in ("fake_balanced_gate", NORM_NAME):
        job.refuse_idle(options, name, "in transformers' layers")
    rope_of(job, options)
    sees = job.graph.architecture.has_tower  # 0.7.0 recipes/vlm/finetune.py has no `del out`; schedules keep outputs
    # 0.7.0 datasets/vlm/collate_fns.py: default_collate_fn casts images, that of Qwen 2.5 VL's processor does not.
    pixels = "fp32" if job.graph.architecture.family == "qwen2_5_vl" else "bf16"
    wide, native = casts_outputs(job) and is_sharded(job), trains_policies(job) or not is_sharded(job)
    own = replace(RELEASE_0_7_0, keeps_logits=(sees and not trains_policies(job)) or job.mesh.pp > 1, wide_inputs=wide,
                  turns_adapters_from=turns_adapters_from(job), gathers_logits=gathers_logits(job))
    # A tower is another group of layers (parallelizer.py:1243); of Gemma 4, whole ones (gemma4_moe/model.py:886).
    parts = is_older(job) or runs_compiled(job) or (sees and not native and job.graph.architecture.family != "gemma4")
    return replace(_OF_HF, automodel=own, wide_outputs=wide, checkpoints_parts=parts, pixels=pixels,
                   position_axes=3 * (sees and job.scenario.training.lengths == "packed"),
                   wide_sdpa=job.graph.architecture.family == "gemma4",  # models/gemma4_moe/sdpa_fp32.py
                   casts_images="once" if sees and wide else "", compiled_layers=runs_compiled(job),
                   attn_implementation=attention_of(job, options),
                   liger=every_kernel(asked=patched_by_liger(job, options)),
                   embeddings_require_grad=native and _transformers.replayed(job))


def _chosen(job: Draft, options: dict[str, object], version: AutomodelOptions) -> AutomodelOptions:
    """Options of the layers; `version`: those by which the release differs."""
    if not job.has_experts:
        job.refuse_idle(options, "fake_balanced_gate", "in a model without experts")
    eager = attention_of(job, options) == "eager"
    layers = with_norms(job, options, with_backend(job, options, with_fp8(job, options, version)))
    return replace(layers, attn_implementation="eager" if eager else "sdpa", rope=rope_of(job, options),
                   turns_adapters_from=turns_adapters_from(job), flex=runs_flex(job, options),
                   keeps_logits=version.keeps_logits or job.mesh.pp > 1, compiled=runs_compiled(job),
                   experts_unit=job.mesh.ep > 1 and job.mesh.expert_dp > 1,
                   dispatcher=cast(Dispatcher, dispatcher_of(job, options)),
                   fake_balanced_gate=options.get("fake_balanced_gate") is True)


def _strategy(job: Draft, options: dict[str, object]) -> Fsdp2Strategy:
    defer = job.flag(options, "defer_fsdp_grad_sync", *((EVERY,) if trains_policies(job) else ("0.7.0 config.py:340",)),
                     default=not trains_policies(job))
    if job.mesh.pp > 1:
        return deferred_reduction(_ahead(job, options), defer=defer)
    several = job.scenario.num_microbatches > 1
    kept = several and bool(options.get("enable_fsdp_optimizations", False))
    return Fsdp2Strategy(*_ahead(job, options), "last" if defer and several else "every",
                         reshard_after_backward=not kept, unshards_passes=is_older(job))


def _ahead(job: Draft, options: dict[str, object]) -> tuple[int, int]:
    """Layers that are gathered ahead by order, in forward and backward (0.7.0 distributed/parallelizer.py).

    `apply_fsdp2_sharding_recursively` chains layers that reshard; the paths of experts and of Nemotron-H have no chain.
    """
    if job.mesh.ep > 1 or job.graph.architecture.decoder == "nemotron_h":
        return 0, 0
    chained = job.flag(options, "enable_fsdp2_prefetch", "0.7.0 distributed/config.py:344", default=False)
    if not chained or options.get("reshard_after_forward") is False:
        for way in ("forward", "backward"):
            job.refuse_idle(options, f"fsdp2_{way}_prefetch_depth", "without enable_fsdp2_prefetch and layers that are "
                            "gathered again")
        return 0, 0
    depths = [options.get(f"fsdp2_{way}_prefetch_depth", depth) for way, depth in (("forward", 1), ("backward", 2))]
    forward, backward = (depth for depth in depths if isinstance(depth, int))
    return forward, backward


# ---- rules ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Choice:
    """Settings that tensor policies depend on, apart from the tensor itself.

    `stored`: dtype of trained parameters; `frozen`: of the base's; `kept`: the optimizer's states. `experts_dp`: ranks
    that shard an expert. `on_host`: sharded tensors rest there.
    """

    stored: str
    frozen: str
    experts: str
    adapters: str
    compute: str
    kept: States
    is_sharded: bool
    splits_head: bool
    splits_experts: bool
    experts_dp: int
    packed: PackedWeights | None = None
    holds_fp32: bool = True
    on_host: bool = False
    float8: bool = False
    by_inputs: tuple[str, ...] = ()
    ties_again: bool = False


def _packed(job: Draft, options: dict[str, Any]) -> PackedWeights | None:
    """A column of bf16 by default, which FSDP2 cuts and gathers as it does other parameters."""
    packed = packed_of(job, options, ("bfloat16", "0.7.0 components/quantization/qlora.py create_bnb_config"))
    if packed is None or packed.storage == job.compute:
        return packed
    at = f"framework_options.{STORAGE_OPTION}"
    if packed.storage == "uint8":
        raise job.not_yet(at, "columns of bytes under automodel: fully_shard gets them beside what is of 16 bits")
    raise job.illegal(at, f"packed values in {packed.storage} would be cast to {job.compute}",
                      "torch 2.13 distributed/fsdp/_fully_shard/_fsdp_param.py init_dtype_attrs")


def _rules(job: Draft, stored: str, options: dict[str, Any], *, holds_fp32: bool) -> tuple[Rule, ...]:
    mesh, training, packed = job.mesh, job.scenario.training, _packed(job, options)
    frozen = job.compute if training.method != "full" and _casts_frozen(job) else stored
    experts = training.precision.experts
    return _made_rules(_Choice(
        stored, frozen, frozen if experts == "auto" else experts, _adapters(job, stored),
        job.compute, kept_states(job, options, plain=not is_sharded(job)), is_sharded(job), mesh.tp > 1, mesh.ep > 1,
        mesh.expert_dp, packed, holds_fp32, rests_on_host(job), runs_float8(job),
        split_by_inputs(job), ties_again(job)))


def _casts_frozen(job: Job) -> bool:
    """True if frozen parameters are stored in the compute dtype: prepare_frozen_parameters_for_sharding of 0.7.0."""
    return _version(job) == VERSIONS[0]


def _adapters(job: Job, stored: str) -> str:
    """Beside a packed base in the type of the products (0.7.0 components/_peft/lora.py, _extract_base_dtype)."""
    given, method = job.scenario.training.lora.dtype, job.scenario.training.method
    return given if given != "auto" else job.compute if method == "qlora" else stored


@lru_cache(maxsize=256)
def _made_rules(choice: _Choice) -> tuple[Rule, ...]:
    dense: Placements = (("dp_shard_cp", Shard(0)),)
    frozen, compute = choice.frozen, choice.compute
    rules = [Rule(lambda t: t.module == "fp8" and t.dims[0] == "experts" and choice.splits_experts,
                  _buffer("uint8", (("ep", Shard(0, even=True)),))),
             Rule(lambda t: t.module == "fp8", _buffer("uint8")),
             Rule(lambda t: t.module == "factors", _buffer(frozen)), Rule(lambda t: t.is_buffer, _buffer())]
    if choice.holds_fp32:
        rules.append(Rule(lambda t: t.stored == "fp32", _policy(choice, "fp32 holder", dense, (), "fp32", "fp32")))
    if choice.splits_experts:
        rules.append(Rule(lambda t: t.component == "routed_experts", _experts(choice, choice.experts)))
        rules.append(Rule(lambda t: t.component == "expert_adapters", _experts(choice, choice.stored)))
    if last := choice.by_inputs:
        for chosen, cut in SPLITS.items():
            early = _policy(choice, f"split by {chosen}", (cut, *dense), (cut,), frozen, compute)
            if choice.ties_again and chosen == "output":
                rules.append(Rule(lambda t: t.tied, replace(early, name="tied again", apart=True)))
            late = replace(early, unreduced_grad=TensorLayout((("dp_shard_cp", Partial()),), compute))
            rules += [Rule(lambda t, chosen=chosen: split_of(t, last) == chosen and is_cut_late(t, last),  # type: ignore[misc]
                           late),
                      Rule(lambda t, chosen=chosen: split_of(t, last) == chosen, early)]  # type: ignore[misc]
    elif choice.splits_head:  # ep = 1: only the head, over its vocabulary (0.7.0 nemotron_v3/parallelization.py)
        split: Placements = (("tp", Shard(0, even=True)),)
        rules.append(Rule(lambda t: t.component == "lm_head",
                          _policy(choice, "split head", (*split, *dense), split, frozen, compute)))
    rules.append(Rule(lambda t: t.module == "adapter", _policy(choice, "adapters", dense, (), choice.adapters,
                                                               compute)))
    if choice.packed is not None:
        policy = _policy(choice, "packed", dense, (), choice.packed.storage, compute)
        rules.append(Rule(is_packed, replace(policy, at_rest=replace(policy.at_rest, packed=choice.packed))))
    plain = _policy(choice, "sharded", dense, (), frozen, compute)
    if choice.float8:
        rules.append(Rule(is_float8, replace(plain, name="sharded, fp8", in_use=replace(plain.in_use, dtype="fp8"))))
    return (*rules, *matrix_rules(choice.kept, plain), Rule(lambda t: True, plain))


def _buffer(stored: str = "fp32", cut: Placements = ()) -> TensorPolicy:
    layout = TensorLayout(cut, stored)
    return TensorPolicy("buffer", layout, layout, layout, layout, at_rest_category="buffer")


def _experts(choice: _Choice, stored: str) -> TensorPolicy:
    split: Placements = (("ep", Shard(0, even=True)),)
    if choice.experts_dp > 1:
        placements = (*split, ("expert_dp", Shard(1, even=True)))
        return _policy(choice, "experts, sharded on dimension 1", placements, split, stored, choice.compute)
    layout = TensorLayout(split, stored)
    return TensorPolicy("experts, local", layout, layout, layout, layout, choice.kept.of(split, stored),
                at_rest_category="ignored_param", unreduced_grad_category="ignored_grad")


def _policy(choice: _Choice, name: str, placements: Placements, used: Placements, stored: str,
            compute: str) -> TensorPolicy:
    if not choice.is_sharded:
        layout = TensorLayout(used, stored)
        return TensorPolicy(f"{name}, alone", layout, TensorLayout(used, compute), layout, layout,
                            choice.kept.of(used, stored),
                    unreduced_grad_category="sharded_grad")
    partial: Placements = (*used, ("dp_shard_cp", Partial()))
    space = "host" if choice.on_host else "device"
    rest = TensorLayout(placements, stored, space)
    return TensorPolicy(name, rest, TensorLayout(used, compute), TensorLayout(partial, compute), rest,
                        choice.kept.of(placements, stored, space), pad_storage=True)


def _communicators(job: Job) -> tuple[str, ...]:
    mesh = job.mesh
    names = ["dp_shard_cp", "dp_replicate", "cp", "tp", "pp", *(["ep", "expert_dp"] if mesh.ep > 1 else [])]
    return tuple(name for name in names if mesh.axis(name).size > 1)
