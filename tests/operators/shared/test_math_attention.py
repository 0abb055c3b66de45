"""torch's own attention of grouped heads, against its allocator: `truth/probe_math_attention.py`."""

from __future__ import annotations

import json
from itertools import accumulate

import pytest

from checkout import ROOT
from simcore.operators.shared import aten
from simcore.operators.shared.math_attention import math_attention
from simcore.recording.tape import Node, Op, Section, Tape

FOUND = json.loads((ROOT / "tests/truth/tape/math-torch-2.13.0.json").read_text(encoding="utf-8"))["cases"]
DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
HEADS, DIM = 8, 64


def amounts(section: Section) -> list[int]:
    return [amount for op, _, _, amount, _, _ in section.rows if op in (Op.ALLOC, Op.FREE)]


@pytest.mark.parametrize("name", FOUND)
def test_it_allocates_what_torch_does_birth_by_birth(name: str) -> None:
    case, tape = FOUND[name], Tape({}, {})
    dtype, batch, seq = DTYPES[case["dtype"]], case["batch"], case["seq"]
    leaves = [tape.external((batch, seq, heads * DIM), dtype, tape.slot(part, "activation"), -1)
              for part, heads in (("q", HEADS), ("k", case["kv"]), ("v", case["kv"]))]
    for leaf in leaves:
        leaf.node = Node()
    heads = (HEADS, case["kv"], case["kv"])  # the view of one head is in both memory orders, and nothing is copied
    out = math_attention(tape, *(aten.to_heads(tape, leaf, DIM, copy_grad=num > 1)
                                 for leaf, num in zip(leaves, heads, strict=True)))
    forward = amounts(tape.cut())
    grad = tape.external(out.shape, dtype, tape.slot("grad", "activation"), -1)
    tape.seed(out, grad)
    tape.backward()
    backward = amounts(tape.cut())
    found = {"forward": [one for one in forward if one > 0], "backward": [one for one in backward if one > 0],
             "kept": sum(forward) - out.nbytes, "peaks": [max(accumulate(forward)), max(accumulate(backward))]}
    assert found == case["found"]
