"""NeMo Automodel 0.7: its mesh builder, model code or transformers', LoRA patcher, parallelizer and pipeline."""

from __future__ import annotations

import re
from typing import Any, Final

from simcore.placement.plan import Placed
from simcore.simulation.simulation import Simulation
from simcore.verify.sides.engine import named, placed_rank
from simcore.verify.sides.found import Found
from simcore.verify.sides.settings import TORCH_DTYPES, Settings
from simcore.verify.sides.side import Side

__all__ = ["SIDE"]

_FAMILIES: Final = ("deepseek_v3", "llama", "mixtral", "nemotron_h", "qwen2", "qwen3", "qwen3_moe")
"""Families of which the stored truth has layouts (tests/truth/draw_automodel.py)."""
_TOLD: Final = frozenset({
    "framework", "framework_version", "implementation", "model", "mesh", "training.method",
    "training.precision.params", "training.lora.rank", "training.lora.target_modules", "training.lora.exclude_modules",
    "framework_options.reshard_after_forward",
    # of a step, which is not run
    "training.seq_len", "training.micro_batch_size", "training.global_batch_size", "training.recompute",
    "training.loss", "training.precision.compute", "training.precision.grad_reduce",
    "training.optimizer.implementation", "training.routing", "framework_options.defer_fsdp_grad_sync",
    "framework_options.enable_fsdp2_prefetch", "framework_options.attn", "framework_options.sdpa_backend"})
_AXES: Final = ("pp", "dp_replicate", "dp_shard_cp", "cp", "tp", "ep", "expert_dp")


def _case(settings: Settings, rank: int) -> dict[str, Any]:
    scenario, mesh, fields = settings.job.scenario, settings.job.mesh, settings.fields()
    settings.expect("model", fields["model_type"], _FAMILIES)
    settings.expect("training.method", scenario.training.method, ("full", "lora"))
    settings.expect("training.optimizer.name", settings["training.optimizer.name"], ("adamw", "adam"))
    settings.expect("training.optimizer.implementation", settings["training.optimizer.implementation"],
                    ("foreach", "fused", "for_loop"))
    settings.expect("mesh.etp", mesh.etp, (1,))
    lora = scenario.training.lora
    given = {} if isinstance(lora.target_modules, str) else {"target_modules": list(lora.target_modules)}
    return {
        "fields": fields, "world": mesh.size, "rank": rank, "tp": mesh.tp, "pp": mesh.pp, "cp": mesh.cp, "ep": mesh.ep,
        "dp_replicate": mesh.dp_replicate if mesh.dp_replicate > 1 else None,
        "dtype": TORCH_DTYPES[settings["training.precision.params"]],
        "force_hf": settings.job.graph.implementation == "hf",
        "reshard_after_forward": settings.option("reshard_after_forward"),
        **({} if scenario.training.method == "full" else {
            "lora": lora.rank, "exclude_modules": list(lora.exclude_modules), **given})}


def _name(layer: str, placed: Placed) -> str:
    """Automodel's own models name what is beside their layers from the root."""
    return named(layer, placed) if re.search(r"\.layers\.\d+$", layer) else placed.spec.name


def _ours(simulation: Simulation) -> Found:
    naming = named if simulation.job.graph.implementation == "hf" else _name
    return placed_rank(simulation, naming, _AXES, ("storage", "gradients", "optimizer"))


def _skipped(settings: Settings) -> dict[str, str]:
    return {"collectives": "Automodel's parallelizer is run, and no step",
            "peak": "no step is run"}


SIDE: Final = Side("NeMo Automodel", "automodel_rank", ("torch", "transformers", "adapters", "automodel"), _TOLD,
                   _case, _ours, _skipped)
