"""Bytes that one decoded token reads."""

from __future__ import annotations

import pytest

from simcore.inputs.generation import Generation
from simcore.models.graph import architecture_of, model_config
from simcore.vllm.answers import Stage
from simcore.vllm.decode import bytes_read, decode_seconds, pass_seconds, seconds
from simcore.vllm.engine import Engine, Limits
from simcore.vllm.release import RELEASES
from vllm.test_engine import H100, engine


def test_each_token_of_context_is_read_once_by_each_sequence() -> None:
    made = engine()
    assert bytes_read(made, 8, 1001) - bytes_read(made, 8, 1000) == 8 * 3072


def test_few_tokens_visit_few_experts_and_many_visit_all() -> None:
    made = engine()
    experts = sum(made.bytes_of(weight) for weight in made.weights if weight.routed)
    state = 2 * made.pages.state_bytes * 23
    alone = bytes_read(made, 1, 0) - state
    assert bytes_read(made, 2000, 0) - 2000 * state - alone == pytest.approx(experts * (1 - 6 / 128), rel=1e-6)


def test_beyond_a_window_its_layers_read_no_more() -> None:
    model = architecture_of(model_config("gemma-3-1b", None, ""))
    made = Engine(model, Generation(version="0.25.1"), H100, 4096, RELEASES["0.25.1"], Limits(1024, 64))
    token = made.pages.token_bytes
    assert [bytes_read(made, 2, n + 1) - bytes_read(made, 2, n) for n in (100, 2000)] == [2 * 26 * token, 2 * 4 * token]
    one_by_one = sum(pass_seconds(made, 2, context) for context in range(400, 800))
    assert decode_seconds(made, Stage(2, 400, 400, 800)) == pytest.approx(one_by_one, rel=1e-4)


def test_the_time_is_that_of_the_bytes() -> None:
    made = engine()
    rate = H100.device.memory_bandwidth.si * H100.efficiency.kernels.gemm.memory.si
    assert seconds(made, 10**9) == pytest.approx(1e9 / rate)
    one_by_one = sum(pass_seconds(made, 4, context) for context in range(100, 200))
    assert decode_seconds(made, Stage(4, 100, 100, 200)) == pytest.approx(one_by_one, rel=1e-3)
    assert decode_seconds(made, Stage(4, 100, 150, 150)) == pytest.approx(100 * pass_seconds(made, 4, 150))
