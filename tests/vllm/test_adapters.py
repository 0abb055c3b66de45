"""Buffers of LoRA serving, layer by layer as vLLM makes them."""

from __future__ import annotations

from simcore.models.graph import architecture_of, model_config
from simcore.vllm.adapters import adapter_elements

LLAMA = {"hidden": 4096, "q": 4096, "kv": 1024, "ffn": 14336, "layers": 32, "vocab": 128256}


def elements(model: str, tp: int, rank: int) -> int:
    return adapter_elements(architecture_of(model_config(model, None, "")), tp, rank)


def test_a_dense_layers_pairs() -> None:
    """Inputs whole but where the layer's own input is cut, outputs cut but where they are whole, vocabularies whole."""
    for tp in (1, 4):
        hidden, ffn = LLAMA["hidden"], LLAMA["ffn"] // tp
        qkv = 3 * hidden + (LLAMA["q"] + 2 * LLAMA["kv"]) // tp
        layer = qkv + (LLAMA["q"] // tp + hidden) + (2 * hidden + 2 * ffn) + (ffn + hidden)
        ends = 2 * (LLAMA["vocab"] + hidden)
        assert elements("llama-3.1-8b", tp, 16) == 16 * (LLAMA["layers"] * layer + ends)


def test_experts_have_a_pair_each_and_room_for_a_gate_that_is_not_there() -> None:
    moe = 128 * (2 * (2688 + 464) + (464 + 2688))
    shared = (2688 + 928) + (928 + 2688)
    mamba = (4 + 1536) + (2688 + 1024 + 16 + 1536) + (1024 + 2688)
    attention = (3 * 2688 + (8 + 2) * 128) + (1024 + 2688)
    assert elements("nemotron-3-nano-30b-a3b", 4, 1) == (
        23 * (moe + shared) + 23 * mamba + 6 * attention + 2 * (131072 + 2688))
