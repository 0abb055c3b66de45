"""A decoder layer of nemo-automodel 0.7.0's dense models as `distributed.enable_compile` has it, alone.

`distributed/parallelizer.py` _apply_per_layer_compile calls `nn.Module.compile` on each layer; hooks of FSDP2 break the
graph before and behind `forward`, which is one graph. With activation checkpointing `self_attn` and `mlp` are wrapped
inside (ModelParallelizer, NO_REENTRANT). `hf`: layers are those of transformers. Over tp the plan is the model's own,
over a fake process group. Two halves of a rotated head are joined inside the kernel, as Inductor does on a GPU
(`_inductor/lowering.py`, cat: not on a CPU). The norm `torch_fp32` is an operator of Automodel's own that a compiler
does not see into: its Python runs, over a stand-in for the kernel of `F.rms_norm` that puts out what CUDA's does.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from nemo_automodel.components._peft.lora import PeftConfig, apply_lora_to_linear_modules
from nemo_automodel.components.distributed import parallelizer
from nemo_automodel.components.distributed.optimized_tp_plans import _parallelize_llama, _parallelize_qwen
from nemo_automodel.components.distributed.parallel_styles import translate_to_lora
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.common.utils import _float32_rms_norm_impl
from nemo_automodel.components.models.llama.model import LlamaForCausalLM
from nemo_automodel.components.models.qwen2.model import Qwen2ForCausalLM
from nemo_automodel.components.models.qwen3.model import Qwen3ForCausalLM
from torch import nn
from torch._inductor import config
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from . import inductor
from .inductor import Compiler

Case = dict[str, Any]
OWN: dict[str, Any] = {"llama": (LlamaForCausalLM, _parallelize_llama), "qwen2": (Qwen2ForCausalLM, _parallelize_qwen),
                       "qwen3": (Qwen3ForCausalLM, _parallelize_qwen)}


def fused_rms_norm(x: torch.Tensor, shape: list[int], _weight: Any, _eps: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rows = (*x.shape[: x.dim() - len(shape)], *[1] * len(shape))
    return x.new_empty(x.shape), x.new_empty(rows, dtype=torch.float32)


KERNELS = torch.library.Library("aten", "IMPL")
KERNELS.impl("_fused_rms_norm", fused_rms_norm, "CPU")
KERNELS.m.impl("_fused_rms_norm", "Meta", fused_rms_norm, False)
NORMS = {**inductor.SYMMETRIC, "nemo_automodel": SimpleNamespace(
    float32_rms_norm=SimpleNamespace(default=_float32_rms_norm_impl._init_fn))}


class Sent(TorchDispatchMode):
    """Collectives of one pass: kind and bytes that a rank gives."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name.startswith("_c10d_functional.") and "wait" not in name:
            self.found.append(f"{name.split('.')[1].strip('_')} {args[0].untyped_storage().nbytes()}")
        return func(*args, **(kwargs or {}))


def measured(case: Case) -> dict[str, Any]:
    """What is kept, the events of both passes and what they send."""
    sent: list[list[str]] = []

    def noted(*given: Any) -> Any:
        with Sent() as seen:
            out = plain(*given, NORMS)
        sent.append(seen.found)
        return out

    plain = inductor.run
    with config.patch(force_pointwise_cat=True), mock.patch.object(inductor, "run", noted):
        found = inductor.measured(layer(case))
    return found | {"sent": sent}


def model_of(case: Case) -> nn.Module:
    """The case's model of one layer on the meta device, with adapters where it has some."""
    torch.set_default_dtype(torch.bfloat16)
    fields = AutoConfig.for_model(case["family"], num_hidden_layers=1, vocab_size=1024, tie_word_embeddings=False,
                                  **case["fields"])
    fields._attn_implementation, fields.use_cache, fields.torch_dtype = "sdpa", False, torch.bfloat16
    backend = BackendConfig(attn="sdpa", linear="torch", rms_norm="torch_fp32", experts="torch_mm", dispatcher="torch",
                            enable_hf_state_dict_adapter=False)
    with torch.device("meta"):
        model: nn.Module = (AutoModelForCausalLM.from_config(fields, dtype=torch.bfloat16) if case.get("hf") else
                            OWN[case["family"]][0](fields, backend=backend)).train()
        if "lora" in case:
            apply_lora_to_linear_modules(model, PeftConfig(
                target_modules=[f"*{name}" for name in case["targets"]], use_triton=False, dim=case["lora"]))
    return model


def split(model: Any, case: Case) -> None:
    """The first rank of a tensor parallel group."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=case["tp"])
    mesh = init_device_mesh("cpu", (case["tp"],), mesh_dim_names=("tp",))
    plan = {name: translate_to_lora(style) for name, style in OWN[case["family"]][1](model, False).items()}
    parallelize_module(model, mesh, plan)
    if parallelizer._attention_is_head_sharded(plan):
        parallelizer._update_attention_head_counts_for_tp(model, case["tp"])
    parallelizer._patch_dtensor_spec_hash_for_symint()


def layer(case: Case) -> Callable[[Compiler], None]:
    """A step of one layer."""
    model: Any = model_of(case)
    if case.get("tp", 1) > 1:
        split(model, case)
    body, fields = model.model.layers[0], model.config
    if case.get("checkpoint"):
        for name in ("self_attn", "mlp"):
            setattr(body, name, checkpoint_wrapper(getattr(body, name), checkpoint_impl=CheckpointImpl.NO_REENTRANT))
    batch, seq, dim = case["batch"], case["seq"], case["fields"]["head_dim"]
    wide = torch.bfloat16 if case["family"] == "qwen3" or case.get("hf") else torch.float32

    def step(compiler: Compiler) -> None:
        body.to_empty(device="cpu")
        x = torch.empty(batch, seq, fields.hidden_size, requires_grad=True)
        tables = torch.empty(1, seq, dim, dtype=wide), torch.empty(1, seq, dim, dtype=wide)
        run = torch.compile(body, backend=compiler, fullgraph=True)
        run(x, attention_mask=None, position_embeddings=tables, position_ids=None).sum().backward()

    return step
