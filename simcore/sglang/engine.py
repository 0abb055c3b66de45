"""One engine of SGLang on its ranks: its pool of keys and values, and what it holds before, during and after a step.

[Note: the pool]
SGLang 0.5.6 (`sglang/srt/`). `model_executor/model_runner.py:702` reads free memory once NCCL is opened, before weights
are there: what others hold on the GPU is not in it. After weights are loaded, `:1367` profile_max_num_token gives the
pool what is free less (1 - mem_fraction_static) of that: weights and pool together take mem_fraction_static of the
memory that was free. Tokens are whole pages, one token each (`server_args.py` _handle_page_size), and one more page
takes what padded tokens write (`mem_cache/memory_pool.py:622`). Beside it, out of the rest: the places of each
sequence's tokens, int32, for `max_running_requests` sequences of the model's context and 4 more
(`model_runner.py:1757`, `memory_pool.py:93`), the free tokens, int64 (`mem_cache/allocator.py:134`), and CUDA graphs.

[Note: released]
`managers/scheduler_update_weights_mixin.py`: release_memory_occupation frees what was allocated in the regions
"kv_cache" (pool, and places of tokens) and "weights" (without a copy on the host unless enable_weights_cpu_backup);
buffers of the model are cloned on the device first (`:201` _export_static_state), so that they stay. Free tokens,
graphs and their inputs, workspaces, the context and NCCL's buffers stay. Graphs themselves are in a region
"cuda_graph" with SGLANG_MEMORY_SAVER_CUDA_GRAPH (`model_executor/cuda_graph_runner.py`), which NeMo RL sets and
releases with the pool (7ea279ab `models/generation/sglang/sglang_worker.py` release_memory_occupation).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from simcore.hardware.topology import Topology
from simcore.inputs.generation import Generation
from simcore.models.blocks import Attention
from simcore.models.config import Architecture
from simcore.sglang.settings import RELEASES, Release, Settings
from simcore.units import dtype_bytes, format_bytes
from simcore.vllm.cache import Cache, Formats, Pages
from simcore.vllm.drafter import Drafter
from simcore.vllm.engine import Limits, nccl_bytes, workspace_bytes
from simcore.vllm.profile import Profile, profile
from simcore.vllm.quantized.linears import kv_heads
from simcore.vllm.quantized.recipe import Recipe
from simcore.vllm.vision import tower_weights
from simcore.vllm.weights import MODEL_DTYPE, Weight, layers_of, weights

__all__ = ["PADDED", "Engine"]

_MIB: Final = 2**20
_REDUCE_BYTES: Final = 3 * 8 * _MIB
"""Custom all-reduce of more than one rank: three buffers of 8 MiB (`distributed/device_communicators/
custom_all_reduce.py:56`)."""
_GRAPH_BYTES: Final = 2 * _MIB
"""Bytes of CUDA graphs for each sequence of the largest, as SGLang reserves them (`server_args.py:830`)."""
_PLACE, _FREE, _FP32 = 4, 8, 4
_MORE_TOKENS: Final = 4
_SAMPLED: Final = 4 + 4
"""Bytes of each logit in the sampler beside the model's own: a copy in fp32, and its softmax before it is written into
the copy (`layers/logits_processor.py:917`, `layers/sampler.py`)."""
_SCORED: Final = 4 + 4 + 4
"""The same where log-probabilities are asked for: the copy, its logarithm, and that within limits."""
PADDED: Final = 8
"""Number of which elements of an MLP of Qwen 2.5 VL's tower are a multiple (`models/qwen2_5_vl.py`)."""
_IMAGES: Final = 100 * _MIB
"""Bytes of features of images that are kept for prompts with the same ones (`environ.py:311`), once so many were."""
_CUT: Final = 2
"""Tokens of the pool that no sequence gets (`managers/tp_worker.py:303`, `managers/scheduler.py:1199`)."""
_LEAST, _MOST, _EACH = 2048, 4096, 512
"""Numbers of sequences in a pool without a limit: least, most, for each full context (`model_runner.py:1676`)."""


@dataclass(frozen=True)
class Engine:
    """One engine of SGLang on `generation.tp` equal ranks; all bytes are of one rank.

    `max_model_len`: tokens of the longest sequence that is asked for; `context`: of the model's longest; `settings`:
    tokens of a pass, sequences of a graph. `fraction`: mem_fraction_static. `buffers`: bytes of the model's rotary
    table. `occupied`: bytes that others hold on the GPU when the engine starts. `release`: SGLang's version.
    `frees_graphs`: CUDA graphs are released with the pool; `scores`: log-probabilities of tokens are asked for.
    """

    architecture: Architecture
    generation: Generation
    topology: Topology
    max_model_len: int
    context: int
    settings: Settings
    fraction: float
    buffers: int = 0
    occupied: int = 0
    release: Release = RELEASES["0.5.6"]
    frees_graphs: bool = False
    scores: bool = False

    @property
    def version(self) -> str:
        """Version of SGLang."""
        return self.release.name

    @property
    def recipe(self) -> Recipe | None:
        """Quantisation of weights: none."""
        return None

    @property
    def drafter(self) -> Drafter | None:
        """Drafter of speculative decoding: none, it is not modelled."""
        return None

    @property
    def adapter_bytes(self) -> int:
        """Bytes of buffers for adapters: there are none."""
        return 0

    @property
    def tp(self) -> int:
        """Tensor-parallel degree: number of the engine's ranks."""
        return self.generation.tp

    def beside(self, occupied: int) -> Engine:
        """The engine as it starts on GPUs of which others hold `occupied` bytes."""
        return replace(self, occupied=occupied)

    @cached_property
    def weights(self) -> tuple[Weight, ...]:
        """Weights of one rank, layer by layer; all ranks have the same sizes."""
        return (*tower_weights(self.architecture, self.tp, multiple=PADDED), *weights(self.architecture, self.tp))

    def bytes_of(self, weight: Weight) -> int:
        """Bytes of one of the engine's `weights` on a rank."""
        return weight.num_bytes

    @cached_property
    def by_component(self) -> dict[str, int]:
        """Bytes of weights on a rank by component (attention, mlp, ...), without empty ones."""
        sizes: Counter[str] = Counter()
        for weight in self.weights:
            sizes[weight.component] += weight.num_bytes
        return {name: size for name, size in sizes.items() if size}

    @property
    def weight_bytes(self) -> int:
        """Bytes of parameters, and of buffers such as the rotary table."""
        return sum(self.by_component.values()) + self.buffers

    @property
    def formats(self) -> Formats:
        """Dtype of keys and values; the model has no other states."""
        kv = self.generation.kv_dtype
        return Formats(MODEL_DTYPE if kv == "auto" else kv, MODEL_DTYPE, MODEL_DTYPE)

    @cached_property
    def pages(self) -> Pages:
        """Layout of the pool: a page of one token in every layer."""
        blocks = [branch.block for _, kind in layers_of(self.architecture) for branch in kind.branches]
        attention = [block for block in blocks if isinstance(block, Attention)]
        token = 2 * kv_heads(attention[0], self.tp) * attention[0].head_dim * dtype_bytes(self.formats.kv)
        return Pages(token, 0, len(attention), 0, 1, token, len(attention), 1, 0)

    @property
    def free_bytes(self) -> int:
        """Bytes that are free when the engine has opened NCCL: all but those of others, its context and buffers."""
        return self.topology.device.usable_bytes - self.occupied - sum(self.outside().values())

    @property
    def requested_bytes(self) -> int:
        """Bytes that weights and pool may take: a fraction of those that are free at the start."""
        return int(max(0, self.free_bytes) * self.fraction)

    @property
    def cache_budget(self) -> int:
        """Bytes that the pool may fill; below zero if weights exceed the fraction."""
        return self.requested_bytes - self.weight_bytes

    @cached_property
    def cache(self) -> Cache:
        """Pool of as many tokens as fit into `cache_budget`."""
        return self.pages.fill(max(0, self.cache_budget))

    @cached_property
    def limits(self) -> Limits:
        """Most tokens of a prefill, and sequences at once (`managers/tp_worker.py:289`)."""
        return Limits(self.settings.tokens, min(self._places, self.generation.max_num_seqs or max(
            1, self.cache.num_blocks // 2)))

    @property
    def _places(self) -> int:
        """Sequences that there are places for."""
        asked, most = self.generation.max_num_seqs, min(max(
            self.cache.num_blocks * _EACH // self.context, _LEAST), _MOST)
        if not self.release.bounds:
            return most if asked is None else asked
        return max(1, min(most, self.cache.num_blocks // 2 if asked is None else asked))

    @property
    def cache_bytes(self) -> int:
        """Bytes that are released with the pool: it, its page for padding, and the places of tokens."""
        rows = self._places + self.release.spare
        return self.cache.num_bytes + self.pages.block_bytes + rows * (self.context + _MORE_TOKENS) * _PLACE

    @cached_property
    def profile(self) -> Profile:
        """Bytes besides weights and pool of the largest prefill, or of sampling for all sequences."""
        return profile(self.architecture, self.tp, self.limits.tokens, self.limits.seqs, dtype_bytes(MODEL_DTYPE),
                       _SCORED if self.scores else _SAMPLED)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of cuBLAS's workspace, of the list of free tokens, and of images as the tower has put them out."""
        images = _IMAGES * self.architecture.has_tower
        return workspace_bytes(self.topology) + self.cache.num_blocks * _FREE + images

    @property
    def graph_bytes(self) -> int:
        """Bytes of CUDA graphs, at least of their inputs: logits in fp32, places of tokens; 0 with `enforce_eager`."""
        if self.generation.enforce_eager:
            return 0
        return max(self._captured * _GRAPH_BYTES, self._inputs)

    @property
    def _captured(self) -> int:
        """Sequences of the largest CUDA graph."""
        return min(self.settings.graphs, self._places)

    @property
    def _inputs(self) -> int:
        """Bytes of tensors that graphs read and write, which stay in any case."""
        each = self.architecture.vocab * _FP32 + self.context * _PLACE
        return self._captured * each + self.context * _FREE

    @property
    def loaded(self) -> dict[str, int]:
        """Bytes by category of what leaves with the weights, see [Note: released]."""
        return {"sharded_param": sum(self.by_component.values())}

    @property
    def stays(self) -> dict[str, int]:
        """Bytes by category of what stays while the engine is released, see [Note: released]."""
        if not self.frees_graphs or not self.graph_bytes:
            return {"graph_pool": self.graph_bytes, "workspace": self.workspace_bytes, "buffer": self.buffers}
        return {"workspace": self.workspace_bytes, "buffer": self.buffers + self._inputs}

    @property
    def cached(self) -> dict[str, int]:
        """Bytes by category of what is released and comes back with the pool."""
        graphs = self.graph_bytes - self._inputs if self.frees_graphs else 0
        return {"kv_cache": self.cache_bytes, **({"graph_pool": graphs} if graphs > 0 else {})}

    def outside(self) -> dict[str, int]:
        """Bytes outside torch's allocator on a rank, by category: `context`, and `nccl` if tp exceeds 1."""
        nccl = nccl_bytes(self.topology, self.tp)
        sizes = {"context": self.topology.device.context_bytes, "nccl": nccl + _REDUCE_BYTES if nccl else 0}
        return {name: size for name, size in sizes.items() if size}

    @property
    def refusal(self) -> str:
        """Reason, as a sentence, why the engine does not start, or cuts sequences short; "" if there is none."""
        if self.cache.num_blocks <= 0:
            return (f"no memory is left for the pool: weights take {format_bytes(self.weight_bytes)}, and "
                    f"mem_fraction_static {self.fraction:g} of what is free at its start "
                    f"({format_bytes(max(0, self.free_bytes))}) is {format_bytes(self.requested_bytes)}")
        if self.cache.num_blocks - _CUT < self.max_model_len:
            return (f"the pool has room for {self.cache.num_blocks:,} tokens, and a sequence of "
                    f"{self.max_model_len:,} is cut short (managers/tp_worker.py:303 max_req_len)")
        return ""
