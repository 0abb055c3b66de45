"""Tapes of KempnerForge's layers against event logs of KempnerForge itself, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from checkout import ROOT
from eventlog import Events, Sections, backwards, in_order_of, same_births, same_events, same_summits
from simcore.models.graph import ModelGraph, build, model_config
from simcore.operators.kempnerforge import implementation as kempnerforge
from simcore.operators.kempnerforge.options import KempnerforgeOptions
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Op, Param, Section

TRUTH = ROOT / "tests/truth" / "tape" / "kempnerforge-5666d0d16153-torch-2.13.0.json"
CASES: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
ROUTING = ROOT / "tests/truth" / "routing" / "kempnerforge-5666d0d16153.json"
MEASURED = ROOT / "tests/truth" / "measured" / "kempnerforge.jsonl"
EVENTS = [name for name, row in CASES.items() if row["case"].get("grad_accum", 1) == 1 or "tp" not in row["case"]]
"""With several microbatches norms' gradients are summed over tp once, in fp32, here with each, in their type."""
MODES = {"selective": "per_module"}


class Model:
    """Every layer of a case recorded on its own, then laid one after the other."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.slots: dict[tuple[str, str], int] = {}
        self.comms: dict[tuple[str, str, str], int] = {}
        preset = "mixtral-8x7b" if "num_local_experts" in case["model"] else "llama-tiny"
        graph = build(model_config(preset, case["model"], "test"), "kempnerforge")
        self.tapes = [self.record(graph, layer.kind, first=layer.index == 1, below=layer.index > 0)
                      for layer in graph.layers]

    def params(self, graph: ModelGraph, number: int) -> dict[str, Param]:
        tp, made = self.case.get("tp", 1), {}
        for spec in graph.tensors[number]:
            cut = 1 if spec.name.endswith(("o_proj.weight", "down_proj.weight")) else 0
            whole = len(spec.shape) < 2 or spec.component in ("embedding", "router", "routed_experts") or (
                spec.component == "lm_head" and self.case.get("stage", False))
            parts = [tp if at == cut and not whole else 1 for at in range(2)]
            shape = tuple(size // part for size, part in zip(spec.shape, parts, strict=False))
            copies = (spec.copies,) if spec.copies > 1 else ()
            made[spec.name] = Param(spec.name, (*copies, *shape), "bf16", trainable=True)
        return made

    def record(self, graph: ModelGraph, number: int, *, first: bool, below: bool) -> RecordedLayer:
        case, kind = self.case, graph.kinds[number]
        mode = case.get("checkpoint", "none") if kind.block is None else "none"
        tp, is_stage = case.get("tp", 1), case.get("stage", False)
        run = LayerWorkload(case.get("batch", 1), case["seq"], "bf16", self.params(graph, number), "kempnerforge",
                  MODES.get(mode, mode), tp, tp > 1 and not is_stage, first=first,
                  input_requires_grad=below, options=KempnerforgeOptions(packed_experts=case.get("packed", False)))
        return kempnerforge.record(kind, run, self.slots, self.comms)

    def events(self, *sections: Section) -> Events:
        """Without what each step leaves to the next, and without numbers, one an expert."""
        names = {number: name for name, number in self.slots.items()}
        kinds = {number: kind for (kind, _, _), number in self.comms.items()}
        least = 4 * self.case["model"].get("num_local_experts", 0)
        found: Events = []
        for op, _, slot, amount, _, _ in (row for section in sections for row in section.rows):
            if op in (Op.ALLOC, Op.FREE) and abs(amount) > least and not (
                    amount < 0 and names[slot][1] == "unsharded_grad"):
                found.append((amount, names[slot][1]))
            elif op == Op.COLLECTIVE:
                found.append(f"{kinds[slot]} {amount}")
        return found

    def sections(self) -> Sections:
        stem, *layers, norm, head, loss = self.tapes
        found = [("stem", self.events(stem.forward))]
        for i, layer in enumerate(layers):
            found += [(f"forward {i}", self.events(layer.forward)), (f"after {i}", self.events(layer.after))]
        found[-1][1].extend(self.events(norm.forward, norm.after, head.forward, head.after, loss.forward, loss.after))
        *scalars, logits, held = self.events(loss.late)
        assert (-logits[0], logits[1]) == held, "logits stay where they are, under another name"
        return found + backwards(self.tapes, self.events, scalars)


@cache
def recorded(name: str) -> Sections:
    return [(at, events) for at, events in Model(CASES[name]["case"]).sections() if events]


def measured(name: str) -> Sections:
    return in_order_of(recorded(name), CASES[name])


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_of_every_section_is_the_measured_one(name: str) -> None:
    same_events(recorded(name), measured(name))


@pytest.mark.parametrize("name", EVENTS)
def test_running_maxima_and_net_bytes(name: str) -> None:
    same_summits(recorded(name), measured(name))


@pytest.mark.parametrize("name", EVENTS)
def test_bytes_born_by_category(name: str) -> None:
    same_births(recorded(name), CASES[name])


def test_a_run_from_scratch_puts_every_token_on_one_expert_of_some_layer() -> None:
    shares = json.loads(ROUTING.read_text(encoding="utf-8"))["shares"]
    fullest = [max(step) for step in shares]
    assert max(fullest) == 1
    assert fullest[1] > 0.95
    assert min(min(step) for step in shares) > 0.25


def test_measured_runs_do_not_state_routing_and_are_asked_none() -> None:
    rows = [json.loads(line) for line in MEASURED.read_text(encoding="utf-8").splitlines()]
    asked = [row["scenario"]["training"] for row in rows if "packed_experts" in str(row.get("scenario"))]
    assert len(asked) == 4
    assert not any("routing" in training for training in asked)
