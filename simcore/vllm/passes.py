"""Time of a pass of decoding beside reading weights and caches: arithmetic, small kernels, sampling, the host.

[Note: a pass]
Arithmetic is added to traffic, as in other kernels (`simcore/timing/kernel.py`); attention's is left out. Kernels that
are no products take the shortest time of a kernel each: vLLM 0.25.1 runs a norm, rotation, the write of keys and values
and attention in a layer of attention, a norm and an activation in an MLP, and in one with experts also their choice,
two kernels that sort tokens by expert, and the sum (`model_executor/models/llama.py`, `layers/fused_moe/fused_moe.py`).
A sampler passes over logits of the whole vocabulary in fp32: they are converted, divided by the temperature, softmaxed,
divided by noise that was drawn, and the largest is taken (`v1/sample/sampler.py`, `ops/topk_topp_sampler.py`).
The host schedules, prepares inputs and launches one graph before each pass, and takes tokens after it, while the GPU
waits: measured for a scheduler and its cache, 12.7 us a sequence (vLLM 0.27.1, openfabric-systems/simllm pull request
204). For the rest of a pass: what two published times of a token of one sequence leave beside the above, 2.1 ms for
Qwen3 1.7B on an A100 (tenstorrent/tt-inference-server issue 340: 4.6 ms) and 0.8 ms for Llama 3.1 8B on an A100 of 40
GB (johnmusgrave.com, vLLM 0.23: 75 tokens/s), in the mean 1.4. Kept out of it: Qwen3 30B-A3B on an A100 (the same
issue: 9.6 ms), of which 6.2 are found. Ray, which starts passes over several GPUs under NeMo RL, takes more.
"""

from __future__ import annotations

from typing import Final

from simcore.models.blocks import Attention, GatedDeltaNet, LatentAttention, Mamba2, Mlp, Moe
from simcore.vllm.prefill import products_rate, used_elements
from simcore.vllm.protocol import InferenceEngine
from simcore.vllm.weights import layers_of, padded_rows

__all__ = ["HOST_PASS_S", "HOST_SEQUENCE_S", "beside_seconds"]

HOST_PASS_S: Final = 1.4e-3
HOST_SEQUENCE_S: Final = 12.7e-6
"""Seconds of the host for a pass, and for each sequence in it: [Note: a pass]."""
_SMALL: Final = {Attention: 4, GatedDeltaNet: 4, LatentAttention: 6, Mamba2: 4, Mlp: 2, Moe: 6}
"""Kernels of a block that are no products."""
_SAMPLED: Final = 42
"""Bytes that a sampler moves for each logit."""


def beside_seconds(engine: InferenceEngine, sequences: int) -> float:
    """Seconds of a token of each of `sequences` sequences, without traffic of weights and caches, and collectives."""
    drafter = engine.drafter
    tokens, made = (1 + drafter.tokens, 1 + drafter.accepted) if drafter else (1, 1)
    arithmetic = 2 * sequences * tokens * used_elements(engine, head=True) / products_rate(engine)
    device, kernels = engine.topology.device, engine.topology.efficiency.kernels
    small = sum(_SMALL.get(type(branch.block), 0) for _, kind in layers_of(engine.architecture)
                for branch in kind.branches) * engine.topology.efficiency.shortest.si
    logits = sequences * tokens * padded_rows(engine.architecture.vocab)
    sampling = _SAMPLED * logits / (device.memory_bandwidth.si * kernels.elementwise_eager.memory.si)
    return (arithmetic + small + sampling + HOST_PASS_S + HOST_SEQUENCE_S * sequences) / made
