"""Birth, resize and death of every storage, and every collective, of a run under fake tensors.

Every untyped storage that appears as an operator output is logged with the moments of its allocation, resizes and
release (a weak reference on the storage object).  Nothing is sampled: the log is what the caching allocator would be
asked for, except for workspaces inside kernels and the allocator's rounding.

Categories are attached by hooks in the FSDP2 internals (``hooks.py``) and are resolved after the run, so a tensor
that later turns out to be a gradient counts as a gradient from the moment it was allocated.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any, Self

import torch
import torch.distributed._tools.fake_collectives
from torch._C._distributed_c10d import ProcessGroup, _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

# the highest label wins when a storage receives several
PRIORITY = (
    "sharded_param", "ignored_param", "buffer", "input", "opt_state", "sharded_grad", "ignored_grad",
    "unsharded_param", "post_forward_shard", "all_gather_output", "all_gather_cast_input", "reduce_scatter_input",
    "reduce_scatter_output", "unsharded_grad", "activation", "recompute", "backward_temp", "optim_temp", "init_temp",
)  # fmt: skip
RANK = {c: i for i, c in enumerate(PRIORITY)}
PHASE_CATEGORY = {
    "init": "init_temp",
    "fwd": "activation",
    "bwd": "backward_temp",
    "recompute": "recompute",
    "opt": "optim_temp",
}
COMM_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")


def local(t: torch.Tensor) -> torch.Tensor:
    while isinstance(t, DTensor):
        t = t._local_tensor
    return t


def short(dtype: torch.dtype | None) -> str:
    return str(dtype).replace("torch.", "")


def group_size(args: tuple[Any, ...]) -> int | None:
    size = None
    for a in args:
        if isinstance(a, torch.ScriptObject):
            with contextlib.suppress(RuntimeError):  # a script object of another kind
                size = ProcessGroup.unbox(a).size()
    if size is None:
        for a in args:
            if isinstance(a, str):
                with contextlib.suppress(RuntimeError, ValueError, KeyError):  # the name of a reduction, not of a group
                    size = _resolve_process_group(a).size()
    return size


def collective(name: str, tensors: list[torch.Tensor]) -> tuple[str, int, torch.dtype | None]:
    """Kind, payload bytes and dtype: the gathered output, the reduce-scatter input, otherwise the buffer."""
    sizes = [local(a).numel() * a.element_size() for a in tensors]
    if name == "_allgather_base_":
        return "all_gather", sizes[0], tensors[0].dtype
    if name == "_reduce_scatter_base_":
        return "reduce_scatter", sizes[1], tensors[1].dtype
    if name.startswith(("allreduce", "all_reduce")):
        return "all_reduce", sizes[0], tensors[0].dtype
    if "all_to_all" in name or "alltoall" in name:
        return "all_to_all", sizes[0], tensors[0].dtype
    return name, max(sizes, default=0), tensors[0].dtype if tensors else None


class Tracker(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.phase = "init"
        self.layer = "-"
        self.step = -1
        self.events: list[tuple[int, int]] = []  # (storage number, change in bytes)
        self.markers: list[tuple[int, str]] = []  # (index into events, label)
        self.info: dict[int, dict[str, Any]] = {}
        self.comms: list[dict[str, Any]] = []
        self.live: dict[int, int] = {}  # address of the live storage -> its number
        self.layer_stack: list[str] = []
        self.muted = 0  # > 0 while DTensor runs shape propagation on fake global tensors
        self._refs: dict[int, Any] = {}
        self._patches = contextlib.ExitStack()

    # ---- storages ----------------------------------------------------------------------
    def _on_free(self, sid: int, address: int) -> Callable[[Any], None]:
        def callback(_: Any) -> None:
            info = self.info[sid]
            if info["cur"]:
                self.events.append((sid, -info["cur"]))
                info["cur"] = 0
            if self.live.get(address) == sid:
                del self.live[address]
            self._refs.pop(sid, None)

        return callback

    def number_of(self, t: torch.Tensor, op: str = "?") -> int:
        t = local(t)
        storage = t.untyped_storage()
        address = storage._cdata
        if address in self.live:
            return self.live[address]
        sid = len(self.info)
        size = storage.size()
        self.live[address] = sid
        self.info[sid] = dict(
            cur=size, cat=PHASE_CATEGORY[self.phase], layer=self.layer, op=op, shape=tuple(t.shape),
            dtype=short(t.dtype),
        )  # fmt: skip
        self._refs[sid] = weakref.ref(storage, self._on_free(sid, address))
        if size:
            self.events.append((sid, size))
        return sid

    def resized(self, storage: torch.UntypedStorage, size: int) -> None:
        sid = self.live.get(storage._cdata)
        if sid is not None and size != self.info[sid]["cur"]:
            self.events.append((sid, size - self.info[sid]["cur"]))
            self.info[sid]["cur"] = size

    def tag(self, t: torch.Tensor, category: str) -> None:
        info = self.info[self.number_of(t)]
        if RANK[category] < RANK[info["cat"]]:
            info["cat"] = category

    def mark(self, label: str) -> None:
        self.markers.append((len(self.events), label))

    # ---- dispatch ----------------------------------------------------------------------
    def __torch_dispatch__(
        self, func: Any, types: tuple[type, ...], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # as a real one does; the fake one makes a new tensor
        out = func(*args, **(kwargs or {}))
        if self.muted:
            return out
        if func.namespace in COMM_NAMESPACES:
            self._log_collective(func, args)
        for t in tree_iter(out):
            if isinstance(t, torch.Tensor):
                self.number_of(t, str(func))
        return out

    def _log_collective(self, func: Any, args: tuple[Any, ...]) -> None:
        name = func._schema.name.split("::")[1]
        if name in ("wait_tensor", "barrier"):
            return
        tensors = [a for a in tree_iter(args) if isinstance(a, torch.Tensor)]
        kind, payload, dtype = collective(name, tensors)
        self.comms.append(dict(kind=kind, bytes=payload, group=group_size(args), dtype=short(dtype), phase=self.phase,
                               at=len(self.events)))

    # ---- patches -----------------------------------------------------------------------
    def __enter__(self) -> Self:
        from .hooks import install

        super().__enter__()
        install(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self._patches.close()
        super().__exit__(*exc)

    def patch(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replaces ``owner.name`` by ``make(original)`` until the tracker is left."""
        inherited = name not in vars(owner)
        old = getattr(owner, name)
        setattr(owner, name, make(old))
        self._patches.callback(lambda: delattr(owner, name) if inherited else setattr(owner, name, old))
