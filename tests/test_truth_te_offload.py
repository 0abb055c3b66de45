"""Offload of layers beside TransformerEngine's own code (tests/truth/probe_te_offload.py), event by event."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import small
from simcore.program.offloaded_layers import OffloadedLayers
from simcore.program.record_layers import blocks_of
from simcore.recording.rows import Op
from simcore.recording.tape import Param, Section, Tape, Tensor

TRUTH = json.loads((Path(__file__).parent / "truth" / "offload" / "te-d0067d0d.json").read_text(encoding="utf-8"))
CASES: list[dict[str, Any]] = TRUTH["cases"]
WIDTH = 512 * 512
PARTS = ("leave", "left", "come", "done")
Saved = tuple[Tensor | Param, ...]


def operator(tape: Tape, inputs: tuple[Tensor | Param, ...], save: Saved, name: str, *, saves_output: bool = False) -> (
        Tensor):
    out, has_grad = tape.empty((WIDTH,), "fp32", name), [isinstance(x, Tensor) for x in inputs]

    def back(tape: Tape, _grads: list[Tensor | None], _saved: list[Tensor]) -> list[Tensor | None]:
        return [tape.empty((WIDTH,), "fp32", f"grad_{name}") if has else None for has in has_grad]

    out.node = tape.node(inputs, (*save, *([out] if saves_output else [])), back)
    return out


def toy_layer() -> dict[str, list[int]]:
    """Bytes of the copies of the layer in `probe_te_offload.py`."""
    tape = Tape({}, {}, leaves=256 * 1024)
    weight = Param("weight", (WIDTH,), "fp32", trainable=True)
    x = tape.external((WIDTH,), "fp32", 0, -1)
    normed = operator(tape, (x, weight), (x, tape.empty((4,), "fp32", "statistics"), weight), "normed")
    q, k = (operator(tape, (normed,), (normed.view(WIDTH // 2, 2),), name) for name in "qk")
    attended = operator(tape, (q, k), (q, k, q), "attended", saves_output=True)
    out = operator(tape, (attended,), (attended.view(WIDTH // 2, 2),), "out")
    out = operator(tape, (x, out), (), "residual")
    assert tape.away is not None
    tape.cut()
    del normed, q, k, attended, x
    dropped = tape.cut()
    trip = tape.away.go_and_come()
    tape.seed(out, tape.external((WIDTH,), "fp32", 1, 1))
    tape.backward()
    back, done = tape.cut(), tape.away.drop()
    assert freed(dropped) == [], "all are saved"
    assert freed(trip.left) == freed(done) == moved(trip.leave) == moved(trip.come)
    assert freed(back).count(16) == 1, "what is small has stayed"
    return {"leave": moved(trip.leave), "come": moved(trip.come)}


def moved(section: Section) -> list[int]:
    return [row[3] for row in section.rows if row[0] == Op.COPY]


def freed(section: Section) -> list[int]:
    return [-row[3] for row in section.rows if row[0] == Op.FREE]


class Noted:
    """Builder that notes which part of which layer is written."""

    def __init__(self, first: int) -> None:
        self.first, self.events = first, list[list[Any]]()

    def tile(self, part: str, layer: int) -> None:
        self.events.append([part, layer - self.first])


def simulated(case: dict[str, Any]) -> list[list[Any]]:
    """Events of the case's passes, as the walk over layers calls the writer."""
    model = {"config": "llama-3-8b", "overrides": {"num_hidden_layers": case["layers"]}}
    plan = small.plan_of("megatron", model=model, offload={"activations": "host"},
                         options={"cpu_offloading_num_layers": case["away"]})
    blocks = blocks_of(plan)
    out: Any = Noted(blocks[0])
    tiles: Any = {layer: SimpleNamespace(**{part: part for part in PARTS}) for layer in blocks}
    offloaded = OffloadedLayers(plan, out, tiles)
    for _ in range(case["microbatches"]):
        for layer in plan.layers:
            offloaded.forward_begin(layer)
            out.events += [["forward", layer - blocks[0]]] * (layer in blocks)
        for layer in reversed(plan.layers):
            offloaded.backward_begin(layer)
            out.events += [["backward", layer - blocks[0]]] * (layer in blocks)
        offloaded.backward_end()
    events: list[list[Any]] = out.events
    return events


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['away']} of {case['layers']}")
def test_layers_leave_and_come_back_as_transformer_engine_lets_them(case: dict[str, Any]) -> None:
    assert simulated(case) == [event[:2] for event in case["events"]]


def test_a_layer_sends_what_transformer_engine_sends() -> None:
    sent = toy_layer()
    for case in CASES:
        for part, _, sizes in (event for event in case["events"] if len(event) > len(("part", "layer"))):
            assert sizes == sent[part]
