"""Nemotron-H as its repository on the hub has it: `modeling_nemotron_h.py`, run with trust_remote_code.

Read in two public copies of the file for Nemotron-3-Nano (one of them in a vision model, line for line). Where it is
silent it is transformers' own: norms, Mamba's fused kernel, embedding, head. What differs:

 * each routed expert is a module with two linears, so adapters by name find them all;
 * the experts' loop and attention, see `hf/remote_code.py`;
 * the loss takes a slice of the logits, transformers 5.23 moves the labels.
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
from simcore.operators.hf.remote_code import joined
from simcore.operators.implementation import Implementation
from simcore.recording.layer import LayerWorkload, RecordedLayer

__all__ = ["IMPLEMENTATION", "record", "tensors"]


def tensors(kind: LayerKind) -> tuple[TensorSpec, ...]:
    """Tensors of transformers 5.23's layer, in registration order, each expert's matrices separately.

    A matrix of all experts is one entry whose `TensorSpec.copies` counts them. Raises NotYet for all families but
    Nemotron-H.
    """
    if kind.family != "nemotron_h":
        raise NotYet(Problem("implementation", f"not yet: {kind.family} in the layers of its own repository (served: "
                             "nemotron_h)"))
    return tuple(_apart(spec) for spec in hf_tensors.tensors(kind))


def _apart(spec: TensorSpec) -> TensorSpec:
    """`experts.E.up_proj.weight` for all E as copies of one."""
    if spec.module != "grouped":
        return spec
    return replace(spec, name=f"{spec.name}.weight", shape=spec.shape[1:], dims=spec.dims[1:], module="linear",
                   copies=spec.shape[0])


def record(kind: LayerKind, run: LayerWorkload, slots: dict[tuple[str, str], int],
           comms: dict[tuple[str, str, str], int]) -> RecordedLayer:
    """Recording, forward and backward, of one layer of `kind` (or embedding, final norm, head, loss).

    In its `grads` the gradients of all experts count as one. `slots`, `comms`: shared tables of storages and
    communications, see `recording.rows.Recorder`; entries are added.
    """
    tape = hf.record(kind, replace(run, options=replace(HfOptions.of(run.options), is_of_hub=True)), slots, comms)
    return replace(tape, grads=joined(tape.grads, run))


IMPLEMENTATION: Final = Implementation(record=record, tensors=tensors, standing=hf.standing)
