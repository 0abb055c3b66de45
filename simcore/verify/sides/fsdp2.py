"""FSDP2 and HSDP of torch 2.13 around transformers' layers: whole steps on fake tensors, to the byte."""

from __future__ import annotations

from typing import Any, Final

from simcore.frameworks.common.transformers import DISPATCHED
from simcore.frameworks.fsdp2.split.mixtures import dispatches
from simcore.verify.sides.engine import whole_step
from simcore.verify.sides.settings import TORCH_DTYPES, Settings
from simcore.verify.sides.side import Side

__all__ = ["SIDE"]

_TOLD: Final = frozenset({
    "framework", "framework_version", "implementation", "model", "mesh.dp_replicate", "mesh.dp_shard", "mesh.ep",
    "training.method", "training.seq_len", "training.micro_batch_size", "training.global_batch_size",
    "training.recompute", "training.loss", "training.precision.params", "training.precision.compute",
    "training.precision.grad_reduce", "training.optimizer.name", "training.optimizer.implementation",
    "training.lora.rank", "training.lora.target_modules", "training.lora.dtype", "training.frozen",
    *(f"framework_options.{name}" for name in (
        "wrap", "sync_gradients", "reshard_after_forward", "set_last_reshard", "prefetch", "recompute_by",
        "set_is_last_backward", "optimizer_in_bwd", "experts"))})


_WRAPS: Final = {"separate_embedding_head": "titan", "separate_embedding": "embedding"}
"""The script's word by the value of `wrap`."""


def _case(settings: Settings, rank: int) -> dict[str, Any]:
    mesh, stored = settings.job.mesh, settings["training.precision.params"]
    scenario, compute, reduce = (settings.job.scenario, settings["training.precision.compute"],
                                 settings["training.precision.grad_reduce"])
    settings.expect("implementation", settings.job.graph.implementation, ("hf",))
    settings.expect("training.method", scenario.training.method, ("full", "lora"))
    settings.expect("training.recompute", scenario.training.recompute, ("none", "full"))
    settings.expect("training.loss", settings["training.loss"], ("hf", "hf_keep_logits"))
    settings.expect("framework_options.wrap", settings.option("wrap"),
                    (None, "layers_root", "separate_embedding_head", "separate_embedding"))
    return {
        "model": {"fields": settings.fields()}, "rank": rank, "world": mesh.size, "dp_replicate": mesh.dp_replicate,
        "ep": mesh.ep, "seq": scenario.training.seq_len, "batch": scenario.training.micro_batch_size,
        "grad_accum": scenario.num_microbatches, "store_dtype": TORCH_DTYPES[stored],
        "mp_param": None if compute == stored else TORCH_DTYPES[compute], "mp_reduce": TORCH_DTYPES[reduce],
        "optim": _optimizer(settings), "loss": "hf_drop_logits" if settings["training.loss"] == "hf" else "hf",
        "frozen": list(scenario.training.frozen), "lora": _lora(settings), **_options(settings)}


def _optimizer(settings: Settings) -> str:
    name, kind = settings["training.optimizer.name"], settings["training.optimizer.implementation"]
    settings.expect("training.optimizer.name", name, ("adamw", "sgd"))
    if name == "sgd":
        return "sgd"
    settings.expect("training.optimizer.implementation", kind, ("foreach", "fused", "for_loop"))
    return f"adamw_{kind}".replace("for_loop", "forloop")


def _lora(settings: Settings) -> dict[str, Any] | None:
    """Plain adapters in the type of the weights, or in one that is given."""
    if settings["training.method"] == "full":
        return None
    lora = settings.job.scenario.training.lora
    if isinstance(lora.target_modules, str):
        raise settings.not_told("training.lora.target_modules", lora.target_modules)
    return {"r": lora.rank, "targets": list(lora.target_modules), "dtype": TORCH_DTYPES.get(lora.dtype)}


def _options(settings: Settings) -> dict[str, Any]:
    option, recompute = settings.option, settings.job.scenario.training.recompute
    by = {"transformers": "hf"}.get(option("recompute_by"), "layer")
    experts = DISPATCHED if dispatches(settings.job) else option("experts") or "fully_shard"
    settings.expect("framework_options.experts", experts, ("fully_shard", "ignored"))
    return {
        "wrap": _WRAPS.get(option("wrap"), "layers_root"),
        "accum_sync": option("sync_gradients") or "last", "reshard": option("reshard_after_forward"),
        "set_last_reshard": option("set_last_reshard"), "prefetch": option("prefetch"),
        "ac": by if recompute == "full" else "none", "is_last": option("set_is_last_backward") or "every",
        "optim_in_bwd": bool(option("optimizer_in_bwd")),
        "optim_groups": "apart" if settings.framework.optimizer.groups_apart else "one",
        "ep_mode": "dtensor" if experts == "fully_shard" else "ignored"}


def _skipped(settings: Settings) -> dict[str, str]:
    if settings.job.compute == "fp32":
        return {"peak": "attention in fp32 is another kernel on a CPU than on a GPU"}
    return {}


SIDE: Final = Side("FSDP2 of torch", "fsdp2", ("torch", "transformers"), _TOLD, _case, whole_step, _skipped)
