"""One rank of a drawn Megatron layout: megatron-bridge's `AutoBridge` makes the provider, megatron-core the model.

Families that Bridge 0.3.1 has no bridge for (gpt2, mixtral, qwen2_moe) are its `GPTModelProvider` with their fields;
Qwen3.5 is its provider of Qwen3-Next with the fields that Bridge 067f987d sets (`models/qwen/qwen35_bridge.py`).
Then, as `model_provider.get_model` does: chunks, LoRA, 16 bits, DDP buffers, and what the distributed optimizer gives
to this rank. A forward pass is begun in one layer of experts, whose check of sequence parallelism is made there.

Case keys beside those of `megatron.py`: fields, preset (`drawn.py`), dp_replicate, distributed (optimizer), dtype, vpp,
account_embedding, account_loss, layout (pipeline_model_parallel_layout), grouped (moe_grouped_gemm).
"""

from __future__ import annotations

import collections
import os
from typing import Any

from . import te_stub
from .drawn import ARCHITECTURES, Case, all_stages, component, configuration, fields_of

te_stub.install()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.bridge import AutoBridge  # noqa: E402
from megatron.bridge.models.gpt_provider import GPTModelProvider  # noqa: E402
from megatron.bridge.models.model_provider import ModelType, _create_model  # noqa: E402
from megatron.bridge.peft.lora import LoRA  # noqa: E402
from megatron.bridge.peft.utils import ParallelLinearAdapter  # noqa: E402
from megatron.core import parallel_state as ps  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from megatron.core.transformer.moe.moe_layer import MoELayer  # noqa: E402
from torch.nn.functional import gelu, silu  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

WORDS = (("shared_experts", "shared_experts"), ("experts.", "routed_experts"), ("router.", "router"),
         ("embedding", "embedding"), ("output_layer", "lm_head"), ("layer_norm_", "norms"), ("layernorm", "norms"),
         ("final_norm", "norms"), ("k_norm", "norms"), ("mixer.", "mamba"),
         *((f"self_attention.{name}", "delta_net") for name in (
             "in_proj", "out_proj", "conv1d", "out_norm", "A_log", "dt_bias")),
         ("self_attention", "attention"), ("mlp.", "mlp"))
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_SENDS = "_synchronize_shared_expert_parameters"
HYBRID_TARGETS = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "in_proj", "out_proj"]


def part_of(name: str) -> str:
    if ".adapter." in name:
        return "expert_adapters" if ".experts." in name else "adapters"
    return "mtp" if name.startswith("mtp.") else component(name, WORDS)


def unbridged(f: dict[str, Any]) -> GPTModelProvider:
    """The provider of a family without a bridge."""
    if f["model_type"] == "gpt2":
        return GPTModelProvider(
            num_layers=f["n_layer"], hidden_size=f["n_embd"], ffn_hidden_size=4 * f["n_embd"],
            num_attention_heads=f["n_head"], vocab_size=f["vocab_size"], seq_length=f["n_positions"],
            activation_func=gelu, share_embeddings_and_output_weights=f.get("tie_word_embeddings", True))
    moe: dict[str, Any] = dict(
        num_moe_experts=f.get("num_local_experts", f.get("num_experts")), moe_router_topk=f["num_experts_per_tok"],
        moe_ffn_hidden_size=f.get("moe_intermediate_size", f["intermediate_size"]), moe_grouped_gemm=True,
        moe_token_dispatcher_type="alltoall")  # noqa: S106
    if f["model_type"] == "qwen2_moe":
        moe |= dict(moe_shared_expert_intermediate_size=f["shared_expert_intermediate_size"],
                    moe_shared_expert_gate=True, add_qkv_bias=True)
    return GPTModelProvider(
        num_layers=f["num_hidden_layers"], hidden_size=f["hidden_size"], ffn_hidden_size=f["intermediate_size"],
        num_attention_heads=f["num_attention_heads"], num_query_groups=f["num_key_value_heads"],
        kv_channels=f.get("head_dim"), vocab_size=f["vocab_size"], normalization="RMSNorm", gated_linear_unit=True,
        activation_func=silu, add_bias_linear=False, position_embedding_type="rope",
        share_embeddings_and_output_weights=f.get("tie_word_embeddings", False), **moe)


def of_qwen35(f: dict[str, Any]) -> GPTModelProvider:
    """The language model of Qwen3.5, dense or with experts."""
    from megatron.bridge.models.qwen.qwen_provider import Qwen3NextModelProvider  # gone from Bridge's main

    names = ("linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads",
             "linear_num_value_heads")
    given: dict[str, Any] = {name: f[name] for name in names} | {
        name: f.get(field) for name, field in (
            ("num_moe_experts", "num_experts"), ("moe_router_topk", "num_experts_per_tok"),
            ("moe_ffn_hidden_size", "moe_intermediate_size"),
            ("moe_shared_expert_intermediate_size", "shared_expert_intermediate_size"))}
    return Qwen3NextModelProvider(
        num_layers=f["num_hidden_layers"], hidden_size=f["hidden_size"],
        ffn_hidden_size=f.get("intermediate_size") or f["moe_intermediate_size"],
        num_attention_heads=f["num_attention_heads"], num_query_groups=f["num_key_value_heads"],
        kv_channels=f["head_dim"], vocab_size=f["vocab_size"], moe_shared_expert_gate="num_experts" in f,
        share_embeddings_and_output_weights=f.get("tie_word_embeddings", False), **given)


def bridged(case: Case, fields: dict[str, Any]) -> Any:
    """The provider that Bridge makes of the configuration."""
    assert fields["model_type"] in ARCHITECTURES
    cfg = configuration(case)
    cfg.rope_theta = 10000.0  # where transformers 4 has it, which Bridge 0.3.1 reads
    if fields["model_type"] == "qwen3_next":
        cfg.partial_rotary_factor = fields.get("partial_rotary_factor", 0.25)  # the same
    if fields["model_type"] == "deepseek_v3":
        cfg.scoring_func = "sigmoid"  # published, and no field of transformers' configuration
    made = AutoBridge.from_hf_config(cfg).to_megatron_provider(load_weights=False)
    if "E" not in fields.get("hybrid_override_pattern", "E"):
        # transformers 5's configuration has experts where a published one says nothing of any
        for name in ("num_moe_experts", "moe_ffn_hidden_size", "moe_router_num_groups", "moe_router_group_topk"):
            setattr(made, name, None)
    if fields["model_type"] == "glm_moe_dsa":
        # as recipes/glm/gb200/glm5.py says: HybridEP and an overlap with it are made of CUDA's
        made.moe_shared_expert_overlap, made.moe_token_dispatcher_type = False, "alltoall"
        made.moe_flex_dispatcher_backend = None
    if "kv_lora_rank" in fields and fields.get("q_lora_rank") is None:
        made.q_lora_rank = None  # recipes/moonlight/moonlight_16b.py TEMPFIX: AutoBridge alone builds 512
    return made


def provider_of(case: Case) -> Any:
    """The family's provider, as a recipe fills it for this layout."""
    fields = fields_of(case)
    make = (unbridged if fields["model_type"] in ("gpt2", "mixtral", "qwen2_moe") else
            of_qwen35 if fields["model_type"].startswith("qwen3_5") else lambda fields: bridged(case, fields))
    made = make(fields)
    made.mtp_num_layers = fields.get("mtp_num_layers") or None
    dtype = DTYPES[case.get("dtype", "bfloat16")]
    tp, split = case.get("tp", 1), dict(
        tensor_model_parallel_size="tp", pipeline_model_parallel_size="pp", context_parallel_size="cp",
        expert_model_parallel_size="ep")
    given = {name: case.get(key, 1) for name, key in split.items()} | dict(
        expert_tensor_parallel_size=case.get("etp", tp), sequence_parallel=case.get("sp", tp > 1),
        num_layers_in_first_pipeline_stage=case.get("first"), num_layers_in_last_pipeline_stage=case.get("last"),
        account_for_embedding_in_pipeline_split=case.get("account_embedding", False),
        account_for_loss_in_pipeline_split=case.get("account_loss", False),
        virtual_pipeline_model_parallel_size=case.get("vpp"), perform_initialization=False,
        gradient_accumulation_fusion=False, moe_permute_fusion=False, bf16=dtype == torch.bfloat16,
        fp16=dtype == torch.float16, params_dtype=dtype, pipeline_dtype=dtype)
    if "layout" in case:
        given["pipeline_model_parallel_layout"] = case["layout"]
        given["virtual_pipeline_model_parallel_size"] = virtual_of(case)
    if "grouped" in case:
        given["moe_grouped_gemm"] = case["grouped"]
    for name, value in given.items():
        setattr(made, name, value)
    made.finalize()
    return made


def virtual_of(case: Case) -> int | None:
    """Chunks on each rank, where there are several."""
    chunks = len(case["layout"].split("|")) // case.get("pp", 1) if "layout" in case else case.get("vpp", 1)
    return chunks if chunks > 1 else None


def adapted(chunk: torch.nn.Module, case: Case) -> None:
    """Bridge's LoRA on a chunk: recipes of hybrids name Mamba's projections too."""
    given: dict[str, Any] = {"dim": case["lora"], "alpha": 32}
    if "target_modules" in case or "exclude_modules" in case:
        given |= {"target_modules": case.get("target_modules", []), "exclude_modules": case.get("exclude_modules", [])}
    elif fields_of(case)["model_type"] == "nemotron_h":
        given["target_modules"] = HYBRID_TARGETS
    peft = LoRA(**given)
    if _SENDS in vars(ParallelLinearAdapter):  # main alone, which refuses it on meta
        setattr(ParallelLinearAdapter, _SENDS, lambda _self: None)
    with torch.device("meta"):
        peft.freeze_model(chunk)
        try:
            peft._walk_model(chunk, peft.transform)
        except AttributeError as e:  # a module without a `config` was hit: a refusal, and no broken environment
            raise NotImplementedError(f"AttributeError: {e}") from None


def begun(chunks: list[torch.nn.Module]) -> None:
    """Raises the error of checks that the forward pass of a layer of experts makes before it does anything."""
    layer = next((m for chunk in chunks for m in chunk.modules() if isinstance(m, MoELayer)), None)
    if layer is None:
        return
    try:
        layer.train()(torch.empty(2, 1, layer.config.hidden_size, device="meta"))
    except ValueError as e:
        if "sequence parallelism" in str(e):
            raise
    except Exception:  # noqa: BLE001  (kernels are stand-ins: further on it cannot go)
        return


def buffers_of(chunks: list[torch.nn.Module], case: Case) -> dict[str, int]:
    """DDP's buffers, and the elements whose states the optimizer keeps on this rank."""
    distributed = case.get("distributed", True)
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=case.get("grad_fp32", True), overlap_grad_reduce=True, overlap_param_gather=distributed,
        use_distributed_optimizer=distributed, check_for_nan_in_grad=False, average_in_collective=False,
        num_distributed_optimizer_instances=case.get("dp_replicate", 1))
    out: collections.Counter = collections.Counter(main_grad_bytes=0, buffer_elems=0, optimizer_elems=0)
    for i, chunk in enumerate(chunks):
        made = DistributedDataParallel(chunk.config, ddp, chunk, disable_bucketing=i > 0)
        for b in made.buffers + made.expert_parallel_buffers:
            out["main_grad_bytes"] += b.grad_data.numel() * b.grad_data.element_size()
            out["buffer_elems"] += b.numel
            if not distributed:
                out["optimizer_elems"] += sum(p.numel() for p in b.params)
                continue
            for buckets in DistributedOptimizer._build_gbuf_range_map(b).values():
                ranges = [r["gbuf_local"] for bucket in buckets for r in bucket["param_map"].values()]
                out["optimizer_elems"] += sum(r.end - r.start for r in ranges)
    return dict(out)


def built_rank(case: Case) -> tuple[list[torch.nn.Module], Any]:
    """The rank's chunks in 16 bits, adapted, and their provider."""
    world, rank = case["world"], case.get("rank", 0)
    os.environ.update(WORLD_SIZE=str(world), RANK=str(rank), LOCAL_RANK="0")
    dist.init_process_group(backend="fake", rank=rank, world_size=world, store=FakeStore())
    te_stub.use_dummy_rng()
    ps.initialize_model_parallel(
        tensor_model_parallel_size=case.get("tp", 1), pipeline_model_parallel_size=case.get("pp", 1),
        virtual_pipeline_model_parallel_size=virtual_of(case), context_parallel_size=case.get("cp", 1),
        expert_model_parallel_size=case.get("ep", 1), expert_tensor_parallel_size=case.get("etp"),
        num_distributed_optimizer_instances=case.get("dp_replicate", 1), create_gloo_process_groups=False)
    provider = provider_of(case)
    provider._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    with torch.device("meta"):
        chunks = _create_model(provider, ModelType.encoder_or_decoder, provider._pg_collection)
    begun(chunks)
    if case.get("lora"):
        for chunk in chunks:
            adapted(chunk, case)
    return [chunk.to(provider.params_dtype) for chunk in chunks], provider  # as Float16Module casts the whole module


def placed(case: Case) -> dict[str, Any]:
    """Optimizer bytes: fp32 master and two moments of each element."""
    chunks, provider = built_rank(case)
    sizes: collections.Counter = collections.Counter()
    trained = 0
    for chunk in chunks:
        for name, p in chunk.named_parameters():
            copied = getattr(p, "shared_embedding", False)  # the last stage's, of a tied head
            sizes["embedding" if copied else part_of(name)] += p.numel() * p.element_size()
            trained += p.numel() * p.requires_grad
    buffers = buffers_of(chunks, case)
    out = {"case": case, "bytes": dict(sizes), "params_bytes": sum(sizes.values()), "trainable_local": trained,
           "main_grad_bytes": buffers["main_grad_bytes"], "buffer_elems": buffers["buffer_elems"],
           "optimizer_bytes": 12 * buffers["optimizer_elems"]}
    layers = sum(len(chunk.decoder.layers) for chunk in chunks)
    if getattr(provider, "hybrid_override_pattern", None) and layers * case.get("pp", 1) != provider.num_layers:
        out["dropped_layers"] = provider.num_layers - layers * case.get("pp", 1)
    return out


def measure(case: Case) -> dict[str, Any]:
    """The case's rank; over a pipeline the other stages are built too, and what one raises, the job raises."""
    return all_stages(placed, case)
