"""A decoder layer of DeepSeek-V4 in NeMo Automodel: residual streams, attention, experts.

nemo-automodel 0.7.0 `components/models/deepseek_v4/model.py`, DeepseekV4Block.forward. Streams are summed to one before
a block; its output is added to each behind it. What attention makes beside its output is named until it is added.
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.models.blocks import Branch, CompressedAttention, LayerKind, Moe
from simcore.operators.automodel.compressed.attention import compressed_attention
from simcore.operators.automodel.compressed.modules import Modules
from simcore.operators.automodel.compressed.streams import Mixed, added_to_streams, collapsed, mixed
from simcore.recording.rows import Module
from simcore.recording.tape import Tensor

__all__ = ["Experts", "compressed_layer"]

Experts = Callable[[Tensor, Moe, str], Tensor]
"""Output of a mixture of experts for [b, s, hidden], by its block and path."""


def compressed_layer(at: Modules, kind: LayerKind, x: Tensor, experts: Experts) -> Tensor:
    """Streams [b, s, streams, hidden] behind the layer of the streams `x`. `experts`: runs the second block."""
    first, second = kind.branches
    x = _attended(at, kind, first, x)
    narrow, weights = _prepared(at, kind, x, "ffn_hc")
    block = second.block
    assert isinstance(block, Moe)
    out = experts(at.norm(narrow, second.norm), block, second.name)
    at.tape.scope = ""
    return added_to_streams(at.tape, weights, out, x)


def _prepared(at: Modules, kind: LayerKind, x: Tensor, path: str) -> tuple[Tensor, Mixed]:
    """(sum of the streams, what is added to them); the first weights are the graph's alone then."""
    assert kind.streams is not None
    weights = mixed(at, x, kind.streams, path)
    narrow = collapsed(at.tape, weights.before, x)
    return narrow, Mixed(Tensor(None, (), "fp32"), weights.behind, weights.pairs)


def _attended(at: Modules, kind: LayerKind, branch: Branch, x: Tensor) -> Tensor:
    """Streams behind attention, which names its weights, its input and its probabilities until they are there."""
    assert kind.streams is not None
    assert isinstance(branch.block, CompressedAttention)
    weights = mixed(at, x, kind.streams, "attn_hc")
    _narrow = collapsed(at.tape, weights.before, x)
    at.tape.module = Module.ATTN
    out, *_probabilities = compressed_attention(at, at.norm(_narrow, branch.norm), branch.block, branch.name)
    at.tape.module = Module.NONE
    return added_to_streams(at.tape, weights, out, x)
