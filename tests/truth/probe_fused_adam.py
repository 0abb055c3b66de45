"""States that TransformerEngine's FusedAdam makes in its first step: `optimizers/te-fused-adam-d0067d0d.json`.

    python tests/truth/probe_fused_adam.py CLONE > tests/truth/optimizers/te-fused-adam-d0067d0d.json

CLONE: a git directory of TransformerEngine. The class is that of d0067d0d, on a CPU; its kernels, which need a GPU, and
classes of tensors in 8 bits are stand-ins that do nothing. A case's parameters have 48 and 5 elements.
"""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any

import torch
from json_lines import with_cases

COMMIT = "d0067d0da6cb01811b8072a7d304f0e00344ce2b"
FILE = "transformer_engine/pytorch/optimizers/fused_adam.py"
SHAPES = ((6, 8), (5,))
CASES: dict[str, dict[str, Any]] = {
    "defaults": {}, "masters": {"master_weights": True},
    "remainders": {"master_weights": True, "store_param_remainders": True},
    "remainders without masters": {"store_param_remainders": True},
    "bf16 moments": {"master_weights": True, "store_param_remainders": True, "exp_avg_dtype": "bfloat16",
                     "exp_avg_sq_dtype": "bfloat16"}}


def load(clone: str) -> Any:
    source = subprocess.run(["git", "-C", clone, "show", f"{COMMIT}:{FILE}"], capture_output=True, text=True,  # noqa: S607 - git
                            check=True).stdout
    nothing = type("Nothing", (), {})
    modules: dict[str, dict[str, Any]] = {
        "transformer_engine_torch": {f"multi_tensor_adam{end}": None for end in (
            "", "_param_remainder", "_fp8", "_capturable", "_capturable_master")},
        "transformer_engine": {}, "transformer_engine.pytorch": {},
        "transformer_engine.pytorch.tensor": {},
        "transformer_engine.pytorch.tensor.float8_tensor": {"Float8Tensor": nothing, "Float8Quantizer": nothing},
        "transformer_engine.pytorch.quantized_tensor": {"QuantizedTensor": nothing},
        "transformer_engine.pytorch.constants": {"DType": types.SimpleNamespace(kFloat32=0, kFloat8E4M3=1)},
        "transformer_engine.pytorch.optimizers": {},
        "transformer_engine.pytorch.optimizers.multi_tensor_apply": {"multi_tensor_applier": lambda *_: None}}
    for name, held in modules.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(held)
    made = types.ModuleType("transformer_engine.pytorch.optimizers.fused_adam")
    made.__package__ = "transformer_engine.pytorch.optimizers"
    exec(compile(source.replace('device="cuda"', 'device="cpu"'), FILE, "exec"), vars(made))  # noqa: S102
    return made.FusedAdam


def states(build: Any, dtype: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Format and elements of each state, by its name, of each parameter."""
    params = [torch.nn.Parameter(torch.ones(shape, dtype=getattr(torch, dtype))) for shape in SHAPES]
    given = {key: getattr(torch, value) if key.endswith("_dtype") else value for key, value in arguments.items()}
    optimizer = build(params, **given)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    return [{name: [str(state.dtype).removeprefix("torch."), state.numel()] for name, state in
             optimizer.state[param].items()} for param in params]


def main() -> None:
    build = load(sys.argv[1])
    rows = {f"{dtype}, {name}": {"dtype": dtype, "arguments": arguments, "states": states(build, dtype, arguments)}
            for dtype in ("bfloat16", "float32") for name, arguments in CASES.items()}
    print(with_cases({"TransformerEngine": COMMIT, "torch": torch.__version__, "shapes": SHAPES}, rows))


if __name__ == "__main__":
    main()
