"""Bytes that one decoded token reads."""

from __future__ import annotations

import pytest

from simcore.vllm.decode import bytes_read, decode_seconds, seconds
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


def test_the_time_is_that_of_the_bytes() -> None:
    made = engine()
    rate = H100.device.memory_bandwidth.si * H100.efficiency.kernels.gemm.memory.si
    assert seconds(made, 10**9) == pytest.approx(1e9 / rate)
    one_by_one = sum(seconds(made, bytes_read(made, 4, context)) for context in range(100, 200))
    assert decode_seconds(made, 4, 100, 200) == pytest.approx(one_by_one, rel=1e-3)
