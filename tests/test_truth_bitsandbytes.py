"""QLoRA against transformers, PEFT and bitsandbytes: which modules are packed, what rests, what a step allocates."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.frameworks.common.torch import States
from simcore.placement.plan import Plan
from simcore.results.report import Peak, Report
from simcore.simulate import simulate

TRUTH: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/bitsandbytes/0.50.2.json").read_text(encoding="utf-8"))
STEPS: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/bitsandbytes/steps-0.50.2.json").read_text(encoding="utf-8"))["cases"]
AUTOMODEL: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/bitsandbytes/automodel-0.7.0.json").read_text(encoding="utf-8"))["cases"]
SCAN: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/bitsandbytes/scan-0.50.2.json").read_text(encoding="utf-8"))
INT8: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/bitsandbytes/int8-0.50.2.json").read_text(encoding="utf-8"))["cases"]
FAMILIES: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/bitsandbytes/families-0.50.2.json").read_text(encoding="utf-8"))["cases"]
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RECORDED = ("llama-3-8b", "llama-3-70b", "llama-3.2-3b", "llama-tiny", "mixtral-8x7b", "qwen1.5-moe-a2.7b",
            "qwen2.5-7b", "qwen3-30b-a3b", "qwen3-8b", "gpt-oss-20b")
LAST_NAMES: dict[str, Any] = {"lora": {"target_modules": ["q_proj", "o_proj"]}}


def planned(model: str, **given: Any) -> Plan:
    overrides = {"config": model, "overrides": {"num_hidden_layers": 2}}
    return small.plan_of("ddp", model=overrides, method="qlora", **(LAST_NAMES | given))


@pytest.mark.parametrize("model", RECORDED)
def test_the_modules_that_are_packed_are_those_that_transformers_replaces(model: str) -> None:
    plan, told = planned(model), TRUTH["models"][model]
    packed = [p for layer in plan.layers for p in plan.of_layer(layer) if p.policy.at_rest.packed]
    assert Counter(p.spec.path.rpartition(".")[2] for p in packed) == told["packed"]
    assert sum(p.local for p in packed) == told["packed_elements"]
    adapters = sum(p.local for layer in plan.layers for p in plan.of_layer(layer) if p.trainable)
    assert sum(r.num_params for r in plan.at_rest().values()) - adapters == told["elements"]


@pytest.mark.parametrize("double_quant", [True, False])
def test_a_llama_rests_as_bitsandbytes_stores_it(double_quant: bool) -> None:
    """Llama 3 8B's matrices, from bytes that were read off bitsandbytes; all else in bf16."""
    one = {tuple(row["shape"]): row["data"] + sum(row["constants"].values()) for row in TRUTH["weights"]
           if row["format"] == "nf4" and row["storage"] == "uint8" and row["double_quant"] == double_quant}
    square, narrow, wide = one[4096, 4096], one[1024, 4096], one[14336, 4096]
    found = small.plan_of("ddp", model="llama-3-8b", method="qlora",
                          quantization={"double_quant": double_quant}, **LAST_NAMES).at_rest()
    assert found["attention"].params_bytes == 32 * (2 * square + 2 * narrow)
    assert found["mlp"].params_bytes == 32 * 3 * wide
    assert found["lm_head"].params_bytes == found["embedding"].params_bytes == 2 * 128256 * 4096


def test_experts_that_are_one_parameter_stay_as_they_are() -> None:
    found = planned("mixtral-8x7b").at_rest()["routed_experts"]
    assert found.params_bytes == 2 * found.num_params


def stepped(case: dict[str, Any]) -> Report:
    shape = {"vocab_size": 512, "num_hidden_layers": 3} | ({"tie_word_embeddings": True} if case.get("tied") else {})
    asked = {"autocast": "autocast", "prepare_model_for_kbit_training": "kbit"}
    method: dict[str, Any] = {"precision": {"params": "fp32"}} if case.get("full") else {
        "method": "qlora", "quantization": {"double_quant": case.get("double_quant", True)},
        "lora": {"rank": 8, "target_modules": case.get("targets", ALL), "dtype": case.get("adapters", "auto")}}
    return simulate(small.scenario(
        "ddp", model={"config": "llama-tiny", "overrides": shape}, optimizer={"implementation": "fused"},
        recompute="full" if case.get("recompute") else "none",
        options={option: True for option, word in asked.items() if case.get(word)}, **method))


@pytest.mark.parametrize("name", STEPS)
def test_a_step_allocates_what_bitsandbytes_and_peft_allocate(name: str) -> None:
    """At the peaks of forward and of the step, and when it is over: `tests/truth/probe_qlora.py`."""
    (rank,) = stepped(STEPS[name]).ranks
    assert isinstance(rank.peak, Peak)
    assert rank.end_bytes is not None
    beside = rank.peak.by_category["workspace"] + rank.peak.by_category["buffer"]  # of a GPU, and no parameters
    forward = max(rank.peak.by_phase[phase] for phase in ("forward", "loss"))
    assert {"rest": sum(one.params_bytes for one in rank.at_rest.values()), "forward": forward - beside,
            "peak": rank.peak.allocated_bytes - beside, "end": rank.end_bytes - beside} == STEPS[name]["found"]


def test_a_step_with_mamba_layers_under_autocast_allocates_what_peft_allocates() -> None:
    """Falcon-H1 as axolotl packs and casts it: `tests/truth/probe_scan_qlora.py`."""
    for name, case in SCAN["cases"].items():
        options = {"llm_int8_skip_modules": case.get("skipped"),
                   "prepare_model_for_kbit_training": "cast_back" if case.get("back") else None}
        report = simulate(small.scenario(
            "ddp", model={"config": "falcon-h1-1.5b", "overrides": SCAN["shape"]},
            method="qlora" if "skipped" in case else "lora",
            lora={"rank": 8, "target_modules": case.get("targets", [*ALL, "in_proj"]), "dtype": "fp32"},
            optimizer={"implementation": "fused"}, recompute="full" if case.get("recompute") else "none",
            options={"autocast": True, **{key: value for key, value in options.items() if value}}))
        head = sum(size.params_bytes for part, size in report.ranks[0].at_rest.items() if part == "lm_head")
        found = {key: size for key, size in case["found"].items() if key != "head"}
        assert small.allocated(report) == found, name
        assert (head < 2 * 512 * 256) == (case["found"]["head"] < 2 * 512 * 256), name


def test_a_step_of_other_families_under_autocast_allocates_what_peft_allocates() -> None:
    """`tests/truth/probe_tuned_families.py`: biases of packed linears, cast for good by the first product; experts."""
    for name, case in FAMILIES.items():
        options = {"autocast": True, "prepare_model_for_kbit_training": "cast_back" if case.get("back") else True}
        tuned: dict[str, Any] = {} if case.get("full") else {
            "method": "qlora" if case.get("packs") else "lora",
            "lora": {"rank": 8, "target_modules": case.get("targets", ALL[:4]), "dtype": "fp32",
                     "modules_to_save": case.get("saved", [])}}
        report = simulate(small.scenario(
            "ddp", model={"config": case["preset"], "overrides": case["shape"]},
            optimizer={"implementation": "fused"}, recompute="full" if case.get("recompute") else "none",
            options=options if case.get("kbit") else {"experts_implementation": "grouped_mm"} if case.get("full") else
            {"autocast": True, "quantize_moe_experts": bool(case.get("experts"))}, **tuned))
        left_out = ("rest", "biases", *["trained"] * ("full" in case or "saved" in case))
        assert {key: size for key, size in small.allocated(report).items() if key not in left_out} == {
            key: size for key, size in case["found"].items() if key not in left_out}, name


@pytest.mark.parametrize("name", INT8)
def test_a_step_over_int8_allocates_what_bitsandbytes_and_peft_allocate(name: str) -> None:
    """`tests/truth/probe_int8.py`. Inputs of linears live as long as the graph, replayed or not."""
    case = INT8[name]
    precision = dict.fromkeys(("compute", "params"), case["compute"]) if "compute" in case else {}
    (rank,) = simulate(small.scenario(
        "ddp", model={"config": "llama-tiny", "overrides": {"vocab_size": 512, "num_hidden_layers": 3}},
        method="qlora", quantization={"format": "int8"}, precision=precision,
        lora={"rank": 8, "target_modules": case.get("targets", ALL), "dtype": case.get("adapters", "auto")},
        optimizer={"implementation": "fused"}, recompute="full" if case.get("recompute") else "none",
        options=({"llm_int8_threshold": case["threshold"]} if "threshold" in case else {})
        | ({"autocast": True, "prepare_model_for_kbit_training": True} if case.get("kbit") else {}))).ranks
    assert isinstance(rank.peak, Peak)
    assert rank.end_bytes is not None
    beside = rank.peak.by_category["workspace"] + rank.peak.by_category["buffer"]
    assert {"rest": sum(one.params_bytes for one in rank.at_rest.values()), "end": rank.end_bytes - beside,
            "forward": max(rank.peak.by_phase[phase] for phase in ("forward", "loss")) - beside,
            "peak": rank.peak.allocated_bytes - beside} == case["found"]


@pytest.mark.parametrize("name", AUTOMODEL)
def test_a_step_allocates_what_bitsandbytes_and_automodel_allocate(name: str) -> None:
    """`tests/truth/probe_automodel_qlora.py`; the loss of transformers is a number of fp32, here it is bf16."""
    case = AUTOMODEL[name]
    (rank,) = simulate(small.scenario(
        "automodel", model={"config": "llama-tiny", "overrides": {"vocab_size": 512, "num_hidden_layers": 3}},
        options={"use_liger_kernel": False},  # none was there
        method="qlora", lora={"rank": 8, "target_modules": case["targets"]}, optimizer={"implementation": "fused"},
        recompute="full" if case.get("recompute") else "none", loss="causal")).ranks
    assert isinstance(rank.peak, Peak)
    assert rank.end_bytes is not None
    beside = rank.peak.by_category["buffer"]
    found = {"rest": sum(one.params_bytes for one in rank.at_rest.values()), "end": rank.end_bytes - beside,
             "forward": max(rank.peak.by_phase[phase] for phase in ("forward", "loss")) - beside}
    assert found == {key: case["found"][key] for key in found}
    assert case["found"]["peak"] - (rank.peak.allocated_bytes - beside) == (2 if case.get("recompute") else 0)


def test_automodel_stores_columns_and_adapters_as_its_products_are() -> None:
    assert all(case["columns"] == case["adapters"] == ["torch.bfloat16"] for case in AUTOMODEL.values())
    plan = small.plan_of("automodel", {"dp_shard": 2}, model="llama-tiny", method="qlora")
    forms = {placed.spec.module: placed.policy.at_rest for layer in plan.layers for placed in plan.of_layer(layer)
             if placed.policy.at_rest.packed or placed.spec.module == "adapter"}
    assert {form.dtype for form in forms.values()} == {"bf16"}
    assert set(forms) == {"linear", "adapter"}


@pytest.mark.parametrize("row", TRUTH["states"], ids=lambda row: f"{row['numel']} in {row['bits']} bits")
@pytest.mark.parametrize("paged", [False, True])
def test_states_are_those_that_adamw_makes(row: dict[str, Any], *, paged: bool) -> None:
    """In blocks of 256 from 4096 values on; paged or not, they are as many bytes."""
    states = States("adamw", "int8" if row["bits"] == 8 else "fp32", "bitsandbytes", paged=paged, has_momentum=False)
    made = [form.blocks.num_bytes(row["numel"], form.dtype) if form.blocks else form.num_bytes(row["numel"])
            for _, form in states.of((), "bf16")]
    assert sum(made) == sum(row["states"].values())


def test_states_of_embeddings_are_those_that_the_trainer_asks_for() -> None:
    """transformers' own create_optimizer, and states that bitsandbytes made after it (`probe_trainer_states.py`)."""
    cases = json.loads((ROOT / "tests/truth/bitsandbytes/trainer-5.23.0.json").read_text(encoding="utf-8"))["cases"]
    wrong = []
    for case in cases:
        plan = small.plan_of("ddp", optimizer={"implementation": "bitsandbytes", "moments": "int8"},
                             options={"wide_embedding_states": True}, model={"config": "llama-3.2-3b", "overrides": {
                                 "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
                                 "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16,
                                 "vocab_size": 1000, "tie_word_embeddings": case["tied"]}})
        ours = {f"{plan.graph.layers[layer].path}.{p.spec.name}": sum(
            size for _, size in p.states) for layer in plan.layers
            for p in plan.of_layer(layer) if p.spec.is_owned}
        wrong += [(case, name, ours.get(name), size) for name, size in case["states"].items()
                  if ours.get(name) != size]
    assert not wrong
