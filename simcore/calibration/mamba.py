"""Mamba-2's scan and convolution, forward and backward: by mamba_ssm and causal_conv1d, else by torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from simcore.calibration.bench import Bench, Work
from simcore.calibration.machine import optional
from simcore.calibration.reading import NotMeasured, Reading
from simcore.calibration.scan import chunked_scan
from simcore.models.blocks import Mamba2

__all__ = ["conv", "conv_work", "mamba_scan", "scan_work"]


def mamba_scan(bench: Bench) -> Iterator[Reading]:
    """Times the Mamba-2 scan over one sequence, without its convolution, by mamba_ssm or else by torch.

    Two readings, forward and backward, for each length of `bench.extent.tokens` (rounded down to whole chunks).
    NotMeasured without Mamba-2 layers.
    """
    block = _block(bench)
    by, run = _scanner(bench, block)
    for seq in bench.extent.tokens:
        length = max(block.chunk, seq // block.chunk * block.chunk)
        parts = _inputs(bench, block, length)
        shape = f"{length} tokens, {block.num_heads} heads of {block.head_dim}, state {block.state}"
        yield from bench.read_both("mamba_scan", by, shape, scan_work(block, length), partial(run, *parts), parts)


def _block(bench: Bench) -> Mamba2:
    if bench.sizes.mamba is None:
        raise NotMeasured("the model has no Mamba-2 layers")
    return bench.sizes.mamba


def _inputs(bench: Bench, block: Mamba2, seq: int) -> tuple[Any, ...]:
    """(x, dt, a, b, c): steps are positive, decays negative."""
    torch, device = bench.torch, bench.machine.device
    x = bench.random(1, seq, block.num_heads, block.head_dim, grad=True)
    dt = torch.rand(1, seq, block.num_heads, device=device, dtype=torch.bfloat16).requires_grad_()
    a = (-torch.rand(block.num_heads, device=device)).requires_grad_()
    b, c = (bench.random(1, seq, block.num_groups, block.state, grad=True) for _ in range(2))
    return x, dt, a, b, c


def _scanner(bench: Bench, block: Mamba2) -> tuple[str, Callable[..., Any]]:
    """(name, function) of mamba_ssm 2 `ops/triton/ssd_combined.py`, or of our own scan."""
    kernels = optional("mamba_ssm.ops.triton.ssd_combined") if bench.machine.is_gpu else None
    if kernels is not None:
        version = optional("mamba_ssm").__version__
        return f"mamba_ssm {version}", partial(kernels.mamba_chunk_scan_combined, chunk_size=block.chunk)
    return "our own chunked scan in plain torch", partial(chunked_scan, bench.torch, chunk=block.chunk)


def scan_work(block: Mamba2, seq: int) -> Work:
    """FLOPs and bytes of the Mamba-2 scan over `seq` tokens in bf16, forward and backward.

    Counted as `_scan` and `_scan_backward` of `simcore/operators/megatron/recurrent/mamba.py` do.
    """
    inner, chunks = block.inner, -(-seq // block.chunk)
    states, products = chunks * inner * block.state, 4 * seq * block.num_groups * block.chunk
    wide, narrow = 2 * block.state * inner * seq, 2 * block.chunk * block.state * block.num_groups * seq
    out, conv = 2 * seq * inner, 2 * seq * block.conv_dim
    forward = 2 * wide + narrow + 2 * seq * block.chunk * inner + 2 * states
    return Work((forward, 3 * out + conv + 2 * products + 16 * states),
                (8 * wide + 3 * narrow, 6 * out + 2 * conv + 6 * products + 40 * states))


def conv(bench: Bench) -> Iterator[Reading]:
    """Times Mamba-2's causal convolution with its SiLU, by causal_conv1d or else by torch.

    Two readings, forward and backward, for each length of `bench.extent.tokens`. NotMeasured without Mamba-2 layers.
    """
    block = _block(bench)
    by, run = _convolver(bench, block)
    weight, bias = bench.random(block.conv_dim, block.conv_kernel, grad=True), bench.random(block.conv_dim, grad=True)
    for seq in bench.extent.tokens:
        x = bench.random(1, seq, block.conv_dim, grad=True)  # channels last, as in the input projection's output
        shape = f"{seq} tokens, {block.conv_dim} channels, {block.conv_kernel} taps"
        yield from bench.read_both("conv", by, shape, conv_work(block, seq), partial(run, x, weight, bias),
                                   (x, weight, bias))


def _convolver(bench: Bench, block: Mamba2) -> tuple[str, Callable[[Any, Any, Any], Any]]:
    kernels = optional("causal_conv1d") if bench.machine.is_gpu else None
    if kernels is not None:
        return (f"causal_conv1d {kernels.__version__}",
                lambda x, weight, bias: kernels.causal_conv1d_fn(x.transpose(1, 2), weight, bias, activation="silu"))
    functional, before = bench.torch.nn.functional, block.conv_kernel - 1

    def run(x: Any, weight: Any, bias: Any) -> Any:
        padded = functional.conv1d(x.transpose(1, 2), weight[:, None], bias, padding=before, groups=block.conv_dim)
        return functional.silu(padded[..., :x.shape[1]])

    return "torch's conv1d and silu", run


def conv_work(block: Mamba2, seq: int) -> Work:
    """FLOPs and bytes of the causal convolution over `seq` tokens in bf16, forward and backward.

    As `operators/megatron/recurrent/mamba.py` counts: 2 FLOPs a tap; backward reads the gradient too, writes twice.
    """
    size, flops = 2 * seq * block.conv_dim, 2 * block.conv_kernel * seq * block.conv_dim
    return Work((flops, 2 * size), (2 * flops, 4 * size))
