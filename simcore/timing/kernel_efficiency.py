"""Extra time of a kernel because of its shape: a product's tiles and waves, and the exponentials of attention.

[Note: tiles and waves]
A device computes a matrix product in tiles, one wave of multiprocessors after another. A product of (m, k) and (k, n)
is cut into tiles of its output. A tile that exceeds the edge costs as much as a full one, and while the last wave runs,
multiprocessors without a tile wait. The tiles that cuBLAS chooses are not published; DeepGEMM (10747d47,
`csrc/jit_kernels/heuristics/sm90.hpp`, get_layout_info) documents its rule, which is used here: of the tiles that the
instructions allow, those that take the fewest cycles over all waves.

[Note: a tile's time]
For each element of k a tile takes the cycles of its multiply-adds, or those that its operands need to arrive: from the
L2 cache, where the tiles of a cluster read shared operands once, and through shared memory, to which they are written
and from which they are read. So small tiles are slower for their size. Traffic of device memory is not included:
`kernel.py` adds it, and with it the time to fill and empty a tile. Along k a product is computed in steps of 128 bytes.

[Note: sums in parts]
If there are fewer tiles than multiprocessors, k is split too: each part writes its sums in fp32, and they are read
again to be added (CUTLASS 4, `media/docs/cpp/efficient_gemm.md`, split-K).

[Note: groups]
Products of a group share waves: TransformerEngine 2.18 spreads them over four streams (`common/gemm/cublaslt_gemm.cu`,
multi_stream_cublas_gemm), CUTLASS and DeepGEMM do them in one kernel. The number of rows of a group is random: on
average its last tile is half full, or, if the sum runs over rows, its last step.

[Note: exponentials]
Each score of attention also needs an exponential, so heads of other sizes than 128 take another time for their FLOPs.
For a score the tensor cores do four FLOPs per element of a head (two products of a multiply-add), ten in backward, and
the special function units one exponential in each pass (flash-attention computes it again in backward). A
multiprocessor has 16 of those a cycle (FlashAttention-3, arXiv 2407.08608, section 3: 3.9 TFLOPS of special functions
and 989 of products on H100), Blackwell Ultra twice as many (NVIDIA, "Making Softmax More Efficient with NVIDIA
Blackwell Ultra"). Both times are added, as arithmetic and traffic are (`kernel.py`). Shares of peaks were measured with
heads of 128 (`tests/truth/fit_priors.py`), so the result is the ratio to those: small heads are slower for their FLOPs,
wide heads faster, and 8-bit products do not shorten the exponentials.

[Note: tiles of attention]
A multiprocessor works on 128 queries of a head, or two with 256 in forward on Blackwell, or in backward on 128 keys,
and goes through whole tiles of the other side: at the edge of a causal mask half of them are masked, on average 64
scores a query. A tile at the end of a sequence has twice the work of a mean one. If there are few tiles for a device,
multiprocessors wait for the last: tiles of forward begin in order, so that the kernel ends half a longest tile, that is
one mean tile, after all would have ended together; those of backward end together; and no kernel is shorter than the
longest tile. So 64, 32, 16, 8, 4 heads over 4096 tokens reach 0.85, 0.75, 0.61, 0.42, 0.21 of the rate of many long
ones on a B200 in forward, and 0.97, 0.97, 0.97, 0.84, 0.42 in backward. Measured were 0.87, 0.73,
0.58, 0.31, 0.17 of the peak of the whole square and 0.73, 0.80, 0.76, 0.66, 0.35; with 128 heads 1.00 and 0.83 (SimuMax
4dcaae51 `configs/system/b200_bf16_ceperm.json`, sdp_fwd and sdp_bwd).

[Note: sums in memory]
torch's memory-efficient kernel holds the sums of its output in registers for keys of up to 128 elements; for wider ones
it has a version with tiles of 32 queries that keeps them in memory (torch 2.13 `ATen/native/transformers/cuda/
mem_eff_attention/kernels`, 32x128_gmem). torchtitan logs one job with it and with FlexAttention: DeepSeek-V3 16B on
eight GPUs, keys of 192 (f738a03bf, 22 August 2025), 4.68 and 3.61 s a step over the first ten, 4.89 and 3.82 s at the
90th. If FlexAttention takes the 0.28 s that it is simulated with, the kernel took 1.35 s, where with narrow keys its
FLOPs would have taken 0.53. Both directions share the factor; on other GPUs it is assumed to be the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simcore.hardware.device import Device
from simcore.placement.mesh import IntArray
from simcore.recording.kernel_shape import Products, unpacked

__all__ = ["gemm_stretch", "softmax_stretch", "wide_stretch"]

Floats = NDArray[np.float64]
_STEP_BYTES: Final = 128
_SHARED_BYTES: Final = 128
"""Bytes of shared memory read in a cycle: DeepGEMM 10747d47 `heuristics/sm90.hpp`, l1_bandwidth_per_cycle."""
_SPLITS: Final = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32], dtype=np.float64)
_SUM_BYTES: Final = 8  # an fp32 sum is written and read
_EXPONENTIALS: Final = {"10.3": 32}
"""Exponentials that a multiprocessor computes in a cycle, by compute capability."""
_OTHERS_EXPONENTIALS: Final = 16
"""The same for all other devices."""


_IN_MEMORY: Final = 2.56
"""Times longer than with narrow keys: measured, see [Note: sums in memory]."""
_NARROW: Final = 256
"""Elements of a key and a value together of which each has at most 128."""


class _Tiles(NamedTuple):
    """Sides of every tile, and its cycles for one element of k, see [Note: a tile's time]."""

    rows: Floats
    columns: Floats
    cycles: Floats


@dataclass(frozen=True)
class _Machine:
    """Rates of a multiprocessor of one generation.

    `adds`: multiply-adds of 16-bit numbers in a cycle. `l2_bytes`: bytes that it reads from the L2 cache in a cycle.
    `rows`, `columns`: sides of its tiles. `most`: largest number of sums in a tile. `cluster`: largest number of tiles
    that share operands. `pair`: multiprocessors that hold one half each of a common operand.
    """

    adds: int
    l2_bytes: float
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    most: int
    cluster: int
    pair: int

    @cached_property
    def tiles(self) -> _Tiles:
        """Every tile of the multiprocessor."""
        pairs = [(m, n) for m in self.rows for n in self.columns if m * n <= self.most]
        m, n = np.array(pairs, dtype=np.float64).T
        ways = [2 * (m / across + n * across / self.cluster) for across in (1, 2, 4) if self.cluster % across == 0]
        shared = 4 * (m + n / self.pair) / _SHARED_BYTES
        cycles = np.maximum.reduce([m * n / self.adds, np.minimum.reduce(ways) / self.l2_bytes, shared])
        return _Tiles(m, n, cycles)


_AMPERE: Final = _Machine(1024, 5120 / 108, (64, 128, 256), (64, 128, 256), 128 * 256, 1, 1)
"""CUTLASS 4 `python/cutlass_library/generator.py`, GenerateSM80_TensorOp_16816; A100 whitepaper: 312 TFLOP/s at 1.41
GHz, 5,120 bytes of the L2 cache in a cycle."""
_HOPPER: Final = _Machine(2048, 8e6 / 1.3e3 / 132, (64, 128, 256), tuple(range(16, 257, 16)), 128 * 256, 2, 1)
"""DeepGEMM 10747d47 `heuristics/sm90.hpp`: get_layout_candidates, l2_bandwidth_per_cycle."""
_BLACKWELL: Final = _Machine(4096, 64.0, (128,), tuple(range(32, 257, 32)), 128 * 256, 4, 2)
"""DeepGEMM 0274ad7b `heuristics/sm100.hpp`: get_layout_candidates; two multiprocessors multiply 256 by 256 together.
Clusters of four: CUTLASS 4 `generator.py`, GenerateSM100_TensorOp_16b_UMMA_gemm. Bytes of the L2 cache: assumed."""


def gemm_stretch(device: Device, shapes: IntArray, flops: IntArray, operand_bits: IntArray) -> Floats:
    """Factor by which each kernel's matrix product takes longer than with full tiles and no idle SM.

    At least 1 (an SM is a streaming multiprocessor). One entry for each kernel in all arrays: `shapes` as
    `kernel_shape.shape_of` packs them (0: no product or an unknown shape, factor 1); `flops`: two for a multiply-add;
    `operand_bits`: bits of an element of an operand.
    """
    out = np.ones(len(shapes))
    at = np.flatnonzero(shapes)
    if len(at):
        kinds = np.column_stack([shapes[at], flops[at], operand_bits[at]]).astype(np.int64)
        out[at] = _gemm_stretch(_machine(device), int(device.num_sms.si), kinds.tobytes())
    return out


def _machine(device: Device) -> _Machine:
    """Generation by compute capability; for GPUs other than NVIDIA's server GPUs Ampere's: assumed."""
    return {"9.0": _HOPPER, "10.0": _BLACKWELL, "10.3": _BLACKWELL}.get(device.compute_capability, _AMPERE)


@lru_cache(maxsize=1024)
def _gemm_stretch(machine: _Machine, num_sms: int, kinds: bytes) -> Floats:
    """Factors of products, given as rows of (shape, FLOPs, bits of an element)."""
    distinct, places = np.unique(np.frombuffer(kinds, dtype=np.int64).reshape(-1, 3), axis=0, return_inverse=True)
    m, n, groups, sums_rows = unpacked(distinct[:, 0])
    k = -(-distinct[:, 1] // (2 * m * n * groups))
    step = 8 * _STEP_BYTES / distinct[:, 2]
    ideal = distinct[:, 1] / 2 / machine.adds / num_sms
    is_group = groups > 1
    rows = _pieces(m[:, None] / machine.tiles.rows, is_group & ~sums_rows)
    tiles = groups[:, None] * rows * np.ceil(n[:, None] / machine.tiles.columns)
    steps = _pieces((k / step)[:, None], is_group & sums_rows)
    waves = np.ceil(tiles[..., None] * _SPLITS / num_sms)
    each = np.where(_SPLITS > 1, np.ceil(steps[..., None] / _SPLITS), steps[..., None])
    busy = waves * each * (step[:, None] * machine.tiles.cycles)[..., None]
    parts = np.where(_SPLITS > 1, _SPLITS, 0) * _SUM_BYTES / machine.l2_bytes / num_sms
    added = (groups * m * n * 16 / distinct[:, 2])[:, None, None] * parts
    result: Floats = ((busy + added).min(axis=(1, 2)) / ideal)[places.ravel()]
    return result


def _pieces(amount: Floats, by_chance: NDArray[np.bool_]) -> Floats:
    """Number of full pieces, rounded up, or with random amounts half a piece more on average."""
    return np.where(by_chance[:, None], np.maximum(amount + 0.5, 1), np.ceil(amount))


def softmax_stretch(device: Device, shapes: IntArray, flops: IntArray, operand_bits: IntArray, *,
                    older: NDArray[np.bool_]) -> Floats:
    """Factor, for each attention kernel, by which its FLOPs take longer than many long heads of 128 in 16 bits.

    Below 1 for wider heads. `shapes`: FLOPs per exponential and tiles, as `kernel_shape.shape_of_heads` packs them (0:
    unknown heads, factor 1); `flops`: two for a multiply-add, masked scores not counted. `operand_bits`: bits of an
    element. `older`: True for kernels that issue products as on Ampere.
    """
    out = np.ones(len(shapes))
    at = np.flatnonzero(shapes)
    if len(at):
        packed, bits = unpacked(shapes[at]), operand_bits[at]
        adds = np.where(older[at], _multiply_adds(device, as_on_ampere=True), _multiply_adds(device))
        exponential_flops = 2 * adds / _EXPONENTIALS.get(device.compute_capability, _OTHERS_EXPONENTIALS)
        of_128 = np.where(packed.sums_rows, 5, 2) * 256
        heads = (1 + exponential_flops * 16 / bits / packed.rows) / (1 + exponential_flops / of_128)
        out[at] = heads * _masked_stretch(packed, flops[at]) * _waves_stretch(device, packed, older[at])
    return out


def wide_stretch(shapes: IntArray) -> Floats:
    """Factor for wide heads of each call of torch's memory-efficient kernel, see [Note: sums in memory].

    `shapes`: as those of `softmax_stretch`; 0: unknown heads, or another kernel, factor 1.
    """
    packed = unpacked(shapes)
    wide = packed.rows > np.where(packed.sums_rows, 5, 2) * _NARROW
    stretch: Floats = np.where(wide, _IN_MEMORY, 1.0)
    return stretch


def _masked_stretch(heads: Products, flops: IntArray) -> Floats:
    """Factor for the masked scores of tiles at the mask's edge, see [Note: tiles of attention]."""
    seen = flops / (heads.rows * heads.columns * 128.0)
    stretch: Floats = (seen + 64) / np.maximum(seen, 1)
    return stretch


def _waves_stretch(device: Device, heads: Products, older: NDArray[np.bool_]) -> Floats:
    """Factor for multiprocessors that wait for the last tiles, see [Note: tiles of attention]."""
    in_pairs = (_machine(device) is _BLACKWELL) & ~older & ~heads.sums_rows
    waves = heads.columns / np.where(in_pairs, 2, 1) / int(device.num_sms.si)
    last = np.where(heads.sums_rows, 0.0, 1.0)
    stretch: Floats = np.maximum(waves + last, 2) / waves
    return np.where(heads.sums_rows, np.maximum(stretch, 1), stretch)


def _multiply_adds(device: Device, *, as_on_ampere: bool = False) -> int:
    """Number of multiply-adds of 16-bit numbers that one multiprocessor does in a cycle.

    `as_on_ampere`: with Ampere's instructions, whatever the device.
    """
    return (_AMPERE if as_on_ampere else _machine(device)).adds
