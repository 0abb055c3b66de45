"""Exchanges of sequences that ranks share: verl's own (truth/probe_ulysses.py), the work, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checkout import ROOT
from simcore.errors import IllegalLayout, NotYet
from simcore.frameworks.fsdp1.flat_parameters import flat_units
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.recording.tape import Kernel, Op
from small import plan_of, program_of

TRUTH: list[dict[str, Any]] = json.loads((ROOT / "tests/truth/verl/ulysses-torch-2.13.0.json").read_text("utf-8"))
SMALL: dict[str, Any] = {
    "implementation": "hf", "options": {"attn_implementation": "flash_attention_2"}, "loss": "flash",
    "precision": {"params": "fp32", "grad_reduce": "fp32"},
    "model": {"config": "llama-tiny", "overrides": {"num_hidden_layers": 1, "num_attention_heads": 8,
                                                    "num_key_value_heads": 8, "head_dim": 64}}}


def exchanges(program: Program, phase: Phase) -> list[tuple[int, int]]:
    """(bytes sent, most bytes of the exchange at once, its result among them) of each exchange of a phase."""
    names = {number: name.rpartition(".")[2] for (name, _), number in program.tables.slots.items()}
    kinds = {number: kind for (kind, _, _), number in program.tables.comms.items()}
    found, now, most, sent = [], 0, 0, 0
    for (op, _, slot, amount, *_), of in zip(program.columns.tolist(), program.phase.tolist(), strict=True):
        name = names.get(slot, "") if op in (Op.ALLOC, Op.FREE) else ""
        if of != phase or (op == Op.FREE and name == "exchanged"):
            continue
        if op == Op.COLLECTIVE and kinds[slot] == "all_to_all":
            sent = amount
        if name.startswith("exchange"):
            now += abs(amount) if op == Op.ALLOC else -abs(amount)
            most = max(most, now)
        if name == "exchange_received" and op == Op.FREE:
            found.append((sent, most))
            now = most = 0
    return found


def test_exchanges_send_and_hold_what_verls_do() -> None:
    """In front of attention parts of heads are copied, behind it parts of rows are views; backward is the other way."""
    for row in TRUTH:
        mesh, tokens, heads = {"dp_shard": 1, "cp": row["ranks"]}, row["tokens"] * row["ranks"], row["heads"]
        fields = SMALL["model"]["overrides"] | {"num_attention_heads": heads, "num_key_value_heads": heads,
                                                "hidden_size": 64 * heads}
        model = {"config": "llama-tiny", "overrides": fields}
        program = program_of("fsdp1", mesh, seq_len=tokens, **SMALL | {"model": model})
        before, behind, case = row["before"], row["behind"], (row["ranks"], row["tokens"], heads)
        assert exchanges(program, Phase.FORWARD) == [(before["sent"][0], before["forward"])] * 3 + [
            (behind["sent"][0], behind["forward"])], case
        assert exchanges(program, Phase.BACKWARD) == [(behind["sent"][1], behind["backward"])] + [
            (before["sent"][1], before["backward"])] * 3, case


def test_ranks_share_the_work_and_the_parameters() -> None:
    """Half of the pairs and of the tokens a rank; flat parameters are cut over all ranks, as without."""
    alone, shared = (program_of("fsdp1", mesh, seq_len=512, **SMALL) for mesh in ({"dp_shard": 4}, {
        "dp_shard": 2, "cp": 2}))
    flops = [sum(row[3] for row in program.columns.tolist() if row[0] == Op.COMPUTE and row[2] == Kernel.ATTENTION)
             for program in (alone, shared)]
    assert flops[0] == 2 * flops[1] > 0
    shards = [[unit.shard for unit in flat_units(plan_of("fsdp1", mesh, seq_len=512, **SMALL))]
              for mesh in ({"dp_shard": 4}, {"dp_shard": 2, "cp": 2})]
    assert shards[0] == shards[1]


def test_sequences_that_no_patch_splits_are_refused() -> None:
    for told, changed in (
            ("fsdp1 with context parallelism", {"options": {}}),
            ("8 heads and 8 of keys must be divisible by it", {"mesh": {"dp_shard": 1, "cp": 3}}),
            ("sequences that 2 does not divide", {"seq_len": 511}),
            ("with sinks or a window", {"model": {"config": "gpt-oss-20b", "overrides": {"num_hidden_layers": 2}}})):
        given = {"mesh": {"dp_shard": 2, "cp": 2}, "seq_len": 512, **SMALL} | changed
        with pytest.raises((IllegalLayout, NotYet), match=told):
            plan_of("fsdp1", given.pop("mesh"), **given)
