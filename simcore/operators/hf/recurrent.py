"""Mixers of transformers 5.23 with a recurrent state: Mamba-2 (`models/nemotron_h`), gated delta net (`qwen3_next`).

Mamba's fused kernel cannot run here: it is a profile of what it saves and needs, an estimate. The kernels of the delta
net are those of `operators/shared/delta_rule.py`.
"""

from __future__ import annotations

import math

from simcore.models.blocks import Branch, GatedDeltaNet, Mamba2
from simcore.operators.hf.layers import linear
from simcore.operators.shared import aten, delta_rule
from simcore.recording.host_operators import MAMBA_SCAN
from simcore.recording.kernel_shape import shape_of
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Kernel, Param, Tape, Tensor

__all__ = ["delta_net", "mamba"]


def mamba(tape: Tape, run: LayerWorkload, branch: Branch, x: Tensor) -> Tensor:
    """Output of a Mamba-2 mixer for `x` [b, s, hidden], in x's shape.

    The input projection, then one fused kernel: convolution, scan, gated norm, output projection.
    """
    block = branch.block
    assert isinstance(block, Mamba2)
    projected = linear(tape, run, f"{branch.name}.in_proj", x)
    a = aten.neg(tape, aten.exp(tape, aten.cast(tape, run.params[f"{branch.name}.A_log"], "fp32")))
    return _FusedMamba(run, branch.name, block, projected).forward(tape, projected, a)


class _FusedMamba:
    """Saved: the input projection's output, the scan's output before the norm, the inverse RMS of each group."""

    def __init__(self, run: LayerWorkload, name: str, block: Mamba2, z: Tensor) -> None:
        self.block, self.dtype, self.z_shape = block, z.dtype, z.shape
        self.rows = (z.shape[0], z.shape[1])
        chunks = -(-run.seq // block.chunk)
        self.scan = {
            "dt": (run.batch, block.num_heads, chunks, block.chunk),
            "decay": (run.batch, block.num_heads, chunks, block.chunk),
            "states": (run.batch, chunks, block.num_heads, block.head_dim, block.state),
            "scores": (run.batch, chunks, block.num_groups, block.chunk, block.chunk),
        }
        self.params = [run.params[f"{name}.{part}"]
                       for part in ("conv1d.weight", "conv1d.bias", "dt_bias", "D", "norm.weight", "out_proj.weight")]
        tokens = run.batch * run.seq
        self.project_flops = 2 * tokens * block.inner * block.hidden
        # Scores and their product with x inside a chunk, then the states in and out of it.
        self.scan_flops = 2 * tokens * (block.num_heads * block.head_dim * (block.chunk + 2 * block.state)
                                        + block.num_groups * block.chunk * block.state)
        self.conv_flops = 2 * tokens * block.conv_dim * block.conv_kernel

    def forward(self, tape: Tape, z: Tensor, a: Tensor) -> Tensor:
        """Temporaries of the scan die before the norm."""
        conv_weight, conv_bias, dt_bias, d, norm, out_weight = self.params
        node = tape.node((z, conv_weight, conv_bias, dt_bias, a, d, norm, out_weight), (), self.backward)
        convolved = self._activation(tape, "conv", self.block.conv_dim)
        tape.compute(Kernel.CONV, self.conv_flops, z.nbytes + convolved.nbytes)
        temporary = [tape.empty(shape, "fp32", f"scan.{part}") for part, shape in self.scan.items()]
        scanned = self._activation(tape, "scan", self.block.inner)
        moved = sum(x.nbytes for x in (*temporary, convolved, scanned))
        tape.compute(Kernel.MAMBA_SCAN, self.scan_flops, moved, MAMBA_SCAN.forward)
        temporary.clear()
        del convolved
        normed = self._activation(tape, "gated_norm", self.block.inner)
        tape.compute(Kernel.NORM, normed.numel, 3 * normed.nbytes)
        rstd = tape.empty((self.rows[0] * self.rows[1] * self.block.num_groups,), "fp32", "rstd")
        out = self._activation(tape, "out_proj", self.block.hidden)
        tape.compute(Kernel.GEMM, self.project_flops, normed.nbytes + out_weight.nbytes + out.nbytes,
                     shape_of(math.prod(self.rows), self.block.hidden))
        tape.save(node, z, conv_weight, conv_bias, scanned, a, d, dt_bias, norm, rstd, out_weight)
        out.node = node
        return out

    def _activation(self, tape: Tape, name: str, width: int) -> Tensor:
        return tape.empty((*self.rows, width), self.dtype, name)

    def backward(self, tape: Tape, grads: list[Tensor | None], saved: list[Tensor]) -> list[Tensor | None]:
        """Recomputes what forward did not keep; makes every parameter's gradient, wanted or not."""
        conv_weight, conv_bias, dt_bias, d, norm, out_weight = self.params
        inner = self.block.inner
        again = [self._activation(tape, "conv", self.block.conv_dim)]
        tape.compute(Kernel.CONV, self.conv_flops, 2 * again[0].nbytes)
        dz = tape.empty(self.z_shape, self.dtype, "grad_in_proj")
        dnormed = self._activation(tape, "grad_gated_norm", inner)
        tape.compute(Kernel.GEMM, self.project_flops, dnormed.nbytes + out_weight.nbytes,
                     shape_of(math.prod(self.rows), inner))
        normed = self._activation(tape, "gated_norm", inner)
        dout_weight = _grad(tape, out_weight)
        tape.compute(Kernel.GEMM, self.project_flops, normed.nbytes + out_weight.nbytes,
                     shape_of(self.block.hidden, inner))
        again.append(self._activation(tape, "grad_scan", inner))
        tape.compute(Kernel.NORM, 2 * normed.numel, 4 * normed.nbytes)
        del normed, dnormed
        again += [tape.empty(shape, "fp32", f"scan.{part}") for part, shape in self.scan.items()]
        again.append(tape.empty(self.scan["states"], "fp32", "scan.grad_states"))
        again.append(self._activation(tape, "grad_conv", self.block.conv_dim))
        again.append(tape.empty(self.scan["dt"], "fp32", "scan.grad_dt"))
        moved = 2 * sum(x.nbytes for x in again)
        tape.compute(Kernel.MAMBA_SCAN, 5 * self.scan_flops // 2, moved, MAMBA_SCAN.backward)
        tape.compute(Kernel.CONV, 2 * self.conv_flops, 3 * again[0].nbytes)
        again.clear()
        return [dz, _grad(tape, conv_weight), _grad(tape, conv_bias), _grad(tape, dt_bias),
                tape.empty((self.block.num_heads,), "fp32", "grad_a"), _grad(tape, d), _grad(tape, norm), dout_weight]


def _grad(tape: Tape, param: Param) -> Tensor:
    return tape.empty(param.shape, param.dtype, f"grad_{param.name.removeprefix(tape.scope)}")


# ---- gated delta net ------------------------------------------------------------------------------------------------
def delta_net(tape: Tape, run: LayerWorkload, branch: Branch, x: Tensor) -> Tensor:
    """Output of a gated delta net for `x` [b, s, hidden], in x's shape."""
    block, name = branch.block, branch.name
    assert isinstance(block, GatedDeltaNet)
    held, pieces = list[Tensor](), list[Tensor]()
    if block.joint:
        mixed, z, b, a = _joint(tape, run, name, block, x, held, pieces)
    else:
        mixed, z, b, a = (linear(tape, run, f"{name}.in_proj_{part}", x) for part in ("qkv", "z", "b", "a"))
    mixed = delta_rule.convolution(tape, run.params[f"{name}.conv1d.weight"], mixed, block.conv_kernel)
    parts = aten.split(tape, mixed, (block.keys, block.keys, block.values))
    pieces.clear()
    beta = aten.sigmoid(tape, b)
    decay = aten.neg(tape, aten.exp(tape, aten.cast(tape, run.params[f"{name}.A_log"], "fp32")))
    step = aten.softplus(tape, aten.add(tape, aten.cast(tape, a, "fp32"), run.params[f"{name}.dt_bias"]))
    g = aten.mul(tape, decay, step, "decay")
    del decay, step
    out = delta_rule.rule(tape, block, parts, g, beta)
    heads = (run.tokens * block.num_value_heads, block.value_dim)
    out = delta_rule.gated_norm(tape, run.params[f"{name}.norm.weight"], out.view(*heads), z.view(*heads))
    return linear(tape, run, f"{name}.out_proj", out.view(*x.shape[:2], block.values))


def _joint(tape: Tape, run: LayerWorkload, name: str, block: GatedDeltaNet, x: Tensor, held: list[Tensor],
           pieces: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(query, key and value as one, gate, learning rate, decay) of `x`, each [b, s, ...] (`Qwen3NextGatedDeltaNet`).

    Of the two projections parts lie by key heads, so all of them are copied. `held`: gets the projections, which live
    until the layer returns; `pieces`: query, key and value, which live until the convolution's output is split.
    """
    held.append(linear(tape, run, f"{name}.in_proj_qkvz", x))
    held.append(linear(tape, run, f"{name}.in_proj_ba", x))
    query, key, value, z = aten.split(tape, held[0], (block.keys, block.keys, block.values, block.values))
    b, a = aten.split(tape, held[1], (block.num_value_heads, block.num_value_heads))
    value, z, b, a = (aten.contiguous(tape, part, "by_heads") for part in (value, z, b, a))
    pieces += [aten.contiguous(tape, query, "by_heads"), aten.contiguous(tape, key, "by_heads"), value]
    return aten.cat(tape, *pieces), z, b, a
