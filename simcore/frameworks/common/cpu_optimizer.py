"""The optimizer's step on the host: gradients are copied to it, a CPU updates, parameters are copied back.

torch 2.13 `optim/adamw.py`, `optim/adam.py` (_single_tensor_adam), `optim/sgd.py` (_single_tensor_sgd): on a CPU the
default is neither foreach nor fused, so each operator reads and writes whole tensors. Counted, in passes over the
elements: decay 2, first moment 3, second moment 2 and 3, root 2, quotient 2, epsilon 2, update 4; SGD with momentum and
decay 3, 2, 3 and 3. A fused step reads four tensors and writes three.
"""

from __future__ import annotations

from typing import Final

from simcore.inputs.optimizers import OPTIMIZERS
from simcore.placement.plan import Plan
from simcore.program.builder import Builder
from simcore.program.outline import Tables
from simcore.recording.rows import HOST_STOPS, Module
from simcore.recording.tape import Stream
from simcore.units import dtype_bytes

__all__ = ["copied", "cpu_bytes", "share_on_host", "updated", "updated_on_host", "waits_for_device"]

_FUSED: Final = 7
"""Passes of a fused step over a parameter, its gradient and two moments."""


def cpu_bytes(optimizer: str, implementation: str, elements: int, size: int) -> int:
    """Returns the bytes that the CPU reads and writes in an optimizer step, as if it had no cache.

    `optimizer`: its name in the scenario. `implementation`: "fused", or any other for a loop of torch's operators.
    `elements`: number of parameters' elements, of `size` bytes each.
    """
    kind = OPTIMIZERS[optimizer]
    one_moment = implementation == "fused" and len(kind.states) == 1
    passes = _FUSED - 2 * one_moment if implementation == "fused" else kind.cpu_passes
    return passes * elements * size


def share_on_host(plan: Plan) -> float:
    """Returns the fraction of optimizer states in host memory, which a CPU updates, from 0 (none) to 1.

    It is the same for every trained tensor with states there. States in pinned host memory do not count.
    """
    policies = (placed.policy for kind, _ in plan.kind_counts for placed in plan.kinds[kind] if placed.trainable)
    return max((layout.share for policy in policies for _, layout in policy.optimizer_states if layout.space == "host"),
               default=0.0)


def copied(layer: int, direction: str, dtype: str, num_bytes: int, tables: Tables, builder: Builder) -> None:
    """Writes a copy between device and host to `builder`, on the compute stream, in order with kernels.

    `layer`: number, in the whole model, under which the copy is listed. `direction`: "to_host" or "to_device".
    """
    builder.copy(layer, tables.comm("copy", direction, dtype), num_bytes, Stream.COMPUTE, int(Module.NONE))


def updated(plan: Plan, builder: Builder) -> None:
    """Writes the CPU's update of sharded parameters that rest on the host; nothing if there are none.

    The host first waits for the device, which copies gradients to it.
    """
    optimizer = plan.framework.optimizer
    away = [(placed, count) for kind, count in plan.kind_counts for placed in plan.kinds[kind]
            if placed.trainable and not placed.rests_here]
    if away:
        waits_for_device(plan.layers[0], builder)
        builder.host(sum(count * cpu_bytes(optimizer.name, optimizer.implementation, placed.local, dtype_bytes(
            placed.policy.at_rest.dtype)) for placed, count in away))


def waits_for_device(layer: int, builder: Builder) -> None:
    """Writes to `builder` that the host waits until all earlier operations of the device are done.

    Copies to the host are among them. `layer`: number, in the whole model, under which the wait is listed.
    """
    builder.wait(layer, HOST_STOPS)


def updated_on_host(plan: Plan, elements: int, builder: Builder) -> None:
    """Writes the step of DeepSpeed's states over `elements` elements, after a wait for their gradients.

    It is in fp32, and its results are cast from 4 bytes to 2. Fused: DeepSpeed 0.19.6 `ops/adam/cpu_adam.py`,
    `csrc/includes/cpu_adam.h`, or torch's; otherwise torch's loop.
    """
    waits_for_device(plan.layers[0], builder)
    optimizer = plan.framework.optimizer
    builder.host(cpu_bytes(optimizer.name, optimizer.implementation, elements, 4) + 6 * elements)
