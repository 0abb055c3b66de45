"""Mamba-2's convolution and scan, alone or with gated norm and output projection: one function of autograd.

mamba_ssm e9594ce1 `ops/triton/ssd_combined.py`, MambaSplitConv1dScanCombinedFn, and causal_conv1d's
`cpp_functions.py`, event by event as measured over kernels that do nothing (`tests/truth/probe_mamba_scan.py`). Local
variables live as long as its own do: those of `_mamba_chunk_scan_combined_bwd` until it returns. Backward makes every
parameter's gradient, wanted or not. Sums over dB, dC and dCB are cut by the number of SMs, an H100's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from simcore.models.blocks import Mamba2
from simcore.operators.shared.aten import Grads, Operand, Saved, new
from simcore.recording.host_operators import MAMBA_SCAN
from simcore.recording.tape import Kernel, Param, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["split_conv_scan"]

_NUM_SMS: Final = 132
_ROWS_OF_D: Final = 32
"""Smallest tile of a chunk's positions: of D's gradient, and of that of dt (BLOCK_SIZE_min)."""
_COLUMNS_OF_STATE: Final = 64
"""Smallest tile of a state (`_state_passing_bwd`, BLOCK_SIZE_min)."""


Tail = tuple[Param | None, Param]


def split_conv_scan(tape: Tape, zxbcdt: Tensor, block: Mamba2, small: tuple[Operand, ...],
                    tail: Tail | None, numbers: tuple[Tensor, ...] = ()) -> Tensor:
    """Output of `mamba_split_conv1d_scan_combined` for `zxbcdt` [batch, seq, in_proj].

    [batch, seq, hidden], without `tail` [batch, seq, inner]. `small`: weight and bias of the convolution, bias of dt,
    A, D; `tail`: weights of the gated norm, None without one, and of the output projection. `numbers`: of packed
    sequences, kept.
    """
    scan = _Scan(tape, block, zxbcdt.shape[0], zxbcdt.shape[1], zxbcdt.dtype)
    weights = (*small, *(param for param in tail or () if param is not None))
    shapes = [(p.shape, p.dtype) for p in weights]

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        made = _backward(scan, shapes, tail)
        grads.clear()
        saved.reverse()  # a list drops its last item first
        return made

    given = (zxbcdt, *weights)
    node = tape.node(given, (*given, *numbers), backward, tuple(x.shape for x in given), tuple(x.dtype for x in given))
    out, kept = _forward(scan, tail)
    tape.save(node, *kept)
    out.node = node
    return out


@dataclass(frozen=True, slots=True)
class _Scan:
    """One call: its tape and sizes."""

    tape: Tape
    block: Mamba2
    batch: int
    seq: int
    dtype: str

    @property
    def tokens(self) -> int:
        return self.batch * self.seq

    @property
    def chunks(self) -> int:
        return self.batch * -(-self.seq // self.block.chunk)

    @property
    def state(self) -> tuple[int, int]:
        """Chunk states."""
        return self.chunks, self.block.inner * self.block.state

    @property
    def splits(self) -> int:
        """Parts over heads in which dB, dC and dCB are summed (`_chunk_state_bwd_db`)."""
        b = self.block
        per_group = b.num_heads // b.num_groups
        return -(-per_group // min(-(-self.chunks * b.num_heads // _NUM_SMS), per_group))

    @property
    def inner_bytes(self) -> int:
        """x, z, y or a gradient of one of them."""
        return self.tokens * self.block.inner * dtype_bytes(self.dtype)

    @property
    def group_bytes(self) -> int:
        """B or C."""
        return self.tokens * self.block.num_groups * self.block.state * dtype_bytes(self.dtype)

    @property
    def state_flops(self) -> int:
        """One of the products with the state (2 N P H a token)."""
        return 2 * self.tokens * self.block.state * self.block.inner

    @property
    def intra_flops(self) -> int:
        """One product inside a chunk (2 Q P H a token; the kernels compute the masked half too)."""
        return 2 * self.tokens * self.block.chunk * self.block.inner

    @property
    def bmm_flops(self) -> int:
        """C B^T of the chunks (2 Q N G a token)."""
        return 2 * self.tokens * self.block.chunk * self.block.state * self.block.num_groups

    def steps(self, name: str, times: int = 1, kernel: Kernel | None = None, moved: int = 0, flops: int = -1) -> Tensor:
        """fp32 numbers for each position of each chunk and head, `times` as many."""
        shape = (self.chunks * self.block.chunk, self.block.num_heads * times)
        return new(self.tape, shape, "fp32", name, moved, kernel, flops) if kernel else self.tape.empty(
            shape, "fp32", name)

    def inner(self, name: str, moved: int = 0, kernel: Kernel = Kernel.NORM, flops: int = 0) -> Tensor:
        """x, z, y or a gradient of one of them."""
        shape = (self.batch, self.seq, self.block.inner)
        return new(self.tape, shape, self.dtype, name, moved, kernel, flops) if moved else self.tape.empty(
            shape, self.dtype, name)

    def convolved(self) -> Tensor:
        b, channels = self.block, self.tokens * self.block.conv_dim
        return new(self.tape, (self.tokens, b.conv_dim), self.dtype, "conv", 2 * channels, Kernel.CONV,
                   2 * b.conv_kernel * channels)

    def scores(self, name: str, splits: int = 1, moved: int = 0, flops: int = 0) -> Tensor:
        """Products of C and B inside the chunks."""
        b = self.block
        return new(self.tape, (self.chunks, splits, b.num_groups, b.chunk * b.chunk), "fp32", name, moved,
                   Kernel.MAMBA_SCAN, flops)

    def product(self, shape: tuple[int, ...], weight: Param, name: str, moved: int) -> Tensor:
        return new(self.tape, shape, self.dtype, name, moved, Kernel.GEMM, 2 * self.tokens * weight.numel)


# ---- forward --------------------------------------------------------------------------------------------------------
def _forward(scan: _Scan, tail: Tail | None) -> tuple[Tensor, list[Tensor]]:
    """The output, and what is kept beside the inputs: the scan's output before its gate, the norm's statistics.

    Without a norm the scan's kernel gates its output itself.
    """
    tape, tokens = scan.tape, scan.tokens
    conv = scan.convolved()
    decay, dt = (scan.steps(name, kernel=Kernel.MAMBA_SCAN) for name in ("decay", "dt"))
    states, final = _states(scan, scan.dtype)
    scores = scan.scores("cb", moved=2 * scan.group_bytes, flops=scan.bmm_flops)
    gated = None if tail and tail[0] else scan.inner("scan", scan.inner_bytes)
    # What forward takes of the host besides its other five kernels is counted here.
    y = new(tape, (scan.batch, scan.seq, scan.block.inner), scan.dtype, "scan_out",
            scores.nbytes + states.nbytes + 3 * scan.inner_bytes + scan.group_bytes, Kernel.MAMBA_SCAN,
            scan.intra_flops + scan.state_flops, MAMBA_SCAN.forward - 5)
    del scores
    if tail is None:
        assert gated is not None
        del conv, decay, dt, states, final
        return gated, [y]
    rstd = list[Tensor]()
    normed = gated or scan.inner("gated_norm", 3 * y.nbytes, Kernel.NORM, 10 * y.numel)
    if gated is None:
        rstd.append(tape.empty((tokens, scan.block.num_groups), "fp32", "gated_norm_rstd"))
    gated = None
    weight, narrow = tail[1], _narrow(scan, tail[1])
    out = scan.product((scan.batch, scan.seq, weight.shape[0]), weight, "out_proj", normed.nbytes + weight.nbytes)
    del normed
    del conv, decay, dt, states, final
    return out, [y, *rstd, *narrow]


def _narrow(scan: _Scan, weight: Param) -> list[Tensor]:
    """The output projection's weight in the type of the products, a copy that is kept, where it has another.

    The function casts it under autocast; without, its product takes no two types.
    """
    if weight.dtype == scan.dtype:
        return []
    return [new(scan.tape, weight.shape, scan.dtype, "out_proj_weight", weight.nbytes)]


def _states(scan: _Scan, dtype: str) -> tuple[Tensor, Tensor]:
    """Chunk states, passed on from chunk to chunk into `dtype`; and the last ones, in fp32."""
    made = new(scan.tape, scan.state, "fp32", "chunk_states", scan.inner_bytes + scan.group_bytes, Kernel.MAMBA_SCAN,
               scan.state_flops)
    passed = new(scan.tape, scan.state, dtype, "states", made.nbytes, Kernel.MAMBA_SCAN, 2 * made.numel)
    return passed, scan.tape.empty((scan.batch, scan.state[1]), "fp32", "final_states")


# ---- backward -------------------------------------------------------------------------------------------------------
def _backward(scan: _Scan, shapes: list[tuple[tuple[int, ...], str]], tail: Tail | None) -> Grads:
    """Gradients of zxBCdt and of the weights with these shapes and types.

    The gated output is computed again, because the output projection's gradient needs it; without a norm by the scan's
    kernels, into a tensor of their own.
    """
    tape, (of_conv, of_bias, _, _, of_d) = scan.tape, shapes[:5]
    again = scan.inner("gated_norm") if tail else None
    conv = scan.convolved()
    to_input = tape.empty((scan.batch, scan.seq, scan.block.in_proj), scan.dtype, "grad_in_proj_out")
    of_conved = tape.empty((scan.tokens, scan.block.conv_dim), scan.dtype, "grad_conv")
    of_normed = of_scan = to_norm = to_out = None
    _gated = list[Tensor]()
    if tail:
        of_normed = scan.product((scan.batch, scan.seq, scan.block.inner), tail[1], "grad_gated_norm",
                                 2 * scan.tokens * scan.block.hidden)
        of_scan, to_norm = _of_norm(scan, tail[0]) if tail[0] else (None, None)
    to_dt, to_a, to_d = _of_chunks(scan, of_d[1], gated=not (tail and tail[0]), again=_gated if tail else None)
    if tail:
        to_out = scan.product(tail[1].shape, tail[1], "grad_out_proj", 2 * scan.tokens * sum(tail[1].shape))
    tape.compute(Kernel.CONV, 4 * scan.block.conv_kernel * scan.tokens * scan.block.conv_dim, 3 * of_conved.nbytes)
    to_conv, to_bias = (tape.empty(shape, "fp32", "grad_mamba_param") for shape in (of_conv[0], of_bias[0]))
    to_conv = _narrowed(tape, to_conv, of_conv[1])
    to_bias = _narrowed(tape, to_bias, of_bias[1])
    for shape, dtype in shapes[:len(shapes) - bool(tail)]:  # sums and casts of small gradients, a kernel each
        tape.compute(Kernel.ELEMENTWISE, math.prod(shape), math.prod(shape) * dtype_bytes(dtype), 0)
    if of_scan is None:
        again = of_normed = None
    del of_scan, conv, of_conved, again, of_normed
    return [to_input, to_conv, to_bias, to_dt, to_a, to_d, *([to_norm] if tail and tail[0] else []),
            *([to_out] if tail else [])]


def _narrowed(tape: Tape, x: Tensor, dtype: str) -> Tensor:
    """`x` in `dtype`: a copy, unless it has that type."""
    return x if x.dtype == dtype else tape.empty(x.shape, dtype, "grad_mamba_param")


def _of_norm(scan: _Scan, weight: Param) -> tuple[Tensor, Tensor]:
    """Gradients of the gated norm's input and weight, which is summed over parts of rows (`_layer_norm_bwd`)."""
    b, tape = scan.block, scan.tape
    grad = scan.inner("grad_scan", 4 * scan.inner_bytes, Kernel.NORM, 20 * scan.tokens * b.inner)
    warps = min(max((1 << (b.inner // b.num_groups - 1).bit_length()) // 256, 1), 8)
    rows = math.ceil(_NUM_SMS * math.ceil(4 / warps) / b.num_groups)
    _parts = tape.empty((rows, b.inner), "fp32", "grad_norm_weight")
    return grad, _narrowed(tape, tape.empty(weight.shape, "fp32", "grad_norm_weight"), weight.dtype)


def _of_chunks(scan: _Scan, of_d: str, *, gated: bool, again: list[Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of dt's bias, A and D (of type `of_d`): `_mamba_chunk_scan_combined_bwd`.

    `gated`: z is here. `again`: gets the gated output where it is computed again, None where it is not needed.
    """
    tape, wide, kernel = scan.tape, scan.inner_bytes, Kernel.MAMBA_SCAN
    read = wide + scan.group_bytes
    dt_in = new(tape, (scan.tokens, scan.block.num_heads), scan.dtype, "dt")
    decay, dt = (scan.steps(name, kernel=kernel) for name in ("decay", "dt"))
    scores = scan.scores("cb", moved=2 * scan.group_bytes, flops=scan.bmm_flops)
    states, final = _states(scan, "fp32")
    of_y, to_d = _of_gate(scan, of_d, again) if gated else (None, None)
    of_states = new(tape, scan.state, "fp32", "grad_states", read, kernel, scan.state_flops)
    halves = [new(tape, scan.state, scan.dtype, "grad_states", of_states.nbytes, kernel) for _ in range(2)]
    of_chunks = _of_chunk_decay(scan)
    del states, of_states
    # dx, into the caller's; and what the host has to do besides the other thirteen kernels.
    half = halves[0].nbytes
    tape.compute(kernel, scan.intra_flops + scan.state_flops, 2 * wide + read + scores.nbytes + half,
                 MAMBA_SCAN.backward - 13)
    of_dt, skipped = _of_skip(scan, of_d)
    to_d = to_d or skipped
    after = scan.steps("grad_decay")
    of_b = _summed(scan, "grad_b", wide + half)
    before = scan.steps("grad_decay")
    of_c = _summed(scan, "grad_c", wide + half)
    of_scores = _of_scores(scan)
    behind = _of_decay_before(scan)
    of_decay = _of_decay(scan, wide, scores.nbytes)
    _sum = scan.steps("grad_decay")
    del _sum
    to_dt, to_a = (tape.empty((scan.block.num_heads,), "fp32", "grad_mamba_param") for _ in range(2))
    del of_y, dt, of_dt, of_b, of_c, final, dt_in, decay, scores, halves, of_chunks, skipped, after, before
    del of_scores, behind, of_decay
    return to_dt, to_a, to_d


def _of_gate(scan: _Scan, of_d: str, again: list[Tensor] | None) -> tuple[Tensor, Tensor]:
    """Gradients of the scan's output before its gate, and of D (`_chunk_scan_bwd_dz`)."""
    _parts = _rows_of_d(scan)
    if again is not None:
        again.append(scan.inner("gated"))
    grad = scan.inner("grad_scan", 4 * scan.inner_bytes, Kernel.MAMBA_SCAN)
    return grad, _narrowed(scan.tape, scan.tape.empty((scan.block.num_heads,), "fp32", "grad_d"), of_d)


def _rows_of_d(scan: _Scan) -> Tensor:
    tiles = -(-scan.block.chunk // _ROWS_OF_D)
    return scan.tape.empty((tiles, scan.chunks, scan.block.num_heads), "fp32", "grad_d")


def _of_chunk_decay(scan: _Scan) -> Tensor:
    """A number for each chunk and head, summed over tiles of the state."""
    b = scan.block
    tiles = scan.tape.empty((scan.chunks, b.num_heads, -(-b.head_dim * b.state // _COLUMNS_OF_STATE)), "fp32",
                            "grad_decay")
    total = scan.tape.empty((scan.chunks, b.num_heads), "fp32", "grad_decay")
    del tiles
    return total


def _of_skip(scan: _Scan, of_d: str) -> tuple[Tensor, Tensor]:
    """Gradients of dt and of D, which is summed twice."""
    parts = _rows_of_d(scan)
    of_dt = scan.steps("grad_dt")
    total = scan.tape.empty((scan.block.num_heads,), "fp32", "grad_d")
    del parts
    total = scan.tape.empty((scan.block.num_heads,), "fp32", "grad_d")
    return of_dt, _narrowed(scan.tape, total, of_d)


def _summed(scan: _Scan, name: str, moved: int) -> Tensor:
    """Gradient of B or C, of all heads of a group."""
    columns = scan.block.num_groups * scan.block.state
    _parts = new(scan.tape, (scan.tokens, scan.splits * columns), "fp32", name, moved, Kernel.MAMBA_SCAN,
                 scan.state_flops)
    return scan.tape.empty((scan.tokens, columns), "fp32", name)


def _of_scores(scan: _Scan) -> Tensor:
    parts = scan.scores("grad_cb", scan.splits, 2 * scan.inner_bytes, scan.intra_flops)
    b = scan.block
    total = scan.tape.empty((scan.chunks, b.num_groups, b.chunk * b.chunk), "fp32", "grad_cb")
    scan.tape.compute(Kernel.MAMBA_SCAN, 2 * scan.bmm_flops, 2 * parts.nbytes)
    del parts
    return total


def _of_decay_before(scan: _Scan) -> Tensor:
    """A sum from behind: turned, summed up, turned back."""
    turned = scan.steps("grad_decay")
    summed = scan.steps("grad_decay")
    del turned
    back = scan.steps("grad_decay")
    del summed
    return back


def _of_decay(scan: _Scan, wide: int, scores: int) -> Tensor:
    tiles = -(-scan.block.chunk // _ROWS_OF_D)
    parts = scan.steps("grad_decay", tiles, Kernel.MAMBA_SCAN, 2 * wide + scores, scan.intra_flops)
    total = scan.steps("grad_decay")
    del parts
    return total
