"""Adapters against PEFT, Automodel and Bridge: dropout, DoRA and rsLoRA, every allocation in its order."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import pytest

import eventlog
import small
from checkout import ROOT
from simcore.errors import IllegalLayout
from simcore.models.blocks import LayerKind
from simcore.operators.automodel.options import AutomodelOptions
from simcore.operators.hf.layers import linear
from simcore.operators.hf.options import HfOptions
from simcore.operators.megatron.ops.adapter import adapted, adapter_input, mm, with_adapter
from simcore.operators.megatron.ops.context import Context
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.recording.layer import LayerWorkload
from simcore.recording.number_formats import PackedWeights
from simcore.recording.options import LoraDropout
from simcore.recording.tape import Op, Param, Tape, Tensor
from simcore.results.report import Report
from simcore.simulate import simulate

PEFT: dict[str, Any] = json.loads((ROOT / "tests/truth/adapters/peft-0.21.2.json").read_text(encoding="utf-8"))
AUTOMODEL: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/adapters/automodel-0.7.0.json").read_text(encoding="utf-8"))
BRIDGE: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/adapters/bridge-0.3.1.json").read_text(encoding="utf-8"))["cases"]
STEPS: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/adapters/steps-peft-0.21.2.json").read_text(encoding="utf-8"))["cases"]
SERVED = [name for name, case in AUTOMODEL["cases"].items() if "found" in case]
OUT, IN = PEFT["shape"]
RANK = 8
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
NAMES = {"peft": ("lora_a.weight", "lora_b.weight", "lora_magnitude_vector.weight"),
         "automodel": ("lora_A.weight", "lora_B.weight", "lora_magnitude")}


def params_of(case: dict[str, Any]) -> dict[str, Param]:
    """Parameters of a linear with the adapter of a library, by their names here."""
    kind, adapter = case.get("base", "bf16"), case.get("adapters", "bf16")
    packed = PackedWeights("nf4", 64, double_quant=case.get("double_quant", True), storage="uint8")
    names = NAMES[case.get("library", "peft")]
    shapes = dict(zip(names, ((RANK, IN), (OUT, RANK), (OUT,)), strict=True))
    stored = "bf16" if kind == "nf4" else kind
    made = [Param("one.weight", (OUT, IN), stored, False, "sharded_param", packed=packed if kind == "nf4" else None)]
    made += [Param(f"one.{name}", shapes[name], adapter, True, "sharded_grad")
             for name in names[:3 if case.get("dora") else 2]]
    made += [Param("one.bias", (OUT,), stored, False, "sharded_param")] * case.get("bias", False)
    return {param.name: param for param in made}


def changes(tape: Tape, start: int) -> list[int]:
    return [row[3] for row in tape.rows[start:] if row[0] in (Op.ALLOC, Op.FREE)]


def passed(case: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Signed bytes of a forward and of its backward."""
    tape, params = Tape({}, {}), params_of(case)
    place: LoraDropout = case.get("position", "pre") if case.get("dropout") else ""
    automodel = AutomodelOptions(memory_efficient_lora=False) if case.get("apart") else None
    options = HfOptions(autocast=case.get("autocast", False), lora_dropout=place, automodel=automodel)
    run = LayerWorkload(2, PEFT["rows"] // 2, "fp32" if case.get("x") == "fp32" and not case.get("autocast") else
                        "bf16", params, options=options)
    x = tape.empty((2, PEFT["rows"] // 2, IN), case.get("x", "bf16"), "x")
    source = Param("x", (1,), "bf16", True, "sharded_grad")
    x.node = None if case.get("first") else tape.node((source,), (), lambda tape, grads, saved: [None])
    start = len(tape.rows)
    region = partial(linear, tape, run, "one", x)  # holds the input for as long as a replay may need it
    out = tape.checkpoint(region) if case.get("recompute") else region()
    tape.casts.clear()
    forward = changes(tape, start)
    grad = tape.empty(out.shape, out.dtype, "grad")
    start = len(tape.rows)
    tape.seed(out, grad)
    node = out.node
    del out, x, region
    tape.backward()
    del node, grad
    return forward, changes(tape, start)


@pytest.mark.parametrize("name", PEFT["cases"])
def test_a_linear_allocates_what_peft_allocates(name: str) -> None:
    case = PEFT["cases"][name]
    forward, backward = passed(case)
    assert eventlog.grouped(forward) == eventlog.grouped(case["found"]["forward"])
    assert eventlog.grouped(backward) == eventlog.grouped(case["found"]["backward"])


@pytest.mark.parametrize("name", PEFT["cases"])
def test_trained_parameters_are_those_of_peft(name: str) -> None:
    case = PEFT["cases"][name]
    ours = {tuple(p.shape): f"torch.{dict(bf16='bfloat16', fp32='float32')[p.dtype]}" for p in params_of(case).values()
            if p.trainable}
    assert ours == {tuple(shape): dtype for shape, dtype in case["found"]["parameters"].values()}


@pytest.mark.parametrize("name", SERVED)
def test_a_linear_allocates_what_automodel_allocates(name: str) -> None:
    case = AUTOMODEL["cases"][name]
    forward, backward = passed(case | {"library": "automodel"})
    assert eventlog.grouped(forward) == eventlog.grouped(case["found"]["forward"])
    assert eventlog.grouped(backward) == eventlog.grouped(case["found"]["backward"])


def test_automodel_refuses_dora_over_packed_weights_alone() -> None:
    refused = {name: case["refused"] for name, case in AUTOMODEL["cases"].items() if "refused" in case}
    assert refused
    assert all("dora" in name and "nf4" in name for name in refused)
    with pytest.raises(IllegalLayout, match=re.escape("DoRA is not supported for quantized linear layers")) as found:
        small.prepared("automodel", {"dp_shard": 2}, model="llama-tiny", method="qlora", lora={"use_dora": True})
    assert {message.rstrip(".") for message in refused.values()} == {found.value.problems[0].message}


def bridge_params(case: dict[str, Any]) -> dict[str, Param]:
    """A frozen linear, and Bridge's adapter of it as one rank holds it."""
    tp, row = case.get("tp", 1), case["row"]
    shapes = {"linear_in.weight": (RANK if row else RANK // tp, IN),
              "linear_out.weight": (OUT // tp if row else OUT, RANK), "weight_magnitude": (OUT,)}
    made = [Param(f"one.adapter.{name}", shape, "bf16", True, "sharded_grad") for name, shape in shapes.items()]
    base = Param("one.weight", (OUT, IN), "bf16", False, "sharded_param")
    return {param.name: param for param in (*made[:3 if case.get("dora") else 2], base)}


def bridge_linear(c: Context, x: Tensor, case: dict[str, Any]) -> Tensor:
    """The adapter alone, or with DoRA the frozen linear and its adapter."""
    pair = c.pair("one")
    assert pair is not None
    base = mm(c, x, c.param("one.weight"), "base") if case.get("dora") else None
    part = adapted(c, "one", adapter_input(c, x), pair, row_parallel=case["row"])
    return with_adapter(c, "one", base, part, row_parallel=case["row"]) if base else part


@pytest.mark.parametrize("name", BRIDGE)
def test_an_adapter_allocates_what_bridge_allocates(name: str) -> None:
    case, tape = BRIDGE[name], Tape({}, {})
    run = LayerWorkload(1, PEFT["rows"], "bf16", bridge_params(case), tp=case.get("tp", 1),
                        options=MegatronOptions(lora_dropout=case.get("position", "")))
    c = Context(tape, run, LayerKind("one", "llama", IN))
    x = tape.empty((PEFT["rows"], IN), "bf16", "x")
    x.node = tape.node((Param("x", (1,), "bf16", True, "sharded_grad"),), (), lambda tape, grads, saved: [None])
    start = len(tape.rows)
    out = bridge_linear(c, x, case)
    forward = changes(tape, start)
    grad = tape.empty(out.shape, "bf16", "grad")
    start = len(tape.rows)
    tape.seed(out, grad)
    node = out.node
    del out, x
    tape.backward()
    del node, grad
    assert eventlog.grouped(forward) == eventlog.grouped(case["found"]["forward"])
    assert eventlog.grouped(changes(tape, start)) == eventlog.grouped(case["found"]["backward"])


@pytest.mark.parametrize("name", BRIDGE)
def test_trained_parameters_are_those_of_bridge(name: str) -> None:
    theirs = {path.partition("adapter.")[2] or path: tuple(shape)
              for path, (shape, _) in BRIDGE[name]["found"]["parameters"].items()}
    assert {param.name.removeprefix("one.adapter."): param.shape for param in bridge_params(BRIDGE[name]).values()
            if param.trainable} == theirs


def stepped(case: dict[str, Any]) -> Report:
    """A step of the small Llama of `tests/truth/probe_adapter_steps.py`."""
    lora = {"rank": RANK, "target_modules": ALL, "dropout": case.get("dropout", 0.0),
            "use_dora": case.get("dora", False), "use_rslora": case.get("rslora", False),
            "dtype": case.get("adapters", "auto")}
    base = {"method": "lora", "precision": {"params": case["base"]}} if "base" in case else {"method": "qlora"}
    asked = {"autocast": "autocast", "prepare_model_for_kbit_training": "kbit"}
    return simulate(small.scenario(
        "ddp", model={"config": "llama-tiny", "overrides": {"vocab_size": 512, "num_hidden_layers": 3}}, lora=lora,
        optimizer={"implementation": "fused"}, recompute="full" if case["recompute"] else "none",
        options={option: True for option, word in asked.items() if case.get(word)}, **base))


@pytest.mark.parametrize("name", STEPS)
def test_a_step_allocates_what_peft_allocates(name: str) -> None:
    """At the peaks of forward and of the step, and when it is over."""
    case = STEPS[name]
    assert small.allocated(stepped(case)) == case["found"]


def test_rank_stabilised_scaling_is_listed_as_without_effect() -> None:
    _, table = small.prepared("ddp", model="llama-tiny", method="lora", lora={"use_rslora": True})
    assert (table.default("training.lora.use_rslora") or "").startswith("no effect on bytes and time")
    _, plain = small.prepared("ddp", model="llama-tiny", method="lora")
    assert plain.default("training.lora.use_rslora") is None


@pytest.mark.parametrize(("framework", "mesh", "place"), [
    ("ddp", {}, "pre"), ("fsdp2", {"dp_shard": 2}, "pre"), ("zero3", {"dp_shard": 2}, "pre"),
    ("automodel", {"dp_shard": 2}, "post"), ("megatron", {"dp_shard": 2}, "pre")])
def test_dropout_is_where_the_library_has_it(framework: str, mesh: dict[str, int], place: str) -> None:
    model = "llama-tiny" if framework != "megatron" else small.TINY
    _, table = small.prepared(framework, mesh, model=model, method="lora", lora={"dropout": 0.05})
    assert table.options.lora_dropout == place
    assert table.default("training.lora.dropout_position") == place
    assert small.prepared(framework, mesh, model=model, method="lora")[1].options.lora_dropout == ""
