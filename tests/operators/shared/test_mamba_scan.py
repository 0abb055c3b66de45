"""Tape of the fused Mamba-2 against mamba_ssm's own function, event by event: tests/truth/tape/README.md."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checkout import ROOT
from simcore.models.blocks import Mamba2
from simcore.operators.shared.mamba_scan import split_conv_scan
from simcore.recording.rows import Section
from simcore.recording.tape import Op, Param, Tape

CASES: dict[str, Any] = json.loads((ROOT / "tests/truth/tape/mamba-e9594ce1.json").read_text(encoding="utf-8"))


def changes(section: Section) -> list[int]:
    return [amount for op, _, _, amount, _, _ in section.rows if op in (Op.ALLOC, Op.FREE)]


def recorded(case: dict[str, Any]) -> tuple[list[int], list[int]]:
    block = Mamba2(**{name: case[name] for name in ("hidden", "state", "chunk")}, num_heads=case["heads"],
                   head_dim=case["head_dim"], num_groups=case["groups"], conv_kernel=4)

    wide = case.get("wide", False)

    def param(name: str, *shape: int, dtype: str = "fp32" if wide else "bf16") -> Param:
        return Param(name, shape, dtype, trainable=not wide)

    small = (param("conv1d.weight", block.conv_dim, 4), param("conv1d.bias", block.conv_dim),
             param("dt_bias", block.num_heads), param("A", block.num_heads, dtype="fp32"), param("D", block.num_heads))
    tail = (param("norm.weight", block.inner, dtype="bf16"), param("out_proj.weight", block.hidden, block.inner))
    tape = Tape({}, {})
    given = tape.empty((case["batch"], case["seq"], block.in_proj), "bf16", "in_proj")
    if wide:  # nothing else is trained
        given.node = tape.node((Param("x", (1,), "bf16", trainable=True),), (), lambda tape, grads, saved: [None])
    tape.cut()
    plain = (None, tail[1]) if case.get("plain") else tail
    out = split_conv_scan(tape, given, block, small, plain if case["tail"] else None)
    forward = changes(tape.cut())
    seed = tape.empty(out.shape, "bf16", "grad")
    tape.seed(out, seed)
    tape.cut()
    tape.backward()
    *found, of_input = changes(tape.cut())  # no leaf holds the last one
    assert of_input == -2 * case["batch"] * case["seq"] * block.in_proj
    del seed
    return forward, found


@pytest.mark.parametrize("name", CASES)
def test_events_are_those_of_mamba_ssm(name: str) -> None:
    forward, backward = recorded(CASES[name]["case"])
    truth = {section["at"]: section["events"] for section in CASES[name]["sections"]}
    assert forward == truth["forward"]
    assert backward == truth["backward"]
