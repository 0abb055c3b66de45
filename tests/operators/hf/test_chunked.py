"""The loss in chunks against what torch and inductor allocate and free."""

from __future__ import annotations

import json
from typing import Any

import pytest

import small
from checkout import ROOT
from simcore.models.graph import build, model_config
from simcore.operators.hf import implementation as hf
from simcore.operators.hf.chunked import CHUNKS
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Op, Param, Section

TRUTH: dict[str, Any] = json.loads(
    (ROOT / "tests/truth/losses/chunked-torch-2.13.0.json").read_text(encoding="utf-8"))
VOCAB, HIDDEN, TOKENS = 5000, 64, 128


def tapes(*, trainable: bool = True) -> dict[str, RecordedLayer]:
    """Recordings of embedding and head, which share a weight, by name."""
    graph = build(model_config("llama-3.2-3b", {"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_attention_heads": 2,
                                                "num_key_value_heads": 1, "head_dim": 32}, "test"), "hf")
    weight = Param("weight", (VOCAB, HIDDEN), "bf16", trainable, tied=True)
    slots: dict[tuple[str, str], int] = {}
    run = LayerWorkload(1, TOKENS, "bf16", {"weight": weight}, "chunked")
    return {kind.name: hf.record(kind, run, slots, {}) for kind in graph.kinds if kind.name in ("embedding", "head")}


def events(*sections: Section) -> list[str]:
    sizes = {TOKENS // CHUNKS * VOCAB * 2: "logits", VOCAB * HIDDEN * 2: "weight"}
    rows = [row for section in sections for row in section.rows if row[0] in (Op.ALLOC, Op.FREE)]
    return [("+" if row[3] > 0 else "-") + sizes[abs(row[3])] for row in rows if abs(row[3]) in sizes]


def test_forward_keeps_the_logits_of_every_chunk() -> None:
    assert TRUTH["chunks"] == CHUNKS
    assert events(tapes()["head"].forward) == TRUTH["forward"]


def test_backward_frees_logits_before_the_first_product() -> None:
    head, embedding = tapes()["head"], tapes()["embedding"]
    mine, theirs = events(head.backward), TRUTH["backward"]
    assert mine == theirs[:len(mine)]
    assert theirs[len(mine):] == ["+weight", "-weight"]
    assert [sign for sign in events(embedding.backward) if sign == "+weight"] == ["+weight", "+weight"]


def test_at_the_embedding_two_whole_gradients_are_the_most() -> None:
    """Its own and the head's: the sum is in place."""
    held = most = 1  # the head's waits
    for sign in events(tapes()["embedding"].backward):
        held += 1 if sign[0] == "+" else -1
        most = max(most, held)
    assert most == 2


def test_a_frozen_weight_has_no_gradient() -> None:
    assert "+weight" not in events(tapes(trainable=False)["head"].backward)


@pytest.mark.parametrize("tokens", [3, 64, 1001])
def test_chunks_hold_all_tokens(tokens: int) -> None:
    program = small.program_of("ddp", model="llama-3.2-3b", loss="chunked", seq_len=tokens)
    made = [size for _, phase, size in small.postings(program, "lm_head/chunk_logits") or small.postings(
        program, "chunk_logits") if size > 0]
    assert sum(made) == tokens * 128256 * 2
