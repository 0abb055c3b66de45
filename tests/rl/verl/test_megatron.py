"""A step of verl's workers over Megatron: mbridge's export to the byte, who is where in each phase, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from checkout import ROOT
from rl.step.test_phases import GIB, POLICY_OF, owned, turn
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.results.report import Report
from simcore.rl.step.journal import Journal
from simcore.rl.step.phases import ENGINE, FIXED, POLICY, REFERENCE
from simcore.rl.verl.mbridge import Exported, highest, of_placed, pieces
from simcore.rl.verl.megatron import Moves, beside_engine, megatron_step
from simcore.rl.verl.streams import Shared
from simcore.simulate import simulate
from small import plan_of
from vllm.test_engine import H100

TRUTH: dict[str, Any] = json.loads((ROOT / "tests/truth/mbridge/0.15.1.json").read_text(encoding="utf-8"))
BASE: dict[str, Any] = {
    "name": "v", "workload": "grpo", "model": "llama-tiny", "framework": "megatron", "topology": "dgx-h100",
    "mesh": {"dp_shard": 2, "tp": 2, "pp": 2}, "training": {"seq_len": 256, "global_batch_size": 16},
    "framework_options": {"cross_entropy_loss_fusion": False},
    "rl": {"trainer": "verl", "prompts": 4, "generations": 8, "reference": "host"},
    "generation": {"tp": 1, "gpu_memory_utilization": 0.6, "max_model_len": 256, "sleep_level": 2},
}  # fmt: skip
CORE = replace(POLICY_OF, fixed={"main_param": 5 * GIB}, grads={"main_grad": 7 * GIB},
               training={"main_grad": 7 * GIB, "activation": 13 * GIB})
GRADS = "policy, gradients"


def simulated(**changed: Any) -> Report:
    data = json.loads(json.dumps(BASE))
    for name, value in changed.items():
        data[name] = data.get(name, {}) | value if isinstance(value, dict) else value
    return simulate(parse_scenario(parse_document(json.dumps(data), "v.json")))


def step(*, params: bool, optimizer: bool, on_device: bool = False, policy: Any = CORE) -> Journal:
    return megatron_step(policy, turn(sleep_level=2), H100, Moves(params, optimizer, Shared(2 * GIB),
                                                                  refers_on_device=on_device))


def parameters(case: dict[str, int]) -> Iterator[Exported]:
    """The parameters of a case, as `probe_mbridge.py` makes them."""
    hidden, ffn, vocab, tp = (case[name] for name in ("hidden", "ffn", "vocab", "tp"))
    heads, all_heads = TRUTH["heads"] * TRUTH["dim"], (TRUTH["heads"] + 2 * TRUTH["kv"]) * TRUTH["dim"]
    mesh, experts = cast("Any", SimpleNamespace(**case)), case["experts"]

    def made(name: str, numel: int, cut: bool = True, copies: int = 1) -> list[Exported]:
        placed = SimpleNamespace(spec=SimpleNamespace(name=name, numel=numel, copies=copies),
                                 used_shape=(numel // (tp if cut else 1),))
        return [of_placed(cast("Any", placed), mesh)] * max(1, copies // case["ep"] if copies > 1 else 1)

    yield from made("embedding.word_embeddings.weight", vocab * hidden)
    for _ in range(case["layers"]):
        yield from made("self_attention.linear_proj.weight", hidden * heads)
        yield from made("self_attention.linear_qkv.layer_norm_weight", hidden, cut=False)
        yield from made("self_attention.linear_qkv.weight", all_heads * hidden)
        at = "mlp.experts." if experts else "mlp."
        yield from made(f"{at}linear_fc1.weight", 2 * ffn * hidden, not experts, max(1, experts))
        yield from made(f"{at}linear_fc2.weight", ffn * hidden, not experts, max(1, experts))
    yield from made("decoder.final_layernorm.weight", hidden, cut=False)
    yield from made("output_layer.weight", vocab * hidden)


def test_an_export_holds_what_mbridges_own_holds() -> None:
    for case in TRUTH["cases"]:
        assert highest(list(parameters(case))) == case["highest"], case


def test_gates_and_ups_are_passed_on_apart() -> None:
    plan = plan_of("megatron", {"tp": 2, "ep": 2, "etp": 1, "dp_shard": 2}, model={
        "config": "qwen3-30b-a3b", "overrides": {"num_hidden_layers": 1}})
    whole = sum(placed.spec.numel * placed.spec.copies for layer in plan.layers for placed in plan.of_layer(layer))
    found = list(pieces([plan]))
    assert sum(found) == 2 * whole
    assert found.count(768 * 2048 * 2) == 3 * 128


def test_parameters_go_with_their_gradients_and_main_parameters_with_the_states() -> None:
    stays, goes = step(params=False, optimizer=False), step(params=True, optimizer=True)
    assert [owned(stays, "generation", who) // GIB for who in (POLICY, FIXED, GRADS)] == [1 + 3 + 6, 5, 7]
    assert [owned(goes, "generation", who) // GIB for who in (POLICY, FIXED, GRADS)] == [1, 0, 0]
    assert [owned(goes, "generation", who, "host") // GIB for who in (POLICY, FIXED)] == [3 + 6, 5]
    for journal in (stays, goes):
        assert owned(journal, "training", POLICY) == (1 + 3 + 6 + 20) * GIB
        assert owned(journal, "training", GRADS) == 0
        assert owned(journal, "training", FIXED) == 5 * GIB
    assert owned(goes, "logprob", POLICY) == (1 + 3 + 2) * GIB
    assert owned(stays, "logprob", GRADS) == 7 * GIB


def test_main_parameters_of_the_precise_optimizer_stay() -> None:
    precise = replace(CORE, fixed={}, states={"opt_state": 6 * GIB, "main_param": 5 * GIB})
    journal = step(params=True, optimizer=True, policy=precise)
    assert owned(journal, "generation", POLICY) == (1 + 5) * GIB


def test_a_reference_policy_is_where_it_is_asked_for() -> None:
    on_host, on_device = step(params=True, optimizer=True), step(params=True, optimizer=True, on_device=True)
    assert owned(on_host, "generation", REFERENCE) == 0
    assert owned(on_host, "generation", REFERENCE, "host") == 3 * GIB
    assert owned(on_device, "generation", REFERENCE) == 3 * GIB
    assert owned(on_host, "reference", REFERENCE) == owned(on_device, "reference", REFERENCE) == (3 + 2) * GIB
    copied = {way: one.num_bytes for way, one in on_host.phases[3].copied.items()}
    assert copied == {"to_device": 3 * GIB, "to_host": 3 * GIB}
    assert not on_device.phases[3].copied


def test_an_engine_starts_beside_what_init_model_has_made() -> None:
    """Moments are made by the first step; main parameters by the optimizer at once."""
    found = [beside_engine(CORE, params=params, optimizer=optimizer, refers_on_device=refers) // GIB
             for params, optimizer, refers in ((False, False, False), (True, False, False), (True, True, True))]
    assert found == [1 + 5 + 3 + 7, 1 + 5, 1 + 3]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_step_ends_to_end_counts_every_byte(engine: str) -> None:
    result = simulated(generation={"engine": engine}, rl={"reference": "device"})
    assert result.status == "ok", result.problems
    for phase in result.phases:
        assert sum(phase.by_category.values()) == sum(phase.by_owner.values()) == phase.device_bytes
    assert {phase.by_owner[REFERENCE] > 0 for phase in result.phases} == {True}
    assert any("mbridge" in row.value for row in result.assumptions)
    assert min(phase.by_owner[ENGINE] for phase in result.phases) > 0


@pytest.mark.parametrize(("told", "changed"), [
    ("reference: device", {"framework": "fsdp1", "mesh": {"dp_shard": 8, "tp": 1, "pp": 1}, "framework_options": {
        "cross_entropy_loss_fusion": None}, "training": {"loss": "flash"}, "rl": {"reference": "device"}}),
    ("not yet: reward of this trainer under megatron", {"rl": {"reward": {"model": "llama-tiny"}}}),
    ("adapters of verl's workers over Megatron", {"training": {"method": "lora"}}),
    ("log-probabilities in chunks of verl", {"training": {"logprob_chunk_size": 64}, "framework_options": {
        "cross_entropy_loss_fusion": None}}),
    ("a weight of", {"model": "qwen2.5-7b", "rl": {"refit_bucket": 1024}}),
    ("grpo with virtual stages", {"training": {"pipeline": {"virtual_stages": 2}}})])
def test_what_is_refused(told: str, changed: dict[str, Any]) -> None:
    data = json.loads(json.dumps(changed))
    if data.get("framework_options") == {"cross_entropy_loss_fusion": None}:
        base = json.loads(json.dumps(BASE))
        del base["framework_options"], data["framework_options"]
        for name, value in data.items():
            base[name] = base[name] | value if isinstance(value, dict) else value
        report = simulate(parse_scenario(parse_document(json.dumps(base), "v.json")))
    else:
        report = simulated(**data)
    assert any(told in problem.message for problem in report.problems), report.problems
