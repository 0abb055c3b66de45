"""Messages of context parallel attention: keys and values around a ring, or positions for heads (cp_comm_type).

TransformerEngine 2.8 and 2.18 `pytorch/attention/dot_product_attention/context_parallel.py`: AttnFuncWithCPAndKVP2P,
AttnFuncWithCPAndQKVOA2A with flash_attn_a2a_communicate.

[Note: positions for heads]
With a2a each rank sends of each of query, key and value the heads of every other rank, and gets all positions of its
own; afterwards the output goes back. One all-to-all a tensor, before or after which a copy puts the positions in order,
since a rank has one piece from the start of the sequence and one from its end. Backward sends the gradient of the
output, and back those of query, key and value. Nothing of it overlaps. In 8 bits the messages are of a byte an element.
"""

from __future__ import annotations

from collections.abc import Sequence

from simcore.operators.megatron.ops.context import Context
from simcore.recording.tape import Kernel

__all__ = ["send_output", "send_parts"]


def send_parts(c: Context, parts: Sequence[int], *, backward: bool = False) -> None:
    """Records the messages of query, key and value, `parts` bytes of them on a rank; nothing without cp.

    `backward`: their gradients; around a ring backward moves keys and values once more, with their gradients.
    """
    if _swaps_positions(c):
        for size in parts:
            c.tape.compute(Kernel.COPY, size, 2 * size, 1)
            c.tape.collective("all_to_all", "cp", size, c.dtype)
    elif c.run.cp > 1:
        c.tape.collective("send_recv", "cp", (1 + backward) * (c.run.cp - 1) * sum(parts[1:]), c.dtype)


def send_output(c: Context, size: int) -> None:
    """Records the message of the output, or of its gradient, of so many bytes on a rank; a ring sends none."""
    if _swaps_positions(c):
        c.tape.collective("all_to_all", "cp", size, c.dtype)


def _swaps_positions(c: Context) -> bool:
    """True if nothing goes around a ring: a2a+p2p does both, and is recorded as a ring."""
    return c.run.cp > 1 and c.options.cp_comm_type == "a2a"
