"""Modules that NeMo Automodel adapts, and the adapters' tensors (nemo-automodel 0.7.0).

Rules of `components/_peft/module_matcher.py`, `lora.py` and `lora_experts.py`:

 * patterns are compared with the *whole* module path: `q_proj` hits nothing in a layer, `*q_proj` does;
 * with targets, a linear layer or the routed experts' module is hit when one of them fits;
 * with exclusions only, every linear layer that none of them fits is hit, `lm_head` among them. Routed experts are no
   linear layer, so they get nothing;
 * with neither, the target is `*_proj`; with both, Automodel refuses;
 * routed experts get one adapter for each expert, in four 3-D tensors: input dimension before output dimension, as the
   experts themselves (`GroupedExpertsLoRA`). FSDP2 splits them on dimension 1, which is the rank in the two `B`.

The frozen norm, convolution and router are never hit: they are of other classes. Nor are the experts of transformers'
models, which are no linear layer and no `GroupedExperts`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.frameworks.adapter import LoraChoice
from simcore.frameworks.automodel.policies import NEMO_RL
from simcore.frameworks.common.lora import dropout_at
from simcore.models.blocks import LayerKind, Moe, Mtp
from simcore.models.pooled_blocks import PooledSound, PooledSoundEnd, PooledStem
from simcore.models.tensor import TensorSpec
from simcore.models.vision_blocks import TowerEnd, VisionPart
from simcore.placement.job import Draft, Job
from simcore.recording.options import LoraDropout

__all__ = ["DEFAULT_TARGETS", "EFFICIENT_OPTION", "adapters", "automodel_dropout", "matches", "runs_by_operators"]

EFFICIENT_OPTION: Final = "use_memory_efficient_lora"
DEFAULT_TARGETS: Final = ("*_proj",)
_WHERE: Final = "training.lora"
_OWN_EXPERTS: Final = "_projs"
_LAYERS: Final = "model.layers"
_LAYER: Final = f"{_LAYERS}.0."
_TOWERS: Final = {
    "nemotron_h_omni": ("vision_model.radio_model.model.blocks.0.", "vision_projector."),
    "gemma3": ("model.vision_tower.encoder.layers.0.", "model.multi_modal_projector."),
    "gemma4": ("model.vision_tower.encoder.layers.0.", "model.embed_vision."),
    "mistral3": ("model.vision_tower.transformer.layers.0.", "model.multi_modal_projector."),
    **dict.fromkeys(("qwen2_5_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe"),
                    ("model.visual.blocks.0.", "model.visual.merger.")),
}
"""Modules of a tower's layers and of its end, by the family of the model."""
_OTHERS: Final[Mapping[type, str]] = {PooledStem: "model.language_model.", PooledSound: "model.audio_tower.",
                                      PooledSoundEnd: "model.embed_audio."}
"""Modules of Gemma 4's parts besides, by their class."""
_NUMBERS: Final = 256
"""Layers whose numbers a pattern is tried with: twice as many as any model here has."""


def adapters(kind: LayerKind, specs: tuple[TensorSpec, ...], lora: LoraChoice) -> tuple[TensorSpec, ...]:
    """Returns the LoRA tensors of one kind of layer; `specs`: the tensors that the layer has without them.

    In registration order, with the shapes that they have before any cut; empty if no target fits. Raises IllegalLayout
    or InputError for targets that Automodel refuses, NotYet for those not modelled.
    """
    _refuse(lora)
    inside = _inside(kind)
    grouped = _grouped(specs, lora, inside)
    found: list[TensorSpec] = []
    for spec in specs:
        path = f"{inside}{spec.path}" if spec.path else "lm_head"  # transformers' head is not named in its layer
        if spec.module == "linear" and matches(path, "linear", lora):
            made = [*([_magnitude(spec)] * lora.use_dora),
                    *_pair(spec, lora.rank, plain=lora.release == NEMO_RL and kind.block is None)]
            tied = spec.tied and isinstance(kind.block, Mtp)
            trains = spec.trainable and not spec.rests  # no gradient comes out of an indexer of keys
            found += [replace(one, tied=tied, trainable=trains, rests=spec.rests) for one in made]
        elif spec in grouped[:1]:
            _refuse_dora_of_experts(lora)
            found += _expert_adapters(grouped, _rank_of_experts(kind, lora))
    return tuple(found)


def _inside(kind: LayerKind) -> str:
    """Path of a module in front of the names of its tensors, with a dot at the end; "" for parts around layers."""
    if isinstance(kind.block, VisionPart):
        if kind.family not in _TOWERS:
            raise NotYet(Problem(_WHERE, f"not yet: adapters of {kind.family}"))
        return _OTHERS.get(type(kind.block)) or _TOWERS[kind.family][isinstance(kind.block, TowerEnd)]
    return "" if kind.block is not None else _LAYER


def _grouped(specs: tuple[TensorSpec, ...], lora: LoraChoice, inside: str) -> tuple[TensorSpec, ...]:
    """The routed experts' tensors, if they get adapters."""
    grouped = tuple(spec for spec in specs if spec.module == "grouped" and spec.name.endswith(_OWN_EXPERTS))
    if not grouped or lora.expert_adapters == "none":
        return ()
    if matches(f"{inside}{grouped[0].path}", "grouped", lora):
        return grouped
    if lora.expert_adapters == "per_expert":
        raise IllegalLayout(Problem(_WHERE, f"expert_adapters: per_expert, but no target module fits "
                                    f"{inside}{grouped[0].path} (such as '*experts')",
                                    "_peft/module_matcher.py: without targets only linear layers are matched"))
    return ()


def _refuse(lora: LoraChoice) -> None:
    if lora.target_modules and lora.exclude_modules:
        raise IllegalLayout(Problem(_WHERE, "Automodel takes target_modules or exclude_modules, not both",
                                    "_peft/module_matcher.py: target_modules and exclude_modules are mutually "
                                    "exclusive. Please provide only one of them."))
    if lora.expert_adapters == "shared":
        raise IllegalLayout(Problem(_WHERE, "Automodel has no adapter that experts share",
                                    "_peft/lora_experts.py: GroupedExpertsLoRA holds one adapter for each expert"))
    for pattern in (*lora.target_modules, *lora.exclude_modules):
        if re.search(r"layers\.\d", pattern):
            raise _of_single_layers(pattern)


def _of_single_layers(pattern: str) -> NotYet:
    return NotYet(Problem(_WHERE, f"{pattern!r} names single layers; only patterns that treat all layers of a kind "
                          "alike are modelled"))


def matches(path: str, module: str, lora: LoraChoice) -> bool:
    """True if Automodel's matcher adapts the module with the dotted `path`; `module`: "linear" or "grouped" (experts).

    Targets are whole paths or patterns with `*`, by default `DEFAULT_TARGETS`; with excluded modules instead, all
    linears but those.
    """
    targets = lora.target_modules or (() if lora.exclude_modules else DEFAULT_TARGETS)
    if targets:
        return any(_fits(pattern, path) for pattern in targets)
    return module == "linear" and not any(_fits(pattern, path) for pattern in lora.exclude_modules)


@lru_cache(maxsize=4096)
def _fits(pattern: str, path: str) -> bool:
    """True if the pattern fits the path, whichever layer's number it has; NotYet where it depends on the number."""
    wild, behind = _wildcard(pattern), path.removeprefix(_LAYER)
    paths = [path] if behind == path else [f"{_LAYERS}.{number}.{behind}" for number in range(_NUMBERS)]
    found = {one == pattern or wild.match(one) is not None for one in paths}
    if len(found) > 1:
        raise _of_single_layers(pattern)
    return found.pop()


@lru_cache(maxsize=256)
def _wildcard(pattern: str) -> re.Pattern[str]:
    # `*` and `.*` both mean any text. After a whole segment (".layers", the start of the pattern) or an index (".1") a
    # `.*` keeps its dot, so that ".1.*" does not fit layer 10. Upstream escapes nothing: other dots fit any character.
    parts = re.split(r"(\.?\*)", pattern)
    text = ""
    for i, part in enumerate(parts):
        before = parts[i - 1] if i else ""
        whole_segment = before.startswith(".") or (i == 1 and before) or re.search(r"\.\d+$", before)
        if i % 2 == 0:
            text += part
        else:
            text += r"(\..*)?" if part == ".*" and whole_segment else "(.*)"
    try:
        return re.compile(f"^{text}$")
    except re.error as error:
        raise InputError(Problem(_WHERE, f"{pattern!r} is no pattern: {error}")) from None


def _pair(spec: TensorSpec, rank: int, *, plain: bool) -> list[TensorSpec]:
    """Both adapters; `plain`: three operators, and not one function (24b47e856 _peft/lora.py, LinearLoRA)."""
    (out_features, in_features), (out_dim, in_dim) = spec.shape, spec.dims
    at = f"{spec.name.removesuffix('weight')}lora_"
    first, second = ("a", "b") if plain else ("A", "B")
    return [
        TensorSpec(f"{at}{first}.weight", (rank, in_features), ("rank", in_dim), "adapters", "adapter",
                   copies=spec.copies),
        TensorSpec(f"{at}{second}.weight", (out_features, rank), (out_dim, "rank"), "adapters", "adapter",
                   copies=spec.copies),
    ]


def _magnitude(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(f"{spec.name.removesuffix('weight')}lora_magnitude", spec.shape[:1], spec.dims[:1], "adapters",
                      "adapter")


def _refuse_dora_of_experts(lora: LoraChoice) -> None:
    if lora.use_dora:
        raise IllegalLayout(Problem(_WHERE, "use_dora: DoRA is not supported for MoE expert modules in Automodel yet "
                                    "(name linears alone, or expert_adapters: none)",
                                    "0.7.0 _peft/lora.py apply_lora_to_linear_modules"))


def _rank_of_experts(kind: LayerKind, lora: LoraChoice) -> int:
    """The rank, or with moe_rank_scaling its part for each of a token's experts.

    0.7.0 `_peft/lora.py`, apply_lora_to_linear_modules. Raises IllegalLayout where nothing is left of it.
    """
    if not lora.moe_rank_scaling:
        return lora.rank
    chosen = next(branch.block.top_k for branch in kind.branches if isinstance(branch.block, Moe))
    if lora.rank < chosen:
        raise IllegalLayout(Problem(_WHERE, f"moe_rank_scaling: dim={lora.rank} // n_activated_experts={chosen} gives "
                                    "rank 0", "_peft/lora.py:655: increase dim to at least n_activated_experts"))
    return lora.rank // chosen


def _expert_adapters(grouped: tuple[TensorSpec, ...], rank: int) -> list[TensorSpec]:
    made = []
    for spec, name in zip(grouped, ("gate_and_up", "down"), strict=True):
        (experts, rows, columns), (_, row_dim, column_dim) = spec.shape, spec.dims
        at = f"{spec.path}.lora_{name}"
        made += [
            TensorSpec(f"{at}_A", (experts, rows, rank), ("experts", row_dim, "rank"), "expert_adapters", "adapter"),
            TensorSpec(f"{at}_B", (experts, rank, columns), ("experts", "rank", column_dim), "expert_adapters",
                       "adapter"),
        ]
    return made


def automodel_dropout(job: Draft) -> LoraDropout:
    """Returns the place of dropout around Automodel's adapters: "post" (its default) or "pre", "" without it.

    IllegalLayout for rank-stabilised scaling and for DoRA over packed weights, NotYet for DoRA over tp. Adapters of
    routed experts have no dropout (`_peft/lora.py`, patch_moe_module).
    """
    training, mesh = job.scenario.training, job.mesh
    if training.lora.use_dora and training.method == "qlora":
        raise job.illegal(f"{_WHERE}.use_dora", "DoRA is not supported for quantized linear layers (e.g., "
                          "BitsAndBytes)", "0.7.0 _peft/lora.py patch_linear_module")
    if (training.lora.use_dora or training.lora.dropout) and job.scenario.framework_version not in ("auto", "0.7.0"):
        key = "use_dora" if training.lora.use_dora else "dropout"
        raise job.not_yet(f"{_WHERE}.{key}", "dropout and DoRA of other releases of Automodel than 0.7.0")
    if training.lora.use_dora and mesh.tp > 1:
        raise job.not_yet(f"{_WHERE}.use_dora", "DoRA over tensor parallel weights under automodel")
    if training.lora.use_rslora:
        raise job.illegal(f"{_WHERE}.use_rslora", "Automodel's adapters scale by alpha / dim alone: multiply alpha by "
                          "the square root of rank", "0.7.0 _peft/lora.py PeftConfig, LinearLoRA._init_adapter")
    return dropout_at(job, "post", "0.7.0 _peft/lora.py PeftConfig: dropout_position \"post\"")


def runs_by_operators(job: Job, options: Mapping[str, object]) -> bool:
    """True if adapters are plain products instead of one function (0.7.0 `_peft/lora.py`, LinearLoRA.forward).

    NotYet for other releases than 0.7.0. InputError where there are no adapters, or DoRA, which has products anyway.
    """
    training = job.scenario.training
    idle = "without adapters" if training.method == "full" else (
        "with DoRA, whose products are linears in any case" if training.lora.use_dora else "")
    if idle and options.get(EFFICIENT_OPTION) is not None:
        at = job.scenario.where("framework_options", EFFICIENT_OPTION)
        raise InputError(Problem(at, f"{EFFICIENT_OPTION}: changes nothing {idle}"))
    if options.get(EFFICIENT_OPTION) is not False:
        return False
    if job.scenario.framework_version not in ("auto", "0.7.0"):
        raise job.not_yet(f"framework_options.{EFFICIENT_OPTION}", f"false under automodel "
                          f"{job.scenario.framework_version}")
    return True
