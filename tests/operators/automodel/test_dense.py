"""Llama, Qwen2 and Qwen3 in Automodel: names, events and units beside its own, see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest

import small
from checkout import ROOT
from eventlog import grouped
from simcore.frameworks.adapter import LoraChoice
from simcore.frameworks.automodel.lora import adapters
from simcore.frameworks.fsdp2.strategy import Fsdp2Strategy
from simcore.frameworks.setup import prepare
from simcore.inputs.scenario import Scenario
from simcore.models.blocks import Moe
from simcore.models.graph import ModelGraph, build, model_config
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.implementation import record
from simcore.operators.automodel.options import RELEASE_0_7_0, AutomodelOptions, Dispatcher
from simcore.operators.automodel.router import softmax_gate
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.rows import Op
from simcore.recording.tape import GRAD_HIDDEN, HIDDEN, Node, Param, Section, Tape, Tensor
from simcore.simulate import simulate

TRUTH = ROOT / "tests/truth" / "tape" / "automodel-dense-0.7.0-torch-2.13.0.json"
STORED: dict[str, Any] = json.loads(TRUTH.read_text(encoding="utf-8"))
EAGER: dict[str, Any] = json.loads(
    (TRUTH.parent / "automodel-eager-0.7.0-torch-2.13.0.json").read_text(encoding="utf-8"))
QUACK: dict[str, Any] = json.loads(
    (TRUTH.parent / "automodel-quack-0.7.0-torch-2.13.0.json").read_text(encoding="utf-8"))
PRESETS = {"llama": "llama-tiny", "qwen2": "qwen2.5-7b", "qwen3": "qwen3-8b", "qwen3_moe": "qwen3-30b-a3b",
           "mixtral": "mixtral-8x7b"}
EXPERTS = {"qwen3_moe": ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"),
           "mixtral": ("num_local_experts", "num_experts_per_tok")}
DENSE = ("llama", "qwen2", "qwen3")
OWN = (*DENSE, "qwen3_moe")


def _fields(family: str) -> dict[str, Any]:
    shape: dict[str, Any] = STORED["shape"]
    return shape | {key: STORED["experts"][key] for key in EXPERTS.get(family, ())}


def _graph(family: str, **given: Any) -> ModelGraph:
    fields = {key: value for key, value in (_fields(family) | given).items() if key != "router_aux_loss_coef"}
    return build(model_config(PRESETS[family], fields, "test"), "automodel")


@pytest.mark.parametrize("family", OWN)
def test_tensors_are_those_that_automodel_registers(family: str) -> None:
    graph = _graph(family)
    found = []
    for layer in graph.layers:
        prefix = f"{layer.path}." if graph.kinds[layer.kind].block is None else ""
        found += [[prefix + t.name, list(t.shape)] for t in graph.tensors[layer.kind]]
    assert found == STORED["registered"][family]


def _record(family: str, batch: int, seq: int, checkpoint: str,
            options: AutomodelOptions | None = None) -> RecordedLayer:
    graph = _graph(family, **({"mlp_only_layers": [0]} if family == "qwen3_moe" else {}))
    kind = graph.layers[1].kind
    params = {t.name: Param(t.name, t.shape, "bf16", trainable=True) for t in graph.tensors[kind]}
    run = LayerWorkload(batch, seq, "bf16", params, checkpoint=checkpoint,
                        options=options or AutomodelOptions())
    return record(graph.kinds[kind], run, {}, {})


def _changes(section: Section) -> list[int]:
    return [row[3] for row in section.rows if row[0] in (Op.ALLOC, Op.FREE) and row[3]]


@pytest.mark.parametrize("name", STORED["layers"])
def test_a_layer_allocates_what_automodel_s_does(name: str) -> None:
    row = STORED["layers"][name]
    case = row["case"]
    layer = _record(case["family"], case["batch"], case["seq"], "full" if case["checkpoint"] else "none")
    assert grouped(_changes(layer.forward)) == grouped(row["forward"])
    assert grouped(_changes(layer.backward)) == grouped(row["backward"])


@pytest.mark.parametrize("name", QUACK)
def test_quack_turns_in_place_as_automodel_lets_it(name: str) -> None:
    row = QUACK[name]
    case = row["case"]
    layer = _record(case["family"], case["batch"], case["seq"], "full" if case["checkpoint"] else "none",
                    AutomodelOptions(rope="quack"))
    assert grouped(_changes(layer.forward)) == grouped(row["forward"])
    assert grouped(_changes(layer.backward)) == grouped(row["backward"])


@pytest.mark.parametrize("name", EAGER)
def test_eager_attention_allocates_what_automodel_s_does(name: str) -> None:
    row = EAGER[name]
    case = row["case"]
    layer = _record(case["family"], case["batch"], case["seq"], "full" if case["checkpoint"] else "none",
                    AutomodelOptions(attn_implementation="eager"))
    assert grouped(_changes(layer.forward)) == grouped(row["forward"])
    assert grouped(_changes(layer.backward)) == grouped(row["backward"])


@pytest.mark.parametrize("family", OWN)
def test_a_checkpointed_layer_keeps_what_its_four_parts_are_given(family: str) -> None:
    """Inputs of two norms, attention and MLP; of these the output of the layer before is counted there."""
    kept = sum(_changes(_record(family, 1, 192, "full", RELEASE_0_7_0).forward))
    assert kept == 4 * 2 * 192 * STORED["shape"]["hidden_size"]


# ---- Qwen3-MoE's gate ------------------------------------------------------------------------------------------------
SMALL = 64
"""Numbers, and one of 8 bytes for each of 8 experts."""


@pytest.mark.parametrize("name", [name for name in STORED["gates"] if "unbalanced" not in name])
def test_a_gate_allocates_what_automodel_s_does(name: str) -> None:
    row = STORED["gates"][name]
    graph = _graph("qwen3_moe", **row["case"])
    kind = graph.kinds[graph.layers[1].kind]
    block = kind.branches[1].block
    assert isinstance(block, Moe)
    weight = Param("gate.weight", (8, block.hidden), "bf16", trainable=True)
    tape = Tape({}, {})
    x: Tensor | None = tape.external((192, block.hidden), "bf16", HIDDEN, -1)
    assert x is not None
    x.node = leaf = Node()
    env = Env(tape, LayerWorkload(1, 192, "bf16", {"gate.weight": weight}), AutomodelOptions())
    weights: Tensor | None = softmax_gate(env, x, block, "gate")[0]
    assert weights is not None
    forward = _changes(tape.cut())
    tape.seed(weights, tape.external(weights.shape, "bf16", GRAD_HIDDEN, 1))
    node, weights = weights.node, None  # the graph lives on, the weights do not
    assert node is not None
    tape.cut()
    tape.backward()
    backward = _changes(tape.cut())
    assert leaf.grads
    assert grouped(forward) == grouped([change for change in row["forward"] if abs(change) > SMALL])
    assert grouped(backward) == grouped([change for change in row["backward"] if abs(change) > SMALL])


@pytest.mark.parametrize("checkpoint", ["none", "full"])
@pytest.mark.parametrize("ep", [1, 4])
@pytest.mark.parametrize("dispatcher", ["deepep", "hybridep", "torch"])
def test_backward_of_experts_leaves_only_gradients(checkpoint: str, ep: int, dispatcher: Dispatcher) -> None:
    graph = _graph("qwen3_moe")
    kind = graph.layers[1].kind
    params = {t.name: Param(t.name, (t.shape[0] // ep, *t.shape[1:]) if t.dims[0] == "experts" else t.shape, "bf16",
                            trainable=True) for t in graph.tensors[kind]}
    run = LayerWorkload(1, 192, "bf16", params, checkpoint=checkpoint, ep=ep, rows_per_token=2 << 16,
              options=replace(RELEASE_0_7_0, dispatcher=dispatcher))
    layer = record(graph.kinds[kind], run, {}, {})
    live = sum(sum(_changes(s)) for s in (layer.forward, layer.after, layer.late, layer.backward))
    assert live == sum(num_bytes for _, _, num_bytes in layer.grads)


# ---- adapters --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", STORED["adapted"])
def test_adapters_are_those_that_automodel_makes(name: str) -> None:
    row = STORED["adapted"][name]
    family = row["case"]["family"]
    config = model_config(PRESETS[family], _fields(family), "test")
    graph = build(config, "hf" if family == "mixtral" else "automodel")
    found = []
    for layer in graph.layers:
        kind = graph.kinds[layer.kind]
        made = adapters(kind, graph.tensors[layer.kind], LoraChoice(8, tuple(row["case"]["targets"])))
        prefix = f"{layer.path}." if kind.block is None else "lm_head." if family == "mixtral" else ""
        found += [[prefix + t.name, list(t.shape)] for t in made]
    assert found == row["adapters"]


# ---- units -----------------------------------------------------------------------------------------------------------
ROOT_GATHERS = {False: "root", True: ""}


def _asked(case: dict[str, Any]) -> Scenario:
    overrides = _fields(case["family"]) | {"tie_word_embeddings": case.get("tied", False)}
    given: dict[str, Any] = {"model": {"config": PRESETS[case["family"]], "overrides": overrides}}
    given["options"] = {key: case[key] for key in ("reshard_after_forward", "enable_fsdp2_prefetch") if key in case}
    if case.get("frozen"):
        given |= {"method": "lora", "lora": {"target_modules": ["*_proj"]}}
    asked = small.scenario("automodel", {"dp_shard": 8, "ep": case.get("ep", 1)}, **given).normalised()
    return Scenario.model_validate(asked | ({"implementation": "hf"} if case.get("hf") else {}))


@pytest.mark.parametrize("name", [name for name in STORED["wrapped"] if "ahead" not in name])
def test_units_are_those_that_automodel_wraps(name: str) -> None:
    row = STORED["wrapped"][name]
    _, table = prepare(_asked(row["case"]))
    found = sorted([u.name, bool(u.reshard_after_forward)] for u in table.units)
    assert found == sorted([u["unit"] or ROOT_GATHERS["ep" in row["case"]], u["reshards"]] for u in row["units"])


def test_layers_are_gathered_ahead_as_automodel_chains_them() -> None:
    """One layer ahead in forward, two in backward; tables are gathered in the order of the step."""
    row = STORED["wrapped"]["llama ahead"]
    _, table = prepare(_asked(row["case"]))
    assert isinstance(table.strategy, Fsdp2Strategy)
    chain = [unit.name for unit in table.units if unit.explicit]
    for unit in row["units"]:
        at = chain.index(unit["unit"]) if unit["unit"] in chain else len(chain)
        behind = [chain[at - n] for n in range(1,
                                               table.strategy.prefetch_backward + 1) if at - n >= 0 and at < len(chain)]
        assert unit["ahead"] == [chain[at + 1:at + 1 + table.strategy.prefetch], behind]


@pytest.mark.parametrize(("options", "most"), [
    ({}, 1), ({"enable_fsdp2_prefetch": True}, 2),
    ({"enable_fsdp2_prefetch": True, "fsdp2_backward_prefetch_depth": 1}, 1),
    ({"enable_fsdp2_prefetch": True, "reshard_after_forward": True, "fsdp2_backward_prefetch_depth": 3}, 3)])
def test_more_is_gathered_at_once_in_backward(options: dict[str, Any], most: int) -> None:
    """The last layer is whole when backward begins: buffers of those ahead of it are all that there are."""
    program = small.program_of("automodel", {"dp_shard": 2}, model="llama-tiny", options=options)
    posted = [(phase, amount) for _, phase, amount in small.postings(program, "all_gather_output")]
    held = list(accumulate(1 if amount > 0 else -1 for _, amount in posted))
    assert max(count for count, (phase, _) in zip(held, posted, strict=True) if phase == "backward") == most


@pytest.mark.parametrize("name", [name for name in STORED["wrapped"] if "frozen" not in name])
def test_a_rank_holds_what_automodel_leaves_on_it(name: str) -> None:
    row = STORED["wrapped"][name]
    report = simulate(_asked(row["case"]))
    assert sum(part.num_params for part in report.ranks[0].at_rest.values()) == row["held"]


@pytest.mark.parametrize("family", [*OWN, "mixtral"])
def test_own_code_runs_where_the_registry_has_some(family: str) -> None:
    job, _ = prepare(_asked({"family": family}))
    own = [name.lower().removesuffix("forcausallm") for name in STORED["own"]]
    assert job.graph.implementation == ("automodel" if family.replace("_", "") in own else "hf")


def test_nothing_is_cast_on_the_way_in_or_out() -> None:
    units = [unit for row in STORED["wrapped"].values() for unit in row["units"]]
    assert {(tuple(u["policy"]), u["casts"]) for u in units} == {(("bfloat16", "float32", "None"), False)}


def test_what_a_checkpoint_wraps() -> None:
    parts = ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm")
    for family in OWN:
        assert STORED["wrapped"][family]["checkpoints"] == [f"model.layers.{i}.{p}" for i in range(3) for p in parts]
    for name in ("mixtral", "qwen3 by transformers", "qwen3_moe over 4"):
        assert STORED["wrapped"][name]["checkpoints"] == [f"model.layers.{i}" for i in range(3)]
