"""Mamba-2 of Nemotron-H as NeMo Automodel runs it: one kernel call from the input projection to the output.

Source: nemo-automodel 0.7.0 `components/models/nemotron_v3/layers.py`. The kernel call is that of
`operators/shared/mamba_scan.py`.
"""

from __future__ import annotations

from simcore.models.blocks import Mamba2
from simcore.operators.automodel.env import Env
from simcore.operators.automodel.layers import linear, norm
from simcore.operators.shared import aten
from simcore.operators.shared.aten import new
from simcore.operators.shared.mamba_scan import split_conv_scan
from simcore.recording.tape import Param, Tape, Tensor

__all__ = ["mamba"]

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
        return split_conv_scan(tape, projected, block, small, tail, numbers[:1])
    out = split_conv_scan(tape, projected, block, small, None)
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
