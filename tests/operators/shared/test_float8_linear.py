"""torchao's Float8Linear without a compiler allocates what it was measured to, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

import eventlog
from checkout import ROOT
from simcore.operators.shared.float8_linear import float8_linear
from simcore.recording.tape import Op, Param, Tape

TRUTH: dict[str, Any] = json.loads((ROOT / "tests/truth/tape/float8-linear-torchao-0.18.0-torch-2.13.0.json").read_text(
    encoding="utf-8"))
IN, OUT = TRUTH["shape"]


def changes(tape: Tape, start: int) -> list[int]:
    return [row[3] for row in tape.rows[start:] if row[0] in (Op.ALLOC, Op.FREE)]


@pytest.mark.parametrize("name", TRUTH["cases"])
def test_it_allocates_what_torchao_allocates(name: str) -> None:
    case, tape = TRUTH["cases"][name], Tape({}, {})
    weight = Param("one.weight", (OUT, IN), "fp8", True, "unsharded_grad")
    bias = Param("one.bias", (OUT,), "bf16", True, "unsharded_grad") if case.get("bias") else None
    x = tape.empty((2, TRUTH["rows"] // 2, IN), "bf16", "x")
    source = Param("x", (1,), "bf16", True, "sharded_grad")
    x.node = None if case.get("first") else tape.node((source,), (), lambda tape, grads, saved: [None])
    start = len(tape.rows)
    region = partial(float8_linear, tape, x, weight, bias, "one")
    out = tape.checkpoint(region) if case.get("recompute") else region()
    forward = changes(tape, start)
    grad = tape.empty(out.shape, out.dtype, "grad")
    start = len(tape.rows)
    tape.seed(out, grad)
    node = out.node
    del out, x, region
    tape.backward()
    del node, grad
    assert eventlog.grouped(forward) == eventlog.grouped(case["forward"])
    assert eventlog.grouped(changes(tape, start)) == eventlog.grouped(case["backward"])
