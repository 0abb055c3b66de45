"""Time of one decoded token: bytes that a rank reads for it, over the bandwidth of its memory, and what is beside them.

An assumed model: every weight that a token of the batch uses is read once, keys and values of every sequence are read
once, states are read and written. Experts: if each of B tokens draws k of E experts uniformly and independently,
E (1 - (1 - k/E)^B) of them are used. Arithmetic, small kernels, sampling and the host are added (`passes.py`);
collectives of tensor parallelism are counted beside it (`simcore/rl/step/traffic.py`, engine_ns). Speculative
decoding: a pass is over one token and those that were drafted, for each of which the drafter's weights and the head are
read once; a sequence goes on by one token and those that are accepted.
"""

from __future__ import annotations

from simcore.models.blocks import Moe
from simcore.vllm.answers import Stage
from simcore.vllm.drafter import Drafter
from simcore.vllm.passes import beside_seconds
from simcore.vllm.protocol import InferenceEngine
from simcore.vllm.weights import TOWER, Weight

__all__ = ["bytes_read", "decode_seconds", "pass_seconds", "seconds"]


def bytes_read(engine: InferenceEngine, sequences: int, context: int) -> int:
    """Bytes of a rank's memory traffic to decode one token of each of `sequences` sequences together.

    `context`: tokens before it in each sequence. Weights (of experts those expected to be used), keys and values are
    read once; Mamba states are read and written.
    """
    drafter = engine.drafter
    if drafter is None:
        return _of_pass(engine, sequences, context)
    drafted = drafter.tokens * _of_draft(engine, drafter, sequences, context)
    whole = _of_pass(engine, sequences, context, 1 + drafter.tokens) + drafted
    return round(whole / (1 + drafter.accepted))


def _of_draft(engine: InferenceEngine, drafter: Drafter, sequences: int, context: int) -> int:
    """Bytes of one pass of the drafter, with the head that it shares, over one token of each sequence."""
    share = _visited(engine, sequences)
    weights = sum(_of_weight(weight, engine.bytes_of(weight), sequences, share) for weight in drafter.weights)
    head = sum(engine.bytes_of(weight) for weight in engine.weights if weight.component == "lm_head")
    return weights + head + sequences * engine.pages.token_bytes * drafter.attention_layers * context


def _of_pass(engine: InferenceEngine, sequences: int, context: int, tokens: int = 1) -> int:
    """Bytes of one pass of the model over `tokens` tokens of each sequence."""
    share = _visited(engine, sequences * tokens)
    idle = TOWER if engine.architecture.tied else ("embedding", *TOWER)
    weights = sum(_of_weight(weight, engine.bytes_of(weight), sequences, share) for weight in engine.weights
                  if weight.component not in idle)
    pages, drafter = engine.pages, engine.drafter
    kv = pages.read(context, pages.attention_layers - (drafter.attention_layers if drafter else 0))
    return weights + sequences * (kv + (1 + tokens) * pages.state_bytes * pages.mamba_layers)


def _of_weight(weight: Weight, held: int, sequences: int, share: float) -> int:
    """Bytes of traffic of one weight of `held` bytes; `share`: of the experts that are used.

    A copy in 16 bits is written and read, see `quantized/four_bit.py`: of all experts, of linears for two tokens up.
    """
    if weight.routed:
        return held + weight.wide + round(weight.wide * share) if weight.wide else round(held * share)
    return held + 2 * weight.wide * (sequences > 1)


def _visited(engine: InferenceEngine, tokens: int) -> float:
    """Expected share of the experts that `tokens` tokens use."""
    blocks = [branch.block for _, kind in engine.architecture.parts for branch in kind.branches]
    moe = next((block for block in blocks if isinstance(block, Moe)), None)
    return 1.0 if moe is None else 1 - (1 - moe.top_k / moe.num_experts) ** tokens


def seconds(engine: InferenceEngine, num_bytes: int) -> float:
    """Seconds to read `num_bytes` of device memory, at the bandwidth that matrix products reach."""
    topology = engine.topology
    return num_bytes / (topology.device.memory_bandwidth.si * topology.efficiency.kernels.gemm.memory.si)


def pass_seconds(engine: InferenceEngine, sequences: int, context: int) -> float:
    """Seconds of a token of each of `sequences` sequences behind `context` tokens, without collectives."""
    return seconds(engine, bytes_read(engine, sequences, context)) + beside_seconds(engine, sequences)


def decode_seconds(engine: InferenceEngine, stage: Stage) -> float:
    """Seconds of all passes of `stage`.

    The bytes grow linearly with the tokens, so their mean is that of both ends; beyond a window those in it grow no
    more.
    """
    turn = min(max(engine.pages.window, stage.first), stage.last)
    moved = (_between(engine, stage.sequences, stage.first, turn) + _between(engine, stage.sequences, turn, stage.last)
             if stage.last > stage.first else stage.passes * bytes_read(engine, stage.sequences, stage.first))
    return seconds(engine, moved) + stage.passes * beside_seconds(engine, stage.sequences)


def _between(engine: InferenceEngine, sequences: int, first: int, last: int) -> int:
    """Bytes of a pass at each context from `first` to `last` tokens."""
    ends = [bytes_read(engine, sequences, context) for context in (first, last)]
    return (last - first) * sum(ends) // 2
