"""Memory of an inference engine on a rank, and its decoding rate: a part of a result, JSON in and out."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Decode", "Serving"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Decode(_Frozen):
    """One decoding step of an inference engine, which makes a token for each of `sequences`.

    `context_tokens`: tokens before it in each sequence. `tokens_per_s`: of the whole engine. `bytes_read`: of weights,
    caches and states on a rank; `seconds`: at the bandwidth that matrix products reach, with arithmetic, small kernels,
    sampling and the host, without collectives.
    """

    sequences: int
    context_tokens: int
    bytes_read: int
    seconds: float
    tokens_per_s: float


class Serving(_Frozen):
    """Memory of a vLLM engine on one rank, in bytes, and what fits into its cache.

    `requested_bytes`: the utilisation's share of the memory that the driver reports. `cache_bytes`: bytes of blocks,
    out of the remaining `cache_budget_bytes`; `cache_groups`: groups of layers, in each of which a sequence takes
    blocks. `kv_bytes_per_token`: over all attention layers; `state_bytes`: of one sequence over all Mamba layers,
    without the padding to a page. `cache_tokens`: as the engine logs it. `concurrency`: sequences of `max_model_len`
    that the cache holds; `longest`: tokens of the longest that is admitted. `refusal`: reason for which the engine does
    not start, "" if it does. `quantization`: vLLM's name of the weights' format, "" for 16 bits.
    """

    engine: str
    version: str
    tp: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_dtype: str
    ssm_dtype: str
    quantization: str = ""
    kv_heads_per_rank: int
    kv_head_replicas: int
    requested_bytes: int
    weight_bytes: int
    adapter_buffer_bytes: int
    activation_bytes: int
    graph_bytes: int
    cache_budget_bytes: int
    cache_bytes: int
    kv_bytes_per_token: int
    state_bytes: int
    block_size: int
    page_bytes: int
    num_blocks: int
    cache_groups: int = 1
    cache_tokens: int
    concurrency: float
    longest: int
    decode: tuple[Decode, ...] = ()
    refusal: str = ""
