"""Megatron-Core's Mamba-2 layer: in_proj with its norm, the split op, the gated norm, out_proj.

megatron-core 0.16.1 `ssm/mamba_mixer.py` (`_ssm_training`) and mamba_ssm main of August 2026
(`ops/triton/ssd_combined.py`, `layernorm_gated.py`). Training always calls `mamba_split_conv1d_scan_combined` without
norm and output projection, so z gates inside it and the gated norm is a separate node.

[Note: context parallelism of Mamba]
`ssm/mamba_context_parallel.py`: before the convolution every rank gives positions for heads, part by part (z, x, B, C,
dt), lays the parts side by side and undoes attention's order of positions; after the scan it goes the other way. Where
there are fewer groups than ranks, B and C of a group go to all the ranks that have heads of it, so those two are wider
by as many copies. A rank then has cp times the positions and a cp-th of the heads: as many elements, which are counted
here as its own positions of all heads.

[Note: order of packs]
Of a pack the order is an index of all positions (core 0.16.1 and main d98e8a64 `ssm/mamba_context_parallel.py`,
_undo_attention_load_balancing): int32, kept for backward. Before the convolution the rows of one rank after the other
are put in their places (`output[index] = input[start:end]`): backward takes each rank's rows out, makes a tensor of
full size of them, and but for the last another of the rest (torch 2.13 IndexPutBackward0, SliceBackward0). Behind the
scan the order is an index_select.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from simcore.models.blocks import Mamba2
from simcore.operators.megatron.ops.context import Context, Grads, Saved
from simcore.operators.megatron.ops.elementwise import reordered
from simcore.operators.megatron.ops.linear import norm_linear, row
from simcore.recording.host_operators import GATED_NORM, MAMBA_MIXER, MAMBA_SCAN
from simcore.recording.tape import Kernel, Tape, Tensor

__all__ = ["mamba"]

_SMS = 132  # of an H100: splits of the dB, dC and dCB kernels when there are few chunks


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the Mamba-2 scan of one layer on one rank.

    `tokens`, `chunks` (groups of `chunk` tokens), `heads` of `width` elements, `groups` of heads that share B and C,
    `state` elements for each channel; `batch`: sequences.
    """

    tokens: int
    chunks: int
    heads: int
    groups: int
    width: int
    state: int
    chunk: int
    batch: int

    @property
    def inner(self) -> int:
        """Number of channels: width of x, z and y."""
        return self.heads * self.width

    @property
    def conv(self) -> int:
        """Number of channels of the convolution: x, B and C."""
        return self.inner + 2 * self.groups * self.state

    @property
    def states(self) -> int:
        """Number of elements of the states between all chunks."""
        return self.chunks * self.inner * self.state

    @property
    def splits(self) -> int:
        """`nsplits` of the backward kernels: parts in which they sum over the heads of a group."""
        per_group = self.heads // self.groups
        return -(-per_group // min(-(-self.chunks * self.heads // _SMS), per_group))

    def flops(self, wide: int, narrow: int) -> int:
        """FLOPs, for all tokens, of products of two kinds.

        `wide`: number of products over (state, head); `narrow`: number of products over (chunk, state, group).
        """
        return self.tokens * (wide * 2 * self.state * self.inner + narrow * 2 * self.chunk * self.state * self.groups)


def mamba(c: Context, block: Mamba2, x: Tensor) -> Tensor:
    """Output of the Mamba-2 mixer for the residual stream `x` [local tokens, hidden], in x's shape.

    The norm before it is included; the caller adds the residual. Local: after sequence parallelism.
    """
    heads = c.param("mixer.dt_bias").shape[0]
    chunks = c.run.batch * math.ceil(c.run.seq * c.run.cp / block.chunk)
    groups = max(1, block.num_groups * heads // block.num_heads)
    sizes = Sizes(c.tokens, max(1, chunks // c.run.cp), heads, max(groups, c.run.cp), block.head_dim, block.state,
                  block.chunk, c.run.batch)
    # The mixer's own variable holds in_proj's output until out_proj has returned.
    more = 2 * (sizes.groups - groups) * block.state
    zxbcdt = _exchanged(c, norm_linear(c, "mixer.in_proj", x), "zxbcdt", more, before=True)
    y = _scan(c, sizes, _batch_first(c, zxbcdt, "zxbcdt_copy"), _sequence_numbers(c))
    y = _exchanged(c, _batch_first(c, y, "y_copy"), "y", before=False)
    y = _gated_norm(c, replace(sizes, groups=groups), y)
    return row(c, "mixer.out_proj", y)


def _exchanged(c: Context, x: Tensor, name: str, more: int = 0, *, before: bool) -> Tensor:
    """[Note: context parallelism of Mamba]: what came from the others, in order, and at last reordered.

    `more` columns are copies of groups. `before`: the exchange before the convolution, not that behind the scan.
    """
    if c.run.cp == 1:
        return x
    rows, columns = x.shape
    packed = bool(c.run.sequences)

    def back(_tape: Tape, grads: Grads, _saved: Saved) -> list[Tensor | None]:
        ordered = _scattered(c, grads, rows, columns + more, name) if packed and before else None
        grad = c.new(rows, columns, f"grad_{name}")
        c.send("all_to_all", "cp", grad)
        del ordered
        return [grad]

    parts = c.new(rows, columns + more, f"{name}_parts")
    c.send("all_to_all", "cp", parts)
    joined = c.new(rows, columns + more, f"{name}_joined")
    out = c.new(rows, columns + more, f"{name}_exchanged")
    order = (c.new(rows * c.run.cp, 1, f"{name}_order", "int32"),) if packed else ()
    c.elementwise(out, 4, Kernel.COPY)
    c.node(out, (x,), order, back)
    del parts, joined
    return out


def _scattered(c: Context, grads: Grads, rows: int, columns: int, name: str) -> Tensor:
    """Gradient of the rows that a pack's order scatters, one rank's after the other: [Note: order of packs]."""
    total, now = None, grads[0]
    grads.clear()
    for place in range(c.run.cp, 0, -1):
        rest = c.new(rows, columns, f"grad_{name}_rest") if place > 1 else None
        found = c.new(-(-rows // c.run.cp), columns, f"grad_{name}_found")
        c.elementwise(found, 2, Kernel.COPY)
        if rest is not None:
            c.elementwise(rest, 2, Kernel.COPY)
        now = rest  # the gradient before it is gone
        whole = c.new(rows, columns, f"grad_{name}_whole")
        c.elementwise(whole, 1, Kernel.COPY)
        del found
        if total is None:
            total = whole
        else:
            c.elementwise(whole, 3)
        del whole
    del now
    assert total is not None
    return total


def _batch_first(c: Context, x: Tensor, name: str) -> Tensor:
    """`rearrange(...).contiguous()`: nothing at batch 1, a copy (and one of its gradient) at more."""
    return x if c.run.batch == 1 else reordered(c, x, name, f"grad_{name}")


def _sequence_numbers(c: Context) -> tuple[Tensor, ...]:
    """Sequence number of every token in a pack, made by each layer (`_create_packed_seq_idx`); the scan keeps it.

    With context parallelism it numbers the tokens of all ranks, which the scan sees.
    """
    if not c.run.sequences:
        return ()
    wide = c.new(c.tokens * c.run.cp, 1, "mixer.seq_idx_int64", "int64")
    out = c.new(c.tokens * c.run.cp, 1, "mixer.seq_idx", "int32")
    c.elementwise(wide, 2, Kernel.COPY)
    return (out,)


def _scan(c: Context, s: Sizes, zxbcdt: Tensor, numbers: tuple[Tensor, ...]) -> Tensor:
    """`MambaSplitConv1dScanCombinedFn.forward`: keeps zxbcdt and out_x (the output before the gate)."""
    names = ("conv1d.weight", "conv1d.bias", "dt_bias", "A_log", "D")
    params = [c.param(f"mixer.{name}") for name in names]
    width = zxbcdt.shape[1]

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = _scan_backward(c, s, width)
        return [grad, *(c.small_grad(p) for p in params)]

    conv = c.new(s.tokens, s.conv, "mixer.conv_out")
    c.tape.compute(Kernel.CONV, 8 * s.tokens * s.conv, 2 * conv.nbytes)
    small = c.new(s.tokens, 2 * s.heads, "mixer.dt_dA", "fp32")
    states = _states(c, s, "mixer.chunk_states", "fp32")
    passed = _states(c, s, "mixer.states", c.dtype)
    final = c.new(s.batch, s.inner * s.state, "mixer.final_states", "fp32")
    del states
    products = c.new(s.tokens, s.groups * s.chunk, "mixer.CB", "fp32")
    out = c.new(s.tokens, s.inner, "mixer.scan_out")
    out_x = c.new(s.tokens, s.inner, "mixer.scan_out_x")
    passing = 2 * s.states
    c.tape.compute(Kernel.MAMBA_SCAN, s.flops(2, 1) + s.tokens * 2 * s.chunk * s.inner + passing,
                   3 * out.nbytes + conv.nbytes + 2 * products.nbytes + 4 * 4 * s.states,
                   MAMBA_SCAN.forward + MAMBA_MIXER.forward)
    c.node(out, (zxbcdt, *params), (zxbcdt, out_x, *numbers), back)
    del conv, small, passed, final, products, out_x
    return out


def _states(c: Context, s: Sizes, name: str, dtype: str) -> Tensor:
    return c.tape.empty((s.chunks, s.inner, s.state), dtype, name)


def _scan_backward(c: Context, s: Sizes, width: int) -> Tensor:
    """Allocations of `_mamba_chunk_scan_combined_bwd` in its own order; the peak is in `_state_passing_bwd`.

    107.7 kB a token above what is kept, for Nano at 8192 (measured, `measure_mamba_alloc.py` of the oracle).
    """
    conv = c.new(s.tokens, s.conv, "mixer.conv_again")
    c.tape.compute(Kernel.CONV, 8 * s.tokens * s.conv, 2 * conv.nbytes)
    grad = c.new(s.tokens, width, "grad_zxbcdt")
    grad_conv = c.new(s.tokens, s.conv, "grad_conv_out")
    dt_in = c.new(s.tokens, s.heads, "dt_clone")
    small = c.new(s.tokens, 2 * s.heads, "dt_dA", "fp32")
    products = c.new(s.tokens, s.groups * s.chunk, "CB", "fp32")
    made = _states(c, s, "chunk_states", "fp32")
    states = _states(c, s, "states", "fp32")
    final = c.new(s.batch, s.inner * s.state, "final_states", "fp32")
    del made
    gated = c.new(s.tokens, s.inner, "grad_out_x")
    grad_states = _states(c, s, "grad_states", "fp32")
    blocks = c.tape.empty((s.chunks, s.heads, -(-s.width * s.state // 64)), "fp32", "grad_dA_blocks")
    lower = (_states(c, s, "grad_states_low", c.dtype), _states(c, s, "states_low", c.dtype))
    del states, grad_states, blocks
    ddt = c.new(s.tokens, s.heads, "grad_dt", "fp32")
    sums = []
    wide = s.groups * s.state
    for name, columns in (("grad_B", wide), ("grad_C", wide), ("grad_CB", s.groups * s.chunk)):
        parts = c.new(s.tokens, s.splits * columns, f"{name}_splits", "fp32")
        sums.append(c.new(s.tokens, columns, name, "fp32"))
        del parts
    scan_bytes = 6 * gated.nbytes + conv.nbytes + grad_conv.nbytes + 6 * products.nbytes + 10 * 4 * s.states
    c.tape.compute(Kernel.MAMBA_SCAN, s.flops(8, 3), scan_bytes, MAMBA_SCAN.backward + MAMBA_MIXER.backward)
    del sums, lower, final, dt_in, small, products, gated, ddt
    c.tape.compute(Kernel.CONV, 16 * s.tokens * s.conv, 4 * conv.nbytes)
    return grad


def _gated_norm(c: Context, s: Sizes, y: Tensor) -> Tensor:
    """`rmsnorm_fn` in groups, without a gate (z was applied in the scan): keeps y and rstd."""
    weight = c.param("mixer.norm.weight")

    def back(_tape: Tape, _grads: Grads, _saved: Saved) -> list[Tensor | None]:
        grad = c.new(s.tokens, s.inner, "grad_scan_out")
        c.elementwise(grad, 4, Kernel.NORM, GATED_NORM.backward)
        return [grad, c.small_grad(weight)]

    out = c.new(s.tokens, s.inner, "mixer.norm_out")
    rstd = c.new(s.tokens, s.groups, "mixer.norm_rstd", "fp32")
    c.elementwise(out, 2, Kernel.NORM, GATED_NORM.forward)
    c.node(out, (y, weight), (y, rstd), back)
    return out
