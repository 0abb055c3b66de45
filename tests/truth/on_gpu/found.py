"""Says what this machine has: the GPU, its topology, and packages that cases miss.

    python -m on_gpu.found DEVICE [TOPOLOGY]
"""

from __future__ import annotations

import importlib
import sys

from on_gpu.cases import CASES, TOPOLOGIES
from on_gpu.step import absent


def main(device: str, topology: str) -> int:
    if absent(("torch",)):
        print("torch is not installed: nothing can be run; give wheels in WHEELS, or another PYTHON")
        return 2
    torch = importlib.import_module("torch")
    if device == "cuda" and not torch.cuda.is_available():
        print("torch finds no GPU; --device cpu tries the script out with small models")
        return 2
    name = torch.cuda.get_device_name(0) if device == "cuda" else "CPU"
    print(f"machine: {name}, torch {torch.__version__}, Python {sys.version.partition(' ')[0]}")
    print(f"topology: {topology or TOPOLOGIES.get(name, '' if device == 'cuda' else 'h100-1gpu')}")
    for case in CASES.values():
        if lacking := absent((*case.needs, *case.kernels)):
            print(f"missing: {', '.join(lacking)} (for {case.name})")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
