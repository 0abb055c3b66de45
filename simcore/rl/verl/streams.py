"""Streams of weights from verl's workers to an engine on the same GPU: bytes at the highest moment, and bytes moved.

[Note: streams]
verl b178a3cd. vLLM: one buffer that the engine reads through an IPC handle (`workers/rollout/vllm_rollout/
vllm_rollout.py` update_weights), and a copy of what is in it (`utils.py` update_weights_from_ipc); weights are cast to
the engine's format. SGLang: tensors are cloned as they are, until the next would exceed the bucket
(`workers/rollout/sglang_rollout/utils.py:72` get_named_tensor_buckets), and the engine copies out of the clones through
their IPC handles (SGLang 0.5.6 `weight_sync/utils.py` update_weights). The loop over buckets
(`sglang_rollout.py:207`) still has a bucket while the next is filled, so that clones of two are there; a gathered
tensor is there until the one after it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from simcore.placement.plan import Plan
from simcore.rl.step.refit import Gathered
from simcore.rl.verl.mbridge import pieces
from simcore.units import dtype_bytes

__all__ = ["EXPORTS", "STREAMS", "WHOLE", "Clones", "Shared", "Stream", "cloned"]

Stream = Callable[[Gathered], tuple[Mapping[str, int], int]]
"""Bytes by category at the highest moment of a stream, and all bytes that cross device memory."""
_COPIES: Final = 4
"""Times that weights cross device memory: read and written into a buffer, read and written by the engine."""
_SENT: Final = 2
"""Bytes of an element in the engine."""


@dataclass(frozen=True, slots=True)
class Shared:
    """One buffer of `bucket` bytes and a copy of what is in it, as vLLM is sent weights."""

    bucket: int

    def __call__(self, weights: Gathered) -> tuple[Mapping[str, int], int]:
        """Sizes, and bytes moved; see `Stream`."""
        sizes = {"buffer": self.bucket + min(self.bucket, weights.total), "all_gather_output": weights.transient}
        return sizes, _COPIES * weights.total


@dataclass(frozen=True, slots=True)
class Clones:
    """Clones of tensors in buckets of `bucket` bytes; `sizes`: bytes of tensors in their order, with their formats.

    `exports`: tensors are made by an export, whose own bytes stand in the place of gathered tensors.
    """

    bucket: int
    sizes: tuple[int, ...]
    exports: bool = False

    def __call__(self, weights: Gathered) -> tuple[Mapping[str, int], int]:
        """Sizes, and bytes moved: read and written as clones, read by the engine and written in its format."""
        clones, gathered = cloned(self.sizes, self.bucket)
        gathered = weights.transient if self.exports else gathered
        return {"buffer": clones, "all_gather_output": gathered}, 3 * sum(self.sizes) + weights.total


def cloned(sizes: Iterable[int], bucket: int) -> tuple[int, int]:
    """(bytes of clones, of gathered tensors) at the highest moment, see [Note: streams]; `sizes`: of all tensors."""
    sent = filling = before = 0
    highest = (0, 0)
    for size in sizes:
        highest = max(highest, (sent + filling, before + size), key=sum)
        if filling + size > bucket:
            sent, filling = filling or sent, 0
        filling += size
        highest = max(highest, (sent + filling, size), key=sum)
        before = size
    return highest


def _sizes(plan: Plan) -> Iterator[int]:
    """Bytes of every tensor as it rests, in the order of the state dict."""
    for layer in plan.layers:
        for placed in plan.of_layer(layer):
            if placed.spec.is_owned and not placed.spec.is_buffer:
                yield from [placed.spec.numel * dtype_bytes(placed.policy.at_rest.dtype)] * placed.spec.copies


STREAMS: Final[Mapping[str, Callable[[int, Plan], Stream]]] = {
    "vllm": lambda bucket, plan: Shared(bucket),
    "sglang": lambda bucket, plan: Clones(bucket, tuple(_sizes(plan)))}
"""Streams of gathered tensors by the engine's name, from the bytes of a bucket and the plan of a rank."""
EXPORTS: Final[Mapping[str, Callable[[int, Sequence[Plan]], Stream]]] = {
    "vllm": lambda bucket, plans: Shared(bucket),
    "sglang": lambda bucket, plans: Clones(bucket, tuple(pieces(plans)), exports=True)}
"""Streams of exported tensors, from the plan of one rank of each stage."""
WHOLE: Final = ("vllm",)
"""Engines whose weights each fit in the bucket."""
