"""What torch.compile makes of a torchtitan block or of its loss: Inductor's own code, run over fake tensors.

torchtitan 0.2.2 compiles each block inside its checkpoint wrapper (`models/llama3/infra/parallelize.py`), which
`inductor.py` measures. A gathered fp8 weight is torchao's own tensor (torchao 0.18.0). Asynchronous tensor parallelism
is Inductor's own pass, whose fused operators allocate by torch's own code; copies between GPUs do nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch._inductor import config
from torch.distributed import _symmetric_memory as symmetric
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from . import inductor, titan
from .inductor import Compiler

Case = dict[str, Any]


def measured(case: Case) -> dict[str, Any]:
    """What is kept and the events of both passes, of a block or of the loss."""
    with asynchronous() if case.get("async_tp") else contextlib.nullcontext():
        return inductor.measured(loss(case) if case.get("of") == "loss" else block(case))


@contextlib.contextmanager
def asynchronous() -> Iterator[None]:
    """Products and collectives of a tensor parallel group are fused, as if its memory were symmetric."""
    with (config.patch(_micro_pipeline_tp=True), symmetric._test_mode(),
          mock.patch("torch.distributed.is_nccl_available", return_value=True),
          mock.patch.object(symmetric, "_pipelined_multi_all_gather_and_consume", inductor.nothing),
          mock.patch.object(symmetric, "_pipelined_produce_and_all2all", inductor.nothing)):
        yield


def block(case: Case) -> Callable[[Compiler], None]:
    """A step of one block."""
    torch.set_default_dtype(torch.bfloat16)
    model = titan.build(case)
    if case.get("fp8"):
        in_fp8(model, case["fp8"])
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
    titan.parallelize.apply_tp(model, mesh, loss_parallel=True,
                               enable_float8_tensorwise_tp=case.get("fp8") in ("cast", "gathered"))


def in_fp8(model: nn.Module, how: str) -> None:
    """As `components/quantization/float8.py` converts: all linears but the output.

    `how`: "rows" for a scale a row, others for a scale a tensor.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    rows = how == "rows"
    config.emulate_precision_casts = rows
    convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name("rowwise" if rows else "tensorwise"),
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
