"""The loss of OpenRLHF's supervised trainer, event by event, against its own code (truth/probe_openrlhf.py)."""

from __future__ import annotations

import json
from typing import Any

from checkout import ROOT
from operators.hf.test_implementation import Model
from operators.hf.test_losses import CASE
from simcore.recording.tape import Op, Section

TRUTH: dict[str, Any] = json.loads((ROOT / "tests/truth/openrlhf/0.11.0.json").read_text(encoding="utf-8"))


def signs(size: int, *sections: Section) -> list[str]:
    """Allocations and frees of tensors of the logits' size, and of twice that, in order."""
    return [("+" if row[0] == Op.ALLOC else "-") * (abs(row[3]) // size) for section in sections
            for row in section.rows if row[0] in (Op.ALLOC, Op.FREE) and abs(row[3]) in (size, 2 * size)]


def test_logits_in_fp32_are_held_until_the_next_step_has_its_own() -> None:
    """The logits' own gradient is handed to the head, which frees it: the last event of the real backward."""
    for release, found in TRUTH["releases"].items():
        for batch in (1, 2):
            head, loss = Model(CASE | {"loss": "flash_fp32", "batch": batch}).tapes[-2:]
            logits = max(row[3] for row in head.forward.rows if row[0] == Op.ALLOC)
            theirs = found["loss"][str(batch)]
            assert [*signs(logits, head.forward), *signs(logits, loss.forward)] == theirs["forward"], release
            assert [*signs(logits, loss.backward), *signs(logits, head.backward)] == theirs["backward"], release
            assert signs(logits, loss.rest) == ["++"]
            assert signs(logits, loss.late) in (["--", "++"], ["++", "--"])
