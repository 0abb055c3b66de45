"""Modules that Megatron-Bridge adapts, and the adapters' tensors (megatron-bridge 0.3.1 and main of 2026-08-22).

Rules of `peft/module_matcher.py`, `peft/lora.py` and `peft/utils.py`, which both versions share:

 * `target_modules` hits a module by its leaf name or by a wildcard on its full path, whatever its class is, so
   `linear_fc1` also hits the grouped GEMM of the routed experts. Recipes give the six names of `DEFAULT_TARGETS`.
 * a target that hits any other module, a container such as `mlp` or a norm, makes Bridge raise (`peft/utils.py:175`).
 * without targets every module of six linear classes is hit unless excluded: `output_layer` is one of them, the grouped
   GEMM is not, nor are TELinears that lie whole on every tp rank (`peft/module_matcher.py:118`).
 * a grouped GEMM gets *one* pair of matrices on each rank, used by all its local experts. 0.3.1 knows nothing else;
   main can give each expert its own pair (`share_expert_adapters: false`): `expert_adapters: per_expert` here.
 * `linear_in` is split by its rank dimension where the base is column parallel, by its input dimension where the base
   is row parallel; `linear_out` is always split by its output dimension. Experts use the expert-tensor group.

A column-parallel `linear_in` needs a rank that the group's size divides: the framework's table refuses the others.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from simcore.errors import IllegalLayout, InputError, NotYet, Problem
from simcore.frameworks.adapter import LoraChoice
from simcore.frameworks.common.lora import dropout_at
from simcore.models.blocks import Attention, Embedding, GatedDeltaNet, LatentAttention, LayerKind, Mamba2, Mlp, Moe
from simcore.models.tensor import TensorSpec
from simcore.placement.job import Draft
from simcore.recording.options import LoraDropout

__all__ = ["DEFAULT_TARGETS", "adapters", "bridge_dropout", "matches"]

DEFAULT_TARGETS: Final = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "in_proj", "out_proj")
_NO_MAMBA: Final = ("self_attention.in_proj", "self_attention.out_proj", "self_attn.out_proj")
"""Modules of delta nets and of SigLIP, whose names are Mamba's, for which recipes name six targets, and not four."""
_NUMBERS: Final = 256
"""Layers whose numbers a pattern is tried with: twice as many as any model here has."""
_ADAPTABLE: Final = ("linear", "grouped", "router")
_ROW_PARALLEL: Final = frozenset({"linear_proj", "linear_fc2", "out_proj"})
_DUPLICATED: Final = frozenset({"linear_q_down_proj", "linear_kv_down_proj", "fc1_latent_proj", "fc2_latent_proj",
                                "linear_wq_b", "linear_wk", "linear_weights_proj"})
"""Linears of parallel_mode "duplicated" (core 0.16.1 multi_latent_attention.py, moe/moe_layer.py; main dsa.py)."""
_IN_LAYERS: Final = ("input_layernorm", "pre_mlp_layernorm", "pre_cross_attn_layernorm", "cross_attention",
                     "cross_attn_bda", "self_attention", "mlp")
"""Modules of every TransformerLayer, IdentityOps where it does nothing (core 0.16.1 transformer_layer.py)."""
_INSIDE: Final[dict[type, tuple[str, ...]]] = {
    Attention: (*_IN_LAYERS, "self_attention.core_attention", "self_attention.q_layernorm",
                "self_attention.k_layernorm"),
    LatentAttention: (*_IN_LAYERS, "self_attention.core_attention", "self_attention.kv_layernorm",
                      "self_attention.rotary_pos_emb"),
    GatedDeltaNet: _IN_LAYERS, Mlp: _IN_LAYERS, Moe: _IN_LAYERS, Mamba2: ("norm", "mixer.act"),
}
"""Modules without parameters, by what they belong to."""
_AROUND: Final = ("embedding.embedding_dropout", "rotary_pos_emb")


def adapters(kind: LayerKind, specs: tuple[TensorSpec, ...], lora: LoraChoice) -> tuple[TensorSpec, ...]:
    """Returns the LoRA tensors of one kind of layer; `specs`: the tensors that the layer has without them.

    In registration order, with the shapes that they have before any cut; empty if no target fits. Raises IllegalLayout
    for targets that Bridge refuses.
    """
    if lora.target_modules and lora.exclude_modules:
        raise IllegalLayout(Problem("training.lora", "Bridge takes target_modules or exclude_modules, not both",
                                    "module_matcher.py: exclude_modules should be empty when using target_modules"))
    outside = kind.block is not None
    _check_targets(kind, specs, lora)
    found: list[TensorSpec] = []
    for spec in specs:
        if spec.is_buffer or len(spec.shape) != 2 or spec.module not in _ADAPTABLE:
            continue
        path = spec.path if outside else f"decoder.layers.*.{spec.path}"
        if matches(path, spec.module, lora) and not (spec.module == "grouped" and lora.expert_adapters == "none"):
            found += _pair(spec, lora)
    return tuple(found)


def _check_targets(kind: LayerKind, specs: tuple[TensorSpec, ...], lora: LoraChoice) -> None:
    """IllegalLayout for a target that hits a module which has no adapter."""
    adaptable = {spec.path for spec in specs if spec.module in _ADAPTABLE}
    inside = [path for branch in kind.branches for path in _INSIDE[type(branch.block)]]
    inside += _AROUND if isinstance(kind.block, Embedding) else ()
    at = "" if kind.block is not None else "decoder.layers.*."
    for path in dict.fromkeys(f"{at}{path}" for path in (*(spec.path for spec in specs), *inside)):
        found = path.split(".")
        for i in range(1, len(found) + 1):
            module = ".".join(found[:i])
            if module.removeprefix(at) in adaptable:  # a norm behind it is a module inside (te_layers.py), and is asked
                if path.endswith(".post_layernorm"):
                    continue
                break
            for pattern in lora.target_modules:
                if _hit(pattern, found[i - 1], module):
                    raise IllegalLayout(Problem(
                        "training.lora", f"{pattern!r} hits {module}, which is no linear layer: Layer type is "
                        "unrecognized for LoRA", "Bridge 0.3.1 peft/utils.py:175 get_adapter_attributes_from_linear"))


def matches(path: str, module: str, lora: LoraChoice) -> bool:
    """True if Bridge's matcher adapts the module at `path` (`*` stands for the layer's number).

    `module`: its kind, such as "linear" or "grouped".
    """
    name = path.rpartition(".")[2]
    if lora.target_modules:
        return any(_hit(pattern, name, path) for pattern in lora.target_modules)
    if lora.exclude_modules:
        is_listed = module == "linear" and name not in _DUPLICATED
        return is_listed and not any(_hit(pattern, name, path) for pattern in lora.exclude_modules)
    # What every recipe of this family writes; only Mamba's name its projections.
    return name in DEFAULT_TARGETS and not path.endswith(_NO_MAMBA)


def _hit(pattern: str, name: str, path: str) -> bool:
    return name == pattern or _fits(pattern, path)


@lru_cache(maxsize=4096)
def _fits(pattern: str, path: str) -> bool:
    """True if the pattern fits the path with the number of any layer.

    Raises NotYet where it depends on the number, InputError for what is no regular expression.
    """
    # Upstream escapes nothing, so a dot matches any character (`wildcard_match`).
    try:
        wild = re.compile("^" + pattern.replace("*", "(.*)") + "$")
    except re.error as error:
        raise InputError(Problem("training.lora", f"{pattern!r} is no pattern: {error}")) from None
    numbers = range(_NUMBERS) if "*" in path else (0,)
    found = {wild.match(path.replace("*", str(number))) is not None for number in numbers}
    if len(found) > 1 or re.search(r"layers\.\d", pattern):
        raise NotYet(Problem("training.lora", f"{pattern!r} names single layers; only patterns that treat all layers "
                             "of a kind alike are modelled"))
    return found.pop()


def _pair(spec: TensorSpec, lora: LoraChoice) -> list[TensorSpec]:
    grouped, rank = spec.module == "grouped", lora.rank
    axis = "etp" if grouped else "tp"
    row_parallel = spec.path.rpartition(".")[2] in _ROW_PARALLEL
    out_features, in_features = spec.shape
    dims_in = ("rank", f"{axis}_in") if row_parallel else (f"{axis}_rank", "hidden")
    experts = (spec.copies,) if grouped and lora.expert_adapters == "per_expert" else ()
    named = ("experts",) * len(experts)
    component = "expert_adapters" if grouped else "adapters"
    magnitude = TensorSpec(f"{spec.path}.adapter.weight_magnitude", (out_features,),
                           ("hidden" if row_parallel else f"{axis}_out",), component, "adapter")
    return [
        *([magnitude] * lora.use_dora),
        TensorSpec(f"{spec.path}.adapter.linear_in.weight", (*experts, rank, in_features), (*named, *dims_in),
                   component, "adapter"),
        TensorSpec(f"{spec.path}.adapter.linear_out.weight", (*experts, out_features, rank),
                   (*named, f"{axis}_out", "rank"), component, "adapter"),
    ]


def bridge_dropout(job: Draft) -> LoraDropout:
    """Returns the place of dropout around Bridge's adapters: "pre" (its default) or "post", "" without it.

    IllegalLayout for rank-stabilised scaling, and as `_check_dora` says.
    """
    lora, at = job.scenario.training.lora, "training.lora"
    if lora.use_dora:
        _check_dora(job)
    if lora.use_rslora:
        raise job.illegal(f"{at}.use_rslora", "Bridge's adapters scale by alpha / dim alone: multiply alpha by the "
                          "square root of rank", "Bridge 0.3.1 peft/utils.py ParallelLinearAdapter.forward")
    found = dropout_at(job, "pre", "Bridge 0.3.1 peft/lora.py: dropout_position \"pre\"")
    if found and lora.expert_adapters == "per_expert":
        raise job.not_yet(f"{at}.dropout", "dropout of adapters that each expert has for itself")
    return found


def _check_dora(job: Draft) -> None:
    """IllegalLayout for grouped GEMMs and dropout of the output, NotYet for other dropout, fp8 and a tied head."""
    lora, at, source = job.scenario.training.lora, "training.lora.use_dora", "Bridge 0.3.1 peft/dora_layers.py:129"
    hit = [spec for specs in job.graph.tensors for spec in specs if spec.name.endswith("adapter.weight_magnitude")]
    if any(spec.component == "expert_adapters" for spec in hit):
        raise job.illegal(at, "DoRA reads the weight of a grouped GEMM, which has one for every expert and none called "
                          "weight (name targets that miss the experts, or expert_adapters: none)",
                          f"{source}: self.to_wrap.weight")
    if lora.dropout_position == "post":
        raise job.illegal(at, "DoRA only supports pre-adapter dropout at this time", "Bridge 0.3.1 peft/dora.py:71")
    if lora.dropout:
        raise job.not_yet(at, "Bridge's DoRA with dropout, which runs every linear, with the norm that is fused to it, "
                          "a second time")
    if job.narrow:
        raise job.not_yet(at, "DoRA over weights in 8 bits")
    if job.graph.has_tied_head and any(spec.name.startswith("output_layer.") for spec in hit):
        raise job.illegal(at, "DoRA of a head that is the embedding: its module has no weight",
                          f"{source}: self.to_wrap.weight")
