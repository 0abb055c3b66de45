"""Megatron-Core 0.16 with Megatron-Bridge 0.3: provider, model builders, DDP buffers, ranges of the optimizer."""

from __future__ import annotations

import re
from typing import Any, Final

from simcore.placement.plan import Placed
from simcore.simulation.simulation import Simulation
from simcore.verify.sides.engine import placed_rank
from simcore.verify.sides.found import Found
from simcore.verify.sides.settings import Settings
from simcore.verify.sides.side import Side

__all__ = ["SIDE"]

_FAMILIES: Final = ("deepseek_v2", "deepseek_v3", "gpt2", "gpt_oss", "llama", "mistral", "mixtral", "nemotron_h",
                    "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
"""Families of which the stored truth has layouts (tests/truth/draw_megatron.py)."""
_OPTIONS: Final = {"use_distributed_optimizer": "distributed", "moe_grouped_gemm": "grouped",
                   "pipeline_model_parallel_layout": "layout", "num_layers_in_first_pipeline_stage": "first",
                   "num_layers_in_last_pipeline_stage": "last",
                   "account_for_embedding_in_pipeline_split": "account_embedding",
                   "account_for_loss_in_pipeline_split": "account_loss"}
"""Options that the script is told, by the keys of its case."""
_TOLD: Final = frozenset({
    "framework", "framework_version", "implementation", "model", "mesh", "training.method",
    "training.sequence_parallel", "training.pipeline.virtual_stages", "training.precision.compute",
    "training.precision.grad_reduce", "training.precision.main_grads", "training.lora.rank",
    "training.lora.target_modules", "training.lora.exclude_modules",
    *(f"framework_options.{name}" for name in _OPTIONS),
    # of a step, which is not run
    "training.seq_len", "training.micro_batch_size", "training.global_batch_size", "training.recompute",
    "training.loss", "training.routing",
    *(f"framework_options.{name}" for name in (
        "overlap_grad_reduce", "overlap_param_gather", "moe_token_dispatcher_type", "attention_backend",
        "moe_permute_fusion", "bias_activation_fusion", "moe_router_dtype"))})
_AXES: Final = ("pp", "tp", "cp", "ep", "etp", "expert_dp", "dp_cp")


def _case(settings: Settings, rank: int) -> dict[str, Any]:
    scenario, mesh, fields = settings.job.scenario, settings.job.mesh, settings.fields()
    training, compute = scenario.training, settings["training.precision.compute"]
    settings.expect("model", fields["model_type"], _FAMILIES)
    settings.expect("training.method", training.method, ("full", "lora"))
    settings.expect("training.precision.compute", compute, ("bf16", "fp16"))
    settings.expect("framework_version", scenario.framework_version, ("auto", "core 0.16 + bridge 0.3"))
    lora, grads = training.lora, settings["training.precision.main_grads"]
    targets = {} if isinstance(lora.target_modules, str) else {
        "target_modules": list(lora.target_modules), "exclude_modules": list(lora.exclude_modules)}
    options = {theirs: settings.option(ours) for ours, theirs in _OPTIONS.items()}
    return {
        "fields": fields, "world": mesh.size, "rank": rank, "tp": mesh.tp, "pp": mesh.pp, "cp": mesh.cp, "ep": mesh.ep,
        "etp": mesh.etp, "dp_replicate": mesh.dp_replicate, "sp": settings.framework.sequence_parallel,
        "dtype": "float16" if compute == "fp16" else "bfloat16", "grad_fp32": grads == "fp32",
        **({"vpp": training.pipeline.virtual_stages} if training.pipeline.virtual_stages > 1 else {}),
        **{key: value for key, value in options.items() if value is not None},
        **({} if training.method == "full" else {"lora": lora.rank, **targets})}


def _name(layer: str, placed: Placed) -> str:
    """Megatron numbers the layers of its decoder; what is beside them is named from the root."""
    number = re.search(r"\.layers\.(\d+)$", layer)
    return f"decoder.layers.{number[1]}.{placed.spec.name}" if number else placed.spec.name


def _ours(simulation: Simulation) -> Found:
    return placed_rank(simulation, _name, _AXES, ("gradients", "optimizer"))


def _skipped(settings: Settings) -> dict[str, str]:
    return {"collectives": "Megatron's builders are run, and no step: its layers need TransformerEngine's kernels",
            "peak": "no step is run"}


SIDE: Final = Side("Megatron-Core with Bridge", "megatron_rank", ("torch", "transformers", "adapters", "megatron"),
                   _TOLD, _case, _ours, _skipped)
