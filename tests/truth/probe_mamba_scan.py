"""Measures what mamba_ssm's fused Mamba-2 allocates, event by event: `tape/mamba-e9594ce1.json`.

    python tests/truth/probe_mamba_scan.py MAMBA CONV > tests/truth/tape/mamba-e9594ce1.json

MambaSplitConv1dScanCombinedFn (`ops/triton/ssd_combined.py`) and causal_conv1d's `cpp_functions.py` run as they are,
forward and backward, over fake tensors in bf16; kernels of Triton and CUDA do nothing, the GPU has the 132 SMs of an
H100. MAMBA and CONV are checkouts of state-spaces/mamba e9594ce1 and Dao-AILab/causal-conv1d. The stand-in of
`simcore/verify/real/steps/mamba.py` is run too where it has a part, and has to have the same events.
`plain`: without the gated norm. `wide`: parameters are frozen and in fp32, but for the gated norm, and the call is
under autocast to bf16.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # before Triton is replaced: it looks for the real one
from host_time import module_of, replace_triton
from json_lines import by_name
from oracle.steps.mamba import fused_mamba
from oracle.steps.tracker import Tracker
from torch._subclasses.fake_tensor import FakeTensorMode

HERE = Path(__file__).resolve().parent
Case = dict[str, Any]


def put_in_place(mamba: str, conv: str) -> Any:
    """The function, with kernels that do nothing."""
    replace_triton()
    nothing = {name: lambda *_: None for name in ("causal_conv1d_fwd", "causal_conv1d_bwd", "causal_conv1d_update")}
    module_of("causal_conv1d_cuda", **nothing)
    module_of("causal_conv1d", __path__=[f"{conv}/causal_conv1d"], causal_conv1d_fn=None)
    for package in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton", "mamba_ssm.utils"):
        module_of(package, __path__=[f"{mamba}/{package.replace('.', '/')}"])
    torch.cuda.device = lambda *_: contextlib.nullcontext()  # type: ignore[assignment,misc]
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(  # type: ignore[assignment]
        multi_processor_count=132)
    return importlib.import_module("mamba_ssm.ops.triton.ssd_combined").mamba_split_conv1d_scan_combined


def measured(scan: Any, case: Case) -> dict[str, Any]:
    """Signed bytes of births and deaths of both passes; what is given and the output's gradient are not among them."""
    heads, width, groups, state = (case[name] for name in ("heads", "head_dim", "groups", "state"))
    inner, batch, seq = heads * width, case["batch"], case["seq"]
    convolved = inner + 2 * groups * state
    wide = case.get("wide", False)
    kind = torch.float32 if wide else torch.bfloat16
    torch.is_autocast_enabled = lambda *_: wide  # type: ignore[assignment]
    torch.get_autocast_gpu_dtype = lambda *_: torch.bfloat16  # type: ignore[assignment]
    with FakeTensorMode():
        def leaf(*shape: int, dtype: torch.dtype = kind) -> torch.Tensor:
            return torch.empty(*shape, dtype=dtype, requires_grad=not wide)

        given = [torch.empty(batch, seq, inner + convolved + heads, dtype=torch.bfloat16, requires_grad=True),
                 leaf(convolved, 4), leaf(convolved), leaf(heads), leaf(heads, dtype=torch.float32)]
        named: dict[str, Any] = {"D": leaf(heads)}
        if case["tail"]:
            named |= {} if case.get("plain") else {"rmsnorm_weight": leaf(inner, dtype=torch.bfloat16)}
            named |= {"outproj_weight": leaf(case["hidden"], inner)}
        tracker = Tracker()
        tracker.phase = "fwd"
        with tracker:
            for tensor in (*given, *named.values()):
                tracker.tag(tensor, "input")
            start = len(tracker.events)
            out = scan(*given, chunk_size=case["chunk"], activation="silu", headdim=width, ngroups=groups,
                       norm_before_gate=False, **named)
            forward = [change for _, change in tracker.events[start:]]
            seed = torch.empty_like(out)
            start = len(tracker.events)
            out.backward(seed)
            backward = [change for _, change in tracker.events[start:]]
    return {"case": case, "sections": [{"at": "forward", "events": forward}, {"at": "backward", "events": backward}]}


if __name__ == "__main__":
    function = put_in_place(*sys.argv[1:3])
    cases: list[Case] = json.loads((HERE / "tape" / "cases-mamba.json").read_text(encoding="utf-8"))
    rows = {case.pop("name"): measured(function, case) for case in cases}
    for name, row in rows.items():
        if row["case"]["tail"] and not row["case"].get("plain") and measured(fused_mamba, row["case"]) != row:
            sys.exit(f"{name}: the stand-in has other events")
    print(f"{{\n{by_name(rows)}\n}}")
