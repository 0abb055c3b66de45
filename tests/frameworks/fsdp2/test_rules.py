"""Packed weights under FSDP2: how columns are cut and gathered."""

from __future__ import annotations

from typing import Any

import pytest

import small
from simcore.errors import IllegalLayout

QLORA: dict[str, Any] = {"model": "llama-tiny", "method": "qlora", "precision": {"params": "bf16"},
                         "lora": {"target_modules": ["q_proj"]}}


@pytest.mark.parametrize("storage", ["uint8", "bfloat16"])
def test_weights_in_4_bits_are_cut_if_their_column_is_of_a_floating_type(storage: str) -> None:
    """accelerate 1.15 utils/fsdp_utils.py:797; constants are whole on every rank either way."""
    plan = small.plan_of("fsdp2", {"dp_shard": 3}, rank=2, options={"bnb_4bit_quant_storage": storage}, **QLORA)
    (placed,) = (p for p in plan.of_layer(1) if p.spec.name == "mlp.up_proj.weight")
    numel, blocks = 688 * 256, 688 * 256 // 64
    rows = numel // 4
    last = rows - 2 * -(-rows // 3)
    assert placed.constants == blocks + 4 * -(-blocks // 256) + 1024 + 64 + 4
    assert placed.rest_bytes - placed.constants == (numel // 2 if storage == "uint8" else 2 * -(-rows // 3))
    assert placed.local == (numel if storage == "uint8" else 4 * last)


@pytest.mark.parametrize(("storage", "gathers"), [("uint8", False), ("bfloat16", True)])
def test_packed_columns_are_gathered_as_they_lie(storage: str, gathers: bool) -> None:
    def sent(method: str) -> int:
        options = {"bnb_4bit_quant_storage": storage} if method == "qlora" else {}
        program = small.program_of("fsdp2", {"dp_shard": 4}, options=options, **(QLORA | {"method": method}))
        return sum(size for _, phase, size in small.calls(program, "all_gather") if phase == "forward")

    linears = 4 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 688)
    assert sent("lora") - sent("qlora") == 2 * linears - gathers * linears // 2


def test_a_packed_column_of_another_type_would_be_cast() -> None:
    with pytest.raises(IllegalLayout, match="would be cast to bf16"):
        small.prepared("fsdp2", {"dp_shard": 2}, options={"bnb_4bit_quant_storage": "float32"}, **QLORA)
