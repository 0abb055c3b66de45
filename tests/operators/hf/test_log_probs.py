"""The loss of LLaMA-Factory's rewrite against what its own method allocates and frees (`probe_log_probs.py`)."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

from checkout import ROOT
from simcore.models.graph import build, model_config
from simcore.operators.hf import implementation as hf
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Op, Section

TRUTH: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/losses/log-probs-llamafactory-ff6d4d12.json").read_text(encoding="utf-8"))


def events(case: dict[str, Any], *sections: Section) -> list[int]:
    """Signed bytes of whole logits, but for their allocation and the release of their gradient by the head."""
    least = 2 * case["batch"] * (case["seq"] - 1) * case["vocab"]
    return [row[3] for section in sections for row in section.rows
            if row[0] in (Op.ALLOC, Op.FREE) and abs(row[3]) >= least]


def test_every_allocation_of_whole_logits_is_the_methods() -> None:
    """The model's own log-softmax lives until the trainer's losses are there, the trainer's until their gradient is."""
    wrong = []
    for case in (*TRUTH["cases"], *TRUTH["shared"]):
        graph = build(model_config("llama-3.2-3b", {"vocab_size": case["vocab"]}, "test"), "hf")
        kind = next(kind for kind in graph.kinds if kind.name == "loss")
        run = LayerWorkload(case["batch"], case["seq"], "bf16", {}, "log_probs", cp=case.get("ranks", 1))
        made = hf.record(kind, run, {}, {})
        ours = [events(case, made.forward), events(case, made.backward)]
        theirs = [case["forward"][1:], [size for at, size in enumerate(case["backward"])
                                        if at + 1 < len(case["backward"])]]
        if ours != theirs:
            wrong.append((case["batch"], case["seq"], ours, theirs))
    assert not wrong


def test_losses_that_weigh_tokens_hold_no_more_than_transformers_own() -> None:
    """LLaMA-Factory's DFT and EAFT (`probe_weighed_loss.py`): the same backward, and less before it than in it."""
    cases = json.loads((ROOT / "tests/truth/losses/weighed-llamafactory-ff6d4d12.json").read_text(
        encoding="utf-8"))["cases"]
    own = {case["batch"]: case for case in cases if case["loss"] == "hf"}
    wrong = []
    for case in cases:
        whole = case["batch"] * case["seq"] * case["vocab"] * 4
        graph = build(model_config("llama-3.2-3b", {"vocab_size": case["vocab"]}, "test"), "hf")
        kind = next(kind for kind in graph.kinds if kind.name == "loss")
        made = hf.record(kind, LayerWorkload(case["batch"], case["seq"], "bf16", {}, "hf"), {}, {})
        backward = [row[3] for row in made.backward.rows if row[0] in (Op.ALLOC, Op.FREE) and abs(row[3]) >= whole // 2]
        held = list(accumulate(case["forward"]))
        if (backward != case["backward"][:-1] or case["backward"] != own[case["batch"]]["backward"]
                or max(held) > held[-1] + 2 * whole):
            wrong.append((case["loss"], case["batch"], backward))
    assert not wrong
