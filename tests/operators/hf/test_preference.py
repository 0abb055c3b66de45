"""Losses of preferences against what the trainers' own steps allocate and free (`probe_preference.py`)."""

from __future__ import annotations

import json
from typing import Any

from checkout import ROOT
from simcore.models.graph import build, model_config
from simcore.operators.hf import implementation as hf
from simcore.operators.hf.options import HfOptions
from simcore.recording.layer import LayerWorkload
from simcore.recording.rows import REFERENCE_BORDER
from simcore.recording.tape import Op, Section


def truth(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((ROOT / f"tests/truth/losses/{name}").read_text(encoding="utf-8"))["cases"]
    return cases


def parts(case: dict[str, Any], *sections: Section) -> list[list[int]]:
    """Signed bytes of rows of logits, cut where the reference passes."""
    least = 2 * (case["seq"] - 1) * case["vocab"]
    found: list[list[int]] = [[]]
    for row in (row for section in sections for row in section.rows):
        if row[0] == Op.MARK and row[2] == REFERENCE_BORDER:
            found.append([])
        elif row[0] in (Op.ALLOC, Op.FREE) and abs(row[3]) >= least:
            found[-1].append(row[3])
    return found


def without_wide_sums(case: dict[str, Any], sizes: list[int]) -> list[int]:
    """Sizes without the copy in fp32 that a CPU makes for the mean of 16 bits, which a GPU does not."""
    half = 2 * case["pairs"] * (case["seq"] - 1) * case["vocab"]
    wide, kept = [half, 2 * half, -2 * half, -half], list(sizes)
    for at in range(len(sizes) - 2, -1, -1):
        if kept[at:at + 4] == wide and not case["mixed"]:
            kept[at + 1:at + 3] = []
        if kept[at:at + 2] == wide[1:3] and not case["mixed"] and case["method"] == "odds":
            kept[at:at + 2] = []
    return kept


def recorded(case: dict[str, Any], loss: str) -> list[list[int]]:
    graph = build(model_config("llama-3.2-3b", {"vocab_size": case["vocab"]}, "test"), "hf")
    kind = next(kind for kind in graph.kinds if kind.name == "loss")
    run = LayerWorkload(2 * case["pairs"], case["seq"], "bf16", {}, loss, options=HfOptions(autocast=case["mixed"]))
    made = hf.record(kind, run, {}, {})
    return [*parts(case, made.forward), *parts(case, made.backward)]


def test_logits_of_dpo_are_those_of_axolotls_own_step() -> None:
    """But for the allocation of each model's logits, and the free of the last gradient by the head."""
    wrong = []
    for case in truth("preference-axolotl-067b021c.json"):
        alone = case["method"] == "odds"
        theirs = [without_wide_sums(case, case["policy"][1:]), *(
            [] if alone else [without_wide_sums(case, case["reference"][1:])]), case["backward"][:-1]]
        ours = recorded(case, "preference_odds" if alone else "preference_rows")
        if ours != theirs:
            wrong.append((case["method"], case["pairs"], case["mixed"], ours, theirs))
    assert not wrong


def test_logits_of_dpo_are_those_of_llamafactorys_own_step() -> None:
    """With a reference, and without one: ORPO and SimPO."""
    wrong = []
    for case in truth("preference-llamafactory-ff6d4d12.json"):
        alone = "reference" not in case
        theirs = [case["policy"][1:], *([] if alone else [case["reference"][1:]]), case["backward"][:-1]]
        ours = recorded(case, "preference_softmax_alone" if alone else "preference_softmax")
        if ours != theirs:
            wrong.append((case["loss"], case["pairs"], case["mixed"], ours, theirs))
    assert not wrong
