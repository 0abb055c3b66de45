"""Linears that ranks share under DeepSpeed's AutoTP, against their allocations: `truth/probe_autotp.py`."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

from checkout import ROOT
from simcore.operators.shared import aten
from simcore.operators.shared.dtensor import gather_last
from simcore.operators.shared.splits.autotp import column, row
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Node, Op, Param, Section, Tape, Tensor

TRUTH: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/tape/autotp-deepspeed-0.19.6-torch-2.13.0.json").read_text("utf-8"))["cases"]
LEAST = 1000
"""Bytes from which the probe notes tensors."""
OURS = {"all_reduce": "all_reduce", "all_gather": "all_gather_into_tensor"}


def amounts(section: Section) -> list[int]:
    return [amount for op, _, _, amount, _, _ in section.rows if op in (Op.ALLOC, Op.FREE) and abs(amount) >= LEAST]


def sent(tape: Tape, section: Section) -> list[list[Any]]:
    names = {number: OURS[kind] for (kind, _, _), number in tape.comms.items()}
    return [[names[slot], amount] for op, _, slot, amount, _, _ in section.rows if op == Op.COLLECTIVE]


def linear(tape: Tape, case: dict[str, Any], name: str, x: Tensor, sizes: tuple[int, int], *, by_row: bool) -> Tensor:
    """`sizes`: outputs and inputs of this rank."""
    weight = Param(f"{name}.weight", sizes, "bf16", trainable=True)
    bias = Param(f"{name}.bias", (sizes[0],), "bf16", trainable=True) if case["bias"] else None
    return (row if by_row else column)(tape, x, weight, bias, name)


def found(case: dict[str, Any]) -> dict[str, Any]:
    """The same numbers of a tape of the case."""
    tape, tp, hidden = Tape({}, {}), case["tp"], case["hidden"]
    width, vocab = case["width"] // tp, case["vocab"] // tp
    x = tape.external((case["batch"], case["tokens"], hidden), "bf16", tape.slot("x", "activation"), -1)
    x.node = Node()
    gate = aten.silu(tape, linear(tape, case, "gate", x, (width, hidden), by_row=False))
    product = aten.mul(tape, gate, linear(tape, case, "up", x, (width, hidden), by_row=False))
    del gate
    out = linear(tape, case, "down", product, (hidden, width), by_row=True)
    del product
    if case["has_head"]:
        run = LayerWorkload(case["batch"], case["tokens"], "bf16", {}, tp=tp)
        out = gather_last(tape, run, linear(tape, case, "head", out, (vocab, hidden), by_row=False))
    first = tape.cut()
    tape.seed(out, tape.external(out.shape, "bf16", tape.slot("grad", "activation"), -1))
    tape.backward()
    second = tape.cut()
    backward = amounts(second)
    backward.remove(-out.nbytes)  # the probe holds it
    return {"forward": amounts(first), "backward": backward, "sent": sent(tape, first) + sent(tape, second)}


def shown(rows: dict[str, Any]) -> dict[str, Any]:
    """Births in order, the most of each pass, what stays, what is sent."""
    births = {name: [one for one in rows[name] if one > 0] for name in ("forward", "backward")}
    return births | {"peaks": [max(accumulate(rows[name])) for name in births], "sent": rows["sent"],
                     "kept": [sum(rows[name]) for name in births]}


def test_they_allocate_and_send_what_deepspeeds_layers_do_birth_by_birth() -> None:
    wrong = {name: (ours, theirs) for name, case in TRUTH.items()
             if (ours := shown(found(case))) != (theirs := shown(case["found"]))}
    assert wrong == {}
    assert len(TRUTH) >= 40
