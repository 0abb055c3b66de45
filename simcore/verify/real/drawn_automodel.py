"""One rank of a drawn NeMo Automodel layout, of any family that Automodel runs by its own code or by transformers'.

Built by Automodel's own `_init_model`, then in the loader's order: mesh, capability check, LoRA, storage dtype of
frozen weights, parallelizer (or `AutoPipeline`). Gradients and Adam's states are made on the meta device and read back.
Over a pipeline all stages are built: what one of them raises, the job raises.

Case keys beside those of `automodel.py`: fields, preset (`drawn.py`), force_hf.
"""

from __future__ import annotations

import collections
import os
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from nemo_automodel._transformers import infrastructure, model_init
from nemo_automodel._transformers.auto_model import NeMoAutoModelForCausalLM
from nemo_automodel.components.distributed.config import FSDP2Config
from nemo_automodel.components.distributed.model_parallelizer import parallelize_model
from nemo_automodel.components.distributed.pipelining.config import PipelineConfig
from nemo_automodel.components.models.common import BackendConfig
from nemo_automodel.components.models.common.utils import prepare_frozen_parameters_for_sharding
from nemo_automodel.components.models.deepseek_v4.config import DeepseekV4Config
from nemo_automodel.components.models.mimo_v2_flash.config import MiMoV2FlashConfig
from nemo_automodel.components.optim.optimizer import _trainable_params_or_groups
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import PretrainedConfig

from . import automodel as nano
from .drawn import Case, all_stages, component, configuration, fields_of

WORDS = (("_hc.", "residual_streams"), ("hc_head.", "residual_streams"), ("shared_expert", "shared_experts"),
         ("share_expert.", "shared_experts"), ("experts", "routed_experts"), (".gate.", "router"),
         ("lm_head", "lm_head"), ("embed", "embedding"),
         *((f"mixer.{part}_proj", "attention") for part in "qkvo"), ("mixer.up_proj", "mlp"),
         ("mixer.down_proj", "mlp"), ("mixer.", "mamba"), ("norm", "norms"), ("attn", "attention"), ("mlp", "mlp"))


_STEP = type("Step3p5Config", (PretrainedConfig,), {
    "model_type": "step3p5", "rms_norm_eps": 1e-5, "attention_bias": False, "max_position_embeddings": 4096,
    "rope_theta": 10000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}})
OWN = {"deepseek_v4": DeepseekV4Config, "mimo_v2_flash": MiMoV2FlashConfig, "step3p5": _STEP}
"""Configurations that transformers does not read as Automodel does. Step's published file brings a class, of which
those of its values stand here that the model reads and the file does not say."""
ARCHITECTURES = {"deepseek_v4": "DeepseekV4ForCausalLM", "mimo_v2_flash": "MiMoV2FlashForCausalLM",
                 "step3p5": "Step3p5ForCausalLM"}


def _own_configuration(case: Case) -> PretrainedConfig:
    fields = fields_of(case)
    family = fields.pop("model_type")
    if family in OWN_WORDS:
        fields |= OWN_WORDS[family](fields)
    made = OWN[family](**fields, architectures=[ARCHITECTURES[family]])
    made._attn_implementation = "sdpa"
    return made


def _words_of_mimo(fields: Case) -> Case:
    """Words of the published file for those that transformers makes of them."""
    count = fields["num_hidden_layers"]
    types = fields.pop("layer_types", None) or [
        "full_attention" if i == 0 or (i + 1) % 6 == 0 else "sliding_attention" for i in range(count)]
    sparse = fields.pop("mlp_layer_types", None) or ["dense", *["sparse"] * count][:count]
    return {"hybrid_layer_pattern": [int(one == "sliding_attention") for one in types],
            "moe_layer_freq": [int(one == "sparse") for one in sparse],
            "swa_num_attention_heads": fields["num_attention_heads"],
            "swa_num_key_value_heads": 2 * fields["num_key_value_heads"], "swa_head_dim": fields["head_dim"],
            "swa_v_head_dim": fields["v_head_dim"]}


OWN_WORDS = {"mimo_v2_flash": _words_of_mimo}
"""Functions that give a configuration of Automodel's the words that transformers' has others for, by family."""


def part_of(name: str) -> str:
    if "lora_" in name:
        return "expert_adapters" if ".experts.lora_" in name else "adapters"
    return component(name, WORDS)


def built(case: Case) -> torch.nn.Module:
    """The model as a checkpoint of the case's dtype is loaded: all of it, except strict-fp32 names."""
    dtype = getattr(torch, case.get("dtype", "bfloat16"))
    cfg = (_own_configuration if fields_of(case)["model_type"] in OWN else configuration)(case)
    cfg.torch_dtype = dtype
    attention = "te" if case.get("cp", 1) > 1 and cfg.model_type != "nemotron_h" else "sdpa"
    own = "flex" if cfg.model_type == "gpt_oss" else "sdpa"  # GPT-OSS takes flex or te alone
    backend = BackendConfig(attn=own, linear="torch", rms_norm="torch_fp32", experts="torch_mm", dispatcher="torch",
                            enable_hf_state_dict_adapter=False)
    torch.cuda.current_device = lambda: 0  # Qwen3-MoE names the device of its tables
    custom = {} if case.get("force_hf") or model_init.get_is_hf_model(cfg, False) else {"backend": backend}
    with torch.device("meta"):
        asked = "eager" if cfg.model_type == "gemma2" else "sdpa"  # SDPA does not keep scores below a cap
        _, model = model_init._init_model(NeMoAutoModelForCausalLM, cfg, asked, dtype, None,
                                          case.get("force_hf", False), **custom)
    if attention == "te" and custom:
        model.backend.attn = "te"  # what is installed with GPUs; no parameter depends on it
    strict = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    for name, p in model.named_parameters():
        p.data = p.data.to(torch.float32 if any(k in name for k in strict) else dtype)
    return model


def adapted(model: torch.nn.Module, case: Case) -> None:
    if not case.get("lora"):
        return
    given = {k: case[k] for k in ("target_modules", "exclude_modules") if k in case}
    nano.apply_lora(model, {**case, **given})


def states_of(parts: list[torch.nn.Module]) -> dict[str, int]:
    """Bytes of gradients and of what one step of Adam makes."""
    trained = [p for part in parts for p in _trainable_params_or_groups(part, [])]
    for p in trained:
        p.grad = torch.zeros_like(p)
    optimizer = torch.optim.Adam(trained, foreach=False)
    optimizer.step()
    made = [v for state in optimizer.state.values() for k, v in state.items() if k.startswith("exp_avg")]
    return {"grad_bytes": sum(map(size_of, (p.grad for p in trained))), "adam_bytes": sum(map(size_of, made))}


def size_of(tensor: torch.Tensor) -> int:
    local = nano.local_of(tensor)
    return local.numel() * local.element_size()


def found(parts: list[torch.nn.Module]) -> dict[str, Any]:
    """Bytes and elements that the rank holds, by component."""
    sizes: collections.Counter = collections.Counter()
    storage = trained = 0
    for part in parts:
        for name, p in part.named_parameters():
            sizes[part_of(name)] += size_of(p)
            storage += nano.local_of(p).untyped_storage().nbytes()
            trained += nano.local_of(p).numel() * p.requires_grad
    return {"bytes": {k: v for k, v in sizes.items() if v}, "params_bytes": sum(sizes.values()),
            "storage_bytes": storage, "trainable_local": trained, **states_of(parts)}


def placed(case: Case) -> dict[str, Any]:
    parts, refusal, _ = built_rank(case)
    return {"case": case, **found(parts), **({"loader_error": refusal} if refusal else {})}


def built_rank(case: Case) -> tuple[list[torch.nn.Module], str | None, Any]:
    """The rank's model, or its chunks of one; what the loader refuses of a layout that can be built; the meshes."""
    world, rank = case["world"], case.get("rank", 0)
    os.environ.update(WORLD_SIZE=str(world), RANK=str(rank), LOCAL_RANK="0")
    dist.init_process_group(backend="fake", rank=rank, world_size=world, store=FakeStore())
    fsdp = FSDP2Config(reshard_after_forward=case.get("reshard_after_forward"))
    ctx = nano.build_mesh(case, fsdp)
    model = built(case)
    refusal = nano.loader_refusal(model, ctx)
    try:
        parts = parallelized(case, model, ctx, fsdp)
    except Exception:
        if refusal is None:
            raise
        raise ValueError(refusal.removeprefix("ValueError: ")) from None  # the loader comes first
    return parts, refusal, ctx


def parallelized(case: Case, model: torch.nn.Module, ctx: Any, fsdp: FSDP2Config) -> list[torch.nn.Module]:
    adapted(model, case)
    if case.get("lora"):  # frozen weights are stored in the compute dtype
        prepare_frozen_parameters_for_sharding(model, infrastructure._get_frozen_storage_compute_dtype(fsdp, ctx))
    if case.get("pp", 1) == 1:
        return [parallelize_model(model, ctx)]
    cfg = PipelineConfig(pp_microbatch_size=1, pp_batch_size=2 * case["pp"])
    pipe = infrastructure._instantiate_pipeline(cfg, ctx, torch.device("cpu"), fsdp)
    rebind = partial(infrastructure._apply_trainability_policy, peft_enabled=bool(case.get("lora")),
                     freeze_config=None, strict=False)
    pipe.build(model, loss_fn=lambda a, b: a.sum(),
               parallelize_fn=partial(infrastructure.parallelize_for_pp, mesh_context=ctx,
                                      reapply_trainability=rebind))
    return list(pipe.parts)


def measure(case: Case) -> dict[str, Any]:
    """The case's rank; over a pipeline the other stages are built too."""
    return all_stages(placed, case)
