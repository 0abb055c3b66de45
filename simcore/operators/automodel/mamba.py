"""Mamba-2 of Nemotron-H as NeMo Automodel runs it: one kernel call from the input projection to the output.

Sources: nemo-automodel 0.7.0 `components/models/nemotron_v3/layers.py`, mamba_ssm e9594ce1
(`ops/triton/ssd_combined.py`); saved tensors and peaks of the Mamba wrappers were measured with its kernels
stubbed out (43,040 and 124,163 bytes a token, 8192 tokens).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from simcore.models.blocks import Mamba2
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.layers import linear, norm
from simcore.operators.shared import aten
from simcore.operators.shared.aten import Grads, Operand, Saved, new
from simcore.recording.host_operators import MAMBA_SCAN
from simcore.recording.tape import Kernel, Param, Tape, Tensor
from simcore.units import dtype_bytes

__all__ = ["mamba"]

# How the Triton kernels split dB and dC over heads depends on the number of SMs (mamba_ssm, `_chunk_state_bwd_db`).
_NUM_SMS: Final = 132


def mamba(env: Env, x: Tensor, block: Mamba2, path: str) -> Tensor:
    """Output of a Mamba-2 mixer for `x` [batch, sequence, hidden], in x's shape.

    `path`: name of its module. `NemotronV3Mamba2Mixer.forward`, training path: one kernel call from the input
    projection to the output. With context parallelism the heads are exchanged before and after, and norm and output
    projection are modules.
    """
    tape = env.tape
    numbers = _sequence_numbers(env)
    projected = linear(env, x, f"{path}.in_proj")
    rows = projected.shape[0]
    if env.run.cp > 1:
        projected = aten.all_to_all(tape, projected, rows, "cp")
    a_log, dt_bias, d = (_clone(tape, env.param(f"{path}._fp32_params.{n}")) for n in ("A_log", "dt_bias", "D"))
    a = aten.neg(tape, aten.exp(tape, a_log))
    small = (env.param(f"{path}.conv1d.weight"), env.param(f"{path}.conv1d.bias"), dt_bias, a, d)
    if env.run.cp == 1:
        tail = (env.param(f"{path}.norm.weight"), env.param(f"{path}.out_proj.weight"))
        return _fused_mamba(tape, projected, block, small, tail, numbers[:1])
    out = _fused_mamba(tape, projected, block, small, None)
    out = aten.all_to_all(tape, out, rows, "cp")
    out = norm(env, out, f"{path}.norm")
    return linear(env, out, f"{path}.out_proj")


def _sequence_numbers(env: Env) -> tuple[Tensor, ...]:
    """Sequence number of every token in a pack (`layers.py`, seq_idx), and its position; () without packing.

    The kernel keeps the sequence numbers; positions are held until the mixer returns. Each layer makes both.
    """
    if not env.run.sequences:
        return ()
    tokens = (env.run.tokens,)
    positions = new(env.tape, tokens, "int64", "positions")
    wide = new(env.tape, tokens, "int64", "seq_idx_int64", positions.nbytes)
    return new(env.tape, tokens, "int32", "seq_idx", wide.nbytes), positions


def _clone(tape: Tape, param: Param) -> Tensor:
    node = tape.node((param,), (), lambda tape, grads, saved: list(grads))
    out = new(tape, param.shape, param.dtype, "ssm_params", param.nbytes)
    out.node = node
    return out


@dataclass(frozen=True, slots=True)
class _Scan:
    """Sizes of `mamba_split_conv1d_scan_combined` on one input."""

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
        """Parts over heads in which dB, dC and dCB are summed."""
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


def _fused_mamba(tape: Tape, zxbcdt: Tensor, block: Mamba2, small: tuple[Operand, ...],
                 tail: tuple[Param, Param] | None, numbers: tuple[Tensor, ...] = ()) -> Tensor:
    """`MambaSplitConv1dScanCombinedFn`; `tail`: gated norm and output projection inside; `numbers` of sequences."""
    s = _Scan(block, zxbcdt.shape[0], zxbcdt.shape[1], zxbcdt.dtype)
    shapes = [(p.shape, p.dtype) for p in (*small, *(tail or ()))]

    def backward(tape: Tape, grads: Grads, saved: Saved) -> Grads:
        to_input = _mamba_backward(tape, s, tail)
        # Every parameter's gradient is computed, needed or not: there is no needs_input_grad.
        out_proj = _gemm_of(tape, s, tail[1], "grad_out_proj") if tail else None
        rest = [new(tape, shape, dtype, "grad_mamba_param") for shape, dtype in shapes[: len(shapes) - bool(tail)]]
        return [to_input, *rest, *([out_proj] if tail else [])]

    node = tape.node((zxbcdt, *small, *(tail or ())), (zxbcdt, *small, *(tail or ()), *numbers), backward)
    out = _mamba_forward(tape, s, tail, lambda *kept: tape.save(node, *kept))
    out.node = node
    return out


def _gemm_of(tape: Tape, s: _Scan, weight: Param, name: str) -> Tensor:
    return new(tape, weight.shape, s.dtype, name, 2 * s.tokens * sum(weight.shape), Kernel.GEMM,
               2 * s.tokens * weight.numel)


def _mamba_forward(tape: Tape, s: _Scan, tail: tuple[Param, Param] | None, save: Callable[..., None]) -> Tensor:
    b, tokens = s.block, s.tokens
    conv = _conv(tape, s)
    dt = [new(tape, (tokens, b.num_heads), "fp32", "dt", kernel=Kernel.MAMBA_SCAN) for _ in range(2)]
    states, final = _states(tape, s)
    y = _chunk_scan(tape, s, states)
    save(y)
    if tail is None:
        del conv, dt, states, final
        return new(tape, (s.batch, s.seq, b.inner), s.dtype, "scan", y.nbytes)
    normed = new(tape, (tokens, b.inner), s.dtype, "gated_norm", 3 * y.nbytes, Kernel.NORM, 10 * y.numel)
    rstd = tape.empty((tokens, b.num_groups), "fp32", "gated_norm_rstd")
    save(rstd)
    weight = tail[1]
    out = new(tape, (s.batch, s.seq, weight.shape[0]), s.dtype, "out_proj", normed.nbytes + weight.nbytes, Kernel.GEMM,
              2 * tokens * weight.numel)
    del conv, dt, states, final
    return out


def _conv(tape: Tape, s: _Scan) -> Tensor:
    b = s.block
    channels = s.tokens * b.conv_dim
    return new(tape, (s.tokens, b.conv_dim), s.dtype, "conv", 2 * channels, Kernel.CONV, 2 * b.conv_kernel * channels)


def _states(tape: Tape, s: _Scan) -> tuple[Tensor, Tensor]:
    """Chunk states in fp32, passed on from chunk to chunk into the compute type; and the last ones."""
    chunk_states = new(tape, s.state, "fp32", "chunk_states", s.inner_bytes + s.group_bytes, Kernel.MAMBA_SCAN,
                       s.state_flops)
    passed = new(tape, s.state, s.dtype, "states", chunk_states.nbytes, Kernel.MAMBA_SCAN, 2 * chunk_states.numel)
    return passed, tape.empty((s.batch, s.state[1]), "fp32", "final_states")


def _chunk_scan(tape: Tape, s: _Scan, states: Tensor) -> Tensor:
    """Reads x, z, C and the states; writes y and, for the norm's gradient, y before its gate.

    What forward takes of the host besides its other five kernels is counted here.
    """
    cb = _cb(tape, s)
    moved = cb.nbytes + states.nbytes + 3 * s.inner_bytes + s.group_bytes
    return new(tape, (s.tokens, s.block.inner), s.dtype, "scan_out", moved, Kernel.MAMBA_SCAN,
               s.intra_flops + s.state_flops, MAMBA_SCAN.forward - 5)


def _cb(tape: Tape, s: _Scan, splits: int = 1) -> Tensor:
    b = s.block
    return new(tape, (s.chunks, splits, b.num_groups, b.chunk * b.chunk), "fp32", "cb", 2 * s.group_bytes,
               Kernel.MAMBA_SCAN, s.bmm_flops)


def _mamba_backward(tape: Tape, s: _Scan, tail: tuple[Param, Param] | None) -> Tensor:
    """Gradient of zxBCdt; the output is computed again because the output projection's gradient needs it."""
    b, tokens = s.block, s.tokens
    inner = (tokens, b.inner)
    again = tape.empty(inner, s.dtype, "gated_norm") if tail else None
    conv = _conv(tape, s)
    to_input = tape.empty((s.batch, s.seq, b.in_proj), s.dtype, "grad_in_proj_out")
    d_xbc = tape.empty((tokens, b.conv_dim), s.dtype, "grad_conv")
    d_normed = d_scan = None
    if tail:
        weight = tail[1]
        d_normed = new(tape, inner, s.dtype, "grad_gated_norm", 2 * tokens * b.hidden, Kernel.GEMM,
                       2 * tokens * weight.numel)
        d_scan = new(tape, inner, s.dtype, "grad_scan", 4 * d_normed.nbytes, Kernel.NORM, 20 * tokens * b.inner)
    _scan_backward(tape, s)
    tape.compute(Kernel.CONV, 4 * b.conv_kernel * tokens * b.conv_dim, 3 * d_xbc.nbytes)
    del again, conv, d_xbc, d_normed, d_scan
    return to_input


def _scan_backward(tape: Tape, s: _Scan) -> None:
    """`_mamba_chunk_scan_combined_bwd`: all of it is temporary, its results are views of the caller's."""
    b, tokens, scan = s.block, s.tokens, Kernel.MAMBA_SCAN
    dt_in = new(tape, (tokens, b.num_heads), s.dtype, "dt")
    dt = [new(tape, (tokens, b.num_heads), "fp32", "dt", kernel=scan) for _ in range(2)]
    cb = _cb(tape, s)
    wide, read = s.inner_bytes, s.inner_bytes + s.group_bytes
    states = new(tape, s.state, "fp32", "chunk_states", read, scan, s.state_flops)
    states = new(tape, s.state, "fp32", "states", states.nbytes, scan, 2 * states.numel)
    final = tape.empty((s.batch, s.state[1]), "fp32", "final_states")
    d_states = new(tape, s.state, "fp32", "grad_states", read, scan, s.state_flops)
    halves = [new(tape, s.state, s.dtype, "grad_states", d_states.nbytes, scan) for _ in range(2)]
    d_da = tape.empty((s.chunks, b.num_heads), "fp32", "grad_dt")
    del states, d_states
    half = halves[0].nbytes
    # dx, into the caller's; and what the host has to do besides the other thirteen kernels.
    tape.compute(scan, s.intra_flops + s.state_flops, 2 * wide + read + cb.nbytes + half, MAMBA_SCAN.backward - 13)
    d_dt = tape.empty((tokens, b.num_heads), "fp32", "grad_dt")
    partial = (tokens, s.splits, b.num_groups * b.state)
    d_b = new(tape, partial, "fp32", "grad_b", wide + half, scan, s.state_flops)
    d_c = new(tape, partial, "fp32", "grad_c", wide + half, scan, s.state_flops)
    d_cb = new(tape, (s.chunks, s.splits, b.num_groups, b.chunk * b.chunk), "fp32", "grad_cb", 2 * wide, scan,
               s.intra_flops)
    tape.compute(scan, 2 * s.bmm_flops, 2 * d_cb.nbytes)
    d_da_full = new(tape, (tokens, b.num_heads * max(1, b.chunk // 32)), "fp32", "grad_dt", 2 * wide + cb.nbytes, scan,
                    s.intra_flops)
    del dt_in, dt, cb, final, halves, d_da, d_dt, d_b, d_c, d_cb, d_da_full
