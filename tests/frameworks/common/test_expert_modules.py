"""Layers whose experts are modules: what frameworks around them serve and refuse, and what is packed of them."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import RankscopeError
from simcore.frameworks.deepspeed.partitions import gradient_elements, largest_trained
from simcore.frameworks.fsdp1.flat_parameters import flat_units
from simcore.placement.plan import Plan

QWEN = {"config": "qwen3-30b-a3b", "overrides": {
    "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "vocab_size": 512, "moe_intermediate_size": 128, "num_experts": 8, "num_experts_per_tok": 2}}
EXPERTS = ["gate_proj", "up_proj", "down_proj"]
NANO = "nemotron-3-nano-30b-a3b"


def given(**more: Any) -> dict[str, Any]:
    return {"model": QWEN, "implementation": "hf4", "method": "qlora",
            "lora": {"rank": 8, "target_modules": EXPERTS}, **more}


# ---- what rests ------------------------------------------------------------------------------------------------------
def nf4(rows: int, columns: int, *, double_quant: bool = True) -> int:
    """Bytes of one matrix, by hand: half a byte a value, a maximum for 64 of them, a table of 16 in fp32."""
    maxima = rows * columns // 64
    return rows * columns // 2 + 64 + (maxima + 4 * -(-maxima // 256) + 1024 + 4 if double_quant else 4 * maxima)


@pytest.mark.parametrize("double_quant", [True, False])
def test_every_expert_of_nano_rests_in_4_bits(double_quant: bool) -> None:
    """17.7 GB in all; the output projections of Mamba's 23 layers and both tables of tokens in 16 bits."""
    rest = small.plan_of("ddp", model=NANO, implementation="hub", method="qlora", quantization={
        "double_quant": double_quant}, lora={"rank": 16, "target_modules": ["q_proj", "o_proj"]}).at_rest()
    expert = nf4(1856, 2688, double_quant=double_quant) + nf4(2688, 1856, double_quant=double_quant)
    assert rest["routed_experts"].params_bytes == 23 * 128 * expert
    others = 2 * (4096 * 2688 + 6144 * 4 + 6144 + 3 * 64 + 4096)
    assert rest["mamba"].params_bytes == 23 * (nf4(10304, 2688, double_quant=double_quant) + others)
    if double_quant:
        assert sum(one.params_bytes for one in rest.values()) == pytest.approx(17.73e9, abs=0.01e9)


def test_one_parameter_of_all_experts_stays_in_16_bits_and_it_is_said() -> None:
    for implementation, expected in (("hf", True), ("hf4", False)):
        _, table = small.prepared("ddp", **given(implementation=implementation, lora={"target_modules": ["q_proj"]}))
        assert (table.default("quantization of experts") is not None) is expected
        assert table.default("quantization of out_proj") is None
    _, table = small.prepared("ddp", model=small.TINY, method="qlora", lora={"target_modules": ["q_proj"]})
    assert "llm_int8_skip_modules" in str(table.default("quantization of out_proj"))


# ---- under frameworks ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("framework", "mesh", "options"), [
    ("ddp", {}, {}), ("ddp", {"dp_replicate": 2}, {}), ("zero1", {"dp_shard": 2}, {}), ("zero2", {"dp_shard": 2}, {}),
    ("fsdp2", {"dp_shard": 2}, {}), ("fsdp2", {"dp_shard": 2}, {"bnb_4bit_quant_storage": "bfloat16"}),
    ("fsdp1", {"dp_shard": 2}, {"bnb_4bit_quant_storage": "bfloat16", "use_orig_params": True})])
@pytest.mark.parametrize(("implementation", "model"), [("hf4", QWEN), ("hub", small.TINY)])
def test_experts_in_4_bits_are_served(framework: str, mesh: dict[str, int], options: dict[str, Any],
                                      implementation: str, model: Any) -> None:
    plan = small.plan_of(framework, mesh, implementation=implementation, model=model, method="qlora", options=options,
                         precision={"params": "bf16"} if framework.startswith("fsdp") else {},
                         lora={"rank": 8, "target_modules": [*EXPERTS, "q_proj"]})
    experts = [p for layer in plan.layers for p in plan.of_layer(layer) if p.spec.component == "routed_experts"]
    assert experts
    assert all(placed.policy.at_rest.packed for placed in experts)
    program = small.program_of(framework, mesh, implementation=implementation, model=model, method="qlora",
                               options=options, lora={"rank": 8, "target_modules": ["q_proj"]},
                               precision={"params": "bf16"} if framework.startswith("fsdp") else {})
    assert {"mlp.dequantised", "mixer.dequantised"} & {owner for owner, _ in program.tables.slots}


@pytest.mark.parametrize(("framework", "more", "told"), [
    ("zero3", {"options": {"contiguous_gradients": False}, "method": "full"}, "false with experts that train"),
    ("ddp", {"quantization": {"format": "int8"}}, "int8 (LLM.int8()) of experts that are modules"),
    ("ddp", {"lengths": "packed"}, "packed sequences in the layers of transformers 4.57.1"),
    ("ddp", {"loss": "cut"}, "not yet: cut under ddp"),
    ("ddp", {"routing": {"seed": 0}}, "drawn at random in the loop over experts"),
    ("ddp", {"routing": {"capacity_factor": 1.0}}, "this framework has no expert capacity"),
    ("ddp", {"options": {"quantize_base": True}}, "unknown option 'quantize_base'"),
    ("ddp", {"options": {"experts_implementation": "grouped_mm"}}, "unknown option 'experts_implementation'"),
    ("zero1", {"options": {"contiguous_gradients": False}}, "with experts that train, each a module"),
    ("ddp", {"model": "llama-tiny"}, "llama in the layers of transformers 4.57.1"),
    ("fsdp1", {}, "Must flatten tensors with uniform `requires_grad`"),
    ("fsdp1", {"options": {"use_orig_params": True}}, "write bnb_4bit_quant_storage: bfloat16")])
def test_what_is_not_served_is_refused_by_name(framework: str, more: dict[str, Any], told: str) -> None:
    mesh = {} if framework == "ddp" else {"dp_shard": 2}
    with pytest.raises(RankscopeError) as refused:
        small.prepared(framework, mesh, **given(**more))
    assert len(refused.value.problems) == 1
    assert told in refused.value.problems[0].message
    assert "\n" not in str(refused.value)


# ---- parameters of their own -----------------------------------------------------------------------------------------
def zero(**more: Any) -> Plan:
    return small.plan_of("zero2", {"dp_shard": 4}, **given(**more))


def test_zero_looks_at_one_experts_adapter_at_a_time() -> None:
    """Rank 8 and 256 columns; not eight of them."""
    assert largest_trained(zero()) == 8 * 256


def test_a_rank_averages_what_touches_its_part() -> None:
    """2 layers of 8 experts with 3 x 2 matrices of 1024 or 2048 elements: a quarter, and at most two that are cut."""
    plan = zero()
    whole = sum(placed.used for layer in plan.layers for placed in plan.of_layer(layer) if placed.trainable)
    assert whole // 4 <= gradient_elements(plan) <= whole // 4 + 2 * 8 * 256


def test_a_bucket_is_full_between_two_experts() -> None:
    """Adapters of one linear of 8 experts are 3 MiB at rank 512; the first bucket closes at 1 MiB."""
    program = small.program_of("ddp", {"dp_replicate": 2}, **given(lora={"rank": 512, "target_modules": EXPERTS}))
    sizes = [size for axis, _, size in small.calls(program, "all_reduce") if axis == "dp_replicate"]
    assert sizes[0] == 2**20
    assert max(sizes) < 26 * 2**20


def test_an_expert_begins_at_a_multiple_of_16_bytes_in_a_flat_parameter() -> None:
    """Adapters of 8 x 100 columns are whole ones of 8 elements; 3 x 100 are not, so each is padded to 304."""
    odd = {**QWEN, "overrides": {**QWEN["overrides"], "moe_intermediate_size": 100}}  # type: ignore[dict-item]
    options = {"bnb_4bit_quant_storage": "bfloat16", "use_orig_params": True}
    counts = []
    for rank in (3, 8):
        plan = small.plan_of("fsdp1", {"dp_shard": 2}, **given(model=odd, options=options, precision={"params": "bf16"},
                                                               lora={"rank": rank, "target_modules": ["down_proj"]}))
        layer = next(unit for unit in flat_units(plan) if unit.trains)
        counts.append(layer.numel - sum(end - start for *_, start, end in layer.places))
    assert counts == [8 * 4, 0]
