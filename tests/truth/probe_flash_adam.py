"""States that FlashOptim's AdamW makes in its first step: `optimizers/flashoptim-8b2d966e.json`.

    python tests/truth/probe_flash_adam.py CLONE > tests/truth/optimizers/flashoptim-8b2d966e.json

CLONE: a git directory of databricks/flashoptim. The class is that of 8b2d966e, over fake tensors of a GPU; its kernels
do nothing. A case's parameters have 96 and 5 elements.
"""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any

import torch
import torch._dynamo  # before triton is a stand-in
from json_lines import with_cases
from torch._subclasses.fake_tensor import FakeTensorMode

COMMIT = "8b2d966e0329ed2b0c22c3782cae3989c0ccb03b"
FILE = "flashoptim/optimizers.py"
SHAPES = ((12, 8), (5,))
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bf16, defaults": ("bfloat16", {}), "bf16, 32 bits": ("bfloat16", {"master_weight_bits": 32}),
    "bf16, no master": ("bfloat16", {"master_weight_bits": None}),
    "fp32, no master": ("float32", {"master_weight_bits": None})}


class Kernel:
    """A kernel that does nothing, called or launched over a grid."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    def __getitem__(self, _grid: Any) -> Kernel:
        return self

    def __getattr__(self, _name: str) -> Kernel:
        return self


def load(clone: str) -> Any:
    source = subprocess.run(["git", "-C", clone, "show", f"{COMMIT}:{FILE}"], capture_output=True, text=True,  # noqa: S607 - git
                            check=True).stdout
    language = types.ModuleType("triton.language")
    vars(language).update({name: Kernel() for name in (
        "float32", "bfloat16", "float16", "int8", "int16", "int32", "uint8", "constexpr", "tensor")})
    language.math = language.extra = Kernel()  # type: ignore[attr-defined]
    triton = types.ModuleType("triton")
    vars(triton).update({"jit": lambda _: Kernel(), "autotune": lambda **_: lambda _: Kernel(), "Config": Kernel(),
                         "heuristics": lambda *_: lambda _: Kernel(), "cdiv": lambda n, by: -(-n // by),
                         "language": language})
    inner = {f"triton.language.{name}": types.ModuleType(f"triton.language.{name}") for name in (
        "extra", "extra.libdevice")}
    vars(inner["triton.language.extra"])["libdevice"] = Kernel()
    sys.modules |= {"triton": triton, "triton.language": language} | inner
    made = types.ModuleType("flash")
    sys.modules["flash"] = made
    exec(compile(source, FILE, "exec"), vars(made))  # noqa: S102
    return made


def states(module: Any, dtype: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Format and elements of each state, by its name, of each parameter; scales go by the state's name too."""
    with FakeTensorMode():
        params = [torch.nn.Parameter(torch.ones(shape, dtype=getattr(torch, dtype), device="cuda")) for shape in SHAPES]
        optimizer = module.FlashAdamW(params, **arguments)
        for param in params:
            optimizer._ensure_state_initialized(param, optimizer.param_groups[0])
    found = []
    for param in params:
        row: dict[str, Any] = {}
        for name, state in optimizer.state[param].items():
            if name == "step":
                continue  # on the host
            parts = {name: state} if isinstance(state, torch.Tensor) else {
                name: state.quantized, f"{name}.scales": state.scales}
            row |= {key: [str(part.dtype).removeprefix("torch."), part.numel()] for key, part in parts.items()}
        found.append(row)
    return found


def main() -> None:
    module = load(sys.argv[1])
    torch.cuda.is_available = lambda: True
    rows = {name: {"dtype": dtype, "arguments": arguments, "states": states(module, dtype, arguments)}
            for name, (dtype, arguments) in CASES.items()}
    print(with_cases({"flashoptim": COMMIT, "torch": torch.__version__, "shapes": SHAPES}, rows))


if __name__ == "__main__":
    main()
