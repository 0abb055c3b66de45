"""Defaults of SGLang by the memory of the device: tokens of a prefill, sequences of the largest CUDA graph.

SGLang 0.5.6 (`sglang/srt/`) `server_args.py:700-868` _handle_gpu_memory_settings; batch sizes of graphs: `:871`
_generate_cuda_graph_batch_sizes, none above the number of sequences (`model_executor/cuda_graph_runner.py`
get_batch_sizes_to_capture).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["Settings", "settings_of"]

_MIB: Final = 2**20
_WIDE: Final = 4
"""Ranks from which the larger of two limits is taken."""


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
