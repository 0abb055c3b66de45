"""Measures what nemo-automodel 0.7.0's norm `torch_fp32` allocates: its custom operator, and its compiled backward.

    python tests/truth/probe_automodel_norm.py > tests/truth/tape/automodel-norm-0.7.0-torch-2.13.0.json

`components/models/common/utils.py`: a compiler does not look into the operator `_float32_rms_norm_impl`, so that its
own Python runs, here on fake tensors; the kernel of `F.rms_norm` is a stand-in that puts out what CUDA's does (its CPU
build is made of several). Backward is what torch.compile makes of `_float32_rms_norm_backward`: Inductor's own code.
`norms` of the other backends that torch has are run in the same way.
"""

from __future__ import annotations

import gc
import json
import logging
import warnings
from typing import Any

from json_lines import by_name

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import torch  # noqa: E402
from nemo_automodel.components.models.common import utils  # noqa: E402
from oracle import inductor  # noqa: E402
from oracle.steps.tracker import Tracker  # noqa: E402
from probe_automodel_mla import fused_rms_norm  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

CASES: dict[str, dict[str, Any]] = {
    "hidden state": {"shape": [2, 320, 256], "norm": "torch_fp32"},
    "heads": {"shape": [1, 320, 8, 64], "norm": "torch_fp32"},
    "in fp32": {"shape": [2, 320, 256], "norm": "torch_fp32", "dtype": "float32"},
    "weight in fp32": {"shape": [2, 320, 256], "norm": "torch_fp32", "weight": "float32"},
    "torch": {"shape": [2, 320, 256], "norm": "torch"},
}


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """Births and deaths of one forward, with those of an output that lives on; and of its backward."""
    dtype = getattr(torch, case.get("dtype", "bfloat16"))
    held = getattr(torch, case.get("weight", case.get("dtype", "bfloat16")))
    tr = Tracker()
    with FakeTensorMode(), tr:
        x = torch.empty(case["shape"], dtype=dtype)
        weight = torch.empty(case["shape"][-1], dtype=held)
        for known in (x, weight):
            tr.number_of(known)
        gc.collect()
        start, tr.phase = len(tr.events), "fwd"
        body = utils._float32_rms_norm_impl._init_fn if case["norm"] == "torch_fp32" else fused
        out = body(x, weight, 1e-6)
        found = {"case": case, "forward": [change for _, change in tr.events[start:]]}
    del out
    if case["norm"] == "torch_fp32":
        found["backward"] = compiled(case["shape"], dtype, held)
    return found


def fused(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)


def compiled(shape: list[int], dtype: torch.dtype, held: torch.dtype) -> list[int]:
    def step(compiler: inductor.Compiler) -> None:
        x = torch.empty(shape, dtype=dtype, requires_grad=True)
        weight = torch.empty(shape[-1], dtype=held, requires_grad=True)
        torch.compile(lambda one, two: torch.ops.nemo_automodel.float32_rms_norm(one, two, 1e-6), backend=compiler,
                      fullgraph=True)(x, weight).sum().backward()

    sections = inductor.measured(step)["sections"]
    changes: list[int] = next(section["events"] for section in sections if section["at"] == "backward")
    return changes


if __name__ == "__main__":
    KERNELS = torch.library.Library("aten", "IMPL")
    KERNELS.impl("_fused_rms_norm", fused_rms_norm, "CPU")
    KERNELS.m.impl("_fused_rms_norm", "Meta", fused_rms_norm, False)
    rows = by_name({name: measured(case) for name, case in CASES.items()}, compact=True)
    print(json.dumps({"torch": torch.__version__.partition("+")[0]})[:-1] + f', "cases": {{\n{rows}\n}}}}')
