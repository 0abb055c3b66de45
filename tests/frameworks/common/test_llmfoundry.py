"""llm-foundry's layers under FSDP1 and FSDP2: what is refused, defaults, what is reduced when, what fp8 changes."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.frameworks.setup import prepare
from simcore.hardware.topology import load_topology
from simcore.results.report import Report
from simcore.simulate import simulate
from simcore.timing.step import once_ns

TINY = {"d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 64, "vocab_size": 128}
BIASED = {"no_bias": False, "attn_config": {"alibi": False}}
ALIBI = {"no_bias": True, "attn_config": {"alibi": True}}


def run(mesh: dict[str, int] | None = None, *, options: dict[str, Any] | None = None,
        model: dict[str, Any] | None = None, framework: str = "fsdp1", **training: Any) -> Report:
    given = {"config": "mpt-7b", "overrides": {**TINY, **BIASED, **(model or {})}}
    asked = small.scenario(framework, mesh or {"dp_shard": 4}, options=options, model=given, **training)
    return simulate(asked.model_copy(update={"implementation": "llmfoundry"}))


def peak(report: Report) -> int:
    return max(rank.peak.allocated_bytes for rank in report.ranks if rank.peak)


@pytest.mark.parametrize(("mesh", "given", "told"), [
    ({"dp_shard": 2, "tp": 2}, {}, "not yet: fsdp1 with tensor parallelism"),
    ({"dp_shard": 2, "tp": 2}, {"framework": "fsdp2"}, "not yet: tensor parallelism with llm-foundry's layers"),
    ({"dp_shard": 2, "dp_replicate": 2}, {}, "not yet: replicas of llm-foundry's shards"),
    ({"dp_shard": 2}, {"seq_len": 128}, "this model only supports seq_len<=64"),
    ({"dp_shard": 2}, {"loss": "hf"}, "not yet: hf under fsdp1"),
    ({"dp_shard": 2}, {"offload": {"activations": "host"}, "recompute": "full"}, "activation_cpu_offload"),
    ({"dp_shard": 2}, {"lengths": "packed"}, "not yet: packed sequences with llm-foundry's layers"),
    ({"dp_shard": 2}, {"recompute": ["mlp"]}, "not yet: selective checkpointing"),
    ({"dp_shard": 2}, {"model": {"tie_word_embeddings": False}}, "MPTForCausalLM only supports tied word embeddings"),
    ({"dp_shard": 2}, {"model": {"resid_pdrop": 0.1}}, "not yet: dropout"),
    ({"dp_shard": 2}, {"model": ALIBI, "options": {"attn_impl": "flash"}}, "alibi only implemented with torch and"),
    ({"dp_shard": 2}, {"options": {"attn_impl": "torch"}}, "attn_impl: expected 'triton' or 'flash'"),
    ({"dp_shard": 2}, {"framework": "fsdp2", "options": {"sync_gradients": "last"}}, "sync_gradients: expected"),
    ({"dp_shard": 2}, {"options": {"attn_implementation": "sdpa"}}, "unknown option 'attn_implementation'"),
    ({"dp_shard": 2}, {"method": "lora", "lora": {"target_modules": ["Wqkv"]}}, "lora with llm-foundry's layers")])
def test_refused(mesh: dict[str, int], given: dict[str, Any], told: str) -> None:
    report = run(mesh=mesh, **given)
    assert report.status != "ok"
    assert told in "; ".join(str(problem.message) for problem in report.problems)


def test_other_families_are_refused() -> None:
    asked = small.scenario("fsdp1", {"dp_shard": 2}).model_copy(update={"implementation": "llmfoundry"})
    assert "in the layers of llm-foundry (served: mpt)" in str(simulate(asked).problems[0].message)


NAMES = ("training.precision.params", "training.precision.grad_reduce", "training.optimizer.implementation",
         "framework_options.attn_impl")


@pytest.mark.parametrize("framework", ["fsdp1", "fsdp2"])
def test_defaults_are_composer_s_and_the_yaml_files(framework: str) -> None:
    """Shards in fp32, PURE: gathered and reduced in bf16; a decoupled AdamW, one parameter after the other."""
    autos = {one.what: one.value for one in run(framework=framework).assumptions}
    assert [autos[name] for name in NAMES] == ["fp32", "bf16", "for_loop", "triton"]


def test_what_composer_asks_of_fsdp1() -> None:
    """Not the class's own: `use_orig_params`, and the next unit of backward is gathered after this one's."""
    autos = {one.what: one for one in run().assumptions}
    found = [autos[f"framework_options.{name}"] for name in ("use_orig_params", "backward_prefetch")]
    assert [one.value for one in found] == ["true", "BACKWARD_POST"]
    assert all("Composer 0.16.4" in one.source for one in found)


def test_shard_grad_op_gathers_a_block_once() -> None:
    """FULL_SHARD once more for backward, and the embedding for the head too; the root, which is not freed, not."""
    assert [gathers(sharding_strategy=name) for name in ("FULL_SHARD", "SHARD_GRAD_OP")] == [
        (1 + 3 + 2 * 2, ROOT + 3 * TOKENS + 2 * 2 * BLOCK), (1 + 1 + 2, ROOT + TOKENS + 2 * BLOCK)]


def test_embedding_and_blocks_may_be_all_that_is_gathered_apart() -> None:
    assert gathers(wrap="layers_root") == (1 + 2 * 2, ROOT + TOKENS + 2 * 2 * BLOCK)


TOKENS, ROOT, BLOCK = 2 * 128 * 64, 2 * (64 * 64 + 2 * 64), 2 * (12 * 64 * 64 + 13 * 64)
"""Bytes in bf16."""


def gathers(**options: Any) -> tuple[int, int]:
    """Calls and bytes of a microbatch."""
    found = [t for t in run(options=options).ranks[0].traffic if t.collective == "all_gather"]
    return sum(t.calls for t in found), sum(t.payload_bytes for t in found)


def test_every_microbatch_is_reduced() -> None:
    """Composer leaves FSDP's reduction on (`no_sync` is for DDP alone)."""
    one, two = (run(global_batch_size=4 * count) for count in (1, 2))
    sent = [sum(t.calls for t in report.ranks[0].traffic if t.collective == "reduce_scatter") for report in (one, two)]
    assert sent[1] == 2 * sent[0] > 0


def test_attention_over_unpadded_rows_needs_more() -> None:
    assert peak(run(options={"attn_impl": "flash"})) > peak(run(options={"attn_impl": "triton"}))


def test_checkpointed_blocks_keep_less() -> None:
    large: dict[str, Any] = {"model": {"n_layers": 16}}
    assert peak(run(**large, recompute="full")) < peak(run(**large))


def test_alibi_s_bias_stands_for_good() -> None:
    """In fp32, as many numbers as heads times positions; and in bf16 for each of two layers, as FSDP casts."""
    with_bias = run(model=ALIBI)
    without = run(model={"no_bias": True, "learned_pos_emb": False})
    assert peak(with_bias) - peak(without) == (4 + 2 * 2) * 4 * 64


def test_fp8_linears_are_faster_and_keep_one_byte_an_element() -> None:
    large: dict[str, Any] = {"model": {"d_model": 2048, "n_layers": 4, "n_heads": 16, "max_seq_len": 2048},
                             "seq_len": 2048, "micro_batch_size": 8, "global_batch_size": 32}
    wide, narrow = run(**large), run(**large, precision={"compute": "fp8"})
    assert wide.time is not None
    assert narrow.time is not None
    assert narrow.time.step_s < wide.time.step_s
    assert peak(narrow) < peak(wide)
    assert {"gemm"} == {one.kernel for one in narrow.time.kernels if one.dtype == "fp8"}


def test_metrics_of_training_are_gathered_after_each_step_in_lists_of_every_rank() -> None:
    """Four lists, each with zeros and a copy for every rank, and eleven collectives; a rank alone gathers nothing."""
    topology = load_topology("dgx-h100")
    host = topology.efficiency.host
    for framework in ("fsdp1", "fsdp2"):
        given = small.scenario(framework, {"dp_shard": 64}, model={"config": "mpt-7b", "overrides": {**TINY, **BIASED}})
        _, table = prepare(given.model_copy(update={"implementation": "llmfoundry"}))
        each = {ranks: once_ns(topology, table, ranks) for ranks in (1, 64, 512)}
        assert each[1] == 0
        assert (each[512] - each[64]) / 448e9 == pytest.approx(4 * (host.operator.si + 5e-6), rel=1e-6)
        assert each[64] / 1e9 == pytest.approx(11 * host.collective.si + 4 * 64 * (host.operator.si + 5e-6))
        time = run({"dp_shard": 64}, framework=framework).time
        assert time is not None
        assert time.parts["host"] * 1e9 >= each[64]
    _, other = prepare(small.scenario("fsdp1", {"dp_shard": 8}))
    assert once_ns(topology, other, 512) == 0
