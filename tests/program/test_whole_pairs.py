"""DPO of TRL 0.24.0, with whole logits and the outputs of all layers, against a real step (`probe_trl_pairs.py`)."""

from __future__ import annotations

from typing import Any

import pytest

from program.test_fused_pairs import RNG_STATE, SIZES, moments, truth
from simcore.models.graph import build, model_config
from simcore.operators.hf import implementation as hf
from simcore.operators.hf.options import HfOptions
from simcore.recording.layer import LayerWorkload
from simcore.recording.rows import REFERENCE_BORDER
from simcore.recording.tape import Op, Row

FEW = 64
"""Bytes a token of what is not recorded one by one: labels, masks, numbers."""
FILES = ["preference-trl-0.24.0.json", "preference-drawn-trl-0.24.0.json"]


def recorded(case: dict[str, Any]) -> list[list[int]]:
    """Signed bytes of rows of logits: of the policy, of the reference if it passes, and in backward."""
    graph = build(model_config("llama-3.2-3b", SIZES | {"vocab_size": case["vocab"]}, "test"), "hf")
    kind = next(kind for kind in graph.kinds if kind.name == "loss")
    loss = "preference_whole_alone" if case["before"] else "preference_whole"
    made = hf.record(kind, LayerWorkload(2 * case["pairs"], case["seq"], "bf16", {}, loss, options=HfOptions(
        autocast=case["mixed"])), {}, {})
    rows = made.forward.rows
    border = next((number for number, row in enumerate(rows) if row[0] == Op.MARK and row[2] == REFERENCE_BORDER),
                  len(rows))
    given = _large(case, rows[border:])
    behind = 2 * (case["mixed"] and case["method"] == "full")  # the mark of a second model ends behind the cast
    return [_large(case, rows[:border]), given[behind:], _large(case, made.backward.rows)]


def _large(case: dict[str, Any], rows: tuple[Row, ...]) -> list[int]:
    least = 2 * (case["seq"] - 1) * case["vocab"]
    return [row[3] for row in rows if row[0] in (Op.ALLOC, Op.FREE) and abs(row[3]) >= least]


def without_wide_copies(case: dict[str, Any], sizes: list[int]) -> list[int]:
    """Sizes without copies in fp32 that a CPU makes of 16 bits for a mean and a softmax's backward, and a GPU not."""
    wide = {4 * case["pairs"] * (case["seq"] - 1) * case["vocab"], 4 * case["seq"] * case["vocab"]}
    kept = list(sizes)
    for at in range(len(sizes) - 2, -1, -1):
        if not case["mixed"] and kept[at] in wide and kept[at + 1] == -kept[at]:
            kept[at:at + 2] = []
    return kept


@pytest.mark.parametrize("name", FILES)
def test_rows_of_logits_are_those_of_trls_own_step(name: str) -> None:
    """Event by event; what follows in backward is of the head."""
    wrong = []
    for case in truth(name):
        ours = recorded(case)
        theirs = [without_wide_copies(case, case[part]) for part in ("policy", "reference", "backward")]
        theirs[2] = theirs[2][:len(ours[2])]
        if ours != theirs:
            wrong.append((case, ours, theirs))
    assert not wrong


@pytest.mark.parametrize("name", FILES)
def test_the_bytes_of_a_step_are_those_of_trls_own(name: str) -> None:
    """But for a few numbers a token; without mixed precision a CPU's highest has copies in fp32."""
    wrong = []
    for case in truth(name):
        states = 4 * RNG_STATE * case["replays"]
        found = moments(case, "preference_whole")
        off = {part: size + states - case[part] for part, size in found.items() if part != "highest" or case["mixed"]}
        if max(map(abs, off.values())) > FEW * 2 * case["pairs"] * case["seq"]:
            wrong.append((case, off))
    assert not wrong
