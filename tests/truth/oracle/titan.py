"""torchtitan's own Llama 3 and Qwen3 (0.2.2) under its own FSDP2, tensor parallel and checkpointing, on fake tensors.

Stand-ins: the fused RMSNorm gets a CPU kernel that allocates what CUDA's does (output and fp32 rstd; its autograd
formula is PyTorch's own), and per-op checkpointing saves the CPU flash kernel as it does the CUDA ones. Modules that
torchtitan imports and never calls here (Triton kernels of its experts, TensorBoard) are empty.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import _CachedTorchDispatchMode

from .ring import CPU_FLASH, CPU_FLASH_BACKWARD
from .steps.setup import tag_shards, two_steps
from .steps.tracker import Tracker

Case = dict[str, Any]
KERNELS = torch.library.Library("aten", "IMPL")


def stub(name: str, **attributes: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(attributes)
    sys.modules[name] = module


def fused_rms_norm(x: torch.Tensor, shape: list[int], _weight: Any, _eps: Any) -> tuple[torch.Tensor, torch.Tensor]:
    rows = (*x.shape[: x.dim() - len(shape)], *[1] * len(shape))
    return torch.empty_like(x), x.new_empty(rows, dtype=torch.float32)


def permuted(counts: torch.Tensor, experts: int, _ranks: int, length: int, _alignment: int,
             ) -> tuple[torch.Tensor, torch.Tensor, None]:
    """What the Triton kernel puts out; its numbers for each expert are left out."""
    return torch.full((length,), -1, dtype=torch.int32), counts.new_empty(experts, dtype=torch.int32), None


def counted(x: torch.Tensor, bins: int, **_: Any) -> torch.Tensor:
    """`torch.histc`, which the CPU has for floating numbers alone."""
    return x.new_empty(bins)


torch.histc = counted
stub("torchtitan.models.moe.kernels", fill_indices_wrapper=None, generate_permute_indices=permuted)
stub("torch.utils.tensorboard", SummaryWriter=object)
KERNELS.impl("_fused_rms_norm", fused_rms_norm, "CPU")
KERNELS.m.impl("_fused_rms_norm", "Meta", fused_rms_norm, False)

from torchtitan.components.loss import cross_entropy_loss  # noqa: E402
from torchtitan.components.optimizer import build_optimizers_with_moe_load_balancing  # noqa: E402
from torchtitan.config.job_config import ActivationCheckpoint, Optimizer  # noqa: E402
from torchtitan.distributed import ParallelDims, parallel_dims  # noqa: E402
from torchtitan.distributed.activation_checkpoint import apply_ac  # noqa: E402
from torchtitan.distributed.context_parallel import (  # noqa: E402
    apply_cp_to_attention_module,
    prepare_context_parallel_input,
)
from torchtitan.distributed.expert_parallel import ExpertParallel  # noqa: E402
from torchtitan.models.deepseek_v3.infra import parallelize as deepseek_plan  # noqa: E402
from torchtitan.models.deepseek_v3.model.args import DeepSeekV3ModelArgs  # noqa: E402
from torchtitan.models.deepseek_v3.model.model import DeepSeekV3Model  # noqa: E402
from torchtitan.models.llama3.infra import parallelize  # noqa: E402
from torchtitan.models.llama3.model.args import TransformerModelArgs  # noqa: E402
from torchtitan.models.llama3.model.model import FeedForward, Transformer  # noqa: E402
from torchtitan.models.llama4.infra import parallelize as experts_plan  # noqa: E402
from torchtitan.models.llama4.model import model as llama4  # noqa: E402
from torchtitan.models.llama4.model.args import TransformerModelArgs as Llama4Args  # noqa: E402
from torchtitan.models.moe import MoE, MoEArgs  # noqa: E402
from torchtitan.models.qwen3.infra import parallelize as qwen3_plan  # noqa: E402
from torchtitan.models.qwen3.model.args import Qwen3ModelArgs  # noqa: E402
from torchtitan.models.qwen3.model.model import Qwen3Model  # noqa: E402

PART = DeviceMesh.__getitem__
DISPATCH, TO = ExpertParallel._token_dispatch, torch.Tensor.to
ROWS = [0]
TRACKERS: list[Tracker] = []


def dispatched(self: Any, mod: Any, inputs: Any, mesh: DeviceMesh) -> Any:
    """Upstream's, which is told how many rows there are. What the module keeps is so called in a replay too."""
    ROWS[0] = inputs[0].shape[0]
    made = DISPATCH(self, mod, inputs, mesh)
    for tracker in TRACKERS:
        tracker.tag(self.permuted_indices, "activation")
    return made


class OnHost(list[int]):
    """Rows for each rank, which fake tensors do not know, in memory of the host."""

    def tolist(self) -> list[int]:
        return list(self)


def on_the_host(self: DeviceMesh, names: Any) -> DeviceMesh:
    """Numbers of ranks are the host's."""
    for tracker in TRACKERS:
        tracker.muted += 1
    made = PART(self, names)
    for tracker in TRACKERS:
        tracker.muted -= 1
    return made


def to_host(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """As many rows for each rank."""
    if "non_blocking" in kwargs and args == (torch.device("cpu"),):
        return OnHost([ROWS[0] // self.shape[0]] * self.shape[0])
    return TO(self, *args, **kwargs)


REPLAYED = _CachedTorchDispatchMode.__torch_dispatch__


def replayed(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """As before torch 2.13, which raises where FSDP2 gathers experts in a replay and had not in forward (3427)."""
    if func in self.storage and self.func_counter[func] not in self.storage[func]:
        self.func_counter[func] += 1
        return func(*args, **(kwargs or {}))
    return REPLAYED(self, func, types, args, kwargs) if func in self.storage else func(*args, **(kwargs or {}))


_CachedTorchDispatchMode.__torch_dispatch__ = replayed
parallel_dims.device_type = "cpu"
ExpertParallel._token_dispatch = dispatched  # type: ignore[method-assign]
DeviceMesh.__getitem__ = on_the_host  # type: ignore[method-assign]
torch.Tensor.to = to_host  # type: ignore[method-assign,assignment]


def is_qwen3(case: Case) -> bool:
    return "head_dim" in case["model"]


def is_deepseek(case: Case) -> bool:
    return "kv_lora_rank" in case["model"]


def is_llama4(case: Case) -> bool:
    return "interleave_moe_layer_step" in case["model"]


def saved_operators(case: Case) -> set[Any]:
    """The model's own list, with the CPU's flash kernel."""
    plan = (deepseek_plan if is_deepseek(case) else qwen3_plan if is_qwen3(case) else experts_plan if is_llama4(case)
            else parallelize)
    return {*plan._op_sac_save_list, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default}


def experts_of(m: dict[str, Any]) -> MoEArgs:
    """As torchtitan's flavors of Qwen3-MoE, DeepSeek V3 16B (softmax) and 671B (sigmoid, groups of experts) have them.

    """
    if "num_experts" in m:
        return MoEArgs(num_experts=m["num_experts"], num_shared_experts=0, top_k=m["num_experts_per_tok"],
                       score_func="softmax", route_norm=True, score_before_experts=False)
    own = dict(score_func="softmax", route_norm=False)
    if m.get("n_group", 1) > 1:
        own = dict(score_func="sigmoid", route_norm=True, route_scale=2.5, num_expert_groups=m["n_group"],
                   num_limited_groups=m["topk_group"])
    return MoEArgs(num_experts=m["n_routed_experts"], num_shared_experts=m["n_shared_experts"],
                   top_k=m["num_experts_per_tok"], score_before_experts=False, **own)


def build_deepseek(case: Case) -> nn.Module:
    m = case["model"]
    args = DeepSeekV3ModelArgs(
            dim=m["hidden_size"], n_layers=m["num_hidden_layers"], n_heads=m["num_attention_heads"],
            vocab_size=m["vocab_size"], inter_dim=m["intermediate_size"], moe_inter_dim=m["moe_intermediate_size"],
            n_dense_layers=m["first_k_dense_replace"], moe_args=experts_of(m), q_lora_rank=m["q_lora_rank"] or 0,
            kv_lora_rank=m["kv_lora_rank"], qk_nope_head_dim=m["qk_nope_head_dim"],
            qk_rope_head_dim=m["qk_rope_head_dim"], v_head_dim=m["v_head_dim"], max_seq_len=case["seq"])
    args.moe_impl = "standard"  # type: ignore[attr-defined]  # what update_from_config sets
    with torch.device("meta"):
        return DeepSeekV3Model(args).train()


def build_llama4(case: Case) -> nn.Module:
    """Llama 4 with the widths of the case as such, not by torchtitan's rule."""
    m, experts = case["model"], MoEArgs(num_experts=case["model"]["num_local_experts"],
                                        top_k=case["model"]["num_experts_per_tok"])
    with torch.device("meta"):
        model = llama4.Transformer(Llama4Args(
            dim=m["hidden_size"], n_layers=m["num_hidden_layers"], n_heads=m["num_attention_heads"],
            n_kv_heads=m["num_key_value_heads"], vocab_size=m["vocab_size"], max_seq_len=case["seq"],
            moe_args=experts, every_n_layers_nope=m.get("every_n_layers_nope"),
            interleave_moe_layer_step=m["interleave_moe_layer_step"]))
        for block in model.layers.values():
            if block.moe_enabled:
                block.moe = MoE(experts, dim=m["hidden_size"], hidden_dim=m["intermediate_size"])
            else:
                block.feed_forward = llama4.FeedForward(m["hidden_size"], 3 * m["intermediate_size_mlp"] // 2, 1, None)
    return model.train()


def build(case: Case) -> nn.Module:
    model = made(case)
    if case.get("repeat_kv"):
        for block in model.layers.values():
            block.attention.forward = before("qwen3" if is_qwen3(case) else "llama3").__get__(block.attention)
    return model


@cache
def before(name: str) -> Any:
    """`Attention.forward` of a model of torchtitan 0.2.1, whose sources lie in the folder TITAN_0_2_1."""
    file = Path(os.environ["TITAN_0_2_1"]) / "models" / name / "model" / "model.py"
    spec = importlib.util.spec_from_file_location(f"torchtitan.models.{name}.model.before", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    with mock.patch("torchtitan.protocols.train_spec.ModelProtocol", type("ModelProtocol", (), {})):
        spec.loader.exec_module(module)
    return module.Attention.forward


def made(case: Case) -> nn.Module:
    m = case["model"]
    if is_deepseek(case):
        return build_deepseek(case)
    if is_llama4(case):
        return build_llama4(case)
    if is_qwen3(case):
        routed = dict(moe_enabled=True, moe_inter_dim=m["moe_intermediate_size"],
                      moe_args=experts_of(m)) if "num_experts" in m else {}
        with torch.device("meta"):
            return Qwen3Model(Qwen3ModelArgs(
                dim=m["hidden_size"], n_layers=m["num_hidden_layers"], n_heads=m["num_attention_heads"],
                n_kv_heads=m["num_key_value_heads"], vocab_size=m["vocab_size"], head_dim=m["head_dim"],
                hidden_dim=m["intermediate_size"], max_seq_len=case["seq"], **routed)).train()
    args = TransformerModelArgs(dim=m["hidden_size"], n_layers=m["num_hidden_layers"], n_heads=m["num_attention_heads"],
                                n_kv_heads=m["num_key_value_heads"], vocab_size=m["vocab_size"],
                                max_seq_len=case["seq"])
    with torch.device("meta"):
        model = Transformer(args)
        for block in model.layers.values():  # the width as such, not by torchtitan's rule of rounding
            block.feed_forward = FeedForward(args.dim, 3 * m["intermediate_size"] // 2, 1, None)
    model.train()
    return model


def by_heads(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[DTensor, ...]:
    """The CPU's flash kernel over heads that are split, as DTensor's rules for the CUDA kernels have it."""
    split = next(x for x in args if isinstance(x, DTensor))
    made = op(*(x.to_local() if isinstance(x, DTensor) else x for x in args), **kwargs)
    return tuple(DTensor.from_local(x, split.device_mesh, split.placements, run_check=False) for x in made)


DTensor._op_dispatcher._custom_op_handlers.update({CPU_FLASH: by_heads, CPU_FLASH_BACKWARD: by_heads})


def meshes(case: Case) -> tuple[DeviceMesh, DeviceMesh | None]:
    tp = case.get("tp", 1)
    if on_ranks(case) or case.get("dp_replicate", 1) > 1:
        found = dims_of(case)
        return found.get_mesh(["dp_replicate", "fsdp"] if found.dp_replicate_enabled else "fsdp"), (
            found.get_optional_mesh("tp"))
    if tp == 1:
        return init_device_mesh("cpu", (case["world"],), mesh_dim_names=("fsdp",)), None
    grid = init_device_mesh("cpu", (case["world"] // tp, tp), mesh_dim_names=("fsdp", "tp"))
    return grid["fsdp"], grid["tp"]


@cache
def context_mesh(world: int, cp: int, tp: int) -> DeviceMesh:
    """Of the ranks that share sequences; FSDP2's mesh takes them in."""
    return init_device_mesh("cpu", (world // cp // tp, cp, tp), mesh_dim_names=("dp_shard", "cp", "tp"))["cp"]


def checkpointed(model: nn.Module, case: Case) -> None:
    mode = case.get("checkpoint", "none")
    if mode != "none":
        option = {"mode": "full"} if mode == "full" else {"mode": "selective", "selective_ac_option": str(mode)}
        apply_ac(model, ActivationCheckpoint(**option, early_stop=case.get("early_stop", False)),
                 op_sac_save_list=saved_operators(case))


@cache
def dims(world: int, replicas: int, cp: int, tp: int, pp: int, ep: int, etp: int) -> ParallelDims:
    """torchtitan's own meshes."""
    return ParallelDims(replicas, world // replicas // cp // tp // pp, cp, tp, pp, ep, etp, world)


def dims_of(case: Case) -> ParallelDims:
    return dims(case["world"], *(case.get(name, 1) for name in ("dp_replicate", "cp", "tp", "pp", "ep", "etp")))


def on_ranks(case: Case) -> bool:
    """Experts are on several ranks, or their matrices are."""
    experts = "num_experts" in case["model"] or is_deepseek(case) or is_llama4(case)
    return case.get("ep", 1) > 1 or (experts and case.get("tp", 1) > 1)


def put_on_ranks(model: nn.Module, case: Case) -> dict[str, Any]:
    """`apply_moe_ep_tp`, and what `apply_fsdp` is told of experts that are on an axis of their own."""
    found = dims_of(case)
    experts_plan.apply_moe_ep_tp(model, tp_mesh=found.get_optional_mesh("tp"), ep_mesh=found.get_optional_mesh("ep"),
                                 etp_mesh=found.get_optional_mesh("etp"),
                                 ep_etp_mesh=found.get_optional_mesh(["ep", "etp"]))
    names = ["dp_replicate", "efsdp"] if found.dp_replicate_enabled else ["efsdp"]
    return {"ep_degree": found.ep, "edp_mesh": found.get_optional_mesh(names),
            "gradient_divide_factor": found.fsdp_gradient_divide_factor}


def wrap(model: nn.Module, case: Case, stage_mesh: DeviceMesh | None = None) -> None:
    """The order of `parallelize_llama` and `parallelize_qwen3`: tensor parallel, checkpoints, FSDP2."""
    dp_mesh, tp_mesh = meshes(case) if stage_mesh is None else (stage_mesh, None)
    split_loss = not case.get("disable_loss_parallel", False)
    plan = experts_plan if is_qwen3(case) or is_deepseek(case) or is_llama4(case) else parallelize
    if tp_mesh is not None and is_deepseek(case):
        deepseek_plan.apply_non_moe_tp(model, tp_mesh, loss_parallel=split_loss, enable_float8_tensorwise_tp=False,
                                       cp_enabled=False)
    elif tp_mesh is not None and is_qwen3(case):
        qwen3_plan.apply_non_moe_tp(model, tp_mesh, loss_parallel=split_loss, enable_float8_tensorwise_tp=False,
                                    enable_async_tp=False, cp_enabled=False)
    elif tp_mesh is not None and is_llama4(case):
        experts_plan.apply_non_moe_tp(model, tp_mesh, loss_parallel=split_loss, enable_float8_tensorwise_tp=False)
    elif tp_mesh is not None:
        parallelize.apply_tp(model, tp_mesh, loss_parallel=split_loss, enable_float8_tensorwise_tp=False)
    if case.get("cp", 1) > 1:
        apply_cp_to_attention_module([block.attention.inner_attention for block in model.layers.values()],
                                     context_mesh(case["world"], case["cp"], case.get("tp", 1)), "sdpa")
    routed = put_on_ranks(model, case) if on_ranks(case) else {}
    checkpointed(model, case)
    compute = getattr(torch, {"bf16": "bfloat16", "fp32": "float32"}[case.get("compute", "bf16")])
    plan.apply_fsdp(model, dp_mesh, param_dtype=compute, reduce_dtype=torch.float32, pp_enabled=stage_mesh is not None,
                     reshard_after_forward_policy=case.get("reshard", "default"), **routed)


def micro_step(model: nn.Module, case: Case, tr: Tracker) -> None:
    shape = (case.get("batch", 1), case["seq"])
    tr.phase = "fwd"
    ids, labels = (torch.randint(0, case["model"]["vocab_size"], shape) for _ in range(2))
    whole, more = (ids, labels), dict[str, Any]()
    if case.get("cp", 1) > 1:
        mesh = context_mesh(case["world"], case["cp"], case.get("tp", 1))
        ids, labels, more = prepare_context_parallel_input(ids, labels, more, mesh, torch.device("cpu"))
    for tensor in (*whole, ids, labels, *more.values()):
        tr.tag(tensor, "input")
    parallel = case.get("tp", 1) > 1 and not case.get("disable_loss_parallel", False)
    with loss_parallel() if parallel else contextlib.nullcontext():
        tr.mark("fwd:begin")
        pred = model(ids, **more)
        loss = cross_entropy_loss(pred, labels) / 1000.0
        del pred
        tr.mark("fwd:end")
        tag_shards(tr, model)
        tr.phase, tr.layer = "bwd", "loss"
        tr.mark("bwd:begin")
        loss.backward()
    del loss, ids, labels, whole, more
    gc.collect()
    tr.mark("bwd:end")


def logged(case: Case) -> tuple[Tracker, dict[str, tuple[int, ...]]]:
    """The log of two steps, and the local shape of every parameter."""
    dist.init_process_group("fake", store=FakeStore(), rank=case.get("rank", 0), world_size=case["world"])
    model = build(case)
    wrap(model, case)
    tr = Tracker()
    TRACKERS.append(tr)
    with FakeTensorMode(allow_non_fake_inputs=True), tr:
        model.to_empty(device="cpu")
        gc.collect()
        for b in model.buffers():
            tr.tag(b, "buffer")
        shapes = two_steps(model, tr, lambda: micro_step(model, case, tr))
        if (is_deepseek(case) or is_llama4(case)) and case.get("ep", 1) > 1:
            balance(model, case, tr)
        return tr, shapes


def balance(model: nn.Module, case: Case, tr: Tracker) -> None:
    """Collectives of torchtitan's optimizer before a step, which balance its routers."""
    tr.phase = "opt"
    made = build_optimizers_with_moe_load_balancing([model], Optimizer(), dims_of(case))
    tr.mark("balance:begin")
    for hook in made._optimizer_step_pre_hooks.values():
        hook(made, (), {})
