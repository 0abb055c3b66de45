"""Qwen3-MoE and Mixtral of transformers 4.57.1: `models/qwen3_moe`, `models/mixtral`.

Differences from 5.23, where the experts of a layer are one or two parameters of three dimensions:

 * each expert is a module of three linears (gate_proj, up_proj, down_proj; in Mixtral w1, w3, w2), so adapters by name
   find them and bitsandbytes packs them;
 * the router is a linear too, is registered before the experts, and is packed with them;
 * a loop over experts runs them, see `operators/hf/remote_code.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simcore.errors import NotYet, Problem
from simcore.models.blocks import LayerKind
from simcore.models.tensor import TensorSpec
from simcore.operators.hf import implementation as hf
from simcore.operators.hf import tensors as hf_tensors
from simcore.operators.hf.options import HfOptions
from simcore.operators.hf.remote_code import LINEARS, joined
from simcore.operators.implementation import Implementation
from simcore.recording.layer import LayerWorkload, RecordedLayer

__all__ = ["IMPLEMENTATION", "record", "tensors"]


def tensors(kind: LayerKind) -> tuple[TensorSpec, ...]:
    """Tensors of a layer in registration order, those of the experts each as copies of one (`TensorSpec.copies`).

    Raises NotYet for all families but Qwen3-MoE and Mixtral.
    """
    if kind.family not in LINEARS:
        raise NotYet(Problem("implementation", f"not yet: {kind.family} in the layers of transformers 4.57.1 (served: "
                             f"{', '.join(LINEARS)})"))
    found = hf_tensors.tensors(kind)
    routers = [replace(spec, module="linear") for spec in found if spec.module == "router"]
    experts = [linear for spec in found if spec.module == "grouped" for linear in _linears(kind.family, spec)]
    if kind.family == "mixtral":  # w1, w2, w3
        experts.sort(key=lambda spec: spec.name)
    others = [spec for spec in found if spec.module not in ("router", "grouped")]
    at = next((place for place, spec in enumerate(found) if spec.module in ("router", "grouped")), len(found))
    return (*others[:at], *routers, *experts, *others[at:])


def _linears(family: str, spec: TensorSpec) -> tuple[TensorSpec, ...]:
    """The linears of one expert that a parameter of all experts stands for: two for gate and up, one for down."""
    copies, rows, columns = spec.shape
    module, _, part = spec.name.rpartition(".")
    gate, up, down = LINEARS[family]
    parts, height = ((down,), rows) if part == "down_proj" else ((gate, up), rows // 2)
    return tuple(replace(spec, name=f"{module}.{name}.weight", shape=(height, columns), dims=spec.dims[1:],
                         module="linear", copies=copies) for name in parts)


def record(kind: LayerKind, run: LayerWorkload, slots: dict[tuple[str, str], int],
           comms: dict[tuple[str, str, str], int]) -> RecordedLayer:
    """Recording, forward and backward, of one layer of `kind` (or embedding, final norm, head, loss).

    In its `grads` the gradients of all experts count as one. `slots`, `comms`: shared tables of storages and
    communications, see `recording.rows.Recorder`; entries are added.
    """
    tape = hf.record(kind, replace(run, options=replace(HfOptions.of(run.options), has_expert_modules=True)), slots,
                     comms)
    return replace(tape, grads=joined(tape.grads, run))


IMPLEMENTATION: Final = Implementation(record=record, tensors=tensors)
