"""Messages and tensors of DeepSpeed with a model packed by bitsandbytes: `tests/truth/probe_zero_qlora.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.errors import IllegalLayout
from simcore.program.program import Program
from simcore.recording.tape import Op

TRUTH: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/deepspeed/qlora-0.19.6.json").read_text(encoding="utf-8"))["cases"]
THREE = [name for name, case in TRUTH.items() if case["stage"] == 3]
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
MODEL = {"config": "llama-3.2-3b", "overrides": {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 4000, "tie_word_embeddings": False}}
OURS = {"all_reduce": "all_reduce", "all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}
DTYPES = {"uint8": "uint8", "bfloat16": "bf16"}


def given(name: str) -> dict[str, Any]:
    case = TRUTH[name]
    stored = {"bnb_4bit_quant_storage": case["storage"]} if "storage" in case else {}
    return {"model": MODEL, "method": "qlora", "lora": {"rank": 8, "target_modules": case.get("targets", ALL)},
            "recompute": "full" if case.get("recompute") else "none", "options": case["options"] | stored}


def made(name: str) -> Program:
    return small.program_of(f"zero{TRUTH[name]['stage']}", {"dp_shard": 4}, microbatches=2, **given(name))


@pytest.mark.parametrize("name", TRUTH)
def test_collectives_are_upstreams_in_their_order(name: str) -> None:
    """Columns of bytes are gathered apart from what is of 16 bits; of frozen tensors nothing is reduced."""
    program = made(name)
    kinds = {number: (what, dtype) for (what, _, dtype), number in program.tables.comms.items()}
    of_passes = [(*kinds[slot], size) for (op, _, slot, size, _, _), phase in zip(
        program.columns.tolist(), program.phase.tolist(), strict=True)
        if op == Op.COLLECTIVE and phase < max(program.phase)]
    theirs = [(OURS[what], DTYPES[dtype], size) for rows in TRUTH[name]["found"]["microbatches"]
              for what, size, dtype in rows if size > 8]
    assert of_passes == theirs


@pytest.mark.parametrize("name", THREE)
def test_parts_are_cut_as_the_columns_lie(name: str) -> None:
    """Embedding, for each layer its linears and norms, the adapters, last norm and head: all as multisets."""
    plan = small.plan_of("zero3", {"dp_shard": 4}, **given(name))
    ours = [placed.padded // placed.policy.at_rest.values for layer in plan.layers for placed in plan.of_layer(layer)]
    assert sorted(ours) == sorted(TRUTH[name]["found"]["parts"])


@pytest.mark.parametrize("name", [name for name in THREE if "storage" not in TRUTH[name]])
def test_gathered_columns_live_as_long_as_the_graph(name: str) -> None:
    """[Note: ZeRO-3 and weights in 4 bits] What is freed behind the last reduction, and not before."""
    program = made(name)
    rows = program.columns.tolist()
    slots = {number for (owner, _), number in program.tables.slots.items() if owner in ("fetched", "prefetched")}
    last = max(at for at, row in enumerate(rows) if row[0] == Op.WAIT)
    end = next(at for at in range(last, len(rows)) if rows[at][0] == Op.MARK)
    freed = -sum(size for op, _, slot, size, *_ in rows[last:end] if op == Op.FREE and slot in slots)
    _, _, alive, stays = TRUTH[name]["found"]["packed"]
    assert freed == alive - stays


@pytest.mark.parametrize("stage", [1, 2])
def test_stages_that_do_not_cut_keep_the_columns_whole(stage: int) -> None:
    """Bytes of a packed Llama are as under ddp, and states are of adapters alone."""
    mine, plain = (small.plan_of(framework, mesh, model="llama-3-8b", method="qlora").at_rest()["mlp"]
                   for framework, mesh in ((f"zero{stage}", {"dp_shard": 4}), ("ddp", {"dp_replicate": 4})))
    assert mine.params_bytes == plain.params_bytes
    assert mine.num_trainable_params == mine.optimizer_bytes == 0


@pytest.mark.parametrize("framework", ["zero1", "zero2", "zero3"])
def test_columns_of_another_floating_type_would_be_cast(framework: str) -> None:
    with pytest.raises(IllegalLayout, match="packed values in fp32 would be cast to bf16"):
        small.prepared(framework, method="qlora", model="llama-tiny", options={"bnb_4bit_quant_storage": "float32"})
