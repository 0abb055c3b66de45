"""Matrix products at the model's own sizes: linears, and those of experts with few rows each."""

from __future__ import annotations

from collections.abc import Iterator

from simcore.calibration.bench import Bench
from simcore.calibration.reading import Reading
from simcore.calibration.sizes import Product

__all__ = ["gemm"]

_SIZE = 2  # bytes of bf16


def gemm(bench: Bench) -> Iterator[Reading]:
    """Every linear at every number of rows: forward, gradient of the input, gradient of the weight."""
    once = {(product.n, product.k): product for product in bench.sizes.products}
    for product in once.values():
        for rows in bench.extent.rows:
            yield from _linear(bench, product, rows)


def _linear(bench: Bench, product: Product, m: int) -> Iterator[Reading]:
    n, k = product.n, product.k
    x, weight, grad = bench.random(m, k), bench.random(n, k), bench.random(m, n)
    work = 2 * m * n * k, _SIZE * (m * k + m * n + n * k)
    shape = f"{product.name} {m}x{n}x{k}"
    yield bench.read("gemm", "torch.mm", shape, work, lambda: x @ weight.t())
    yield bench.read("gemm", "torch.mm", f"{shape} dgrad", work, lambda: grad @ weight)
    yield bench.read("gemm", "torch.mm", f"{shape} wgrad", work, lambda: grad.t() @ x)
