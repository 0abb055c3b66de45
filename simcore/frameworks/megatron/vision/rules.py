"""Rules of models with a vision tower under Megatron-Core and Megatron-Bridge (067f987d)."""

from __future__ import annotations

from typing import Final

from simcore.inputs.training import Recompute
from simcore.models.blocks import Attention
from simcore.models.placed_blocks import DeepMerger, PlacedPatches
from simcore.models.radio_blocks import RadioPatches, SoundEncoder
from simcore.models.vision_blocks import Projector, RowPatches, SoundPart, TowerEnd, VisionPart, WholePart
from simcore.placement.job import Job

__all__ = ["assumptions_of_tower", "check_tower"]

_MODEL: Final = "Bridge 067f987d models/qwen_vl/modelling_qwen3_vl"
_OMNI: Final = "Bridge 067f987d models/nemotron_omni/modeling_nemotron_omni.py"
_ROUTING: Final = frozenset({"moe_router", "moe_preprocess"})
"""Parts of the decoder's layers that graphs may capture beside a tower (perf_recipes/qwen_vl/common.py:108)."""
_WEIGHED: Final = "ministral3"
_GEMMA: Final = "Bridge 067f987d models/gemma_vl/gemma3_vl_provider.py"
_UNREADY: Final = "Megatron-LM d98e8a64 core/distributed/param_and_grad_buffer.py:825 finish_grad_sync"
_WIDEST, _HOPPER = 128, 9
_NOT_READ: Final = ("internvl", "llava", "qwen2_vl")
"""Families of transformers' whose towers Bridge was not read for."""
_OF_ITSELF: Final = "qwen2_5_vl"
"""Family whose language model GPTModelProvider makes; Qwen3-VL's own model checks the flag instead."""
_NODES: Final = "overlap_moe_expert_parallel_comm"


def check_tower(job: Job, options: dict[str, object], stages: tuple[tuple[int, ...], ...]) -> None:
    """Raises IllegalLayout or NotYet for what a model with a vision tower is refused; nothing for another model.

    `stages`: numbers of the layers of each chunk, in the order of the model.
    """
    if not job.graph.architecture.has_tower:
        if job.scenario.training.frozen:
            raise job.not_yet("training.frozen", "frozen parameters under megatron, but of models with a vision tower")
        return
    if not job.scenario.framework_version.startswith("main"):
        raise job.not_yet("framework_version", "Hugging Face's tower inside Megatron's first stage, as Bridge 0.3.1 "
                          "builds it (served: Bridge's own, framework_version main 2026-08-22)")
    if job.graph.architecture.family in _NOT_READ:
        raise job.not_yet("model", f"the vision tower of {job.graph.architecture.family} in Megatron's first stage")
    rows = any(isinstance(_block(job, layer.index), RowPatches) for layer in job.graph.layers)
    if rows and not any(kind.family == _WEIGHED for kind in job.graph.kinds):
        raise job.not_yet("model", "Pixtral's tower before another decoder than Ministral 3's: Bridge reads "
                          "llama_4_scaling_beta of its configuration (models/ministral3/ministral3_provider.py:205)")
    squares = any(isinstance(_block(job, layer.index), Projector) for layer in job.graph.layers)
    if squares:
        _check_biases(job, options)
    if options.get("apply_rope_fusion") and not (rows or squares or _reads_by_radio(job) or _takes_fusion_back(job)):
        raise job.illegal("framework_options.apply_rope_fusion", "apply_rope_fusion is not supported for Qwen3-VL and "
                          "Qwen3.5 models", f"{_MODEL}/rope.py:475")
    _check_stages(job, options, stages)
    _check_recompute(job)
    if options.get("attention_backend") in ("unfused", "local") or options.get("transformer_impl") == "local":
        raise job.not_yet("framework_options.attention_backend", "a vision tower with unfused attention")
    if options.get("cuda_graph_impl") not in (None, "none") and not _routes(options):
        raise job.not_yet("framework_options.cuda_graph_scope", "graphs of a model with a vision tower, but for "
                          f"{' and '.join(sorted(_ROUTING))}")
    _check_frozen(job, options)


def _check_biases(job: Job, options: dict[str, object]) -> None:
    """Gemma 3 sees images by biases of attention's scores, which one kernel adds, on one rank of its sequences."""
    if options.get("attention_backend") not in (None, "auto", "fused"):
        raise job.illegal("framework_options.attention_backend", "Gemma 3 VL requires automatic or fused attention for "
                          "attention bias.", f"{_GEMMA}:65")
    if job.mesh.cp > 1:
        raise job.illegal("mesh.cp", "Gemma 3 VL does not support context parallelism with attention bias.",
                          f"{_GEMMA}:67")
    if job.scenario.training.recompute != "none":
        raise job.not_yet("training.recompute", "layers that are run again with a bias of attention")
    dims = (branch.block.head_dim for kind in job.graph.kinds for branch in kind.branches
            if isinstance(branch.block, Attention))
    if max(dims, default=0) > _WIDEST and job.compute_capability[0] != _HOPPER:
        raise job.not_yet("topology", f"heads of more than {_WIDEST} elements with a bias of attention but on Hopper, "
                          "which no kernel of cuDNN is for (TE d0067d0d common/fused_attn/fused_attn.cpp:316)")


def _routes(options: dict[str, object]) -> bool:
    scope = options.get("cuda_graph_scope")
    return isinstance(scope, list | tuple) and bool(scope) and _ROUTING.issuperset(scope)


def _check_stages(job: Job, options: dict[str, object], stages: tuple[tuple[int, ...], ...]) -> None:
    fed = sum(isinstance(_block(job, layer.index), DeepMerger) for layer in job.graph.layers)
    own = sum(job.graph.kinds[job.graph.layers[layer].kind].block is None for layer in stages[0])
    if fed > own:
        raise job.illegal("training.pipeline", f"the deepstack_visual_embeds should be on the first pp-stage of the "
                          f"language model: got {fed} deepstack_visual_indexes, {own} language model layers",
                          f"{_MODEL}/model.py:405")
    if options.get(_NODES):
        name, at = ("NemotronOmniModel", _OMNI) if _reads_by_radio(job) else (
            "Qwen3VLModel", "Bridge 067f987d models/qwen_vl/qwen3_vl_step.py:352")
        raise job.illegal(f"framework_options.{_NODES}", f"{name} has no build_schedule_plan, which the schedule asks "
                          "for", at)


def _check_recompute(job: Job) -> None:
    recompute = job.scenario.training.recompute
    if isinstance(recompute, Recompute) and (recompute.mode != "uniform" or recompute.num_layers > 1):
        raise job.not_yet("training.recompute", "groups or some of the layers of a vision tower")


def _check_frozen(job: Job, options: dict[str, object]) -> None:
    """A tower is frozen whole, or but for its mergers; those of replayed layers get no gradient from a frozen one."""
    training, trains = job.scenario.training, {True: set[bool](), False: set[bool]()}
    front = PlacedPatches | RadioPatches | SoundPart if training.method != "full" else SoundPart
    for layer in job.graph.layers:
        block, specs = _block(job, layer.index), job.graph.tensors[layer.kind]
        if isinstance(block, VisionPart) and not isinstance(block, front):
            trains[isinstance(block, DeepMerger | TowerEnd)].add(any(spec.trainable for spec in specs))
    whole = any(isinstance(_block(job, layer.index), WholePart) for layer in job.graph.layers)
    if whole and job.mesh.cp > 1:
        raise job.not_yet("mesh.cp", "context parallelism beside a tower of transformers' modules")
    if whole and any(spec.module == "adapter" for layer in job.graph.layers for spec in job.graph.tensors[layer.kind]
                     if isinstance(_block(job, layer.index), VisionPart)):
        raise job.not_yet("training.lora", "adapters in a tower of transformers' modules")
    if any(len(found) > 1 for found in trains.values()):
        raise job.not_yet("training.frozen", "a vision tower that is trained in part")
    if training.method == "full" and options.get("overlap_grad_reduce") is not False and any(
            isinstance(_block(job, layer.index), SoundEncoder) and any(
                spec.trainable for spec in job.graph.tensors[layer.kind]) for layer in job.graph.layers):
        raise job.illegal("framework_options.overlap_grad_reduce", "Communication call has not been issued for this "
                          "bucket: Parakeet trains, is given no sound, and has no gradients (frozen: [sound_encoder], "
                          "or overlap_grad_reduce: false)", _UNREADY)
    if job.mesh.cp > 1 and job.graph.architecture.family == "nemotron_h_vl":
        raise job.not_yet("mesh.cp", "context parallelism of core's LLaVAModel")
    if trains == {True: {True}, False: {False}} and training.recompute != "none" and not _reads_by_radio(job):
        raise job.not_yet("training.recompute", "recomputation of a frozen tower whose mergers are trained")
    patterns = (*training.lora.target_modules, *training.lora.exclude_modules)
    if any(word in pattern for pattern in patterns for word in ("language", "vision", "merger", "decoder")):
        raise job.not_yet("training.lora", "patterns of adapters that tell the language model from the tower")


def _reads_by_radio(job: Job) -> bool:
    return any(isinstance(kind.block, RadioPatches) for kind in job.graph.kinds)


def _takes_fusion_back(job: Job) -> bool:
    """True if the provider switches apply_rope_fusion off by itself, where positions are by time, row and column."""
    return job.graph.architecture.family == _OF_ITSELF


def _block(job: Job, layer: int) -> object:
    return job.graph.kinds[job.graph.layers[layer].kind].block


def assumptions_of_tower(job: Job) -> tuple[tuple[str, str, str, str], ...]:
    """Returns assumptions about a tower: (key, value, kind, source); none for a model without one."""
    if not job.graph.architecture.has_tower:
        return ()
    if _reads_by_radio(job):
        return (("vision tower", "the embedding's output lives beside the tower's tensors: upstream embeds behind the "
                 "tower", "assumed", _OMNI),)
    back = (("apply_rope_fusion", "off: it is only compatible with rope, positions here are mrope", "derived",
             "Bridge 067f987d models/gpt_provider.py:230, utils/fusions.py:84"),)
    asked = _takes_fusion_back(job) and job.scenario.framework_options.get("apply_rope_fusion")
    return (*(back if asked else ()),
            ("vision tower", "cuDNN's convolution of patches needs no workspace", "assumed", f"{_MODEL}/utils.py:32"),
            ("vision tower", "the embedding's output and its gradient live beside the tower's tensors: upstream embeds "
             "behind the tower", "assumed", f"{_MODEL}/model.py:770"))
