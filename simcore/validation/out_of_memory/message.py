"""Message of torch's allocator that a request failed, in the forms of all versions, and the stack frames before it.

[Note: forms of the message]
torch 1.0 to 1.3 (`c10/cuda/CUDACachingAllocator.cpp`): `Tried to allocate 1024.00 MiB (GPU 0; 15.90 GiB total capacity;
14.25 GiB already allocated; 991.56 MiB free; 607.00 KiB cached)`, where cached is not allocated. 1.4 to 2.0: `...
22.29 GiB reserved in total by PyTorch)`, which includes what is allocated. 2.1 to main (001074d2): `GPU 0 has a total
capacity of 79.11 GiB of which 1.20 GiB is free. {processes} Of the allocated memory 70.00 GiB is allocated by PyTorch,
{with .. allocated in private pools (e.g., CUDA Graphs), }and 3.00 GiB is reserved by PyTorch but unallocated.`; 2.1 and
2.2 write `capacty`. With a limit by `set_per_process_memory_fraction` also `10.00 GiB allowed; `. Until 2.9 the advice
names PYTORCH_CUDA_ALLOC_CONF, later PYTORCH_ALLOC_CONF; under ROCm it begins with HIP.

[Note: processes of the message]
`reportProcessMemoryInfo`: `Including non-PyTorch memory, this process has 78.00 GiB memory in use.` and for every other
process `Process 123 has 1.00 GiB memory in use.` In a container NVML sees other process numbers: then the process
itself is called `Process 123` too, and there is no line for this process; it is the only one that holds as much as
torch has reserved. Some drivers say 0 bytes or, under WSL,
17179869184 GiB: a value below what torch has allocated, or above twice the capacity, is left out.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from simcore.validation.logs.lines import plain_lines, without_prefix
from simcore.validation.out_of_memory.block import SIZE, parse_size
from simcore.validation.out_of_memory.traceback import Frame, Phase, frame_of, phase_of

__all__ = ["OutOfMemory", "read_messages"]

_DEEPEST: Final = 400
"""Frames that are kept of a stack, the innermost ones."""
_WRAPPED: Final = 8
"""Lines over which a message may be wrapped."""
_MOST: Final = 4096
"""Messages of a text that are read: one or two of each rank are usual."""
_BEGIN: Final = re.compile(r"\b(?:CUDA|HIP|XPU|NPU) out of memory\.? Tried to allocate ")
_ALWAYS: Final = "Tried to allocate "
_END: Final = re.compile(
    r"reserved by PyTorch but unallocated|reserved in total by PyTorch|(?:bytes|KiB|MiB|GiB) cached")
_STACK: Final = re.compile(r"Traceback \(most recent call last\)")

_FIELDS: Final = {name: re.compile(pattern) for name, pattern in {
    "asked": rf"Tried to allocate ({SIZE})",
    "capacity": rf"total capaci?ty of ({SIZE})|({SIZE}) total capacity",
    "free": rf"of which ({SIZE}) is free|; ({SIZE}) free",
    "allocated": rf"allocated memory ({SIZE}) is allocated by PyTorch|; ({SIZE}) already allocated",
    "private": rf"with ({SIZE}) allocated in private pools",
    "unused": rf"and ({SIZE}) is reserved by PyTorch but unallocated|; ({SIZE}) cached",
    "reserved": rf"; ({SIZE}) reserved in total by PyTorch",
    "in_use": rf"this process has ({SIZE}) memory in use",
    "allowed": rf"({SIZE}) allowed;",
}.items()}
_DEVICE: Final = re.compile(r"\bGPU (\d{1,4})\b")
_PROCESS: Final = re.compile(rf"\bProcess \d{{1,10}} has ({SIZE}) memory in use")
_INSANE: Final = 2
"""Capacities of the device that no process has in use."""


@dataclass(frozen=True)
class OutOfMemory:
    """One message of torch's allocator; sizes are in bytes, rounded as printed, None if it does not name them.

    `asked`: the size of the request as printed; `asked_bytes`: of its block. `device`: number of the GPU on its
    machine. `capacity_bytes`: of the GPU; `allowed_bytes`: limit that the program set. `free_bytes`: as the driver
    counts.
    `allocated_bytes`: handed out by torch; `private_bytes`: the part of CUDA graphs; `unused_bytes`: reserved by torch
    and not handed out. `in_use_bytes`: of this process, as the driver counts; `others_bytes`: of all other processes.
    `rank`: of the job, if its line names one. `phase`: of a step, by the frames before it; `place`: the innermost.
    """

    asked: str
    asked_bytes: int | None
    device: int | None = None
    capacity_bytes: int | None = None
    allowed_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    private_bytes: int | None = None
    unused_bytes: int | None = None
    in_use_bytes: int | None = None
    others_bytes: int | None = None
    rank: int | None = None
    phase: Phase = ""
    place: str = ""

    @property
    def outside_bytes(self) -> int | None:
        """Bytes of this process that torch's allocator does not manage: context, NCCL; None if unknown."""
        if self.in_use_bytes is None or self.allocated_bytes is None or self.unused_bytes is None:
            return None
        return max(0, self.in_use_bytes - self.allocated_bytes - self.unused_bytes)

    @property
    def rest_bytes(self) -> int | None:
        """Bytes of the GPU that are neither free nor of this process's torch; None if unknown."""
        if self.capacity_bytes is None or self.free_bytes is None or self.allocated_bytes is None:
            return None
        return max(0, self.capacity_bytes - self.free_bytes - self.allocated_bytes - (self.unused_bytes or 0))


def read_messages(text: str) -> list[OutOfMemory]:
    """Messages of torch's allocator in a text, in order; a message that is repeated with its stack counts once."""
    found: dict[OutOfMemory, list[OutOfMemory]] = {}
    if _ALWAYS not in text:
        return []
    for message in itertools.islice(_messages(plain_lines(text)), _MOST):
        same = found.setdefault(replace(message, rank=None, phase="", place=""), [])
        at = next((at for at, known in enumerate(same) if known.rank == message.rank
                   or None in (known.rank, message.rank)), len(same))
        same[at:at + 1] = [_joined(same[at], message) if at < len(same) else message]
    return [message for same in found.values() for message in same]


def _joined(first: OutOfMemory, other: OutOfMemory) -> OutOfMemory:
    """The first of two equal messages, with rank and phase of the other if it has none."""
    rank = first.rank if first.rank is not None else other.rank
    told = first if first.phase else other
    return replace(first, rank=rank, phase=told.phase, place=told.place)


class _Stream:
    """Lines of one process: the stack of its traceback, and a message that is not complete."""

    def __init__(self) -> None:
        self.frames: deque[Frame] = deque(maxlen=_DEEPEST)
        self.pending: list[str] = []

    def take(self, line: str) -> Iterator[tuple[str, list[Frame]]]:
        """Yields the message that the line completes, with the frames before it."""
        begins = _BEGIN.search(line)
        if self.pending and (begins or len(self.pending) == _WRAPPED or _STACK.search(line)):
            yield from self.flush()
        if begins:
            self.pending = [line[begins.start():]]
        elif self.pending:
            self.pending.append(line.strip(" >|*`"))
        else:
            self._stacked(line)
        if self.pending and _END.search(" ".join(self.pending[-2:])):
            yield from self.flush()

    def flush(self) -> Iterator[tuple[str, list[Frame]]]:
        if self.pending:
            yield " ".join(self.pending), list(self.frames)
            self.frames.clear()
        self.pending = []

    def _stacked(self, line: str) -> None:
        if _STACK.search(line):
            self.frames.clear()
        elif frame := frame_of(line):
            self.frames.append(frame)
        elif self.frames and not self.frames[-1].code and line[:1] in (" ", "-") and (code := _code(line)):
            self.frames.append(replace(self.frames.pop(), code=code))


def _code(line: str) -> str:
    """Line of code below a frame: the one that IPython points at, or the only one; "" for marks and others."""
    arrow = re.match(r"-{1,6}> \d{1,6} (.{1,400})", line)
    text = arrow[1] if arrow else line
    return text.strip()[:200] if arrow or (re.search(r"\w", text) and not re.match(r"\s{0,40}\d{1,6} ", text)) else ""


def _messages(lines: Iterable[str]) -> Iterator[OutOfMemory]:
    streams: dict[str, _Stream] = defaultdict(_Stream)
    ranks: dict[str, int | None] = {}
    for line in lines:
        prefix, rank, rest = without_prefix(line)
        if not streams and not _BEGIN.search(rest) and frame_of(rest) is None and "Traceback" not in rest:
            continue
        ranks[prefix] = rank
        for text, frames in streams[prefix].take(rest):
            yield _message(text, frames, rank)
    for prefix, stream in streams.items():
        for text, frames in stream.flush():
            yield _message(text, frames, ranks[prefix])


def _message(text: str, frames: list[Frame], rank: int | None) -> OutOfMemory:
    phase, place = phase_of(frames)
    return replace(_sizes(text), rank=rank, phase=phase, place=place)


@lru_cache(maxsize=64)
def _sizes(text: str) -> OutOfMemory:
    """Sizes of a message, and its GPU."""
    printed = {name: next(filter(None, match.groups())) for name, pattern in _FIELDS.items()
               if (match := pattern.search(text))}
    sizes = {name: parse_size(size) for name, size in printed.items()}
    allocated, unused, capacity = sizes.get("allocated"), sizes.get("unused"), sizes.get("capacity")
    if unused is None and allocated is not None and "reserved" in sizes:
        unused = max(0, sizes["reserved"] - allocated)
    in_use, others = _processes(text, sizes.get("in_use"), (allocated or 0) + (unused or 0), capacity)
    device = _DEVICE.search(text)
    return OutOfMemory(
        printed.get("asked", ""), sizes.get("asked"), int(device[1]) if device else None, capacity,
        sizes.get("allowed"), sizes.get("free"), allocated, sizes.get("private"), unused, in_use, others)


def _processes(text: str, this: int | None, least: int, capacity: int | None) -> tuple[int | None, int | None]:
    """(bytes in use by this process, by all others), None where the driver does not say it or says what cannot be."""
    others = [parse_size(match[1]) for match in _PROCESS.finditer(text)]
    most = _INSANE * capacity if capacity else None
    ours = [size for size in others if size >= least]
    if this is None and len(ours) == 1:  # in a container the process does not find itself
        this = ours[0]
        others.remove(this)
    if this is not None and (this < least or (most is not None and this > most)):
        this = None
    return this, sum(others) if others else None
