"""Whole steps over tp as NeMo RL's workers wrap them, also of tied tables: see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import small
import truth_cases
from checkout import ROOT
from every import expect_of_every
from simcore.frameworks.automodel.policies import NEMO_RL
from simcore.results.report import RankReport, Report
from simcore.simulate import simulate

TAPE = ROOT / "tests/truth" / "tape"
SHAPE = json.loads((TAPE / "automodel-dense-0.7.0-torch-2.13.0.json").read_text(encoding="utf-8"))["shape"]
STEPS: dict[str, Any] = json.loads((TAPE / "automodel-policies-torch-2.13.0.json").read_text(encoding="utf-8"))
DRAWN: dict[str, Any] = json.loads((TAPE / "automodel-drawn-policies-torch-2.13.0.json").read_text(encoding="utf-8"))
"""Cases drawn by `draw_automodel_policy.py`."""
PRESETS = {"llama": "llama-3.1-8b", "mistral": "mistral-7b-v0.3", "qwen2": "qwen2.5-7b", "qwen3": "qwen3-8b"}
SEQ, CONFIGURATION = 512, "StrictDataclassClassValidationError: Class validation error"
ON_ITS_WAY = ("p19", "q7", "q47", "q48")
"""Cases at whose peak a gradient in fp32 is not yet the parameter's, which is counted as if it were."""


def asked(case: dict[str, Any]) -> Report:
    sizes = {key: size for key, size in case.get("fields", SHAPE).items()
             if key != "head_dim" or case["family"] != "qwen2"}
    return simulate(small.scenario(
        "automodel", {"dp_shard": case["world"] // case["tp"], "tp": case["tp"]}, seq_len=case.get("seq", SEQ),
        version=NEMO_RL, implementation="hf", loss="masked_fp32", optimizer={"implementation": "fused"},
        model={"config": PRESETS[case["family"]], "overrides": sizes | {"tie_word_embeddings": case["tied"]}}))


def ran(case: dict[str, Any]) -> RankReport:
    report = asked(case)
    assert report.status == "ok", report.problems
    return report.ranks[0]


def sent(found: RankReport) -> Counter[tuple[str, str, str]]:
    made = Counter[tuple[str, str, str]]()
    for t in found.traffic:
        at = t.collective, {"forward": "fwd", "backward": "bwd"}[t.phase]
        made += {(*at, "calls"): t.calls, (*at, "bytes"): t.payload_bytes}
    return made


def measured(row: dict[str, Any]) -> Counter[tuple[str, str, str]]:
    made = Counter[tuple[str, str, str]]()
    for key, one in row["traffic"].items():
        name, phase, *_ = key.split("|")
        whole = row["case"]["tp"] if name == "all_gather_into_tensor" else 1  # its input is told
        at = name.removesuffix("_into_tensor"), phase
        made += {(*at, "calls"): one["count"], (*at, "bytes"): one["payload_bytes"] * whole}
    return made


def expect_step(name: str, row: dict[str, Any]) -> None:
    found = ran(row["case"])
    assert found.peak is not None
    steps, ours = 4 * row["parameters"], dict(found.peak.by_category)
    parts = dict(max((row["forward"], row["backward"]), key=lambda half: int(half["peak"]))["breakdown"])
    parts["opt_state"] -= steps
    for each in (parts, ours) if name in ON_ITS_WAY else ():
        each["unsharded_grad"] += each.pop("backward_temp")
    assert ours == parts
    assert found.peak.by_phase["forward"] == row["forward"]["peak"] - steps
    assert sum(part.grads_bytes for part in found.at_rest.values()) == row["gradients"]
    assert sent(found) == measured(row)


def test_steps_over_tp_are_as_measured() -> None:
    """Parts of the peak, gradients that wait, and traffic, to the byte; Adam counts steps in 4 bytes a parameter."""
    assert {row["case"]["tied"] for row in STEPS.values()} == {True, False}
    expect_of_every(((name, (name, row)) for name, row in STEPS.items()), lambda case: expect_step(*case))


def test_drawn_steps_over_tp_are_as_measured() -> None:
    """Layouts that the libraries refuse are refused in the same words; some parts are not described yet."""
    done = Counter[str]()

    def expect(case: tuple[str, dict[str, Any]]) -> None:
        name, row = case
        report = asked(row["case"])
        done[report.status] += 1
        if "error" in row:
            told = report.problems[0].message
            if row["error"].startswith(CONFIGURATION):  # transformers says no more in its first line
                assert "expected a divisor of hidden_size" in told
                done["illegal"] += 1
                done["error"] -= 1
                return
            assert report.status == "illegal"
            assert told in row["error"]
        elif report.status == "error":
            assert "not yet" in str(report.problems[0])
        else:
            expect_step(name, row)

    expect_of_every(((name, (name, row)) for name, row in DRAWN.items()), expect)
    assert truth_cases.told_layouts("tape/automodel-drawn-policies-*") == (
        len(DRAWN), done["ok"], done["illegal"], done["error"])


def test_a_table_that_is_tied_again_rests_once() -> None:
    """Beside one that is not tied, parameters and states of one table are saved, and no gradient."""
    whole, tied = (ran({"family": "qwen3", "world": 4, "tp": 2, "tied": way}) for way in (False, True))
    table = SHAPE["vocab_size"] * SHAPE["hidden_size"] // 4 * 4
    kept = [[sum(getattr(part, name) for part in one.at_rest.values())
             for name in ("params_bytes", "grads_bytes", "optimizer_bytes")] for one in (whole, tied)]
    assert [first - second for first, second in zip(*kept, strict=True)] == [table, 0, 2 * table]
