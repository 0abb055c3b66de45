"""The all-gather dispatcher, and permutation without fusion."""

from __future__ import annotations

from dataclasses import replace

import pytest

from operators.megatron.kinds import GPT_MOE, PLAIN, T, kept_in, run_of
from simcore.models.blocks import LayerKind, Moe
from simcore.operators.megatron.ops.options import MegatronOptions

_GATHERED = MegatronOptions(dispatcher="allgather", moe_router_dtype="bf16")


@pytest.mark.parametrize(("options", "rows"), [
    ({"ep": 4}, 2), ({"tp": 2, "sequence_parallel": True, "etp": 2}, 2), ({"tp": 2, "sequence_parallel": True}, 1)])
def test_the_all_gather_dispatcher_keeps_places_and_maps(options: dict[str, object], rows: int) -> None:
    """Beside the all-to-all's experts: a place a row; the map, its turned copy and that of probabilities (bf16)."""
    run = run_of(GPT_MOE, top_k=2, options=_GATHERED, **options)  # type: ignore[arg-type]
    block = GPT_MOE.branches[1].block
    assert isinstance(block, Moe)
    local, ranks = T // int(str(options.get("tp", 1))), run.ep * run.etp
    attention = LayerKind("attention_alone", "gpt2", 512, GPT_MOE.branches[:1])
    experts = rows * T * (2 * 512 + 3 * 2 * 1024 // run.etp + 2 + 8)
    router = local * (2 * 2 * 512 + 8 + 8 * 2 + 4 * 2 + 2 * 8 + 8 + 4 * 8)
    maps = local * ranks * (8 // run.ep) * (1 + 1 + 2)
    plain = {name: value for name, value in options.items() if name != "etp"}
    found = kept_in(GPT_MOE, run) - kept_in(attention, run_of(attention, **plain))  # type: ignore[arg-type]
    assert found == pytest.approx(experts + router + maps, rel=0.01)


def test_deterministic_sums_keep_their_rows() -> None:
    """`index_add_` saves its source where `scatter_add_` does not; TE's fused permutation needs neither."""
    changes = ((_GATHERED, 2 * T * 512 * 2), (MegatronOptions(moe_permute_fusion=False), 2 * T * 512 * 2), (PLAIN, 0))
    for plain, change in changes:
        kept = [kept_in(GPT_MOE, run_of(GPT_MOE, top_k=2, ep=4, options=options))
                for options in (replace(plain, deterministic_mode=True), plain)]
        assert kept[0] - kept[1] == change
