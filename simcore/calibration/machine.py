"""The machine that is measured, and the one door to PyTorch: it is imported when somebody asks for a machine."""

from __future__ import annotations

import importlib
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError, Problem
from simcore.hardware.topology import Topology

__all__ = ["Machine", "find_machine", "optional"]

_DRIVER: Final = Path("/proc/driver/nvidia/version")  # the kernel module's own words; nothing need be started


@dataclass(frozen=True, slots=True)
class Machine:
    """`device` is cuda or cpu; `name` of the GPU or processor; `told` is all of it, for the source of a number.

    `count`: GPUs that there are; on a CPU the processes that collectives are tried with.
    """

    torch: Any
    device: str
    name: str
    count: int
    told: str

    @property
    def is_gpu(self) -> bool:
        return self.device == "cuda"


def find_machine(device: str, topology: Topology, date: str) -> Machine:
    """The machine we run on, which must have a GPU of the topology's generation if `device` is cuda.

    InputError: no PyTorch, no GPU that it can use, or another generation than the one whose peaks shares are of.
    """
    torch = optional("torch")
    if torch is None:
        raise _problem("calibrate runs PyTorch, which is not there: pip install 'rankscope[calibrate]'")
    if device == "cpu":
        name = platform.processor() or platform.machine()
        return Machine(torch, device, name, 2, f"CPU {name}, torch {torch.__version__}, {date}")
    if not torch.cuda.is_available():
        raise _problem("PyTorch finds no GPU here; --device cpu tries the path out, its shares mean nothing for a GPU")
    return _gpu(torch, topology, date)


def _gpu(torch: Any, topology: Topology, date: str) -> Machine:
    name = str(torch.cuda.get_device_name(0))
    capability = ".".join(map(str, torch.cuda.get_device_capability(0)))
    if capability != topology.device.compute_capability:
        raise InputError(Problem("--topology", (
            f"{topology.name} has {topology.device.name} (compute capability {topology.device.compute_capability}), "
            f"this machine {name} ({capability}): shares of another GPU's peaks mean nothing")))
    told = f"{name}, driver {_driver()}, torch {torch.__version__}, CUDA {torch.version.cuda}, {date}"
    return Machine(torch, "cuda", name, torch.cuda.device_count(), told)


def _driver() -> str:
    """As `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15 ...` says it."""
    try:
        found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", _DRIVER.read_text(encoding="utf-8"))
    except OSError:
        found = None
    return found[1] if found else "unknown"


def optional(name: str) -> Any:
    """A module, or None where it is not installed or cannot be loaded here."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError):  # OSError: a library of CUDA that is not there
        return None


def _problem(message: str) -> InputError:
    return InputError(Problem("--device", message))
