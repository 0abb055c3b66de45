"""Input and output of an implementation that records a layer: `LayerWorkload` and `RecordedLayer`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from simcore.recording.host_copies import STAYS, HostTrip
from simcore.recording.offload_groups import ModuleGroups
from simcore.recording.options import NO_OPTIONS, ImplementationOptions
from simcore.recording.tape import Param, Section

__all__ = ["AHEAD", "FUSED_PAIRS", "INPUT_STAYS", "KEPT", "KEPT_ALONE", "KEPT_ENTROPY", "KEPT_ONCE", "KEPT_REFERENCED",
           "PREFERENCE", "REFERENCED", "REWARDS", "SAVED_LEAVES", "STEM_PARTS", "UNPAIRED", "WHOLE_PAIRS",
           "LayerWorkload", "RecordedLayer"]

INPUT_STAYS: Final = "full, its input stays"
"""Name of the checkpointing of a layer whose input stays on the device where those of others wait on the host."""
STEM_PARTS: Final = ("all", "own", "tables")
"""Parts of the stem's tensors: all, those a layer is called with, rotary tables of these."""
SAVED_LEAVES: Final = "none, saved tensors leave"
"""Name of the checkpointing of a layer whose saved tensors wait on the host until its backward."""
AHEAD: Final = frozenset({"kto_fused", "kto_fused_alone", "kto_whole", "kto_whole_alone", "kto_rows"})
"""Losses of KTO before whose forward the model passes over completions of other prompts."""
UNPAIRED: Final = AHEAD | {"kto_softmax"}
"""Losses of KTO: of sequences that are wanted or not, no two of them a pair."""
KEPT_ENTROPY: Final = "kept_logits_entropy"
KEPT_REFERENCED: Final = "kept_logits_reference"
KEPT_ONCE: Final = "kept_logits_once"
KEPT_ALONE: Final = ("kept_logits", KEPT_ONCE, KEPT_ENTROPY)
KEPT: Final = (*KEPT_ALONE, KEPT_REFERENCED)
"""Losses of GRPO of a model that returns logits of a sequence's last tokens.

These are cut once, with an entropy, or beside a reference model.
"""
REFERENCED: Final = frozenset({"preference_rows", "preference_softmax", "preference_fused", "preference_whole",
                               "preference_fp32", "kto_fused", "kto_whole", "kto_rows", "kto_softmax", KEPT_REFERENCED})
"""Losses inside which a reference model passes (`REFERENCE_BORDER`)."""
REWARDS: Final = "rewards"
"""Loss of a number for each sequence of a pair."""
FUSED_PAIRS: Final = ("preference_fused", "preference_fused_alone", "kto_fused", "kto_fused_alone")
"""Losses of preferences whose head scores tokens itself, without whole logits."""
WHOLE_PAIRS: Final = ("preference_whole", "preference_whole_alone")
"""Losses of preferences of a model that returns whole logits and the outputs of all layers."""
PREFERENCE: Final = REFERENCED | UNPAIRED | {"preference_softmax_alone", "preference_rows_alone",
                                             "preference_fused_alone", "preference_whole_alone", "preference_odds",
                                             REWARDS}
"""Losses of preferences: of pairs of sequences or of KTO, and GRPO's inside which a reference passes."""
_EMPTY = Section(())


@dataclass(frozen=True, slots=True)
class LayerWorkload:
    """Workload of one layer (or embedding, final norm, head, loss) for one microbatch on one rank.

    `batch`: sequences; `seq`: tokens of one sequence on this rank, after context parallelism, before sequence
    parallelism. `compute`: dtype of products; `params`: the layer's parameters by name; `loss`: name of the loss
    function; `checkpoint`: name of the activation checkpointing. `tp`, `cp`, `ep`, `etp`: parallel degrees; `ep_axis`:
    mesh axis of the exchange between experts. `rows_per_token`: routed rows that this rank's experts receive per token
    of this rank, times 2**16, rounded (top_k x 2**16 when routing is balanced); `sent_per_token`: rows that it sends,
    in the same unit, 0 for top_k. `first`: the layer's input is the embedding's output, which the model holds until the
    last layer is done. `input_requires_grad`: a tensor below the layer is trained. `sequences`: number packed in the
    microbatch, 0 if each fills its row; `attended`: positions that a token attends to, as the mean, 0 for all. `split`:
    gradients of parameters are made in a separate backward pass. `stem`: number of layers down to the embedding, if
    this layer frees tensors that the embedding made for all layers; else 0. `stem_part`: which of them, of
    `STEM_PARTS`. `no_grad`: under torch.no_grad(), nothing is kept for backward.
    `leaves`: elements of the smallest saved tensor that waits on the host; 0: all stay.
    `groups`: modules whose saved tensors wait on the host. `images`: of the microbatch. `embedding_trains`: gradients
    reach the embedding's output, which the end of a vision tower takes in beside that of the tower, whose parts
    `input_requires_grad` counts alone. `features_train`: gradients reach features of the tower's layers.
    `embedding_stays`: the embedding's output requires a gradient by itself, so that the graph keeps it.
    `inputs_train`: gradients reach inputs of single layers. `left`: (slot, bytes) of tensors to which a module of the
    layer still refers since its last pass. `scored`: last tokens of a sequence that the loss scores, 0 for all.
    `given`: dtype of the layer's input where layers below have changed that of the stream, else "".
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
    stem_part: str = STEM_PARTS[0]
    no_grad: bool = False
    leaves: int = 0
    groups: ModuleGroups | None = None
    images: int = 0
    embedding_trains: bool = True
    features_train: bool = True
    embedding_stays: bool = False
    inputs_train: bool = False
    left: tuple[tuple[int, int], ...] = ()
    scored: int = 0
    given: str = ""

    @property
    def tokens(self) -> int:
        """Number of tokens of the microbatch on this rank, before sequence parallelism."""
        return self.batch * self.seq

    @property
    def input_waits(self) -> bool:
        """True if the layer's input waits in host memory until the layer runs again."""
        return self.checkpoint not in ("none", INPUT_STAYS) and self.options.inputs_on_host

    @property
    def pairs(self) -> int:
        """Number of pairs of a query on this rank and a key of the same sequence, before the causal mask.

        Causal attention computes half of them.
        """
        return self.tokens * (self.attended or self.seq * self.cp)


@dataclass(frozen=True, slots=True)
class RecordedLayer:
    """Recording of one layer for one microbatch on one rank: a section (rows in order) for each part.

    `rest`: allocations, before the step begins, of tensors that the previous step left; `forward`: until the module
    returns; `after`: tensors that its caller then drops (after the FSDP unit's post-forward hook); `late`: tensors that
    the model drops after the last layer; `seed`: before the first backward hook (the loss only); `backward`: until the
    gradient of the layer's input exists; `grads`: the parameter gradients alive at the end of `backward`, as
    (parameter, slot: index of its name, bytes). `weight`: gradients of parameters, if `backward` makes none; `release`:
    tensors that only the autograd graph refers to, freed after backward. `casts`: tensors that autocast drops when the
    model's forward is over, loss and all, or that are in the output which its caller then drops. `stow`, `fetch`:
    copies of kept tensors to pages and back, with the frees and allocations of the originals, for passes whose backward
    does not follow at once. `host`: the way of saved tensors to the host and back. `behind`: backward of
    what the layer is given besides its input, when the hooks behind its backward have run.
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
    stow: Section = _EMPTY
    fetch: Section = _EMPTY
    host: HostTrip = STAYS
    behind: Section = _EMPTY
