"""GaLore and APOLLO beside their own code: `tests/truth/probe_low_rank.py`."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.errors import IllegalLayout, NotYet
from simcore.frameworks.common.low_rank.rules import UNKNOWN_LINEARS
from simcore.frameworks.common.optimizer_memory import optimizer_sizes
from simcore.frameworks.common.steps import low_rank
from simcore.frameworks.common.steps.own_step import Updated
from simcore.frameworks.common.steps.projection import projection_of
from simcore.placement.plan import Placed, Plan
from simcore.simulate import simulate
from simcore.units import dtype_bytes

FOLDER = ROOT / "tests/truth/optimizers"
LINEARS: list[dict[str, Any]] = json.loads(
    (FOLDER / "linears-transformers-5.23.0.json").read_text(encoding="utf-8"))["cases"]
SHARDED: list[dict[str, str]] = json.loads((FOLDER / "low-rank-sharded.json").read_text(encoding="utf-8"))["cases"]
ENGINE: dict[str, dict[str, Any]] = {row["name"]: row for row in json.loads(
    (FOLDER / "low-rank-zero0-deepspeed-0.19.6.json").read_text(encoding="utf-8"))["cases"]}
STEPS: dict[str, dict[str, Any]] = json.loads(
    (FOLDER / "low-rank-steps-galore-1.0-apollo-1.0.3.json").read_text(encoding="utf-8"))["cases"]
ROWS: dict[str, dict[str, Any]] = {
    f"{path.stem}-{row['name']}": row for path in sorted(FOLDER.glob("low-rank-galore-*.json"))
    for row in json.loads(path.read_text(encoding="utf-8"))["cases"]}
RAN = [name for name, row in ROWS.items() if "error" not in row]
STOPPED = [name for name, row in ROWS.items() if "error" in row]
FORMATS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
NUMBERS = 16
FACTORS = {"lora_A.default": "lora_a", "lora_B.default": "lora_b"}


def asked(row: dict[str, Any]) -> dict[str, Any]:
    """The scenario of a row."""
    form = FORMATS[row["dtype"]]
    given = {key: row["args"][key] for key in ("rank", "proj_type", "proj", "scale_type") if key in row["args"]}
    model = {**row["model"], "head_dim": row["model"]["hidden_size"] // row["model"]["num_attention_heads"]}
    adapters = {"rank": row.get("lora"), "target_modules": ["q_proj", "v_proj"], "dtype": form}
    lora: dict[str, Any] = {"method": "lora", "lora": adapters} if "lora" in row else {}
    return {"model": {"config": row.get("preset", "llama-3.2-1b"), "overrides": model}, "implementation": "hf",
            "precision": {"params": form, "compute": form},
            "optimizer": {"name": row["optim"].partition("_")[0],
                          "low_rank": {**given, "target_modules": row["targets"]}},
            **lora}


@lru_cache(maxsize=128)
def plan_of(name: str) -> Plan:
    return small.plan_of("ddp", **asked(ROWS[name]))


def upstream(layer: int, placed: Placed) -> str:
    """The name that transformers has for a parameter."""
    stems = {"embedding": "model.embed_tokens.", "lm_head": "lm_head.", "norms": "model.norm."}
    stem = f"model.layers.{layer - 1}." if "." in placed.spec.name else stems[placed.spec.component]
    return f"{stem}{placed.spec.name}"


def trained(plan: Plan) -> list[tuple[str, Placed]]:
    return [(upstream(layer, placed), placed) for layer in plan.layers for placed in plan.of_layer(layer)
            if placed.trainable and not placed.spec.tied]


def told(name: str) -> str:
    """The name of a parameter without PEFT's stem and the name of the adapter."""
    name = name.removeprefix("base_model.model.")
    for theirs, ours in FACTORS.items():
        name = name.replace(theirs, ours)
    return name


@pytest.mark.parametrize("name", RAN)
def test_states_of_each_parameter(name: str) -> None:
    found = {told(key): states for key, states in ROWS[name]["states"].items() if states}
    assert {key: dict(placed.states) for key, placed in trained(plan_of(name))} == found


@pytest.mark.parametrize("name", RAN)
def test_bytes_of_steps_with_new_projectors_and_between(name: str) -> None:
    row, plan = ROWS[name], plan_of(name)
    tensors = [Updated(key, placed.used_shape, size, size, projection=projection_of(placed.policy.optimizer_states))
               for key, placed in trained(plan) for size in [dtype_bytes(placed.policy.grad.dtype)]]
    gap = row["args"].get("update_proj_gap", 200)
    assert [low_rank.held_by(tensors, copies=0, renews=step % gap == 0) for step in (1, 2)] == [
        step["peak"] for step in row["steps"][1:]]
    assert optimizer_sizes(plan).held == low_rank.held_by(tensors, copies=1, renews=True)


@pytest.mark.parametrize("name", STOPPED)
def test_what_stops_upstream_is_refused(name: str) -> None:
    with pytest.raises(IllegalLayout, match=r"apollo-torch|galore-torch|trainer_optimizer"):
        plan_of(name)


@pytest.mark.parametrize("row", SHARDED, ids=lambda row: f"{row['framework']}-{row['optimizer']}")
def test_frameworks_that_shard_parameters(row: dict[str, str]) -> None:
    """Refusal of what raises there, by the same words; what runs is not served yet."""
    framework, name = row["framework"].split()[0], row["optimizer"].split()
    form = "fp32" if row["framework"] == "zero0" else "bf16"
    settings = {"proj": name[1]} if len(name) > 1 else {}
    error, words = (IllegalLayout, row["error"].partition(", need")[0]) if row["error"] else (NotYet, "served: ddp")
    options = {"use_orig_params": "use_orig_params" in row["framework"]} if framework == "fsdp1" else {}
    given: dict[str, Any] = {"model": "llama-tiny", "precision": {"compute": form}, "options": options,
                             "optimizer": {"name": name[0], "low_rank": settings}}
    if framework == "zero0" and not row["error"]:
        assert small.prepared(framework, {"dp_replicate": 2}, **given)
        return
    with pytest.raises(error, match=re.escape(words)):
        small.prepared(framework, {"dp_shard": 2} if framework != "zero0" else {"dp_replicate": 2}, **given)


@pytest.mark.parametrize("name", STEPS)
def test_the_peak_and_the_end_of_a_step_on_one_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After backward or inside it, tied or not: `tests/truth/probe_low_rank_steps.py`.

    To the few bytes of single numbers: norms, and the parameter that transformers' layer-wise optimizer makes up.
    """
    case, form = STEPS[name], FORMATS[STEPS[name]["dtype"]]
    monkeypatch.setattr(low_rank, "COPIES", 0)
    report = simulate(small.scenario(
        "ddp", model={"config": case["preset"], "overrides": case["overrides"]}, recompute="full",
        precision={"params": form, "compute": form}, options={"optimizer_in_bwd": case["optim"].endswith("layerwise")},
        optimizer={"name": case["optim"].partition("_")[0], "low_rank": {
            "rank": case["args"]["rank"], "target_modules": case["targets"]}}))
    (rank,) = report.ranks
    assert rank.peak is not None
    assert rank.end_bytes is not None
    kept = rank.peak.by_category["workspace"]
    assert 0 <= case["found"]["peak"] - (rank.peak.allocated_bytes - kept) <= NUMBERS
    assert 0 <= case["found"]["end"] - (rank.end_bytes - kept) <= NUMBERS


def in_engine(name: str) -> Plan:
    """Two ranks of DeepSpeed at stage 0; adapters have the parameters' format."""
    given = asked(ENGINE[name])
    given["precision"] = {"compute": given["precision"]["compute"]}
    given.get("lora", {}).pop("dtype", None)
    return small.plan_of("zero0", {"dp_replicate": 2}, **given)


@pytest.mark.parametrize("name", [name for name, row in ENGINE.items() if "error" not in row])
def test_states_and_steps_in_deepspeeds_engine(name: str) -> None:
    """Drawn: `tests/truth/probe_low_rank_zero0.py`. In 16 bits masters in fp32 are updated, once when it is made."""
    row, plan = ENGINE[name], in_engine(name)
    states = {key: {state: size for state, size in placed.states if state not in ("master_param", "scaled_grad")}
              for key, placed in trained(plan)}
    assert states == {told(key): found for key, found in row["states"].items() if found}
    masters = {size // placed.local for _, placed in trained(plan) for state, size in placed.states
               if state == "master_param"}
    assert masters == (set() if row["dtype"] == "float32" else {4})
    tensors = [Updated(key, placed.used_shape, 4, 4, projection=projection_of(placed.policy.optimizer_states))
               for key, placed in trained(plan)]
    gap, first = row["args"].get("update_proj_gap", 200), row["dtype"] != "float32"
    assert [low_rank.held_by(tensors, copies=0, renews=(step + first) % gap == 0) for step in (1, 2)] == (
        row["steps"][1:])
    assert optimizer_sizes(plan).held == low_rank.held_by(tensors, copies=1, renews=True)


@pytest.mark.parametrize("name", [name for name, row in ENGINE.items() if "error" in row])
def test_what_stops_in_deepspeeds_engine_is_refused(name: str) -> None:
    with pytest.raises(IllegalLayout, match=r"apollo-torch|galore-torch|trainer_optimizer"):
        in_engine(name)


def all_linears(preset: str) -> dict[str, list[list[int]]]:
    """Shapes of the weights that are projected of a preset, by the name of their module."""
    plan = small.plan_of("ddp", model=preset, implementation="hf", optimizer={"name": "galore"})
    found: dict[str, set[tuple[int, ...]]] = {}
    for layer in plan.layers:
        for placed in plan.of_layer(layer):
            if projection_of(placed.policy.optimizer_states) is not None and not placed.spec.tied:
                name = placed.spec.path or "lm_head"
                found.setdefault(name, set()).add(placed.spec.shape)
    return {name: sorted(map(list, shapes)) for name, shapes in sorted(found.items())}


@pytest.mark.parametrize("row", [row for row in LINEARS if "error" not in row], ids=lambda row: row["preset"])
def test_all_linears_of_each_family(row: dict[str, Any]) -> None:
    """Each `nn.Linear` of transformers, also of an indexer, which gets no gradient and so has no states."""
    if small.prepared("ddp", model=row["preset"], implementation="hf")[0].graph.architecture.family in UNKNOWN_LINEARS:
        with pytest.raises(NotYet, match="not by transformers' own linears"):
            all_linears(row["preset"])
        return
    assert all_linears(row["preset"]) == row["linears"]
