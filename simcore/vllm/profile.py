"""Highest memory of vLLM's profile run: the forward pass of the most tokens, or the sampler after it.

[Note: profile run]
vLLM `v1/worker/gpu_model_runner.py` profile_run: `max_num_batched_tokens` dummy tokens through the model without
a cache (attention and Mamba return early), then the sampler on one row of logits for each of at most `max_num_seqs`
sequences, with top-k and top-p. Counted, and assumed to be alive together because torch.compile's plan is not known:
the residual stream and the norm's output; of the largest layer the inputs and outputs of its linears, with experts
`cache13` and `cache2` of `fused_moe.py` fused_experts_impl (each token `top_k` times, 16,384 tokens a chunk) and the
router's logits: in the model's dtype (`models/qwen3_moe.py`, `models/mixtral.py`), of Nemotron-H in fp32, for which
0.12.0, and 0.25.1 where no kernel multiplies into fp32 (`fused_moe/router/gate_linear.py`), copy its inputs to fp32 too
(`models/nemotron_h.py`). The sampler: gathered logits in the model's dtype, and the copies of them that a version makes
(`Release.sampled`). A drafter (`drafter.py`): its layers are no larger than the model's, and rejection is tried on
logits of twice as many rows (_dummy_sampler_run).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from simcore.models.blocks import Block, Branch, LatentAttention, Moe
from simcore.models.config import Architecture
from simcore.vllm.quantized.linears import linears
from simcore.vllm.weights import layers_of

__all__ = ["Profile", "profile"]

_CHUNK: Final = 16 * 1024
"""Tokens that experts process at once (`VLLM_FUSED_MOE_CHUNK_SIZE`)."""
_FP32: Final = 4


@dataclass(frozen=True, slots=True)
class Profile:
    """Bytes on a rank, besides weights, at the highest moments of vLLM's profile run: forward pass and sampler."""

    forward: int
    sampler: int

    @property
    def highest(self) -> int:
        """Bytes that are kept free of the cache: the larger of both moments."""
        return max(self.forward, self.sampler)


_NOTHING: Final[Mapping[Branch, int]] = {}


def profile(architecture: Architecture, tp: int, tokens: int, seqs: int, width: int, sampled: int,
            unpacked: Mapping[Branch, int] = _NOTHING, *, narrow_router: bool = False, context: int = 0,
            drafts: bool = False, whole_experts: bool = False) -> Profile:
    """Highest bytes, besides weights, of vLLM's profile run on a rank: `tokens` tokens, then sampling of `seqs`.

    `seqs`: sequences, at most `tokens` count. `width`: bytes of an element of the model's dtype; `sampled`: bytes of
    each logit in the sampler, in addition to `width`; `unpacked`: bytes that a block's kernels add to unpack weights.
    `narrow_router`: Nemotron-H's router takes inputs in the model's dtype (`Release.narrow_router`). `context`: tokens
    of prompts whose keys and values latent attention makes at once. `drafts`: a drafter runs after the model, whose
    hidden state waits; logits for one drafted token of each sequence, and for the next, are tried besides.
    `whole_experts`: they are not cut by tp.
    """
    stream = (2 + drafts) * tokens * architecture.hidden * width
    largest = max(_of_block(branch, tp, tokens, width, context, whole=whole_experts) + unpacked.get(branch, 0) +
                  tokens * _of_router(branch.block, kind.family, width, narrow=narrow_router)
                  for _, kind in layers_of(architecture) for branch in kind.branches)
    logits = min(seqs, tokens) * architecture.vocab * (width + sampled + 2 * width * drafts)
    return Profile(stream + largest, tokens * architecture.hidden * width + logits)


def _of_latent_attention(branch: Branch, block: LatentAttention, tp: int, tokens: int, context: int) -> int:
    """Elements: outputs of the linears that run without a cache, and room for keys and values of a long context.

    0.25.1 `layers/attention/mla_attention.py` forward_impl: a tensor of that size is made and dropped.
    """
    made = sum(linear.outputs for linear in linears(branch, tp) if linear.name != "kv_b_proj")
    return tokens * made + context * block.kv_size // tp


def _of_block(branch: Branch, tp: int, tokens: int, width: int, context: int, *, whole: bool) -> int:
    block = branch.block
    if isinstance(block, LatentAttention):
        return _of_latent_attention(branch, block, tp, tokens, context) * width
    dense = [linear for linear in linears(branch, tp) if linear.copies == 1 and linear.name != "conv1d"]
    flat = sum(linear.outputs for linear in dense) * tokens * width
    if not isinstance(block, Moe):
        return flat
    rows = min(tokens, _CHUNK) * block.top_k
    first = next(linear.outputs for linear in linears(branch, 1 if whole else tp) if linear.name == "w13")
    experts = rows * (max(first, block.expert_hidden) + first // 2) * width
    return flat + experts + tokens * block.expert_hidden * width


def _of_router(block: Block, family: str, width: int, *, narrow: bool) -> int:
    """Bytes a token of the router's logits, and of its inputs where they are copied."""
    if not isinstance(block, Moe):
        return 0
    if family != "nemotron_h":
        return block.num_experts * width
    return (block.num_experts + block.hidden * (not narrow)) * _FP32
