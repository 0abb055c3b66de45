"""Mixers of transformers 5.23 with a recurrent state: Mamba-2 (`models/nemotron_h`), gated delta net (`qwen3_next`).

Kernels are those of mamba_ssm (`operators/shared/mamba_scan.py`) and of flash-linear-attention
(`operators/shared/delta_rule.py`). transformers calls mamba_ssm's whole function where that is installed.
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.models.blocks import Branch, GatedDeltaNet, Mamba2
from simcore.operators.hf.layers import linear
from simcore.operators.shared import aten, delta_rule
from simcore.operators.shared.mamba_scan import split_conv_scan
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Tape, Tensor

__all__ = ["delta_net", "mamba"]


def mamba(tape: Tape, run: LayerWorkload, branch: Branch, x: Tensor,
          between: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Output of a Mamba-2 mixer for `x` [b, s, hidden], in x's shape.

    The input projection, then one fused kernel: convolution, scan, gated norm (if there is one), output projection.
    `between`: what is done with the input projection's output first.
    """
    block = branch.block
    assert isinstance(block, Mamba2)
    name, projected = branch.name, linear(tape, run, f"{branch.name}.in_proj", x)
    if between:
        projected = between(projected)
    a = aten.neg(tape, aten.exp(tape, aten.cast(tape, run.params[f"{name}.A_log"], "fp32")))
    bias, d = run.params[f"{name}.dt_bias"], run.params[f"{name}.D"]
    small = (run.params[f"{name}.conv1d.weight"], run.params[f"{name}.conv1d.bias"], bias, a, d)
    return split_conv_scan(tape, projected, block, small,
                           (run.params.get(f"{name}.norm.weight"), run.params[f"{name}.out_proj.weight"]))


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

    `held`: gets the projections, which live until the layer returns; `pieces`: as in `by_key_heads`.
    """
    held.append(linear(tape, run, f"{name}.in_proj_qkvz", x))
    held.append(linear(tape, run, f"{name}.in_proj_ba", x))
    return delta_rule.by_key_heads(tape, block, held, pieces)
