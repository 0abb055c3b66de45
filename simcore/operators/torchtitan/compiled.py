"""torchtitan's blocks under torch.compile (0.2.2, torch 2.13).

torchtitan compiles each block, its checkpoint wrapper inside (`models/llama3/infra/parallelize.py`, apply_compile):
`operators/shared/compiled_block.py`. Keys and values that releases before 0.2.2 repeat for every head were measured
(`repeat_kv`), not what else they did otherwise.
"""

from __future__ import annotations

from typing import Final

from simcore.models.blocks import Attention, LayerKind
from simcore.operators.shared.compiled_block import compiled_block
from simcore.operators.shared.compiled_kernels import CompiledBlock
from simcore.operators.torchtitan.options import TorchtitanOptions
from simcore.recording.layer import LayerWorkload
from simcore.recording.rows import Module
from simcore.recording.tape import Tape, Tensor

__all__ = ["block"]

_LINEARS: Final = {**{name: f"attention.{name}" for name in ("wq", "wk", "wv", "wo")},
                   **{name: f"feed_forward.{name}" for name in ("w1", "w2", "w3")}}


def block(tape: Tape, kind: LayerKind, run: LayerWorkload, x: Tensor, table: Tensor | None) -> Tensor:
    """Output of a compiled block (`TransformerBlock.forward`) for `x` [b, s / tp, hidden], in x's shape.

    `table`: Qwen3's rotary table, None in Llama 3. The block is one autograd node.
    """
    mixer = kind.branches[0].block
    assert isinstance(mixer, Attention)
    options = TorchtitanOptions.of(run.options)
    repeats = mixer.q_size // mixer.kv_size if options.repeat_kv else 1
    code = CompiledBlock(mixer, _LINEARS, run.checkpoint, kind.fp8, scales_rows=kind.fp8 and options.fp8_rows,
                         by_complex=not mixer.qk_norm, repeats=repeats, pipelined=options.async_tp and run.tp > 1)
    tape.module = Module.MLP if code.pipelined else Module.NONE  # tells its collectives from those of the head
    out = compiled_block(tape, run, code, x, *(() if table is None else (table,)))
    tape.module = Module.NONE
    return out
