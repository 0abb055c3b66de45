"""Versions of SGLang, and defaults by the memory of the device: tokens of a prefill, sequences of a CUDA graph.

SGLang 0.5.6, and 0.5.12.post1 alike (`sglang/srt/`): `server_args.py:700-868` _handle_gpu_memory_settings; batch sizes
of graphs: `:871` _generate_cuda_graph_batch_sizes, none above the number of sequences (`model_executor/
cuda_graph_runner.py` get_batch_sizes_to_capture).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["RELEASES", "Release", "Settings", "settings_of"]

_MIB: Final = 2**20
_WIDE: Final = 4
"""Ranks from which the larger of two limits is taken."""


@dataclass(frozen=True, slots=True)
class Release:
    """One version of SGLang.

    `bounds`: sequences that are asked for are no more than a pool without a limit has, whose own are no more than half
    of its tokens (0.5.12 `model_executor/model_runner_kv_cache_mixin.py` _resolve_max_num_reqs; 0.5.6 bounds only what
    runs). `spare`: rows of places beside those of sequences (0.5.12 `mem_cache/memory_pool.py` ReqToTokenPool).
    """

    name: str
    bounds: bool
    spare: int


RELEASES: Final = {one.name: one for one in (Release("0.5.6", bounds=False, spare=0),
                                             Release("0.5.12.post1", bounds=True, spare=1))}


@dataclass(frozen=True, slots=True)
class Settings:
    """Tokens of one pass of prompts (`chunked_prefill_size`), sequences of the largest graph (`cuda_graph_max_bs`)."""

    tokens: int
    graphs: int


_BY_MEMORY: Final = ((20, 2048, (8, 8)), (35, 2048, (24, 80)), (60, 4096, (32, 160)), (160, 8192, (256, 512)))
"""(GiB below which it holds, tokens, graphs of fewer and of more ranks)."""


def settings_of(usable_bytes: int, tp: int) -> Settings:
    """Defaults on a device of `usable_bytes` for an engine of `tp` ranks."""
    for below, tokens, graphs in _BY_MEMORY:
        if usable_bytes < below * 1024 * _MIB:
            return Settings(tokens, graphs[tp >= _WIDE])
    return Settings(16384, 512)
