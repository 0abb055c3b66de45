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
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


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


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_experts_in_4_bits_by_hand(tp: int) -> None:
    """Mixtral's experts on a rank: half a byte an element, a scale of 4 bytes for 64; router, head, rest in 16 bits."""
    experts, attention = 32 * 8 * 3 * 4096 * 14336, 32 * 4096 * (4096 + 2 * 1024 + 4096)
    packed = served("mixtral-8x7b", quantization="bitsandbytes", tp=tp, topology="dgx-h100")
    at_rest = packed.ranks[0].at_rest["routed_experts"].params_bytes
    assert at_rest == experts // tp * 9 // 16 + 32 * 2 * 16 * 4
    tables = 32 * 4 * 16 * 4  # of query, key, value and output, whose matrices have one each
    assert packed.ranks[0].at_rest["attention"].params_bytes == attention // tp * 9 // 16 + tables
    assert packed.ranks[0].at_rest["router"].params_bytes == 32 * 8 * 4096 * 2


def test_a_pass_makes_the_experts_of_a_layer_whole() -> None:
    """All experts of one layer in 16 bits, on top of what the pass takes with weights in 16 bits."""
    whole, packed = (served("mixtral-8x7b", quantization=name, tp=4, topology="dgx-h100", max_num_seqs=1,
                            max_num_batched_tokens=4096).serving for name in ("auto", "bitsandbytes"))
    assert whole is not None
    assert packed is not None
    assert packed.activation_bytes - whole.activation_bytes == 8 * 3 * 4096 * 14336 // 4 * 2


def test_a_pass_makes_a_matrix_whole_beside_its_product() -> None:
    """The gate's of an MLP, 14336 x 4096, and its outputs, which are copied into those of gate and up together."""
    whole, packed = (served(quantization=name, max_num_seqs=1, max_num_batched_tokens=4096).serving
                     for name in ("auto", "bitsandbytes"))
    assert whole is not None
    assert packed is not None
    assert packed.activation_bytes - whole.activation_bytes == 2 * 14336 * (4096 + 4096)


def test_decoding_unpacks_all_experts_and_reads_those_that_are_used() -> None:
    """One token: all experts packed and written in 16 bits, its two of eight read; linears are read packed."""
    whole, packed = (served("mixtral-8x7b", quantization=name, tp=4, topology="dgx-h100").serving
                     for name in ("auto", "bitsandbytes"))
    assert whole is not None
    assert packed is not None
    experts = 32 * 8 * 3 * 4096 * 14336 // 4
    linears = 32 * 4096 * (4096 + 2 * 1024 + 4096) // 4
    tables = 32 * 4 * (2 + 4) * 16
    more = packed.decode[0].bytes_read - whole.decode[0].bytes_read
    assert more == experts * 9 // 16 + experts * 2 - linears * 2 + linears * 9 // 16 + tables


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
    ({"quantization": "bitsandbytes", "model": NANO}, "illegal", "bitsandbytes: routed experts without a gate"),
    ({"config": NF4, "model": "mixtral-8x7b"}, "illegal", "a router that llm_int8_skip_modules does not name"),
    ({"config": NF4 | {"llm_int8_skip_modules": ["experts"]}, "model": "qwen3-30b-a3b"}, "illegal",
     "experts that llm_int8_skip_modules names"),
    ({"config": NF4 | {"llm_int8_skip_modules": "gate"}, "model": "mixtral-8x7b"}, "error",
     "llm_int8_skip_modules: expected a list"),
    ({"config": {"quant_method": "bitsandbytes", "load_in_8bit": True}, "model": "mixtral-8x7b"}, "error",
     "not yet: quantised weights: bitsandbytes in 8 bits"),
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


def trained(model: str = "llama-3.1-8b", topology: str = "dgx-h100", **generation: Any) -> Report:
    tree = {"name": "g", "workload": "grpo", "framework": "automodel", "topology": topology, "mesh": {"dp_shard": 8},
            "model": model, "training": {"seq_len": 1024}, "rl": {"prompts": 4, "generations": 4},
            "generation": generation}
    return simulate(parse_scenario(parse_document(json.dumps(tree), "g.json")))


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_trainers_engine_in_8_bits_by_hand(tp: int) -> None:
    """Linears a byte an element and a scale of 4 bytes for each block; embedding, head and norms in 16 bits."""
    linears = 32 * 4096 * (6144 + 4096 + 3 * 14336)
    whole, narrow = (weights_of(trained(quantization=name, tp=tp)) for name in ("auto", "fp8"))
    assert whole - narrow == (2 * linears - linears - linears // 128**2 * 4) // tp


def test_a_trainers_engine_in_mxfp8_by_hand() -> None:
    """Also the head; exponents twice: as they come, and in tiles. What is named stays in 16 bits."""
    attention, mlp, head = 32 * 4096 * (6144 + 4096), 32 * 4096 * 3 * 14336, 128256 * 4096
    for kept, narrow in (([], attention + mlp + head), (["q_proj", "k_proj", "v_proj", "o_proj"], mlp + head)):
        whole, found = (weights_of(trained(topology="dgx-b200", quantization=name, unquantized=names))
                        for name, names in (("auto", []), ("mxfp8", kept)))
        assert whole - found == narrow - 2 * narrow // 32


def test_a_named_size_of_the_cache_goes_before_the_utilisation() -> None:
    for share in (None, 0.3):
        report = trained(kv_cache_memory="20 GiB", gpu_memory_utilization=share)
        assert report.serving is not None
        assert 0 <= 20 * 2**30 - report.serving.cache_bytes < 2**24


@pytest.mark.parametrize(("asked", "status", "told", "rule"), [
    ({"quantization": "bitsandbytes"}, "illegal", "bitsandbytes of an engine", "vllm_backend.py:201"),
    ({"quantization": "awq_marlin"}, "illegal", "awq_marlin of an engine", "vllm_backend.py:201"),
    ({"quantization": "fp8", "version": "0.12.0"}, "illegal", "fp8 under NeMo RL with vLLM 0.12.0", "fp8.py:24"),
    ({"kv_dtype": "fp8"}, "illegal", "kv_dtype: fp8", "NeMo RL 7ea279ab"),
    ({"quantization": "fp8", "model": "qwen3-30b-a3b", "tp": 4}, "illegal", "not divisible by blocks", "vLLM 0.25.1"),
    ({"quantization": "modelopt"}, "error", "not yet: quantization: modelopt", ""),
    ({"quantization": "mxfp8"}, "illegal", "device compute capability 10.0 or higher required", "fp8.py:866"),
    ({"quantization": "mxfp8", "topology": "dgx-b200", "tp": 4, "model": "qwen3-30b-a3b"}, "", "", ""),
    ({"quantization": "mxfp8", "topology": "dgx-b200", "tp": 8, "model": "qwen3-30b-a3b"}, "illegal",
     "w13: 192 outputs on a rank are not divisible by 128", "fp8.py:1109"),
    ({"unquantized": ["q_proj"]}, "error", "in fp8 or mxfp8", ""),
    ({"quantization": "fp8", "unquantized": ["q_proj"]}, "illegal", "some but not all matrices of", "is_layer_skipped"),
    ({"quantization": "fp8", "model": NANO}, "error", "not yet: weights of nemotron_h", ""),
    ({"quantization": "fp8", "topology": "dgx-b200"}, "error", "other than compute capability 9", ""),
    ({"quantization": "fp8", "model": "llama-3.2-1b", "tp": 8}, "error", "that share blocks of 128", "")])
def test_what_a_trainers_engine_is_refused(asked: dict[str, Any], status: str, told: str, rule: str) -> None:
    report = trained(**asked)
    assert report.status == (status or "ok"), report.verdict
    if not status:
        return
    assert told in report.problems[0].message
    assert rule in report.problems[0].rule
