"""Tensors that the model of DeepSeek-V4 makes before its layers: residual streams, tables of angles, a mask.

nemo-automodel 0.7.0 `components/models/deepseek_v4/model.py`, DeepseekV4Model.forward, and `layers.py`,
build_causal_padding_mask. Its variables hold them until it returns; a checkpoint of a layer keeps what the layer is
given, until its backward.
"""

from __future__ import annotations

import math
from typing import Final

from simcore.operators.shared.aten import new
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["EMBEDDED", "bytes_of", "expanded", "given_to_layers", "looked_up", "make_given"]

EMBEDDED: Final = "inputs_embeds"
"""Output of the embedding, which no layer is given."""
_TRUTH: Final = "uint8"
Spec = tuple[str, tuple[int, ...], str]


def given_to_layers(run: LayerWorkload, rope: int) -> list[Spec]:
    """Name, shape and dtype of what each layer is given beside the streams. `rope`: dimensions that are rotated."""
    table = (run.batch, run.seq, rope)
    tables = [(f"{name}_{of}", table, run.compute) for of in ("own", "compressed") for name in ("cos", "sin")]
    return [("position_ids", (run.seq,), "int64"), *tables,
            ("attention_mask", (run.batch, 1, run.seq, run.seq), run.compute)]


def bytes_of(run: LayerWorkload, rope: int) -> dict[str, int]:
    """Bytes of them by name."""
    return {name: math.prod(shape) * dtype_bytes(dtype) for name, shape, dtype in given_to_layers(run, rope)}


def expanded(tape: Tape, x: Tensor, count: int) -> Tensor:
    """`count` residual streams [b, s, count, hidden] that are each the embedding's output `x` [b, s, hidden]."""
    shape, dtype, moved = x.shape, x.dtype, count * x.nbytes
    node = tape.node((x,), (), lambda tape, grads, saved: [new(tape, shape, dtype, "grad_streams", moved)])
    out = new(tape, (*shape[:2], count, shape[2]), dtype, "streams", x.nbytes, Kernel.COPY)
    out.node = node
    return out


def looked_up(tape: Tape, run: LayerWorkload) -> Tensor:
    """Tokens that the embedding looks up, those of images replaced by zeros: a copy, which its graph keeps."""
    return tape.empty((run.batch, run.seq), "int64", "safe_input_ids")


def make_given(tape: Tape, run: LayerWorkload, rope: int) -> list[Tensor]:
    """The tensors of `given_to_layers`, in the order in which they are made."""
    position, *tables, mask = given_to_layers(run, rope)
    made = [tape.empty(position[1], position[2], position[0])]
    for first, second in zip(tables[::2], tables[1::2], strict=True):
        made += _tables(tape, run, first, second, rope)
    return [*made, _mask(tape, run, mask)]


def _tables(tape: Tape, run: LayerWorkload, cos: Spec, sin: Spec, rope: int) -> list[Tensor]:
    """A pair of tables, of angles in fp32 (DeepseekV4RotaryEmbedding.forward)."""
    batch, seq = run.batch, run.seq
    held = [new(tape, (batch, 1, seq), "fp32", "positions_fp32")]
    held.append(new(tape, (batch, rope // 2, seq), "fp32", "angles", held[0].nbytes, Kernel.GEMM))
    held.append(new(tape, (batch, seq, rope), "fp32", "angles", held[1].nbytes))
    for _ in range(2):
        turned = new(tape, (batch, seq, rope), "fp32", "angles", held[2].nbytes)
        held.append(new(tape, (batch, seq, rope), "fp32", "angles", turned.nbytes))
        del turned
    return [new(tape, shape, dtype, name, held[3].nbytes) for name, shape, dtype in (cos, sin)]


def _mask(tape: Tape, run: LayerWorkload, spec: Spec) -> Tensor:
    """The mask of a window; of several sequences a copy for each."""
    name, shape, dtype = spec
    square = (run.seq, run.seq)
    made = new(tape, square, dtype, "causal")
    made = new(tape, square, dtype, "causal", made.nbytes)
    _places = tape.empty((run.seq,), "int64", "positions")
    late = _too_old(tape, square)
    late = _too_old(tape, square)
    if run.batch == 1:
        return new(tape, shape, dtype, name, made.nbytes + late.nbytes)
    made = new(tape, square, dtype, "causal", made.nbytes + late.nbytes)
    return new(tape, shape, dtype, name, made.nbytes, Kernel.COPY)


def _too_old(tape: Tape, square: tuple[int, int]) -> Tensor:
    apart = new(tape, square, "int64", "distances")
    return new(tape, square, _TRUTH, "too_old", apart.nbytes)
