"""Tensors that torch's FullyShardedDataParallel kept, sent and freed: `tests/truth/probe_fsdp1.py`."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.errors import IllegalLayout
from simcore.frameworks.fsdp1.flat_parameters import flat_units
from simcore.frameworks.registry import at_rest_of
from simcore.program.program import Program
from simcore.recording.tape import Op

ROWS: dict[str, dict[str, Any]] = {row["name"]: row for row in json.loads(
    (ROOT / "tests/truth/fsdp1/torch-2.13.0.json").read_text(encoding="utf-8"))}
LLAMA = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 1001, "tie_word_embeddings": False}
OPTIONS = {"backward_prefetch": "backward_prefetch", "forward_prefetch": "forward_prefetch",
           "use_orig_params": "use_orig_params", "strategy": "sharding_strategy"}
DTYPES = {"float32": "fp32", "bfloat16": "bf16"}


def given(name: str) -> tuple[dict[str, int], dict[str, Any]]:
    """(mesh, the rest) of a case."""
    case = ROWS[name]["case"]
    options = {ours: case[theirs] for theirs, ours in OPTIONS.items() if theirs in case}
    options |= {"sync_gradients": "last"} if case.get("no_sync") else {}
    options |= {} if case.get("wrap", True) else {"wrap": "root"}
    shard = case.get("shard", 1 if case.get("strategy") == "NO_SHARD" else case["ranks"])
    low = DTYPES[case.get("reduce", "bfloat16")]
    precision = {"grad_reduce": low} if case.get("mixed", True) else {"compute": "fp32"}
    return {"dp_shard": shard, "dp_replicate": case["ranks"] // shard}, {
        "options": options, "model": {"config": "llama-3.2-3b", "overrides": LLAMA | case.get("model", {})},
        "recompute": "full" if case.get("checkpoint") else "none", "precision": precision, "rank": ROWS[name]["rank"]}


@lru_cache(maxsize=64)
def made(name: str) -> Program:
    mesh, rest = given(name)
    return small.program_of("fsdp1", mesh, microbatches=ROWS[name]["case"].get("microbatches", 1), **rest)


@pytest.mark.parametrize("name", ROWS)
def test_flat_parameters_have_torchs_length(name: str) -> None:
    mesh, rest = given(name)
    ours = [[unit.numel, unit.shard] for unit in flat_units(small.plan_of("fsdp1", mesh, **rest))]
    assert ours == ROWS[name]["units"]


@pytest.mark.parametrize("name", ROWS)
def test_collectives_are_torchs_in_their_order(name: str) -> None:
    """Without the sums over one rank that torch makes too."""
    program = made(name)
    comms = {number: kind for (kind, _, _), number in program.tables.comms.items()}
    ours = [[comms[slot], amount] for op, _, slot, amount, _, _ in program.columns.tolist() if op == Op.COLLECTIVE]
    theirs = [event for event in ROWS[name]["step"] if event[0] not in "+-"]
    assert ours == [event for event in theirs if ROWS[name]["case"]["ranks"] > 1 or event[0] != "all_reduce"]


@pytest.mark.parametrize("name", ROWS)
def test_units_come_and_go_as_torchs_do(name: str) -> None:
    """Whole parameters, or under NO_SHARD the copy that stands for them; torch counts units in the order of modules."""
    program, mesh = made(name), given(name)
    plan = small.plan_of("fsdp1", mesh[0], **mesh[1])
    numbers = {unit.first: number for number, unit in reversed(list(enumerate(plan.framework.units)))}
    slot = {owner: number for (owner, _), number in program.tables.slots.items()}["flat_param"]
    ours = [["+" if op == Op.ALLOC else "-", numbers[layer]] for op, layer, owner, size, *_ in program.columns.tolist()
            if op in (Op.ALLOC, Op.FREE) and owner == slot and size]
    assert ours == [event for event in ROWS[name]["step"] if event[0] in "+-"]


def test_gradients_rest_in_the_parameters_dtype() -> None:
    assert {tuple(row["grads"]) for row in ROWS.values()} == {("torch.float32",)}
    for name in ROWS:
        mesh, rest = given(name)
        policies = [rule.policy for rule in small.plan_of("fsdp1", mesh,
                                                          **rest).framework.rules if rule.policy.optimizer_states]
        assert [policy.grad.dtype for policy in policies] == ["fp32"]


# ---- LoRA -----------------------------------------------------------------------------------------------------
LORA: dict[str, dict[str, Any]] = {row["name"]: row for row in json.loads(
    (ROOT / "tests/truth/fsdp1/lora-torch-2.13.0.json").read_text(encoding="utf-8"))}


@pytest.mark.parametrize("name", LORA)
def test_a_ranks_part_of_adapted_units_is_torchs(name: str) -> None:
    """A unit with an adapter has a whole gradient on every rank, also where no adapter lies; moments only where one is.
    """
    case, theirs = LORA[name]["case"], LORA[name]["rest"]
    rank, modules = case["lora"]
    options = {ours: case[key] for key, ours in OPTIONS.items() if key in case}
    plan = small.plan_of(
        "fsdp1", {"dp_shard": case["ranks"]}, rank=LORA[name]["rank"], method="lora",
        lora={"rank": rank, "alpha": rank, "target_modules": modules},
        options=options | ({} if case.get("wrap", True) else {"wrap": "root"}),
        model={"config": "llama-3.2-3b", "overrides": LLAMA})
    units, rest = flat_units(plan), at_rest_of(plan.framework).exact(plan)
    assert [[unit.numel, unit.shard] for unit in units] == LORA[name]["units"]
    assert [unit.shard * unit.trains for unit in units] == theirs["grads"]
    params, grads = at_rest_of(plan.framework).padding(plan, rest, exact=True)
    held = rest.values()
    assert sum(r.num_params for r in held) == theirs["params"]
    assert sum(r.params_bytes for r in held) + params == 4 * sum(unit.shard for unit in units)
    assert sum(r.grads_bytes for r in held) + grads == 4 * sum(theirs["grads"])
    assert sum(r.num_trainable_params for r in held) == theirs["trained"]
    assert sum(r.optimizer_bytes for r in held) == 4 * theirs["moments"]


# ---- QLoRA ----------------------------------------------------------------------------------------------------
QLORA: dict[str, dict[str, Any]] = {row["name"]: row for row in json.loads(
    (ROOT / "tests/truth/fsdp1/qlora-torch-2.13.0.json").read_text(encoding="utf-8"))}
RAN = [name for name, row in QLORA.items() if "refused" not in row]


def packed(name: str) -> tuple[dict[str, int], dict[str, Any]]:
    """(mesh, the rest) of a case whose linears bitsandbytes packs; all else in bf16."""
    case = QLORA[name]["case"]
    rank, modules = case["lora"]
    options = {ours: case[theirs] for theirs, ours in OPTIONS.items() if theirs in case}
    return {"dp_shard": case["ranks"]}, {
        "method": "qlora", "lora": {"rank": rank, "alpha": rank, "target_modules": modules},
        "rank": QLORA[name]["rank"], "options": options | {"bnb_4bit_quant_storage": case["storage"]},
        "precision": {"params": "bf16"}, "recompute": "full" if case.get("checkpoint") else "none",
        "model": {"config": "llama-3.2-3b", "overrides": LLAMA}}


@pytest.mark.parametrize("name", RAN)
def test_a_ranks_part_of_packed_units_is_torchs(name: str) -> None:
    """Columns lie in the flat parameter, with a gradient of zeros; constants of all of them are on every rank."""
    mesh, rest = packed(name)
    plan, row = small.plan_of("fsdp1", mesh, **rest), QLORA[name]
    units, held = flat_units(plan), at_rest_of(plan.framework).exact(plan)
    theirs = row["rest"]
    assert [[unit.numel, unit.shard] for unit in units] == row["units"]
    assert [unit.shard * unit.trains for unit in units] == theirs["grads"]
    params, grads = at_rest_of(plan.framework).padding(plan, held, exact=True)
    assert sum(r.params_bytes for r in held.values()) + params == 2 * sum(u.shard for u in units) + row["constants"]
    assert sum(r.grads_bytes for r in held.values()) + grads == 2 * sum(theirs["grads"])
    assert sum(r.num_trainable_params for r in held.values()) == theirs["trained"]
    assert sum(r.optimizer_bytes for r in held.values()) == 2 * theirs["moments"]
    mean = at_rest_of(plan.framework).mean(plan)
    more, _ = at_rest_of(plan.framework).padding(plan, mean, exact=False)
    assert sum(r.params_bytes for r in mean.values()) + more == 2 * sum(u.shard for u in units) + row["constants"]


@pytest.mark.parametrize("name", RAN)
def test_packed_units_are_gathered_and_reduced_as_torchs_are(name: str) -> None:
    mesh, rest = packed(name)
    program = small.program_of("fsdp1", mesh, microbatches=1, **rest)
    comms = {number: kind for (kind, _, _), number in program.tables.comms.items()}
    ours = [[comms[slot], amount] for op, _, slot, amount, _, _ in program.columns.tolist() if op == Op.COLLECTIVE]
    assert ours == [event for event in QLORA[name]["step"] if event[0] not in "+-" and mesh["dp_shard"] > 1]


@pytest.mark.parametrize(("name", "told"), [
    ("qlora, bytes", "Cannot flatten integer dtype tensors"),
    ("qlora, fp32", "Must flatten tensors with uniform dtype"), ("qlora, flat", "requires_grad"),
    ("qlora, SHARD_GRAD_OP", "does not support changing the parameters")])
def test_what_torch_refuses_of_packed_units_is_refused(name: str, told: str) -> None:
    mesh, rest = packed(name)
    assert told in QLORA[name]["refused"]
    with pytest.raises(IllegalLayout, match=told):
        small.prepared("fsdp1", mesh, **{key: value for key, value in rest.items() if key != "rank"})


def test_packed_values_are_never_cast() -> None:
    mesh, rest = packed(RAN[0])
    del rest["precision"], rest["rank"]
    with pytest.raises(IllegalLayout, match="packed values would be cast to bf16"):
        small.prepared("fsdp1", mesh, **rest)


# ---- units of PEFT's wrap policy --------------------------------------------------------------------------------
PEFT: dict[str, dict[str, Any]] = {
    row["name"]: row for file in ("peft-units", "drawn-peft-units") for row in json.loads(
        (ROOT / f"tests/truth/fsdp1/{file}-torch-2.13.0.json").read_text(encoding="utf-8"))}


def wrapped(name: str) -> tuple[dict[str, int], dict[str, Any]]:
    """(mesh, the rest) of a case whose adapters are units; a base in bf16, packed or not, and adapters in fp32."""
    case = PEFT[name]["case"]
    rank, modules = case["lora"]
    shard = case.get("shard", case["ranks"])
    storage = {"bnb_4bit_quant_storage": case["storage"]} if "storage" in case else {}
    return {"dp_shard": shard, "dp_replicate": case["ranks"] // shard}, {
        "method": "qlora" if storage else "lora", "lora": {"rank": rank, "alpha": rank, "target_modules": modules},
        "rank": PEFT[name]["rank"], "recompute": "full" if case.get("checkpoint") else "none",
        **({"precision": {"params": "fp32", "grad_reduce": DTYPES[case["reduce"]]}} if "base" in case else {}),
        "options": {"wrap": "layers_adapters", "backward_prefetch": case.get("backward_prefetch"), **storage,
                    "use_orig_params": case.get("use_orig_params", False),
                    **({"sync_gradients": "last"} if case.get("no_sync") else {})},
        "model": {"config": "llama-3.2-3b", "overrides": LLAMA | case["model"]}}


def test_units_of_adapters_have_torchs_lengths_and_formats() -> None:
    wrong = []
    for name, row in PEFT.items():
        mesh, rest = wrapped(name)
        plan = small.plan_of("fsdp1", mesh, **rest)
        units, held, theirs = flat_units(plan), at_rest_of(plan.framework).exact(plan), row["rest"]
        params, grads = at_rest_of(plan.framework).padding(plan, held, exact=True)
        width = [4 if u.trains or "base" in row["case"] else 2 for u in units]
        ours = [[[u.numel, u.shard] for u in units], [u.shard * u.trains for u in units], params + sum(
                    r.params_bytes for r in held.values()), grads + sum(r.grads_bytes for r in held.values()),
                sum(r.num_trainable_params for r in held.values()) if row["case"].get("use_orig_params") else sum(
                    u.shard for u in units if u.trains)]
        told = [row["units"], theirs["grads"], sum(w * u[1] for w, u in zip(width, row["units"], strict=True))
                + row.get("constants", 0), 4 * sum(theirs["grads"]), theirs["trained"]]
        wrong += [(name, mine, real) for mine, real in zip(ours, told, strict=True) if mine != real]
    assert not wrong


def test_units_of_adapters_come_and_go_as_torchs_do() -> None:
    """Every gathering, release and reduction, in torch's order, in replays and over microbatches too."""
    wrong = []
    for name, row in PEFT.items():
        mesh, rest = wrapped(name)
        program = small.program_of("fsdp1", mesh, microbatches=row["case"].get("microbatches", 1), **rest)
        comms = {number: kind for (kind, _, _), number in program.tables.comms.items()}
        slot = {owner: number for (owner, _), number in program.tables.slots.items()}["flat_param"]
        ours = [[comms[owner], amount] if op == Op.COLLECTIVE else ["+" if op == Op.ALLOC else "-", abs(amount)]
                for op, _, owner, amount, *_ in program.columns.tolist()
                if op == Op.COLLECTIVE or (op in (Op.ALLOC, Op.FREE) and owner == slot and amount)]
        parts = mesh["dp_shard"]
        sizes = [2 * shard * parts for _, shard in row["units"]]
        theirs = [[kind, sizes[size] if kind in "+-" else size] for kind, size in row["step"]
                  if row["case"]["ranks"] > 1 or kind != "all_reduce"]  # sums over one rank
        if ours != theirs:
            at = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), -1)
            wrong.append((name, at, ours[at - 3:at + 5], theirs[at - 3:at + 5]))
    assert not wrong
