"""Settings of vLLM that a version, or a model, refuses: passes, experts, states of Mamba."""

from __future__ import annotations

from collections.abc import Iterator

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.inputs.generation import Generation
from simcore.inputs.scenario import Scenario
from simcore.models.blocks import GatedDeltaNet, LatentAttention, Mamba2, Moe
from simcore.models.config import Architecture
from simcore.models.vision_blocks import Projector
from simcore.results.report import Assumption
from simcore.vllm.engine import Engine
from simcore.vllm.release import RELEASES

__all__ = ["check_asked", "check_states", "switch_assumptions"]


def check_asked(scenario: Scenario, given: Generation, architecture: Architecture, version: str, longest: int) -> None:
    """Refuses passes and experts that vLLM's `version` refuses, or that are not described.

    `longest`: tokens of the longest sequence.
    """
    _check_passes(scenario, given, version, longest)
    _check_experts(scenario, given, architecture)
    _check_tower(scenario, given, architecture)
    _check_delta(scenario, given, architecture)
    blocks = [branch.block for _, kind in architecture.parts for branch in kind.branches]
    if given.block_size is not None and any(isinstance(block, GatedDeltaNet | LatentAttention | Mamba2)
                                          for block in blocks):
        raise NotYet(Problem(scenario.where("generation", "block_size"), "not yet: blocks of a given size of latent "
                             "attention, or beside states of Mamba"))


def _check_tower(scenario: Scenario, given: Generation, architecture: Architecture) -> None:
    """Refuses what is not described beside a vision tower: adapters, few bits, drafts, prompts that are read whole."""
    at = scenario.where("generation", "profiles_images")
    if not architecture.has_tower:
        if not given.profiles_images:
            raise InputError(Problem(at, f"profiles_images: changes nothing: {architecture.family} reads no images"))
        return
    for key, is_asked in _beside(given):
        if is_asked:
            raise NotYet(Problem(scenario.where("generation", key), f"not yet: {key} of an engine with a vision tower"))


def _check_delta(scenario: Scenario, given: Generation, architecture: Architecture) -> None:
    """Refuses what is not described beside gated delta nets: adapters, few bits, drafts, prompts that are read whole.

    Their projections are made otherwise for adapters and few bits (0.25.1 `qwen_gdn_linear_attn.py`:478, :616).
    """
    if not any(isinstance(branch.block, GatedDeltaNet) for _, kind in architecture.parts for branch in kind.branches):
        return
    for key, is_asked in _beside(given):
        if is_asked:
            raise NotYet(Problem(scenario.where("generation", key), f"not yet: {key} of an engine with gated delta "
                                 "nets"))


def _beside(given: Generation) -> tuple[tuple[str, bool], ...]:
    """Pairs (key, True if it is asked for) of what changes how a model is built or read."""
    return (("max_loras", bool(given.max_loras)), ("quantization", given.quantization != "auto"),
            ("num_speculative_tokens", bool(given.num_speculative_tokens)),
            ("chunked_prefill", not given.chunked_prefill))


def _check_passes(scenario: Scenario, given: Generation, version: str, longest: int) -> None:
    """Refuses passes that are shorter than a prompt that is read whole, and versions of which that is not described."""
    if given.chunked_prefill:
        return
    at, tokens = scenario.where("generation", "chunked_prefill"), given.max_num_batched_tokens
    if version == RELEASES["0.12.0"].name:
        raise NotYet(Problem(at, f"not yet: prompts that are read whole with vLLM {version} (served: 0.25.1)"))
    if tokens is not None and tokens < longest:
        raise IllegalLayout(Problem(at, f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({longest})",
                                    "vLLM 0.25.1 config/scheduler.py:272 verify_max_model_len"))


def _check_experts(scenario: Scenario, given: Generation, architecture: Architecture) -> None:
    """Refuses experts that are not cut where there are none, or not equally many on each rank."""
    if not given.expert_parallel:
        return
    at = scenario.where("generation", "expert_parallel")
    counts = {b.block.num_experts for _, kind in architecture.parts for b in kind.branches if isinstance(b.block, Moe)}
    if not counts:
        raise IllegalLayout(Problem(at, "Number of experts in the model must be greater than 0 when expert parallelism "
                                    "is enabled", "vLLM 0.25.1 config/model.py:1159"))
    for count in counts:
        if count % given.tp:
            raise NotYet(Problem(at, f"not yet: {count} experts of which some ranks of {given.tp} have one more"))
    if given.max_loras or given.quantization != "auto":
        raise NotYet(Problem(at, "not yet: experts that are not cut, with adapters or in few bits"))


def check_states(scenario: Scenario, engine: Engine) -> None:
    """Refuses modes of Mamba's states that a version has not, blocks larger than a pass where states end blocks.

    Nor may an image be larger than a pass where all of its tokens see each other.
    """
    _check_item(scenario, engine)
    at, mode = scenario.where("generation", "mamba_cache_mode"), engine.generation.mamba_cache_mode
    if mode != "auto" and not engine.release.else_last:
        raise IllegalLayout(Problem(at, f"mamba_cache_mode: {mode}: vLLM {engine.version} has no such setting",
                                    f"vLLM {engine.version} config/cache.py CacheConfig"))
    block = engine.pages.block_size
    if engine.pages.mamba_layers and engine.pages.states == "last" and block > engine.limits.tokens:
        raise IllegalLayout(Problem(at, f"In Mamba cache align mode, block_size ({block}) must be <= "
                                    f"max_num_batched_tokens ({engine.limits.tokens})",
                                    "vLLM 0.25.1 config/vllm.py:2186"))


def _check_item(scenario: Scenario, engine: Engine) -> None:
    """Refuses passes shorter than an image of Gemma 3, whose tokens see each other and so stay together."""
    tokens = next((kind.block.tokens for _, kind in engine.architecture.parts if isinstance(kind.block, Projector)), 0)
    if tokens > engine.limits.tokens:
        raise IllegalLayout(Problem(scenario.where("generation", "max_num_batched_tokens"), "Chunked MM input disabled "
                                    f"but max_tokens_per_mm_item ({tokens}) is larger than max_num_batched_tokens "
                                    f"({engine.limits.tokens})", "vLLM 0.25.1 v1/core/encoder_cache_manager.py:298"))


def switch_assumptions(engine: Engine) -> Iterator[Assumption]:
    """Assumptions on prompts that are read whole, on experts that tp does not cut, and on a vision tower."""
    generation = engine.generation
    if engine.architecture.has_tower:
        profiled = "its profile run at an upper bound" if generation.profiles_images else "no memory for images"
        yield Assumption(what="vision tower of the engine", value=f"weights on every rank, {profiled}, no time for "
                         "images of prompts", kind="assumed", source=f"vLLM "
                         f"{engine.version} gpu_model_runner.py profile_run, by its own limits: see "
                         "simcore/vllm/vision.py")
    if generation.block_size is not None:
        yield Assumption(what="generation.block_size", value=f"{generation.block_size} tokens", kind="derived",
                         source="vLLM 0.25.1 config/cache.py: blocks of the cache, whole ones for each sequence")
    if not generation.chunked_prefill:
        yield Assumption(what="generation.chunked_prefill", value="a pass reads prompts whole", kind="derived",
                         source="vLLM 0.25.1 config/scheduler.py")
    if generation.expert_parallel:
        yield Assumption(what="generation.expert_parallel", value="as many experts on each rank, which all are busy "
                         "alike" if engine.tp > 1 else "changes nothing on one rank", kind="assumed", source="vLLM "
                         "0.25.1 fused_moe/expert_map_manager.py; without data parallelism outputs are summed as tp's "
                         "are (config.py use_all2all_kernels)")
