"""The loss of a student: what of the logits' size it allocates, in the order of torch's autograd."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from operators.megatron.kinds import run_of
from simcore.models.blocks import LayerKind, Loss
from simcore.models.graph import build, model_config
from simcore.operators.hf import implementation as hf
from simcore.operators.megatron import implementation as megatron
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Op, Section

VOCAB: Final = 4096
SEQ: Final = 8
BF16, FP32 = 2 * SEQ * VOCAB, 4 * SEQ * VOCAB


def events(*sections: Section) -> list[int]:
    """Signed bytes of tensors of the logits' size."""
    return [row[3] for section in sections for row in section.rows
            if row[0] in (Op.ALLOC, Op.FREE) and abs(row[3]) >= BF16]


def test_a_gather_keeps_no_logits_and_its_gradient_is_as_large_as_they_are() -> None:
    """Torch 2.13: _to_copy to fp32 in forward; new_zeros and scatter_add_ in fp32, then _to_copy, in backward."""
    graph = build(model_config("llama-3.2-3b", {"vocab_size": VOCAB}, "test"), "hf")
    kind = next(kind for kind in graph.kinds if kind.name == "loss")
    made = hf.record(kind, LayerWorkload(1, SEQ, "bf16", {}, "top_k"), {}, {})
    assert events(made.forward, made.after) == [FP32, -FP32, -BF16]
    assert events(made.backward) == [FP32, BF16, -FP32]


def test_workers_of_megatron_do_the_same() -> None:
    kind = LayerKind("loss", "qwen3", 5, block=Loss(VOCAB))
    made = megatron.record(kind, replace(run_of(kind), batch=1, seq=SEQ, loss="top_k"), {}, {})
    assert events(made.forward) == [FP32, -FP32]
    assert events(made.backward)[:3] == [FP32, BF16, -FP32]
