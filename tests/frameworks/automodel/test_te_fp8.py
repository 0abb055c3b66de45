"""`te_fp8` under Automodel: copies of weights that stay, what is refused, and by which rule."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.frameworks.setup import prepare
from simcore.placement.plan import place
from simcore.results.report import Report
from simcore.simulate import simulate

MODEL = {"config": "qwen3-30b-a3b", "overrides": {
    "hidden_size": 256, "vocab_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}}
MESH = {"dp_shard": 4, "ep": 4}
BOTH = {"backend.linear": "te", "backend.experts": "te"}


def _given(options: dict[str, Any], mesh: dict[str, int] | None = None, **given: Any) -> Any:
    return small.scenario("automodel", mesh or MESH, options=options, **{
        "model": MODEL, "precision": {"compute": "fp8"}, **given})


def _ran(options: dict[str, Any], **given: Any) -> Report:
    return simulate(_given(options, **given))


def _copies(options: dict[str, Any], layer: int = 1, **given: Any) -> dict[str, int]:
    """Bytes of this rank's copies of weights in 8 bits, of one layer; the embedding is number 0."""
    job, table = prepare(_given(options, **given))
    return {one.spec.name: one.local for one in place(job.graph, job.mesh, table, 0).of_layer(layer)
            if one.spec.module == "fp8"}


def test_a_module_keeps_a_whole_copy_of_its_weight_along_rows_and_one_along_columns() -> None:
    found = _copies(BOTH)
    assert found["self_attn.q_proj.weight.fp8"] == 256 * 256 + 4
    assert found["self_attn.q_proj.weight.fp8_columns"] == 256 * 256 + 4
    assert found["mlp.experts.gate_and_up_projs.fp8"] == 2 * (256 * 256 + 4)
    assert not any("gate.weight" in name or "norm" in name for name in found)


def test_blackwell_reads_a_tensor_with_one_scale_both_ways() -> None:
    assert {name.rpartition(".")[2] for name in _copies(BOTH, topology="gb200-nvl72")} == {"fp8"}
    assert len(_copies(BOTH | {"te_fp8": "mxfp8"}, topology="gb200-nvl72")) == 2 * 6


def test_scales_of_blocks_are_of_128_x_128_values() -> None:
    assert _copies(BOTH | {"te_fp8": "block"})["self_attn.q_proj.weight.fp8"] == 256 * 256 + 4 * 2 * 4


def test_the_backends_say_what_is_in_8_bits() -> None:
    assert {name.split(".")[0] for name in _copies({"backend.linear": "te"})} == {"self_attn"}
    assert {name.split(".")[0] for name in _copies({"backend.linear": "torch", "backend.experts": "te"})} == {"mlp"}


def test_lm_head_is_one_of_them_unless_its_loss_takes_the_weight() -> None:
    assert "lm_head.weight.fp8" in _copies(BOTH, layer=4)
    assert _copies(BOTH, layer=4, loss="cut") == {}


def test_inputs_are_kept_in_a_byte() -> None:
    kept = {compute: _ran(BOTH if compute == "fp8" else {}, precision={"compute": compute}, seq_len=2048).ranks[0]
            for compute in ("bf16", "fp8")}
    told = {name: one.peak.by_category["activation"] for name, one in kept.items() if one.peak}
    assert 0 < told["fp8"] < told["bf16"]


@pytest.mark.parametrize(("options", "given", "status", "told"), [
    ({"backend.linear": "torch"}, {}, "illegal", "te_fp8 requires at least one TE backend"),
    ({"backend.linear": "torch", "backend.experts": "te", "dispatcher": "torch"}, {}, "illegal", "one TE backend"),
    (BOTH | {"te_fp8": "mxfp8"}, {}, "illegal", "compute capability 10.0 or higher required"),
    (BOTH, {"seq_len": 60}, "illegal", "60 tokens of a microbatch: tensorwise requires a multiple of 8"),
    (BOTH, {"method": "lora"}, "error", "adapters beside products in 8 bits"),
    (BOTH, {"model": "nemotron-3-nano-30b-a3b"}, "error", "nemotron_h in 8 bits by torchao under automodel"),
    ({}, {"model": "llama-tiny", "mesh": {"dp_shard": 4}}, "error", "gathered in 16 bits"),
    (BOTH, {"precision": {"compute": "bf16"}}, "error", "changes nothing without products in 8 bits")])
def test_what_is_refused(options: dict[str, Any], given: dict[str, Any], status: str, told: str) -> None:
    report = _ran(options, **given)
    assert report.status == status, report.problems
    assert told in report.problems[0].message
    assert bool(report.problems[0].rule) == (status == "illegal")
