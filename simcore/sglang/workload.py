"""An engine of SGLang from a scenario: its defaults, what it refuses or is not described, and its assumptions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.frameworks.setup import configuration
from simcore.hardware.topology import Topology
from simcore.inputs.generation import Generation
from simcore.inputs.scenario import Scenario
from simcore.models.blocks import Attention, Embedding, LatentAttention, Mamba2
from simcore.models.config import Architecture
from simcore.models.graph import architecture_of
from simcore.results.report import Assumption
from simcore.sglang.engine import PADDED, Engine
from simcore.sglang.settings import RELEASES, Release, settings_of
from simcore.units import format_bytes
from simcore.vllm.protocol import InferenceEngine
from simcore.vllm.vision import tower_refusals
from simcore.vllm.weights import layers_of, refusals, unserved
from simcore.vllm.workload import of_text

__all__ = ["assumptions", "engine_of"]

_ALIKE: Final = "0.25.1"
"""Version of vLLM whose weights SGLang's are."""
_FA3: Final = (8, 9)
"""Compute capabilities of FlashAttention 3, which trainers ask for (`layers/attention/attention_registry.py:128`)."""
_TOWERS: Final = ("qwen2_5_vl",)
"""Families whose vision tower is described."""
_FRACTION: Final = 0.5
_FP32: Final = 4
_LENGTHS: Final = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
"""Keys of a configuration with the model's context, the first that is there (`utils/hf_transformers_utils.py:327`)."""
_CONTEXT: Final = 2048
_UNSERVED: Final = (
    ("kv_cache_memory", "a pool of a given size"), ("quantization", "weights of SGLang in few bits"),
    ("unquantized", "weights of SGLang in few bits"), ("max_loras", "adapters in SGLang"),
    ("max_lora_rank", "adapters in SGLang"), ("ssm_dtype", "Mamba's states in SGLang"),
    ("mamba_cache_mode", "Mamba's states in SGLang"), ("num_speculative_tokens", "speculative decoding in SGLang"),
    ("accepted_tokens", "speculative decoding in SGLang"),
    ("expert_parallel", "experts of SGLang on ranks of their own"),
    ("profiles_images", "a profile run, which it does not have,"),
    ("chunked_prefill", "prefills of another size than SGLang's own"), ("block_size", "pages of another size"),
    ("max_num_batched_tokens", "prefills of another size than SGLang's own"))


def engine_of(scenario: Scenario, given: Generation, topology: Topology, use: Literal["server", "library"]) -> Engine:
    """Engine for `given`, a scenario's block `generation`, on GPUs that nothing else is on yet.

    `use`: "server" as verl starts it, "library" as NeMo RL does, whose versions and settings differ. Raises InputError,
    IllegalLayout or NotYet for what is wrong, refused by SGLang, or not modelled.
    """
    release = _check_keys(scenario, given, use)
    fields = configuration(scenario)
    architecture = architecture_of(fields, scenario.where("model"))
    _check_model(scenario, architecture, fields, given.tp, use)
    fields = of_text(fields)
    if use == "library" and topology.device.architecture != _FA3[-1]:
        raise NotYet(Problem(scenario.where("topology"), "not yet: SGLang's own choice of kernels on GPUs other than "
                             "compute capability 9"))
    if topology.device.architecture not in _FA3:
        raise IllegalLayout(Problem(scenario.where("topology"), f"{topology.device.name} has compute capability "
                                    f"{topology.device.compute_capability}, and FlashAttention 3 needs 8 or 9",
                                    f"SGLang {release.name} layers/attention/attention_registry.py:128"))
    positions, longest = _context(fields), given.max_model_len or scenario.training.seq_len
    if longest > positions:
        raise IllegalLayout(Problem(scenario.where("generation", "max_model_len"), f"max_model_len: {longest:,} tokens "
                                    f"are more than the {positions:,} of the model's configuration",
                                    f"SGLang {release.name} configs/model_config.py:286 _derive_context_length"))
    fraction = given.gpu_memory_utilization if given.gpu_memory_utilization is not None else _FRACTION
    is_library = use == "library"  # NeMo RL says how long sequences are (context_length), verl does not
    return Engine(architecture, given, topology, longest, longest if is_library else positions,
                  settings_of(topology.device.usable_bytes, given.tp), fraction, _rotary_bytes(architecture, fields),
                  release=release, frees_graphs=is_library, scores=is_library)


def _check_keys(scenario: Scenario, given: Generation, use: str) -> Release:
    """Version of SGLang that is asked for; raises for keys that it does not have or that are not described."""
    usual = Generation()
    for name, message in _UNSERVED:
        if getattr(given, name) != getattr(usual, name):
            raise NotYet(Problem(scenario.where("generation", name), f"not yet: {message}"))
    version = {"server": "0.5.6", "library": "0.5.12.post1"}[use] if given.version == "auto" else given.version
    if version not in RELEASES:
        raise InputError(Problem(scenario.where("generation", "version"), f"version: {given.version}: expected auto, "
                                 f"or one of SGLang's, {', '.join(RELEASES)}"))
    if given.kv_dtype not in ("auto", "bf16", "fp8"):
        raise InputError(Problem(scenario.where("generation", "kv_dtype"), f"expected auto, bf16 or fp8, got "
                                 f"{given.kv_dtype}"))
    if not given.colocated:
        raise NotYet(Problem(scenario.where("generation", "colocated"), "not yet: SGLang on GPUs of its own"))
    return RELEASES[version]


def _check_model(scenario: Scenario, architecture: Architecture, fields: Mapping[str, Any], tp: int, use: str
                 ) -> None:
    at = scenario.where("model")
    if architecture.has_tower and (architecture.family not in _TOWERS or use != "server"):
        raise NotYet(Problem(at, f"not yet: serving the vision tower of {architecture.family} by SGLang (served: "
                             f"{', '.join(_TOWERS)}, beside verl)"))
    if missing := unserved(architecture, _ALIKE):
        raise NotYet(Problem(at, f"not yet: serving {missing}"))
    blocks = [branch.block for _, kind in layers_of(architecture) for branch in kind.branches]
    for kinds, what in ((LatentAttention, "multi-head latent attention"), (Mamba2, "Mamba layers")):
        if any(isinstance(block, kinds) for block in blocks):
            raise NotYet(Problem(at, f"not yet: serving {what} by SGLang"))
    if any(isinstance(block, Attention) and (block.window or block.sinks) for block in blocks):
        raise NotYet(Problem(at, "not yet: serving attention with sinks or a window by SGLang"))
    if fields.get("quantization_config"):
        raise NotYet(Problem(at, "not yet: weights of SGLang in few bits"))
    if problems := [*refusals(architecture, tp), *tower_refusals(architecture, tp, multiple=PADDED)]:
        raise IllegalLayout(Problem(scenario.where("generation", "tp"), f"tp: {problems[0][0]}",
                                    "SGLang 0.5.6 layers/linear.py and layers/vocab_parallel_embedding.py: parts "
                                    "of all ranks are alike"))


def _context(fields: Mapping[str, Any]) -> int:
    """Tokens of the model's context, as its scaling of positions changes them."""
    scaling = fields.get("rope_scaling") or {}
    plain = "original_max_position_embeddings" in scaling or scaling.get("rope_type") == "llama3"
    factor = 1 if plain else scaling.get("factor") or 1
    return next((int(factor * fields[name]) for name in _LENGTHS if isinstance(fields.get(name), int)), _CONTEXT)


def _rotary_bytes(architecture: Architecture, fields: Mapping[str, Any]) -> int:
    """Bytes of cosine and sine of every position, one table in fp32 (`layers/rotary_embedding.py:112`)."""
    stems = [kind.block for _, kind in architecture.parts if isinstance(kind.block, Embedding)]
    positions = fields.get("max_position_embeddings")
    return _FP32 * stems[0].rotary_dim * positions if stems and isinstance(positions, int) else 0


def assumptions(engine: InferenceEngine) -> Iterator[Assumption]:
    """Assumptions of the report: numbers that were not measured."""
    release = f"SGLang {engine.version}"
    if engine.architecture.has_tower:
        yield Assumption(what="vision tower of the engine", value="weights on every rank, 100 MiB of images that were "
                         "encoded; no time and no further memory for those of prompts", kind="assumed",
                         source=f"{release} models/qwen2_5_vl.py, environ.py:311 SGLANG_VLM_CACHE_SIZE_MB")
    yield Assumption(what="generation.gpu_memory_utilization", value=f"{format_bytes(engine.requested_bytes)} for "
                     "weights and pool", kind="derived", source=f"{release} model_executor/model_runner.py:1367: "
                     "mem_fraction_static of what is free when the engine starts, beside the trainer")
    yield Assumption(what="activation of a prefill", value=format_bytes(engine.profile.highest), kind="assumed",
                     source=f"{release} has no profile run: {engine.limits.tokens:,} tokens through the largest layer, "
                     "as simcore/vllm/profile.py")
    if engine.graph_bytes:
        yield Assumption(what="graph_pool", value=format_bytes(engine.graph_bytes), kind="assumed", source=f"{release} "
                         "server_args.py:830 reserves 2 MiB for each sequence of the largest graph")
    for name, size in engine.outside().items():
        source = engine.topology.device.memory.context.source if name == "context" else (
            f"see simcore/memory/outside_allocator.py, and {release} custom_all_reduce.py:56: three buffers of 8 MiB")
        yield Assumption(what=name, value=format_bytes(size), kind="assumed", source=source)
    yield Assumption(what="serving.decode", value="bytes read over the bandwidth that products reach", kind="assumed",
                     source="a bound, see simcore/vllm/decode.py: no arithmetic, collectives, sampling or host")
