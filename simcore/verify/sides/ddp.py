"""QLoRA of transformers, PEFT and bitsandbytes on one GPU: two steps of real tensors, to the byte."""

from __future__ import annotations

from typing import Any, Final

from simcore.placement.plan import Placed
from simcore.results.report import Peak
from simcore.simulation.report import report
from simcore.simulation.simulation import Simulation
from simcore.verify.sides.engine import named, stepped
from simcore.verify.sides.found import Found, Tensor
from simcore.verify.sides.settings import TORCH_DTYPES, Settings
from simcore.verify.sides.side import Side

__all__ = ["SIDE"]

_KBIT: Final = "prepare_model_for_kbit_training"
_TOLD: Final = frozenset({
    "framework", "framework_version", "implementation", "model", "training.method", "training.seq_len",
    "training.recompute", "training.quantization.format", "training.quantization.double_quant",
    "training.precision.params", "training.optimizer.name", "training.optimizer.implementation", "training.lora.rank",
    "training.lora.target_modules", "training.lora.dtype", f"framework_options.{_KBIT}", "framework_options.autocast",
    # of what is not compared, or one sequence stands for all
    "training.micro_batch_size", "training.global_batch_size", "training.loss", "framework_options.sdpa_backend"})
_MOST_ELEMENTS: Final = 4_000_000_000
"""Parameters that a laptop packs in a minute or two."""


def _case(settings: Settings, rank: int) -> dict[str, Any]:
    job, training = settings.job, settings.job.scenario.training
    settings.expect("training.method", training.method, ("qlora",))
    settings.expect("implementation", job.graph.implementation, ("hf",))
    settings.expect("training.quantization.format", training.quantization.format, ("nf4",))
    settings.expect("training.recompute", training.recompute, ("none", "full"))
    settings.expect("training.optimizer.name", settings["training.optimizer.name"], ("adamw",))
    kernel = settings["training.optimizer.implementation"]
    settings.expect("training.optimizer.implementation", kernel, ("foreach", "fused"))
    settings.expect(f"framework_options.{_KBIT}", settings.option(_KBIT), (None, True, False))
    kbit, autocast = bool(settings.option(_KBIT)), settings.option("autocast")
    settings.expect("training.precision.params", settings["training.precision.params"], ("fp32" if kbit else "bf16",))
    if isinstance(training.lora.target_modules, str):
        raise settings.not_told("training.lora.target_modules", training.lora.target_modules)
    if job.has_experts:
        raise settings.not_told("model", "with experts under QLoRA")
    if job.graph.count() > _MOST_ELEMENTS:
        raise settings.not_told("model", f"of {job.graph.count():,} parameters, which are packed here: give it fewer "
                                "--layers, or a smaller model of the family")
    return {"fields": settings.fields(), "double_quant": training.quantization.double_quant,
            "targets": list(training.lora.target_modules), "rank": training.lora.rank,
            "adapters": TORCH_DTYPES[_adapters(settings)], "kbit": kbit,
            "autocast": kbit if autocast is None else bool(autocast), "recompute": training.recompute == "full",
            "optimizer": {"fused": True} if kernel == "fused" else {"foreach": True}, "tokens": training.seq_len}


def _adapters(settings: Settings) -> str:
    """Type in which adapters are stored, as the engine places them."""
    job = settings.job
    spec = next(spec for specs in job.graph.tensors for spec in specs if spec.module == "adapter")
    return settings.framework.policy(spec).at_rest.dtype


def _ours(simulation: Simulation) -> Found:
    """A packed weight counts as the bytes in which it is stored; what beside tensors only a GPU has is left out."""
    stepped(simulation)
    (plan,), (rank,) = simulation.plans, report(simulation, series=False).ranks
    tensors = tuple(_tensor(plan.graph.layers[layer].path, placed) for layer in plan.layers
                    for placed in plan.of_layer(layer) if placed.spec.is_owned)
    assert isinstance(rank.peak, Peak)
    beside = rank.peak.by_category.get("workspace", 0) + rank.peak.by_category.get("buffer", 0)
    forward = max(rank.peak.by_phase[phase] for phase in ("forward", "loss"))
    return Found(tensors, None, {
        "storage": sum(one.params_bytes for one in rank.at_rest.values()), "forward": forward - beside,
        "peak": rank.peak.allocated_bytes - beside, "end": (rank.end_bytes or 0) - beside}, {}, {})


def _tensor(layer: str, placed: Placed) -> Tensor:
    form = placed.policy.at_rest
    return Tensor(named(layer, placed), placed.local // form.values, form.dtype)


def _skipped(settings: Settings) -> dict[str, str]:
    return {"collectives": "one GPU sends nothing"}


SIDE: Final = Side("QLoRA by transformers, PEFT and bitsandbytes", "qlora", ("torch", "transformers", "adapters"),
                   _TOLD, _case, _ours, _skipped, most_tokens=64)
