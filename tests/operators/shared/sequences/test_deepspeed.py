"""DeepSpeed's attention over sequences that ranks share, against its allocations: `truth/probe_alst.py`."""

from __future__ import annotations

import json
from functools import partial
from itertools import accumulate
from typing import Any

from checkout import ROOT
from simcore.operators.shared import aten
from simcore.operators.shared.sequences.deepspeed import over_shared
from simcore.recording.tape import Node, Op, Section, Tape, Tensor

TRUTH: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/tape/alst-deepspeed-0.19.6-torch-2.13.0.json").read_text("utf-8"))["cases"]
LEAST = 1000
"""Bytes from which the probe notes tensors."""


def amounts(section: Section) -> list[int]:
    """Bytes of allocations and frees of noted tensors."""
    return [amount for op, _, _, amount, _, _ in section.rows if op in (Op.ALLOC, Op.FREE) and abs(amount) >= LEAST]


def sent(tape: Tape, section: Section) -> list[int]:
    comms = {number for (kind, _, _), number in tape.comms.items() if kind == "all_to_all"}
    return [amount for op, _, slot, amount, _, _ in section.rows if op == Op.COLLECTIVE and slot in comms]


def found(case: dict[str, int]) -> dict[str, Any]:
    """The same numbers of a tape of the case."""
    tape, dim, tokens, batch = Tape({}, {}), case["dim"], case["tokens"], case.get("batch", 1)
    leaves = [tape.external((batch, tokens, heads * dim), "bf16", tape.slot(part, "activation"), -1)
              for part, heads in (("q", case["heads"]), ("k", case["keys"]), ("v", case["keys"]))]
    for leaf in leaves:
        leaf.node = Node()
    query, key, value = (aten.to_heads(tape, leaf, dim, copy_grad=batch > 1 or leaf.shape[2] == dim * case["ranks"])
                         for leaf in leaves)
    out = over_shared(tape, case["ranks"], (query, key, value), partial(
        aten.scaled_dot_product_attention, tape, by_heads=True))
    if batch > 1:
        out = aten.contiguous(tape, out, "attention")
    del query, key, value
    first = tape.cut()
    grad = tape.external(out.shape, "bf16", tape.slot("grad", "activation"), -1)
    tape.seed(out, grad)
    tape.backward()
    second = tape.cut()
    forward, backward = amounts(first), amounts(second)
    return {"forward": forward, "backward": backward, "sent": sent(tape, first) + sent(tape, second),
            "kept": sum(forward) - out.nbytes}


def shown(rows: dict[str, Any]) -> dict[str, Any]:
    """Births in order, the most of each pass, what stays, what is sent."""
    births = {name: [one for one in rows[name] if one > 0] for name in ("forward", "backward")}
    return births | {"peaks": [max(accumulate(rows[name])) for name in births], "kept": rows["kept"],
                     "sent": rows["sent"]}


def test_it_allocates_and_sends_what_deepspeeds_class_does_birth_by_birth() -> None:
    wrong = {name: (ours, theirs) for name, case in TRUTH.items()
             if (ours := shown(found(case))) != (theirs := shown(case["found"]))}
    assert wrong == {}
    assert len(TRUTH) >= 90  # 80 of them drawn


def _like_query(tape: Tape, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return aten.new(tape, query.shape, query.dtype, "core")


def test_an_output_that_transformers_does_not_copy_is_copied_once() -> None:
    """flash-attn's: the reshape in front of the exchange copies rows or heads that lie apart, in one go."""
    for heads, batch, copies in ((8, 1, 1), (8, 3, 1), (2, 1, 0), (2, 3, 1)):
        counts = []
        for once in (True, False):
            tape = Tape({}, {})
            core = partial(_like_query, tape)
            parts = [tape.external((batch, 64, heads, 64), "bf16", tape.slot(name, "activation"), -1) for name in "qkv"]
            out = over_shared(tape, 2, (parts[0], parts[1], parts[2]), core, copies_once=once)
            size, rows = out.nbytes, amounts(tape.cut())
            counts.append(sum(one == size for one in rows))
        assert counts[1] - counts[0] == (heads > 2) + (batch > 1) - copies, (heads, batch)
