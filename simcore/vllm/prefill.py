"""Time of passes over prompts: arithmetic of their tokens, at the rate that matrix products reach.

An assumed model: every weight multiplies every token once (of routed experts those that a token goes to), attention
multiplies every pair of a query and a key before it, as far as a window lets it see. Reading weights, collectives of
tensor parallelism and the host take no time, so passes of few tokens take longer in reality.
"""

from __future__ import annotations

from simcore.models.blocks import Attention, LatentAttention, Moe
from simcore.vllm.protocol import InferenceEngine
from simcore.vllm.weights import TOWER

__all__ = ["products_rate", "prompt_flops", "prompt_seconds", "used_elements"]

_OF_PAIR = 4
"""FLOPs of a pair of tokens for each element of a head's query: two products."""


def used_elements(engine: InferenceEngine, *, head: bool = False) -> int:
    """Elements of weights that one token is multiplied with on a rank; `head`: with those of the head."""
    blocks = [branch.block for _, kind in engine.architecture.parts for branch in kind.branches]
    moe = next((block for block in blocks if isinstance(block, Moe)), None)
    idle = ("embedding", *TOWER) if head and not engine.architecture.tied else (
        TOWER if head else ("embedding", "lm_head", *TOWER))
    return sum(weight.numel * moe.top_k // moe.num_experts if weight.routed and moe is not None else weight.numel
               for weight in engine.weights if weight.component not in idle)


def prompt_flops(engine: InferenceEngine, sequences: int, tokens: int) -> int:
    """FLOPs of a rank for `sequences` prompts of `tokens` tokens each, without the head and a vision tower."""
    pairs = sum(branch.block.q_size * _pairs(branch.block, tokens) for _, kind in engine.architecture.parts
                for branch in kind.branches if isinstance(branch.block, Attention | LatentAttention)) // engine.tp
    return sequences * (2 * used_elements(engine) * tokens + _OF_PAIR * pairs)


def _pairs(block: Attention | LatentAttention, tokens: int) -> int:
    """Pairs of a query and a key that is not after it, and in the window if there is one."""
    seen = min(block.window or tokens, tokens) if isinstance(block, Attention) else tokens
    return seen * tokens - seen * (seen - 1) // 2


def products_rate(engine: InferenceEngine) -> float:
    """FLOP/s that matrix products reach in 16 bits."""
    device, share = engine.topology.device, engine.topology.efficiency.kernels.gemm.compute
    return device.products.si * device.rate_share * (1.0 if share is None else share.si)


def prompt_seconds(engine: InferenceEngine, sequences: int, tokens: int) -> float:
    """Seconds of a rank for `sequences` prompts of `tokens` tokens each."""
    return prompt_flops(engine, sequences, tokens) / products_rate(engine)
