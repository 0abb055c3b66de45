"""`CheckpointWithoutOutput`: outputs that are discarded after their last use in forward and computed again in backward.

Source: megatron-core 0.16.1 (`tensor_parallel/random.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from simcore.operators.megatron.ops.context import Context, Grads, Saved, region_end
from simcore.recording.tape import RECOMPUTE_BEGIN, RECOMPUTE_END, Kernel, Storage, Tape, Tensor

__all__ = ["Discarded", "discarded_region"]


class Discarded:
    """One output that is freed after its last use in forward and made again in backward.

    `CheckpointWithoutOutput`. `again` makes it: its last tensor is the output. The replay makes a second tensor and
    copies it into the emptied storage; both live until the operator's own backward (megatron-core 0.16.1,
    `tensor_parallel/random.py`). From 0.17 on the emptied one points to the second one's bytes (share_storage), and
    nothing is copied.
    """

    def __init__(self, c: Context, tensor: Tensor, again: Callable[[], list[Tensor]]) -> None:
        assert tensor.storage is not None
        self.c, self.again, self.made = c, again, list[Tensor]()
        self.storage: Storage = tensor.storage
        self.shape, self.dtype = tensor.shape, tensor.dtype

    def drop_after(self, out: Tensor) -> Tensor:
        """Frees the output now; returns a view of `out`, the tensor made by its last use.

        When the gradient of that view arrives in backward, the output is made again.
        """
        self.storage.empty()
        hooked = Tensor(out.storage, out.shape, out.dtype)
        self.c.node(hooked, (out,), (), self._fill)
        return hooked

    def _fill(self, tape: Tape, grads: Grads, _saved: Saved) -> Grads:
        tape.mark(RECOMPUTE_BEGIN)
        self.made = self.again()
        _restore(self.c, self.storage, self.made[-1])
        del self.storage
        tape.mark(RECOMPUTE_END)
        return grads


def discarded_region(c: Context, run: Callable[[], tuple[Tensor, ...]]) -> tuple[
        tuple[Tensor, ...], Callable[[Tensor], Tensor]]:
    """(outputs of `run`, function to call after their last use), to save no output of several operators.

    `CheckpointWithoutOutput`. That function takes the tensor made by the last use, frees the outputs and returns a view
    of the tensor. The region saves its inputs. When the gradient of that tensor arrives, the region runs again to its
    end, with a graph; what it makes is copied into the emptied storages, and both stay: the copies for those that saved
    the outputs, the others until the region's backward is over (`random.py`, _recompute). Or both are one, see
    `Discarded`.
    """
    made: list[Tensor] = []
    ends: list[Tensor] = []

    def whole() -> Tensor:
        ends.extend([region_end(c, out, made) for out in run()])
        return ends[-1]

    c.tape.checkpoint(whole)
    outputs = tuple(ends)
    ends.clear()
    frame = next((out.node.frame for out in outputs if out.node), None)
    emptied = [(out.storage, out.node) for out in outputs if out.storage]

    def fill(tape: Tape, grads: Grads, _saved: Saved) -> Grads:
        assert frame is not None
        tape.replay(frame)
        for storage, end in emptied:
            assert end is not None
            _restore(c, storage, end.saved[0])  # what the replay ended with
        emptied.clear()
        return grads

    def drop_after(out: Tensor) -> Tensor:
        for storage, _ in emptied:
            storage.empty()
        hooked = Tensor(out.storage, out.shape, out.dtype)
        c.node(hooked, (out,), (), fill)
        return hooked

    return outputs, drop_after


def _restore(c: Context, emptied: Storage | None, made: Tensor) -> None:
    """The emptied storage gets what was made again: as a copy whose bytes it takes over, or the very bytes."""
    assert emptied is not None
    if c.options.shares_recomputed:
        emptied.held = made.storage
        return
    copy = c.tape.empty(made.shape, made.dtype, "restored", "recompute")
    c.elementwise(copy, 2, Kernel.COPY)
    assert copy.storage is not None
    emptied.slot, emptied.num_bytes = copy.storage.slot, copy.storage.num_bytes
    copy.storage.num_bytes = 0
