"""The page of built-in machines, made from their files.

python -m simcore.docgen.machines > docs/machines.md
"""

from __future__ import annotations

import sys
from typing import Final

from simcore.docgen.glossary import table
from simcore.hardware.device import Peaks
from simcore.hardware.efficiency import efficiency_names
from simcore.hardware.topology import Topology, load_topology, topology_names
from simcore.inputs.quantity import Quantity
from simcore.units import GIB

__all__ = ["machines"]

_HEAD: Final = """# Machines

Made by `python -m simcore.docgen.machines` from `topologies/*.yaml`; edit those, not this page. Each number stands
there with its unit, its kind (datasheet, measured, fitted, assumed) and its source; here `~` marks what is assumed.

A scenario names a machine (`topology: dgx-h100`), bounds it (`{file: dgx-h100, num_nodes: 2}`; `gpus_per_node`,
`power_limit`), or names a file of one's own that is written like these."""
_GPUS: Final = """Dense peaks in TFLOP/s; `-`: the GPU does not compute in that format. Memory in GiB: in
all, as its tools tell, and what the driver leaves a program. GB/s: what that memory may carry."""
_NODES: Final = """Rates are of one GPU and one way, in GB/s: what its links may carry, and in brackets the bus
bandwidth of an all-gather over a node, or over one NIC. An empty cell: there is none. The price was asked
on that date for one GPU and an hour, in USD; without one, what a run costs is not told."""
_SHARES: Final = """What kernels reach of a GPU's peaks is in `topologies/efficiency/`, and a machine names one of its
files, or a file of one's own by its path from the topology file. Those whose name begins with `generic` are assumed
from other GPUs. They are: """


def machines() -> str:
    """Markdown text of `docs/machines.md`: tables of GPUs, nodes and networks of all built-in topologies."""
    topologies = [load_topology(name) for name in topology_names()]
    gpus = table(("GPU", "capability", "SMs", "memory", "usable", "GB/s", *_formats(), "W"),
                 {topology.device.name: _gpu(topology) for topology in topologies}.values())
    nodes = table(("machine", "GPUs a node", "GPU", "between GPUs", "network", "nodes", "host GiB", "host link",
                   "price", "kernels"), map(_machine, topologies))
    shares = _SHARES + ", ".join(f"`{name}`" for name in efficiency_names()) + "."
    parts = (_HEAD, "## GPUs", _GPUS, gpus, "## Nodes and networks", _NODES, nodes, "## Kernels", shares)
    return "\n\n".join(parts) + "\n"


def _formats() -> tuple[str, ...]:
    return tuple(Peaks.model_fields)


def _gpu(machine: Topology) -> tuple[str, ...]:
    device = machine.device
    peaks = (_formatted(getattr(device.peak, name), 1e12) or "-" for name in _formats())
    return (device.name, device.compute_capability, _formatted(device.num_sms), _formatted(device.memory.total, GIB),
            _formatted(device.memory.usable, GIB), _formatted(device.memory_bandwidth, 1e9), *peaks,
            _formatted(device.power))


def _machine(machine: Topology) -> tuple[str, ...]:
    node, price = machine.node, machine.price_per_gpu_hour
    pcie = "PCIe " * bool(node.pcie)
    hosts = f", {machine.gpus_per_host} a host" if node.gpus_per_host else ""
    links = [f"{_formatted(link.bandwidth, 1e9)} ({_formatted(link.bus_bandwidth.all_gather, 1e9)})" if link else ""
             for link in (node.fabric, machine.network)]
    return (f"`{machine.name}`", f"{_formatted(node.gpus)}{hosts}", machine.device.name, f"{pcie}{links[0]}", links[1],
            str(machine.num_nodes or ("as needed" if machine.network else "1")), _formatted(node.host_memory, GIB),
            _formatted(node.host_link.bandwidth, 1e9), f"{_formatted(price)} ({price.date})" if price else "",
            f"`{machine.efficiency.name}`")


def _formatted(quantity: Quantity | None, scale: float = 1) -> str:
    if quantity is None:
        return ""
    value = f"{quantity.si / scale:.2f}".rstrip("0").rstrip(".")
    return f"~{value}" if quantity.kind == "assumed" else value


if __name__ == "__main__":
    sys.stdout.write(machines())
