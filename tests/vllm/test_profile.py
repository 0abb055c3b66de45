"""The profile run's highest moment grows with what it is made of."""

from __future__ import annotations

from simcore.models.graph import architecture_of, model_config
from simcore.vllm.profile import profile
from simcore.vllm.release import RELEASES

LLAMA = architecture_of(model_config("llama-3.1-8b", None, ""))
QWEN3 = architecture_of(model_config("qwen3-30b-a3b", None, ""))
NANO = architecture_of(model_config("nemotron-3-nano-30b-a3b", None, ""))


def test_the_sampler_takes_rows_of_logits() -> None:
    hidden = 8192 * 4096 * 2
    assert profile(LLAMA, 1, 8192, 256, 2, 28).sampler == hidden + 256 * 128256 * (2 + 4 + 12 + 12)
    assert profile(LLAMA, 1, 8192, 256, 2, 28).sampler == profile(LLAMA, 4, 8192, 256, 2, 28).sampler


def test_versions_sample_in_their_own_ways() -> None:
    old, new = (profile(LLAMA, 1, 8192, 256, 2, release.sampled).sampler for release in RELEASES.values())
    assert old - new == 256 * 128256 * (28 - 16)


def test_a_dense_pass_is_highest_in_the_mlp() -> None:
    assert profile(LLAMA, 2, 8192, 1, 2, 28).forward == 8192 * 2 * (2 * 4096 + 2 * 14336 // 2 + 4096)


def test_experts_take_each_token_often_and_no_more_than_a_chunk_at_once() -> None:
    rows = 8192 * 6
    experts = rows * (2688 + 464 // 2) * 2
    flat = 8192 * 2 * (2 * 2688 + 928 + 2688 + 2688) + 8192 * (128 + 2688) * 4
    assert profile(NANO, 4, 8192, 1, 2, 28).forward == experts + flat
    half, all_of_it = (profile(NANO, 4, tokens, 1, 2, 28).forward for tokens in (16384, 32768))
    assert all_of_it < 2 * half


def test_the_highest_is_the_higher_of_both() -> None:
    memory = profile(NANO, 4, 8192, 1024, 2, 28)
    assert memory.highest == memory.sampler > memory.forward


def test_a_router_in_the_models_dtype_copies_no_inputs() -> None:
    """Logits of Qwen3's and Mixtral's routers are in the model's dtype; Nemotron-H's are in fp32 with any kernel."""
    tokens = 8192
    wide, narrow = (profile(NANO, 4, tokens, 1, 2, 28, narrow_router=narrow).forward for narrow in (False, True))
    assert wide - narrow == tokens * 2688 * 4
    rows = tokens * 8
    experts = rows * (2048 + 2 * 768 // 2) * 2
    linears = (2 * 2048 + 2048) * 2
    assert profile(QWEN3, 1, tokens, 1, 2, 28).forward == experts + tokens * (linears + 128 * 2)
