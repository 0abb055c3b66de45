"""A layer whose blocks are beside each other (transformers 5.23 `models/phi`, `cohere2`, `gpt_neox`, `falcon_h1`)."""

from __future__ import annotations

from collections.abc import Callable

from simcore.models.blocks import Branch, LayerKind
from simcore.operators.shared import aten
from simcore.recording.tape import Tape, Tensor

__all__ = ["Mix", "Norm", "both", "pair"]

Mix = Callable[[Branch, Tensor], tuple[Tensor, object]]
"""(branch, x) -> the block's output, and what the layer holds of it until it returns."""
Norm = Callable[[str, Tensor], Tensor]
"""(module with a dot at its end, x) -> normalised x."""


def both(tape: Tape, kind: LayerKind, hidden: Tensor, mix: Mix, norm: Norm) -> Tensor:
    """The stream `hidden` [batch, seq, hidden] plus attention and MLP, in its shape.

    Phi and GPT-NeoX add both, then the stream, Cohere 2 each in turn to the stream; GPT-NeoX has a norm for each.
    """
    seen, held, outs = hidden, list[object](), list[Tensor]()
    for branch in kind.branches:
        tape.scope = f"{branch.norm}."
        seen = norm(f"{branch.norm}.", hidden) if branch.norm else seen
        tape.scope = f"{branch.name}."
        out, given = mix(branch, seen)
        held.append(given)
        if kind.branches[-1].norm:  # each has its own
            seen = hidden
        outs.append(aten.dropout(tape, out) if kind.dropout else out)
        del out, given
    tape.scope = ""
    mixed, dense = outs
    if kind.family in ("gpt_neox", "phi"):
        added = aten.add(tape, mixed, dense, "both")
        return aten.add(tape, added, hidden, "residual")
    return aten.add(tape, aten.add(tape, hidden, mixed, "residual"), dense, "residual")


def pair(tape: Tape, kind: LayerKind, hidden: Tensor, mix: Mix, norm: Norm, held: list[Tensor]) -> Tensor:
    """Sum of the stream and of two mixers of one norm's output; `held` gets what the layer holds until it returns."""
    first, *_ = kind.branches
    tape.scope = f"{first.norm}."
    seen = norm(f"{first.norm}.", hidden)
    for branch in kind.branches[:2]:
        tape.scope = f"{branch.name}."
        held.append(mix(branch, seen)[0])
    tape.scope = ""
    mixed, attended = held
    added = aten.add(tape, mixed, attended, "both")
    del seen
    return aten.add(tape, hidden, added, "residual")
