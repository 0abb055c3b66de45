"""The measured machine, and the only import of PyTorch, which runs when a machine is requested."""

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

_DRIVER: Final = Path("/proc/driver/nvidia/version")  # text of the kernel module, without starting a process


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine that is measured. `device`: "cuda" or "cpu"; `name`: of its GPU or processor.

    `torch`: the module; `count`: number of GPUs, on a CPU the number of processes that collectives are tested with.
    `told`: description for the sources of values: device, driver, versions, date.
    """

    torch: Any
    device: str
    name: str
    count: int
    told: str

    @property
    def is_gpu(self) -> bool:
        """True if the device is a GPU."""
        return self.device == "cuda"


def find_machine(device: str, topology: Topology, date: str) -> Machine:
    """Machine that this process runs on; `device` is "cuda" or "cpu", `date` goes into its description.

    InputError: no PyTorch; with "cuda" also: no usable GPU, or one of another compute capability than the topology's,
    whose peaks efficiencies refer to.
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
    description = f"{name}, driver {_driver()}, torch {torch.__version__}, CUDA {torch.version.cuda}, {date}"
    return Machine(torch, "cuda", name, torch.cuda.device_count(), description)


def _driver() -> str:
    """Driver version from a line such as `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15 ...`."""
    try:
        version = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", _DRIVER.read_text(encoding="utf-8"))
    except OSError:
        version = None
    return version[1] if version else "unknown"


def optional(name: str) -> Any:
    """The module called `name`, imported; None if it is not installed or cannot be loaded here."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError):  # OSError: a missing CUDA library
        return None


def _problem(message: str) -> InputError:
    return InputError(Problem("--device", message))
