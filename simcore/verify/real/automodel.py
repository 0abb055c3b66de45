"""One rank of a NeMo Automodel layout: real mesh builder, LoRA patcher and EP + FSDP2 parallelizer, meta tensors.

Case keys: world, rank, ep, tp, pp, cp, dp_replicate, lora (rank, 0 = none), target_modules, exclude_modules, alpha,
dtype (bfloat16 | float32), dispatcher (torch | deepep), experts (torch | torch_mm), reshard_after_forward.
With pp > 1 the stage is built by the real ``AutoPipeline``.
"""

from __future__ import annotations

import collections
import logging
import os
import sys
import types
import warnings
from functools import partial
from typing import Any

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import nemo_automodel.components._peft.lora as peft_lora  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from nemo_automodel._transformers import infrastructure  # noqa: E402
from nemo_automodel._transformers.capabilities import attach_capabilities_and_validate  # noqa: E402
from nemo_automodel.components.distributed.config import FSDP2Config, MoEParallelizerConfig  # noqa: E402
from nemo_automodel.components.distributed.mesh import MeshContext, ParallelismSizes  # noqa: E402
from nemo_automodel.components.distributed.model_parallelizer import parallelize_model  # noqa: E402
from nemo_automodel.components.distributed.pipelining.config import PipelineConfig  # noqa: E402
from nemo_automodel.components.models.common import BackendConfig  # noqa: E402
from nemo_automodel.components.models.common.utils import prepare_frozen_parameters_for_sharding  # noqa: E402
from nemo_automodel.components.models.nemotron_v3.model import NemotronHForCausalLM  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from transformers.models.nemotron_h.configuration_nemotron_h import NemotronHConfig  # noqa: E402

from .nano import NANO, PATTERN  # noqa: E402

Case = dict[str, Any]

PARTS = (
    ("routed_experts", (".experts.",)),
    ("shared_experts", ("shared_experts",)),
    ("router", (".gate.",)),
    ("embeddings", ("embed_tokens",)),
    ("lm_head", ("lm_head",)),
)
MAMBA = ("in_proj", "out_proj", "conv1d", "_fp32_params", "mixer.norm")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


def component(name: str) -> str:
    if "lora_" in name:
        return "lora_expert" if ".experts." in name else "lora_dense"
    for part, keys in PARTS:
        if any(k in name for k in keys):
            return part
    if name.endswith("norm.weight") and ".mixer." not in name:
        return "norms"
    if any(k in name for k in MAMBA):
        return "mamba"
    return "attention" if any(k in name for k in ATTENTION) else "other"


def local_of(p: torch.Tensor) -> torch.Tensor:
    return p._local_tensor if isinstance(p, DTensor) else p


def short(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def build_model(case: Case) -> NemotronHForCausalLM:
    dtype = getattr(torch, case.get("dtype", "bfloat16"))
    cfg = NemotronHConfig(hybrid_override_pattern=PATTERN, **NANO)
    cfg.torch_dtype = dtype
    cfg.architectures = ["NemotronHForCausalLM"]
    dispatcher = case.get("dispatcher", "torch")
    backend = BackendConfig(
        attn="sdpa", linear="torch", rms_norm="torch_fp32", experts=case.get("experts", "torch_mm"),
        dispatcher=dispatcher, enable_hf_state_dict_adapter=False,
    )  # fmt: skip
    if dispatcher == "deepep":  # only the communication object is replaced; parameters are untouched
        from nemo_automodel.components.moe.experts import GroupedExpertsDeepEP

        GroupedExpertsDeepEP.init_token_dispatcher = lambda self, ep_mesh: None
    with torch.device("meta"):
        model = NemotronHForCausalLM(cfg, backend=backend)
    # what the loader does for a checkpoint of that dtype: all of it, except strict-fp32 names
    for n, p in model.named_parameters():
        keep = any(k in n for k in model._keep_in_fp32_modules_strict)
        p.data = p.data.to(torch.float32 if keep else dtype)
    return model


def apply_lora(model: torch.nn.Module, case: Case) -> None:
    cfg = peft_lora.PeftConfig(
        dim=case["lora"], alpha=case.get("alpha", 32), use_memory_efficient_lora=False,
        target_modules=case.get("target_modules", []), exclude_modules=case.get("exclude_modules", []),
    )  # fmt: skip
    with torch.device("meta"):
        peft_lora.apply_lora_to_linear_modules(model, cfg, skip_freeze=True)
    for n, p in model.named_parameters():
        p.requires_grad_("lora_" in n)


def build_mesh(case: Case, fsdp: FSDP2Config) -> MeshContext:
    split = ParallelismSizes(
        tp_size=case.get("tp", 1), pp_size=case.get("pp", 1), cp_size=case.get("cp", 1), ep_size=case.get("ep", 1),
        dp_replicate_size=case.get("dp_replicate"),
    )  # fmt: skip
    moe = MoEParallelizerConfig() if case.get("ep", 1) > 1 else None
    if case.get("cp", 1) > 1:  # context parallelism asks for a Transformer Engine class by name only
        stub = types.ModuleType("transformer_engine.pytorch.attention")
        stub.DotProductAttention = type("DotProductAttention", (), {})
        for m in ("transformer_engine", "transformer_engine.pytorch"):
            sys.modules.setdefault(m, types.ModuleType(m))
        sys.modules["transformer_engine.pytorch.attention"] = stub
    return MeshContext.build(fsdp, split, moe_parallel_config=moe, world_size=case["world"])


def loader_refusal(model: torch.nn.Module, ctx: MeshContext) -> str | None:
    """First complaint of the model loader about this mesh, before it parallelizes anything; None without one."""
    try:
        attach_capabilities_and_validate(model, ctx)
    except ValueError as e:
        lines = [x.strip(" -") for x in str(e).splitlines()]
        return f"ValueError: {lines[1] if len(lines) > 1 else lines[0]}"
    return None


def sizes(mesh: DeviceMesh) -> dict[str, int]:
    return dict(zip(mesh.mesh_dim_names or (), map(int, mesh.shape), strict=True))


def mesh_info(ctx: MeshContext) -> dict[str, Any]:
    out: dict[str, Any] = {"device_mesh": sizes(ctx.device_mesh)}
    if ctx.moe_mesh is not None:
        out["moe_mesh"] = sizes(ctx.moe_mesh)
        for dim in ("ep", "ep_shard"):
            out[f"{dim}_group"] = dist.get_process_group_ranks(ctx.moe_mesh[dim].get_group())
    return out


def sizes_of(parts: list[torch.nn.Module]) -> dict[str, Any]:
    nbytes, trainable, train_bytes, dtypes = (collections.Counter() for _ in range(4))
    storage = 0
    for part in parts:
        for n, p in part.named_parameters():
            local = local_of(p)
            size = local.numel() * local.element_size()
            nbytes[component(n)] += size
            storage += local.untyped_storage().nbytes()
            dtypes[short(p.dtype)] += local.numel()
            if p.requires_grad:
                trainable[component(n)] += local.numel()
                train_bytes[short(p.dtype)] += size
    return {
        "local_bytes": dict(nbytes), "local_bytes_total": sum(nbytes.values()), "local_storage_bytes_total": storage,
        "local_trainable_numel": dict(trainable), "local_trainable_bytes": dict(train_bytes),
        "local_dtypes_numel": dict(dtypes),
    }  # fmt: skip


def measure(case: Case) -> dict[str, Any]:
    world, rank = case["world"], case.get("rank", 0)
    os.environ.update(WORLD_SIZE=str(world), RANK=str(rank), LOCAL_RANK="0")
    dist.init_process_group(backend="fake", rank=rank, world_size=world, store=FakeStore())
    model = build_model(case)
    if case.get("pp", 1) > 1:
        return measure_stage(case, model)
    if case.get("lora"):
        apply_lora(model, case)
    lora_modules: collections.Counter = collections.Counter()
    for n, _ in model.named_parameters():
        if "lora_" in n and "_A" in n:
            lora_modules[".".join(q for q in n.split(".") if not q.isdigit())] += 1
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    fsdp = FSDP2Config(reshard_after_forward=case.get("reshard_after_forward"))
    ctx = build_mesh(case, fsdp)
    info = mesh_info(ctx)
    refusal = loader_refusal(model, ctx)
    if case.get("lora"):  # frozen weights are stored in the compute dtype
        compute = infrastructure._get_frozen_storage_compute_dtype(fsdp, ctx)
        prepare_frozen_parameters_for_sharding(model, compute)
    model = parallelize_model(model, ctx)
    return {
        "case": case, "mesh": info, "loader_error": refusal, "lora_modules": dict(lora_modules),
        "trainable_global_total": trainable,
        **sizes_of([model]),
    }  # fmt: skip


def measure_stage(case: Case, model: torch.nn.Module) -> dict[str, Any]:
    fsdp = FSDP2Config()
    ctx = build_mesh(case, fsdp)
    cfg = PipelineConfig(pp_microbatch_size=1, pp_batch_size=2 * case["pp"])
    pipe = infrastructure._instantiate_pipeline(cfg, ctx, torch.device("cpu"), fsdp)
    split = partial(infrastructure.parallelize_for_pp, mesh_context=ctx)
    pipe.build(model, loss_fn=lambda a, b: a.sum(), parallelize_fn=split)
    layers = [int(k) for part in pipe.parts for k in part.model.layers]
    return {
        "case": case, "moe_mesh": mesh_info(ctx).get("moe_mesh"), "layers": [min(layers), max(layers)],
        "pattern": "".join(PATTERN[i] for i in layers), **sizes_of(list(pipe.parts)),
    }  # fmt: skip
