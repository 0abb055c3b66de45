"""Attention under Automodel: models that read attn_implementation, those that do not, and what is not modelled."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import IllegalLayout, InputError, NotYet
from simcore.operators.automodel.options import AutomodelOptions
from simcore.results.report import RankReport
from simcore.simulate import simulate

EAGER = {"attn_implementation": "eager"}
LLAMA: dict[str, Any] = {"model": {"config": "llama-tiny", "overrides": {"tie_word_embeddings": False}}}
MOE = {"config": "qwen3-30b-a3b", "overrides": {"num_hidden_layers": 2}}


def _ran(more: dict[str, int] | None = None, **given: Any) -> RankReport:
    report = simulate(small.scenario("automodel", {"dp_shard": 2, **(more or {})}, seq_len=512, **LLAMA, **given))
    assert report.status == "ok", report.problems
    return report.ranks[0]


@pytest.mark.parametrize("implementation", ["automodel", "hf"])
def test_eager_keeps_every_pair_of_tokens(implementation: str) -> None:
    """6 bytes a pair and head in 16 bits; transformers' layers hold what Automodel's hold, but for Liger's kernels."""
    eager, fused = (_ran(implementation=implementation, options=options) for options in (EAGER, {}))
    assert eager.peak is not None
    assert fused.peak is not None
    layers, heads = 4, 8  # while the last layer's backward runs, the layers below keep theirs
    more = eager.peak.by_category["activation"] - fused.peak.by_category["activation"]
    assert more > 6 * (layers - 1) * heads * 512 * 512


def test_flash_changes_time_alone() -> None:
    flash, default = (_ran(options={"attn_implementation": name}) for name in ("flash_attention_2", "sdpa"))
    assert flash.peak == default.peak


def test_packs_of_automodels_own_layers_run_by_transformer_engine_whatever_is_asked() -> None:
    """Automodel 0.7.0 components/models/llama/model.py, qwen2/model.py:110: BSHD alone goes through the interface."""
    reports = [_ran(lengths="packed", options=options) for options in (EAGER, {})]
    assert reports[0].peak == reports[1].peak


@pytest.mark.parametrize(("given", "error", "message"), [
    ({}, InputError, "changes nothing in Automodel's layers of nemotron_h"),
    ({"model": MOE}, InputError, "changes nothing in Automodel's layers of qwen3_moe"),
    (LLAMA | {"lengths": "packed", "options": EAGER | {"attn": "sdpa"}}, NotYet, "with packed sequences and attn"),
    (LLAMA | {"options": EAGER | {"attn": "sdpa"}}, InputError, "attn: changes nothing with attn_implementation"),
    (LLAMA | {"options": EAGER | {"sdpa_backend": "flash"}}, InputError, "changes nothing with attn_implementation"),
    (LLAMA | {"options": {"attn_implementation": "flash"}}, InputError, "expected null or 'eager' or 'sdpa'"),
    (LLAMA | {"options": {"attn_implementation": "flash_attention_2"}, "topology": "v100-32gb"}, IllegalLayout,
     "only supports Ampere GPUs or newer")])
def test_what_no_model_reads_is_refused(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        small.prepared("automodel", {"dp_shard": 2}, **({"options": EAGER} | given))


@pytest.mark.parametrize(("axis", "message"), [("pp", "eager with pp 2 under automodel, whose stages keep a mask"),
                                               ("cp", "attends to its own part alone")])
def test_eager_over_stages_or_sequences_is_refused(axis: str, message: str) -> None:
    with pytest.raises(NotYet, match=message):
        small.prepared("automodel", {axis: 2, "dp_shard": 2}, options=EAGER, microbatches=4, **LLAMA)


def test_flash_over_stages_changes_time_alone() -> None:
    """Neither SDPA nor flash attention takes a mask."""
    flash, default = (_ran({"pp": 2}, microbatches=4, options={"attn_implementation": name})
                      for name in ("flash_attention_2", "sdpa"))
    assert flash.peak == default.peak


@pytest.mark.parametrize("asked", [None, "sdpa", "eager"])
def test_packs_in_transformers_layers_run_flash_whatever_is_asked(asked: str | None) -> None:
    """0.7.0 _transformers/kernel_patches.py, _apply_preload_overrides: no mask, and no pair of two sequences."""
    packed: dict[str, Any] = {"implementation": "hf", "lengths": "packed", "packed_length": 128}
    found, flash = (_ran(options={"attn_implementation": name} if name else {}, **packed)
                    for name in (asked, "flash_attention_2"))
    assert found.peak == flash.peak


def test_packs_go_round_a_ring_by_te_alone() -> None:
    """A rank keeps a part of the pack, whatever the lengths of its sequences; rows go round by torch's ring."""
    short, whole, rows = (_ran({"cp": 2}, **given) for given in (
        {"lengths": "packed", "packed_length": 128}, {"lengths": "packed", "packed_length": 512}, {}))
    assert short.peak == whole.peak
    called = [{(c.collective, c.phase, c.dtype) for c in run.traffic if c.axis == "cp"} for run in (short, rows)]
    assert called == [{("send_recv", phase, "bf16") for phase in ("forward", "backward")},
                      {("all_gather", phase, "bf16") for phase in ("forward", "backward")}
                      | {("send_recv", "backward", "fp32")}]
    with pytest.raises(IllegalLayout, match="switch to the TE attention backend"):
        small.prepared("automodel", {"cp": 2, "dp_shard": 2}, options={"attn": "sdpa"}, lengths="packed", **LLAMA)


@pytest.mark.parametrize(("beside", "mesh", "given"), [
    (False, {}, {}), (False, {"cp": 2}, LLAMA), (True, {"cp": 2}, LLAMA | {"lengths": "packed"}), (True, {"cp": 2}, {}),
    (False, {"cp": 2}, {"options": {"attn": "sdpa"}})])
def test_messages_of_te_s_ring_alone_run_beside_attention(beside: bool, mesh: dict[str, int], given: Any) -> None:
    """torch's are in line, as under fsdp2."""
    _, table = small.prepared("automodel", {"dp_shard": 2, **mesh}, **given)
    assert table.libraries.beside_attention is beside


def test_packs_over_tp_attend_by_a_rank_s_heads() -> None:
    """0.7.0 distributed/context_parallel/utils.py, attach_te_context_parallel; transformers' layers are not described.

    What is kept is that of rows of one sequence.
    """
    packed, rows = (_ran({"tp": 2}, **given) for given in ({"lengths": "packed", "packed_length": 128}, {}))
    assert packed.peak == rows.peak
    with pytest.raises(NotYet, match="packed sequences of transformers' layers with tp"):
        small.prepared("automodel", {"tp": 2, "dp_shard": 2}, implementation="hf", lengths="packed", **LLAMA)


def test_the_layers_are_told_of_quack() -> None:
    """The turned tensors are kept in either way: what changes are temporaries of a layer."""
    told = {name: small.prepared("automodel", {"dp_shard": 2}, options={"backend.rope": name}, **LLAMA)[1].options
            for name in ("quack", "torch")}
    assert {name: AutomodelOptions.of(options).rope for name, options in told.items()} == {
        "quack": "quack", "torch": "torch"}


@pytest.mark.parametrize(("given", "error", "message"), [
    ({"micro_batch_size": 2}, NotYet, "of several sequences"), ({"lengths": "packed"}, NotYet, "of packs"),
    ({"options": EAGER | {"backend.rope": "quack"}}, NotYet, "with eager attention"),
    ({"implementation": "hf"}, InputError, "but in Automodel's own Llama and Qwen2"),
    ({"model": MOE}, InputError, "but in Automodel's own Llama and Qwen2")])
def test_what_quack_does_not_rotate_here(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        small.prepared("automodel", {"dp_shard": 2}, **(LLAMA | {"options": {"backend.rope": "quack"}} | given))


def test_adapters_that_run_apart_keep_more() -> None:
    apart, efficient = (_ran(method="lora", lora={"rank": 64}, options=options)
                        for options in ({"use_memory_efficient_lora": False}, {}))
    assert apart.peak is not None
    assert efficient.peak is not None
    assert apart.peak.allocated_bytes > efficient.peak.allocated_bytes
    with pytest.raises(InputError, match="changes nothing without adapters"):
        small.prepared("automodel", {"dp_shard": 2}, options={"use_memory_efficient_lora": True}, **LLAMA)


GLM: dict[str, Any] = {"config": "glm-5", "overrides": {"num_hidden_layers": 4}}
SPARSE: dict[str, Any] = {"model": GLM, "options": {"attn": "tilelang"}}


@pytest.mark.parametrize(("given", "error", "message"), [
    (SPARSE, IllegalLayout, "requires THD/packed sequences"),
    (SPARSE | {"lengths": "packed", "model": MOE}, IllegalLayout, "Unsupported attention implementation: tilelang"),
    (SPARSE | {"lengths": "packed", "model": {"config": "deepseek-v3.2", "overrides": {"num_hidden_layers": 4}}},
     IllegalLayout, "Unsupported attention implementation"),
    (SPARSE | {"lengths": "packed", "model": {"config": "glm-5", "overrides": {"kv_lora_rank": 256}}}, IllegalLayout,
     "must be"),
    ({"model": GLM, "options": {"attn": "sdpa"}, "lengths": "packed"}, NotYet, "by sdpa"),
    ({"model": GLM, "options": {"attn": "te"}}, NotYet, "served: sdpa, or tilelang with lengths: packed")])
def test_kernels_of_chosen_keys(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        small.prepared("automodel", {"dp_shard": 2, "ep": 2}, **given)


@pytest.mark.parametrize(("attention", "error"), [("te", NotYet), ("sdpa", IllegalLayout), ("tilelang", IllegalLayout)])
def test_advice_about_an_indexer_names_what_runs_with_cp(attention: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"\(served: tilelang with lengths: packed\)"):
        small.prepared("automodel", {"dp_shard": 2, "ep": 2, "cp": 2}, model=GLM, options={"attn": attention})


def test_ranks_that_share_sequences_gather_their_keys() -> None:
    report = simulate(small.scenario("automodel", {"dp_shard": 2, "cp": 2, "ep": 2}, seq_len=512, lengths="packed",
                                     packed_length=128, **SPARSE))
    assert report.status == "ok", report.problems
    gathered = sum(t.payload_bytes for t in report.ranks[0].traffic if (t.axis, t.collective, t.phase) == (
        "cp", "all_gather", "forward"))
    tokens, layers, columns = 512, 4, 128 + 512 + 64  # of the indexer, of latent values, of rotated keys
    assert gathered == 2 * tokens * layers * columns
