"""Offload of modules beside Megatron-Core's own code (tests/truth/probe_fine_offload.py), event by event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from simcore.operators.megatron.ops.offload import offloaded
from simcore.recording.host_copies import FROM_HOST, TO_HOST
from simcore.recording.offload_groups import ModuleGroups
from simcore.recording.rows import Op
from simcore.recording.tape import Param, Row, Tape, Tensor

TRUTH = json.loads((Path(__file__).parent / "truth" / "offload" / "modules-d98e8a64.json").read_text(encoding="utf-8"))
CASES: list[dict[str, Any]] = TRUTH["cases"]
WIDTH, IN_CORE = 512 * 512, 4
Saved = tuple[Tensor, ...]


def operator(tape: Tape, inputs: Saved, save: Saved, *, saves_output: bool = False) -> Tensor:
    out, number = tape.empty((WIDTH,), "fp32", "out"), len(inputs)

    def back(tape: Tape, _grads: list[Tensor | None], _saved: list[Tensor]) -> list[Tensor | None]:
        return [tape.empty((WIDTH,), "fp32", "grad") for _ in range(number)]

    out.node = tape.node(inputs, (*save, *([out] if saves_output else [])), back)
    return out


def context(tape: Tape) -> Any:
    def node(out: Tensor, inputs: Saved, save: Saved, backward: Any) -> None:
        out.node = tape.node(inputs, save, backward)

    return SimpleNamespace(tape=tape, inside=False, node=node)


def recorded(case: dict[str, Any], number: int) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """Rows of forward and of backward of a layer as in the probe: two projections, attention, one, the residual."""
    groups = ModuleGroups(tuple(case["modules"]), WIDTH, min(number, 1), 0 if number == case["layers"] - 1 else -1)
    tape = Tape({}, {}, groups=groups)
    x = tape.external((WIDTH,), "fp32", 0, -1)
    x.node = tape.node((tape_input(tape),), (), lambda _tape, _grads, _saved: [None])
    q, k = operator(tape, (x,), (x.view(WIDTH // 2, 2),)), operator(tape, (x,), (x.view(WIDTH // 2, 2),))
    c = context(tape)
    out = offloaded(c, "core_attn", q, lambda q: operator(tape, (q, k), (q, k, q), saves_output=True), release=(q, k))
    del q
    out = offloaded(c, "attn_proj", out, lambda x: operator(tape, (x,), (x.view(WIDTH // 2, 2),)), release=(out,))
    out = operator(tape, (x, out), ())
    forward = tape.cut().rows
    assert tape.groups is not None
    tape.groups.come()
    tape.seed(out, tape.external((WIDTH,), "fp32", 1, 1))
    tape.backward()
    return forward, tape.cut().rows


def tape_input(tape: Tape) -> Tensor:
    """Tensor with a node, so that gradients flow."""
    found = Tensor(None, (WIDTH,), "fp32")
    found.node = tape.node((Param("x", (WIDTH,), "fp32", trainable=True),), (), lambda _tape, _grads, _saved: [None])
    return found


def events(rows: tuple[Row, ...], layer: int) -> Iterator[list[Any]]:
    """Copies of each group, and waits, in the probe's words."""
    def key(row: Row) -> tuple[str, int, str] | None:
        if row[0] not in (Op.COPY, Op.WAIT):
            return None
        first = FROM_HOST if row[5] >= FROM_HOST else TO_HOST
        word = "wait" if row[0] == Op.WAIT else "come" if first == FROM_HOST else "leave"
        return word, layer + row[1], "core_attn" if row[5] - first < IN_CORE else "attn_proj"

    for found, members in groupby((row for row in rows if key(row)), key=key):
        assert found is not None
        yield [*found, *([[row[3] for row in members]] if found[0] != "wait" else [])]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['layers']} {'+'.join(case['modules'])}")
def test_modules_leave_and_come_back_as_megatron_lets_them(case: dict[str, Any]) -> None:
    layers = [recorded(case, number) for number in range(case["layers"])]
    step = []
    for number, (forward, _) in enumerate(layers):
        step += [["forward", number], *events(forward, number)]
    for number, (_, backward) in reversed(list(enumerate(layers))):
        step += [*events(backward, number), ["backward", number]]
    assert step * case["microbatches"] == case["events"]
