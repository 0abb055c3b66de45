"""Unsloth's functions of a layer: what they keep, what they write over, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

import small
from simcore.errors import NotYet
from simcore.recording.tape import Op

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FAST: dict[str, Any] = {"FastLanguageModel": True, "attn_implementation": "flash_attention_2"}
TOKENS, HIDDEN, KV, FFN, HEADS = 64, 256, 128, 688, 8


def asked(**changed: Any) -> dict[str, Any]:
    return {"model": "llama-tiny", "method": "qlora", "lora": {"rank": 8, "target_modules": ALL}, "loss": "cut",
            "options": FAST} | changed


def kept(**changed: Any) -> int:
    """Bytes of the second layer's activations when forward is over."""
    program = small.program_of("ddp", **asked(**changed))
    end = small.marks(program).index("fwd:end")
    count = live = 0
    for op, layer, slot, amount, *_ in program.columns.tolist():
        count += op == Op.MARK
        owner = program.owner(layer, slot)[1] if op in (Op.ALLOC, Op.FREE) else ""
        live += amount if owner == "activation" and layer == 2 else 0
        if count > end:
            return live
    raise AssertionError("forward never ends")


def test_a_layer_keeps_its_functions_inputs_gate_and_up() -> None:
    """Two norms with their rows' scales, attention's five tensors, the MLP's three, and the stream."""
    wide = 2 * HIDDEN  # bytes of a token's hidden state
    norms = 2 * (wide + 4)  # what they put out, which the functions behind them keep
    attention = 2 * wide + 2 * 2 * KV + 4 * HEADS
    mlp = 2 * 2 * FFN
    stream = 2 * wide  # between attention and MLP, and what the layer puts out
    assert kept() == TOKENS * (norms + attention + mlp + stream)


def test_peft_keeps_more_of_the_same_layer() -> None:
    plain = {"options": {"attn_implementation": "flash_attention_2"}}
    assert kept() < 0.7 * kept(**plain)


def test_forward_makes_weights_in_one_buffer_that_stays() -> None:
    largest = FFN * HIDDEN
    program = small.program_of("ddp", **asked())
    assert small.postings(program, "weight_buffer") == [(0, "build", 2 * largest + 4 * largest // 64)]
    assert not any(phase == "forward" for _, phase, _ in small.postings(program, "mlp.dequantised"))
    made = [size for _, phase, size in small.postings(program, "mlp.dequantised") if phase == "backward" and size > 0]
    assert made == 4 * [2 * largest] * 3


def test_2024_12_added_parts_as_tensors_of_their_own() -> None:
    """And made weights anew in forward."""
    program = small.program_of("ddp", **asked(options=FAST | {"FastLanguageModel": "2024.12"}))
    parts = [size for _, phase, size in small.postings(program, "mlp.down_proj.part") if size > 0]
    assert parts == 4 * [2 * TOKENS * HIDDEN] + 4 * [2 * TOKENS * FFN]  # onto the output, onto what lies between
    assert {phase for _, phase, _ in small.postings(program, "mlp.dequantised")} == {"forward", "backward"}
    assert not small.postings(program, "weight_buffer")
    assert small.postings(small.program_of("ddp", **asked()), "weight_buffer")


def test_its_adapters_are_fp32_unless_told() -> None:
    plan = small.plan_of("ddp", **asked())
    adapters = plan.at_rest()["adapters"]
    assert adapters.params_bytes == 4 * adapters.num_params
    told = small.plan_of("ddp", **asked(lora={"rank": 8, "target_modules": ALL, "dtype": "bf16"})).at_rest()["adapters"]
    assert told.params_bytes == 2 * told.num_params


@pytest.mark.parametrize(("changed", "told"), [
    ({"method": "full"}, "without adapters"), ({"model": "qwen3-8b"}, "Unsloth's layers of qwen3"),
    ({"lora": {"target_modules": ["q_proj", "up_proj"]}}, "missing: down_proj, gate_proj, k_proj, o_proj, v_proj"),
    ({"options": {"FastLanguageModel": True}}, "another attention"), ({"lengths": "packed"}, "packed sequences"),
    ({"options": FAST | {"autocast": True}}, "autocast around Unsloth's layers")])
def test_where_it_would_fall_back_is_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(NotYet, match=re.escape(told)):
        small.prepared("ddp", **asked(**changed))
