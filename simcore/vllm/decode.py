"""Time of one decoded token: bytes that a rank reads for it, over the bandwidth of its memory.

An assumed model: every weight that a token of the batch uses is read once, keys and values of every sequence are read
once, states are read and written. Experts: if each of B tokens draws k of E experts uniformly and independently,
E (1 - (1 - k/E)^B) of them are used. Arithmetic, sampling and the host take no time, so a small batch takes longer in
reality; collectives of tensor parallelism are counted beside it (`simcore/rl/step/traffic.py`, engine_ns). Speculative
decoding: a pass is over one token and those that were drafted, for each of which the drafter's weights and the head are
read once; a sequence goes on by one token and those that are accepted.
"""

from __future__ import annotations

from simcore.models.blocks import Moe
from simcore.vllm.drafter import Drafter
from simcore.vllm.protocol import InferenceEngine
from simcore.vllm.weights import TOWER, Weight

__all__ = ["bytes_read", "decode_seconds", "seconds"]


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


def decode_seconds(engine: InferenceEngine, sequences: int, prompt: int, last: int) -> float:
    """Seconds to decode `sequences` sequences together, each from a length of `prompt` to one of `last` tokens.

    The bytes grow linearly with the tokens, so their mean is that of both ends; beyond a window those in it grow no
    more.
    """
    turn = min(max(engine.pages.window, prompt), last)
    return sum(_between(engine, sequences, *ends) for ends in ((prompt, turn), (turn, last)))


def _between(engine: InferenceEngine, sequences: int, prompt: int, last: int) -> float:
    first, final = (bytes_read(engine, sequences, context) for context in (prompt, last))
    return seconds(engine, (last - prompt) * (first + final) // 2)
