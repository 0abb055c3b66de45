"""Kernels bound by memory: norms, sums, gathers of rows, the loss, the embedding, the optimizer, copies.

Bytes are those that a kernel has to move, as `operators/megatron` posts them (`ops/context.py`, elementwise;
`dispatch_alltoall.py`, permutation; `head.py`, embedding): further bytes that a library moves lower its share.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from simcore.calibration.bench import Bench, Work
from simcore.calibration.machine import optional
from simcore.calibration.reading import NotMeasured, Reading

__all__ = ["copy", "elementwise", "elementwise_eager", "embedding", "loss", "norm", "optimizer", "permute"]


def norm(bench: Bench) -> Iterator[Reading]:
    """Times RMSNorm at the model's width, by TransformerEngine if it is installed, else by torch.

    Two readings, forward and backward, for each number of tokens in `bench.extent.tokens`.
    """
    width = bench.sizes.hidden
    engine = optional("transformer_engine.pytorch") if bench.machine.is_gpu else None
    if engine is not None:
        module = engine.RMSNorm(width, device="cuda", params_dtype=bench.torch.bfloat16)
        by, run, weight = "TransformerEngine's RMSNorm", module, module.weight
    else:
        weight = bench.random(width, grad=True)
        by, run = "torch.nn.functional.rms_norm", lambda x: bench.torch.nn.functional.rms_norm(x, (width,), weight)
    for tokens in bench.extent.tokens:
        x, size = bench.random(tokens, width, grad=True), tokens * width
        yield from bench.read_both("norm", by, f"{tokens}x{width}", Work((size, 4 * size), (size, 8 * size)),
                                   partial(run, x), (x, weight))


def elementwise(bench: Bench) -> Iterator[Reading]:
    """Times a sum of two bf16 tensors [tokens, model's width], and a SiLU of one.

    Two readings, one of each, for each number of tokens in `bench.extent.tokens`.
    """
    torch, width = bench.torch, bench.sizes.hidden
    for tokens in bench.extent.tokens:
        a, b, size = bench.random(tokens, width), bench.random(tokens, width), tokens * width
        shape = f"{tokens}x{width}"
        yield bench.read("elementwise", "torch.add", shape, (size, 6 * size), partial(torch.add, a, b))
        yield bench.read("elementwise", "torch's silu", shape, (size, 4 * size),
                         partial(torch.nn.functional.silu, a))


def elementwise_eager(bench: Bench) -> Iterator[Reading]:
    """Times a sum, and a cast to fp32, of transposed bf16 views, as separate operators of torch do them.

    Two readings, one of each, for each number of tokens in `bench.extent.tokens`.
    """
    torch, half = bench.torch, bench.sizes.hidden // 2
    for tokens in bench.extent.tokens:
        a, b = (bench.random(tokens, 2 * half).view(tokens, 2, half).transpose(0, 1) for _ in range(2))
        size, shape = 2 * tokens * half, f"{tokens}x2x{half} transposed"
        yield bench.read("elementwise_eager", "torch.add", shape, (size, 6 * size), partial(torch.add, a, b))
        yield bench.read("elementwise_eager", "torch's cast", shape, (size, 6 * size), a.float)


def permute(bench: Bench) -> Iterator[Reading]:
    """Times `index_select` of tokens' rows for their experts, and its backward, which sums them.

    Two readings, forward and backward, for each number of tokens in `bench.extent.tokens`: a row for each expert of a
    token. NotMeasured for a model without experts.
    """
    moe, torch = bench.sizes.moe, bench.torch
    if moe is None:
        raise NotMeasured("the model has no experts")
    width = moe.expert_hidden
    for tokens in bench.extent.tokens:
        sent = tokens * moe.top_k
        order = torch.randperm(sent, device=bench.machine.device) % tokens
        x, moved = bench.random(tokens, width, grad=True), 2 * width * (sent + tokens)
        yield from bench.read_both("permute", "torch's index_select", f"{sent} rows of {tokens}x{width}",
                                   Work((0, moved), (0, moved)), partial(x.index_select, 0, order), (x,))


def loss(bench: Bench) -> Iterator[Reading]:
    """Times cross entropy of fp32 logits, at the first two numbers of tokens in `bench.extent.tokens`.

    Two readings each: forward reads the logits and writes the log-softmax; backward reads that and writes the gradient.
    """
    torch, vocab = bench.torch, bench.sizes.vocab
    for tokens in bench.extent.tokens[:2]:  # the logits of more fill a GPU
        logits = bench.random(tokens, vocab, dtype="float32", grad=True)
        target, size = torch.randint(vocab, (tokens,), device=bench.machine.device), tokens * vocab
        yield from bench.read_both(
            "loss", "torch's cross_entropy", f"{tokens}x{vocab}", Work((4 * size, 8 * size), (size, 8 * size)),
            partial(torch.nn.functional.cross_entropy, logits, target), (logits,), "fp32")


def embedding(bench: Bench) -> Iterator[Reading]:
    """Times an embedding lookup, one row a token, and its backward, whose gradient has the table's size.

    Two readings, lookup and backward, for each number of tokens in `bench.extent.tokens`.
    """
    torch, vocab, width = bench.torch, bench.sizes.vocab, bench.sizes.hidden
    table = bench.random(vocab, width, grad=True)
    for tokens in bench.extent.tokens:
        ids, size = torch.randint(vocab, (tokens,), device=bench.machine.device), 4 * tokens * width
        yield from bench.read_both("embedding", "torch's embedding", f"{tokens} of {vocab}x{width}",
                                   Work((0, size), (0, size + 2 * vocab * width)),
                                   partial(torch.nn.functional.embedding, ids, table), (table,))


def optimizer(bench: Bench) -> Iterator[Reading]:
    """Times one step of AdamW on fp32 weights of the model's linears, fused if torch has it, else foreach.

    Two readings: of the first weight alone, and of the first few together. A step reads and writes weight and both
    moments, and reads the gradient: 28 bytes and 12 FLOPs an element, as `simcore/placement/optimizer_step.py` counts.
    """
    shapes = [(p.n, p.k) for p in bench.sizes.products[:len(bench.extent.tokens)]]
    weights = [bench.random(*shape, dtype="float32", grad=True) for shape in shapes]
    for weight in weights:
        weight.grad = bench.torch.ones_like(weight)
    for several in ([weights[0]], weights):
        by, step = _adam(bench, several)
        count = sum(weight.numel() for weight in several)
        yield bench.read("optimizer", by, f"{count} elements", (12 * count, 28 * count), step, "fp32")


def _adam(bench: Bench, weights: list[Any]) -> tuple[str, Any]:
    optimizer_class = bench.torch.optim.AdamW
    try:
        fused = optimizer_class(weights, fused=True)
        fused.step()
    except RuntimeError:  # not on this device
        return "torch's AdamW, foreach", optimizer_class(weights, foreach=True).step
    return "torch's AdamW, fused", fused.step


def copy(bench: Bench) -> Iterator[Reading]:
    """Times a clone of a bf16 tensor on the device, at the model's width.

    One reading for each number of tokens in `bench.extent.tokens`.
    """
    width = bench.sizes.hidden
    for tokens in bench.extent.tokens:
        x, size = bench.random(tokens, width), tokens * width
        yield bench.read("copy", "torch's clone", f"{tokens}x{width}", (0, 4 * size), x.clone)
