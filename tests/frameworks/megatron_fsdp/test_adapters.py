"""Adapters under Megatron-FSDP: frozen and trained buckets, and when they are gathered, against its own pipelines."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.errors import IllegalLayout, NotYet
from simcore.frameworks.megatron_fsdp.buckets import rank_buckets
from simcore.program.program import Program
from simcore.recording.tape import Op
from simcore.simulate import simulate

HERE = ROOT / "tests/truth/megatron_fsdp"
MAIN = "main 2026-08-22"
CASES: list[dict[str, Any]] = [
    case for case in json.loads((HERE / "main-2026-08-22.json").read_text("utf-8"))["steps"] if "plain" in case]
UNIT = 2560
"""Elements of a unit's frozen bucket in the model that was run; ours are larger, and not all alike."""
STARTS = {"fwd:begin": "forward", "bwd:begin": "backward", "opt:begin": "step"}
EVENTS = {("unsharded_bucket", Op.ALLOC): "gather", ("unsharded_bucket", Op.FREE): "release",
          ("unsharded_grad_bucket", Op.ALLOC): "fill", ("unsharded_grad_bucket", Op.FREE): "drop"}


def asked(case: dict[str, Any]) -> dict[str, Any]:
    """The same job here: layers without adapters are those that the target misses."""
    pattern = "".join("-" if layer in case["plain"] else "*" for layer in range(case["layers"]))
    model = ({"config": "nemotron-h-56b", "overrides": {
        "num_hidden_layers": case["layers"], "hybrid_override_pattern": pattern, "hidden_size": 256,
        "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024}}
             if case["plain"] else {"config": "llama-tiny", "overrides": {"num_hidden_layers": case["layers"]}})
    copies = case.get("copies", 1)
    given: dict[str, Any] = {
        "mesh": {"dp_shard": 8 // copies, "dp_replicate": copies}, "model": model, "version": MAIN, "method": "lora",
        "lora": {"rank": 4, "target_modules": ["linear_qkv", "linear_proj"]}}
    names = {"double_buffer": "fsdp_double_buffer", "gathers_first": "fsdp_all_gather_in_start_param_sync"}
    options = {option: case[key] for key, option in names.items() if key in case}
    options |= {"outer_dp_sharding_strategy": "optim"} if copies > 1 else {}
    if case["unit_size"] is not None:  # as many units ahead
        units = [b.numel for b in rank_buckets(small.plan_of("megatron_fsdp", options=options, **given)) if b.unit >= 0
                 and not b.trainable]
        options["suggested_communication_unit_size"] = max(1, case["unit_size"] // UNIT * min(units))
    return given | {"options": options}


def expected(case: dict[str, Any], kinds: tuple[str, ...]) -> list[str]:
    """The truth's events, with the layer of each bucket instead of its number; the root's are left out."""
    layers = [0] + [layer + 1 for layer in range(case["layers"]) for _ in range(1 + (layer not in case["plain"]))]
    events = case["found"]["events"] if "copies" in case else case["found"]
    found = []
    for event in events:
        word, _, number = event.partition(" ")
        if word in STARTS.values():
            found.append(word)
        elif word in kinds and layers[int(number)]:
            found.append(f"{word} {layers[int(number)]}")
    return found


def events(made: Program, layer_of: list[int], *, pooled: bool) -> list[str]:
    """As the truth spells them; where units share buffers gathers are recognised by their collectives."""
    owners = {slot: name for (name, _), slot in made.tables.slots.items()}
    comms = {number: key for key, number in made.tables.comms.items()}
    found = []
    for row in made.columns:
        op, layer, slot = Op(row[0]), int(row[1]), int(row[2])
        if op == Op.MARK:
            found.append(STARTS.get(made.event(row, 0), ""))
        elif op == Op.COLLECTIVE and comms[slot][1] != "dp_replicate":
            name, bucket = comms[slot][0], layer_of[layer] if layer < len(layer_of) else 0
            word = "reduce" if name == "reduce_scatter" else "gather" if pooled else ""
            found.append(f"{word} {bucket}" if word and bucket else "")
        elif (what := EVENTS.get((owners.get(slot, ""), op))) and layer and not pooled:
            found.append(f"{what} {layer}")
    found = [event for event in found if event]
    return found[found.index("forward"):]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(f"{k}={v}" for k, v in case.items() if k != "found"))
def test_a_step_with_adapters_is_the_real_one(case: dict[str, Any]) -> None:
    """Frozen buckets are gathered like others; only adapters' are filled, reduced and dropped."""
    differs(case)


def differs(case: dict[str, Any]) -> None:
    """AssertionError where the events of a step are others than upstream's."""
    given, pooled = asked(case), bool(case.get("double_buffer"))
    layer_of = [bucket.first_layer for bucket in rank_buckets(small.plan_of("megatron_fsdp", **given))]
    made = small.program_of("megatron_fsdp", microbatches=case["microbatches"],
                            recompute="full" if case.get("recompute") else "none", **given)
    kinds = ("gather", "reduce") if pooled else ("gather", "release", "fill", "reduce", "drop")
    assert events(made, layer_of, pooled=pooled) == expected(case, kinds), case


LORA: dict[str, Any] = {"version": MAIN, "method": "lora", "model": "llama-tiny"}


def test_only_adapters_have_gradients_and_states() -> None:
    """All ranks together: the frozen model in 16 bits once; of adapters weights, gradients and states."""
    rest = small.plan_of("megatron_fsdp", {"dp_shard": 4}, **LORA).at_rest()
    frozen = small.plan_of("megatron_fsdp", {"dp_shard": 4}, model="llama-tiny", version=MAIN).at_rest()
    assert sum(one.num_params for name, one in rest.items() if name != "adapters") == sum(
        one.num_params for one in frozen.values())
    assert all(one.grads_bytes == one.optimizer_bytes == 0 for name, one in rest.items() if name != "adapters")
    adapters = rest["adapters"]
    assert (adapters.params_bytes, adapters.grads_bytes, adapters.optimizer_bytes) == (
        2 * adapters.num_params, 2 * adapters.num_params, 12 * adapters.num_params)


def test_frozen_parameters_are_no_part_of_the_release() -> None:
    with pytest.raises(IllegalLayout, match="cannot register a hook on a tensor that doesn't require gradient"):
        small.prepared("megatron_fsdp", {"dp_shard": 4}, **LORA | {"version": "core 0.16.1"})


def test_what_of_adapters_is_not_served() -> None:
    fp8: dict[str, Any] = {"precision": {"compute": "fp8"}, "topology": "gb200-nvl72"}
    with pytest.raises(NotYet, match="lora over weights in 8 bits"):
        small.prepared("megatron_fsdp", {"dp_shard": 4}, **LORA | fp8)
    with pytest.raises(IllegalLayout, match="does not require grad"):
        small.prepared("megatron_fsdp", {"dp_shard": 4}, version=MAIN, method="lora", recompute="full")


def test_gradients_of_experts_adapters_go_to_experts_ranks() -> None:
    """Each rank's pair serves its local experts (Bridge's default), and is cut over the ranks with the same ones."""
    plan = small.plan_of("megatron_fsdp", {"dp_shard": 4, "ep": 2}, version=MAIN, method="lora", model={
        "config": "qwen3-30b-a3b", "overrides": {"num_hidden_layers": 2}})
    of_experts = [bucket for bucket in rank_buckets(plan) if bucket.axis == "expert_dp"]
    assert [(bucket.trainable, bucket.parts) for bucket in of_experts] == [(False, 2), (True, 2)] * 2


def test_it_needs_less_than_training_all() -> None:
    few, whole = (simulate(small.scenario("megatron_fsdp", {"dp_shard": 8}, model="llama-3-8b", seq_len=4096,
                                          version=MAIN, method=method)) for method in ("lora", "full"))
    assert few.status == whole.status == "ok"
    assert few.ranks[0].end_bytes is not None
    assert whole.ranks[0].end_bytes is not None
    assert few.ranks[0].end_bytes < whole.ranks[0].end_bytes / 2
    assert few.time is not None
    assert whole.time is not None
    assert few.time.step_s < whole.time.step_s
