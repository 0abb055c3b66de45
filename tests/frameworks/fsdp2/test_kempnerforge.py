"""KempnerForge under FSDP2: what it refuses, sets and leaves after a step."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.models.graph import model_config
from simcore.results.report import Report
from simcore.simulate import simulate

EXPERTS = {"config": "mixtral-8x7b", "overrides": {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 96, "num_local_experts": 4, "vocab_size": 128}}


def _kempner(mesh: dict[str, int], options: dict[str, Any] | None = None, **training: Any) -> Report:
    asked = small.scenario("fsdp2", mesh, options=options, **{"model": "llama-tiny", **training})
    return simulate(asked.model_copy(update={"implementation": "kempnerforge"}))


@pytest.mark.parametrize(("mesh", "given", "told"), [
    ({}, {}, "not yet: KempnerForge on one device"),
    ({"dp_replicate": 4}, {}, "a mesh of replicas alone is sharded"),
    ({"dp_shard": 2}, {"precision": {"params": "fp32"}}, "the model is cast to one type"),
    ({"dp_shard": 2}, {"precision": {"grad_reduce": "bf16"}}, "gradients are always reduced in fp32"),
    ({"dp_shard": 2}, {"model": EXPERTS, "precision": {"compute": "fp32"}}, "not yet: experts in fp32"),
    ({"dp_shard": 2}, {"model": EXPERTS, "routing": {"capacity_factor": 1.0}}, "not yet: a capacity of KempnerForge's"),
    ({"dp_shard": 2}, {"model": EXPERTS, "routing": {"seed": 1}}, "not yet: routing drawn at random in KempnerForge's"),
    ({"dp_shard": 2, "tp": 8}, {}, "4 key and value heads must be divisible by tp 8"),
    ({"dp_shard": 2, "tp": 2}, {"seq_len": 63}, "not yet: 63 positions on 2 ranks"),
    ({"dp_shard": 2}, {"options": {"reshard_after_forward": False}}, "reshard_after_forward: expected null or true"),
    ({"dp_shard": 2}, {"options": {"sync_gradients": "every"}}, "sync_gradients: expected 'last'"),
    ({"dp_shard": 2}, {"model": "qwen3-8b"}, "not yet: qwen3 in the layers of KempnerForge"),
    ({"dp_shard": 2}, {"loss": "hf"}, "not yet: hf under fsdp2"),
    ({"dp_shard": 2}, {"recompute": ["mlp"]}, "served: none, full, [attention]"),
    ({"dp_shard": 2, "tp": 2}, {"model": EXPERTS}, "not yet: KempnerForge's experts with tensor parallel attention"),
    ({"dp_shard": 2, "ep": 2}, {"model": EXPERTS}, "not yet: KempnerForge's expert parallelism"),
    ({"dp_shard": 8}, {"model": EXPERTS, "options": {"packed_experts": True}}, "packed experts on 8 shards, unevenly"),
    ({"dp_shard": 2}, {"method": "lora", "lora": {"target_modules": ["q_proj"]}}, "lora with KempnerForge's layers")])
def test_what_kempnerforge_refuses(mesh: dict[str, int], given: dict[str, Any], told: str) -> None:
    report = _kempner(mesh, **given)
    assert report.status != "ok"
    assert told in "; ".join(str(problem.message) for problem in report.problems)


def test_kempnerforge_s_model_is_bf16_with_no_other_copy() -> None:
    report = _kempner({"dp_shard": 4, "tp": 2})
    autos = {a.what: a.value for a in report.assumptions}
    assert (autos["training.precision.params"], autos["training.precision.grad_reduce"]) == ("bf16", "fp32")
    rest = list(report.ranks[0].at_rest.values())
    assert sum(a.optimizer_bytes for a in rest) == 2 * sum(a.params_bytes for a in rest)


def test_what_is_compiled_is_answered_as_eager_and_says_so() -> None:
    eager, compiled = (_kempner({"dp_shard": 4}, options=options) for options in ({}, {"compile": True}))
    assert ("framework_options.compile", "assumed") in {(a.what, a.kind) for a in compiled.assumptions}
    assert _peak(eager) == _peak(compiled)


def test_what_torch_fails_to_compile_is_answered_and_says_so() -> None:
    """Tensor parallel layers with checkpoints."""
    def told(**training: Any) -> bool:
        report = _kempner({"dp_shard": 2, "tp": 2}, options={"compile": True}, **training)
        return "training.recompute" in {a.what for a in report.assumptions if a.kind == "assumed"}
    assert told(recompute="full")
    assert not told(recompute="none")


def test_the_fullest_expert_decides_how_long_every_block_is() -> None:
    peaks = [_peak(_kempner({"dp_shard": 4}, model=EXPERTS, routing=routing))
             for routing in ("balanced", {"imbalance": 1.5}, {"imbalance": 2})]
    assert peaks[0] < peaks[1] < peaks[2]


def test_an_untrained_router_sends_all_tokens_to_the_same_experts() -> None:
    """As measured (tests/truth/routing); other frameworks' memory is asked balanced, which is not said each time."""
    untrained, balanced, twice = (_kempner({"dp_shard": 4}, model=EXPERTS, **given) for given in (
        {}, {"routing": "balanced"}, {"routing": {"imbalance": 2}}))
    told = {a.what: a for a in untrained.assumptions}
    assert "as long as the fullest" in told["training.routing"].source
    assert "2 times the mean" in told["training.routing"].value
    assert "training.routing" not in {a.what for a in balanced.assumptions}
    assert _peak(balanced) < _peak(untrained) == _peak(twice)
    with_words = [simulate(small.scenario("megatron", {"dp_shard": 2, "ep": 2}, routing=word))
                  for word in ("auto", "balanced")]
    assert _peak(with_words[0]) == _peak(with_words[1])


def test_replays_stay_on_routers_until_the_next_forward() -> None:
    none, full = (_end(_kempner({"dp_shard": 4}, model=EXPERTS, recompute=mode)) for mode in ("none", "full"))
    saved_in_fp32_by_norms = 2 * 2 * 2 * 4 * 64 * 64  # layers, norms, tensors, bytes, tokens, hidden size
    assert full - none > saved_in_fp32_by_norms


def test_logits_stay_until_the_next_forward() -> None:
    one, two = (_end(_kempner({"dp_shard": 4}, micro_batch_size=batch, global_batch_size=8)) for batch in (1, 2))
    assert two - one == 64 * 2 * _vocab("llama-tiny")


def _vocab(preset: str) -> int:
    return int(model_config(preset, {}, "test")["vocab_size"])


def _end(report: Report) -> int:
    assert report.ranks[0].end_bytes is not None, report.problems
    return report.ranks[0].end_bytes


def _peak(report: Report) -> int:
    peak = report.ranks[0].peak
    assert peak is not None, report.problems
    return peak.allocated_bytes


@pytest.mark.parametrize("model", ["llama-tiny", EXPERTS])
@pytest.mark.parametrize("recompute", ["none", "full", ["attention"]])
def test_what_a_step_leaves_does_not_grow_with_microbatches(model: Any, recompute: Any) -> None:
    ends = {_end(_kempner({"dp_shard": 2, "dp_replicate": 2}, model=model, recompute=recompute, global_batch_size=size))
            for size in (4, 8, 16)}
    assert len(ends) == 1
