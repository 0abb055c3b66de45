"""How long one decoded token takes: what a rank reads for it, over the bandwidth of its memory.

A stated model, assumed: every weight that a token of the batch visits is read once, keys and values of every sequence
are read once, states are read and written. Experts: of E, k drawn by each of B tokens, alike and without regard to each
other, E (1 - (1 - k/E)^B) are visited. Arithmetic, collectives of tensor parallelism, sampling and the host take no
time, so a small batch takes longer in truth.
"""

from __future__ import annotations

from simcore.models.blocks import Moe
from simcore.vllm.engine import Engine

__all__ = ["bytes_read", "decode_seconds", "seconds"]


def bytes_read(engine: Engine, sequences: int, context: int) -> int:
    """Of a rank, for one token of each sequence with so many tokens behind it."""
    share = _visited(engine, sequences)
    weights = sum(round(engine.bytes_of(weight) * (share if weight.routed else 1)) for weight in engine.weights
                  if weight.component != "embedding" or engine.architecture.tied)
    pages = engine.pages
    kv = pages.token_bytes * pages.attention_layers * context
    return weights + sequences * (kv + 2 * pages.state_bytes * pages.mamba_layers)


def _visited(engine: Engine, tokens: int) -> float:
    """Share of the experts that so many tokens visit."""
    blocks = [branch.block for _, kind in engine.architecture.parts for branch in kind.branches]
    found = next((block for block in blocks if isinstance(block, Moe)), None)
    return 1.0 if found is None else 1 - (1 - found.top_k / found.num_experts) ** tokens


def seconds(engine: Engine, num_bytes: int) -> float:
    """To read them, at the share of the bandwidth that products reach."""
    topology = engine.topology
    return num_bytes / (topology.device.memory_bandwidth.si * topology.efficiency.kernels.gemm.memory.si)


def decode_seconds(engine: Engine, sequences: int, prompt: int, last: int) -> float:
    """From `prompt` tokens to `last`, one token of every sequence after the other.

    What is read grows by as much with every token, so the mean is that of both ends.
    """
    steps = last - prompt
    first, final = (bytes_read(engine, sequences, context) for context in (prompt, last))
    return seconds(engine, steps * (first + final) // 2)
