"""The loss in place, event by event, against torch and a stand-in for flash-attn's kernel (truth/probe_verl.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from checkout import ROOT
from operators.hf.test_implementation import CASES, Model
from simcore.recording.tape import Op, Section

TRUTH: dict[str, Any] = json.loads((ROOT / "tests/truth/verl/torch-2.13.0.json").read_text(encoding="utf-8"))
CASE = next(iter(CASES.values()))["case"] | {"loss": "flash"}


def signs(size: int, *sections: Section) -> Iterator[str]:
    """Allocations and frees of tensors of `size` bytes, in order."""
    for section in sections:
        yield from ("+" if row[0] == Op.ALLOC else "-" for row in section.rows
                    if row[0] in (Op.ALLOC, Op.FREE) and abs(row[3]) == size)


def test_a_loss_in_place_has_the_events_of_verls_actor() -> None:
    """The logits' own gradient is handed to the head, which frees it: the last event of the real backward."""
    model = Model(CASE)
    head, loss = model.tapes[-2:]
    logits = max(row[3] for row in head.forward.rows if row[0] == Op.ALLOC)
    assert [*signs(logits, head.forward), *signs(logits, loss.forward)] == TRUTH["loss"]["forward"]
    assert [*signs(logits, loss.backward), *signs(logits, head.backward)] == TRUTH["loss"]["backward"]


def test_an_entropy_in_the_loss_has_the_events_of_verls_actor() -> None:
    """A CPU casts the logits for each product with fp32, which CUDA does not: "++" and "--" more, forward and back."""
    for how, name in (("compiled", "flash_entropy"), ("eager", "flash_entropy_eager")):
        model = Model(CASE | {"loss": name})
        head, loss = model.tapes[-2:]
        logits = max(row[3] for row in head.forward.rows if row[0] == Op.ALLOC)
        sizes = [[sign * (abs(row[3]) // logits) for section in sections for row in section.rows
                  if row[0] in (Op.ALLOC, Op.FREE) and abs(row[3]) in (logits, 2 * logits)
                  for sign in ["+" if row[0] == Op.ALLOC else "-"]]
                 for sections in ((head.forward, loss.forward), (loss.backward, head.backward))]
        theirs = [list(TRUTH["entropy"][how][part]) for part in ("forward", "backward")]
        if how == "eager":
            assert theirs[0][-4:] == ["++", "++", "--", "--"]
            theirs[0][-4:] = ["++", "--"]
            assert theirs[1][:6] == ["++", "++", "++", "--", "+", "--"]
            theirs[1][:6] = ["++", "++", "+", "--"]
        assert sizes == theirs, how


def test_padded_rows_have_the_events_of_verls_actor() -> None:
    """Several rows are copied for their answers, which are all tokens here, and all but one there."""
    for batch in (1, 2):
        model = Model(CASE | {"loss": "flash_padded", "batch": batch})
        head, loss = model.tapes[-2:]
        logits = max(row[3] for row in head.forward.rows if row[0] == Op.ALLOC)
        theirs = TRUTH["padded"][str(batch)]
        assert [*signs(logits, head.forward), *signs(logits, loss.forward), *signs(logits, loss.after)] == (
            theirs["forward"])
        assert [*signs(logits, loss.backward), *signs(logits, head.backward)] == theirs["backward"]


def test_a_fused_head_has_the_events_of_verls() -> None:
    """Chunks of 512 rows: logits in 16 bits and in fp32, and the weight with its parts, in torch's order."""
    truth = json.loads((ROOT / "tests/truth/verl/fused-torch-2.13.0.json").read_text(encoding="utf-8"))
    vocab, hidden, tokens, chunk = (truth[name] for name in ("vocab", "hidden", "tokens", "chunk"))
    sizes = {2 * chunk * vocab: "c", 4 * chunk * vocab: "C", 2 * vocab * hidden: "W", 2 * tokens * hidden: "H"}
    shapes = {"vocab_size": vocab, "hidden_size": hidden, "tie_word_embeddings": False}
    head = Model(CASE | {"loss": "fused_linear", "batch": 1, "seq": tokens,
                         "overrides": CASE["overrides"] | shapes}).tapes[-2]

    def events(*sections: Section) -> list[str]:
        return [("+" if row[0] == Op.ALLOC else "-") + sizes[abs(row[3])] for section in sections
                for row in section.rows if row[0] in (Op.ALLOC, Op.FREE) and abs(row[3]) in sizes]

    assert events(head.forward) == truth["forward"] == truth["no_grad"]
    assert events(head.backward)[:len(truth["backward"])] == truth["backward"]
