"""One engine on its ranks: its memory before, during and after the profile run, and the memory left for the cache.

[Note: the budget]
vLLM 0.12.0 `v1/worker/gpu_worker.py` init_device, determine_available_memory. NCCL is opened first, then free memory
is read: context and NCCL are not part of the requested memory, which is `gpu_memory_utilization` times the memory that
the driver reports. From it, weights, the profile run's highest moment and memory that the process took outside torch
are subtracted; the cache gets the rest. CUDA graphs are captured after it and come on top (0.12.0), or an estimate of
them is subtracted from the cache (0.25.1). So the device holds more than the utilisation says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from simcore.hardware.topology import Topology
from simcore.inputs.generation import Generation
from simcore.models.blocks import Branch, LatentAttention
from simcore.models.config import Architecture
from simcore.units import GIB, dtype_bytes, format_bytes, parse_quantity
from simcore.vllm.adapters import adapter_elements
from simcore.vllm.cache import Cache, Formats, Pages, pages
from simcore.vllm.drafter import Drafter
from simcore.vllm.profile import Profile, profile
from simcore.vllm.quantized.linears import Linear
from simcore.vllm.quantized.loading import loading_bytes
from simcore.vllm.quantized.recipe import Recipe
from simcore.vllm.quantized.tensor import Tensor
from simcore.vllm.release import RELEASES, Release
from simcore.vllm.vision import encoder, tower_weights
from simcore.vllm.weights import MODEL_DTYPE, Weight, blocks, layers_of, weights

__all__ = ["Engine", "Limits", "by_module", "default_limits", "nccl_bytes", "release_of",
           "workspace_bytes"]

_MIB: Final = 2**20
CUBLAS_BYTES: Final = {9: 32 * _MIB}
"""Torch's workspace of one thread by major compute capability (`CublasHandlePool.cpp`); else 8 MiB and 128 KiB."""
_CUBLAS_ELSE: Final = 8 * _MIB + 128 * 1024
GRAPH_BYTES: Final = GIB
"""Bytes of CUDA graphs, assumed: vLLM 0.6 `worker/model_runner.py` capture_model documents 1 to 3 GiB; the low end."""
_REDUCE_BYTES: Final = 2 * 8 * _MIB
"""Custom all-reduce of more than one rank: two buffers of 8 MiB (`custom_all_reduce.py`), before memory is read."""
_NCCL: Final = {True: (544, 688), False: (342, 392)}
_WIDE_STATES: Final = ("nemotron_h", "qwen3_5_moe_text", "qwen3_5_text")
"""Decoders whose recurrent states have a format of their own: `Release.hybrid_state`."""
_LARGE: Final = 70 * GIB
_FULL, _PAGES, _MOST = 8, 4, 2**16
"""Full sequences, pages of each sequence, and most tokens of latent attention's workspace."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one engine: largest number of tokens in one forward pass, and of sequences at once."""

    tokens: int
    seqs: int


def default_limits(topology: Topology, use: Literal["server", "library"], longest: int, *, chunked: bool = True
                   ) -> Limits:
    """Default limits of vLLM: larger ones for GPUs with 70 GiB and more (without A100) than for others.

    `engine/arg_utils.py` get_batch_defaults. `use`: `vllm serve`, or the class LLM, as NeMo RL calls it. `longest`:
    tokens of the longest sequence; not `chunked`: a pass takes all of it.
    """
    large = topology.device.usable_bytes >= _LARGE and "A100" not in topology.device.name
    seqs = 1024 if large else 256
    tokens = {"server": 8192, "library": 16384} if large else {"server": 2048, "library": 8192}
    most = min(tokens[use] if chunked else max(tokens[use], longest), seqs * longest)
    return Limits(most, min(seqs, most))


@dataclass(frozen=True)
class Engine:
    """One vLLM engine on `generation.tp` equal ranks; all bytes are of one rank.

    `max_model_len`: tokens of the longest sequence; `release`: vLLM's version. `buffers`: bytes of the model's rotary
    table. `caches_prefixes`: blocks are kept for prompts with a common prefix. `utilization`: share of the memory that
    the driver reports which the engine requests. `recipe`: quantisation of weights, None for 16 bits. `drafter`: that
    of speculative decoding, None without.
    """

    architecture: Architecture
    generation: Generation
    topology: Topology
    max_model_len: int
    release: Release
    limits: Limits
    buffers: int = 0
    caches_prefixes: bool = False
    utilization: float = 0.9
    recipe: Recipe | None = None
    drafter: Drafter | None = None

    @property
    def version(self) -> str:
        """Version of vLLM."""
        return self.release.name

    @property
    def tp(self) -> int:
        """Tensor-parallel degree: number of the engine's ranks."""
        return self.generation.tp

    @cached_property
    def weights(self) -> tuple[Weight, ...]:
        """Weights of one rank, layer by layer; all ranks have the same sizes."""
        return (*tower_weights(self.architecture, self.tp),
                *weights(self.architecture, self.tp, self.recipe, narrow_router=self._narrow_router))

    @property
    def _narrow_router(self) -> bool:
        return self.release.narrow_router(self.topology.device.compute_capability)

    def bytes_of(self, weight: Weight) -> int:
        """Bytes of one of the engine's `weights` on a rank."""
        return weight.num_bytes

    @cached_property
    def by_component(self) -> dict[str, int]:
        """Bytes of weights on a rank by component (attention, mlp, ...), without empty ones."""
        sizes: Counter[str] = Counter()
        for weight in (*self.weights, *(self.drafter.weights if self.drafter else ())):
            sizes[weight.component] += self.bytes_of(weight)
        return {name: size for name, size in sizes.items() if size}

    @property
    def weight_bytes(self) -> int:
        """Bytes that `load_model` allocates besides LoRA: parameters, and buffers such as the rotary table."""
        return sum(self.by_component.values()) + self.buffers

    @cached_property
    def loading_bytes(self) -> int:
        """Highest bytes on a rank while weights are read and, by an online recipe, quantised on the device."""
        if self.recipe is None or not self.recipe.is_online:
            return max(self.weight_bytes, self.buffers + sum(weight.created_bytes for weight in self.weights))
        quantised = [weight for weight in self.weights if weight.held]
        rest = self.buffers + sum(weight.num_bytes for weight in self.weights if not weight.held)
        return loading_bytes(rest, list(by_module(quantised)))

    @cached_property
    def adapter_bytes(self) -> int:
        """Bytes of the buffers for `max_loras` LoRA adapters on a rank; 0 without LoRA serving."""
        generation = self.generation
        if not generation.max_loras:
            return 0
        places = generation.max_loras * adapter_elements(self.architecture, self.tp, generation.max_lora_rank)
        return places * dtype_bytes(MODEL_DTYPE)

    @cached_property
    def formats(self) -> Formats:
        """Dtypes of the cache: keys and values, and the two states of Mamba layers."""
        kv, ssm = self.generation.kv_dtype, self.generation.ssm_dtype
        hybrid = self.release.hybrid_state if self.architecture.decoder in _WIDE_STATES else ""
        return Formats(MODEL_DTYPE if kv == "auto" else kv, MODEL_DTYPE,
                       (hybrid or MODEL_DTYPE) if ssm == "auto" else ssm)

    @cached_property
    def pages(self) -> Pages:
        """Layout of the KV cache on a rank: sizes of pages and blocks."""
        return pages(self.architecture, self.tp, self.formats, self.release, cached=self.caches_prefixes,
                     mode=self.generation.mamba_cache_mode, drafter=self.drafter, longest_pass=self.limits.tokens,
                     block=self.generation.block_size or 16)

    @cached_property
    def profile(self) -> Profile:
        """Bytes besides weights at the highest moments of vLLM's profile run on a rank (`Profile`)."""
        unpacked = {} if self.recipe is None else self.recipe.unpacked_bytes(self._blocks(), self.limits.tokens)
        found = profile(self.architecture, self.tp, self.limits.tokens, self.limits.seqs, dtype_bytes(MODEL_DTYPE),
                        self.release.sampled, unpacked, narrow_router=self._narrow_router, context=self._context[0],
                        drafts=self.drafter is not None, whole_experts=self.generation.expert_parallel)
        if not self.generation.profiles_images:
            return found
        tower = encoder(self.architecture, self.tp, (self.limits.tokens, self.limits.seqs, self.max_model_len),
                        self.release, is_eager=self.generation.enforce_eager)
        width = dtype_bytes(MODEL_DTYPE)
        return Profile(max(tower.highest * width, found.forward + tower.stays * width),
                       found.sampler + tower.stays * width)

    @property
    def _context(self) -> tuple[int, int]:
        """Tokens of prompts that latent attention makes keys and values of at once, and elements kept of each.

        (0, 0) for other attention. 0.25.1 `mla_attention.py` determine_chunked_prefill_workspace_size.
        """
        blocks = (branch.block for _, kind in layers_of(self.architecture) for branch in kind.branches)
        latent = next((block for block in blocks if isinstance(block, LatentAttention)), None)
        if latent is None:
            return 0, 0
        pages, longest = self.limits.seqs * self.pages.block_size, _FULL * self.max_model_len
        return max(min(max(longest, _PAGES * pages), _MOST), pages), latent.kv_rank + latent.rope

    @property
    def cache_bytes(self) -> int:
        """Bytes of the KV cache, and of latent attention's workspace, which is made with it and in no budget."""
        tokens, each = self._context
        return self.cache.num_bytes + tokens * each * dtype_bytes(MODEL_DTYPE)

    def _blocks(self) -> Iterator[tuple[Branch, list[tuple[str, Linear]]]]:
        """Every block of every layer, with its linears by the paths of their modules."""
        for path, kind in layers_of(self.architecture):
            yield from blocks(path, kind, self.tp)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of cuBLAS's workspace, which torch allocates in the profile run and keeps."""
        return workspace_bytes(self.topology)

    @property
    def graph_bytes(self) -> int:
        """Bytes of the CUDA graphs of all captured sizes, an assumed number; 0 with `enforce_eager`."""
        return 0 if self.generation.enforce_eager else GRAPH_BYTES

    @property
    def nccl_bytes(self) -> int:
        """Bytes of one NCCL communicator over all ranks, and of custom all-reduce's buffers; 0 for tp 1."""
        nccl = nccl_bytes(self.topology, self.tp)
        return nccl + _REDUCE_BYTES if nccl else 0

    @property
    def requested_bytes(self) -> int:
        """Bytes that the engine requests: `utilization` times the memory that the driver reports."""
        return int(self.topology.device.usable_bytes * self.utilization)

    @property
    def free_at_start(self) -> int:
        """Free bytes of an otherwise empty device after the CUDA context and NCCL are there."""
        return self.topology.device.usable_bytes - self.topology.device.context_bytes - self.nccl_bytes

    @property
    def cache_budget(self) -> int:
        """Bytes that the KV cache may fill; below zero if the other memory exceeds the request.

        `generation.kv_cache_memory` goes before the request (`gpu_worker.py` determine_available_memory).
        """
        if self.generation.kv_cache_memory != "auto":
            return int(parse_quantity(self.generation.kv_cache_memory, "B"))
        graphs = self.graph_bytes if self.release.graphs_in_budget else 0
        taken = self.weight_bytes + self.adapter_bytes + self.profile.highest + self.workspace_bytes
        return self.requested_bytes - taken - graphs

    @cached_property
    def cache(self) -> Cache:
        """KV cache of as many blocks as fit into `cache_budget`."""
        return self.pages.fill(max(0, self.cache_budget))

    @property
    def refusal(self) -> str:
        """Reason, as a sentence, why the engine does not start on an otherwise empty device; "" if it starts."""
        if self.free_at_start < self.requested_bytes:
            return (f"free memory on startup ({format_bytes(self.free_at_start)}) is less than the utilisation asks "
                    f"for ({format_bytes(self.requested_bytes)})")
        if self.loading_bytes > self.free_at_start:
            return (f"weights need {format_bytes(self.loading_bytes)} while they are quantised, there are "
                    f"{format_bytes(self.free_at_start)}")
        if self.cache_budget <= 0:
            return "no memory is left for cache blocks"
        needed = self.pages.needed(self.max_model_len)
        if needed > self.cache_budget:
            return (f"one sequence of {self.max_model_len:,} tokens needs {format_bytes(needed)} of cache, there are "
                    f"{format_bytes(self.cache_budget)}; the longest is {self.pages.longest(self.cache_budget):,}")
        return ""

    def held(self) -> dict[str, int]:
        """Bytes in torch's allocator on a rank while it generates with a full cache, by category; no zeros."""
        sizes = {**self.loaded, **self.cached, "activation": self.profile.highest, **self.stays}
        return {name: size for name, size in sizes.items() if size}

    @property
    def loaded(self) -> dict[str, int]:
        """Bytes by category of the tensors of `load_model`, which leave when the engine sleeps."""
        return {"sharded_param": sum(self.by_component.values()), "buffer": self.buffers + self.adapter_bytes}

    @property
    def stays(self) -> dict[str, int]:
        """Bytes by category of what stays while the engine sleeps."""
        buffers = self.drafter.buffer_bytes(self.limits.tokens) if self.drafter else 0
        beside = {"input": buffers} if buffers else {}
        return {"graph_pool": self.graph_bytes, "workspace": self.workspace_bytes, **beside}

    @property
    def cached(self) -> dict[str, int]:
        """Bytes by category of what comes and goes with the cache."""
        return {"kv_cache": self.cache_bytes}

    def beside(self, occupied: int) -> Engine:
        """The engine on GPUs of which others hold `occupied` bytes: it asks for a share of the whole device."""
        return self

    def outside(self) -> dict[str, int]:
        """Bytes outside torch's allocator on a rank, by category: `context`, and `nccl` if tp exceeds 1."""
        sizes = {"context": self.topology.device.context_bytes, "nccl": self.nccl_bytes}
        return {name: size for name, size in sizes.items() if size}


def workspace_bytes(topology: Topology) -> int:
    """Bytes of the workspace that torch makes for cuBLAS on a device."""
    return CUBLAS_BYTES.get(topology.device.architecture, _CUBLAS_ELSE)


def nccl_bytes(topology: Topology, tp: int) -> int:
    """Bytes of one NCCL communicator over the `tp` ranks of an engine; 0 for one rank."""
    if tp == 1:
        return 0
    two, more = _NCCL[topology.device.architecture <= 8]
    return (two if tp == 2 else more) * _MIB


def by_module(quantised: list[Weight]) -> Iterator[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
    """Tensors of each module in vLLM's order; the two matrices of experts are one module."""
    rows = iter(quantised)
    for weight in rows:
        other = next(rows) if weight.routed else None
        yield (weight.created + other.created, weight.held + other.held) if other else (weight.created, weight.held)


def release_of(generation: Generation, default: str) -> Release:
    """Version of vLLM that `generation.version` names; that called `default` (such as "0.12.0") if it is "auto"."""
    return RELEASES[default if generation.version == "auto" else generation.version]
