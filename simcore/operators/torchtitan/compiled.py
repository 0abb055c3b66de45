"""torchtitan's blocks and loss under torch.compile (0.2.2, torch 2.13).

torchtitan compiles each block, its checkpoint wrapper inside (`models/llama3/infra/parallelize.py`, apply_compile):
`operators/shared/compiled_block.py`. Versions before 0.2.2 were not measured.
"""

from __future__ import annotations

from typing import Final

from simcore.models.blocks import Attention, LayerKind
from simcore.operators.shared import aten
from simcore.operators.shared.compiled_block import CompiledBlock, compiled_block
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["block", "cross_entropy"]

_LINEARS: Final = {**{name: f"attention.{name}" for name in ("wq", "wk", "wv", "wo")},
                   **{name: f"feed_forward.{name}" for name in ("w1", "w2", "w3")}}


def block(tape: Tape, kind: LayerKind, run: LayerWorkload, x: Tensor, table: Tensor | None) -> Tensor:
    """Output of a compiled block (`TransformerBlock.forward`) for `x` [b, s / tp, hidden], in x's shape.

    `table`: Qwen3's rotary table, None in Llama 3. The block is one autograd node.
    """
    mixer = kind.branches[0].block
    assert isinstance(mixer, Attention)
    code = CompiledBlock(mixer, _LINEARS, run.checkpoint, kind.fp8, by_complex=not mixer.qk_norm)
    return compiled_block(tape, run, code, x, *(() if table is None else (table,)))


def cross_entropy(tape: Tape, logits: Tensor) -> Tensor:
    """Compiled loss, a scalar in fp32, over bf16 `logits` [b, s, v].

    For backward it saves the logits and, in fp32, the largest logit and the logarithm of each row. No copy in fp32 is
    written, backward writes the gradient in the logits' own type.
    """
    shape, dtype, moved = logits.shape, logits.dtype, logits.nbytes
    column = (*shape[:-1], 1)
    node = tape.node((logits,), (logits,), lambda tape, grads, saved: [
        aten.new(tape, shape, dtype, "grad_logits", moved, Kernel.LOSS)])
    highest = aten.new(tape, column, "fp32", "max", moved, Kernel.LOSS)
    logarithm = aten.new(tape, column, "fp32", "log", moved, Kernel.LOSS)
    tape.save(node, highest, logarithm)
    loss = aten.new(tape, (), "fp32", "loss", kernel=Kernel.LOSS)
    loss.node = node
    return loss
