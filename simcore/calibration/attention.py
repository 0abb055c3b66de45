"""Causal attention over one sequence, forward and backward, without its projections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from simcore.calibration.bench import Bench, Work
from simcore.calibration.machine import optional
from simcore.calibration.reading import NotMeasured, Reading
from simcore.calibration.sizes import Core
from simcore.recording.kernel_shape import shape_of_heads

__all__ = ["attention", "attention_efficient", "attention_flash2", "attention_triton", "work_of"]


def attention(bench: Bench) -> Iterator[Reading]:
    """Times causal attention over one sequence by cuDNN, in bf16, at each length of `bench.extent.tokens`.

    Two readings a length, forward and backward. NotMeasured without a GPU, or for a model without attention.
    """
    if not bench.machine.is_gpu:
        raise NotMeasured("cuDNN's attention needs a GPU")
    return _over_lengths(bench, "attention", "SDPA by cuDNN", _sdpa(bench, "CUDNN_ATTENTION"))


def attention_flash2(bench: Bench) -> Iterator[Reading]:
    """Times causal attention over one sequence by flash-attention 2 if installed, else by torch's flash kernel.

    Two readings a length of `bench.extent.tokens`, forward and backward. NotMeasured for a model without attention.
    """
    flash = optional("flash_attn") if bench.machine.is_gpu else None
    if flash is not None:
        return _over_lengths(bench, "attention_flash2", f"flash-attn {flash.__version__}", _flash(flash))
    return _over_lengths(bench, "attention_flash2", "SDPA by torch's flash kernel", _sdpa(bench, "FLASH_ATTENTION"))


def attention_efficient(bench: Bench) -> Iterator[Reading]:
    """Times causal attention over one sequence by torch's memory-efficient kernel, in bf16.

    Two readings a length of `bench.extent.tokens`, forward and backward. NotMeasured without a GPU, or for a model
    without attention.
    """
    if not bench.machine.is_gpu:
        raise NotMeasured("torch's memory-efficient attention needs a GPU")
    return _over_lengths(bench, "attention_efficient", "SDPA by torch's memory-efficient kernel",
                         _sdpa(bench, "EFFICIENT_ATTENTION"))


def attention_triton(_bench: Bench) -> Iterator[Reading]:
    """Raises NotMeasured always: flash-attention 1.0.9 in Triton needs the Triton release of its year."""
    raise NotMeasured("the first flash-attention in Triton needs triton 2.0 pre-MLIR, which no torch of today takes")


def _over_lengths(bench: Bench, kernel: str, by: str, run: Callable[..., Any]) -> Iterator[Reading]:
    """Readings at several lengths.

    Keys are repeated for every head, which every kernel accepts for a few more bytes.
    """
    core = bench.sizes.core
    if core is None:
        raise NotMeasured("the model has no attention")
    for seq in bench.extent.tokens:
        widths = (core.dim, core.dim, core.value)
        parts = tuple(bench.random(1, seq, core.heads, width, grad=True) for width in widths)
        shape = f"{seq} tokens, {core.heads} heads of {core.dim}"
        yield from bench.read_both(kernel, by, shape, work_of(core, seq), partial(run, *parts), parts)


def work_of(core: Core, seq: int) -> Work:
    """FLOPs and bytes of one layer's causal attention over one sequence of `seq` tokens, forward and backward, in bf16.

    Counted as `scaled_dot_product_attention` of `operators/` does, with a key and a value head for every query head.
    """
    q, v = 2 * seq * core.heads * core.dim, 2 * seq * core.heads * core.value
    flops, moved = seq * seq * core.heads * (core.dim + core.value), 2 * q + v
    sizes = core.dim, core.value, seq * core.heads
    packed = shape_of_heads(*sizes), shape_of_heads(*sizes, backward=True)
    return Work((flops, moved + v), (flops * 5 // 2, 3 * moved), packed)


def _sdpa(bench: Bench, backend: str) -> Callable[[Any, Any, Any], Any]:
    chosen = getattr(bench.torch.nn.attention.SDPBackend, backend)

    def run(q: Any, k: Any, v: Any) -> Any:
        with bench.torch.nn.attention.sdpa_kernel(chosen):
            heads_first = (x.transpose(1, 2) for x in (q, k, v))
            return bench.torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True)

    return run


def _flash(flash: Any) -> Callable[[Any, Any, Any], Any]:
    return lambda q, k, v: flash.flash_attn_func(q, k, v, causal=True)
