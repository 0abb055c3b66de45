"""Recomputation under Megatron-Core, and the settings that it refuses (core 0.16.1 unless said otherwise)."""

from __future__ import annotations

from typing import Final

from simcore.inputs.training import Recompute
from simcore.models.blocks import LatentAttention, Mamba2, Mixer, Mlp, Moe, Mtp
from simcore.placement.job import Job

__all__ = ["assumptions", "check_groups", "checkpoint", "kept_whole", "replays", "together"]

MODULES: Final = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")

_OF_MAIN: Final = ("gdn_norm_out", "gdp_in_proj", "gdp_qkv", "mhc")
"""Modules that the main branch of 2026-08-22 has besides (transformer_config.py:1945)."""
_NEEDED: Final = {
    "mla_up_proj": ("is only supported with multi_latent_attention", "transformer_config.py:1218"),
    "moe_act": ("is only supported with moe_grouped_gemm", "transformer_config.py:1213"),
}
"""Names that core refuses without a module of the model. Every layer has norms and a core."""
_IDLE: Final = {
    "moe": ("no experts", "moe/moe_layer.py:153 alone reads it"),
    "shared_experts": ("no shared experts", "moe/moe_layer.py:158 alone reads it"),
    "mlp": ("no dense MLP", "transformer_layer.py:445: not a MoE layer"),
}
"""Names that do nothing without a module of the model: what it lacks, and what reads the name."""


def checkpoint(job: Job) -> str:
    """Returns what is recomputed: "none", "full", "uniform" (groups of layers), or modules, as "mlp,moe".

    IllegalLayout for modules that Megatron or the model does not have.
    """
    recompute = job.scenario.training.recompute
    if isinstance(recompute, str):
        return recompute
    if isinstance(recompute, Recompute):
        return _by_mode(job, recompute)
    unknown = [name for name in recompute if name not in MODULES]
    if unknown and job.scenario.framework_version.startswith("main") and set(unknown) <= set(_OF_MAIN):
        raise job.not_yet("training.recompute", f"recompute_modules {', '.join(unknown)}")
    if unknown:
        raise job.illegal("training.recompute", f"Invalid choices for recompute_modules: {', '.join(unknown)}. Allowed "
                          f"modules are: {', '.join(MODULES)}", "core 0.16.1 transformer_config.py:1208")
    blocks = [b.block for kind in job.graph.kinds for b in kind.branches]
    for name, (told, rule) in _NEEDED.items():
        if name in recompute and not any(_has(block, name) for block in blocks):
            raise job.illegal("training.recompute", f"{name} in recompute_modules {told}", f"core 0.16.1 {rule}")
    if "moe_act" in recompute and job.scenario.framework_options.get("moe_grouped_gemm") is False:
        told, rule = _NEEDED["moe_act"]
        raise job.illegal("training.recompute", f"moe_act in recompute_modules {told}", f"core 0.16.1 {rule}")
    return ",".join(name for name in recompute if name not in _idle(job)) or "none"


def _idle(job: Job) -> tuple[str, ...]:
    """Modules that are asked for, that the model lacks, and that core says nothing of."""
    recompute, blocks = job.scenario.training.recompute, [b.block for kind in job.graph.kinds for b in kind.branches]
    names = recompute if isinstance(recompute, tuple) else ()
    return tuple(name for name in _IDLE if name in names and not any(_has(block, name) for block in blocks))


def _has(block: Mixer, module: str) -> bool:
    if isinstance(block, Moe):
        return module in ("moe", "moe_act") or (module == "shared_experts" and block.shared_ffn > 0)
    return isinstance(block, LatentAttention if module == "mla_up_proj" else Mlp) and module in ("mla_up_proj", "mlp")


def _by_mode(job: Job, recompute: Recompute) -> str:
    """Granularity full: whole layers, in groups (uniform) or the first few of each chunk (block)."""
    if recompute.mode == "per_op":
        raise job.not_yet("training.recompute", "recompute per_op under megatron")
    if recompute.mode == "every":
        raise job.illegal("training.recompute.mode", "every: recompute_method is uniform or block",
                          "core 0.16.1 transformer_config.py:1164")
    if recompute.modules:
        raise job.illegal("training.recompute", "modules are recomputed with granularity selective, not in mode "
                          f"{recompute.mode}", "core 0.16.1 transformer_config.py:1196")
    return "uniform" if together(job) > 1 else "full"


def together(job: Job) -> int:
    """Returns the number of layers in a group that keeps only its input and is recomputed as one.

    1 unless the mode is uniform (transformer_block.py:532).
    """
    recompute = job.scenario.training.recompute
    return recompute.num_layers if isinstance(recompute, Recompute) and recompute.mode == "uniform" else 1


def replays(job: Job) -> bool:
    """Returns True with recompute_granularity full."""
    recompute = job.scenario.training.recompute
    return recompute == "full" or isinstance(recompute, Recompute)


def _check_frozen_input(job: Job) -> None:
    """Raises IllegalLayout for adapters of a hybrid whose layers are replayed (main; core 0.16.1 replays none).

    A checkpoint has a backward only if its input requires a gradient, and the output of a frozen embedding does not.
    """
    hybrid = job.graph.architecture.family == "nemotron_h" or any(
        isinstance(branch.block, Mamba2) for kind in job.graph.kinds for branch in kind.branches)
    is_main = job.scenario.framework_version.startswith("main")
    if job.scenario.training.method != "full" and replays(job) and hybrid and is_main:
        raise job.illegal("training.recompute", "element 0 of tensors does not require grad: a hybrid's layers run in "
                          "a checkpoint whose input, a frozen embedding's output, requires no gradient",
                          "Megatron-LM main core/models/hybrid/hybrid_block.py:360; Bridge main peft/recompute.py:75 "
                          "mends TransformerBlock alone")


def check_groups(job: Job, stages: tuple[tuple[int, ...], ...]) -> None:
    """Raises IllegalLayout if groups of layers do not divide a stage, or with multi-token prediction.

    Also for adapters of a hybrid whose layers are replayed (`_check_frozen_input`).

    `stages`: layer numbers, in the whole model, of each stage or chunk.
    """
    _check_frozen_input(job)
    size = together(job)
    if size > 1 and any(isinstance(kind.block, Mtp) for kind in job.graph.kinds):
        raise job.illegal("training.recompute", "recompute_num_layers must be 1 for MTP recompute",
                          "core 0.16.1 transformer/multi_token_prediction.py:848")
    for count in (len(_inner(job, stage)) for stage in stages):
        if count % size:
            raise job.illegal("training.recompute", f"groups of {size} layers do not divide the {count} of a stage: "
                              "index out of range", "core 0.16.1 transformer_block.py:539")


def kept_whole(job: Job, stages: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Returns the numbers of the layers that mode block does not recompute: those after the first few of each chunk.

    Numbers of the whole model; the first few are the scenario's `num_layers`, of transformer layers. Empty in other
    modes. `stages`: layer numbers of each chunk (transformer_block.py:549). Modules of multi-token prediction are never
    recomputed (multi_token_prediction.py:853).
    """
    recompute = job.scenario.training.recompute
    if not isinstance(recompute, Recompute) or recompute.mode != "block":
        return ()
    further = [layer.index for layer in job.graph.layers if isinstance(job.graph.kinds[layer.kind].block, Mtp)]
    return (*(layer for stage in stages for layer in _inner(job, stage)[recompute.num_layers:]), *further)


def _inner(job: Job, stage: tuple[int, ...]) -> list[int]:
    kinds, layers = job.graph.kinds, job.graph.layers
    return [layer for layer in stage if kinds[layers[layer].kind].block is None]


def assumptions(job: Job) -> tuple[tuple[str, str, str, str], ...]:
    """Returns assumptions about recomputation: (key, value, kind, source).

    Modules that are asked for and do nothing; and full recomputation of a hybrid model, which core 0.16.1 takes and
    does not do: the simulation does what the main branch does.
    """
    if idle := _idle(job):
        return tuple(("training.recompute", f"{name} has no effect: the model has {_IDLE[name][0]}", "derived",
                      f"core 0.16.1 {_IDLE[name][1]}") for name in idle)
    hybrid = any(isinstance(b.block, Mamba2) for kind in job.graph.kinds for b in kind.branches)
    if checkpoint(job) not in ("full", "uniform") or not hybrid or job.scenario.framework_version == "main 2026-08-22":
        return ()
    return (("training.recompute", "as the main branch does it", "assumed",
             "core 0.16.1 ssm/mamba_block.py: MambaStack.forward recomputes no layers"),)
