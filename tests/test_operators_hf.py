"""Tapes of transformers models against event logs of real runs, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from eventlog import Events, born, bytes_of, grouped, sizes
from simcore.graph import ModelGraph, build, model_config
from simcore.models.blocks import Embedding, Head, LayerKind
from simcore.operators import hf
from simcore.recording import LayerTape, Run
from simcore.tape import Op, Param, Section

TRUTH = Path(__file__).parent / "truth" / "tape"
CASES: dict[str, Any] = {name: case for kind in ("hf", "families") for name, case in json.loads(
    (TRUTH / f"{kind}-torch-2.13.0-transformers-5.23.0.json").read_text(encoding="utf-8")).items()}


class Model:
    """Every layer of a case recorded on its own, then laid one after the other."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.slots: dict[tuple[str, str], int] = {}
        graph = build(model_config(case["preset"], case["overrides"], "test"), "hf")
        trains = "lora" not in case
        self.tapes: list[LayerTape] = []
        for layer in graph.layers:
            kind = graph.kinds[layer.kind]
            params = self.params(graph, layer.kind, kind)
            self.tapes.append(self.record(kind, params, first=layer.index == 1, trained_below=trains))
            trains = trains or any(p.trainable for p in params.values())

    def params(self, graph: ModelGraph, number: int, kind: LayerKind) -> dict[str, Param]:
        case, made = self.case, {}
        dtype, lora = case.get("compute", "bf16"), case.get("lora")
        tied = graph.architecture.tied and isinstance(kind.block, Embedding | Head)
        for spec in graph.tensors[number]:
            grouped = spec.module == "grouped"
            shape = (spec.shape[0] // case.get("ep", 1), *spec.shape[1:]) if grouped else spec.shape
            category = "ignored_grad" if grouped and case.get("experts") == "ignored" else "unsharded_grad"
            made[spec.name] = Param(spec.name, shape, dtype, lora is None, category, tied=tied)
            if lora and spec.module == "linear" and spec.path.rpartition(".")[2] in lora["targets"]:
                names = (f"{spec.path}.lora_a.weight", f"{spec.path}.lora_b.weight")
                shapes = ((lora["r"], spec.shape[1]), (spec.shape[0], lora["r"]))
                made |= {n: Param(n, s, dtype, trainable=True) for n, s in zip(names, shapes, strict=True)}
        return made

    def record(self, kind: LayerKind, params: dict[str, Param], *, first: bool, trained_below: bool) -> LayerTape:
        case = self.case
        options: tuple[tuple[str, str], ...] = (("experts", "unit"),) if case.get("experts") == "unit" else ()
        if "experts_implementation" in case:
            options = (("experts_implementation", case["experts_implementation"]),)
        run = Run(
            case.get("batch", 1), case["seq"], case.get("compute", "bf16"), params, case.get("loss", "hf"),
            "layer" if case.get("checkpoint") and kind.block is None else "none", ep=case.get("ep", 1), first=first,
            input_requires_grad=trained_below, options=(*options, ("inv_freq", case.get("inv_freq", "fp32"))))
        return hf.record(kind, run, self.slots, {})

    def events(self, *sections: Section) -> Events:
        names = {number: name for name, number in self.slots.items()}
        found: Events = []
        for op, _, slot, amount, _, _ in (row for section in sections for row in section.rows):
            if op in (Op.ALLOC, Op.FREE):
                found.append((amount, names[slot][1]))
            elif op == Op.COLLECTIVE:
                found.append(f"all_to_all {amount}")
            elif op == Op.MARK and slot > 1:
                found.append(f"hook {slot}")
        return found

    def sections(self) -> list[tuple[str, Events]]:
        stem, *layers, norm, head, loss = self.tapes
        found = [("stem", self.events(stem.forward))]
        for i, layer in enumerate(layers):
            found += [(f"forward {i}", self.events(layer.forward)), (f"after {i}", self.events(layer.after))]
        found[-1][1].extend(self.events(norm.forward, norm.after, *(x.late for x in layers), head.forward,
                                        loss.forward, head.after, loss.after))
        found.append(("loss", self.events(loss.seed, loss.backward, head.backward, norm.backward)))
        found += [(f"backward {i}", self.events(layers[i].backward)) for i in reversed(range(len(layers)))]
        found[-1][1].extend(self.events(stem.backward, loss.late))
        return found


@cache
def recorded(name: str) -> list[tuple[str, Events]]:
    return Model(CASES[name]["case"]).sections()


def measured(name: str) -> list[tuple[str, Events]]:
    return [(section["at"], section["events"]) for section in CASES[name]["sections"]]


@pytest.mark.parametrize("name", CASES)
def test_every_event_of_every_section_is_the_measured_one(name: str) -> None:
    for (at, mine), (where, truth) in zip(recorded(name), measured(name), strict=True):
        assert at == where
        assert grouped(sizes(mine)) == grouped(truth), at


@pytest.mark.parametrize("name", CASES)
def test_running_maxima_and_net_bytes(name: str) -> None:
    for (at, mine), (_, truth) in zip(recorded(name), measured(name), strict=True):
        ours, theirs = bytes_of(sizes(mine)), bytes_of(truth)
        assert sum(ours) == sum(theirs), at
        assert max(accumulate(ours, initial=0)) == max(accumulate(theirs, initial=0)), at


@pytest.mark.parametrize("name", CASES)
def test_bytes_born_by_category(name: str) -> None:
    for (at, mine), section in zip(recorded(name), CASES[name]["sections"], strict=True):
        assert born(mine) == section["born"], at


@pytest.mark.parametrize("name", CASES)
def test_only_parameter_gradients_survive(name: str) -> None:
    model = Model(CASES[name]["case"])
    alive = sum(sum(bytes_of(sizes(events))) for _, events in model.sections())
    assert alive == sum(num_bytes for tape in model.tapes for _, _, num_bytes in tape.grads)


@pytest.mark.parametrize("name", CASES)
def test_slots_balance_layer_by_layer(name: str) -> None:
    """Every birth has a death in the slot and layer that it was posted to."""
    model = Model(CASES[name]["case"])
    balance: Counter[tuple[int, int]] = Counter()
    for i, tape in enumerate(model.tapes):
        for section in (tape.forward, tape.after, tape.late, tape.seed, tape.backward):
            for op, offset, slot, amount, _, _ in section.rows:
                if op in (Op.ALLOC, Op.FREE):
                    balance[len(model.tapes) - 2 if offset == hf.TIED_HEAD else i + offset, slot] += amount
        for _, slot, num_bytes in tape.grads:
            balance[i, slot] -= num_bytes
    assert not +balance
    assert not -balance


def test_tensors_are_in_the_order_of_registration() -> None:
    graph = build(model_config("nemotron-3-tiny", {}, "test"), "hf")
    mamba = next(i for i, kind in enumerate(graph.kinds) if kind.name == "mamba")
    assert [spec.name for spec in graph.tensors[mamba]] == [
        "norm.weight", "mixer.dt_bias", "mixer.A_log", "mixer.D", "mixer.conv1d.weight", "mixer.conv1d.bias",
        "mixer.in_proj.weight", "mixer.norm.weight", "mixer.out_proj.weight"]


def test_products_of_a_layer_cost_what_they_must() -> None:
    """Forward GEMMs are two operations a weight and token, backward twice that."""
    model = Model(CASES["llama"]["case"])
    graph = build(model_config("llama-tiny", {"num_hidden_layers": 2}, "test"), "hf")
    weights = sum(spec.numel for spec in graph.tensors[1] if spec.module == "linear")
    gemm = [sum(row[3] for row in section.rows if row[0] == Op.COMPUTE and row[2] == 0)
            for section in (model.tapes[1].forward, model.tapes[1].backward)]
    assert gemm == [2 * 512 * weights, 4 * 512 * weights]
