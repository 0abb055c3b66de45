"""What torch.compile makes of a torchtitan block or of its loss: Inductor's own code, run over fake tensors.

torchtitan 0.2.2 compiles each block inside its checkpoint wrapper (`models/llama3/infra/parallelize.py`), AOTAutograd
cuts the joint graph with the min-cut partitioner, and Inductor writes Python that allocates, calls kernels and deletes.
That code is run as it is: kernels and matrix products do nothing, what Inductor leaves to PyTorch runs on fake tensors,
every storage is logged. A gathered fp8 weight is torchao's own tensor (torchao 0.18.0).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch._functorch import partitioners
from torch._inductor import compile_fx, config
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from . import titan
from .steps.tracker import Tracker

Case = dict[str, Any]
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
    code: str = ""

    def inputs(self) -> dict[str, Any]:
        return {node.name: as_fake(node.meta["val"]) for node in self.graph.graph.nodes if node.op == "placeholder"}

    def outputs(self) -> list[Any]:
        ends = next(node for node in self.graph.graph.nodes if node.op == "output").args[0]
        return list(ends)


def as_fake(meta: Any) -> Any:
    return torch.empty_strided(meta.shape, meta.stride(), dtype=meta.dtype) if isinstance(meta, torch.Tensor) else meta


def backend(found: list[Part]) -> Compiler:
    """Inductor up to its code; what is called instead puts out fake tensors."""

    def inner(graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        part = Part(graph)
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
    """Matrix products into buffers that are there."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return nothing


def nothing(*_args: Any, **_names: Any) -> None:
    """A kernel, or a check of what it is given."""


def empty(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


def seen_as(x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0) -> torch.Tensor:
    return x.as_strided(size, stride, offset)


def run(code: str, inputs: list[Any], tracker: Tracker) -> tuple[list[Any], list[int]]:
    """Outputs, and signed bytes in order. `inputs` is emptied, as Inductor's callers do."""
    names: dict[str, Any] = {"__name__": "written"}
    with mock.patch("torch._inductor.async_compile.AsyncCompile.cpp_pybinding", return_value=nothing):
        exec(compile(code, "written", "exec"), names)  # noqa: S102
    names |= {"extern_kernels": Kernels(), "assert_size_stride": nothing, "assert_alignment": nothing,
              "empty_strided_cpu": empty, "reinterpret_tensor": seen_as}  # fmt: skip
    start = len(tracker.events)
    outputs = names["call"](inputs)
    return list(outputs), [change for _, change in tracker.events[start:]]


def measured(case: Case) -> dict[str, Any]:
    """What is kept (inputs of the graph by name, products by dtype and shape), and the events of both passes."""
    step = loss(case) if case.get("of") == "loss" else block(case)
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
            made = {end.name: out for end, out in zip(forward.outputs(), outputs, strict=True) if end is not None}
            asked = [made.get(name, given[name]) for name in backward.inputs()]
            kept = [[name, str(made[name].dtype).replace("torch.", ""), list(made[name].shape)]
                    for name in backward.inputs() if isinstance(made.get(name), torch.Tensor)]
            del outputs, made
            _, second = run(backward.code, asked, tracker)
    return {"kept": kept, "sections": [{"at": "forward", "events": first}, {"at": "backward", "events": second}]}


def block(case: Case) -> Callable[[Compiler], None]:
    """A step of one block."""
    torch.set_default_dtype(torch.bfloat16)
    model = titan.build(case)
    if case.get("fp8"):
        in_fp8(model)
    if case.get("tp", 1) > 1:
        over_tp(model, case)
    titan.checkpointed(model, case)
    layer = model.layers["0"]
    batch, seq, hidden = case.get("batch", 1), case["seq"], case["model"]["hidden_size"]
    dim = case["model"].get("head_dim") or hidden // case["model"]["num_attention_heads"]

    def step(compiler: Compiler) -> None:
        layer.to_empty(device="cpu")
        if case.get("fp8") == "gathered":
            gather_in_fp8(layer)
        x = torch.empty(batch, seq // case.get("tp", 1), hidden, requires_grad=True)
        table = torch.empty(seq, 2 * dim) if titan.is_qwen3(case) else torch.empty(seq, dim // 2, dtype=torch.complex64)
        torch.compile(layer, backend=compiler, fullgraph=True)(x, table, None).sum().backward()

    return step


def over_tp(model: nn.Module, case: Case) -> None:
    """The first rank of a tensor parallel group; in fp8 as for a scale a tensor."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["tp"])
    mesh = init_device_mesh("cpu", (case["tp"],), mesh_dim_names=("tp",))
    titan.parallelize.apply_tp(model, mesh, loss_parallel=True, enable_float8_tensorwise_tp=bool(case.get("fp8")))


def in_fp8(model: nn.Module) -> None:
    """As `components/quantization/float8.py` converts: all linears but the output."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    convert_to_float8_training(model, config=Float8LinearConfig(),
                               module_filter_fn=lambda _module, name: "output" not in name)


def gather_in_fp8(layer: nn.Module) -> None:
    """Weights as FSDP2 unshards them: data of one byte and a scale (`float8/fsdp_utils.py`)."""
    from torchao.float8.float8_linear import Float8Linear
    from torchao.float8.float8_training_tensor import Float8TrainingTensor, GemmInputRole

    for module in layer.modules():
        if isinstance(module, Float8Linear):
            data = torch.empty(module.weight.shape, dtype=torch.float8_e4m3fn)
            scale = torch.empty((), dtype=torch.float32)
            module.weight = nn.Parameter(Float8TrainingTensor(data, scale, torch.bfloat16, module.linear_mm_config,
                                                              GemmInputRole.WEIGHT))


def loss(case: Case) -> Callable[[Compiler], None]:
    """A step of the loss."""
    def step(compiler: Compiler) -> None:
        shape = (case.get("batch", 1), case["seq"])
        logits = torch.empty(*shape, case["model"]["vocab_size"], dtype=torch.bfloat16, requires_grad=True)
        labels = torch.zeros(shape, dtype=torch.int64)
        (torch.compile(titan.cross_entropy_loss, backend=compiler)(logits, labels) / 1000.0).backward()

    return step
