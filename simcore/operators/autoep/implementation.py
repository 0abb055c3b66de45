"""Tensors and tapes of transformers' layers with DeepSpeed's experts in them (0.19.6, edaa72212)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from simcore.models.blocks import Branch, LayerKind, Moe
from simcore.models.tensor import TensorSpec
from simcore.operators.autoep.experts import moe
from simcore.operators.hf import implementation as hf
from simcore.operators.hf import tensors as hf_tensors
from simcore.operators.hf.layers import mlp
from simcore.operators.hf.options import HfOptions
from simcore.operators.implementation import Implementation
from simcore.recording.layer import LayerWorkload, RecordedLayer
from simcore.recording.tape import Tape, Tensor

__all__ = ["IMPLEMENTATION", "deepspeed_experts", "record", "tensors"]


def tensors(kind: LayerKind) -> tuple[TensorSpec, ...]:
    """Returns the tensors of a layer in registration order: those of a block of experts are DeepSpeed's own.

    `AutoEPMoELayer`: the router, then gate, down and up of all experts, three parameters (w1, w2, w3), then the shared
    expert and its gate (`moe/ep_repack.py` cuts transformers' parameter of gate and up in two). Raises NotYet for what
    transformers does not build.
    """
    found = hf_tensors.tensors(kind)
    blocks = {branch.name: branch.block for branch in kind.branches if isinstance(branch.block, Moe) and found}
    for name, block in blocks.items():
        places = [place for place, spec in enumerate(found) if spec.name.startswith(f"{name}.")]
        inside = [found[place] for place in places]
        found = (*found[:places[0]], *_ours(name, block, inside), *found[places[-1] + 1:])
    return found


def _ours(name: str, block: Moe, inside: list[TensorSpec]) -> Iterator[TensorSpec]:
    """Router, experts, shared expert, its gate; the correction of scores is a buffer of the router's."""
    hidden, ffn = (block.hidden, "hidden"), (block.expert_ffn, "expert_ffn")
    yield from (replace(spec, name=spec.name.replace(f"{name}.gate.", f"{name}.router.gate.", 1)) for spec in inside
                if spec.component == "router" and not spec.is_buffer)
    for part, out, into in (("w1", ffn, hidden), ("w2", hidden, ffn), ("w3", ffn, hidden)):
        yield TensorSpec(f"{name}.experts.{part}", (block.num_experts, out[0], into[0]), ("experts", out[1], into[1]),
                         "routed_experts", "grouped")
    yield from (replace(spec, name=_plural(name, spec.name)) for spec in inside if spec.component == "shared_experts")
    yield TensorSpec(f"{name}.tokens_per_expert", (block.num_experts,), ("experts_router",), "router", "router", "fp32",
                     is_buffer=True, trainable=False)


def _plural(name: str, path: str) -> str:
    """Path of the shared expert and of its gate, in the singular in some families of transformers."""
    rest = path.removeprefix(f"{name}.shared_experts").removeprefix(f"{name}.shared_expert")
    return f"{name}.shared_experts{rest}"


def deepspeed_experts(tape: Tape, run: LayerWorkload, branch: Branch, x: Tensor) -> Tensor:
    """Output of a block of experts for `x` [b, s, hidden], in x's shape; a shared expert is transformers' MLP."""
    return moe(tape, run, branch, x, mlp)


def record(kind: LayerKind, run: LayerWorkload, slots: dict[tuple[str, str], int],
           comms: dict[tuple[str, str, str], int]) -> RecordedLayer:
    """Returns the recording, forward and backward, of one layer of `kind` (or embedding, final norm, head, loss).

    `slots`, `comms`: shared tables of storages and communications, see `recording.rows.Recorder`; entries are added.
    """
    run = replace(run, options=replace(HfOptions.of(run.options), experts=deepspeed_experts))
    layer = hf.record(kind, run, slots, comms)
    if not layer.rest.rows:
        return layer
    left = tuple((slot, size) for _, _, slot, size, _, _ in layer.rest.rows)  # [Note: logits that are not read]
    return hf.record(kind, replace(run, left=left), slots, comms)


IMPLEMENTATION: Final = Implementation(record=record, tensors=tensors)
