"""Input and output of an implementation that records a layer: `LayerWorkload` and `RecordedLayer`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simcore.recording.options import NO_OPTIONS, ImplementationOptions
from simcore.recording.tape import Param, Section

__all__ = ["LayerWorkload", "RecordedLayer"]

_EMPTY = Section(())


@dataclass(frozen=True, slots=True)
class LayerWorkload:
    """The workload of one layer on one rank.

    `seq`: tokens of one sequence on this rank, after context parallelism, before sequence parallelism.
    `rows_per_token`: routed rows that this rank's experts receive per token of this rank, times 2**16, rounded
    (top_k x 2**16 when routing is balanced). `sent_per_token`: rows that it sends, 0 for top_k.
    `first`: the layer's input is the stem's output, which the stem holds until the last layer is done.
    `input_requires_grad`: a tensor below the layer is trained.
    `split`: gradients of parameters are made in a separate pass.
    `stem`: layers down to the stem, if this layer releases the tensors that the stem made for all layers; else 0.
    `sequences`: number packed in the microbatch, 0 if each fills its row; `attended`: positions that a token attends
    to, 0 for all.
    """

    batch: int
    seq: int
    compute: str
    params: Mapping[str, Param]
    loss: str = "hf"
    checkpoint: str = "none"
    tp: int = 1
    sequence_parallel: bool = False
    cp: int = 1
    ep: int = 1
    etp: int = 1
    ep_axis: str = "ep"
    rows_per_token: int = 0
    first: bool = False
    input_requires_grad: bool = True
    options: ImplementationOptions = NO_OPTIONS
    sent_per_token: int = 0
    sequences: int = 0
    attended: int = 0
    split: bool = False
    stem: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of the microbatch on this rank, before sequence parallelism."""
        return self.batch * self.seq

    @property
    def pairs(self) -> int:
        """Pairs of a query on this rank and a key of the same sequence; causal attention computes half of them."""
        return self.tokens * (self.attended or self.seq * self.cp)


@dataclass(frozen=True, slots=True)
class RecordedLayer:
    """One layer on the tape, in sections.

    `rest`: tensors kept from the previous step; `forward`: until the module returns;
    `after`: tensors that its caller then drops (after the unit's post-forward hook);
    `late`: tensors that the stem drops after the last layer; `seed`: before the first backward hook (the loss only);
    `backward`: until the gradient of the layer's input exists; `grads`: the parameter gradients alive at the end of
    `backward`, as (parameter, slot, bytes).
    `weight`: gradients of parameters, if `backward` makes none; `release`: tensors that only the graph refers to, freed
    after backward. `casts`: tensors that autocast drops when the model's forward is over.
    """

    forward: Section
    backward: Section
    after: Section = _EMPTY
    late: Section = _EMPTY
    seed: Section = _EMPTY
    grads: tuple[tuple[Param, int, int], ...] = ()
    rest: Section = _EMPTY
    weight: Section = _EMPTY
    release: Section = _EMPTY
    casts: Section = _EMPTY
