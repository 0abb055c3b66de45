"""Layer functions of transformers' families: one row a family that differs from Llama, the rest run Llama's.

A function for a branch of a layer returns the block's output, and what the layer holds of it until it returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from simcore.errors import NotYet, Problem
from simcore.models.blocks import Attention, Branch, GatedDeltaNet, LatentAttention, LayerKind, Mlp, Moe
from simcore.operators.hf import decoders, gpt_oss, hybrid, layers, remote_code
from simcore.operators.hf import liger as hf_liger
from simcore.operators.hf import moe as hf_moe
from simcore.operators.hf.autocast import layer_norm, narrowed
from simcore.operators.hf.beside import gpt_neox
from simcore.operators.hf.latent import attention as latent
from simcore.operators.hf.layers import Core, Inputs, has_eager_attention, has_flash_attention, is_of_hub
from simcore.operators.hf.llama4 import attention as llama4_attention
from simcore.operators.hf.llama4.experts import moe as llama4_moe
from simcore.operators.hf.options import HfOptions
from simcore.operators.hf.recurrent import delta_net, mamba
from simcore.operators.shared import aten
from simcore.operators.shared.eager_attention import eager_core
from simcore.operators.shared.rms_norm import rms_norm, rms_norm_by_power, rms_norm_from_zero, rms_norm_in_fp32
from simcore.recording.layer import LayerWorkload
from simcore.recording.tape import Param, Tape, Tensor

__all__ = ["EMBEDDINGS", "TABLES", "Family", "has_wide_inputs", "mix", "norm", "of_family"]

TABLES: Final = ("rotary.cos", "rotary.sin", "rotary.further_cos", "rotary.further_sin")
"""Storages of the tables that the embedding makes for all layers, in their order."""

EMBEDDINGS: Final = "inputs_embeds"
"""Storage of what the embedding put out, where dropout makes another tensor of it."""

Norm = Callable[[Tape, Param, Tensor], Tensor]
"""(tape, weight, x) -> normalised x."""

BranchFunction = Callable[[Tape, LayerWorkload, Branch, Inputs], tuple[Tensor, object]]
"""(tape, run, branch, inputs) -> the block's output, and what the layer holds of it until it returns."""


_norm: Final = partial(rms_norm, weight_in_fp32=False)
_norm_in_fp32: Final = partial(rms_norm, weight_in_fp32=True)


def _attention(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    held: list[Tensor] = []
    core = remote_code.core(tape, run) if is_of_hub(run) else _eager(tape, run, branch, inputs, held)
    return layers.attention(tape, run, branch, inputs, core=core), held


def _eager(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs, held: list[Tensor]) -> Core | None:
    """Un-fused attention where it is asked for; rotation of a part of each head ends by joining, as Phi-3's does."""
    if not has_eager_attention(run):
        return None
    block = branch.block
    assert isinstance(block, Attention)
    return _eager_core(tape, run, inputs.mask, held, by_heads=0 < block.rotated < block.head_dim)


def _eager_core(tape: Tape, run: LayerWorkload, mask: Tensor | None, held: list[Tensor], *, by_heads: bool,
                caps: bool = False) -> Core:
    return eager_core(tape, mask, held, by_heads=by_heads, caps=caps, narrowed=partial(narrowed, tape, run))


def _attention_with_sinks(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    held: list[Tensor] = []
    core = gpt_oss.eager_core(tape, run, branch.name, inputs.mask, held) if has_eager_attention(run) else None
    return layers.attention(tape, run, branch, inputs, gpt_oss.rotate, core), held


def _attention_of_gemma(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    """Norms of heads count their weight from zero; scores may have a cap, which SDPA does not know.

    flash-attn takes it as a number (transformers 5.23 `modeling_flash_attention_utils.py`, softcap), and keeps no more.
    """
    held, block = list[Tensor](), branch.block
    assert isinstance(block, Attention)
    if block.capped and not (has_eager_attention(run) or has_flash_attention(run)):
        raise NotYet(Problem("framework_options.attn_implementation", "not yet: scores below a cap in another "
                             "attention than eager and flash_attention_2, which is to be named: "
                             "framework_options.attn_implementation=eager (transformers 5.23 models/gemma2: SDPA has "
                             "none)"))
    core = _eager_core(tape, run, inputs.mask, held, by_heads=False, caps=block.capped) if (
        has_eager_attention(run)) else None
    if block.qk_norm and hf_liger.normalises_heads(run, "gemma3_text"):
        return layers.attention(tape, run, branch, inputs, core=core, head_norm=hf_liger.norm_of_turned,
                                turn_both=hf_liger.rotate_turned), held
    return layers.attention(tape, run, branch, inputs, core=core, head_norm=rms_norm_from_zero), held


def _attention_of_gemma4(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    held: list[Tensor] = []
    core = _eager_core(tape, run, inputs.mask, held, by_heads=False) if has_eager_attention(run) else None
    return decoders.gemma4_attention(tape, run, branch, inputs, core), held


def _attention_of_olmo2(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs,
                        norm: Norm = rms_norm_in_fp32) -> tuple[Tensor, object]:
    held: list[Tensor] = []
    return decoders.olmo2_attention(tape, run, branch, inputs, _eager(tape, run, branch, inputs, held), norm), held


def _attention_of_minimax_m2(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    held: list[Tensor] = []
    core = _eager_core(tape, run, inputs.mask, held, by_heads=True) if has_eager_attention(run) else None
    return decoders.olmo2_attention(tape, run, branch, inputs, core, _norm, layers.rotate_a_part), held


def _attention_of_phi(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    """Attention of Phi: what is turned of query and key lives until it returns."""
    held, turned = list[Tensor](), list[Tensor]()
    core = _eager(tape, run, branch, inputs, held)
    out = layers.attention(tape, run, branch, inputs, core=core, out_proj="dense",
                           turn_both=partial(layers.rotate_a_part, held=turned))
    return out, held


def _attention_of_gpt_neox(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    block, held = branch.block, list[Tensor]()
    assert isinstance(block, Attention)
    assert inputs.cos is not None
    assert inputs.sin is not None
    core = _eager_core(tape, run, inputs.mask, held, by_heads=True) if has_eager_attention(run) else (
        lambda *parts: aten.contiguous(tape, layers.core_of(tape, run, block, parts, inputs.mask), "attention"))
    out = gpt_neox.attention(tape, block, inputs.hidden, (inputs.cos, inputs.sin), lambda part, x: layers.linear(
        tape, run, f"{branch.name}.{part}", x), core)
    return aten.dropout(tape, out) if inputs.drops else out, held


def _norming(*, late: bool) -> BranchFunction:
    """Attention of Llama with norms of heads behind all three products, or, `late`, behind the rotation."""
    def attention(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
        held: list[Tensor] = []
        core, norms = _eager(tape, run, branch, inputs, held), (None, _norm) if late else (_norm, None)
        return layers.attention(tape, run, branch, inputs, core=core, head_norm=norms[0], late_norm=norms[1]), held

    return attention


def _turning_by(turn_both: layers.RotateBoth, *, joins: bool = False) -> BranchFunction:
    """Attention of Llama whose rotation is `turn_both`; `joins`: it ends by joining what is rotated with the rest."""
    def attention(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
        held: list[Tensor] = []
        core = _eager_core(tape, run, inputs.mask, held, by_heads=joins) if has_eager_attention(run) else None
        return layers.attention(tape, run, branch, inputs, core=core, turn_both=turn_both), held

    return attention


def _attention_of_phi3(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    held: list[Tensor] = []
    core = _eager_core(tape, run, inputs.mask, held, by_heads=True) if has_eager_attention(run) else None
    return decoders.phi3_attention(tape, run, branch, inputs, core), held


def _attention_with_factors(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    return hybrid.attention_with_factors(tape, run, branch, inputs), None


def _mlp_with_factors(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    return hybrid.mlp_with_factors(tape, run, branch.name, inputs.hidden), None


def _mamba_with_factors(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    return hybrid.mamba_with_factors(tape, run, branch, inputs.hidden), None


def _attention_with_gate(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    held: list[Tensor] = []
    core = _eager_core(tape, run, inputs.mask, held, by_heads=True) if has_eager_attention(run) else None
    return layers.gated_attention(tape, run, branch, inputs, core), held


def _mlp(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    assert isinstance(branch.block, Mlp)
    return layers.mlp(tape, run, branch.name, branch.block, inputs.hidden), None


def _mlp_of_phi3(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    return decoders.phi3_mlp(tape, run, branch.name, inputs.hidden), None


def _mlp_of_phi(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    name = branch.name
    return decoders.two_linears(tape, run, f"{name}.fc1", f"{name}.fc2", inputs.hidden,
                                partial(decoders.new_gelu, run=run)), None


def _mlp_of_two(first: str, second: str) -> BranchFunction:
    """MLP of two linears of these names with GELU between them."""
    return lambda tape, run, branch, inputs: (decoders.two_linears(
        tape, run, f"{branch.name}.{first}", f"{branch.name}.{second}", inputs.hidden, aten.gelu), None)


def _shared_mlp(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    return hybrid.shared_mlp(tape, run, branch.name, inputs.hidden), None


def _moe(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs, *,
         wide: bool = False) -> tuple[Tensor, object]:
    if HfOptions.of(run.options).has_expert_modules:
        return hf_moe.returning_logits(tape, run, branch, inputs.hidden)
    return hf_moe.moe(tape, run, branch, inputs.hidden, wide=wide), None


def _routed_by(route: hf_moe.Route) -> BranchFunction:
    """Experts chosen by a router that differs from the usual one."""
    return lambda tape, run, branch, inputs: (hf_moe.moe(tape, run, branch, inputs.hidden, route=route), None)


def _moe_of_gpt_oss(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    return gpt_oss.moe(tape, run, branch, inputs.hidden)


def _moe_of_llama4(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    block, name, x = branch.block, branch.name, inputs.hidden
    assert isinstance(block, Moe)
    weights = {part: run.params[f"{name}.experts.{part}"] for part in ("gate_up_proj", "down_proj")}
    out, logits = llama4_moe(
        tape, block, hf_moe.as_rows(tape, x, (run.tokens, block.hidden)), weights,
        lambda part, rows: layers.linear(tape, run, f"{name}.{part}", rows),
        lambda part, rows: layers.mlp(tape, run, f"{name}.{part}", Mlp(block.hidden, block.shared_ffn), rows))
    return out.view(*x.shape), logits


def _attention_of_llama4(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    block = branch.block
    assert isinstance(block, Attention)
    return llama4_attention.attention(
        tape, block, inputs.hidden, inputs.cos,
        lambda part, x: layers.linear(tape, run, f"{branch.name}.{part}_proj", x),
        lambda *parts: layers.core_of(tape, run, block, parts, inputs.mask)), None


def _moe_beside_mlp(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    return hybrid.moe(tape, run, branch, inputs.hidden)


def _mamba(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs) -> tuple[Tensor, object]:
    return mamba(tape, run, branch, inputs.hidden), None


def _core_of_latent(tape: Tape, run: LayerWorkload, block: LatentAttention, query: Tensor, key: Tensor,
                    value: Tensor) -> Tensor:
    """SDPA: its flash kernel takes heads of one size alone, the memory-efficient one takes others.

    torch 2.13 `transformers/cuda/sdp_utils.cpp`, check_head_dim_size_flash. For flash-attn values are filled up.
    """
    if has_flash_attention(run):
        return latent.by_flash(tape, value, query.shape[-1], lambda filled: aten.flash_attention(
            tape, query, key, filled, run.pairs, run.sequences))
    if block.value != block.nope + block.rope:
        return aten.wide_attention(tape, query, key, value)
    return aten.contiguous(tape, aten.scaled_dot_product_attention(tape, query, key, value), "attention")


def _latent(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs, norm: Norm) -> Tensor:
    block, name = branch.block, branch.name
    assert isinstance(block, LatentAttention)
    tables = tuple(table for table in (inputs.cos, inputs.sin) if table is not None)
    modules = latent.Modules(lambda part, x: layers.linear(tape, run, f"{name}.{part}", x),
                             lambda part, x: norm(tape, run.params[f"{name}.{part}.weight"], x),
                             lambda *parts: _core_of_latent(tape, run, block, *parts))
    return latent.latent_attention(tape, block, inputs.hidden, tables, modules)


@dataclass(frozen=True, slots=True)
class Family:
    """Functions that record the layers of one family of models, and which tables its model makes.

    The defaults are Llama's. `norm`, `attention`, `mlp`, `moe`, `mamba`: record a norm or a block of that type.
    `grids`: rotary tables are made for every sequence of a batch from so many grids of positions; 0: one for all.
    `keeps_grids`: position ids are such grids, made of the sizes of images.
    `has_positions`: the model makes position ids; `passes_positions`: its layers get them; `adds_cached_positions`: the
    length of the cache, a zero, is added to them. `halves_rotary`: rotary tables have half a head's size. `masks`:
    number of masks that the model makes for eager attention; with two, one is for whole layers, one for those within a
    window. `wide_tables`: rotary tables stay in fp32. `complex_tables`: one table of complex numbers. `holds_mixed`:
    layers hold what attention put out until they return, and what it was given until that is added. `holds_embeddings`:
    what dropout is given of the embedding lives until the model returns. `scales_behind`: the model multiplies what
    comes out of its embedding, whose own output lives as long as the graph where it is asked for a gradient
    (enable_input_require_grads hooks the embedding). `casts_to_norm`: norms of layers read it in their weight's type.
    """

    norm: Norm = _norm
    attention: BranchFunction = _attention
    mlp: BranchFunction = _mlp
    moe: BranchFunction = _moe
    mamba: BranchFunction = _mamba
    has_positions: bool = True
    passes_positions: bool = True
    adds_cached_positions: bool = True
    halves_rotary: bool = False
    masks: int = 1
    grids: int = 0
    keeps_grids: bool = False
    wide_tables: bool = False
    holds_embeddings: bool = False
    complex_tables: bool = False
    holds_mixed: bool = False
    scales_behind: bool = False
    casts_to_norm: bool = False

_LLAMA: Final = Family()
FAMILIES: Final = {
    "bamba": Family(adds_cached_positions=False),
    "cohere2": Family(norm=decoders.cohere2_norm, attention=_turning_by(decoders.cohere2_rotate), masks=2),
    "deepseek_v2": Family(moe=_routed_by(hf_moe.route_greedily), complex_tables=True),
    "ernie4_5": Family(attention=_turning_by(decoders.ernie_rotate), wide_tables=True),
    **dict.fromkeys(("exaone4", "exaone_moe"), Family(attention=_norming(late=False), masks=2)),
    "falcon_h1": Family(attention=_attention_with_factors, mlp=_mlp_with_factors, mamba=_mamba_with_factors,
                        scales_behind=True),
    "gemma": Family(norm=rms_norm_from_zero),
    "gemma2": Family(norm=rms_norm_from_zero, attention=_attention_of_gemma, masks=2),
    "gemma3_text": Family(norm=rms_norm_from_zero, attention=_attention_of_gemma, masks=2),
    "gemma4_text": Family(norm=rms_norm_by_power, attention=_attention_of_gemma4, masks=2),
    "glm": Family(attention=_turning_by(decoders.glm_rotate, joins=True), mlp=_mlp_of_phi3),
    "glm4": Family(attention=_turning_by(decoders.glm_rotate, joins=True), mlp=_mlp_of_phi3),
    "glm4_moe": Family(attention=_turning_by(decoders.nemotron_rotate, joins=True)),
    "gpt_neox": Family(attention=_attention_of_gpt_neox, mlp=_mlp_of_two("dense_h_to_4h", "dense_4h_to_h"),
                       holds_embeddings=True),
    "gpt_oss": Family(norm=rms_norm_in_fp32, attention=_attention_with_sinks, moe=_moe_of_gpt_oss, halves_rotary=True,
                      masks=2),
    "granite": Family(scales_behind=True),
    "granitemoehybrid": Family(mlp=_shared_mlp, moe=_moe_beside_mlp, passes_positions=False, scales_behind=True),
    "hunyuan_v1_dense": Family(attention=_norming(late=True)),
    "llama4_text": Family(norm=llama4_attention.rms_norm, attention=_attention_of_llama4, moe=_moe_of_llama4,
                          complex_tables=True, holds_mixed=True),
    "mamba2": Family(has_positions=False),
    "minimax_m2": Family(attention=_attention_of_minimax_m2, moe=_routed_by(hf_moe.route_at_once)),
    "mistral4": Family(moe=_routed_by(hf_moe.route_in_groups)),
    "ministral3": Family(attention=_turning_by(decoders.ministral3_turn)),
    "mixtral": Family(moe=partial(_moe, wide=True)),
    "nemotron_h": Family(norm=_norm_in_fp32, casts_to_norm=True),
    "nemotron": Family(attention=_turning_by(decoders.nemotron_rotate, joins=True)),
    "olmo3": Family(norm=rms_norm_in_fp32, attention=_attention_of_olmo2, wide_tables=True, masks=2),
    "olmo2": Family(norm=rms_norm_in_fp32, attention=_attention_of_olmo2, wide_tables=True),
    "olmoe": Family(attention=partial(_attention_of_olmo2, norm=_norm)),
    "phi": Family(attention=_attention_of_phi, mlp=_mlp_of_phi),
    "phi3": Family(attention=_attention_of_phi3, mlp=_mlp_of_phi3),
    "qwen2_moe": Family(masks=2),
    "qwen2_5_vl_text": Family(grids=3, keeps_grids=True, passes_positions=False),
    "qwen3_vl_text": Family(grids=3, keeps_grids=True, passes_positions=False),
    "qwen3_vl_moe_text": Family(grids=3, keeps_grids=True, passes_positions=False),
    "qwen3_next": Family(norm=rms_norm_from_zero, attention=_attention_with_gate),
    "qwen3_5_text": Family(norm=rms_norm_from_zero, attention=_attention_with_gate, grids=3),
    "qwen3_5_moe_text": Family(norm=rms_norm_from_zero, attention=_attention_with_gate, grids=3),
    "starcoder2": Family(mlp=_mlp_of_two("c_fc", "c_proj"), holds_embeddings=True),
}


def of_family(name: str) -> Family:
    """Functions of the family with that name; Llama's if the family does not differ from it."""
    return FAMILIES.get(name, _LLAMA)


def has_wide_inputs(kind: LayerKind) -> bool:
    """True if layers of `kind` are given tensors in fp32: the residual stream, or rotary tables."""
    return kind.wide or of_family(kind.family).wide_tables


def norm(tape: Tape, run: LayerWorkload, at: str, x: Tensor, family: str) -> Tensor:
    """Norm of `x`, in its shape and type, by the family's operators: with a bias torch's LayerNorm, else RMSNorm.

    `at`: its module in the layer, with a dot at the end, "" for the final norm. Liger's may take RMSNorm's place.
    """
    weight, bias = run.params[f"{at}weight"], run.params.get(f"{at}bias")
    x = aten.cast(tape, x, weight.dtype) if at and of_family(family).casts_to_norm else x
    if bias is not None and family == "nemotron":
        return decoders.nemotron_norm(tape, run, weight, bias, x)
    if bias is not None:
        return layer_norm(tape, run, x, weight, bias)
    if hf_liger.kernels_of(run).rms_norm:
        return hf_liger.rms_norm(tape, weight, x, keeps_grad=hf_liger.keeps_grads(run, family, last=not at))
    return of_family(family).norm(tape, weight, x)


def mix(tape: Tape, run: LayerWorkload, branch: Branch, inputs: Inputs, family: str) -> tuple[Tensor, object]:
    """(output of the branch's block, objects that stay alive until the layer returns).

    The output has the shape of `inputs.hidden`; `family` names the functions that record it.
    """
    functions = of_family(family)
    if isinstance(branch.block, Attention):
        return functions.attention(tape, run, branch, inputs)
    if isinstance(branch.block, LatentAttention):
        return _latent(tape, run, branch, inputs, functions.norm), None
    if isinstance(branch.block, Mlp):
        return functions.mlp(tape, run, branch, inputs)
    if isinstance(branch.block, Moe):  # under Automodel every rank of tp has all experts
        whole = run.tp > 1 and HfOptions.of(run.options).by_automodel
        return functions.moe(tape, replace(run, tp=1) if whole else run, branch, inputs)
    if isinstance(branch.block, GatedDeltaNet):
        return delta_net(tape, run, branch, inputs.hidden), None
    return functions.mamba(tape, replace(run, tp=1) if run.tp > 1 else run, branch, inputs)  # Mamba too is whole
