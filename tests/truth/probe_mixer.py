"""Times what the host does in Megatron's Mamba mixer around its scan, on one CPU: `host/mixer-core-0.16.1.json`.

    python tests/truth/probe_mixer.py > tests/truth/host/mixer-core-0.16.1.json

megatron-core's own `MambaMixer._ssm_training` and `MambaContextParallel` run forward and backward over tensors of a few
numbers; the scan, which `probe_scan.py` times, does nothing, and what even that takes is subtracted. One sequence, so
that nothing is copied when it is put first; the projections, the norm and the layer around are not in it. As in
`probe_scan.py` the time is told in operators of torch.
"""

from __future__ import annotations

import json
import statistics
import types
from importlib.metadata import version
from typing import Any

import torch
import torch._dynamo
import torch._inductor.runtime.triton_compat  # before Triton is replaced: both look for the real one
from host_time import operator_s, replace_triton, timed

replace_triton()

from megatron.core.ssm import mamba_mixer  # noqa: E402
from megatron.core.ssm.mamba_context_parallel import MambaContextParallel  # noqa: E402

LENGTH, HEADS, WIDTH, GROUPS, STATE = 8, 2, 8, 1, 4
INNER = HEADS * WIDTH
CONVOLVED = INNER + 2 * GROUPS * STATE
ROUNDS = 25
Grads = tuple[torch.Tensor | None, ...]


class Scan(torch.autograd.Function):
    """Takes six tensors, as the real one does, and gives each a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, *rest)
        return x.new_empty(*x.shape[:2], INNER)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Grads:  # type: ignore[override]
        return tuple(torch.empty_like(each) for each in ctx.saved_tensors)


def _scan(x: Any, weight: Any, bias: Any, dt_bias: Any, a: Any, D: Any, **_: object) -> torch.Tensor:
    out: torch.Tensor = Scan.apply(x, weight, bias, dt_bias, a, D)
    return out


def _leaf(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.rand(*shape, dtype=dtype, requires_grad=True)


def _mixer() -> Any:
    """What `_ssm_training` reads of a mixer; its parameters are made by `_given`, so that no gradient is summed."""
    group = types.SimpleNamespace(size=lambda: 1, rank=lambda: 0)
    conv = types.SimpleNamespace(weight=_leaf(CONVOLVED, 1, 4), bias=_leaf(CONVOLVED))
    part = MambaContextParallel(
        cp_group=group, d_inner_local_tp=INNER, nheads_local_tp=HEADS, ngroups_local_tp=GROUPS, d_state=STATE,
        conv1d_cp1=conv, dt_bias_cp1=_leaf(HEADS), A_log_cp1=_leaf(HEADS, dtype=torch.float32), D_cp1=_leaf(HEADS),
        D_has_hdim=False)
    return types.SimpleNamespace(cp=part, conv1d=conv, rmsnorm=False, D_has_hdim=False, headdim=WIDTH,
                                 chunk_size=LENGTH, activation="silu", norm_before_gate=False)


def _given() -> torch.Tensor:
    return _leaf(LENGTH, 1, 2 * INNER + 2 * GROUPS * STATE + HEADS)


def main() -> None:
    torch.set_num_threads(1)
    mamba_mixer.mamba_split_conv1d_scan_combined = _scan
    mixer, run = _mixer(), mamba_mixer.MambaMixer._ssm_training
    rest = [_leaf(CONVOLVED, 4), _leaf(CONVOLVED), _leaf(HEADS), _leaf(HEADS), _leaf(HEADS)]
    found = []
    for _ in range(ROUNDS):
        unit, alone = operator_s(), timed(lambda x: Scan.apply(x, *rest), _given)
        both = timed(lambda x: run(mixer, x), _given)
        found.append([(a - b) / unit for a, b in zip(both, alone, strict=True)])
    forward, backward = (round(statistics.median(column), 1) for column in zip(*found, strict=True))
    versions = {"megatron-core": version("megatron-core"), "torch": torch.__version__.partition("+")[0]}
    print(json.dumps({"versions": versions, "operators": {"forward": forward, "backward": backward}}, indent=1))


if __name__ == "__main__":
    main()
