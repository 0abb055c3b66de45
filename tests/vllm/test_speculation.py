"""Keys of speculative decoding: what is told of them, and what is refused."""

from __future__ import annotations

from vllm.test_workload import found, served

SUPER = {"model": "nemotron-3-super-120b-a12b"}
OLD = {"model": {"config": "nemotron-3-nano-30b-a3b", "overrides": {"mtp_hybrid_override_pattern": "*E"}}}
GIVEN = {"tp": 4, "max_model_len": 32768, "version": "0.25.1", "num_speculative_tokens": 3}


def test_drafts_are_told_and_cost_room() -> None:
    report = served(**SUPER, generation=GIVEN)
    told = {one.what: one.value for one in report.assumptions}
    assert told["generation.num_speculative_tokens"].startswith("3 drafted by a module of ")
    assert told["generation.accepted_tokens"] == "0 of 3 drafted tokens of a pass: the slowest that there is"
    plain = served(**SUPER, generation=GIVEN | {"num_speculative_tokens": 0})
    assert found(report).concurrency < found(plain).concurrency
    quick = served(**SUPER, generation=GIVEN | {"accepted_tokens": 1})
    assert found(quick).decode[0].tokens_per_s > 1.9 * found(report).decode[0].tokens_per_s


def test_what_is_not_described_is_refused_by_name() -> None:
    for model, more, message in (
            (SUPER, {"accepted_tokens": 4}, "accepted_tokens: expected at most the 3 of num_speculative_tokens, got 4"),
            (OLD, {"version": "0.12.0"}, "not yet: speculative decoding with vLLM 0.12.0 (served: 0.25.1)"),
            (SUPER, {"max_loras": 1}, "not yet: speculative decoding beside adapters"),
            ({"model": "llama-3.1-8b"}, {}, "not yet: speculative decoding of llama (served: one module of multi-token "
                                            "prediction of deepseek_v3, nemotron_h)")):
        report = served(**model, generation=GIVEN | more)
        assert [problem.message for problem in report.problems] == [message]
