"""Matrices that ranks share under DeepSpeed's AutoTP: refusals, what is cut, and what each rank holds."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import IllegalLayout, NotYet, RankscopeError

SIZES = {"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 8,
         "num_key_value_heads": 4, "vocab_size": 1000}
STAGES = {"zero0": "dp_replicate", "zero1": "dp_shard", "zero2": "dp_shard", "zero3": "dp_shard"}


def model(config: str = "llama-3.2-3b", **sizes: Any) -> dict[str, Any]:
    return {"config": config, "overrides": SIZES | sizes}


@pytest.mark.parametrize("stage", STAGES)
def test_what_is_refused_is_refused_by_its_own_reason(stage: str) -> None:
    refused: dict[str, tuple[dict[str, Any], type[RankscopeError]]] = {
        "HuggingFace tp_plan contains unsupported partition style(s): moe_tp_experts, packed_colwise":
            ({"model": "mixtral-8x7b"}, IllegalLayout),
        "unsupported partition style(s): rowwise_split_input": ({"model": "phi-4"}, IllegalLayout),
        "AutoTP's plan for gpt2": ({"model": "gpt2"}, NotYet),
        "1001 entries of the vocabulary": ({"model": model(vocab_size=1001, tie_word_embeddings=False)}, NotYet),
        "1 key and value heads": ({"model": model(num_key_value_heads=1)}, NotYet),
        "MLP of width 257": ({"model": model(intermediate_size=257)}, NotYet),
        "lora beside AutoTP": ({"method": "lora"}, NotYet),
        "packed sequences": ({"lengths": "packed", "model": model()}, NotYet),
        "cut of a head": ({"loss": "cut", "model": model()}, NotYet),
        "beside AutoTP": ({"options": {"use_liger_kernel": True}}, NotYet)}
    for told, (given, kind) in refused.items():
        with pytest.raises(kind) as error:
            small.prepared(stage, {STAGES[stage]: 2, "tp": 2}, **{"model": model(), **given})
        assert told in str(error.value), (told, str(error.value))
    with pytest.raises(NotYet, match="ranks that share sequences beside AutoTP"):
        small.prepared(stage, {STAGES[stage]: 2, "tp": 2, "cp": 2}, model=model())


def test_linears_are_cut_and_embeddings_norms_and_a_tied_head_are_whole() -> None:
    for tied in (False, True):
        sizes = model("qwen2.5-7b", tie_word_embeddings=tied)
        plan, whole = (small.plan_of("zero2", {"dp_shard": 2, "tp": tp}, model=sizes) for tp in (2, 1))
        for one, other in zip((p for kind in plan.kinds for p in kind), (p for kind in whole.kinds for p in kind),
                              strict=True):
            stays = one.spec.module in ("norm", "embedding") or one.spec.is_buffer or one.spec.name == "o_proj.bias"
            stays |= one.spec.tied
            assert one.used == other.used // (1 if stays else 2), one.spec.name
