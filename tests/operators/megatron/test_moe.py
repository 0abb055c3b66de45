"""The MoE layer of Megatron-Core: latent experts, the shared expert, recomputation, routers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from operators.megatron.kinds import (
    LATENT,
    MOE,
    QWEN3,
    QWEN3_ATTENTION,
    V2,
    T,
    kept_in,
    layer_of,
    qwen3_moe,
    run_of,
    spelled,
)
from simcore.models.blocks import Moe
from simcore.operators.megatron.implementation import record
from simcore.operators.megatron.ops.options import Dispatcher, MegatronOptions
from simcore.recording.tape import Kernel, Op


@pytest.mark.parametrize(("dispatcher", "ep"), [("alltoall", 64), ("flex", 64), ("allgather", 1)])
@pytest.mark.parametrize("frozen", [False, True])
def test_latent_experts_keep_latent_rows_and_the_sum_that_goes_up(dispatcher: Dispatcher, ep: int, *,
                                                                      frozen: bool) -> None:
    """Beside a layer whose experts see all 4,096 columns: each of the 22 rows of a token is 1,024 wide.

    The projection down reads what router and shared expert keep anyway; the one up keeps a token's sum, if it trains.
    Frozen experts keep none of their rows either.
    """
    options, wide = MegatronOptions(dispatcher=dispatcher), layer_of("latent", Moe(4096, 512, 22, 2688, 5376))
    kept = [kept_in(kind, run_of(kind, top_k=22, ep=ep, options=options, frozen=frozen)) for kind in (LATENT, wide)]
    assert kept[0] - kept[1] == (0 if frozen else 2 * (1024 - 22 * (4096 - 1024)) * T)


def test_latent_rows_are_what_is_sent() -> None:
    """22 rows of 1,024 columns for each token, forward and back, and as many probabilities in fp32."""
    run, comms = run_of(LATENT, top_k=22, ep=64), dict[tuple[str, str, str], int]()
    tape = record(LATENT, run, {}, comms)
    sent = [row[3] for part in (tape.forward, tape.backward) for row in part.rows if row[0] == Op.COLLECTIVE]
    rows = 22 * 1024 * 2 * T
    counts = 8 * 512 * 64
    assert sent == [counts, *2 * [rows, 22 * 4 * T, rows]]
    flops = [row[3] for row in tape.forward.rows if row[0] == Op.COMPUTE and row[2] == Kernel.GEMM]
    shared, router, projection = 2 * T * 4096 * 5376, 2 * T * 4096 * 512, 2 * T * 4096 * 1024
    assert flops == [shared, shared, router, projection, projection]


def test_a_recomputed_moe_layer_keeps_its_input_and_what_the_dispatcher_holds() -> None:
    # The page says 5,380: it counts rsigma, which a norm that runs without a graph does not keep, and forgets that
    # probabilities, routing map (5E) and row map (4(2E+1)) are attributes of the dispatcher (token_dispatcher.py).
    held = 5 * 128 + 4 * (2 * 128 + 1)
    assert kept_in(MOE, run_of(MOE, ep=8, checkpoint="moe,layernorm")) == (5_376 + held) * T
    assert kept_in(MOE, run_of(MOE, ep=8, checkpoint="full")) == (5_376 + held) * T


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_softmax_routed_experts_keep_the_closed_form(fused: bool, dtype: str) -> None:
    """activations.md section 4 for gated experts; without fusion the SiLU, up + 0 and the unweighted product too.

    Router and unfused activation are what core 0.16.1's own functions save on a CPU (saved-tensor hooks).
    """
    options = MegatronOptions(bias_activation_fusion=fused, moe_router_dtype=dtype)
    run = run_of(QWEN3, ep=8, top_k=8, options=options)
    assert kept_in(QWEN3, run) == (QWEN3_ATTENTION + qwen3_moe(fused, {"fp32": 4, "bf16": 2}[dtype])) * T


def test_an_overlapped_exchange_keeps_the_shared_experts_output() -> None:
    """fine_grained_callables.py: `node.detach(shared_expert_output)`, an edge between two nodes; 2 bytes an element."""
    cut = MegatronOptions(overlap_moe_expert_parallel_comm=True)
    for kind in (MOE, V2):
        assert kept_in(kind, run_of(kind, ep=8, options=cut)) - kept_in(kind, run_of(kind, ep=8)) == 2 * kind.hidden * T
    assert kept_in(QWEN3, run_of(QWEN3, ep=8, options=cut)) == kept_in(QWEN3, run_of(QWEN3, ep=8)), "no shared expert"


def test_a_gate_of_the_shared_expert_keeps_both_factors() -> None:
    """`moe/shared_experts.py`: a score a token in bf16, and the expert's output, which nothing else keeps."""
    attention, moe = V2.branches
    assert isinstance(moe.block, Moe)
    gated = replace(V2, branches=(attention, replace(moe, block=replace(moe.block, shared_gate=True))))
    assert kept_in(gated, run_of(gated)) - kept_in(V2, run_of(V2)) == (2 * 2048 + 2) * T
    assert "mlp.shared_experts.gate_weight 1x2048" in spelled(gated)
