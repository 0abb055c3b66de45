"""One rank of a Megatron-Core layout: real parallel_state, MambaModel with the TE layer spec, Megatron-Bridge LoRA,
DDP gradient buffers and the range map of the distributed optimizer.  Transformer Engine is replaced by ``te_stub``.

Case keys: world, rank, tp, pp, cp, ep, etp, sp, first, last, kv_groups, grad_fp32, lora (rank), target_modules,
exclude_modules, share_expert_adapters, normalize_moe_lora.
"""

from __future__ import annotations

import collections
import logging
import os
import warnings
from typing import Any

from . import te_stub

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
te_stub.install()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state as ps  # noqa: E402
from megatron.core.activations import squared_relu  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.models.mamba import MambaModel  # noqa: E402
from megatron.core.models.mamba.mamba_layer_specs import mamba_stack_spec  # noqa: E402
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from .nano import NANO, PATTERN  # noqa: E402

Case = dict[str, Any]
BRIDGE_OPTIONS = ("share_expert_adapters", "exclude_modules", "experts_shared_outer_loras", "normalize_moe_lora")


def component(name: str) -> str:
    if "adapter" in name or ".linear_in." in name or ".linear_out." in name:
        return "lora_expert" if ".experts." in name else "lora_dense"
    for part, keys in (
        ("shared_experts", ("shared_experts",)),
        ("routed_experts", (".experts.",)),
        ("router", (".router.",)),
        ("embeddings", ("embedding",)),
        ("lm_head", ("output_layer",)),
        ("norms", ("layer_norm_weight", "layernorm", "final_norm")),
        ("mamba", (".mixer.",)),
        ("attention", ("self_attention",)),
    ):
        if any(k in name for k in keys):
            return part
    return "other"


def without_numbers(name: str) -> str:
    return ".".join(q for q in name.split(".") if not q.isdigit())


def config(case: Case) -> TransformerConfig:
    n = NANO
    tp, pp, cp, ep = (case.get(k, 1) for k in ("tp", "pp", "cp", "ep"))
    etp = case.get("etp")
    return TransformerConfig(
        num_layers=len(PATTERN), hidden_size=n["hidden_size"], num_attention_heads=n["num_attention_heads"],
        num_query_groups=case.get("kv_groups", n["num_key_value_heads"]), kv_channels=n["head_dim"],
        ffn_hidden_size=n["moe_intermediate_size"], moe_ffn_hidden_size=n["moe_intermediate_size"],
        moe_shared_expert_intermediate_size=n["moe_shared_expert_intermediate_size"],
        num_moe_experts=n["n_routed_experts"], moe_router_topk=6, moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True, moe_router_dtype="fp32", moe_grouped_gemm=True,
        moe_token_dispatcher_type="alltoall",  # noqa: S106
        mamba_num_heads=n["mamba_num_heads"],
        mamba_head_dim=n["mamba_head_dim"], mamba_state_dim=n["ssm_state_size"], mamba_num_groups=n["n_groups"],
        activation_func=squared_relu, gated_linear_unit=False, normalization="RMSNorm", add_bias_linear=False,
        bias_dropout_fusion=False, bf16=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16,
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, context_parallel_size=cp,
        expert_model_parallel_size=ep, expert_tensor_parallel_size=etp if etp is not None else tp,
        sequence_parallel=case.get("sp", tp > 1), perform_initialization=False, hidden_dropout=0.0,
        attention_dropout=0.0, gradient_accumulation_fusion=False, is_hybrid_model=True,
        num_layers_in_first_pipeline_stage=case.get("first"), num_layers_in_last_pipeline_stage=case.get("last"),
    )  # fmt: skip


def build_model(cfg: TransformerConfig) -> MambaModel:
    with torch.device("meta"):
        return MambaModel(
            cfg, mamba_stack_spec=mamba_stack_spec, vocab_size=NANO["vocab_size"], max_sequence_length=8192,
            pre_process=ps.is_pipeline_first_stage(), post_process=ps.is_pipeline_last_stage(),
            hybrid_override_pattern=PATTERN, share_embeddings_and_output_weights=False,
            position_embedding_type="none", pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
        )  # fmt: skip


def apply_lora(model: MambaModel, case: Case) -> None:
    import megatron.bridge.peft.utils as bridge_utils
    from megatron.bridge.peft.lora import LoRA

    # newer Bridge broadcasts shared expert adapters over EP at build time; there is no data on meta
    adapter = bridge_utils.ParallelLinearAdapter
    for attr in dir(adapter):
        private = attr.startswith("_") and "shared_expert" in attr and "hooks" not in attr
        if private and ("broadcast" in attr or "sync" in attr):
            setattr(adapter, attr, lambda self, *a, **k: None)
    options = {k: case[k] for k in BRIDGE_OPTIONS if k in case}
    peft = LoRA(target_modules=case.get("target_modules", []), dim=case["lora"], alpha=32, **options)
    with torch.device("meta"):
        for p in model.parameters():
            p.requires_grad = False
        peft._walk_model(model, peft.transform)


def group_sizes() -> dict[str, int]:
    return {
        "dp": ps.get_data_parallel_world_size(),
        "dp_cp": ps.get_data_parallel_world_size(with_context_parallel=True),
        "tp": ps.get_tensor_model_parallel_world_size(),
        "pp": ps.get_pipeline_model_parallel_world_size(),
        "cp": ps.get_context_parallel_world_size(),
        "ep": ps.get_expert_model_parallel_world_size(),
        "etp": ps.get_expert_tensor_parallel_world_size(),
        "expert_dp": ps.get_expert_data_parallel_world_size(),
        "pp_rank": ps.get_pipeline_model_parallel_rank(),
        "tp_rank": ps.get_tensor_model_parallel_rank(),
        "ep_rank": ps.get_expert_model_parallel_rank(),
    }


def gradient_buffers(cfg: TransformerConfig, model: MambaModel, case: Case) -> dict[str, Any]:
    """The real buffers and, for each, how many elements the distributed optimizer gives to this rank."""
    ddp_cfg = DistributedDataParallelConfig(
        grad_reduce_in_fp32=case.get("grad_fp32", True), overlap_grad_reduce=True, overlap_param_gather=True,
        use_distributed_optimizer=True, check_for_nan_in_grad=False, average_in_collective=False,
    )  # fmt: skip
    try:
        ddp = DistributedDataParallel(cfg, ddp_cfg, model)
    except Exception as e:  # noqa: BLE001  (reported in the row, never hidden)
        return {"error": f"{type(e).__name__}: {e}"}
    out: dict[str, Any] = {}
    for tag, buffers in (("dense", ddp.buffers), ("expert", ddp.expert_parallel_buffers)):
        for i, b in enumerate(buffers):
            shard = 0
            for buckets in DistributedOptimizer._build_gbuf_range_map(b).values():
                for bucket in buckets:
                    ranges = [r["gbuf_local"] for r in bucket["param_map"].values()]
                    shard += sum(r.end - r.start for r in ranges)
            out[f"{tag}{i}"] = {
                "numel_padded": b.numel, "numel_unpadded": b.numel_unpadded, "n_buckets": len(b.buckets),
                "dp_size": b.data_parallel_world_size, "opt_shard_elems": shard,
                "grad_bytes": b.grad_data.numel() * b.grad_data.element_size(),
            }  # fmt: skip
    return out


def measure(case: Case) -> dict[str, Any]:
    world, rank = case["world"], case.get("rank", 0)
    os.environ.update(WORLD_SIZE=str(world), RANK=str(rank), LOCAL_RANK="0")
    dist.init_process_group(backend="fake", rank=rank, world_size=world, store=FakeStore())
    te_stub.use_dummy_rng()
    ps.initialize_model_parallel(
        tensor_model_parallel_size=case.get("tp", 1), pipeline_model_parallel_size=case.get("pp", 1),
        context_parallel_size=case.get("cp", 1), expert_model_parallel_size=case.get("ep", 1),
        expert_tensor_parallel_size=case.get("etp"), create_gloo_process_groups=False,
    )  # fmt: skip
    cfg = config(case)
    model = build_model(cfg)
    layer_types = "".join(str(getattr(t, "value", t)) for t in model.decoder.layer_type_list)
    model = model.bfloat16()  # what Float16Module does to the whole module

    lora_shapes: dict[str, Any] = {}
    lora_modules: collections.Counter = collections.Counter()
    if case.get("lora"):
        apply_lora(model, case)
    numel: collections.Counter = collections.Counter()
    dense = expert = 0
    for name, p in model.named_parameters():
        numel[component(name)] += p.numel()
        if ".adapter." in name:
            key = without_numbers(name)
            lora_modules[key] += 1
            lora_shapes.setdefault(key, {"local": list(p.shape)})
        if p.requires_grad and getattr(p, "allreduce", True):
            dense += p.numel()
        elif p.requires_grad:
            expert += p.numel()
    return {
        "case": case, "groups": group_sizes(), "layer_types": layer_types,
        "layer_counts": dict(collections.Counter(layer_types)),
        "local_bytes_bf16": {k: 2 * v for k, v in numel.items()}, "local_bytes_bf16_total": 2 * sum(numel.values()),
        "local_trainable_total": dense + expert, "trainable_dense": dense, "trainable_expert_parallel": expert,
        "lora_modules": dict(lora_modules), "lora_shapes": lora_shapes, "ddp": gradient_buffers(cfg, model, case),
    }  # fmt: skip
