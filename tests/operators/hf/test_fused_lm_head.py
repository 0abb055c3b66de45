"""TRL's head, which scores tokens by tiles of logits, event by event (truth/probe_trl_grpo.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from checkout import ROOT
from simcore.models.blocks import Head
from simcore.models.graph import build, model_config
from simcore.operators.hf import implementation as hf
from simcore.operators.hf.options import HfOptions
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Op, Param, Section

TRUTH: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/trl_grpo/trl-1.16.0-torch-2.13.0.json").read_text(encoding="utf-8"))


def recorded(case: dict[str, Any], *, no_grad: bool = False) -> tuple[RecordedLayer, RecordedLayer]:
    """Head and loss of a case."""
    graph = build(model_config("llama-tiny", {"vocab_size": case["vocab"], "hidden_size": case["hidden"],
                                              "tie_word_embeddings": case["tied"]}, "test"), "hf")
    head, loss = (graph.kinds[layer.kind] for layer in graph.layers[-2:])
    assert isinstance(head.block, Head)
    weight = Param("weight", (case["vocab"], case["hidden"]), case["dtype"], not case["lora"])
    slots: dict[tuple[str, str], int] = {}
    found, wide = [], case["mixed"] and case["dtype"] == "fp32"
    for kind, params in ((head, {"weight": weight}), (loss, {})):
        run = LayerWorkload(case["batch"], case["prompt"] + case["completion"],
                            "bf16" if case["mixed"] else case["dtype"], params, "fused_lm_head",
                            options=HfOptions(autocast=wide, hidden="fp32" if wide else ""),
                            scored=case["completion"], no_grad=no_grad)
        found.append(hf.record(kind, run, slots, {}))
    return found[0], found[1]


def events(case: dict[str, Any], *sections: Section) -> Iterator[int]:
    """Signed bytes of tensors of a hidden state's size and more, in order."""
    least = 2 * case["batch"] * case["completion"] * case["hidden"]
    yield from (row[3] for section in sections for row in section.rows
                if row[0] in (Op.ALLOC, Op.FREE) and abs(row[3]) >= least)


@pytest.mark.parametrize("number", range(len(TRUTH["losses"])))
def test_a_heads_events_are_those_of_trl(number: int) -> None:
    """The norm before it frees what it made when it has returned, which is behind the mark: no event of the head."""
    case = TRUTH["losses"][number]
    head, loss = recorded(case)
    rows = case["forward"]
    first = next(at for at, size in enumerate(rows) if size > 0)
    assert list(events(case, head.forward, head.after, loss.forward)) == rows[first:]
    assert list(events(case, loss.backward, head.backward)) == case["backward"]
