"""The model with a value head: a number for each token in the place of logits, as critics of PPO have.

transformers 5.23 `modeling_layers.py` GenericForTokenClassification: the decoder, dropout, and `score`, a linear from
the hidden size to one label with a bias; Megatron-Bridge's has none. GenericForSequenceClassification, as reward models
are, has no bias and no dropout. No weight is the embedding's; logits are neither scaled nor capped.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from simcore.errors import InputError, NotYet, Problem
from simcore.models.blocks import Head, LayerKind, Loss, Mtp
from simcore.models.graph import ModelGraph, assembled, has_biased_values, value_heads

__all__ = ["with_value_head"]


@lru_cache(maxsize=64)
def with_value_head(graph: ModelGraph, *, of_sequences: bool = False) -> ModelGraph:
    """Model whose output projection is `score`, [1, hidden] with a bias, in front of a loss of values.

    `of_sequences`: in front of a loss of rewards, of sequences, without a bias. NotYet for families that the
    implementation has no such model of (`Implementation.value_heads`).
    """
    family, served = graph.architecture.family, value_heads(graph.implementation)
    if family not in served:
        raise NotYet(Problem("training.loss", f"not yet: a value head of {family} on the layers of "
                             f"{graph.implementation} (served: {', '.join(served) or 'none'})"))
    if any(isinstance(kind.block, Mtp) for kind in graph.kinds):
        raise InputError(Problem("training.loss", "values: no tokens are predicted further (mtp_num_layers)"))
    bias = has_biased_values(graph.implementation) and not of_sequences
    parts = tuple(("score", _scoring(kind, bias=bias)) if isinstance(kind.block, Head) else
                  (path, _without_vocabulary(kind)) for path, kind in graph.architecture.parts)
    return assembled(replace(graph.architecture, parts=parts, vocab=1, tied=False), graph.implementation)


def _scoring(kind: LayerKind, *, bias: bool) -> LayerKind:
    return replace(kind, block=Head(1, kind.hidden, bias=bias), scaled=False)


def _without_vocabulary(kind: LayerKind) -> LayerKind:
    return replace(kind, block=Loss(1)) if isinstance(kind.block, Loss) else kind
