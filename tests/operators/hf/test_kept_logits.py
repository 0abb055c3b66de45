"""GRPO of TRL before 1.15: logits of a sequence's last tokens, event by event (truth/probe_trl_grpo_older.py)."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from checkout import ROOT
from operators.hf.test_fused_lm_head import events
from simcore.models.graph import build, model_config
from simcore.operators.hf import implementation as hf
from simcore.operators.hf.options import HfOptions
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Param

FILES: Final = [path for path in sorted((ROOT / "tests/truth/trl_grpo").glob("*trl-0.*.json"))
                if not path.stem.startswith("steps")]
LOSSES: Final = {"0.18.0": "kept_logits", "0.19.1": "kept_logits_once", "0.24.0": "kept_logits_entropy",
                 "0.27.2": "kept_logits_entropy"}


def recorded(case: dict[str, Any], loss: str) -> tuple[RecordedLayer, RecordedLayer]:
    """Head and loss of a case; under mixed precision forward is under autocast, and logits are in fp32."""
    graph = build(model_config("llama-tiny", {"vocab_size": case["vocab"], "hidden_size": case["hidden"],
                                              "tie_word_embeddings": case["tied"]}, "test"), "hf")
    weight = Param("weight", (case["vocab"], case["hidden"]), case["dtype"], not case["lora"])
    slots: dict[tuple[str, str], int] = {}
    mixed = case["mixed"]
    options = HfOptions(autocast=mixed, wide_logits=mixed, hidden="fp32" if mixed and case["dtype"] == "fp32" else "")
    found = [hf.record(graph.kinds[layer.kind], LayerWorkload(
        case["batch"], case["prompt"] + case["completion"], "bf16" if mixed else case["dtype"], params, loss,
        options=options, scored=case["completion"]), slots, {})
        for layer, params in zip(graph.layers[-2:], ({"weight": weight}, {}), strict=True)]
    return found[0], found[1]


def without_wide_copies(case: dict[str, Any], sizes: list[int]) -> list[int]:
    """Sizes without a copy in fp32 of each sequence that a CPU makes for a log-softmax's backward of 16 bits."""
    narrow, wide = case["dtype"] == "bf16" and not case["mixed"], 4 * case["completion"] * case["vocab"]
    kept, left, at = list(sizes), case["batch"] * narrow, 0
    while left and at < len(kept) - 1:
        if kept[at] == wide == -kept[at + 1]:
            kept[at:at + 2], left = [], left - 1
        else:
            at += 1
    return kept


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_events_of_a_head_are_those_of_the_release(path: Any) -> None:
    """The norm before it frees what it made when it has returned: no events of the head."""
    truth = json.loads(path.read_text(encoding="utf-8"))
    wrong = []
    for case in truth["losses"]:
        head, loss = recorded(case, LOSSES[truth["trl"]])
        rows = case["forward"]
        first = next(at for at, size in enumerate(rows) if size > 0)
        ours = [*events(case, head.forward, head.after, loss.forward)], [*events(case, loss.backward, head.backward)]
        if ours != (rows[first:], without_wide_copies(case, case["backward"])):
            wrong.append((case, ours))
    assert truth["losses"]
    assert not wrong
