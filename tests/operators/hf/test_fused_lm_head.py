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


SFT: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/losses/sft-drawn-trl-1.16.0.json").read_text(encoding="utf-8"))


def recorded(case: dict[str, Any], *, no_grad: bool = False, shared: bool = False,
             sequences: int = 0) -> tuple[RecordedLayer, RecordedLayer]:
    """Head and loss of a case; `shared`: of sequences that two ranks share."""
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
                            scored=case["completion"], no_grad=no_grad, cp=1 + shared, sequences=sequences)
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


@pytest.mark.parametrize("number", range(len(SFT["losses"])))
def test_the_head_of_supervised_training_is_the_same(number: int) -> None:
    """As drawn: labels of all tokens or of the last ones, shifted before or not (truth/probe_trl_sft.py)."""
    case = SFT["losses"][number]
    scored = case["scored"] or case["seq"] - (not case["shared"])
    asked = {**case, "prompt": case["seq"] - scored, "completion": scored}
    head, loss = recorded(asked, shared=case["shared"])
    rows = case["forward"]
    first = next(at for at, size in enumerate(rows) if size > 0)
    assert list(events(asked, head.forward, head.after, loss.forward)) == rows[first:]
    assert list(events(asked, loss.backward, head.backward)) == case["backward"]


def test_the_first_token_of_a_packed_sequence_is_nobodys_label() -> None:
    case = {"batch": 1, "prompt": 0, "completion": 64, "vocab": 2000, "hidden": 64, "dtype": "bf16", "mixed": False,
            "lora": False, "tied": False}
    heads = [recorded(case, sequences=count)[0] for count in (0, 1, 4)]
    rows = [max(row[3] for row in head.forward.rows if row[0] == Op.ALLOC and row[3] < 64 * 64 * 2 + 1)
            for head in heads]
    assert rows == [2 * 64 * count for count in (63, 63, 60)]
