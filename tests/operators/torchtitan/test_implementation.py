"""Tapes of torchtitan's Llama 3 and Qwen3 against event logs of torchtitan itself, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from checkout import ROOT
from eventlog import Events, Sections, backwards, same_births, same_events, same_summits
from simcore.models.graph import ModelGraph, build, model_config
from simcore.operators.torchtitan import implementation as torchtitan
from simcore.operators.torchtitan.options import TorchtitanOptions
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Op, Param, Section

TRUTH = ROOT / "tests/truth" / "tape" / "torchtitan-0.2.2-torch-2.13.0.json"
CASES: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
EXPERTS: dict[str, Any] = json.loads(TRUTH.with_name("torchtitan-experts-0.2.2-torch-2.13.0.json").read_text(
    encoding="utf-8"))
OSS: dict[str, Any] = json.loads(TRUTH.with_name("torchtitan-oss-0.2.2-torch-2.13.0.json").read_text(encoding="utf-8"))
MODES = {"op": "per_op"}
WHOLE = ("moe.router", "attention.wkv_a", "attention.wq_a", "attention.wo.bias")
"""Parameters that tensor parallelism leaves whole, besides norms."""
HEADS = ("attention.sinks", "attention.wq.bias", "attention.wk.bias", "attention.wv.bias")
"""Vectors that it cuts."""


def preset(case: dict[str, Any]) -> str:
    """The configuration that a case's shape is laid over."""
    if "sliding_window" in case["model"]:
        return "gpt-oss-20b"
    if "kv_lora_rank" in case["model"]:
        return "deepseek-v3" if case["model"].get("n_group", 1) > 1 else "deepseek-v2-lite"
    if "num_experts" in case["model"]:
        return "qwen3-30b-a3b"
    return "qwen3-8b" if "head_dim" in case["model"] else "llama-tiny"


class Model:
    """Every layer of a case recorded on its own, then laid one after the other."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.slots: dict[tuple[str, str], int] = {}
        self.comms: dict[tuple[str, str, str], int] = {}
        graph = build(model_config(preset(case), case["model"], "test"), "torchtitan")
        self.tapes = [self.record(graph, layer.kind, first=layer.index == 1, below=layer.index > 0)
                      for layer in graph.layers]

    def params(self, graph: ModelGraph, number: int) -> dict[str, Param]:
        tp, made = self.case.get("tp", 1), {}
        for spec in graph.tensors[number]:
            cut = 1 if spec.name.endswith(("wo.weight", "w2.weight")) else 0
            if ".experts." in spec.name and "shared" not in spec.name:
                ep = self.case.get("ep", 1)
                narrow = self.case.get("etp", 1) if ep > 1 else tp
                parts = [ep, *(narrow if dim == "expert_ffn" else 1 for dim in spec.dims[1:])]
                shape = tuple(size // part for size, part in zip(spec.shape, parts, strict=True))
                made[spec.name] = Param(spec.name, shape, "bf16", trainable=True)
                continue
            parts = [tp if at == cut and (len(spec.shape) > 1 or spec.name in HEADS) and not spec.name.startswith(
                WHOLE) else 1 for at in range(len(spec.shape))]
            shape = tuple(size // part for size, part in zip(spec.shape, parts, strict=True))
            made[spec.name] = Param(spec.name, shape, self.case.get("compute", "bf16"), trainable=True)
        return made

    def record(self, graph: ModelGraph, number: int, *, first: bool, below: bool) -> RecordedLayer:
        case, kind = self.case, graph.kinds[number]
        options = TorchtitanOptions(early_stop=case.get("early_stop", False), repeat_kv=case.get("repeat_kv", False),
                                    disable_loss_parallel=case.get("disable_loss_parallel", False))
        mode = case.get("checkpoint", "none") if kind.block is None else "none"
        cp = case.get("cp", 1)
        run = LayerWorkload(case.get("batch", 1), case["seq"] // cp, case.get("compute", "bf16"),
                            self.params(graph, number),
                  "torchtitan", MODES.get(mode, mode), case.get("tp", 1), case.get("tp", 1) > 1, first=first,
                  input_requires_grad=below, options=options, cp=cp, ep=case.get("ep", 1),
                  etp=case.get("etp", 1))
        return torchtitan.record(kind, run, self.slots, self.comms)

    def events(self, *sections: Section) -> Events:
        names = {number: name for name, number in self.slots.items()}
        kinds = {number: kind for (kind, _, _), number in self.comms.items()}
        found: Events = []
        for op, _, slot, amount, _, _ in (row for section in sections for row in section.rows):
            if op in (Op.ALLOC, Op.FREE) and amount and not (amount < 0 and names[slot][1] == "unsharded_grad"):
                found.append((amount, names[slot][1]))
            elif op == Op.COLLECTIVE:
                found.append(f"{kinds[slot]} {amount}")
            elif op == Op.MARK and slot > 1:
                found.append(f"hook {slot}")
        return found

    def cast_first(self, layer: RecordedLayer) -> tuple[Events, Events]:
        """Casts of FSDP2's hook before the layer begins (Qwen3's rotary table), and the rest of forward."""
        events = self.events(layer.forward)
        cast = int("head_dim" in self.case["model"] and self.case.get("compute", "bf16") != "fp32")
        return events[:cast], events[cast:]

    def sections(self) -> Sections:
        stem, *layers, norm, head, loss = self.tapes
        found = [("stem", self.events(stem.forward))]
        for i, layer in enumerate(layers):
            before, forward = self.cast_first(layer)
            found[-1][1].extend(before)
            found += [(f"forward {i}", forward), (f"after {i}", self.events(layer.after))]
        found[-1][1].extend(self.events(norm.forward, norm.after, head.forward, head.after, loss.forward, loss.after))
        return found + backwards(self.tapes, self.events, self.events(loss.late))


@cache
def recorded(name: str) -> Sections:
    return [(at, events) for at, events in Model(CASES[name]["case"]).sections() if events]


def measured(name: str) -> Sections:
    """With an all-to-all of a ring as what it is, a message to the next rank (`shared/ring_attention.py`, send)."""
    def said(event: Any) -> Any:
        return event.replace("all_to_all", "send_recv") if isinstance(event, str) else event

    return [(section["at"], [said(event) for event in section["events"]])
            for section in CASES[name]["sections"] if section["events"]]


@pytest.mark.parametrize("name", CASES)
def test_every_event_of_every_section_is_the_measured_one(name: str) -> None:
    same_events(recorded(name), measured(name))


@pytest.mark.parametrize("name", CASES)
def test_running_maxima_and_net_bytes(name: str) -> None:
    same_summits(recorded(name), measured(name))


@pytest.mark.parametrize("name", CASES)
def test_bytes_born_by_category(name: str) -> None:
    same_births(recorded(name), CASES[name])


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_on_one_rank_and_on_several(name: str) -> None:
    """Messages of a ring and all-to-alls of experts, of one size here, are one kind: a measured event has no group."""
    as_measured(EXPERTS[name])


@pytest.mark.parametrize("name", OSS)
def test_gpt_oss_on_one_rank_and_on_several(name: str) -> None:
    as_measured(OSS[name])


def as_measured(case: dict[str, Any]) -> None:
    """Every event, with messages of a ring and all-to-alls of experts as one kind."""
    def said(events: Events) -> Events:
        return [event.replace("send_recv", "all_to_all") if isinstance(event, str) else event for event in events]

    recorded = [(at, said(events)) for at, events in Model(case["case"]).sections() if events]
    measured = [(section["at"], section["events"]) for section in case["sections"] if section["events"]]
    same_events(recorded, measured)
    same_summits(recorded, measured)
    same_births(recorded, case)
