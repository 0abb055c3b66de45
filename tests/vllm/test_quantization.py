"""Quantised weights of `serve`: asked by a key or by the model's configuration, and refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.results.report import Report
from simcore.simulate import check, simulate

NANO = "nemotron-3-nano-30b-a3b"
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def served(model: str = "llama-3.1-8b", config: Any = None, topology: str = "h100-1gpu", tp: int = 1,
           **generation: Any) -> Report:
    chosen: Any = {"config": model, "overrides": {"quantization_config": config}} if config is not None else model
    tree = {"name": "q", "workload": "serve", "model": chosen, "topology": topology,
            "generation": {"max_model_len": 4096, "tp": tp} | generation}
    return simulate(parse_scenario(parse_document(json.dumps(tree), "q.json")))


def weights_of(report: Report) -> int:
    assert report.serving is not None, report.problems
    return report.serving.weight_bytes


def test_nano_in_8_bits_is_half_of_nano() -> None:
    """A checkpoint of ModelOpt: linears and experts in fp8, embedding, head, convolution and router wider."""
    wide, narrow = weights_of(served(NANO)), weights_of(served(NANO, MODELOPT))
    assert 32e9 < narrow < 34e9
    assert wide > 63e9
    assert served(NANO, MODELOPT).ranks[0].at_rest["routed_experts"].num_params == 23 * 128 * 2 * 2688 * 1856


@pytest.mark.parametrize(("asked", "config", "bits"), [
    ("fp8", None, 8), ("auto", FP8, 8), ("bitsandbytes", None, 4 + 32 / 64), ("auto", AWQ, 4 + (16 + 4) / 128),
    ("auto", GPTQ, 4 + (16 + 4) / 128)])
def test_an_8b_model_by_hand(asked: str, config: Any, bits: float) -> None:
    """Linears in so many bits with their scales and zero points, embedding, head and norms in 16."""
    linears = 32 * 4096 * (6144 + 4096 + 3 * 14336)
    rest = weights_of(served()) - 2 * linears
    assert weights_of(served(config=config, quantization=asked)) == pytest.approx(linears * bits / 8 + rest, rel=1e-3)


def test_weights_are_whole_before_they_are_quantised() -> None:
    report = served(quantization="fp8")
    peak = report.ranks[0].peak
    assert peak is not None
    made, done = 4096 * 2 * 14336, 4096 * (6144 + 4096)  # of the first gate_up_proj; attention is in 8 bits by then
    assert peak.by_phase["load"] == weights_of(served()) + made - done + 3 * 4
    packed = served(config=FP8)
    assert packed.ranks[0].peak is not None
    assert "load" not in packed.ranks[0].peak.by_phase


def test_what_does_not_fit_while_it_loads_does_not_start() -> None:
    """70 billion weights in 8 bits would lie on 80 GB, in 16 they do not."""
    large = served("llama-3-70b", quantization="fp8")
    assert large.serving is not None
    assert large.verdict == "oom"
    assert "while they are quantised" in large.serving.refusal


@pytest.mark.parametrize(("asked", "status", "told"), [
    ({"model": NANO, "quantization": "fp8"}, "illegal", "fp8: routed experts without a gate"),
    ({"model": NANO, "config": AWQ}, "illegal", "awq_marlin: routed experts without a gate"),
    ({"quantization": "awq_marlin"}, "illegal", "no quantization_config"),
    ({"config": AWQ, "quantization": "fp8"}, "illegal", "quantization: fp8 over a checkpoint of awq_marlin"),
    ({"config": FP8 | {"weight_block_size": [128, 128]}, "tp": 8, "topology": "dgx-h100", "model": "qwen3-30b-a3b"},
     "illegal", "not divisible by blocks"),
    ({"config": {"quant_method": "bitsandbytes"}, "tp": 2, "topology": "dgx-h100"}, "illegal", "bitsandbytes has"),
    ({"config": FP8 | {"ignored_layers": ["model.layers.0.self_attn.q_proj"]}}, "illegal", "some but not all"),
    ({"quantization": "fp8", "version": "0.25.1"}, "error", "not yet: quantised weights of vLLM 0.25.1"),
    ({"quantization": "fp8", "topology": "dgx-a100"}, "error", "not yet: quantised weights: fp8 weights on GPUs"),
    ({"quantization": "fp8", "model": "gpt2", "max_model_len": 512}, "error", "not yet: quantised weights of gpt2"),
    ({"quantization": "bitsandbytes", "model": "mixtral-8x7b"}, "error", "not yet: bitsandbytes: experts"),
    ({"config": {"quant_method": "aqlm"}}, "error", "not yet: quantised weights: quant_method aqlm"),
    ({"config": {"quant_method": "quark", "x": 1}}, "error", "not yet: quantised weights: quant_method quark"),
    ({"config": {}, "quantization": "awq_marlin"}, "illegal", "no quantization_config"),
    ({"config": {"bits": 4}}, "error", "not yet: quantised weights: quant_method nothing"),
    ({"config": GPTQ | {"desc_act": True}}, "error", "not yet: quantised weights: gptq with desc_act"),
    ({"config": GPTQ | {"bits": "four"}}, "error", "quantization_config: bits: expected a whole number"),
    ({"config": FP8 | {"ignored_layers": 3}}, "error", "quantization_config: ignored_layers: expected a list"),
    ({"config": FP8 | {"activation_scheme": "no"}}, "error", "activation_scheme: expected static or dynamic"),
    ({"config": [1]}, "error", "quantization_config: expected a mapping")])
def test_what_is_refused(asked: dict[str, Any], status: str, told: str) -> None:
    report = served(**asked)
    assert (report.status, len(report.problems) > 0) == (status, True)
    assert told in report.problems[0].message
    assert status != "illegal" or report.problems[0].rule.startswith("vLLM 0.12.0")


@pytest.mark.parametrize("framework", ["fsdp2", "automodel", "zero3", "megatron", "ddp"])
@pytest.mark.parametrize("workload", ["train", "dpo"])
def test_no_framework_ignores_a_quantised_checkpoint(framework: str, workload: str) -> None:
    tree = {"name": "t", "workload": workload, "framework": framework, "topology": "dgx-h100",
            "mesh": {"dp_replicate" if framework == "ddp" else "dp_shard": 8}, "training": {"seq_len": 64},
            "model": {"config": "llama-3.2-1b", "overrides": {"quantization_config": GPTQ}}}
    report = check(parse_scenario(parse_document(json.dumps(tree), "t.json")))
    assert report.status == "error"
    assert "not yet: training from weights that are quantised (quantization_config, gptq)" in report.problems[0].message


def test_a_trainers_engine_has_no_quantised_weights() -> None:
    tree = {"name": "g", "workload": "grpo", "framework": "automodel", "topology": "dgx-h100", "mesh": {"dp_shard": 8},
            "model": "llama-3.2-1b", "training": {"seq_len": 64}, "rl": {"prompts": 4, "generations": 4},
            "generation": {"quantization": "fp8"}}
    report = check(parse_scenario(parse_document(json.dumps(tree), "g.json")))
    assert report.status == "error"
    assert "a trainer sends weights to" in report.problems[0].message
