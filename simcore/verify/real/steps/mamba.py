"""The fused Mamba-2 where transformers looks for it: allocations of mamba_ssm's function, without its kernels.

mamba_ssm e9594ce1 `ops/triton/ssd_combined.py`, MambaSplitConv1dScanCombinedFn with causal_conv1d, in the order of its
own code, on a GPU of 132 SMs. It cannot be installed without CUDA; `tests/truth/probe_mamba_scan.py` runs it over
kernels that do nothing, and compares this one with it.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as fn

FAMILIES = ("bamba", "falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "zamba2")
SMS = 132


class Sizes(NamedTuple):
    batch: int
    seq: int
    chunk: int
    heads: int
    head_dim: int
    groups: int
    state: int

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        return self.inner + 2 * self.groups * self.state

    @property
    def chunks(self) -> int:
        return -(-self.seq // self.chunk)

    @property
    def splits(self) -> int:
        per_group = self.heads // self.groups
        return -(-per_group // max(min(math.ceil(self.batch * self.chunks * self.heads / SMS), per_group), 1))

    def steps(self, like: torch.Tensor, times: int = 1) -> torch.Tensor:
        return wide(like, self.batch, self.heads, self.chunks, self.chunk * times)

    def states(self, like: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return like.new_empty(self.batch, self.chunks, self.heads, self.head_dim, self.state, dtype=dtype)

    def passed(self, like: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        made = self.states(like)
        out = self.states(like, dtype)
        final = wide(like, self.batch, self.heads, self.head_dim, self.state)
        del made
        return out, final

    def scores(self, like: torch.Tensor, splits: int = 1) -> torch.Tensor:
        return wide(like, self.batch, self.chunks, splits, self.groups, self.chunk, self.chunk)


def wide(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return like.new_empty(*shape, dtype=torch.float32)


def narrowed(like: torch.Tensor, *shape: int) -> torch.Tensor:
    """Made in fp32, returned in the type of `like`."""
    return wide(like, *shape).to(like.dtype)


class FusedMamba(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: torch.Tensor, dims: Sequence[int], *weights: torch.Tensor) -> torch.Tensor:
        sizes = Sizes(z.shape[0], z.shape[1], *dims)
        conv = z.new_empty(sizes.batch, sizes.seq, sizes.convolved)
        decay, dt = sizes.steps(z), sizes.steps(z)
        states, final = sizes.passed(z, z.dtype)
        scores = sizes.scores(z)
        scanned = z.new_empty(sizes.batch, sizes.seq, sizes.inner)
        del scores
        normed = torch.empty_like(scanned)
        rstd = wide(z, sizes.groups, sizes.batch * sizes.seq)
        out_w = weights[-1].to(z.dtype)  # under autocast, where it has another type
        out = fn.linear(normed, out_w)
        del normed
        ctx.save_for_backward(z, *weights[:-1], scanned, rstd, out_w)
        ctx.sizes = sizes
        del conv, decay, dt, states, final
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        z, *weights, scanned, _rstd, out_w = ctx.saved_tensors
        sizes, (conv_w, conv_b, dt_bias, a, d, norm_w) = ctx.sizes, weights
        again = torch.empty_like(scanned)
        conv = z.new_empty(sizes.batch, sizes.seq, sizes.convolved)
        dz = torch.empty_like(z)
        of_conv = torch.empty_like(conv)
        of_normed = fn.linear(grad, out_w.t())
        of_scan, to_norm = of_gated_norm(sizes, scanned, norm_w)
        to_dt, to_a, to_d = of_chunks(sizes, z, dt_bias, a, d)
        to_out = torch.einsum("bso,bsd->od", grad, again)
        to_weight, to_bias = wide(conv_w, *conv_w.shape), wide(conv_b, *conv_b.shape)
        to_weight = to_weight.to(conv_w.dtype)
        to_bias = to_bias.to(conv_b.dtype)
        del of_scan, conv, of_conv, again, of_normed
        return dz, None, to_weight, to_bias, to_dt, to_a, to_d, to_norm, to_out


def of_gated_norm(sizes: Sizes, scanned: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    grad = torch.empty_like(scanned)
    warps = min(max((1 << (sizes.inner // sizes.groups - 1).bit_length()) // 256, 1), 8)
    _parts = wide(scanned, math.ceil(SMS * math.ceil(4 / warps) / sizes.groups), sizes.inner)
    return grad, narrowed(weight, *weight.shape)


def of_chunks(sizes: Sizes, z: torch.Tensor, dt_bias: torch.Tensor, a: torch.Tensor,
              d: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of dt's bias, A and D (`_mamba_chunk_scan_combined_bwd`)."""
    dt_in = z.new_empty(sizes.batch, sizes.seq, sizes.heads)
    decay, dt = sizes.steps(z), sizes.steps(z)
    scores = sizes.scores(z)
    states, final = sizes.passed(z, torch.float32)
    of_states = sizes.states(z)
    halves = sizes.states(z, z.dtype), sizes.states(z, z.dtype)
    tiles = wide(z, sizes.batch, sizes.heads, sizes.chunks, -(-sizes.head_dim * sizes.state // 64))
    of_chunk = wide(z, sizes.batch, sizes.heads, sizes.chunks)
    del tiles, states, of_states
    parts = wide(z, -(-sizes.chunk // 32), sizes.batch, sizes.chunks, sizes.heads)
    of_dt = sizes.steps(z)
    skip = wide(d, sizes.heads)
    del parts
    skip = wide(d, sizes.heads)
    skip = skip.to(d.dtype)
    after = sizes.steps(z)
    of_b = summed(sizes, z)
    before = sizes.steps(z)
    of_c = summed(sizes, z)
    split = sizes.scores(z, sizes.splits)
    of_scores = sizes.scores(z)
    del split
    behind = sizes.steps(z)
    for _ in range(2):
        behind = sizes.steps(z)
    tiles = sizes.steps(z, -(-sizes.chunk // 32))
    of_decay = sizes.steps(z)
    del tiles
    total = sizes.steps(z)
    del total
    to_dt, to_a = wide(dt_bias, sizes.heads), wide(a, sizes.heads)
    del dt, of_dt, of_b, of_c, final, dt_in, decay, scores, halves, of_chunk, after, before, of_scores, behind, of_decay
    return to_dt, to_a, skip


def summed(sizes: Sizes, z: torch.Tensor) -> torch.Tensor:
    """Gradient of B or C, of all heads of a group."""
    parts = wide(z, sizes.batch, sizes.seq, sizes.splits, sizes.groups, sizes.state)
    total = wide(z, sizes.batch, sizes.seq, sizes.groups, sizes.state)
    del parts
    return total


def fused_mamba(z: torch.Tensor, conv_w: torch.Tensor, conv_b: torch.Tensor, dt_bias: torch.Tensor, a: torch.Tensor,
                **named: Any) -> torch.Tensor:
    heads, head_dim, groups = a.shape[0], named["headdim"], named["ngroups"]
    state = (conv_w.shape[0] - heads * head_dim) // (2 * groups)
    dims = (named["chunk_size"], heads, head_dim, groups, state)
    weights = (conv_w, conv_b, dt_bias, a, named["D"], named["rmsnorm_weight"], named["outproj_weight"])
    out: torch.Tensor = FusedMamba.apply(z, dims, *weights)
    return out


def put_in_place() -> None:
    for family in FAMILIES:
        modelling = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        modelling.mamba2_split_conv1d_scan_combined = fused_mamba
