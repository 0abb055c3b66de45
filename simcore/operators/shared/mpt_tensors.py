"""Parameters of MPT, in the order of registration: the same names in llm-foundry 0.3.0 and transformers 5.23.

`llmfoundry/models/layers/blocks.py`, `attention.py`, `ffn.py`; transformers `models/mpt/modeling_mpt.py`, which builds
neither biases nor learned positions, whatever the configuration says.
"""

from __future__ import annotations

from collections.abc import Iterator

from simcore.errors import NotYet, Problem
from simcore.models.blocks import Attention, Branch, Embedding, FinalNorm, Head, LayerKind, Mlp
from simcore.models.tensor import TensorSpec

__all__ = ["plain_tensors", "tensors"]


def tensors(kind: LayerKind) -> tuple[TensorSpec, ...]:
    """Parameters of a layer or part of MPT, in registration order; names are relative to it, () for the loss."""
    return tuple(_tensors(kind))


def plain_tensors(kind: LayerKind) -> tuple[TensorSpec, ...]:
    """Parameters that transformers builds of a layer or part of MPT, in registration order.

    Raises NotYet where llm-foundry would build more.
    """
    found = tensors(kind)
    more = [spec.name for spec in found if spec.name.endswith("bias") or spec.dims[0] == "positions"]
    if more:
        raise NotYet(Problem("model", f"{more[0]}: transformers 5.23 builds MPT with ALiBi and without biases alone; "
                             "llm-foundry's own layers (implementation: llmfoundry) have both"))
    return found


def _tensors(kind: LayerKind) -> Iterator[TensorSpec]:
    block = kind.block
    if isinstance(block, Embedding):
        at = "wte." if block.positions else ""
        yield TensorSpec(f"{at}weight", (block.vocab, block.hidden), ("vocab", "hidden"), "embedding", "embedding")
        if block.positions:
            yield TensorSpec("wpe.weight", (block.positions, block.hidden), ("positions", "hidden"), "embedding",
                             "embedding")
    elif isinstance(block, FinalNorm):
        yield from _norm("", block.hidden, bias=block.norm_bias)
    elif isinstance(block, Head):
        component = "embedding" if block.tied else "lm_head"
        yield TensorSpec("weight", (block.vocab, block.hidden), ("vocab", "hidden"), component, "linear")
    for branch in kind.branches:
        yield from _norm(f"{branch.norm}.", kind.hidden, bias=branch.norm_bias)
        yield from _mixer(branch)


def _mixer(branch: Branch) -> Iterator[TensorSpec]:
    block, at = branch.block, branch.name
    if isinstance(block, Attention):
        hidden, heads, bias = (block.hidden, "hidden"), (block.q_size, "heads"), block.bias == "all"
        both = (block.q_size + 2 * block.kv_size, "heads")
        yield from _linear(f"{at}.Wqkv", both, hidden, "attention", bias=bias)
        yield from _linear(f"{at}.out_proj", hidden, heads, "attention", bias=bias)
    elif isinstance(block, Mlp):
        hidden, ffn = (block.hidden, "hidden"), (block.ffn, "ffn")
        yield from _linear(f"{at}.up_proj", ffn, hidden, "mlp", bias=block.bias)
        yield from _linear(f"{at}.down_proj", hidden, ffn, "mlp", bias=block.bias)


def _norm(at: str, size: int, *, bias: bool) -> Iterator[TensorSpec]:
    for part in ("weight", "bias")[:1 + bias]:
        yield TensorSpec(f"{at}{part}", (size,), ("hidden",), "norms", "norm")


def _linear(name: str, out: tuple[int, str], into: tuple[int, str], component: str, *,
            bias: bool) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", (out[0], into[0]), (out[1], into[1]), component, "linear")
    if bias:
        yield TensorSpec(f"{name}.bias", (out[0],), (out[1],), component, "bias")
