"""The trainer of transformers 5.23's layers under plain FSDP2: options, defaults, and checks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from simcore.frameworks.common.afterwards import HF_FILES, TRAINER_LOOP, kept_logits
from simcore.frameworks.common.compiled_layers import LAYERS_ALONE, assumptions, check_compiled
from simcore.frameworks.common.expert_adapters import adapts_experts
from simcore.frameworks.common.kernels import SDPA_BACKENDS, runs_math
from simcore.frameworks.common.liger import LIGER_OPTIONS, asks_for_liger, liger_kernels
from simcore.frameworks.common.pipeline import weighed_stages
from simcore.frameworks.common.qlora import EXPERTS_OPTION, STORAGE_OPTION, STORAGES, TUNE_OPTION
from simcore.frameworks.common.torch import OF_POLICIES, Defaults, all_or_no_checkpoint, check_optimizer_in_backward
from simcore.frameworks.common.trainer import Trainer
from simcore.inputs.training import Draws
from simcore.models.blocks import Attention, GatedDeltaNet, LatentAttention, Mamba2, Moe
from simcore.models.class_blocks import ClassPatches, ScaledPatches
from simcore.models.vision_blocks import GridLayer, GridPatches, Patches, RowPatches
from simcore.operators.hf.chunked import LM_HEAD
from simcore.operators.hf.options import AttentionImplementation, HfOptions
from simcore.placement.job import Draft, Job
from simcore.recording.layer import FUSED_PAIRS, KEPT_ALONE

__all__ = ["DEFAULTS", "DISPATCHED", "FROZEN_OPTION", "LAYER_OPTIONS", "NO_CAPACITY", "OPTIONS", "TRAINER",
           "VLLM_FLASH_ATTN3", "asks_patches", "check", "check_factors", "check_layers", "dense_options_of",
           "options_of", "replayed", "stored_as"]

NO_CAPACITY: Final = "transformers 5.23 integrations/moe.py: tokens are never dropped"
"""The rule by which experts have no capacity."""
DISPATCHED: Final = "ep_dispatch_experts"
"""Value of `experts`: transformers' own exchange of rows between ranks, by the name of its style."""
VLLM_FLASH_ATTN3: Final = "kernels-community/vllm-flash-attn3"
FROZEN_OPTION: Final = "checkpoint_frozen_layers"
"""False where a layer without a trained parameter is not recomputed, and only adapters ask for a gradient of a tower's
front: LLaMA-Factory ff6d4d12 `model/model_utils/checkpointing.py`, get_custom_gradient_checkpointing_func."""
LAYER_OPTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "attn_implementation": (None, "eager", "sdpa", "flash_attention_2"),
    "experts_implementation": (None, "grouped_mm"),
    "sdpa_backend": (None, *SDPA_BACKENDS),
    **LIGER_OPTIONS,
    FROZEN_OPTION: (True, False),
}
"""Options of transformers' layers that every framework around them takes."""
OPTIONS: dict[str, tuple[Any, ...]] = {
    "wrap": ("layers_root", "separate_embedding_head", "embedding_tail", "separate_embedding"),
    "wrap_tower": ("layers", "root"),
    "reshard_after_forward": (None, True, False, int),
    "set_last_reshard": (None, True, False),
    "sync_gradients": ("last", "every"),
    "set_is_last_backward": ("every", "last"),
    "recompute_by": ("wrapper", "transformers"),
    "prefetch": (None, int),
    "experts": ("fully_shard", "ignored", DISPATCHED),
    **LAYER_OPTIONS,
    "attn_implementation": (None, "eager", "sdpa", "flash_attention_2", VLLM_FLASH_ATTN3),
    "use_kernels": (True, False),
    "optimizer_in_bwd": (True, False),
    STORAGE_OPTION: STORAGES,
    TUNE_OPTION: (True, False),
    "compile": (False, LAYERS_ALONE),
}
DEFAULTS = Defaults(
    stored=("fp32", "sharded fp32 parameters under a policy"),
    reduce=("compute", "MixedPrecisionPolicy(reduce_dtype=None): the compute dtype"),
    optimizer=("foreach", "torch 2.13 optim/adam.py: foreach by default on CUDA"),
    loss=("hf", "transformers 5.23 ForCausalLMLoss"),
    wrap="layers_root", sync="last", root_resharded=False, last_follows=False, loss_inside=True,
    reshard=("true for layers, false for the root", "torch 2.13 _fully_shard/_fully_shard.py: "
             "reshard_after_forward=None"))


def check(job: Job, options: dict[str, Any]) -> None:
    """Raises NotYet or IllegalLayout for a job that is not served with transformers' layers under FSDP2.

    NotYet for other losses than the layers have, IllegalLayout for a capacity of experts; and what `check_layers`
    refuses.
    """
    check_layers(job, options)
    job.refuse_capacity(NO_CAPACITY)
    job.one_of("training.loss", job.scenario.training.loss, ("auto", "hf", "hf_keep_logits", "cut", "liger",
                                                              LM_HEAD, *KEPT_ALONE, "log_probs", *OF_POLICIES,
                                                              *FUSED_PAIRS))


def check_layers(job: Job, options: dict[str, Any]) -> None:
    """Raises NotYet or IllegalLayout for settings of transformers' layers that no framework serves.

    `options`: the framework options that the scenario sets, by name. They are kernels from the hub, some ways to
    offload activations, and an optimizer inside backward that cannot run there.
    """
    if options.get("use_kernels"):
        raise job.not_yet("framework_options.use_kernels", "layers that transformers 5.23 integrations/hub_kernels.py "
                          "replaces (MegaBlocks' experts, Liger's norms)")
    if not job.has_experts:
        job.refuse_idle(options, "experts_implementation", "in a model without experts")
    _check_activations(job)
    if job.graph.architecture.has_tower:
        _check_tower(job, options)
    check_compiled(job, options)
    check_factors(job)
    if options.get("optimizer_in_bwd"):
        check_optimizer_in_backward(job)


_MASKED: Final = ("gemma3", "llava", "mistral3")
"""Families with masks of images in the decoder (`create_masks_for_vision_model`), or of patches in the tower."""
_NARROW: Final = ("internvl",)
"""Families whose tower's eager softmax stays in 16 bits (`models/internvl`, eager_attention_forward)."""


def _check_tower(job: Job, options: dict[str, Any]) -> None:
    """Raises NotYet for settings of layers that are not known of a vision tower, or of a decoder that sees images."""
    family, attention = job.graph.architecture.family, options.get("attn_implementation")
    if family in _MASKED and attention not in ("eager", "flash_attention_2"):
        raise job.not_yet("framework_options.attn_implementation", f"masks of images of {family} in another attention "
                          "than eager and flash_attention_2")
    if attention == "flex_attention" or (attention == "eager" and family in _NARROW):
        raise job.not_yet("framework_options.attn_implementation", f"{attention} in the vision tower of {family}")
    for name, asked in (("use_liger_kernel", asks_for_liger(options)), ("compile", options.get("compile"))):
        if asked:
            raise job.not_yet(f"framework_options.{name}", "kernels of that kind in a model with a vision tower")
    if job.scenario.training.offload.part("activations")[1]:
        raise job.not_yet("training.offload.activations", "inputs of layers on the host in a model with a vision tower")


_OF_ONE_TYPE = ("transformers 5.23 models/falcon_h1 compute_mup_vector; mamba_ssm e9594ce1 ops/triton/ssd_combined.py, "
                "F.linear")


def check_factors(job: Job) -> None:
    """Raises IllegalLayout for Mamba's factors in another type than the products: those of the model as it is loaded.

    They make what Mamba is given as wide as they are, and its fused projection takes no two types.
    """
    stored = job.scenario.training.precision.params
    if _has_factors(job) and stored not in ("auto", job.compute):
        raise job.illegal("training.precision.params", f"{stored} with {job.compute} products: expected mat1 and mat2 "
                          "to have the same dtype", _OF_ONE_TYPE)


def stored_as(job: Job, default: tuple[str, str]) -> tuple[str, str]:
    """(dtype of parameters that no scenario says, its source): `default`, or that of the products with such factors."""
    return (job.compute, _OF_ONE_TYPE) if _has_factors(job) else default


def _has_factors(job: Job) -> bool:
    return any(kind.paired for kind in job.graph.kinds)


def _check_activations(job: Job) -> None:
    """Raises NotYet for activations on the host, unless they are the inputs of recomputed layers."""
    space, fraction = job.scenario.training.offload.part("activations")
    if not fraction:
        return
    job.one_of("training.offload.activations", space, ("none", "host"))
    if fraction < 1 or all_or_no_checkpoint(job) == "none":
        raise job.not_yet("training.offload.activations", "a part of what is kept, or all that layers keep without "
                          "recompute, on the host (served: the inputs of replayed layers, with recompute: full)")


def replayed(job: Job) -> bool:
    """True if the embedding's output requires a gradient, because transformers checkpoints the layers.

    Only with adapters. transformers 5.23 `modeling_utils.py`, _activation_checkpointing_enable:
    enable_input_require_grads.
    """
    return job.scenario.training.method != "full" and all_or_no_checkpoint(job) != "none"


def asks_patches(job: Job, options: dict[str, Any]) -> bool:
    """True if transformers' checkpoints ask for a gradient of what the front of a vision tower puts out.

    [Note: a tower whose front takes a gradient] in `operators/hf/vision/part.py`; whatever is trained, unless frozen
    layers are not recomputed: then PEFT asks, for adapters alone.
    """
    if options.get(FROZEN_OPTION) is False and job.scenario.training.method == "full":
        return False
    fronts = (Patches, GridPatches, RowPatches, ClassPatches, ScaledPatches)
    return all_or_no_checkpoint(job) != "none" and any(isinstance(kind.block, fronts) for kind in job.graph.kinds)


def _by_transformers(job: Job, options: dict[str, Any]) -> bool:
    """`replayed`, whatever is trained: transformers asks for the gradient wherever a model takes token ids."""
    return options.get("recompute_by") == "transformers" and all_or_no_checkpoint(job) != "none"


def options_of(job: Draft, options: dict[str, Any]) -> HfOptions:
    """Returns the settings of transformers' layers for a job (`HfOptions`), with their defaults.

    `options`: the framework options that the scenario sets, by name. Products of experts are transformers' grouped ones
    if `experts_implementation` asks for them or attention has sinks, else a balanced stand-in.
    """
    _check_llama4(job, options)
    _check_latent(job, options)
    apart = dense_options_of(job, options)
    given = options.get("experts_implementation")
    if _computes_every_row(job):
        job.note("experts", "every expert computes every token", "transformers 5.23 models/llama4/modeling_llama4.py "
                 "Llama4TextMoe: its input is repeated for each expert and multiplied by a score, 0 for most")
        return apart
    if given is None and _has_sinks(job):
        job.auto("framework_options.experts_implementation", "auto", "grouped_mm",
                 "transformers 5.23 modeling_utils.py get_correct_experts_implementation")
    elif given is None and (adapts_experts(job) or (job.has_experts and _is_apart(options))):
        job.auto("framework_options.experts_implementation", "auto", "grouped_mm", "transformers 5.23 integrations/"
                 "moe.py has it as its default on a GPU; the stand-in has no adapters of experts, no autocast, and "
                 "nothing packed")
    elif given is None:
        if job.has_experts and isinstance(job.scenario.training.routing, Draws):
            raise job.not_yet("training.routing", "routing drawn at random with batched products over equal groups of "
                              "rows, a balanced stand-in (served with experts_implementation: grouped_mm)")
        if job.has_experts:
            job.auto("framework_options.experts_implementation", "auto", "batched products over equal groups of rows",
                     "a stand-in; transformers 5.23 integrations/moe.py has grouped_mm as its default on a GPU")
        return apart
    dispatches = job.mesh.ep > 1 and options.get("experts") == DISPATCHED
    if job.mesh.ep > 1 and not dispatches:
        raise job.not_yet("framework_options.experts_implementation", "grouped_mm with experts split over ranks "
                          f"(served with experts: {DISPATCHED})")
    return replace(apart, grouped_experts=True, dispatches=dispatches)


def _is_apart(options: dict[str, Any]) -> bool:
    return bool(options.get("autocast") or options.get(EXPERTS_OPTION))


def dense_options_of(job: Draft, options: dict[str, Any]) -> HfOptions:
    """Returns the settings of transformers' layers for a job but for the products of their experts.

    `options`: the framework options that the scenario sets, by name.
    """
    if _has(job, GatedDeltaNet):
        job.note("kernels of the gated delta rule", "flash-linear-attention and causal-conv1d",
                 "transformers 5.23 models/qwen3_next: its own code in fp32 runs where these packages are missing, and "
                 "keeps several times as much")
    unit = job.mesh.ep > 1 and options.get("experts") != "ignored"
    attention = _attention(job, options)
    return HfOptions(experts_unit=unit, inputs_on_host=job.scenario.training.offload.part("activations")[1] > 0,
                     attn_implementation=attention, liger=liger_kernels(job, options),
                     math_attention=attention == "sdpa" and runs_math(job, options),
                     compiled_layers=options.get("compile") == LAYERS_ALONE,
                     checkpoints_frozen=_checkpoints_frozen(job, options),
                     embeddings_require_grad=_by_transformers(job, options))


def _checkpoints_frozen(job: Draft, options: dict[str, Any]) -> bool:
    """True if layers of a frozen vision tower are recomputed as others are; InputError where nothing is frozen."""
    tower = job.graph.kinds[1:] if job.graph.architecture.has_tower else ()
    if not tower or all_or_no_checkpoint(job) == "none":
        job.refuse_idle(options, FROZEN_OPTION, "without a vision tower beside layers that are recomputed")
    if options.get(FROZEN_OPTION) is not False:
        return True
    has_windows = any(isinstance(kind.block, GridLayer) and not kind.block.plain for kind in job.graph.kinds)
    if job.scenario.training.method != "full" and not has_windows:
        raise job.not_yet(f"framework_options.{FROZEN_OPTION}", "adapters beside a frozen vision tower whose layers "
                          "are not recomputed (served: that of Qwen 2.5 VL)")
    return False


def _has(job: Job, block: type) -> bool:
    return any(isinstance(b.block, block) for kind in job.graph.kinds for b in kind.branches)


def _has_sinks(job: Job) -> bool:
    return any(isinstance(b.block, Attention) and b.block.sinks for kind in job.graph.kinds for b in kind.branches)


def _attention_with_sinks(job: Draft, given: str | None) -> AttentionImplementation:
    """`GptOssPreTrainedModel` has no SDPA; of flash-attn it takes what knows sinks, whatever was asked for."""
    at, source = "framework_options.attn_implementation", "transformers 5.23 models/gpt_oss/modeling_gpt_oss.py"
    if given in (None, "eager"):
        if given is None:
            job.auto(at, "auto", "eager", f"{source}: no SDPA")
        return "eager"
    if given == "sdpa":
        raise job.illegal(at, f"{job.graph.kinds[1].family} does not support an attention implementation through "
                          "torch.nn.functional.scaled_dot_product_attention", f"{source} _supports_sdpa")
    job.auto(at, "auto", VLLM_FLASH_ATTN3, f"{source} _compatible_flash_implementations; its backward gives sinks no "
             "gradient")
    return "flash_attention_2"


def _attention(job: Draft, options: dict[str, Any]) -> AttentionImplementation:
    """Transformers' own choice is SDPA, which gets a mask for packed sequences; flash-attn gets their lengths."""
    given = options.get("attn_implementation")
    if _has_sinks(job):
        return _attention_with_sinks(job, given)
    if given == VLLM_FLASH_ATTN3:
        raise job.not_yet("framework_options.attn_implementation", f"{given} in a model without sinks")
    packed = job.scenario.training.lengths == "packed"
    if packed and _has(job, Mamba2):
        raise job.not_yet("training.lengths", "packed sequences in the Mamba layers of transformers, which are not "
                          "told where a sequence begins")
    if packed and _has(job, GatedDeltaNet):
        raise job.not_yet("training.lengths", "packed sequences in the gated delta net of transformers")
    if given is None and packed:
        job.auto("framework_options.attn_implementation", "auto", "sdpa",
                 "transformers 5.23 modeling_utils.py: SDPA where the model has it; its mask is a byte for each pair")
    return given if given in ("eager", "flash_attention_2", "xformers") else "sdpa"


# ---- Llama 4 ---------------------------------------------------------------------------------------------------------
_AT: Final = "framework_options.attn_implementation"
_AT_EXPERTS: Final = "framework_options.experts_implementation"
_MODEL: Final = "transformers 5.23 models/llama4/modeling_llama4.py"
_CASTS: Final = ("autocast", "prepare_model_for_kbit_training")


def _computes_every_row(job: Draft) -> bool:
    """True if each expert computes all tokens: [Note: every expert computes every token] in `operators/hf/llama4`."""
    return any(isinstance(branch.block, Moe) and branch.block.weighs_input for kind in job.graph.kinds
               for branch in kind.branches)


def _check_llama4(job: Draft, options: dict[str, Any]) -> None:
    """Raises IllegalLayout or NotYet for a job whose model attends within chunks, or has Llama 4's experts.

    `options`: the framework options that the scenario sets, by name. Nothing for other models.
    """
    chunk = max((branch.block.chunk for kind in job.graph.kinds for branch in kind.branches
                 if isinstance(branch.block, Attention)), default=0)
    if not chunk and not _computes_every_row(job):
        return
    _check_attention(job, options, chunk)
    if options.get("experts_implementation"):
        raise job.illegal(_AT_EXPERTS, "Llama4ForCausalLM does not support setting experts implementation",
                          "transformers 5.23 modeling_utils.py _grouped_mm_can_dispatch; "
                          f"{_MODEL}: no use_experts_implementation")
    if job.mesh.ep > 1:
        raise job.illegal("mesh.ep", "Llama 4's experts take every token: there is nothing to dispatch",
                          "transformers 5.23 models/llama4/configuration_llama4.py: no base_model_ep_plan")
    if job.mesh.tp > 1 or job.mesh.cp > 1:
        raise job.not_yet("mesh", "tensor or context parallelism of Llama 4 in transformers' layers")
    if any(options.get(name) for name in _CASTS) or job.scenario.training.method == "qlora":
        raise job.not_yet("model", "Llama 4 in transformers' layers under autocast, or packed in 4 bits")


def _check_latent(job: Draft, options: dict[str, Any]) -> None:
    """Raises NotYet for what was not measured of latent attention; nothing for other models."""
    if not _has(job, LatentAttention):
        return
    given, training, mesh = options.get("attn_implementation"), job.scenario.training, job.mesh
    if given not in (None, "sdpa", "flash_attention_2"):
        raise job.not_yet(_AT, f"latent attention by {given} in transformers' layers (served: sdpa, flash_attention_2)")
    if training.lengths == "packed" and given != "flash_attention_2":
        raise job.not_yet("training.lengths", "packed sequences in latent attention by SDPA of transformers' layers")
    if mesh.tp > 1 or mesh.cp > 1:
        raise job.not_yet("mesh", "tensor or context parallelism of latent attention in transformers' layers")
    if any(options.get(name) for name in _CASTS) or training.method == "qlora":
        raise job.not_yet("model", "latent attention in transformers' layers under autocast, or packed in 4 bits")


def _check_attention(job: Draft, options: dict[str, Any], chunk: int) -> None:
    given, training = options.get("attn_implementation"), job.scenario.training
    if given == "flash_attention_2":
        raise job.illegal(_AT, "Llama4ForCausalLM does not support Flash Attention 2 yet",
                          f"transformers 5.23 modeling_utils.py _flash_attn_can_dispatch; {_MODEL}: "
                          "_supports_flash_attn = False")
    if given == "eager":
        raise job.not_yet(_AT, "Llama 4's eager attention, whose softmax is in the compute dtype")
    if training.lengths == "packed":
        raise job.not_yet("training.lengths", "packed sequences in Llama 4's layers, which make two masks of them")
    if training.seq_len >= chunk > 0:
        raise job.not_yet("training.seq_len", f"sequences as long as a chunk of attention ({chunk:,} tokens), which "
                          "have a mask of chunks")


TRAINER: Final = Trainer(options=OPTIONS, defaults=DEFAULTS, check=check, layer_options=options_of,
                         checkpoint=all_or_no_checkpoint, stages=weighed_stages, serves_muon=True,
                         assumptions=assumptions, evaluation=TRAINER_LOOP, kept_logits=kept_logits, hub_files=HF_FILES)
