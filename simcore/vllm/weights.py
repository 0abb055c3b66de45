"""Weights of the model on a rank of vLLM: linears sharded by tensor parallelism, as in vLLM's layers.

vLLM 0.12.0: `model_executor/layers/linear.py` (column and row parallel, QKVParallelLinear with KV heads replicated),
`layers/vocab_parallel_embedding.py` (rows padded to 64), `layers/fused_moe/layer.py`, `layers/mamba/mamba_mixer2.py`,
`models/nemotron_h.py` (gate in fp32; 0.25.1: `Release.narrow_router`), `models/llama.py`, `models/qwen3.py`,
`models/qwen2_moe.py`, `models/mixtral.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from simcore.models.blocks import (
    Attention,
    Branch,
    Embedding,
    FinalNorm,
    GatedDeltaNet,
    Head,
    LatentAttention,
    LayerKind,
    Mamba2,
    Mlp,
    Moe,
    Mtp,
)
from simcore.models.config import Architecture
from simcore.models.vision_blocks import VisionPart
from simcore.units import dtype_bytes
from simcore.vllm.quantized.four_bit import WIDE
from simcore.vllm.quantized.linears import Linear, conv_rows, kv_heads, linears
from simcore.vllm.quantized.recipe import Recipe
from simcore.vllm.quantized.tensor import Tensor, num_bytes

__all__ = ["MODEL_DTYPE", "TOWER", "WINDOWED", "Weight", "blocks", "layers_of", "modules", "padded_rows", "refusals",
           "unserved", "weights", "weights_of_kind"]

MODEL_DTYPE: Final = "bf16"
"""`dtype: auto` is the checkpoint's; all presets are published in bf16."""

_PADDING: Final = 64
"""Multiple to which rows of the vocabulary are padded (`DEFAULT_VOCAB_PADDING_SIZE`)."""
_FP32: Final = 4
_FIRST: Final = "0.12.0"
TOWER: Final = ("vision_tower", "projector", "sound_tower")
"""Components of towers, which decoding does not read."""
_TOWERS: Final = {_FIRST: ("qwen2_5_vl",), "0.25.1": (
    "gemma3", "nemotron_h_omni", "qwen2_5_vl", "qwen3_5", "qwen3_5_moe")}
"""Families whose vision tower is described (`vision.py`), by version."""
_DELTA: Final = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
"""Families with gated delta nets that 0.25.1 has (`models/registry.py`); Qwen 3.5 with its tower alone."""
WINDOWED: Final = ("gemma3", "gemma3_text", "gpt_oss", "mistral")
"""Families whose attention with a window, or sinks, is described (`models/gemma3.py`, `gpt_oss.py`, `mistral.py`)."""
_SERVED: Final = (Attention, GatedDeltaNet, LatentAttention, Mamba2, Moe, Mlp)


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight, or several small ones together, on a rank: component (attention, mlp, ...), number of elements.

    `width`: bytes of an element, 0: the width of the model's dtype. `routed`: of experts that tokens are routed to.
    `created`, `held`: tensors of a quantised one, as the checkpoint's files fill them and as steps read them; `wide`:
    bytes of the copy in 16 bits that a pass makes of it first, 0 where kernels read `held`.
    """

    component: str
    numel: int
    width: int = 0
    routed: bool = False
    created: tuple[Tensor, ...] = ()
    held: tuple[Tensor, ...] = ()
    wide: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes while the engine runs."""
        return num_bytes(self.held) if self.held else self.numel * (self.width or dtype_bytes(MODEL_DTYPE))

    @property
    def created_bytes(self) -> int:
        """Bytes while the checkpoint is read, before the engine quantises or packs."""
        return num_bytes(self.created) if self.held else self.num_bytes


# ---- what is refused -------------------------------------------------------------------------------------------------
_DIVIDE: Final = "vLLM 0.12.0 distributed/utils.py divide: not divisible"


def refusals(architecture: Architecture, tp: int) -> list[tuple[str, str]]:
    """Pairs (message, vLLM's rule) for each part of the model that `tp` ranks cannot shard; empty if none."""
    blocks = dict.fromkeys(branch.block for kind in _kinds(architecture) for branch in kind.branches)
    problems = [problem for block in blocks if type(block) in _REFUSED for problem in _REFUSED[type(block)](block, tp)]
    rows = padded_rows(architecture.vocab)
    return problems + [(f"a vocabulary of {rows} padded rows is not divisible by tp {tp}", _DIVIDE)] * bool(rows % tp)


def _uncut_attention(block: Attention, tp: int) -> Iterator[tuple[str, str]]:
    if block.num_heads % tp:
        yield (f"{block.num_heads} attention heads are not divisible by tp {tp}",
               "vLLM 0.12.0 config/model.py verify_with_parallel_config")
    if block.num_kv_heads % tp and tp % block.num_kv_heads:
        yield (f"{block.num_kv_heads} KV heads are neither divisible by tp {tp} nor a divisor of it",
               "vLLM 0.12.0 model_executor/layers/linear.py QKVParallelLinear: heads are divided, or replicated whole")


def _uncut_latent_attention(block: LatentAttention, tp: int) -> Iterator[tuple[str, str]]:
    if block.num_heads % tp:
        yield f"{block.num_heads} attention heads are not divisible by tp {tp}", "vLLM 0.25.1 models/deepseek_v2.py:463"


def _uncut_mamba(block: Mamba2, tp: int) -> Iterator[tuple[str, str]]:
    if block.num_heads % tp:
        yield (f"{block.num_heads} Mamba heads are not divisible by tp {tp}",
               "vLLM 0.12.0 mamba_mixer2.py: Tensor parallel world size must divide num heads")
    if block.num_groups % tp and block.num_groups != 1:
        yield (f"{block.num_groups} Mamba groups are not divisible by tp {tp}, and more than one",
               "vLLM 0.12.0 mamba_mixer2.py: If tensor parallel world size does not divide num_groups, then num_groups "
               "must equal 1")


def _uncut_delta(block: GatedDeltaNet, tp: int) -> Iterator[tuple[str, str]]:
    for name, count in (("key", block.num_key_heads), ("value", block.num_value_heads)):
        if count % tp:
            yield f"{count} {name} heads of a gated delta net are not divisible by tp {tp}", _DIVIDE


def _uncut_mlp(block: Mlp, tp: int) -> Iterator[tuple[str, str]]:
    if block.ffn % tp:
        yield f"an MLP of {block.ffn} is not divisible by tp {tp}", _DIVIDE


def _uncut_moe(block: Moe, tp: int) -> Iterator[tuple[str, str]]:
    for name, size in (("experts", block.expert_ffn), ("a shared expert", block.shared_ffn)):
        if size % tp:
            yield f"{name} of {size} are not divisible by tp {tp}", _DIVIDE


_REFUSED: Final[dict[type, Callable[[Any, int], Iterator[tuple[str, str]]]]] = {
    Attention: _uncut_attention, LatentAttention: _uncut_latent_attention, Mamba2: _uncut_mamba,
    GatedDeltaNet: _uncut_delta, Mlp: _uncut_mlp,
    Moe: _uncut_moe}


# ---- the model on a rank ---------------------------------------------------------------------------------------------
def layers_of(architecture: Architecture) -> Iterator[tuple[str, LayerKind]]:
    """(module path, layer) of every layer of the language model, in order; embedding, norm, head are layers too.

    Multi-token prediction is left out, as speculative decoding is not used.
    """
    return ((path, kind) for path, kind in architecture.parts if not isinstance(kind.block, Mtp | VisionPart))


def _kinds(architecture: Architecture) -> tuple[LayerKind, ...]:
    return tuple(dict.fromkeys(kind for _, kind in layers_of(architecture)))


def unserved(architecture: Architecture, version: str) -> str:
    """Description of a part that vLLM's `version` ("0.12.0") is not modelled with, such as latent attention.

    "" if there is none.
    """
    if any(kind.shared for kind in _kinds(architecture)):
        return "layers that share a transformer"
    if missing := _unserved_tower(architecture, version) or _unserved_delta(architecture, version):
        return missing
    blocks = [branch.block for kind in _kinds(architecture) for branch in kind.branches]
    if len({(block.num_kv_heads, block.head_dim) for block in blocks if isinstance(block, Attention)}) > 1:
        return "attention layers of different widths"
    for block in blocks:
        if not isinstance(block, _SERVED):
            return "layers without attention or Mamba"
        if isinstance(block, LatentAttention) and version == _FIRST:
            return f"multi-head latent attention with vLLM {version} (served: 0.25.1)"
        if isinstance(block, Attention) and (block.sinks or block.window):
            if version == _FIRST:
                return f"attention with sinks or a window with vLLM {version} (served: 0.25.1)"
            if architecture.family not in WINDOWED:
                return f"attention with a window in {architecture.family} (served: {', '.join(WINDOWED)})"
        if isinstance(block, Moe) and block.bias and version == _FIRST:
            return f"experts with biases with vLLM {version} (served: 0.25.1)"
        if isinstance(block, Moe) and block.latent and version == _FIRST:
            return f"experts behind a latent projection with vLLM {version} (served: 0.25.1)"
    return ""


def _unserved_delta(architecture: Architecture, version: str) -> str:
    family = architecture.family
    if (version != _FIRST and family in _DELTA) or not any(
            isinstance(branch.block, GatedDeltaNet) for kind in _kinds(architecture) for branch in kind.branches):
        return ""
    return f"gated delta nets of {family} with vLLM {version} (served: 0.25.1, {', '.join(_DELTA)})"


def _unserved_tower(architecture: Architecture, version: str) -> str:
    family, served = architecture.family, _TOWERS[version]
    if not architecture.has_tower or family in served:
        return ""
    return f"the vision tower of {family} with vLLM {version} (served: {', '.join(served)})"


def weights(architecture: Architecture, tp: int, recipe: Recipe | None = None, *, narrow_router: bool = False
            ) -> list[Weight]:
    """All weights of one rank, layer by layer, embedding first; every rank has the same sizes.

    `recipe`: quantisation of linears, None for 16 bits; `narrow_router`: Nemotron-H's routers are in the model's
    dtype. ValueError where a checkpoint's list of layers splits one.
    """
    known: dict[tuple[LayerKind, tuple[bool, ...]], list[Weight]] = {}
    found: list[Weight] = []
    for path, kind in layers_of(architecture):
        taken = tuple(recipe is not None and recipe.method_of(module, linear) is not None
                      for module, linear in modules(path, kind, tp))
        if (kind, taken) not in known:
            methods = iter([recipe if each else None for each in taken])
            known[kind, taken] = list(_of_kind(kind, architecture, tp, methods, narrow=narrow_router))
            if recipe is not None and recipe.heads and isinstance(kind.block, Head) and not architecture.tied:
                rows = _vocab_rows(architecture, tp)
                known[kind, taken] = [_of_linear(kind.block, Linear("lm_head", kind.hidden, (rows,), kind.hidden, tp),
                                                 recipe)]
        found += known[kind, taken]
    return found


def weights_of_kind(kind: LayerKind, architecture: Architecture, tp: int, *, narrow: bool) -> list[Weight]:
    """Weights in 16 bits of one layer on a rank; `narrow`: Nemotron-H's routers are in the model's dtype."""
    methods: Iterator[Recipe | None] = itertools.repeat(None)
    return list(_of_kind(kind, architecture, tp, methods, narrow=narrow))


def modules(path: str, kind: LayerKind, tp: int) -> Iterator[tuple[str, Linear]]:
    """(path of the module in vLLM, linear) of every linear of a layer, in the order of `weights`."""
    for _, found in blocks(path, kind, tp):
        yield from found


def blocks(path: str, kind: LayerKind, tp: int) -> Iterator[tuple[Branch, list[tuple[str, Linear]]]]:
    """Blocks of a layer, each with its rows of `modules`."""
    for branch in kind.branches:
        name = "block_sparse_moe" if kind.family == "mixtral" and isinstance(branch.block, Moe) else branch.name
        yield branch, [(f"{path}.{name}.{_module(branch, linear)}", linear) for linear in _linears(branch, kind, tp)]


def _module(branch: Branch, linear: Linear) -> str:
    """Path of a linear's module below its block: experts are one module, a shared expert one with linears."""
    if linear.is_experts:
        return "experts"
    shared = isinstance(branch.block, Moe) and linear.name not in _OF_EXPERTS
    return f"shared_experts.{linear.name}" if shared else linear.name


def _linears(branch: Branch, kind: LayerKind, tp: int) -> list[Linear]:
    """Linears of a block, and the router of a family whose router may be quantised (`models/qwen3_moe.py`)."""
    block, found = branch.block, linears(branch, tp)
    if isinstance(block, Moe) and kind.family == "qwen3_moe":
        found.append(Linear("gate", block.hidden, (block.num_experts,), block.hidden))
    return found


def _of_kind(kind: LayerKind, architecture: Architecture, tp: int, recipes: Iterator[Recipe | None], *, narrow: bool
             ) -> Iterator[Weight]:
    hidden = kind.hidden
    if isinstance(kind.block, Embedding):
        yield Weight("embedding", _vocab_rows(architecture, tp) * hidden + kind.block.positions * hidden)
    elif isinstance(kind.block, Head):
        yield Weight("lm_head", 0 if architecture.tied else _vocab_rows(architecture, tp) * hidden)
    elif isinstance(kind.block, FinalNorm):
        yield Weight("norms", hidden * (1 + (kind.block.layer_norm and kind.block.norm_bias)))
    for branch in kind.branches:
        count = bool(branch.norm) + bool(branch.behind)
        yield Weight("norms", hidden * count * (1 + (branch.layer_norm and branch.norm_bias)))
        yield from _of_block(branch, kind, tp, recipes, narrow=narrow)


def _vocab_rows(architecture: Architecture, tp: int) -> int:
    return padded_rows(architecture.vocab) // tp


def padded_rows(rows: int) -> int:
    """Rows of a vocabulary with vLLM's padding, on all ranks together."""
    return -(-rows // _PADDING) * _PADDING


def _of_block(branch: Branch, kind: LayerKind, tp: int, recipes: Iterator[Recipe | None], *, narrow: bool
              ) -> Iterator[Weight]:
    block = branch.block
    for linear in _linears(branch, kind, tp):
        yield _of_linear(block, linear, next(recipes))
    if isinstance(block, Attention):
        yield from _beside_attention(block, tp)
    elif isinstance(block, LatentAttention):
        yield Weight("norms", block.q_rank + block.kv_rank)  # on the way up
    elif isinstance(block, Mamba2):
        yield from _beside_mamba(block, tp)
    elif isinstance(block, GatedDeltaNet):
        heads = block.num_value_heads // tp  # steps in 16 bits, decay in fp32, and the gated norm of a head, whole
        yield Weight("delta_net", heads + block.value_dim)
        yield Weight("delta_net", heads, _FP32)
    elif isinstance(block, Moe):
        yield from _router(block, kind, narrow=narrow)
        if block.bias:  # of gate and up cut by tp, of down and the router whole (`models/gpt_oss.py`)
            yield Weight("routed_experts", block.num_experts * (2 * block.expert_ffn // tp + block.hidden))
            yield Weight("router", block.num_experts)
    elif isinstance(block, Mlp) and block.bias:
        yield Weight("mlp", block.ffn // tp * (1 + block.gated) + block.hidden)


def _of_linear(block: object, linear: Linear, recipe: Recipe | None) -> Weight:
    component, routed = _component(block, linear), linear.is_experts
    if recipe is None:
        return Weight(component, linear.numel, routed=routed)
    return Weight(component, linear.numel, routed=routed, created=recipe.method.created(linear),
                  held=recipe.method.held(linear), wide=WIDE * linear.numel if recipe.unpacks else 0)


def _component(block: object, linear: Linear) -> str:
    if isinstance(block, Moe):
        return _OF_EXPERTS.get(linear.name, "routed_experts" if linear.is_experts else "shared_experts")
    return _OF_BLOCKS[type(block)]


_OF_BLOCKS: Final[dict[type, str]] = {
    Attention: "attention", GatedDeltaNet: "delta_net", LatentAttention: "attention",
    Mamba2: "mamba", Mlp: "mlp", Head: "lm_head"}


_OF_EXPERTS: Final = {"gate": "router", "fc1_latent_proj": "latent_projections",
                      "fc2_latent_proj": "latent_projections"}


def _beside_attention(block: Attention, tp: int) -> Iterator[Weight]:
    """Biases of the input projections, the unsharded bias of the output projection, norms of heads."""
    if block.bias:
        rows = (block.num_heads // tp + 2 * kv_heads(block, tp)) * block.head_dim
        yield Weight("attention", rows + block.hidden * (block.bias == "all"))
    if block.sinks:
        yield Weight("attention", block.num_heads // tp)
    if block.qk_norm:
        yield Weight("norms", block.q_size + block.kv_size if block.whole_norms else 2 * block.head_dim)


def _beside_mamba(block: Mamba2, tp: int) -> Iterator[Weight]:
    """The convolution's bias, D, dt_bias and the gated norm; A in fp32; biases of the projections, out's unsharded."""
    heads, rows = block.num_heads // tp, conv_rows(block, tp)
    yield Weight("mamba", rows * block.conv_bias + 2 * heads + block.inner // tp)
    yield Weight("mamba", heads, _FP32)
    if block.bias:
        yield Weight("mamba", block.inner // tp + heads + rows + block.hidden)


def _router(block: Moe, kind: LayerKind, *, narrow: bool) -> Iterator[Weight]:
    """Router, unsharded on every rank: in Nemotron-H fp32 unless `narrow`; a sigmoid router's correction is fp32."""
    if kind.family != "qwen3_moe":
        wide = kind.family == "nemotron_h" and not narrow
        yield Weight("router", block.num_experts * block.hidden, _FP32 if wide else 0)
    if block.router == "sigmoid":
        yield Weight("router", block.num_experts, _FP32)
    if block.shared_gate:
        yield Weight("shared_experts", block.hidden)
