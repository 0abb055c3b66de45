"""The flex dispatcher: ranks that a token goes to, what DeepEP keeps and sends."""

from __future__ import annotations

import pytest

from operators.megatron.kinds import MOE, QWEN3, T, check_closed, kept_in, run_of
from simcore.models.blocks import Moe
from simcore.operators.megatron.dispatch_flex import distinct_ranks
from simcore.operators.megatron.implementation import record
from simcore.operators.megatron.ops.options import MegatronOptions


def test_deepep_keeps_what_the_page_estimates() -> None:
    # activations.md table 1.1, rows "Megatron deepep"; metadata 20 % at best.
    flex = MegatronOptions(dispatcher="flex")
    assert kept_in(MOE, run_of(MOE, ep=8, options=flex)) / T == pytest.approx(104_542, rel=1e-4)
    assert kept_in(MOE, run_of(MOE, ep=8, lora=32, options=flex)) / T == pytest.approx(105_438, rel=1e-4)
    assert kept_in(MOE, run_of(MOE, ep=8, frozen=True, options=flex)) / T == pytest.approx(42_590, rel=1e-4)


@pytest.mark.parametrize(("ep", "ranks"), [(8, 3.629), (32, 6.597), (64, 7.359)])
def test_tokens_go_to_ranks_of_the_groups_that_were_chosen(ep: int, ranks: float) -> None:
    """8 of 256 experts in 4 of 8 groups; drawn 20,000 times: 3.63, 6.60, 7.35. Without groups 5.30 of 8."""
    grouped = Moe(7168, 256, 8, 2048, 2048, num_groups=8, chosen_groups=4)
    assert distinct_ranks(grouped, ep) == pytest.approx(ranks, abs=1e-3)
    assert distinct_ranks(Moe(7168, 256, 8, 2048, 2048), 8) == pytest.approx(8 * (1 - (7 / 8) ** 8), abs=0.1)


def test_a_rank_that_holds_several_groups_is_missed_by_none_of_a_tokens_experts() -> None:
    assert distinct_ranks(Moe(8, 64, 8, 8, 0, num_groups=8, chosen_groups=8), 2) == pytest.approx(
        distinct_ranks(Moe(8, 64, 8, 8, 0), 2))
    assert distinct_ranks(Moe(8, 64, 8, 8, 0, num_groups=8, chosen_groups=1), 2) == pytest.approx(1)


def test_flex_sends_probabilities_in_fp32_whatever_the_routers_format() -> None:
    """DeepEP's and HybridEP's own demand: one cast each way, and no more is kept."""
    def casts(dtype: str) -> list[str]:
        slots: dict[tuple[str, str], int] = {}
        run = run_of(QWEN3, ep=8, options=MegatronOptions(dispatcher="flex", moe_router_dtype=dtype))
        check_closed(QWEN3, run, record(QWEN3, run, slots, {}))
        return sorted(name for name, _ in slots if "to_fp32" in name)
    assert (casts("fp32"), casts("bf16")) == ([], ["grad_to_fp32", "to_fp32"])
