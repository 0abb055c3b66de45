"""The gated delta net of Megatron-Core between its projections, event by event as measured (`truth/probe_delta.py`)."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

from checkout import ROOT
from operators.megatron.kinds import layer_of, run_of
from simcore.models.blocks import GatedDeltaNet
from simcore.operators.megatron.ops.context import Context
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.operators.megatron.recurrent import delta_net as module
from simcore.recording.rows import Row
from simcore.recording.tape import Op, Tape, Tensor

TAPE = ROOT / "tests" / "truth" / "tape"
ROWS = [(is_main, row) for is_main, name in ((False, "core-0.16.1"), (True, "main-2026-08-22"))
        for row in json.loads((TAPE / f"megatron-delta-{name}.json").read_text(encoding="utf-8"))]


def context(case: dict[str, Any], *, is_main: bool) -> tuple[Context, GatedDeltaNet, dict[tuple[str, str], int]]:
    block = GatedDeltaNet(64, case["keys"], case["values"], case["key_dim"], case["value_dim"], 4)
    kind, options = layer_of("delta_net", block, "qwen3_next"), MegatronOptions(compiles_delta_net=is_main)
    run = replace(run_of(kind, tokens=case["seq"], tp=case["tp"], options=options), batch=case["batch"],
                  cp=case.get("cp", 1))
    slots: dict[tuple[str, str], int] = {}
    return Context(Tape(slots, {}), run, kind), block, slots


def sizes(rows: tuple[Row, ...], slots: dict[tuple[str, str], int]) -> list[int]:
    """Signed bytes of births and deaths, in order; gradients of parameters and of the output left out."""
    left = {slot for (name, _), slot in slots.items() if name.endswith(".grad") or name == "grad_hidden_states"}
    return [row[3] for row in rows if row[0] in (Op.ALLOC, Op.FREE) and row[2] not in left | {1}]


def in_order(events: list[int]) -> list[list[int]]:
    """Births and deaths by turns: deaths between two births have no order that memory would see."""
    return [sorted(run) if sign else list(run) for sign, run in groupby(events, lambda change: change < 0)]


def expected(row: dict[str, Any], at: str) -> list[int]:
    """Events of a pass. Under context parallelism without local parts of parameters, the convolution's weight and less.

    What the probe gives its module, the projection's output, is the module's argument too, and held to its end: it is
    free when it has been exchanged.
    """
    events: list[int] = list(row[at])
    if "cp" not in row["case"]:
        return events
    keys, values, key_dim, value_dim, tp, cp = (row["case"][name] for name in (
        "keys", "values", "key_dim", "value_dim", "tp", "cp"))
    events = [size for size in events if abs(size) > 2 * 4 * (2 * keys * key_dim + values * value_dim) // tp // cp]
    if at == "forward":
        whole = events[0]
        del events[len(events) - 1 - events[::-1].index(-whole)]
        events.insert(events.index(-whole, events.index(-whole) + 1), -whole)
    return events


@pytest.mark.parametrize(("is_main", "row"), ROWS)
def test_events_between_the_projections(is_main: bool, row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    c, block, slots = context(row["case"], is_main=is_main)

    def projected(c: Context, path: str, _x: Tensor) -> Tensor:
        weight = c.param(f"{path}.weight")
        out = c.new(c.tokens, weight.shape[0], path)
        c.node(out, (weight,), (), lambda tape, grads, saved: [None])
        return out

    monkeypatch.setattr(module, "norm_linear", projected)
    monkeypatch.setattr(module, "row", lambda c, path, x: x)
    out = module.delta_net(c, block, c.new(0, 0, "given"))
    assert in_order(sizes(c.tape.cut().rows, slots)) == in_order(expected(row, "forward"))
    c.tape.phase = "backward"
    c.tape.seed(out, c.tape.external(out.shape, out.dtype, 1, 1))
    c.tape.backward()
    made = sizes(c.tape.cut().rows, slots)
    assert made.pop() == -2 * c.tokens * c.param("self_attention.in_proj.weight").shape[0]
    assert in_order(made) == in_order(expected(row, "backward"))
