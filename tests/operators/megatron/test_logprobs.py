"""Log-probabilities in chunks against what NeMo RL's own function and Megatron-Core's head allocate and reduce."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from checkout import ROOT
from operators.megatron.kinds import run_of
from simcore.models.blocks import Head, LayerKind, Loss
from simcore.operators.megatron.implementation import record
from simcore.operators.megatron.ops.options import MegatronOptions
from simcore.recording.layer import RecordedLayer
from simcore.recording.tape import Op, Section

TRUTH: list[dict[str, Any]] = json.loads(
    (ROOT / "tests/truth/losses/logprobs-nemo-rl-7ea279ab.json").read_text(encoding="utf-8"))["cases"]
HIDDEN = 5


def tapes(case: dict[str, Any], comms: dict[tuple[str, str, str], int], **changed: Any) -> list[RecordedLayer]:
    """Recordings of head and log-probabilities of one case."""
    slots: dict[tuple[str, str], int] = {}
    options = MegatronOptions(logprob_chunk_size=case["chunk"], gradient_accumulation_fusion=False)
    blocks = (("head", Head(case["vocab"], HIDDEN)), ("loss", Loss(case["vocab"])))
    kinds = [LayerKind(name, "qwen3", HIDDEN, block=block) for name, block in blocks]
    return [record(kind, replace(run_of(kind), batch=case["batch"], seq=case["seq"], options=options, **changed),
                   slots, comms) for kind in kinds]


def events(case: dict[str, Any], *sections: Section) -> list[int]:
    """Signed bytes of tensors as large as a chunk's or all logits, those that cross the layers' border among them."""
    least = 2 * 2 * case["batch"] * case["vocab"]
    return [row[3] for row in chain(*(section.rows for section in sections))
            if row[0] in (Op.ALLOC, Op.FREE) and abs(row[3]) >= least]


@pytest.mark.parametrize("case", TRUTH, ids=lambda case: f"{case['batch']}x{case['seq']}-{case['chunk']}")
def test_chunks_are_made_and_freed_as_upstream_does(case: dict[str, Any]) -> None:
    head, passed = tapes(case, {}, no_grad=True)
    assert events(case, head.forward, passed.forward, passed.after) == case["pass"]
    head, found = tapes(case, {})
    assert events(case, head.forward, found.forward, found.after) == case["forward"]
    weight = -2 * case["vocab"] * HIDDEN  # the hook drops the gradient of the head's weight
    backward = [size for size in events(case, found.backward, head.backward) if abs(size) != -weight]
    assert backward == case["backward"]


@pytest.mark.parametrize("case", TRUTH[:2])
def test_parts_of_the_vocabulary_are_reduced_chunk_by_chunk(case: dict[str, Any]) -> None:
    comms: dict[tuple[str, str, str], int] = {}
    _, found = tapes(case, comms, tp=2)
    rows = [[row[3] for row in section.rows if row[0] == Op.COLLECTIVE] for section in (found.forward, found.backward)]
    assert rows == [case["reduced"], case["reduced_backward"]]
    assert ("all_reduce", "tp", "fp32") in comms
