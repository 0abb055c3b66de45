"""Parameters without gradient, by name (`training.frozen`)."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.models.frozen import with_frozen
from simcore.models.graph import build, model_config
from simcore.results.report import RankReport
from simcore.simulate import check, place, simulate

LLAMA = "llama-tiny"
LAYER = 2 * 256 * 256 + 2 * 128 * 256 + 3 * 256 * 688 + 2 * 256
EMBEDDING = 1000 * 256


def trained(*frozen: str, model: Any = LLAMA, **given: Any) -> int:
    """Elements with a gradient, of all ranks."""
    report = place(small.scenario("fsdp2", {"dp_shard": 2}, model=model, frozen=list(frozen), **given))
    assert report.status == "ok", report.problems
    return sum(rank.num_ranks * c.num_trainable_params for rank in report.ranks for c in rank.at_rest.values())


WHOLE = 4 * LAYER + 2 * EMBEDDING + 256


@pytest.mark.parametrize(("patterns", "less"), [
    (["model.embed_tokens"], EMBEDDING),
    (["model.embed_tokens.weight", "lm_head"], 2 * EMBEDDING),
    (["model.layers.1"], LAYER),
    (["model.layers.[0-2]"], 3 * LAYER),
    (["*.q_proj"], 4 * 256 * 256),
    (["model.layers.3.mlp.*_proj.weight"], 3 * 256 * 688),
    (["*norm*"], 9 * 256),
])
def test_what_is_named_has_no_gradient(patterns: list[str], less: int) -> None:
    assert trained(*patterns) == WHOLE - less


def test_a_modules_name_is_no_prefix_of_anothers() -> None:
    deep = {"config": LLAMA, "overrides": {"num_hidden_layers": 12}}
    assert trained("model.layers.1", model=deep) == WHOLE + 7 * LAYER


def test_a_tied_head_is_the_embedding() -> None:
    tied = {"config": LLAMA, "overrides": {"tie_word_embeddings": True}}
    assert trained("model.embed_tokens", model=tied) == WHOLE - 2 * EMBEDDING
    graph, unmatched = with_frozen(build(model_config(LLAMA, {"tie_word_embeddings": True}, ""), "hf"), ("*embed*",))
    assert not unmatched
    assert not graph.tensors[graph.layers[-2].kind][0].trainable
    report = check(small.scenario("fsdp2", {}, model=tied, frozen=["lm_head"]))
    assert "no parameter or module of the model is matched by lm_head" in report.problems[0].message


@pytest.mark.parametrize(("preset", "pattern", "trained"), [
    ("gpt2", "*.wpe.weight", True), ("gpt2", "*.wte.weight", False), ("gpt2", "transformer", False),
    ("gemma-3-270m", "model.layers.0", True), ("gemma-3-270m", "model.embed_tokens", False)])
def test_a_tied_head_follows_the_table_and_nothing_beside_it(preset: str, pattern: str, *, trained: bool) -> None:
    """GPT-2's embedding has positions too, and Gemma's a factor, which is a buffer."""
    graph, _ = with_frozen(build(model_config(preset, None, ""), "hf"), (pattern,))
    assert [spec.trainable for spec in graph.tensors[graph.layers[graph.head].kind]] == [trained]


def test_adapters_of_a_named_module_are_frozen_too() -> None:
    lora = {"rank": 4, "target_modules": ["q_proj", "v_proj"]}
    of_v = 4 * 4 * (256 + 128)
    assert trained("*.q_proj", method="lora", lora=lora) == of_v
    assert trained("model.layers.0", method="lora", lora=lora) == 3 * (4 * (256 + 256) + of_v // 4)


def test_kinds_are_shared_by_layers_that_are_frozen_alike() -> None:
    graph = build(model_config(LLAMA, None, ""), "hf")
    found, unmatched = with_frozen(graph, ("model.layers.[01]", "nothing"))
    assert unmatched == ("nothing",)
    assert len(found.kinds) == len(graph.kinds) + 1
    kinds = [layer.kind for layer in found.layers]
    assert kinds[1] == kinds[2] != kinds[3] == kinds[4]


def _ran(**given: Any) -> RankReport:
    report = simulate(small.scenario("fsdp2", {"dp_shard": 2}, model=LLAMA, **given))
    assert report.status == "ok", report.problems
    return report.ranks[0]


def test_what_is_below_the_first_trained_layer_sends_no_gradients() -> None:
    calls = {t.collective: t.calls for t in _ran(frozen=["*embed*", "model.layers.[0-1]"]).traffic
             if t.collective == "reduce_scatter"}
    assert calls == {"reduce_scatter": 3}


def test_less_is_kept_and_moved_the_more_is_frozen() -> None:
    peaks = []
    for patterns in ([], ["*embed*"], ["*embed*", "model.layers.0"], ["*embed*", "model.layers.[0-2]"]):
        peak = _ran(frozen=patterns).peak
        assert peak is not None
        peaks.append(peak.allocated_bytes)
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 4


@pytest.mark.parametrize(("options", "frozen", "status"), [
    ({"reshard_after_forward": 2}, ["*embed*", "model.layers.0"], "illegal"),
    ({"reshard_after_forward": 2}, ["*embed*"], "ok"),
    ({"reshard_after_forward": 2, "wrap": "separate_embedding_head"}, ["*embed*"], "illegal"),
    ({"reshard_after_forward": True}, ["*embed*", "model.layers.0"], "ok"),
    ({"reshard_after_forward": 4}, ["*embed*", "model.layers.0"], "ok")])
def test_what_is_gathered_for_nobody_must_be_whole(options: dict[str, Any], frozen: list[str], status: str) -> None:
    report = check(small.scenario("fsdp2", {"dp_shard": 4}, model=LLAMA, microbatches=2, frozen=frozen,
                                  options=options | {"set_is_last_backward": "last"}))
    assert report.status == status


@pytest.mark.parametrize(("framework", "given", "status", "told"), [
    ("fsdp2", {"frozen": ["model.layers.9"]}, "error", "matched by model.layers.9; names are like model.embed_"),
    ("fsdp2", {"frozen": ["*norm*", "foo", "bar*"]}, "error", "is matched by foo, bar*;"),
    ("fsdp2", {"frozen": ["*"]}, "illegal", "nothing is left to train"),
    ("fsdp2", {"frozen": ["*norm*"], "implementation": "torchtitan"}, "error", "not yet: frozen parameters"),
    ("megatron", {"frozen": ["*norm*"]}, "error", "not yet: frozen parameters under megatron"),
    ("ddp", {"frozen": ["*norm*"]}, "error", "not yet: frozen parameters under ddp"),
])
def test_refused(framework: str, given: dict[str, Any], status: str, told: str) -> None:
    report = check(small.scenario(framework, {}, model=LLAMA, **given))
    assert report.status == status
    assert told in report.problems[0].message
