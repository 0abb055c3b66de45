"""Whole steps over tp as NeMo RL's workers wrap them, also of tied tables: see tests/truth/tape/README.md."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import small
from checkout import ROOT
from simcore.frameworks.automodel.policies import NEMO_RL
from simcore.results.report import RankReport
from simcore.simulate import simulate

TAPE = ROOT / "tests/truth" / "tape"
SHAPE = json.loads((TAPE / "automodel-dense-0.7.0-torch-2.13.0.json").read_text(encoding="utf-8"))["shape"]
STEPS: dict[str, Any] = json.loads((TAPE / "automodel-policies-torch-2.13.0.json").read_text(encoding="utf-8"))
PRESETS = {"llama": "llama-3.1-8b", "mistral": "mistral-7b-v0.3", "qwen3": "qwen3-8b"}
SEQ = 512


def ran(case: dict[str, Any]) -> RankReport:
    report = simulate(small.scenario(
        "automodel", {"dp_shard": case["world"] // case["tp"], "tp": case["tp"]}, seq_len=SEQ, version=NEMO_RL,
        implementation="hf", loss="masked_fp32", optimizer={"implementation": "fused"},
        model={"config": PRESETS[case["family"]], "overrides": SHAPE | {"tie_word_embeddings": case["tied"]}}))
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


def test_steps_over_tp_are_as_measured() -> None:
    """Parts of the peak, gradients that wait, and traffic, to the byte; Adam counts steps in 4 bytes a parameter.

    In forward the final norm's output in fp32 is counted until the loss is there.
    """
    assert {row["case"]["tied"] for row in STEPS.values()} == {True, False}
    for name, row in STEPS.items():
        found = ran(row["case"])
        assert found.peak is not None, name
        steps, parts = 4 * row["parameters"], dict(row["backward"]["breakdown"])
        parts["opt_state"] -= steps
        assert dict(found.peak.by_category) == parts, name
        assert found.peak.by_phase["forward"] == row["forward"]["peak"] - steps + 4 * SEQ * SHAPE["hidden_size"], name
        assert sum(part.grads_bytes for part in found.at_rest.values()) == row["gradients"], name
        assert sent(found) == measured(row), name


def test_a_table_that_is_tied_again_rests_once() -> None:
    """Beside one that is not tied, parameters and states of one table are saved, and no gradient."""
    whole, tied = (ran({"family": "qwen3", "world": 4, "tp": 2, "tied": way}) for way in (False, True))
    table = SHAPE["vocab_size"] * SHAPE["hidden_size"] // 4 * 4
    kept = [[sum(getattr(part, name) for part in one.at_rest.values())
             for name in ("params_bytes", "grads_bytes", "optimizer_bytes")] for one in (whole, tied)]
    assert [first - second for first, second in zip(*kept, strict=True)] == [table, 0, 2 * table]
