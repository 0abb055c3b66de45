"""What torch.compile makes of a module: Inductor's own code, run over fake tensors.

AOTAutograd cuts the joint graph with the min-cut partitioner, and Inductor writes Python that allocates, calls kernels
and deletes. That code is run as it is: kernels and matrix products do nothing, what Inductor leaves to PyTorch runs on
fake tensors, every storage is logged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._functorch import partitioners
from torch._inductor import compile_fx, config
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import _symmetric_memory as symmetric

from .steps.tracker import Tracker

Compiler = Callable[..., Any]

config.fx_graph_cache = False
# attention without dropout draws nothing: its random state, of a few bytes, is not kept
partitioners.functionalize_rng_ops = lambda _joint, forward, backward, _symbols: (forward, backward)
WRITE = GraphLowering.codegen
INNER = compile_fx.compile_fx_inner


class Written(Exception):
    """Inductor has written its code; nothing is to be built."""


@dataclass
class Part:
    """Forward or backward: its graph, and the code that Inductor wrote for it."""

    graph: torch.fx.GraphModule
    names: list[str | None]
    """Outputs as the partitioner calls them, before Inductor's passes replace their nodes."""
    code: str = ""

    def inputs(self) -> dict[str, Any]:
        return {node.name: as_fake(node.meta["val"]) for node in self.graph.graph.nodes if node.op == "placeholder"}

    def outputs(self) -> list[Any]:
        return ends(self.graph)


def ends(graph: torch.fx.GraphModule) -> list[Any]:
    return list(next(node for node in graph.graph.nodes if node.op == "output").args[0])


def as_fake(meta: Any) -> Any:
    return torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype) if isinstance(meta, torch.Tensor) else meta


def backend(found: list[Part]) -> Compiler:
    """Inductor up to its code; what is called instead puts out fake tensors."""

    def inner(graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        part = Part(graph, [getattr(end, "name", None) for end in ends(graph)])
        found.append(part)

        def codegen(lowering: GraphLowering) -> Any:
            part.code = str(WRITE(lowering)[0].value)
            raise Written

        with mock.patch.object(GraphLowering, "codegen", codegen), contextlib.suppress(Exception):
            INNER(graph, inputs, **options)
        assert part.code, "Inductor wrote nothing"

        def run(_inputs: Any) -> Any:
            return [None if end is None else as_fake(end.meta["val"]) for end in part.outputs()]

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    return lambda graph, inputs: compile_fx.compile_fx(graph, inputs, inner_compile=inner)


class Kernels:
    """Matrix products into buffers that are there; grouped ones make theirs."""

    def _grouped_mm(self, x: torch.Tensor, other: torch.Tensor, offs: torch.Tensor, *_args: Any, **_names: Any,
                    ) -> torch.Tensor:
        rows = (offs.shape[0], x.shape[0]) if other.dim() == 2 else (x.shape[0],)
        return torch.empty(*rows, other.shape[-1], dtype=x.dtype)

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return nothing


def nothing(*_args: Any, **_names: Any) -> None:
    """A kernel, or a check of what it is given."""


def empty(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


def seen_as(x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0) -> torch.Tensor:
    return x.as_strided(size, stride, offset)


def gathered(shard: Any, others: list[Any], dim: int, group: Any, *, return_A: bool = True) -> Any:
    """`fused_all_gather_matmul` as on a GPU: what it allocates."""
    return symmetric._fused_all_gather_matmul_impl(
        nothing, shard, others, None, [{} for _ in others], [one.dtype for one in others], dim, group, return_A)


def gathered_in_fp8(shard: Any, others: list[Any], scale: Any, _scales: Any, dim: int, group: Any, _biases: Any,
                    _results: Any, dtypes: list[Any], _fast: Any) -> Any:
    """`fused_all_gather_scaled_matmul`."""
    return symmetric._fused_all_gather_matmul_impl(
        nothing, shard, others, scale, [{} for _ in others], dtypes, dim, group, True)


def scattered(x: Any, other: Any, operation: str, dim: int, group: Any) -> Any:
    """`fused_matmul_reduce_scatter`."""
    return symmetric._fused_matmul_reduce_scatter_impl(nothing, x, other, {}, x.dtype, operation, dim, group)


def scattered_in_fp8(x: Any, other: Any, scale: Any, _scale: Any, operation: str, dim: int, flat_dim: int, group: Any,
                     shape: list[int], _bias: Any, _result: Any, dtype: Any, _fast: Any = None) -> Any:
    """`fused_scaled_matmul_reduce_scatter`."""
    return symmetric._fused_scaled_matmul_reduce_scatter_impl(
        nothing, x, other, scale, {}, dtype, operation, dim, flat_dim, group, list(shape))


FUSED = SimpleNamespace(**{f"fused_{name}": SimpleNamespace(default=called) for name, called in (
    ("all_gather_matmul", gathered), ("all_gather_scaled_matmul", gathered_in_fp8),
    ("matmul_reduce_scatter", scattered), ("scaled_matmul_reduce_scatter", scattered_in_fp8))})
"""Products that torch runs in pieces beside their collective."""
SYMMETRIC: Mapping[str, Any] = {"symm_mem": FUSED}


def run(code: str, inputs: list[Any], tracker: Tracker, instead: Mapping[str, Any] = SYMMETRIC,
        ) -> tuple[list[Any], list[int]]:
    """Outputs, and signed bytes in order. `inputs` is emptied, as Inductor's callers do.

    `instead`: namespaces of torch.ops with what runs for their operators.
    """
    names: dict[str, Any] = {"__name__": "written"}
    for called in instead:
        code = code.replace(f"torch.ops.{called}.", f"{called}.")
    with mock.patch("torch._inductor.async_compile.AsyncCompile.cpp_pybinding", return_value=nothing):
        exec(compile(code, "written", "exec"), names)  # noqa: S102
    names |= {"extern_kernels": Kernels(), "assert_size_stride": nothing, "assert_alignment": nothing,
              "empty_strided_cpu": empty, "reinterpret_tensor": seen_as, **instead}  # fmt: skip
    start = len(tracker.events)
    outputs = names["call"](inputs)
    return list(outputs), [change for _, change in tracker.events[start:]]


def measured(step: Callable[[Compiler], None]) -> dict[str, Any]:
    """What is kept (inputs of the graph by name, products by dtype and shape), and the events of both passes.

    `step` runs forward and backward of what it compiles by the backend that it is given.
    """
    found: list[Part] = []
    with FakeTensorMode(allow_non_fake_inputs=True):
        step(backend(found))
        forward, backward = found
        tracker = Tracker()
        tracker.phase = "fwd"
        with tracker:
            given = backward.inputs() | forward.inputs()
            for tensor in given.values():
                if isinstance(tensor, torch.Tensor):
                    tracker.tag(tensor, "input")
            outputs, first = run(forward.code, [given[name] for name in forward.inputs()], tracker)
            made = {name: out for name, out in zip(forward.names, outputs, strict=True) if name is not None}
            asked = [made.get(name, given[name]) for name in backward.inputs()]
            kept = [[name, str(made[name].dtype).replace("torch.", ""), list(made[name].shape)]
                    for name in backward.inputs() if isinstance(made.get(name), torch.Tensor)]
            del outputs, made
            _, second = run(backward.code, asked, tracker)
    return {"kept": kept, "sections": [{"at": "forward", "events": first}, {"at": "backward", "events": second}]}
