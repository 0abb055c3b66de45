"""Tapes of MPT's layers against event logs of llm-foundry itself, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from checkout import ROOT
from eventlog import Events, Sections, backwards, in_order_of, same_births, same_events, same_summits
from simcore.models.blocks import Embedding, Head
from simcore.models.graph import ModelGraph, build, model_config
from simcore.operators.llmfoundry import implementation as llmfoundry
from simcore.operators.llmfoundry.options import LlmfoundryOptions
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Op, Param, Section

TRUTH = ROOT / "tests/truth" / "tape" / "llmfoundry-0.3.0-torch-2.13.0.json"
CASES: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
NUMBER = 16
"""Bytes of a few numbers, which logs and tapes leave out."""


class Model:
    """Every layer of a case recorded on its own, then laid one after the other."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.slots: dict[tuple[str, str], int] = {}
        words = {"no_bias": False, **case["model"], "attn_config": case.get("attn", {"alibi": False})}
        config = model_config("mpt-7b", words, "test")
        graph = build(config, "llmfoundry")
        self.tapes = [self.record(graph, layer.kind, first=layer.index == 1, below=layer.index > 0)
                      for layer in graph.layers]

    def record(self, graph: ModelGraph, number: int, *, first: bool, below: bool) -> RecordedLayer:
        case, kind = self.case, graph.kinds[number]
        tied = isinstance(kind.block, Embedding | Head)
        params = {spec.name: Param(spec.name, spec.shape, "bf16", trainable=True, tied=tied)
                  for spec in graph.tensors[number]}
        mode = "full" if case.get("checkpoint") and kind.block is None else "none"
        learned = "alibi" not in case.get("attn", {})
        options = LlmfoundryOptions(attn_impl=case["attn_impl"], learned_positions=learned)
        run = LayerWorkload(case["batch"], case["seq"], "bf16", params, "llmfoundry", mode, first=first,
                  input_requires_grad=below, options=options)
        return llmfoundry.record(kind, run, self.slots, {})

    def events(self, *sections: Section) -> Events:
        names = {number: name for name, number in self.slots.items()}
        found: Events = []
        for op, _, slot, amount, _, _ in (row for section in sections for row in section.rows):
            if op in (Op.ALLOC, Op.FREE) and abs(amount) > NUMBER and not (
                    amount < 0 and names[slot][1] == "unsharded_grad"):
                found.append((amount, names[slot][1]))
        return found

    def sections(self) -> Sections:
        stem, *layers, norm, head, loss = self.tapes
        found = [("stem", self.events(stem.forward))]
        for i, layer in enumerate(layers):
            found += [(f"forward {i}", self.events(layer.forward)), (f"after {i}", self.events(layer.after))]
        found[-1][1].extend(self.events(norm.forward, norm.after, layers[0].late, head.forward, head.after,
                                        loss.forward, loss.after))
        *last, logits, held = self.events(loss.late)
        assert (-logits[0], logits[1]) == held, "logits stay where they are, under another name"
        return found + backwards(self.tapes, self.events, last)


@cache
def recorded(name: str) -> Sections:
    return [(at, events) for at, events in Model(CASES[name]["case"]).sections() if events]


def measured(name: str) -> Sections:
    return in_order_of(recorded(name), CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_every_event_of_every_section_is_the_measured_one(name: str) -> None:
    same_events(recorded(name), measured(name))


@pytest.mark.parametrize("name", CASES)
def test_running_maxima_and_net_bytes(name: str) -> None:
    same_summits(recorded(name), measured(name))


@pytest.mark.parametrize("name", CASES)
def test_bytes_born_by_category(name: str) -> None:
    same_births(recorded(name), CASES[name])
