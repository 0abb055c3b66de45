"""A tape records what one layer allocates, keeps, frees, computes and sends, in the order in which PyTorch would.

Comes in: operator functions (`operators/*.py`) written like eager model code over `Tensor`s that have a size and no
values. Goes out: `Section`s, integer rows that `lower.py` tiles over layers and microbatches.

[Note: lifetimes are reference counts]
PyTorch frees a storage when the last reference to it goes, on the host, in program order. CPython counts references
the same way, so the operator functions *are* the lifetime model: a local variable that is rebound frees its storage at
that line, an autograd node keeps what it saves until it has run, and a node that nothing leads to dies with what it
saved. Nodes run in reverse order of creation (torch 2.13, `torch/csrc/autograd/engine.cpp`: the ready queue is ordered
by sequence number), the gradients given to a node go before what the node saved, and two gradients for one tensor are
added into a new one. Parameters take their gradient after the node has handed on all others.

[Note: checkpointing]
Inside a non-reentrant checkpoint nodes keep nothing but the region's inputs. The first node that needs something runs
the region again; the replay stops at the last thing that any node saves (torch 2.13, `torch/utils/checkpoint.py`, early
stop), and what it made dies as the nodes that saved it run. What nodes saved that have died since is not kept again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from weakref import ref

from simcore.units import dtype_bytes

__all__ = ["GRAD_HIDDEN", "HIDDEN", "RECOMPUTE_BEGIN", "RECOMPUTE_END", "Kernel", "Op", "Param", "Row", "Section",
           "Storage", "Tape", "Tensor"]


class Op(IntEnum):
    """The closed set of things a program does. Column `AUX` and `SLOT` mean what the line says."""

    ALLOC = 0  # SLOT owner row, AMOUNT +bytes
    FREE = 1  # SLOT owner row, AMOUNT -bytes
    COMPUTE = 2  # SLOT kernel, AMOUNT FLOPs, AUX bytes read and written
    COLLECTIVE = 3  # SLOT communication row, AMOUNT payload bytes, AUX handle
    COPY = 4  # SLOT communication row, AMOUNT bytes, AUX handle
    WAIT = 5  # the compute stream waits for handle AUX
    MARK = 6  # SLOT label


class Kernel(IntEnum):
    """Kernel classes of the cost model, in the order of `simcore.cost.KERNELS`."""

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


Row = tuple[int, int, int, int, int, int]
"""(op, layer offset, slot, amount, stream, aux); the offset says whose layer the slot is counted from."""

HIDDEN = 0
GRAD_HIDDEN = 1
COMPUTE_STREAM = 0
RECOMPUTE_BEGIN, RECOMPUTE_END = 0, 1
INNER_FORWARD_BEGIN, INNER_FORWARD_END, INNER_BACKWARD_BEGIN, INNER_BACKWARD_END = 2, 3, 4, 5
_CATEGORY_OF_PHASE = {"forward": "activation", "recompute": "recompute", "backward": "backward_temp"}
_ALLOC, _FREE, _COMPUTE = int(Op.ALLOC), int(Op.FREE), int(Op.COMPUTE)


class Storage:
    """Bytes that live from creation until the last `Tensor` that refers to them goes.

    `born`: False where another layer has posted the birth. Set `num_bytes` to 0 and the death is another's to post.
    """

    __slots__ = ("birth", "num_bytes", "offset", "slot", "tape")

    def __init__(self, tape: Tape, num_bytes: int, slot: int, offset: int = 0, *, born: bool = True) -> None:
        self.tape, self.num_bytes, self.slot, self.offset, self.birth = tape, num_bytes, slot, offset, -1
        if born and num_bytes:
            self.birth = len(tape.rows)
            tape.rows.append((_ALLOC, offset, slot, num_bytes, COMPUTE_STREAM, 0))

    def __del__(self) -> None:
        if self.num_bytes:
            self.tape.rows.append((_FREE, self.offset, self.slot, -self.num_bytes, COMPUTE_STREAM, 0))


@dataclass(slots=True, eq=False)
class Tensor:
    """A view of a storage: a shape, a dtype, and the node that made it (None: nothing flows back)."""

    storage: Storage | None
    shape: tuple[int, ...]
    dtype: str
    node: Node | None = None
    output: int = 0

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * dtype_bytes(self.dtype)

    def detach(self) -> Tensor:
        """The same storage without the graph."""
        return Tensor(self.storage, self.shape, self.dtype)

    def disown(self) -> None:
        """Its death is for another layer to post."""
        if self.storage is not None:
            self.storage.num_bytes = 0

    def view(self, *shape: int) -> Tensor:
        """The same storage and graph under another shape (views cost nothing and gradients pass through)."""
        return Tensor(self.storage, shape, self.dtype, self.node, self.output)


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter as an operator sees it: gathered, in the dtype it computes in.

    `grad_category`: what its gradient is posted as.
    `grad_exists`: it has a gradient already, the new one is added in place and dies.
    `tied`: two modules use it, the output head and the embedding; the head's gradient waits for the embedding's, then
    both are added into a new one.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    grad_category: str = "unsharded_grad"
    grad_exists: bool = False
    tied: bool = False

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * dtype_bytes(self.dtype)


Backward = Callable[["Tape", list[Tensor | None], list[Tensor]], Sequence[Tensor | None]]
"""(tape, gradients of the node's outputs, what it saved) -> gradients of its inputs."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Node:
    """One autograd node: to whom its gradients go, what it keeps, and what it does in backward."""

    edges: tuple[Node | Param | None, ...] = ()
    outputs_of: tuple[int, ...] = ()
    backward: Backward | None = None
    scope: str = ""
    reduce_to: tuple[tuple[int, ...], ...] = ()
    saved: list[Tensor] = field(default_factory=list)
    frame: Frame | None = None
    grads: dict[int, Tensor] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Frame:
    """A checkpointed region: how to run it again (which keeps its inputs), and who saved what in it."""

    run: Callable[[], object]
    owners: list[ref[Node]] = field(default_factory=list)
    position: int = 0
    replayed: bool = False


class _StopRecompute(Exception):  # noqa: N818 - it is no error
    pass


@dataclass(frozen=True, slots=True)
class Section:
    """Rows of one part of a layer (forward, backward, ...)."""

    rows: tuple[Row, ...]


class Tape:
    """Records one layer. `slots` and `comms` are shared tables: row number -> what it is."""

    def __init__(self, slots: dict[tuple[str, str], int], comms: dict[tuple[str, str, str], int]) -> None:
        self.slots, self.comms = slots, comms
        self.rows: list[Row] = []
        self.nodes: list[ref[Node]] = []
        self.phase = "forward"
        self.scope = ""
        self.frame: Frame | None = None
        self.grads: list[tuple[Param, Tensor]] = []
        for name, category in (("hidden_states", "activation"), ("grad_hidden_states", "backward_temp")):
            slots.setdefault((name, category), len(slots))

    # ---- what happens -------------------------------------------------------------------------------------------
    def slot(self, name: str, category: str) -> int:
        """The row of an owner in the shared table."""
        return self.slots.setdefault((name, category), len(self.slots))

    def empty(self, shape: Sequence[int], dtype: str, name: str, category: str = "") -> Tensor:
        """A new storage, uninitialised; `category` defaults to the phase's own."""
        slot = self.slot(self.scope + name, category or _CATEGORY_OF_PHASE[self.phase])
        shape = tuple(shape)
        return Tensor(Storage(self, math.prod(shape) * dtype_bytes(dtype), slot), shape, dtype)

    def external(self, shape: Sequence[int], dtype: str, slot: int, offset: int) -> Tensor:
        """A tensor that another layer made; its death is posted here."""
        tensor = Tensor(None, tuple(shape), dtype)
        tensor.storage = Storage(self, tensor.nbytes, slot, offset, born=False)
        return tensor

    def compute(self, kernel: Kernel, flops: int, moved_bytes: int) -> None:
        """One kernel on the compute stream."""
        self.rows.append((_COMPUTE, 0, kernel, flops, COMPUTE_STREAM, moved_bytes))

    def collective(self, collective: str, axis: str, payload: int, dtype: str) -> None:
        """A collective that the layer itself calls and waits for (token dispatch, tensor parallelism)."""
        row = self.comms.setdefault((collective, axis, dtype), len(self.comms))
        self.rows.append((int(Op.COLLECTIVE), 0, row, payload, COMPUTE_STREAM, 0))

    def mark(self, label: int) -> None:
        self.rows.append((int(Op.MARK), 0, label, 0, COMPUTE_STREAM, 0))

    def cut(self) -> Section:
        """Everything since the last cut; what was born before can no longer be renamed."""
        rows, self.rows = tuple(self.rows), []
        return Section(rows)

    def rename(self, storage: Storage | None, slot: int) -> None:
        """Say whose a storage is that was born since the last cut: it was so from its birth."""
        assert storage is not None
        op, offset, _, amount, stream, aux = self.rows[storage.birth]
        assert (op, amount) == (_ALLOC, storage.num_bytes), "renamed a storage that was not born in this section"
        self.rows[storage.birth] = (op, offset, slot, amount, stream, aux)
        storage.slot = slot

    _rename = rename

    # ---- the graph ----------------------------------------------------------------------------------------------
    def node(self, inputs: Sequence[Tensor | Param | None], save: Sequence[Tensor | Param | None],
             backward: Backward, reduce_to: tuple[tuple[int, ...], ...] = ()) -> Node | None:
        """An autograd node, or None when nothing that flows in needs a gradient.

        `save` is what the node keeps: saved *before* the operator allocates its output, as PyTorch does for inputs.
        `reduce_to`: shapes of inputs that were broadcast; the engine sums their gradients when the node has returned.
        """
        edges = tuple(_edge(x) for x in inputs)
        if not any(edges):
            return None
        outputs_of = tuple(x.output if isinstance(x, Tensor) else 0 for x in inputs)
        node = Node(edges, outputs_of, backward, self.scope, reduce_to)
        self.nodes.append(ref(node))
        self.save(node, *save)
        return node

    def save(self, node: Node | None, *things: Tensor | Param | None) -> None:
        """Keep tensors for `node`. Parameters are kept by their owner and scalars (None) weigh nothing: they count."""
        if node is None:
            return
        if self.frame is None or self.phase == "recompute":  # a replay's own graph keeps things while it lasts
            node.saved.extend(x.detach() for x in things if isinstance(x, Tensor))
        if self.frame is None or not things:
            return
        if self.phase == "recompute":
            self._save_again(self.frame, things)
        else:
            node.frame = self.frame
            self.frame.owners.extend([ref(node)] * len(things))

    def _save_again(self, frame: Frame, things: Sequence[Tensor | Param | None]) -> None:
        for x in things:
            owner = frame.owners[frame.position]()
            frame.position += 1
            if owner is not None and isinstance(x, Tensor):
                owner.saved.append(x.detach())
        if frame.position == len(frame.owners):
            self.mark(RECOMPUTE_END)
            raise _StopRecompute

    def checkpoint(self, run: Callable[[], Tensor]) -> Tensor:
        """Run a region whose nodes keep nothing but its inputs (what `run` refers to); it is run again in backward."""
        assert self.frame is None, "checkpoints are not nested"
        self.frame = Frame(run)
        try:
            return run()
        finally:
            self.frame = None

    # ---- backward -----------------------------------------------------------------------------------------------
    def seed(self, tensor: Tensor, grad: Tensor) -> None:
        """Give `tensor` its gradient."""
        if tensor.node is not None:
            tensor.node.grads[tensor.output] = grad

    def backward(self, until: int = 0) -> None:
        """Run nodes from the last created down to number `until`."""
        self.phase = "backward"
        while len(self.nodes) > until:
            node = self.nodes.pop()()
            if node is not None and node.grads:
                self._run(node)

    def _run(self, node: Node) -> None:
        if node.frame is not None and not node.frame.replayed:
            self._replay(node.frame)
        self.scope = node.scope
        given, node.grads = node.grads, {}
        grads = [given.get(i) for i in range(max(given) + 1)]
        given.clear()
        assert node.backward is not None
        outputs = list(node.backward(self, grads, node.saved))
        if node.frame is not None:  # a checkpoint hands saved tensors to the function itself, which is over
            node.saved.clear()
        for i, shape in enumerate(node.reduce_to):
            outputs[i] = self._sum_to(outputs[i], shape)
        grads.clear()
        node.saved, node.frame, node.backward = [], None, None
        params = []
        for i, edge in enumerate(node.edges):
            grad, outputs[i] = outputs[i], None
            if grad is not None and isinstance(edge, Param):
                params.append((edge, grad))
            elif grad is not None and edge is not None:
                self._give(edge, node.outputs_of[i], grad)
        grad = None
        while params:
            self.give_param(*params.pop(0))

    def _sum_to(self, grad: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
        if grad is None or grad.numel == math.prod(shape):
            return grad
        total = self.empty(shape, grad.dtype, "grad_sum_to_size")
        self.compute(Kernel.ELEMENTWISE, grad.numel, grad.nbytes + total.nbytes)
        return total

    def _replay(self, frame: Frame) -> None:
        nodes, phase, scope = self.nodes, self.phase, self.scope
        self.nodes, self.phase, self.frame, frame.replayed = [], "recompute", frame, True
        self.mark(RECOMPUTE_BEGIN)
        try:
            frame.run()
        except _StopRecompute:
            pass
        self.nodes, self.phase, self.scope, self.frame = nodes, phase, scope, None

    def _give(self, edge: Node, output: int, grad: Tensor) -> None:
        edge.grads[output] = self.add_grads(edge.grads[output], grad) if output in edge.grads else grad

    def add_grads(self, first: Tensor, second: Tensor) -> Tensor:
        """Two gradients for one tensor, in a new one."""
        total = self.empty(first.shape, first.dtype, "grad_sum")
        self.compute(Kernel.ELEMENTWISE, first.numel, first.nbytes + second.nbytes + total.nbytes)
        return total

    def give_param(self, param: Param, grad: Tensor) -> None:
        """A parameter takes a gradient."""
        if param.tied:  # the recorder says what becomes of it
            self.grads.append((param, grad))
            return
        if param.grad_exists:  # AccumulateGrad adds in place, the new gradient dies here
            self.compute(Kernel.ELEMENTWISE, grad.numel, 3 * grad.nbytes)
            return
        self.rename(grad.storage, self.slot(f"{param.name}.grad", param.grad_category))
        self.grads.append((param, grad))

    def release_grads(self) -> tuple[tuple[Param, int, int], ...]:
        """The parameter gradients that are alive now: (parameter, slot, bytes). They are no longer the tape's."""
        alive = []
        for param, grad in self.grads:
            assert grad.storage is not None
            alive.append((param, grad.storage.slot, grad.storage.num_bytes))
            grad.storage.num_bytes = 0
        self.grads.clear()
        return tuple(alive)


def _edge(x: Tensor | Param | None) -> Node | Param | None:
    if isinstance(x, Tensor):
        return x.node
    return x if x is not None and x.trainable else None
