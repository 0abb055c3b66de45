"""Lengths of answers, what a cache preempts, and what a pass takes beside bytes."""

from __future__ import annotations

import pytest

from simcore.hardware.topology import load_topology
from simcore.inputs.generation import Generation
from simcore.models.graph import architecture_of, model_config
from simcore.vllm.answers import Round, Stage, alike, steady, still_decoding, varied
from simcore.vllm.decode import pass_seconds
from simcore.vllm.engine import Engine, Limits
from simcore.vllm.passes import beside_seconds
from simcore.vllm.release import RELEASES
from vllm.test_engine import H100, engine


def tokens(found: list[Round]) -> int:
    return sum(stage.sequences * stage.passes for one in found for stage in one.stages)


def test_lengths_have_the_mean_and_the_longest_is_as_long_as_allowed() -> None:
    """By hand: of 256 sequences with a prompt of 100 the density falls or rises until 4,100."""
    for mean in (350, 1100, 2100, 3600):
        (found,) = varied(256, 1024, 10**9, 100, mean, 4100)
        assert sum(stage.passes for stage in found.stages) == 4000, "125 steps of 32 tokens"
        assert tokens([found]) == pytest.approx(256 * (mean - 100), rel=0.04), mean
        assert found.stages[0] == Stage(256, 32, 100, 132)
        assert found.stages[-1].sequences < 256
        assert found.again == 0


def test_half_of_the_longest_in_the_mean_is_an_even_density() -> None:
    (found,) = varied(200, 1024, 10**9, 0, 500, 1000)
    for stage in found.stages:
        assert stage.sequences == pytest.approx(200 * (1 - stage.first / 1000), abs=5)
    assert still_decoding(0.0, 0.25) == 0.75
    assert still_decoding(2.0, 0.5) == pytest.approx(0.268941, abs=1e-6), "1 / (1 + e)"
    assert still_decoding(-2.0, 0.5) == pytest.approx(0.731059, abs=1e-6)


def test_what_finds_no_blocks_is_preempted_and_computed_again() -> None:
    """20 sequences of about 1,000 tokens where 10,000 fit: all begin, and from 500 tokens on some give way."""
    (free,), (tight,) = (varied(20, 1024, room, 0, 990, 1000) for room in (10**9, 10_000))
    assert [stage.sequences for stage in tight.stages[:10]] == [20] * 10
    assert min(stage.sequences for stage in tight.stages) < 20
    assert all(stage.sequences * stage.first <= 10_000 * 1.05 for stage in tight.stages)
    assert tight.again > 0 == free.again
    assert sum(stage.passes for stage in tight.stages) > sum(stage.passes for stage in free.stages)
    assert tokens([tight]) == pytest.approx(tokens([free]), rel=0.02), "each token is decoded once"


def test_few_at_a_time_follow_each_other() -> None:
    (few,) = varied(100, 10, 10**9, 0, 250, 1000)
    assert max(stage.sequences for stage in few.stages) == 10
    assert tokens([few]) == pytest.approx(100 * 250, rel=0.06)
    (many,) = varied(1000, 1024, 10**9, 0, 250, 1000)
    assert many.stages[0].sequences == 1000, "of 256 that are followed each stands for four"
    assert tokens([many]) == pytest.approx(1000 * 250, rel=0.06)


def test_engines_far_ahead_have_no_tail() -> None:
    (found,) = steady(64, 200, 0, 500, 1000)
    assert found.stages == (Stage(200, 160, 333, 333),), "64 x 500 tokens of 200 at a time, at a third in the mean"
    assert alike([3, 1], 10, 20) == [Round(3, (Stage(3, 10, 10, 20),)), Round(1, (Stage(1, 10, 10, 20),))]


def test_a_pass_takes_arithmetic_small_kernels_sampling_and_the_host() -> None:
    """Llama 3.1 8B on an H100, by hand: 32 layers of 6 small kernels of 2 us, 7.5e9 products a sequence."""
    model = architecture_of(model_config("llama-3.1-8b", None, ""))
    made = Engine(model, Generation(version="0.25.1"), H100, 4096, RELEASES["0.25.1"], Limits(8192, 256))
    fixed, more = beside_seconds(made, 1), beside_seconds(made, 101) - beside_seconds(made, 1)
    share = H100.efficiency.kernels.gemm.compute
    assert share is not None
    rate = H100.device.products.si * share.si * H100.device.rate_share
    logits = 42 * 128256 / (H100.device.memory_bandwidth.si * H100.efficiency.kernels.elementwise_eager.memory.si)
    each = 2 * 7_504_924_672 / rate + logits + 12.7e-6
    assert more == pytest.approx(100 * each, rel=1e-6)
    assert fixed == pytest.approx(32 * 6 * 2e-6 + 1.4e-3 + each, rel=1e-6)
    drafting, plain = engine(), engine()
    assert pass_seconds(drafting, 4, 100) == pass_seconds(plain, 4, 100)


@pytest.mark.parametrize(("preset", "machine", "context", "milliseconds", "error"), [
    ("qwen3-1.7b", "dgx-a100", 192, 4.6, -0.16), ("llama-3.1-8b", "dgx-a100-40gb", 1088, 13.3, 0.06),
    ("qwen3-30b-a3b", "dgx-a100", 192, 9.6, -0.37)])
def test_published_times_of_a_token(preset: str, machine: str, context: int, milliseconds: float, error: float) -> None:
    """Qwen's from tenstorrent/tt-inference-server issue 340, Llama's from johnmusgrave.com; the last was kept out."""
    model = architecture_of(model_config(preset, None, ""))
    made = Engine(model, Generation(version="0.25.1"), load_topology(machine), 4096, RELEASES["0.25.1"],
                  Limits(8192, 256))
    assert pass_seconds(made, 1, context) * 1e3 / milliseconds - 1 == pytest.approx(error, abs=0.02)
