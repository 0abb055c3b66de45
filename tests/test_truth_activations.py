"""Activations that each layer of Nemotron-3-Nano keeps, per token, against a published account of 3 implementations."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from checkout import ROOT
from pages import shown, write
from simcore.frameworks.setup import prepare
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.models.blocks import LayerKind
from simcore.placement.plan import Plan, place
from simcore.program.record_layers import Workload, run_of
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Op, Param, Section

TRUTH: dict[str, list[dict[str, Any]]] = json.loads(
    (ROOT / "tests/truth" / "activations" / "nano-kept.json").read_text(encoding="utf-8"))
LAYERS = {"mamba": ("mamba",), "moe": ("moe",), "attn": ("attention",), "final": ("final_norm", "head")}
COUNTS = {"mamba": 23, "moe": 23, "attn": 6, "final": 1}
LOGITS, STEM = 2 * 131072, 2 * 2688
JOBS: dict[str, dict[str, Any]] = {
    "megatron_alltoall": {"framework": "megatron"},
    "megatron_deepep": {"framework": "megatron", "framework_options": {"moe_token_dispatcher_type": "flex"}},
    "automodel": {"framework": "automodel"},
    "automodel_experts_lora": {"framework": "automodel"},
    "hf_peft": {"framework": "fsdp2", "framework_options": {"experts_implementation": "grouped_mm"}},
    "hf_peft_fp32_adapters": {"framework": "fsdp2", "framework_options": {"experts_implementation": "grouped_mm"}},
}
WITH_EXPERTS = ["*_proj", "*experts"]

# Where the account is not what runs. Each is a difference in bytes per token, ours minus theirs.
ROUTER_LEFTOVERS = -(128 + 16 + 8)
"""It counts every tensor that a node of the HF router saved; those of `masked_fill` and of the group choice, E + 24 B,
die with their nodes when the router returns, since only indices leave (event logs under tests/truth/tape agree)."""
NO_RSQRT = -4
"""Automodel 0.7.0's compiled norm keeps no reciprocal root; the account reads a later commit."""
SEPARATE_SHARED = 2 * 3712
"""Automodel 0.7.0 does not install the fused LoRA MLP on meta tensors: relu and its square are kept."""
DISPATCHER = 5 * 128 + 4 * (2 * 128 + 1)
"""In a recomputed MoE layer the dispatcher holds probabilities, routing map and row map as attributes (core 0.16.1
`moe/token_dispatcher.py`), which the account forgets."""
RSIGMA = -4
"""It is not kept by a norm that runs without a graph."""
FROZEN_HEAD = -2 * 2688
"""The account lets `lm_head` have an adapter; these targets do not name it, so its input is not kept."""
RECEIVED = 379.792
"""Automodel 0.7.0 saves what communication returned: the DeepEP handle, indices and probabilities of received rows."""


def difference(row: dict[str, Any]) -> float:
    """Expected difference of a row, by its reason."""
    implementation, layer, is_lora = row["implementation"], row["layer"], row["method"] == "lora"
    if implementation.startswith("hf") and layer == "moe" and row["recompute"] == "none":
        return ROUTER_LEFTOVERS
    if layer == "moe" and implementation == "megatron_alltoall" and row["recompute"] in ("full", "moe,layernorm"):
        return DISPATCHER + (0 if row["recompute"] == "full" else RSIGMA)
    if layer == "moe" and implementation == "automodel" and row["recompute"] == "full":
        return RECEIVED
    if implementation == "automodel_experts_lora" and layer == "final":
        return NO_RSQRT + FROZEN_HEAD
    if implementation.startswith("automodel") and row["recompute"] == "none":
        return NO_RSQRT + (SEPARATE_SHARED if layer == "moe" and is_lora else 0)
    return 0


@cache
def plan_of(implementation: str, method: str, rank: int, recompute: str) -> Plan:
    mesh = {"dp_shard": 8} if implementation.startswith("hf") else {"dp_shard": 8, "ep": 8}
    lora: dict[str, Any] = {"rank": rank or 8}
    if implementation == "automodel":
        lora["exclude_modules"] = ["*.out_proj"]
    if implementation == "automodel_experts_lora":
        lora["target_modules"] = WITH_EXPERTS
    modes: Any = recompute if recompute in ("none", "full") else recompute.split(",")
    data = {"name": "kept", "model": "nemotron-3-nano-30b-a3b", "topology": "dgx-h100", "mesh": mesh,
            **JOBS[implementation], "training": {"seq_len": 8192, "method": method, "lora": lora, "recompute": modes}}
    job, table = prepare(parse_scenario(parse_document(json.dumps(data), "kept.json")))
    return place(job.graph, job.mesh, table, 0)


def tape_of(plan: Plan, name: str, tokens: int, *, fp32_adapters: bool) -> RecordedLayer:
    """A layer that is not the first, recorded alone."""
    number, kind = next((i, k) for i, k in enumerate(plan.graph.kinds) if k.name == name)
    key = number, False, True, plan.framework.checkpoint, False, (0, "all"), (0, -1), ""
    run = run_of(plan, key, Workload(1, tokens, 6 << 16))
    if fp32_adapters:
        run = replace(run, params={n: _fp32_if_adapter(p) for n, p in run.params.items()})
    return _record(plan, kind, run)


def _fp32_if_adapter(param: Param) -> Param:
    return replace(param, dtype="fp32") if ".lora_" in param.name else param


def _record(plan: Plan, kind: LayerKind, run: LayerWorkload) -> RecordedLayer:
    operators = importlib.import_module(f"simcore.operators.{plan.graph.implementation}.implementation")
    tape: RecordedLayer = operators.record(kind, run, {}, {})
    return tape


def net(*sections: Section) -> int:
    return sum(row[3] for section in sections for row in section.rows if row[0] in (Op.ALLOC, Op.FREE))


def kept(row: dict[str, Any]) -> float:
    """Bytes per token, between two lengths: what is there whatever the length does not count.

    A layer's own output stands for its input, which the layer before has made and which is as large; the stem's output
    is counted with the last layers, whose logits are not.
    """
    plan = plan_of(row["implementation"], row["method"], row["rank"], row["recompute"])
    sizes = []
    for tokens in (4096, 8192):
        tapes = [tape_of(plan, name, tokens, fp32_adapters=row["implementation"] == "hf_peft_fp32_adapters")
                 for name in LAYERS[row["layer"]]]
        sizes.append(sum(net(tape.forward, tape.after) for tape in tapes))
    return (sizes[1] - sizes[0]) / 4096 - (LOGITS - STEM if row["layer"] == "final" else 0)


def name_of(row: dict[str, Any]) -> str:
    return "-".join(str(row[k]) for k in ("implementation", "method", "rank", "recompute", "layer") if k in row)


@pytest.mark.parametrize("row", TRUTH["layers"], ids=name_of)
def test_a_layer_keeps_what_the_account_says(row: dict[str, Any]) -> None:
    """To a byte per token where dispatch metadata are a mean over ranks, else exactly."""
    exact = "deepep" not in row["implementation"] and "automodel" not in row["implementation"]
    assert kept(row) == pytest.approx(row["bytes_per_token"] + difference(row), abs=0 if exact else 0.1)


@pytest.mark.parametrize("row", [r for r in TRUTH["layers"] if "of" in r], ids=name_of)
def test_the_account_adds_up(row: dict[str, Any]) -> None:
    assert sum(row["of"].values()) == pytest.approx(row["bytes_per_token"], abs=0.01)


# ---- the loss -------------------------------------------------------------------------------------------------------
def running(live: int, *sections: Section) -> tuple[int, int]:
    """(bytes alive at the end, the most there ever were)."""
    peak = live
    for row in (row for section in sections for row in section.rows):
        live += row[3] if row[0] in (Op.ALLOC, Op.FREE) else 0
        peak = max(peak, live)
    return live, peak


def loss_of(implementation: str) -> list[float]:
    """(kept, forward peak, backward peak), bytes per token and vocabulary entry."""
    plan = plan_of(implementation, "full", 0, "none")
    tape, each = tape_of(plan, "loss", 8192, fp32_adapters=False), 8192 * 131072
    saved, forward = running(2 * each, tape.forward, tape.after)
    return [round(size / each, 2) for size in (saved, forward, running(saved, tape.seed, tape.backward)[1])]


# Ours minus theirs (kept, forward peak, backward peak).
HEADS = {
    "megatron": (0, 0, 4),  # the account ran core's function eagerly; compiled, its index update clones the softmax
    "hf_peft": (-4, 0, 0),  # the account looks before the output object, which holds fp32 logits, is dropped
    "automodel": (-2, 0, -2),  # the recipe's step drops the output object with its logits before backward
}


@pytest.mark.parametrize("row", TRUTH["heads"], ids=name_of)
def test_a_loss_keeps_and_needs_what_the_account_says(row: dict[str, Any]) -> None:
    """Bytes per token and vocabulary entry, the logits among them; what is a few bytes a token does not count."""
    found = loss_of(row["implementation"])
    differences = next(d for name, d in HEADS.items() if row["implementation"].startswith(name))
    account = (row["saved"], row["fwd_peak"], row["bwd_peak"])
    assert found == [theirs + ours for theirs, ours in zip(account, differences, strict=True)]


# ---- the page --------------------------------------------------------------------------------------------------------
PAGE = ROOT / "docs" / "activations.md"


def layers() -> str:
    """The account's table with our figures: bytes per token by layer, and of the whole model."""
    lines = ["| implementation | method | recompute | Mamba | MoE | attention | norm and head | all layers | account |",
             "|---|---|---|---|---|---|---|---|---|"]
    for row in TRUTH["totals"]:
        each = {layer: kept({**row, "layer": layer}) for layer in LAYERS}
        total = sum(COUNTS[layer] * size for layer, size in each.items())
        method = f"LoRA {row['rank']}" if row["rank"] else "full"
        cells = [row["implementation"], method, row["recompute"], *(f"{each[layer]:,.0f}" for layer in each),
                 f"{total:,.0f}", f"{row['saved_bytes_per_token']:,.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def losses() -> str:
    """Table of activations that losses keep and need, ours and the account's."""
    lines = ["| implementation | kept | forward peak | backward peak | account |", "|---|---|---|---|---|"]
    for row in TRUTH["heads"]:
        account = ", ".join(str(row[key]) for key in ("saved", "fwd_peak", "bwd_peak"))
        ours = " | ".join(f"{size:g}" for size in loss_of(row["implementation"]))
        lines.append(f"| {row['implementation']} | {ours} | {account} |")
    return "\n".join(lines)


TABLES = {"layers": layers, "losses": losses}


@pytest.mark.parametrize("name", TABLES)
def test_the_page_shows_what_is_recorded(name: str) -> None:
    assert shown(PAGE, name) == TABLES[name](), "run: python tests/test_truth_activations.py"


if __name__ == "__main__":
    write(PAGE, TABLES)
