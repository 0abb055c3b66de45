"""Sections of phases and of an inference engine."""

from __future__ import annotations

from reports import EVIL, GIB, a_report, parsed
from simcore.results.engine import Decode, Serving
from simcore.results.phases import PhaseReport
from viz.pages.page import render


def test_phases_and_an_engine_are_drawn() -> None:
    phase = PhaseReport(phase="generation", start_s=1.0, seconds=2.0, device_bytes=30 * GIB, host_bytes=0, event=EVIL,
                        by_category={"kv_cache": 20 * GIB, EVIL: 10 * GIB}, by_owner={"engine": 30 * GIB},
                        host_by_owner={}, device_verdict="oom",
                        sent_bytes={"nvlink": 3 * GIB, "host": GIB})
    engine = Serving.model_construct(
        engine="vllm", version="1", tp=2, requested_bytes=60 * GIB, weight_bytes=20 * GIB, adapter_buffer_bytes=0,
        activation_bytes=GIB, graph_bytes=GIB, cache_bytes=38 * GIB, num_blocks=10, block_size=16, cache_tokens=160,
        concurrency=1.5, longest=100, refusal="too long", decode=(Decode(
            sequences=1, context_tokens=10, bytes_read=1, seconds=0.01, tokens_per_s=100),))
    page = render([a_report(phases=(phase,), serving=engine)])
    text = "".join(parsed(page).itertext())
    for words in ("Phases of a step on the fullest rank", "30.00 GiB, out of memory", "generation \u00b7 2 s from 1 s",
                  "Bytes that leave the rank", "3.00 GiB",
                  "The engine that generates", "caches", "It does not start: too long", "Decoding"):
        assert words in text, words
    assert "Phases of a step" not in render([a_report()])
