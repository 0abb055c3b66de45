"""Layers with experts as Automodel runs them: what all families' tests ask of one."""

from __future__ import annotations

from simcore.models.graph import ModelGraph
from simcore.operators.automodel.implementation import record
from simcore.operators.automodel.options import RELEASE_0_7_0
from simcore.recording.layer import LayerWorkload
from simcore.recording.rows import Op
from simcore.recording.tape import Param

__all__ = ["expect_gradients_alone"]


def expect_gradients_alone(made: ModelGraph, layer: int, checkpoint: str) -> None:
    """Raises AssertionError if more than gradients is alive behind the backward of layer `layer`, over 4 ranks."""
    kind = made.layers[layer].kind
    params = {t.name: Param(t.name, (t.shape[0] // 4, *t.shape[1:]) if t.dims[0] == "experts" else t.shape,
                            t.stored or "bf16", trainable=True) for t in made.tensors[kind] if not t.is_buffer}
    run = LayerWorkload(1, 512, "bf16", params, ep=4, rows_per_token=2 << 16, checkpoint=checkpoint,
                        options=RELEASE_0_7_0)
    found = record(made.kinds[kind], run, {}, {})
    live = sum(row[3] for section in (found.forward, found.after, found.late, found.backward) for row in section.rows
               if row[0] in (Op.ALLOC, Op.FREE))
    assert live == sum(num_bytes for _, _, num_bytes in found.grads)
