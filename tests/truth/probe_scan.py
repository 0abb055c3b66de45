"""Times what the host does around the kernels of a Mamba-2 scan, on one CPU: `host/mamba-e9594ce1.json`.

    python tests/truth/probe_scan.py PATH-TO-MAMBA > tests/truth/host/mamba-e9594ce1.json

mamba_ssm's own MambaSplitConv1dScanCombinedFn runs forward and backward over tensors of a few numbers; Triton's kernels
and those of causal_conv1d do nothing. Beside it run products of torch, whose time by kernel (the product, two
gradients, their sum) is the unit: machines differ, their ratio much less. PATH-TO-MAMBA is a checkout of
state-spaces/mamba.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import types
from collections import Counter

import torch
import torch._dynamo  # before Triton is replaced: it looks for the real one
from host_time import LAUNCHED, module_of, operator_s, replace_triton, timed

LAUNCHING = ("sum", "add", "add_", "flip", "zeros", "cumsum", "copy_", "clone", "_to_copy")
"""Operators of torch that launch a kernel; zeros like another tensor are those of the convolution that does nothing."""
LENGTH, HEADS, WIDTH, GROUPS, STATE = 8, 8, 8, 1, 8


def _replace(path: str) -> None:
    """Triton, the convolution's kernels and what mamba_ssm's packages import on their way."""
    replace_triton()

    def convolved(x: torch.Tensor, *_: object) -> torch.Tensor:
        LAUNCHED.append("causal_conv1d_fwd")
        return torch.empty_like(x)

    def convolved_back(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *rest: object) -> tuple[object, ...]:
        LAUNCHED.append("causal_conv1d_bwd")
        return rest[4], torch.zeros_like(weight), torch.zeros_like(bias), None

    module_of("causal_conv1d", causal_conv1d_fn=None)
    module_of("causal_conv1d.cpp_functions", causal_conv1d_fwd_function=convolved,
              causal_conv1d_bwd_function=convolved_back, causal_conv1d_update_function=None)
    for package in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton", "mamba_ssm.utils"):
        module_of(package, __path__=[f"{path}/{package.replace('.', '/')}"])
    torch.cuda.device = lambda *_: contextlib.nullcontext()  # type: ignore[assignment,misc]
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(  # type: ignore[assignment]
        multi_processor_count=132)


def _inputs() -> tuple[list[torch.Tensor], dict[str, object]]:
    inner = HEADS * WIDTH
    shapes = ((1, LENGTH, 2 * inner + 2 * GROUPS * STATE + HEADS), (inner + 2 * GROUPS * STATE, 4),
              (inner + 2 * GROUPS * STATE,), (HEADS,), (HEADS,))
    tensors = [torch.randn(*shape, requires_grad=True) for shape in shapes]
    return tensors, {"D": torch.randn(HEADS, requires_grad=True), "chunk_size": LENGTH, "activation": "silu",
                     "headdim": WIDTH, "ngroups": GROUPS, "norm_before_gate": False}


def _launches(scan: object) -> dict[str, dict[str, int]]:
    """Kernels of Triton and of torch in each pass."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counts(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.found: Counter[str] = Counter()

        def __torch_dispatch__(self, function, _types, given=(), named=None):  # type: ignore[no-untyped-def]
            if not str(function).endswith(".out"):
                self.found[str(function).split(".")[1]] += 1
            return function(*given, **(named or {}))

    tensors, named = _inputs()
    LAUNCHED.clear()
    with Counts() as ahead:
        out = scan(*tensors, **named)  # type: ignore[operator]
    first = len([name for name in LAUNCHED if "conv1d" not in name])
    seed = torch.ones_like(out)
    with Counts() as back:
        out.backward(seed)
    both = len([name for name in LAUNCHED if "conv1d" not in name])
    return {"triton": {"forward": first, "backward": both - first},
            "torch": {"forward": sum(ahead.found[name] for name in LAUNCHING),
                      "backward": sum(back.found[name] for name in LAUNCHING)}}


def _norm(module: torch.nn.Module) -> dict[str, object]:
    """The gated norm behind the scan where that does not do it, without a gate: time, and kernels of both passes."""
    def out_of() -> torch.Tensor:
        return torch.randn(LENGTH, HEADS * WIDTH, requires_grad=True)

    rounds = [(operator_s(), *timed(module, out_of)) for _ in range(25)]
    LAUNCHED.clear()
    out = module(out_of())
    ahead = len(LAUNCHED)
    out.backward(torch.ones_like(out))
    return {"launches": {"forward": ahead, "backward": len(LAUNCHED) - ahead},
            "operators": {"forward": round(statistics.median(ahead / unit for unit, ahead, _ in rounds), 1),
                          "backward": round(statistics.median(back / unit for unit, _, back in rounds), 1)}}


def main(path: str) -> None:
    _replace(path)
    sys.path.insert(0, path)
    from mamba_ssm.ops.triton.layernorm_gated import RMSNorm
    from mamba_ssm.ops.triton.ssd_combined import mamba_split_conv1d_scan_combined as scan

    torch.set_num_threads(1)
    rounds = [(operator_s(), *timed(lambda given: scan(*given[0], **given[1]), _inputs)) for _ in range(25)]
    print(json.dumps({
        "versions": {"mamba": "e9594ce1", "torch": torch.__version__.partition("+")[0]}, "launches": _launches(scan),
        "operators": {"forward": round(statistics.median(ahead / unit for unit, ahead, _ in rounds), 1),
                      "backward": round(statistics.median(back / unit for unit, _, back in rounds), 1)},
        "norm": _norm(RMSNorm(HEADS * WIDTH, norm_before_gate=False))}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1])
