"""KTO of TRL 1.16.0 and 0.24.0 against real steps on a CPU (`tests/truth/probe_kto.py`)."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest

import small
from program.test_fused_pairs import RNG_STATE, SIZES, truth
from simcore.errors import RankscopeError
from simcore.frameworks.registry import hooks_of
from simcore.frameworks.setup import prepare
from simcore.memory.ledger import running
from simcore.models.graph import build, model_config
from simcore.operators.hf import implementation as hf
from simcore.operators.hf.options import HfOptions
from simcore.pipeline.schedule import actions
from simcore.placement.plan import place
from simcore.program.lower import lower
from simcore.program.outline import Phase
from simcore.program.program import Program
from simcore.program.record_layers import Workload
from simcore.program.tile import AMOUNT, OP, SLOT
from simcore.recording.layer import LayerWorkload
from simcore.recording.rows import MISMATCHED_BORDER, MISMATCHED_REFERENCE, REFERENCE_BORDER
from simcore.recording.tape import Kernel, Op, Param, Row

FEW = 64
"""Bytes a token of what is not recorded one by one: labels, masks, statistics."""
NEW = ["kto-trl-1.16.0.json", "kto-drawn-trl-1.16.0.json", "kto-drawn-52117-trl-1.16.0.json"]
OLD = ["kto-trl-0.24.0.json", "kto-drawn-trl-0.24.0.json"]
_PASSES = (MISMATCHED_BORDER, MISMATCHED_REFERENCE, REFERENCE_BORDER)


def wide(case: dict[str, Any]) -> bool:
    return bool(case["method"] == "full" and case["mixed"])


def large(rows: tuple[Row, ...], least: int) -> list[int]:
    return [row[3] for row in rows if row[0] in (Op.ALLOC, Op.FREE) and abs(row[3]) >= least]


def heads(case: dict[str, Any]) -> dict[str, list[list[int]]]:
    """Signed bytes of what the head makes, in each pass and in backward."""
    graph = build(model_config("llama-3.2-3b", SIZES | {"vocab_size": case["vocab"]}, "test"), "hf")
    kind = next(kind for kind in graph.kinds if kind.name == "head")
    stored = "fp32" if wide(case) else "bf16"
    run = LayerWorkload(case["batch"], case["seq"], "bf16", {"weight": Param(
        "weight", (case["vocab"], 64), stored, case["method"] == "full")}, "kto_fused", options=HfOptions(
            autocast=case["mixed"], hidden=stored))
    made = hf.record(kind, run, {}, {})
    given = hf.record(kind, replace(run, no_grad=True, input_requires_grad=False), {}, {})
    least = 32 * case["batch"] * (case["seq"] - 1)
    own, other = (large((*one.forward.rows, *one.after.rows), least) for one in (made, given))
    return {"passes": [other, own] + [other, other] * (not case["before"]),
            "backward": [large(made.backward.rows, least)]}


def rows_of_logits(case: dict[str, Any], loss: str) -> list[list[int]]:
    """Signed bytes of rows of logits: in each pass, and in backward."""
    graph = build(model_config("llama-3.2-3b", SIZES | {"vocab_size": case["vocab"]}, "test"), "hf")
    kind = next(kind for kind in graph.kinds if kind.name == "loss")
    run = LayerWorkload(case["batch"], case["seq"], "bf16", {}, loss, options=HfOptions(autocast=case["mixed"]))
    least = 2 * (case["seq"] - 1) * case["vocab"]
    made, ahead = hf.record(kind, run, {}, {}), hf.record(kind, replace(run, no_grad=True), {}, {})
    found: list[list[Row]] = [[]]
    for row in made.forward.rows:
        if row[0] == Op.MARK and row[2] in _PASSES:
            found.append([])
        found[-1].append(row)
    first = [large(ahead.forward.rows, least)] if loss != "kto_softmax" else []
    passes = [*first, *(large(tuple(part), least) for part in found)]
    behind = 2 * wide(case) * (loss != "kto_softmax")  # the mark of a second model ends behind the cast
    return [*passes[:2], *(part[behind:] for part in passes[2:]), large(made.backward.rows, least)]


def summed(sizes: list[int], whole: int) -> list[int]:
    """Sizes in which the two copies of logits by label, made and freed one behind the other, are one."""
    found: list[int] = []
    for _, run in groupby(sizes, key=lambda size: size > 0):
        parts = list(run)
        while parts:
            if len(parts) > 1 and abs(parts[0]) != whole and abs(parts[0] + parts[1]) == whole:
                found.append(parts.pop(0) + parts.pop(0))
            else:
                found.append(parts.pop(0))
    return found


def moments(case: dict[str, Any], loss: str) -> tuple[list[int], int]:
    """Bytes above those before the step where each pass but the first begins, where backward begins; the highest."""
    adapters: dict[str, Any] = {} if case["method"] == "full" else {"lora": {
        "rank": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj"], "dtype": "fp32"}}
    asked = small.scenario(
        "ddp", model={"config": "llama-3.2-3b", "overrides": SIZES | {"vocab_size": case["vocab"]}},
        options={"autocast": True} if case["mixed"] else {}, method=case["method"], seq_len=case["seq"],
        loss=f"{loss}_alone" if case["before"] else loss, micro_batch_size=case["batch"],
        recompute="full" if case["replays"] else "none", precision={"params": "fp32" if wide(case) else "bf16"},
        **adapters)
    job, table = prepare(asked)
    found = lower(place(job.graph, job.mesh, table, 0), Workload(case["batch"], case["seq"], 2 << 16),
                  actions(table.schedule, 0, 1), hooks_of(table))
    held = running(found)
    rest = int(held[int(np.argmax(found.phase != Phase.BUILD)) - 1])
    begun, ended = (int(np.argmax(found.phase == phase)) for phase in (Phase.BACKWARD, Phase.OPTIMIZER))
    changes = [at for at in range(1, begun) if found.phase[at] == Phase.FORWARD and found.phase[at - 1] == Phase.LOSS]
    return ([int(held[at - 1]) - rest for at in (*changes, begun)], int(held[:ended].max()) - rest)


@pytest.mark.parametrize("name", NEW)
def test_what_the_head_makes_is_that_of_trls_own_step(name: str) -> None:
    """Event by event in all passes; the probe's go on behind the head."""
    wrong = []
    for case in truth(name):
        ours = heads(case)
        theirs = {"passes": [found[:len(own)] for found, own in zip(case["passes"], ours["passes"], strict=True)],
                  "backward": [case["backward"]]}
        if ours != theirs:
            wrong.append((case, ours))
    assert not wrong


@pytest.mark.parametrize("name", OLD)
def test_rows_of_logits_are_those_of_trls_own_step(name: str) -> None:
    """Event by event; what follows in backward is of the head."""
    wrong = []
    for case in truth(name):
        ours = rows_of_logits(case, "kto_whole_alone" if case["before"] else "kto_whole")
        theirs = compared(case, [*case["passes"], case["backward"]], ours)
        if ours != theirs:
            wrong.append((case, ours, theirs))
    assert not wrong


def compared(case: dict[str, Any], parts: list[list[int]], ours: list[list[int]]) -> list[list[int]]:
    """Parts of a probe's case without copies that a CPU makes of 16 bits, and without what is of the head."""
    cast = -2 * SIZES["hidden_size"] * case["vocab"]  # of the head's weight, which autocast drops behind the model
    parts = [part[1:] if wide(case) and part and part[0] == cast else part for part in parts]
    whole = (4 if case["mixed"] else 2) * case["batch"] * case["seq"] * case["vocab"]
    return [without_wide_copies(case, summed(part, whole))[:len(own)] for part, own in zip(parts, ours, strict=True)]


def without_wide_copies(case: dict[str, Any], sizes: list[int]) -> list[int]:
    """Sizes without copies in fp32 that a CPU makes of 16 bits for a softmax's backward, and a GPU does not."""
    wide_row, kept = 4 * (case["seq"] - 1) * case["vocab"], list(sizes)
    for at in range(len(sizes) - 2, -1, -1):
        if not case["mixed"] and kept[at] == wide_row and kept[at + 1] == -wide_row:
            kept[at:at + 2] = []
    return kept


@pytest.mark.parametrize("name", ["kto-axolotl-067b021c.json", "kto-drawn-axolotl-067b021c.json"])
def test_rows_of_logits_are_those_of_axolotls_own_step(name: str) -> None:
    """Event by event, and the bytes that a step holds; what follows in backward is of the head."""
    wrong = []
    for case in truth(name):
        ours = rows_of_logits(case, "kto_rows")
        theirs = compared(case, [*case["passes"], case["backward"]], ours)
        begins, highest = moments(case, "kto_rows")
        off = [own + 4 * RNG_STATE * case["replays"] - theirs for own, theirs in zip(
            (*begins, highest), (*case["begins"][1:], case["highest"]), strict=True)]
        if ours != theirs or max(map(abs, off)) > FEW * case["batch"] * case["seq"]:
            wrong.append((case, ours, theirs, off))
    assert not wrong


@pytest.mark.parametrize("name", ["kto-llamafactory-ff6d4d12.json", "kto-drawn-llamafactory-ff6d4d12.json"])
def test_logits_are_those_of_llamafactorys_own_step(name: str) -> None:
    """But for the allocation of each pass's logits, and the free of the last gradient by the head."""
    wrong = []
    for case in truth(name):
        ours = rows_of_logits(case | {"method": "lora", "before": False}, "kto_softmax")
        whole = 4 * case["batch"] * case["seq"] * case["vocab"]
        theirs = [*(summed(part[1:], whole) for part in case["passes"]), case["backward"][:-1]]
        if ours != theirs:
            wrong.append((case, ours, theirs))
    assert not wrong


@pytest.mark.parametrize(("name", "loss"), [*((name, "kto_fused") for name in NEW), *((name, "kto_whole")
                                                                                    for name in OLD)])
def test_the_bytes_of_a_step_are_those_of_trls_own(name: str, loss: str) -> None:
    """But for a few numbers a token; without mixed precision a CPU's highest of 0.24.0 has copies in fp32.

    A second model of 0.24.0 keeps keys and values, which is refused.
    """
    wrong = []
    for case in truth(name):
        if loss == "kto_whole" and case["method"] == "full":
            with pytest.raises(RankscopeError, match="keeps keys and values"):
                moments(case, loss)
            continue
        states = 4 * RNG_STATE * case["replays"]
        begins, highest = moments(case, loss)
        off = [own + states - theirs for own, theirs in zip(begins, case["begins"][1:], strict=True)]
        if loss == "kto_fused" or case["mixed"]:
            off.append(highest + states - case["highest"])
        if max(map(abs, off)) > FEW * case["batch"] * case["seq"]:
            wrong.append((case, off))
    assert not wrong


def test_one_sequence_a_pass_is_refused_as_trl_refuses_it() -> None:
    with pytest.raises(RankscopeError, match="batch size must be > 1"):
        prepare(small.scenario("ddp", model="llama-tiny", loss="kto_fused", micro_batch_size=1))
    prepare(small.scenario("ddp", model="llama-tiny", loss="kto_fused", micro_batch_size=3))


@pytest.mark.parametrize(("framework", "loss"), [("zero3", "kto_softmax"), ("zero3", "kto_whole_alone"),
                                                 ("fsdp2", "kto_whole"), ("fsdp1", "kto_softmax")])
def test_a_model_that_is_gathered_twice_is_refused(framework: str, loss: str) -> None:
    with pytest.raises(RankscopeError, match=loss):
        prepare(small.scenario(framework, {"dp_shard": 4}, model="llama-tiny", loss=loss, micro_batch_size=2))


def test_all_passes_take_time() -> None:
    """Products before backward: those of four forwards, of which one pair is the reference's."""
    found, plain = (small.program_of("ddp", model="llama-tiny", loss=loss, micro_batch_size=2)
                    for loss in ("kto_softmax", "hf"))
    assert products(found) == 4 * products(plain)


def products(program: Program) -> int:
    """FLOPs of products before the first backward."""
    rows = program.columns[:int(np.argmax(program.phase == Phase.BACKWARD))]
    return int(rows[(rows[:, OP] == Op.COMPUTE) & (rows[:, SLOT] == Kernel.GEMM)][:, AMOUNT].sum())
