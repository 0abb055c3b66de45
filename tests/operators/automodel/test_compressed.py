"""Layers of NeMo Automodel's DeepSeek-V4 as measured, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest

from checkout import ROOT
from eventlog import grouped
from simcore.models.blocks import Moe
from simcore.models.graph import ModelGraph, build, model_config
from simcore.operators.automodel import moe as module
from simcore.operators.automodel.compressed.modules import Modules
from simcore.operators.automodel.compressed.streams import last_sum
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.implementation import record
from simcore.operators.automodel.layers import mlp
from simcore.operators.automodel.options import RELEASE_0_7_0
from simcore.operators.automodel.tensors import tensors
from simcore.operators.shared import aten
from simcore.recording.layer import LayerWorkload
from simcore.recording.rows import Op
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Node, Param, Section, Tape, Tensor

TRUTH = ROOT / "tests/truth" / "tape" / "automodel-compressed-0.7.0-torch-2.13.0.json"
STORED: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))


def graph(**changed: Any) -> ModelGraph:
    return build(model_config("deepseek-v4-flash", STORED["shape"] | changed, "test"), "automodel")


def test_tensors_are_those_that_automodel_registers() -> None:
    made, stored = graph(), STORED["registered"]
    parameters, wide, buffers = list[Any](), list[str](), list[Any]()
    for layer in made.layers:
        prefix = f"{layer.path}." if made.kinds[layer.kind].block is None else ""
        for spec in made.tensors[layer.kind]:
            if spec.is_buffer:
                buffers.append([prefix + spec.name, list(spec.shape), {"int64": "torch.int64", "fp32": "torch.float32"}[
                    spec.stored]])
            else:
                parameters.append([prefix + spec.name, list(spec.shape)])
                wide += [prefix + spec.name] * (spec.stored == "fp32")
    assert parameters == stored["parameters"]
    assert wide == stored["fp32"]
    assert [*buffers, *stored["buffers"][-2:]] == stored["buffers"]


def _stand_in(env: Env, x: Tensor, weights: Tensor, _indices: Tensor, _block: Moe, path: str) -> Tensor:
    out = mlp(env, x, path, gated=True)
    return aten.mul(env.tape, out, aten.sum_last(env.tape, weights, keepdim=True))


def changes(section: Section) -> list[int]:
    return [row[3] for row in section.rows if row[0] in (Op.ALLOC, Op.FREE) and row[3]]


def recorded(case: dict[str, Any]) -> tuple[list[int], list[int], set[str]]:
    """Births and deaths forward and backward, and names of what gets a gradient."""
    made = graph(**case.get("overrides", {}))
    kind = made.kinds[made.layers[1 + case["layer"]].kind]
    specs = [spec for spec in tensors(kind) if not spec.is_buffer and ".experts." not in spec.name]
    params = {t.name: Param(t.name, t.shape, t.stored or "bf16", trainable=t.trainable) for t in specs}
    experts = kind.branches[1].block
    assert isinstance(experts, Moe)
    hidden, ffn = kind.hidden, experts.expert_ffn
    for name, shape in (("gate", (ffn, hidden)), ("up", (ffn, hidden)), ("down", (hidden, ffn))):
        at = f"mlp.experts.{name}_proj.weight"
        params[at] = Param(at, shape, "bf16", trainable=True)
    options = replace(RELEASE_0_7_0, sparse=case["backend"] == "tilelang")
    run = LayerWorkload(case["batch"], case["seq"], "bf16", params, options=options,
                        checkpoint="full" if case.get("checkpoint") else "none")
    layer = record(kind, run, {}, {})
    return changes(layer.forward), changes(layer.backward), {name for name, param in params.items() if param.trainable}


def without_loads(events: list[int]) -> list[int]:
    """Events without the sums of a router's choices, a number an expert, which it keeps for its next step."""
    return [change for change in events if abs(change) != 8 * STORED["shape"]["n_routed_experts"]]


@pytest.mark.parametrize("name", STORED["layers"])
def test_a_layer_allocates_what_automodel_s_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_experts", _stand_in)
    row = STORED["layers"][name]
    forward, backward, trained = recorded(row["case"])
    assert trained == set(row["grads"])
    assert grouped(forward) == grouped(without_loads(row["forward"]))
    assert grouped(backward) == grouped(without_loads(row["backward"]))


DRAWN: dict[str, Any] = json.loads((TRUTH.parent / "drawn-compressed-0.7.0-torch-2.13.0.json").read_text(
    encoding="utf-8"))


def test_drawn_layers_allocate_what_automodel_s_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_experts", _stand_in)
    different = []
    for number, row in enumerate(DRAWN["rows"]):
        forward, backward = map(without_loads, recorded(row["case"])[:2])
        found = {"case": row["case"], "peak": max(accumulate([*forward, *backward])), "left": sum(forward),
                 "allocated": [sum(size for size in part if size > 0) for part in (forward, backward)]}
        different += [(number, {key: (found[key], row[key]) for key in row if found[key] != row[key]})] * (found != row)
    assert different == []
    assert len(DRAWN["rows"]) == 24


def test_the_streams_are_summed_as_before_the_last_norm() -> None:
    """`hc_head` alone, in bf16."""
    made, row = graph(), STORED["end"]
    kind = next(kind for kind in made.kinds if kind.name == "final_norm")
    params = {t.name: Param(t.name, t.shape, t.stored or "bf16", trainable=True) for t in tensors(kind)}
    tape, case = Tape({}, {}), row["case"]

    def unused(*_: Any) -> Any:
        raise AssertionError

    at = Modules(tape, LayerWorkload(case["batch"], case["seq"], "bf16", params), unused, unused, params.__getitem__,
                 by_kernels=False, kept=unused, units=False, agrees=False)
    shape = (case["batch"], case["seq"], STORED["shape"]["hc_mult"], kind.hidden)
    x = tape.external(shape, "bf16", HIDDEN, -1)
    x.node = leaf = Node()
    out = last_sum(at, x)
    out.disown()
    forward = tape.cut()
    del x
    tape.cut()
    tape.seed(out, tape.external(out.shape, out.dtype, GRAD_HIDDEN, 1))
    tape.backward()
    leaf.grads.pop(0).disown()
    assert grouped(changes(forward)) == grouped(row["forward"])
    assert grouped(changes(tape.cut())) == grouped(row["backward"])
