"""Losses of OpenRLHF's PPO and DPO, event by event, against its own code (truth/probe_openrlhf_step.py)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checkout import ROOT
from operators.hf.test_implementation import Model
from operators.hf.test_losses import CASE
from operators.hf.test_wide_losses import signs
from simcore.recording.rows import REFERENCE_BORDER
from simcore.recording.tape import Op, Section

TRUTH: dict[str, Any] = json.loads((ROOT / "tests/truth/openrlhf/step.json").read_text(encoding="utf-8"))
DRAWN: list[dict[str, Any]] = json.loads((ROOT / "tests/truth/openrlhf/drawn-step.json").read_text("utf-8"))["rows"]
LOSSES = {"plain": "policy_fp32", "divided": "policy_fp32_divided", "entropy": "policy_fp32_entropy",
          "entropy logged": "policy_fp32", "entropy logged, divided": "policy_fp32_divided"}


def sections(loss: str, batch: int, **sizes: int) -> tuple[Any, Any, int]:
    """The head, the loss, and bytes of logits. `sizes`: `tokens` of a sequence and `vocab`, where they are others."""
    case = CASE | {"loss": loss, "batch": batch, "seq": sizes.get("tokens", CASE["seq"])}
    if sizes:
        case["overrides"] = CASE["overrides"] | {"vocab_size": sizes["vocab"]}
    head, tape = Model(case).tapes[-2:]
    return head, tape, max(row[3] for row in head.forward.rows if row[0] == Op.ALLOC)


@pytest.mark.parametrize("release", TRUTH["releases"])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_policys_step_has_the_events_of_its_trainer(release: str, batch: int) -> None:
    for name, loss in LOSSES.items():
        head, tape, logits = sections(loss, batch)
        ours = signs(logits, head.forward, tape.forward, tape.backward, head.backward, tape.late)
        assert ours == TRUTH["releases"][release]["policy"][f"{name}, {batch}"]["step"], name


def of_pairs(batch: int, **sizes: int) -> dict[str, list[str]]:
    """Events of the policy's forward, the reference's and backward, over `batch` pairs."""
    head, tape, logits = sections("preference_fp32", 2 * batch, **sizes)
    cut = next(number for number, row in enumerate(tape.forward.rows)
               if row[0] == Op.MARK and row[2] == REFERENCE_BORDER)
    policy, reference = tape.forward.rows[:cut], tape.forward.rows[cut:]
    return {"forward": signs(logits, head.forward, Section(policy)),
            "reference": ["+", *signs(logits, Section(reference))],
            "backward": signs(logits, tape.backward, head.backward)}


@pytest.mark.parametrize("release", TRUTH["releases"])
@pytest.mark.parametrize("batch", [1, 2])
def test_pairs_have_the_events_of_both_passes_and_of_backward(release: str, batch: int) -> None:
    assert of_pairs(batch) == TRUTH["releases"][release]["pairs"][str(batch)]


@pytest.mark.parametrize("number", range(len(DRAWN)))
def test_a_drawn_step_has_the_events_of_its_trainer(number: int) -> None:
    row = DRAWN[number]
    batch, sizes = row["batch"], {name: row[name] for name in ("tokens", "vocab")}
    if row["kind"] == "pairs":
        assert of_pairs(batch, **sizes) == row["found"]
        return
    head, tape, logits = sections(LOSSES[row["kind"]], batch, **sizes)
    assert signs(logits, head.forward, tape.forward, tape.backward, head.backward, tape.late) == row["found"]["step"]


def test_an_entropy_of_logits_that_a_temperature_divides_in_place_has_no_gradient() -> None:
    for found in TRUTH["releases"].values():
        assert all("modified by an inplace" in found["policy"][f"entropy, divided, {batch}"]["raises"]
                   for batch in (1, 2))
