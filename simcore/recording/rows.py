"""The parts of a recording: operations as integer rows, and storages that post their allocation and their free.

Every row has six integers; `Op` documents its columns. Owners, communications and labels are indices of shared
tables, so rows of different layers can be concatenated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from simcore.recording.kernel_shape import MODULE_BITS
from simcore.recording.number_formats import PackedWeights
from simcore.recording.undisturbed import census
from simcore.units import DTYPE_BYTES

__all__ = ["ADAPTER_BACKWARD_BEGIN", "ADAPTER_BACKWARD_END", "ADAPTER_FORWARD_BEGIN", "ADAPTER_FORWARD_END",
           "CATEGORY_OF_PHASE", "COMPUTE_STREAM", "FP32_BACKWARD_BEGIN", "FP32_BACKWARD_END", "FP32_FORWARD_BEGIN",
           "FP32_FORWARD_END", "GRADIENTS_BEGIN", "GRAD_HIDDEN", "HIDDEN", "HOST_DRAINS", "HOST_STOPS",
           "INNER_BACKWARD_BEGIN", "INNER_BACKWARD_END", "INNER_FORWARD_BEGIN", "INNER_FORWARD_END",
           "MISMATCHED_BORDER", "MISMATCHED_REFERENCE", "MODEL_END", "OUTPUTS_COPIED", "OUTPUTS_DROPPED",
           "RECOMPUTE_BEGIN", "RECOMPUTE_END", "REFERENCE_BORDER", "STASH_BORDER",
           "Kernel", "Op", "Param", "Recorder", "Row", "Section", "Step", "Storage", "Stream"]


class Op(IntEnum):
    """Kinds of rows of a program: one member, one kind of operation.

    The comment of each says what columns SLOT, AMOUNT, AUX and STREAM of its rows hold.
    """

    ALLOC = 0  # SLOT owner row, AMOUNT +bytes
    FREE = 1  # SLOT owner row, AMOUNT -bytes
    COMPUTE = 2  # SLOT kernel, AMOUNT FLOPs, AUX bytes read and written, STREAM module and shape (`kernel_shape`)
    COLLECTIVE = 3  # SLOT communication row, AMOUNT payload bytes, AUX handle; between kernels AUX the module
    COPY = 4  # SLOT communication row, AMOUNT bytes, AUX handle
    WAIT = 5  # the compute stream waits for handle AUX; `HOST_STOPS`, `HOST_DRAINS`: the host waits
    MARK = 6  # SLOT label
    HOST = 7  # the host works and issues nothing: AUX bytes of its memory, or (SLOT 1, 2) read of or written to drives


class Kernel(IntEnum):
    """Classes of kernels in the cost model, those of 8 and of 4 bits last.

    The others are in the order of `simcore.timing.kernel.KERNELS`. GRAD_GEMM: a GEMM in a forward pass that already
    makes a gradient, as some losses do: it is not counted among the FLOPs of the model's forward.
    """

    GEMM = 0
    GROUPED_GEMM = 1
    ATTENTION = 2
    MAMBA_SCAN = 3
    CONV = 4
    NORM = 5
    ELEMENTWISE = 6
    PERMUTE = 7
    LOSS = 8
    EMBEDDING = 9
    OPTIMIZER = 10
    COPY = 11
    FP8_GEMM = 12
    FP8_GROUPED_GEMM = 13
    FP8_ATTENTION = 14
    FP4_GEMM = 15
    FP4_GROUPED_GEMM = 16
    GRAD_GEMM = 17


class Stream(IntEnum):
    """Streams of a device; the host issues to all of them in program order."""

    COMPUTE = 0
    ALL_GATHER = 1
    REDUCE = 2
    ALL_REDUCE = 3
    SEND = 4
    RECEIVE = 5
    COPY = 6


class Module(IntEnum):
    """Module of a layer that a kernel belongs to; a CUDA graph may hold some of them and not others.

    Megatron's names for them (main 2026-08-22 `transformer/enums.py`, CudaGraphModule), norm and residual included;
    MOE: the rest of an MoE layer; a shared expert is separate, because it may run on another stream. So do copies to
    pages and back (`Kernel.COPY`), which are counted with it.
    """

    NONE = 0
    ATTN = 1
    MLP = 2
    MAMBA = 3
    MOE_ROUTER = 4
    SHARED_EXPERTS = 5
    MOE_PREPROCESS = 6
    MOE = 7


Row = tuple[int, int, int, int, int, int]
"""(op, layer offset, slot, amount, stream, aux); the slot belongs to the layer at that offset."""

HIDDEN = 0
"""Slot of a layer's output."""
GRAD_HIDDEN = 1
"""Slot of the gradient of a layer's input."""
RECOMPUTE_BEGIN, RECOMPUTE_END = 0, 1
"""Marks around a replay."""
INNER_FORWARD_BEGIN, INNER_FORWARD_END, INNER_BACKWARD_BEGIN, INNER_BACKWARD_END = 2, 3, 4, 5
"""Marks where the hooks of a data-parallel unit inside the layer run."""
GRADIENTS_BEGIN = 6
"""Mark where a layer's first gradient of a parameter is about to be made."""
STASH_BORDER = 7
"""Mark where tensors of an earlier layer that wait in pages are dropped, or those of the next one come back."""
ADAPTER_FORWARD_BEGIN, ADAPTER_FORWARD_END, ADAPTER_BACKWARD_BEGIN, ADAPTER_BACKWARD_END = 8, 9, 10, 11
"""Marks where the hooks of a data-parallel unit run that is one matrix of an adapter."""
MODEL_END = 12
"""Mark inside a loss that a trainer computes: the model's forward has returned."""
REFERENCE_BORDER = 13
"""Mark inside a loss where a reference model passes, whose logits the loss reads next."""
FP32_FORWARD_BEGIN, FP32_FORWARD_END, FP32_BACKWARD_BEGIN, FP32_BACKWARD_END = 14, 15, 16, 17
"""Marks where the hooks of a data-parallel unit run that is a module inside the layer with parameters in fp32."""
OUTPUTS_COPIED, OUTPUTS_DROPPED = 18, 19
"""Marks inside a loss where outputs of all layers, which the model has returned, are copied in fp32, or dropped."""
MISMATCHED_BORDER, MISMATCHED_REFERENCE = 20, 21
"""Marks inside a loss where the model, or the reference, passes over completions of other prompts, without a graph."""
HOST_STOPS = 31
"""Handle of a wait in which the host, not a stream, waits for the issued work, because it needs the device's result."""
HOST_DRAINS = 30
"""Handle of such a wait at the end of a microbatch: no all-gather of a later one starts before it."""
COMPUTE_STREAM = int(Stream.COMPUTE)
CATEGORY_OF_PHASE = {"forward": "activation", "recompute": "recompute", "backward": "backward_temp"}
_ALLOC, _FREE, _COMPUTE, _COLLECTIVE, _MARK = (
    int(op) for op in (Op.ALLOC, Op.FREE, Op.COMPUTE, Op.COLLECTIVE, Op.MARK))


class Storage:
    """Memory of one or more tensors: its creation records an allocation, its deletion a free.

    `slot`: index of its name and category in the recorder's table; `offset`: number of the layer that allocates it,
    minus the recorded layer's (-1: the layer before). `born`: False if another layer has recorded the allocation.
    `num_bytes`: set to 0 where another layer records the free. `birth`: index of the allocation's row. `held`: a
    storage that this one refers to, which lives at least as long.
    """

    __slots__ = ("birth", "held", "num_bytes", "offset", "slot", "tape")

    def __init__(self, tape: Recorder, num_bytes: int, slot: int, offset: int = 0, *, born: bool = True) -> None:
        self.tape, self.num_bytes, self.slot, self.offset, self.birth = tape, num_bytes, slot, offset, -1
        self.held: Storage | None = None
        tape.census.born()
        if born and num_bytes:
            self.birth = len(tape.rows)
            tape.rows.append((_ALLOC, offset, slot, num_bytes, COMPUTE_STREAM, 0))

    def __del__(self) -> None:
        self.tape.census.freed()
        self.empty()

    def empty(self) -> None:
        """Records the free of its bytes, though tensors may still refer to it."""
        if self.num_bytes:
            self.tape.rows.append((_FREE, self.offset, self.slot, -self.num_bytes, COMPUTE_STREAM, 0))
            self.num_bytes = 0


@dataclass(frozen=True, slots=True)
class Step:
    """Optimizer step of one parameter: `held` temporary bytes, FLOPs, and `moved` bytes read and written."""

    held: int
    flops: int
    moved: int


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter as an operator sees it: gathered, in the dtype in which it is computed.

    `grad_category`: category of its gradient's bytes. `grad_exists`: a gradient exists already; the new one is added in
    place and freed. `tied`: the output head and the embedding share it; the head's gradient waits for the embedding's,
    then both are added into a new one. `step`: optimizer step that runs when the gradient exists, and then frees it
    (None: later). `packed`: stored format of a quantized weight; `dtype` is that of its dequantized values. `summed`:
    axis over which ranks add up the gradient, in its place, as soon as it is there; "" for none.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    grad_category: str = "unsharded_grad"
    grad_exists: bool = False
    tied: bool = False
    step: Step | None = None
    packed: PackedWeights | None = None
    summed: str = ""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes in `dtype`, also where it is stored packed."""
        return self.numel * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Section:
    """Rows, in order, of one part of a layer's recording (forward, backward, ...)."""

    rows: tuple[Row, ...]


class Recorder:
    """List of rows that grows as operators run: allocations, frees, kernels, collectives.

    `slots`: table from (name, category) of a storage to its index; `comms`: table from (collective, mesh axis, dtype)
    to its index; both are shared and grow. `phase`: "forward", "recompute" or "backward"; `scope`: prefix of names;
    `module`: `Module` of the next kernels. `casts`: tensors by parameter that autocast keeps until its region ends.
    `graph`: tensors that are attributes of nodes. `is_alone`: no compiler fuses the pointwise kernels of the next
    operators. `census`: storages that are alive.
    """

    def __init__(self, slots: dict[tuple[str, str], int], comms: dict[tuple[str, str, str], int]) -> None:
        self.slots, self.comms = slots, comms
        self.census = census()
        self.rows: list[Row] = []
        self.casts: dict[str, Any] = {}
        self.graph: list[Any] = []
        self.phase = "forward"
        self.scope = ""
        self.module = 0
        self.is_alone = False

    def slot(self, name: str, category: str) -> int:
        """Index of (name, category) in the shared table of storages; a new entry is added if it has none."""
        return self.slots.setdefault((name, category), len(self.slots))

    def compute(self, kernel: Kernel, flops: int, moved_bytes: int, shape: int = 0) -> None:
        """Records one kernel on the compute stream.

        `flops`: two for a multiply-add; `moved_bytes`: read and written. `shape`: of a product or of attention as
        `kernel_shape` packs it, of other kernels the number of torch operators that they stand for; 0: none given.
        """
        if self.is_alone and kernel == Kernel.ELEMENTWISE:
            shape = shape or 1
        self.rows.append((_COMPUTE, 0, kernel, flops, self.module | shape << MODULE_BITS, moved_bytes))

    def python(self, operators: int) -> None:
        """Records host time worth `operators` operators of torch, with no work on the device."""
        self.compute(Kernel.ELEMENTWISE, 0, 0, operators)

    def collective(self, collective: str, axis: str, payload: int, dtype: str) -> None:
        """Records a collective on mesh axis `axis` that the layer itself calls and waits for.

        Examples: token dispatch, tensor parallelism. `payload`: bytes as in the report's `TrafficRow.payload_bytes`
        (of an all-gather the full output, of a reduce-scatter the full input).
        """
        row = self.comms.setdefault((collective, axis, dtype), len(self.comms))
        self.rows.append((_COLLECTIVE, 0, row, payload, COMPUTE_STREAM, self.module))

    def copy(self, direction: str, num_bytes: int, dtype: str) -> None:
        """Records a copy of `num_bytes` on the compute stream; `direction`: `to_host` or `to_device`."""
        row = self.comms.setdefault(("copy", direction, dtype), len(self.comms))
        self.rows.append((Op.COPY, 0, row, num_bytes, COMPUTE_STREAM, self.module))

    def update(self, step: Step) -> None:
        """Records the optimizer's step of one parameter: its kernel and its temporary memory."""
        slot = self.slot("sqrt_exp_avg_sq", "optim_temp")
        temporary = Storage(self, step.held, slot)
        self.compute(Kernel.OPTIMIZER, step.flops, step.moved)
        del temporary

    def attach(self, node: Any, x: Any) -> None:
        """Keeps `x` alive as an attribute of the autograd node's context (ctx), which no checkpoint drops.

        It lives until the graph is freed. Nothing is kept if `node` is None.
        """
        if node is not None:
            (node.saved if self.phase == "recompute" else self.graph).append(x.detach())

    def stop(self) -> None:
        """Records a wait of the host until the device has done all issued work.

        Absent in CUDA graphs of the whole step.
        """
        self.rows.append((Op.WAIT, 0, 0, 0, COMPUTE_STREAM, HOST_STOPS))

    def mark(self, label: int) -> None:
        """Records a row without cost that only has a label, such as `RECOMPUTE_BEGIN`."""
        self.rows.append((_MARK, 0, label, 0, COMPUTE_STREAM, 0))

    def cut(self) -> Section:
        """Section of all rows since the last cut; the list of rows is empty afterwards.

        Storages allocated before can no longer be renamed.
        """
        rows, self.rows = tuple(self.rows), []
        return Section(rows)

    def rename(self, storage: Storage | None, slot: int) -> None:
        """Gives a storage another slot (name and category), from its allocation on.

        Raises AssertionError if it was not allocated since the last `cut`.
        """
        assert storage is not None
        op, offset, _, amount, stream, aux = self.rows[storage.birth]
        assert (op, amount) == (_ALLOC, storage.num_bytes), "renamed a storage that was not born in this section"
        self.rows[storage.birth] = (op, offset, slot, amount, stream, aux)
        storage.slot = slot
