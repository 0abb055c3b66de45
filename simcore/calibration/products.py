"""Matrix products at the model's sizes: linears, linears of experts with few rows each, and linears in 8 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from simcore.calibration.bench import Bench
from simcore.calibration.reading import NotMeasured, Reading
from simcore.calibration.sizes import Product
from simcore.recording.kernel_shape import shape_of

__all__ = ["fp8_gemm", "gemm", "grouped_gemm"]

_SIZE = 2  # bytes of bf16
_Multiply = Callable[[Any, Any], Any]


def gemm(bench: Bench) -> Iterator[Reading]:
    """Times matrix products in bf16 of every different linear of the model, at every number of `bench.extent.rows`.

    Three readings each: forward, gradient of the input (dgrad), gradient of the weight (wgrad). Routed experts are not
    among them.
    """
    for product in _distinct(bench.sizes.products):
        for rows in bench.extent.rows:
            yield from _linear(bench, product, rows)


def _distinct(products: Sequence[Product]) -> list[Product]:
    """One product of each shape."""
    return list({(product.n, product.k): product for product in products}.values())


def _linear(bench: Bench, product: Product, m: int) -> Iterator[Reading]:
    n, k = product.n, product.k
    x, weight, grad = bench.random(m, k), bench.random(n, k), bench.random(m, n)
    work, shape = _work(m, n, k), f"{product.name} {m}x{n}x{k}"
    for end, packed, call in (("", shape_of(m, n), lambda: x @ weight.t()),
                              (" dgrad", shape_of(m, k), lambda: grad @ weight),
                              (" wgrad", shape_of(n, k), lambda: grad.t() @ x)):
        yield bench.read("gemm", "torch.mm", f"{shape}{end}", work, call, packed=packed)


def _work(m: int, n: int, k: int, weights: int = 1) -> tuple[int, int]:
    """(FLOPs, bytes) as `Context.gemm` of `operators/megatron/ops/context.py`: m rows of all experts together."""
    return 2 * m * n * k, _SIZE * (m * k + m * n + weights * n * k)


def grouped_gemm(bench: Bench) -> Iterator[Reading]:
    """Times grouped products of at most `bench.extent.experts` experts with equal rows each, forward.

    One reading for each of an expert's two linears and each number of `bench.extent.expert_rows` (rows an expert), in
    bf16. NotMeasured for a model without experts.
    """
    if bench.sizes.moe is None:
        raise NotMeasured("the model has no experts")
    count = min(bench.sizes.moe.num_experts, bench.extent.experts)
    for product in bench.sizes.grouped:
        weight = bench.random(count, product.n, product.k)
        for each in bench.extent.expert_rows:
            x = bench.random(count * each, product.k)
            by, multiply = _grouped(bench, x, weight)
            shape = f"{product.name} {count} experts of {each}x{product.n}x{product.k}"
            work = _work(count * each, product.n, product.k, count)
            packed = shape_of(count * each, product.n, count)
            yield bench.read("grouped_gemm", by, shape, work, partial(multiply, x, weight), packed=packed)


def _grouped(bench: Bench, x: Any, weight: Any) -> tuple[str, _Multiply]:
    """(name, function) of torch's grouped product if this device has it, else of a product an expert."""
    count, each = weight.shape[0], x.shape[0] // weight.shape[0]
    torch, bounds = bench.torch, range(0, x.shape[0] + 1, each)
    ends = torch.tensor(bounds[1:], dtype=torch.int32, device=bench.machine.device)

    def together(x: Any, weight: Any) -> Any:
        return torch._grouped_mm(x, weight.transpose(-2, -1), offs=ends)

    def one_by_one(x: Any, weight: Any) -> Any:
        return [x[i:j] @ weight[e].t() for e, (i, j) in zip(range(count), pairwise(bounds), strict=True)]

    try:
        together(x, weight)
    except (AttributeError, RuntimeError):  # an older torch; a device without the kernel
        return "a loop of torch.mm over experts", one_by_one
    return "torch._grouped_mm", together


def fp8_gemm(bench: Bench) -> Iterator[Reading]:
    """Times linears of fp8 operands with one scale a tensor, forward, at the largest number of rows.

    There arithmetic bounds them. One reading for each different linear whose sides are multiples of 16. NotMeasured
    without a GPU that computes in 8 bits (compute capability 8.9 and later).
    """
    if not bench.machine.is_gpu or bench.torch.cuda.get_device_capability(0) < (8, 9):
        raise NotMeasured("no GPU that computes in fp8")
    torch, m = bench.torch, bench.extent.rows[-1]
    unit_scale = torch.ones((), device="cuda")
    for product in _distinct(bench.sizes.products):
        if product.n % 16 or product.k % 16:  # torch `_scaled_mm` requires multiples of 16
            continue
        x, weight = (bench.random(rows, product.k).to(torch.float8_e4m3fn) for rows in (m, product.n))
        work = 2 * m * product.n * product.k, m * product.k + product.n * product.k + _SIZE * m * product.n
        yield bench.read("gemm", "torch._scaled_mm", f"{product.name} {m}x{product.n}x{product.k}", work,
                         partial(torch._scaled_mm, x, weight.t(), unit_scale, unit_scale, out_dtype=torch.bfloat16),
                         "fp8", shape_of(m, product.n))
