"""Speculative decoding: the module's tensors, its place in the budget, and what a drafted token costs."""

from __future__ import annotations

import pytest

from simcore.inputs.generation import Generation
from simcore.models.graph import architecture_of, model_config
from simcore.vllm.answers import alike
from simcore.vllm.decode import bytes_read
from simcore.vllm.drafter import Drafter, drafter_of
from simcore.vllm.engine import Engine, Limits
from simcore.vllm.parallel import calls
from simcore.vllm.release import RELEASES
from simcore.vllm.weights import padded_rows
from vllm.test_engine import H100

TOKENS = 1024


def drafter(model: str, tp: int = 1, tokens: int = 1, accepted: float = 0) -> Drafter:
    fields = model_config(model, None, "")
    found = drafter_of(fields, architecture_of(fields), tp, tokens, accepted, narrow_router=True)
    assert found is not None
    return found


def engine(tokens: int = 0, accepted: float = 0, tp: int = 8) -> Engine:
    model = "nemotron-3-super-120b-a12b"
    given = Generation(tp=tp, version="0.25.1")
    return Engine(architecture_of(model_config(model, None, "")), given, H100, 4096, RELEASES["0.25.1"],
                  Limits(TOKENS, 64), drafter=drafter(model, tp, tokens, accepted) if tokens else None)


def test_modules_have_the_published_and_the_written_sizes() -> None:
    """DeepSeek-V3's README_WEIGHTS.md: 11.5B unique parameters beside the shared embedding and head.

    Nemotron-H's by `models/nemotron_h_mtp.py`: an attention and a layer of experts, each with its norm, three more
    norms, and a projection that tp splits.
    """
    assert sum(weight.numel for weight in drafter("deepseek-v3").weights) == pytest.approx(11.5e9, rel=0.01)
    whole, eighth = (sum(weight.numel for weight in drafter("deepseek-v3", tp).weights) for tp in (1, 8))
    assert whole / 8 < eighth < whole / 8 + 2.5 * 7168 * 7168, "eh_proj and projections down are whole on each rank"
    one, four = (drafter("nemotron-3-super-120b-a12b", tp).weights for tp in (1, 4))
    assert [weights[1].numel for weights in (one, four)] == [2 * 4096**2, 2 * 4096**2 // 4]
    assert (sum(weight.component != "mtp" for weight in one), drafter("nemotron-3-super-120b-a12b").attention_layers
            ) == (0, 1)


def test_a_module_comes_out_of_the_cache_and_its_buffers_on_top() -> None:
    plain, drafting = engine(), engine(5)
    module = sum(weight.num_bytes for weight in drafting.drafter.weights) if drafting.drafter else 0
    assert drafting.weight_bytes - plain.weight_bytes == drafting.by_component["mtp"] == module > 0
    more = drafting.profile.highest - plain.profile.highest
    assert plain.cache_budget - drafting.cache_budget == module + more
    assert drafting.stays["input"] == 2 * TOKENS * 4096 * 2
    assert "input" not in plain.stays
    assert drafting.pages.attention_layers == plain.pages.attention_layers + 1


def test_a_pass_reads_the_module_for_each_draft_and_goes_on_by_what_is_accepted() -> None:
    plain, alone, both = engine(), engine(3), engine(3, 2)
    assert bytes_read(both, 16, 500) == pytest.approx(bytes_read(alone, 16, 500) / 3, abs=1)
    head = padded_rows(131072) // 8 * 4096 * 2
    drafts = 3 * head + 3 * 16 * plain.pages.token_bytes * (500 - 0)
    assert bytes_read(alone, 16, 500) - bytes_read(plain, 16, 500) > drafts
    more = bytes_read(alone, 16, 501) - bytes_read(alone, 16, 500)
    assert more == 16 * plain.pages.token_bytes * (plain.pages.attention_layers + 3), "keys of a token, and drafts'"


def test_collectives_of_drafts() -> None:
    """Logits of 1 + 3 rows of a sequence in a pass, and of a row for each draft; fewer passes where some are kept."""
    rows = padded_rows(131072) * 2
    rounds = alike([2], 1000, 4096)
    made = {accepted: [one for one in calls(engine(3, accepted), rounds, 1000) if one.collective == "all_gather"]
            for accepted in (0.0, 1.0)}
    steps = 4096 - 1000 - 1
    for accepted, found in made.items():
        times = -(-steps // int(1 + accepted))
        verified = [one.num_calls for one in found if one.num_bytes == 2 * 4 * rows]
        drafted = sum(one.num_calls for one in found if one.num_bytes == 2 * rows)
        assert (verified, drafted) == ([times], 3 * times + 2), "and those of the prompts' last pass, of both"
    assert len(calls(engine(), rounds, 1000)) < len(calls(engine(3), rounds, 1000))


def test_other_models_have_no_module_that_is_described() -> None:
    for model in ("llama-3.1-8b", "moonlight-16b-a3b", "nemotron-3-nano-30b-a3b", "glm-4.7"):
        fields = model_config(model, None, "")
        assert drafter_of(fields, architecture_of(fields), 1, 1, 0, narrow_router=False) is None, model
