"""The tape: records what one layer allocates, saves, frees, computes and sends, in the order in which PyTorch does.

Input: operator functions (`operators/`) written like eager model code over `Tensor`s that have a size and no values.
Output: `Section`s, integer rows (`rows.py`) that `program/lower.py` tiles over layers and microbatches.

[Note: lifetimes are reference counts]
PyTorch frees a storage when the last reference to it goes, on the host, in program order. CPython counts references
the same way, so the operator functions *are* the lifetime model: a local variable that is rebound frees its storage at
that line, an autograd node keeps what it saves until it has run, and a node without references is
deleted with its saved tensors. Nodes run in reverse order of creation (torch 2.13, `torch/csrc/autograd/engine.cpp`:
the ready queue is ordered by sequence number), the incoming gradients of a node are freed before its saved tensors, and
two gradients for one tensor are added into a new one ([Note: sums of gradients]). Parameters take their gradient after
the node has passed on all others.

[Note: sums of gradients]
torch 2.13 `csrc/autograd/input_buffer.cpp`, accumulate: a sum takes the place of the first gradient where nothing else
refers to it, but a new tensor under a dispatch mode and beside a DTensor. All stored truth is measured under a dispatch
mode, so this is what is recorded. Without one a layer's backward holds one gradient of the hidden states less for a
moment; recorded that way, none of the 212 training jobs in `scenarios/` has a lower peak.

[Note: checkpointing]
Inside a non-reentrant checkpoint nodes save only the region's inputs. The first node that needs a saved tensor runs the
region again; the replay stops at the last tensor that any node saves (torch 2.13, `torch/utils/checkpoint.py`, early
stop), and its tensors are freed as the nodes that saved them run. Tensors of nodes that are deleted are not saved
again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from weakref import ref

from simcore.recording.checkpoint import Frame, Keeps, StopReplay
from simcore.recording.host_copies import HostCopies
from simcore.recording.offload_groups import ModuleGroups, OffloadGroups
from simcore.recording.rows import (
    CATEGORY_OF_PHASE,
    COMPUTE_STREAM,
    GRAD_HIDDEN,
    GRADIENTS_BEGIN,
    HIDDEN,
    INNER_BACKWARD_BEGIN,
    INNER_BACKWARD_END,
    INNER_FORWARD_BEGIN,
    INNER_FORWARD_END,
    RECOMPUTE_BEGIN,
    RECOMPUTE_END,
    STASH_BORDER,
    Kernel,
    Op,
    Param,
    Recorder,
    Row,
    Section,
    Storage,
    Stream,
)
from simcore.units import DTYPE_BYTES

__all__ = ["COMPUTE_STREAM", "GRADIENTS_BEGIN", "GRAD_HIDDEN", "HIDDEN", "INNER_BACKWARD_BEGIN", "INNER_BACKWARD_END",
           "INNER_FORWARD_BEGIN", "INNER_FORWARD_END", "RECOMPUTE_BEGIN", "RECOMPUTE_END", "STASH_BORDER", "Backward",
           "Kernel", "Node", "Op", "Param", "Row", "Section", "Storage", "Stream", "Tape", "Tensor"]


@dataclass(slots=True, eq=False)
class Tensor:
    """Tensor without values: a shape and a dtype over a storage.

    `node`: autograd node that made it, None if no gradient flows back; `output`: its index among that node's outputs.
    """

    storage: Storage | None
    shape: tuple[int, ...]
    dtype: str
    node: Node | None = None
    output: int = 0

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    def detach(self) -> Tensor:
        """View of the same storage without a node, so no gradient flows back through it."""
        return Tensor(self.storage, self.shape, self.dtype)

    def disown(self) -> None:
        """Leaves the free of its storage to another layer: none is recorded here."""
        assert self.storage is not None
        self.storage.num_bytes = 0

    def view(self, *shape: int) -> Tensor:
        """View of the same storage under another shape, without cost; gradients pass through to the same node."""
        return Tensor(self.storage, shape, self.dtype, self.node, self.output)


Backward = Callable[["Tape", list[Tensor | None], list[Tensor]], Sequence[Tensor | None]]
"""(tape, gradients of the node's outputs, saved tensors) -> gradients of the node's inputs."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Node:
    """One autograd node: where its gradients go, the tensors that it saves, and its backward function.

    `edges`: for each input the node or parameter that takes its gradient, or None; `outputs_of`: that input's index
    among the outputs of its node. `scope`, `module`: name prefix and `rows.Module` of its kernels. `reduce_to`,
    `cast_to`: shapes and dtypes to which its results are summed and cast. `frame`: the checkpoint that it is part of.
    `grads`: gradients that have arrived, by index of the output.
    """

    edges: tuple[Node | Param | None, ...] = ()
    outputs_of: tuple[int, ...] = ()
    backward: Backward | None = None
    scope: str = ""
    module: int = 0
    reduce_to: tuple[tuple[int, ...], ...] = ()
    cast_to: tuple[str, ...] = ()
    saved: list[Tensor] = field(default_factory=list)
    frame: Frame | None = None
    grads: dict[int, Tensor] = field(default_factory=dict)


class Tape(Recorder):
    """Recording of one layer: its rows, and the autograd graph from which its backward pass is recorded.

    `slots`, `comms`: see `Recorder`. `nodes`: nodes in order of creation; `frame`: checkpointed region that runs now;
    `grads`: (parameter, gradient) pairs that are alive. `no_grad`: no operator makes a node, as under torch.no_grad().
    `away`: saved tensors that wait on the host ([Note: saved tensors on the host]), from `leaves` elements on; None for
    0: all stay. `groups`: those of single modules ([Note: modules on the host]). `held`: what a module refers to beyond
    its forward; at first `left`, (slot, bytes) each of what the layer's last pass has left so.
    """

    def __init__(self, slots: dict[tuple[str, str], int], comms: dict[tuple[str, str, str], int], *,
                 no_grad: bool = False, leaves: int = 0, groups: ModuleGroups | None = None,
                 left: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__(slots, comms)
        self.no_grad = no_grad
        self.away = HostCopies(self, leaves) if leaves else None
        self.groups = OffloadGroups(self, groups) if groups else None
        self.nodes: list[ref[Node]] = []
        self.frame: Frame | None = None
        self.half = ""  # part of a split backward pass that runs, "input" or "weight"
        self.grads: list[tuple[Param, Tensor]] = []
        self.held = [self.external((size,), "int8", slot, 0) for slot, size in left]
        for name, category in (("hidden_states", "activation"), ("grad_hidden_states", "backward_temp")):
            slots.setdefault((name, category), len(slots))

    # ---- tensors ------------------------------------------------------------------------------------------------
    def empty(self, shape: Sequence[int], dtype: str, name: str, category: str = "") -> Tensor:
        """New uninitialised tensor: records the allocation of its storage as `name`, prefixed with the scope.

        `category`: of its bytes, "" for that of the phase (`CATEGORY_OF_PHASE`).
        """
        slot = self.slot(self.scope + name, category or CATEGORY_OF_PHASE[self.phase])
        shape = tuple(shape)
        return Tensor(Storage(self, math.prod(shape) * DTYPE_BYTES[dtype], slot), shape, dtype)

    def external(self, shape: Sequence[int], dtype: str, slot: int, offset: int) -> Tensor:
        """Tensor that another layer has allocated: only its free is recorded here.

        `slot`: index of its name and category in the shared table; `offset`: that layer's number minus this one's.
        """
        tensor = Tensor(None, tuple(shape), dtype)
        tensor.storage = Storage(self, tensor.nbytes, slot, offset, born=False)
        return tensor

    def rest(self) -> Section:
        """Returns the allocations of what `held` keeps alive when all else is over, and drops it."""
        self.held.clear()
        return Section(tuple((Op.ALLOC, 0, row[2], -row[3], 0, 0) for row in self.cut().rows))

    # ---- the graph ----------------------------------------------------------------------------------------------
    def node(self, inputs: Sequence[Tensor | Param | None], save: Sequence[Tensor | Param | None],
             backward: Backward, reduce_to: tuple[tuple[int, ...], ...] = (),
             cast_to: tuple[str, ...] = ()) -> Node | None:
        """New autograd node of an operator with these inputs, or None if no input needs a gradient or none is made.

        `save`: tensors that the node saves *before* the operator allocates its output, as PyTorch does for inputs.
        `backward`: function from the gradients of its outputs to those of its inputs. `reduce_to`: shapes of inputs
        that were broadcast; the engine sums their gradients when the node has returned, and casts them to `cast_to`
        where the operator worked in a wider type (`validate_outputs`).
        """
        edges = tuple([_edge(x) for x in inputs])
        if self.no_grad or not any(edges):
            return None
        outputs_of = tuple([x.output if isinstance(x, Tensor) else 0 for x in inputs])
        node = Node(edges, outputs_of, backward, self.scope, self.module, reduce_to, cast_to)
        self.nodes.append(ref(node))
        self.save(node, *save)
        return node

    def save(self, node: Node | None, *things: Tensor | Param | None) -> None:
        """Saves tensors for the backward of `node`; does nothing if `node` is None.

        Parameters (kept by their owner) and None (scalars) take no bytes, but count for the early stop of a replay. In
        forward of a checkpointed region nothing is saved; its replay in backward saves the tensors, and raises
        StopReplay when it has saved all. A nested region is one function: any of its nodes runs behind the replay.
        """
        if node is None:
            return
        if self.frame is None or self.phase == "recompute":  # the graph of a replay saves tensors while it lives
            first = len(node.saved)
            node.saved.extend([x.detach() for x in things if isinstance(x, Tensor)])
            if self.away is not None:
                self.away.push(node, first)
            if self.groups is not None and self.groups.now is not None:
                self.groups.push(node, first)
        if self.frame is None or not (things or self.frame.nested):
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
        if frame.is_complete:
            self.mark(RECOMPUTE_END)
            raise StopReplay

    def checkpoint(self, run: Callable[[], Tensor], keeps: Keeps | None = None, *, early_stop: bool = True,
                   nested: bool = False) -> Tensor:
        """Output of `run()`, a region whose nodes save only its inputs (those that `run` refers to).

        It runs again in backward. `keeps`, `early_stop`, `nested`: see `checkpoint.Frame`. Raises AssertionError inside
        another one.
        """
        assert self.frame is None, "checkpoints are not nested"
        self.frame = Frame(run, keeps, early_stop, nested)
        try:
            return run()
        finally:
            self.frame = None

    def outputs(self, operator: str, make: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """Outputs of `make()`, or in a replay those of `operator` that a selective checkpoint has kept."""
        return self.frame.outputs(operator, make, replay=self.phase == "recompute") if self.frame else make()

    # ---- backward -----------------------------------------------------------------------------------------------
    def seed(self, tensor: Tensor, grad: Tensor) -> None:
        """Sets the gradient of `tensor` from which `backward` starts; ignored if no gradient flows through it."""
        if tensor.node is not None:
            tensor.node.grads[tensor.output] = grad

    def backward(self, until: int = 0) -> None:
        """Runs backward functions of nodes, from the last created down to index `until` in order of creation.

        A node without an incoming gradient is dropped and does not run.
        """
        self.phase = "backward"
        while len(self.nodes) > until:
            if (node := self.nodes.pop()()) is not None and node.grads:
                self._run(node)

    def _run(self, node: Node) -> None:
        self.module = node.module
        if node.frame is not None and not node.frame.replayed:
            self.replay(node.frame)
        if self.away is not None:
            self.away.wait(node)
        self.scope = node.scope
        incoming, node.grads = node.grads, {}
        grads = [incoming.get(i) for i in range(max(incoming) + 1)]
        incoming.clear()
        assert node.backward is not None
        outputs = list(node.backward(self, grads, node.saved))
        # A checkpoint passes saved tensors to the function itself, which has returned.
        if node.frame is not None and not node.frame.nested:
            node.saved.clear()
        for i, shape in enumerate(node.reduce_to):
            if node.edges[i] is None:  # torch 2.13 csrc/autograd/engine.cpp validate_outputs: no valid edge
                continue
            outputs[i] = self._sum_to(outputs[i], shape, is_param=isinstance(node.edges[i], Param))
            outputs[i] = self._cast_to(outputs[i], node.cast_to[i:i + 1])
        grads.clear()
        node.saved, node.frame, node.backward = [], None, None
        self._hand_on(node, outputs)

    def _hand_on(self, node: Node, outputs: list[Tensor | None]) -> None:
        """Passes gradients to nodes at once, and to parameters (AccumulateGrad) when all nodes have theirs."""
        params: list[tuple[Param, Tensor]] = []
        for i, edge in enumerate(node.edges):
            if edge is None:  # what nobody takes stays among the results, too
                continue
            grad, outputs[i] = outputs[i], None
            if grad is None:
                continue
            if isinstance(edge, Param):
                params.append((edge, grad))
            else:
                if node.outputs_of[i] in edge.grads:
                    outputs[i] = grad  # a summand lives as long as the node's results (engine.cpp evaluate_function)
                self._give(edge, node.outputs_of[i], grad)
        grad = None
        for i in range(len(outputs)):  # results go first to last, as of a vector in C++
            outputs[i] = None
        while params:
            self.give_param(*params.pop(0))

    def _sum_to(self, grad: Tensor | None, shape: tuple[int, ...], *, is_param: bool) -> Tensor | None:
        """Sum over the dimensions that `shape` lacks; of a parameter's gradient even over one row (aten sum_to)."""
        if grad is None or (grad.numel == math.prod(shape) and not (is_param and len(grad.shape) > len(shape))):
            return grad
        total = self.empty(shape, grad.dtype, "grad_sum_to_size")
        self.compute(Kernel.ELEMENTWISE, grad.numel, grad.nbytes + total.nbytes, 1)
        return total

    def _cast_to(self, grad: Tensor | None, dtype: tuple[str, ...]) -> Tensor | None:
        if grad is None or dtype in ((), (grad.dtype,)):
            return grad
        cast = self.empty(grad.shape, dtype[0], "grad_cast")
        self.compute(Kernel.ELEMENTWISE, grad.numel, grad.nbytes + cast.nbytes, 1)
        return cast

    def replay(self, frame: Frame) -> None:
        """Runs a checkpointed region again in backward; its nodes get their saved tensors."""
        nodes, phase, scope, module = self.nodes, self.phase, self.scope, self.module
        self.nodes, self.phase, self.frame, frame.replayed = [], "recompute", frame, True
        self.mark(RECOMPUTE_BEGIN)
        with contextlib.suppress(StopReplay):
            frame.run()
            self.mark(RECOMPUTE_END)
        self.nodes, self.phase, self.scope, self.module, self.frame = nodes, phase, scope, module, None

    def _give(self, edge: Node, output: int, grad: Tensor) -> None:
        edge.grads[output] = self.add_grads(edge.grads[output], grad) if output in edge.grads else grad

    def add_grads(self, first: Tensor, second: Tensor) -> Tensor:
        """Sum of two gradients of one tensor, in a new tensor; records its kernel."""
        total = self.empty(first.shape, first.dtype, "grad_sum")
        self.compute(Kernel.ELEMENTWISE, first.numel, first.nbytes + second.nbytes + total.nbytes, 1)
        return total

    def give_param(self, param: Param, grad: Tensor) -> None:
        """Hands a parameter its gradient, as AccumulateGrad does.

        Its storage is renamed to `{name}.grad`; if a gradient exists already, it is added in place and freed. If the
        parameter has an optimizer `step`, this is recorded and the gradient is freed. That of a `tied` parameter only
        waits for the other one.
        """
        if param.tied:  # the implementation adds it to the other gradient
            self._wait(param, grad)
            return
        if param.grad_exists:  # AccumulateGrad adds in place, the new gradient is freed here
            self.compute(Kernel.ELEMENTWISE, grad.numel, 3 * grad.nbytes, 1)
            self._add_up(param, grad)
            return
        self._add_up(param, grad)
        self.rename(grad.storage, self.slot(f"{param.name}.grad", param.grad_category))
        if param.step is not None:
            self.update(param.step)
            return
        self.grads.append((param, grad))

    def _add_up(self, param: Param, grad: Tensor) -> None:
        if param.summed:
            self.collective("all_reduce", param.summed, grad.nbytes, grad.dtype)

    def _wait(self, param: Param, grad: Tensor) -> None:
        """Keeps the gradient of one of several uses; that of a further use is added in a new tensor."""
        for place, (known, waiting) in enumerate(self.grads):
            if known.name == param.name:
                self.grads[place] = (param, self.add_grads(waiting, grad))
                return
        self.grads.append((param, grad))

    def release_grads(self) -> tuple[tuple[Param, int, int], ...]:
        """Parameter gradients that are alive now, as (parameter, slot: index of its name, bytes).

        The tape forgets them: no free of them is recorded here.
        """
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
