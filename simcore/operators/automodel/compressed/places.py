"""The list of keys that each query sees, as NeMo Automodel makes it of a mask for TileLang's kernels of DeepSeek-V4.

nemo-automodel 0.7.0 `components/models/deepseek_v4/optimized_kernels.py`, build_dsv4_sparse_topk_indices: a window's
keys, then the compressed ones, in int64.
"""

from __future__ import annotations

from simcore.models.blocks import CompressedAttention
from simcore.operators.automodel.compressed.compressor import Compressed, limits
from simcore.operators.shared.aten import new
from simcore.recording.tape import Tape, Tensor

__all__ = ["places_seen"]

_TRUTH = "uint8"
"""Type with the size of torch's truth values."""


def places_seen(tape: Tape, block: CompressedAttention, mask: Tensor, made: Compressed | None) -> Tensor:
    """Keys that each query sees, int64 [b, s, slots]; -1 where the `mask` [b, 1, s, keys] hides one.

    `made`: the compressed keys, None for a layer without.
    """
    batch, _, seq, _ = mask.shape
    window = min(seq, block.window)
    _offsets = new(tape, (window,), "int64", "offsets")
    _first = _of_window(tape, batch, seq, window)
    late = new(tape, (batch, seq, window), _TRUTH, "is_later", _first.nbytes)
    places = _or_nowhere(tape, (batch, seq, window), (batch, seq, window))
    del late
    further: list[Tensor] = []
    if made is not None:
        further = _of_compressed(tape, made, batch, seq)
        slots = window + further[-1].shape[2]
        places = new(tape, (batch, seq, slots), "int64", "places", places.nbytes + further[-1].nbytes)
    places = _valid(tape, places, joins="and")
    _safe = new(tape, places.shape, "int64", "clamp", places.nbytes)
    _seen = new(tape, places.shape, mask.dtype, "mask_of_places", places.nbytes)
    return _valid(tape, places, joins="or")


def _of_window(tape: Tape, batch: int, seq: int, window: int) -> Tensor:
    """Keys of a window, of which some come later than the query."""
    first = new(tape, (batch, seq, 1), "int64", "first")
    for _ in range(2):
        first = new(tape, first.shape, "int64", "first", first.nbytes)
    return new(tape, (batch, seq, window), "int64", "window", first.nbytes)


def _or_nowhere(tape: Tape, shape: tuple[int, ...], like: tuple[int, ...]) -> Tensor:
    nowhere = new(tape, like, "int64", "nowhere")
    return new(tape, shape, "int64", "places", 2 * nowhere.nbytes)


def _of_compressed(tape: Tape, made: Compressed, batch: int, seq: int) -> list[Tensor]:
    """Variables about compressed keys that the function holds; last their places [b, s, keys]."""
    held: list[Tensor] = []
    shape: tuple[int, ...] = (batch, seq, made.keys.shape[1])
    like: tuple[int, ...] = (1, 1, shape[2])
    if made.chosen is not None:
        shape = like = made.chosen.shape
    else:
        held = [new(tape, like, "int64", "positions"), limits(tape, batch, seq)]
    is_key = new(tape, shape, _TRUTH, "is_key")
    behind = new(tape, like, "int64", "behind_window")
    places = _or_nowhere(tape, shape, like)
    del is_key, behind
    return [*held, places]


def _valid(tape: Tape, places: Tensor, joins: str) -> Tensor:
    """Places of keys that are there, or that a mask does not hide; else -1. `joins`: name of what joins two masks."""
    both = [new(tape, places.shape, _TRUTH, "is_key", places.nbytes) for _ in range(2)]
    valid = new(tape, places.shape, _TRUTH, f"is_key_{joins}", 2 * both[0].nbytes)
    both.clear()
    made = _or_nowhere(tape, places.shape, places.shape)
    del valid
    return made
