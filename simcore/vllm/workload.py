"""The workload `serve`: an engine with no trainer on its GPUs, from a scenario to a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.frameworks.setup import configuration
from simcore.hardware.topology import Topology
from simcore.inputs.generation import Generation
from simcore.inputs.scenario import Checkpoint, Environment, Scenario
from simcore.inputs.training import Training
from simcore.models.blocks import Attention, Embedding, LatentAttention
from simcore.models.config import Architecture
from simcore.models.graph import architecture_of
from simcore.models.names import of_preset
from simcore.placement.job import topology_of
from simcore.results.engine import Decode, Serving
from simcore.results.report import Assumption, AtRest, Communicator, Owner, Peak, RankReport, Report
from simcore.results.verdict import Verdict, verdict_of
from simcore.units import format_bytes, parse_quantity
from simcore.vllm.checks import check_asked, check_states, switch_assumptions
from simcore.vllm.decode import bytes_read, pass_seconds
from simcore.vllm.engine import Engine, Limits, default_limits, release_of
from simcore.vllm.protocol import InferenceEngine
from simcore.vllm.quantization import assumptions_of, recipe_of
from simcore.vllm.quantized.linears import kv_heads
from simcore.vllm.release import RELEASES
from simcore.vllm.speculation import asked_drafter, drafter_assumptions
from simcore.vllm.vision import tower_buffers, tower_refusals
from simcore.vllm.weights import refusals, unserved

__all__ = ["assumptions", "engine_of", "of_text", "serve", "serving"]

_HOPPER = 9
_CACHING = 8
_OLDEST = 7
"""Least major compute capabilities: of NeMo RL's prefix caching, of vLLM itself."""
_UTILIZATION = {"server": 0.9, "library": 0.6}
"""vLLM 0.12.0 `config/cache.py`; NeMo RL 7ea279ab `examples/configs/grpo_math_1B.yaml`."""
_TABLES: Final = {"gemma3": 2, "gemma3_text": 2, "gpt_oss": 2, "qwen2_5_vl": 4, "qwen3_5": 4, "qwen3_5_moe": 4}
"""Rotary tables in the model's dtype that a family's one or two take."""
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
_BATCHES = (1, 16, 64, 256)
"""Numbers of sequences for which decoding is reported, as far as the cache holds them."""


def serve(scenario: Scenario, *, ranks: bool = True) -> Report:
    """Report of `dp_replicate` equal inference engines alone on their GPUs. `ranks` False: without ranks and verdict.

    Raises InputError if `mesh.tp` and `generation.tp` differ, IllegalLayout for a layout that the engine refuses,
    NotYet for models and other mesh axes, which are not described.
    """
    generation = scenario.generation or Generation()
    topology = topology_of(scenario)
    _check_mesh(scenario, generation)
    topology.check_world_size(scenario.world_size, scenario.where("mesh"))
    engine = engine_of(scenario, generation, topology, "server")
    _check_idle(scenario)
    report = Report(name=scenario.name, scenario=scenario.normalised(), status="ok", capacity_bytes=_usable(scenario,
                   topology), assumptions=(*_of_model(scenario), *assumptions(engine)), serving=serving(engine))
    return _with_ranks(report, scenario, engine) if ranks else report


def _of_model(scenario: Scenario) -> Iterator[Assumption]:
    for what, value, kind, source in of_preset(scenario.model_name):
        yield Assumption.model_validate({"what": what, "value": value, "kind": kind, "source": source})


def _usable(scenario: Scenario, topology: Topology) -> int:
    usable = scenario.limits.usable_memory
    return topology.device.usable_bytes if usable == "auto" else int(parse_quantity(usable, "B"))


def _check_idle(scenario: Scenario) -> None:
    """Refuses keys that a training step reads and an engine does not, if they are set to other values than defaults.

    NotYet for formats that a training step reads: those of an engine's weights are `generation.quantization`.
    """
    usual = scenario.model_copy(update={
        "training": Training(seq_len=scenario.training.seq_len), "framework_options": {}, "framework_version": "auto",
        "implementation": "auto", "environment": Environment(), "checkpoint": Checkpoint(), "rl": None,
        "teacher": None})
    idle = [path for path in _changed(scenario.normalised(), usual.normalised()) if path[0] != "generation"]
    given, left_out = scenario.generation or Generation(), Generation()
    idle += [("generation", name) for name in ("colocated", "engines", "sleep_level")
             if getattr(given, name) != getattr(left_out, name)]
    formats = [Problem(scenario.where(*path), f"not yet: weights of an engine as {'.'.join(path)} says (served: "
                       "generation.quantization, or the model's quantization_config)")
               for path in idle if path in _WEIGHTS]
    if scenario.training.lora.use_dora:
        raise IllegalLayout(Problem(scenario.where("training", "lora", "use_dora"), "use_dora: vLLM does not yet "
                                    "support DoRA (merge the adapter into the weights)",
                                    "vLLM 0.12.0 lora/peft_helper.py _validate_features"))
    if formats:
        raise NotYet(formats)
    if idle:
        raise InputError(Problem(scenario.where(*path), f"{'.'.join(path)}: changes nothing where an engine serves")
                         for path in idle)


_WEIGHTS: Final = (("training", "method"), ("training", "precision", "params"), ("training", "precision", "compute"),
                   ("training", "precision", "experts"))
"""Keys that would be formats of an engine's weights, or of its products."""


def _changed(found: Mapping[str, Any], usual: Mapping[str, Any], *path: str) -> Iterator[tuple[str, ...]]:
    """Paths of the keys whose values differ, as deep as both are mappings."""
    for key, value in found.items():
        other = usual.get(key)
        if isinstance(value, Mapping) and isinstance(other, Mapping) and other:
            yield from _changed(value, other, *path, key)
        elif value != other:
            yield *path, key


def _check_mesh(scenario: Scenario, given: Generation) -> None:
    """Refuses a mesh other than tp ranks of each of dp_replicate engines."""
    mesh = scenario.mesh
    problems = [Problem(scenario.where("mesh", axis), f"not yet: {axis} of an engine that serves (served: tp, and "
                        "dp_replicate engines beside each other)")
                for axis in ("pp", "dp_shard", "cp", "ep", "etp") if (getattr(mesh, axis) or 1) > 1]
    if problems:
        raise NotYet(problems)
    if mesh.tp != given.tp:
        raise InputError(Problem(scenario.where("generation", "tp"), f"expected generation.tp and mesh.tp alike where "
                                 f"an engine serves, got {given.tp} and {mesh.tp}"))


def engine_of(scenario: Scenario, given: Generation, topology: Topology, use: Literal["server", "library"]) -> Engine:
    """Engine for `given`, a scenario's block `generation`; missing keys take vLLM's or NeMo RL's defaults.

    `use`: "server" for `vllm serve`, "library" for the class LLM as NeMo RL calls it; their defaults and versions
    differ. Raises InputError, IllegalLayout or NotYet for what is wrong, refused by vLLM, or not modelled.
    """
    if given.engine != "vllm":
        raise NotYet(Problem(scenario.where("generation", "engine"), f"not yet: the engine {given.engine} (served: "
                             "vllm)"))
    if given.version not in ("auto", *RELEASES):
        raise InputError(Problem(scenario.where("generation", "version"), f"version: {given.version}: expected auto or "
                                 f"one of vLLM's, {', '.join(RELEASES)}"))
    if given.kv_dtype not in ("auto", "bf16", "fp8"):
        raise InputError(Problem(scenario.where("generation", "kv_dtype"), f"expected auto, bf16 or fp8, got "
                                 f"{given.kv_dtype}"))
    if topology.device.architecture < _OLDEST:
        raise IllegalLayout(Problem(scenario.where("topology"), f"vLLM needs compute capability {_OLDEST}.0, and "
                                    f"{topology.device.name} has {topology.device.compute_capability}",
                                    "vLLM 0.12.0 docs/getting_started/installation/gpu.cuda.inc.md"))
    fields = configuration(scenario)
    architecture = architecture_of(fields, scenario.where("model"))
    release = release_of(given, "0.12.0" if use == "server" else "0.25.1")
    _check_model(scenario, architecture, given.tp, release.name, use)
    longest = given.max_model_len or scenario.training.seq_len
    _check_length(scenario, fields, longest)
    check_asked(scenario, given, architecture, release.name, longest)
    usual = default_limits(topology, use, longest, chunked=given.chunked_prefill)
    tokens = given.max_num_batched_tokens or usual.tokens
    limits = Limits(tokens, given.max_num_seqs or min(usual.seqs, tokens))
    # by default NeMo RL caches prefixes on compute capability 8 and later (7ea279ab vllm_worker.py:84), vLLM does
    # not with Mamba layers; it does not change the bytes of other models
    caches = given.prefix_caching if given.prefix_caching is not None else (
        use == "library" and topology.device.architecture >= _CACHING)
    _check_latent(scenario, architecture, given, topology)
    recipe = recipe_of(scenario, given, (architecture, fields), topology, (release.name, use))
    drafter = asked_drafter(scenario, given, (architecture, fields), release, topology, quantised=recipe is not None)
    engine = Engine(architecture, given, topology, longest, release, limits, _rotary_bytes(architecture, fields),
                    caches, given.gpu_memory_utilization or _UTILIZATION[use], recipe, drafter)
    check_states(scenario, engine)
    return engine


def _check_model(scenario: Scenario, architecture: Architecture, tp: int, version: str, use: str) -> None:
    missing = unserved(architecture, version)
    if not missing and use == "server" and architecture.family == "gpt_oss":
        missing = "experts in MXFP4 (served: beside NeMo RL, which takes them in 16 bits)"
    if missing:
        raise NotYet(Problem(scenario.where("model"), f"not yet: serving {missing}"))
    blocks = [b.block for _, kind in architecture.parts for b in kind.branches]
    if not any(isinstance(block, Attention | LatentAttention) for block in blocks):
        raise NotYet(Problem(scenario.where("model"), "not yet: serving a model without attention layers"))
    if problems := [*refusals(architecture, tp), *tower_refusals(architecture, tp)]:
        (message, rule), others = problems[0], len(problems) - 1
        more = f", nor {'are' if others > 1 else 'is'} {others} other part{'s' * (others > 1)} of the model"
        expected = ", ".join(map(str, _divisors(architecture)))
        raise IllegalLayout(Problem(scenario.where(*_cut_at(scenario)),
                                    f"tp: {message}{more if others else ''}; expected {expected}", rule))


def _check_latent(scenario: Scenario, architecture: Architecture, given: Generation, topology: Topology) -> None:
    """Refuses latent attention by other kernels than FlashAttention's, which take blocks of 16 tokens."""
    if not any(isinstance(b.block, LatentAttention) for _, kind in architecture.parts for b in kind.branches):
        return
    if topology.device.architecture != _HOPPER:
        raise NotYet(Problem(scenario.where("topology"), "not yet: latent attention of an engine on GPUs other than "
                             "compute capability 9"))
    if given.kv_dtype == "fp8":
        raise NotYet(Problem(scenario.where("generation", "kv_dtype"), "not yet: latent attention with a cache in fp8"))


def _divisors(architecture: Architecture) -> list[int]:
    """Numbers of ranks that divide every part of the model; heads of attention are divided, so they bound them."""
    heads = min(b.block.num_heads for _, kind in architecture.parts for b in kind.branches
                if isinstance(b.block, Attention | LatentAttention))
    return [tp for tp in range(1, heads + 1)
            if not refusals(architecture, tp) and not any(tower_refusals(architecture, tp))]


def _check_length(scenario: Scenario, fields: Mapping[str, Any], longest: int) -> None:
    """Refuses a length above the configuration's, unless the configuration scales the rotation (vLLM decides)."""
    text = of_text(fields)
    known = [text[name] for name in _POSITIONS if isinstance(text.get(name), int)]
    if known and longest > min(known) and not (text.get("rope_scaling") or text.get("rope_parameters")):
        written = scenario.generation is not None and scenario.generation.max_model_len
        at = ("generation", "max_model_len") if written else ("training", "seq_len")
        raise IllegalLayout(Problem(scenario.where(*at), f"{at[1]}: {longest:,} tokens are more than the "
                                    f"{min(known):,} of the model's configuration",
                                    "vLLM 0.12.0 config/model.py _get_and_verify_max_len"))


def _cut_at(scenario: Scenario) -> tuple[str, str]:
    """Key that says how many ranks an engine has."""
    generation = scenario.document.data.get("generation")
    return ("generation" if isinstance(generation, dict) and "tp" in generation else "mesh"), "tp"


def of_text(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fields of the language model: those of `text_config`, or all."""
    inside = fields.get("text_config")
    return inside if isinstance(inside, Mapping) else fields


def _rotary_bytes(architecture: Architecture, fields: Any) -> int:
    """Bytes of cosine and sine of every position, one table (vLLM 0.12.0 `rotary_embedding/base.py`), and of a tower's.

    Layers of Gemma 3 with a window have a table of their own, GPT-OSS's is in fp32 (0.25.1 `models/gemma3.py`:147,
    `gpt_oss.py`:91); that of positions by time, row and column is four times as long (`rotary_embedding/mrope.py`:238).
    """
    stems = [kind.block for _, kind in architecture.parts if isinstance(kind.block, Embedding)]
    positions = of_text(fields).get("max_position_embeddings")
    wide = _TABLES.get(architecture.family, 1)
    known = 2 * wide * stems[0].rotary_dim * positions if stems and isinstance(positions, int) else 0
    return known + tower_buffers(architecture)


# ---- the result ------------------------------------------------------------------------------------------------------
def _with_ranks(report: Report, scenario: Scenario, engine: Engine) -> Report:
    size = scenario.world_size
    peak = _peak(engine)
    limit = int((report.capacity_bytes or 0) * scenario.limits.max_fill)
    verdict: Verdict = "oom" if engine.refusal else verdict_of([peak.band_bytes], limit)
    coordinates: dict[str, int | str] = {"tp": f"0-{engine.tp - 1}"} if engine.tp > 1 else {}
    rank = RankReport(
        ranks=(f"0-{size - 1}" if size > 1 else "0",), num_ranks=size, coordinates=coordinates, stage=0,
        at_rest=_at_rest(engine), padding_bytes=0, grads_persist=False, peak=peak, end_bytes=peak.allocated_bytes)
    return report.model_copy(update={
        "ranks": (rank,), "verdict": verdict, "headroom_bytes": limit - peak.device_bytes,
        "communicators": (Communicator(axis="tp", size=engine.tp),) * (engine.tp > 1)})


def _at_rest(engine: Engine) -> dict[str, AtRest]:
    counts: Counter[str] = Counter()
    for weight in engine.weights:
        counts[weight.component] += weight.numel
    components = {name: AtRest(params_bytes=size, num_params=counts[name]) for name,
                  size in engine.by_component.items()}
    return components | ({"adapters": AtRest(params_bytes=engine.adapter_bytes)} if engine.adapter_bytes else {})


def _peak(engine: Engine) -> Peak:
    """Memory while the engine generates with a full cache, or while its weights are quantised, if that is more."""
    running, outside = engine.held(), engine.outside()
    phases = {"generation": sum(running.values())}
    if engine.recipe is not None and engine.recipe.is_online:
        phases = {"load": engine.loading_bytes, **phases}
    phase = max(phases, key=lambda name: phases[name])
    loading = {"sharded_param": engine.loading_bytes - engine.buffers, "buffer": engine.buffers}
    sizes = running if phase == "generation" else {name: size for name, size in loading.items() if size}
    allocated = phases[phase]
    device = allocated + sum(outside.values())
    return Peak(
        allocated_bytes=allocated, reserved_bytes=allocated, device_bytes=device, phase=phase, event=phase, layer="",
        microbatch=0, by_category=dict(sorted(sizes.items(), key=lambda item: -item[1])), by_phase=phases,
        top=tuple(Owner(owner=f"engine/{name}", category=name, bytes=size) for name, size in
                  sorted(sizes.items(), key=lambda item: -item[1])),
        reserved_band_bytes=(allocated, allocated), outside=outside, band_bytes=(device, device))


def serving(engine: InferenceEngine) -> Serving:
    """Part of a report about one engine: memory and KV cache of a rank, its decoding, why it does not start."""
    pages, cache = engine.pages, engine.cache
    attention = next(branch.block for _, kind in engine.architecture.parts for branch in kind.branches
                     if isinstance(branch.block, Attention | LatentAttention))
    heads, all_heads = 1, 1  # latent attention has one for all
    if isinstance(attention, Attention):
        heads, all_heads = kv_heads(attention, engine.tp), attention.num_kv_heads
    return Serving(
        engine=engine.generation.engine, version=engine.version, tp=engine.tp, max_model_len=engine.max_model_len,
        max_num_seqs=engine.limits.seqs, max_num_batched_tokens=engine.limits.tokens, kv_dtype=engine.formats.kv,
        ssm_dtype=engine.formats.ssm, quantization=engine.recipe.name if engine.recipe else "", kv_heads_per_rank=heads,
        kv_head_replicas=heads * engine.tp // all_heads, requested_bytes=engine.requested_bytes,
        weight_bytes=engine.weight_bytes, adapter_buffer_bytes=engine.adapter_bytes,
        activation_bytes=engine.profile.highest, graph_bytes=engine.graph_bytes,
        cache_budget_bytes=max(0, engine.cache_budget), cache_bytes=cache.num_bytes,
        kv_bytes_per_token=pages.token_bytes * (pages.attention_layers + pages.windows),
        state_bytes=pages.state_bytes * pages.mamba_layers,
        block_size=pages.block_size, page_bytes=pages.page_bytes, num_blocks=cache.num_blocks,
        cache_groups=pages.groups, cache_tokens=cache.tokens(engine.max_model_len),
        concurrency=cache.concurrency(engine.max_model_len),
        longest=pages.longest(max(0, engine.cache_budget)), decode=tuple(_decodes(engine)), refusal=engine.refusal)


def _decodes(engine: InferenceEngine) -> Iterator[Decode]:
    """Decoding of a few batches, with half of the longest sequence before each token."""
    context = engine.max_model_len // 2
    for batch in _BATCHES:
        if batch <= min(engine.limits.seqs, max(1, int(engine.cache.concurrency(context)))):
            read = bytes_read(engine, batch, context)
            took = pass_seconds(engine, batch, context)
            yield Decode(sequences=batch, context_tokens=context, bytes_read=read, seconds=took,
                         tokens_per_s=batch / took)


def assumptions(engine: Engine) -> Iterator[Assumption]:
    """Assumptions of the report: defaults of keys that were left out, and numbers that were not measured."""
    version, generation = engine.release.name, engine.generation
    yield from assumptions_of(engine.recipe, version)
    if generation.max_num_batched_tokens is None or generation.max_num_seqs is None:
        limits = f"{engine.limits.tokens:,} tokens a pass, {engine.limits.seqs:,} sequences"
        yield Assumption(what="generation.max_num_batched_tokens, max_num_seqs", value=limits, kind="default",
                         source=f"vLLM {version} engine/arg_utils.py get_batch_defaults, by memory of the device")
    if generation.gpu_memory_utilization is None:
        yield Assumption(what="generation.gpu_memory_utilization", value=f"{engine.utilization:g}", kind="default",
                         source="vLLM 0.12.0 config/cache.py: 0.9; NeMo RL 7ea279ab grpo_math_1B.yaml: 0.6")
    yield from switch_assumptions(engine)
    if engine.drafter is not None:
        yield from drafter_assumptions(engine.drafter)
    if engine.pages.mamba_layers and generation.prefix_caching is None:
        yield Assumption(what="generation.prefix_caching", value=str(engine.caches_prefixes).lower(), kind="default",
                         source="vLLM 0.12.0 and 0.25.1 config/model.py is_prefix_caching_supported: not for hybrids; "
                         "NeMo RL 7ea279ab vllm_worker.py:84 asks for it")
    if generation.mamba_cache_mode != "auto" and not (engine.pages.mamba_layers and engine.caches_prefixes):
        yield Assumption(what="generation.mamba_cache_mode", value="changes nothing without Mamba layers, or without "
                         "prefix caching", kind="derived", source="vLLM 0.25.1 model_executor/models/config.py:597")
    if engine.pages.mamba_layers and generation.ssm_dtype == "auto":
        yield Assumption(what="generation.ssm_dtype", value=engine.formats.ssm, kind="default",
                         source=f"vLLM {version} model_executor/models/config.py: 0.25.1 has fp32 for Nemotron-H "
                         "and for Qwen 3.5 (mamba_ssm_dtype of its configuration), 0.12.0 the model's dtype")
    yield Assumption(what="activation of the profile run", value=format_bytes(engine.profile.highest), kind="assumed",
                     source="vLLM profile_run and its sampler, see simcore/vllm/profile.py; compilers may reuse")
    if engine.graph_bytes:
        yield Assumption(what="graph_pool", value=format_bytes(engine.graph_bytes), kind="assumed", source="vLLM 0.6 "
                         "worker/model_runner.py capture_model: 1 to 3 GiB; the low end")
    for name, size in engine.outside().items():
        source = engine.topology.device.memory.context.source if name == "context" else (
            "see simcore/memory/outside_allocator.py, and vLLM 0.12.0 custom_all_reduce.py: two buffers of 8 MiB")
        yield Assumption(what=name, value=format_bytes(size), kind="assumed", source=source)
    yield Assumption(what="serving.decode", value="bytes read over the bandwidth that products reach, arithmetic, "
                     "small kernels, sampling and the host", kind="calibrated",
                     source="see simcore/vllm/passes.py; collectives of tensor parallelism are left out")

