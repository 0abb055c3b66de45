"""FLOPs of training one token as each framework prints them, from the model's architecture.

Comes in: a model and the lengths of a scenario. Goes out: FLOPs per token. No convention counts recompute, and
no two agree: step time and tokens per second compare between frameworks, TFLOP/s and MFU do not.

[Note: what conventions leave out]
| convention | attention sees | of Mamba | routers, norms | further tokens |
|---|---|---|---|---|
| Megatron, hybrid | what is behind it; since Bridge 0.5.0 in its own pack | width 2h | no | but for joins |
| Megatron, transformer | the same; since then windows too | - | norms of latent vectors | all of it |
| Automodel | what is behind it, rows whole | its true width | routers of hybrids | of hybrids |
| torchtitan | the whole square | - | all that is no embedding | - |
| KempnerForge, llm-foundry | the whole square | - | no; llm-foundry all, the embedding too | - |

LoRA: Automodel scales by (2 + trainable / frozen) / 3 (`recipes/llm/benchmark.py`). Megatron-Bridge prints the FLOPs of
full training, but of Llama 3 70B in packs two thirds of them, and attention twice (upstream: only on SQuAD).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final

from simcore.models.blocks import (
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    LatentAttention,
    Mamba2,
    Mixer,
    Mlp,
    Moe,
    Mtp,
)
from simcore.models.graph import ModelGraph

__all__ = ["CONVENTIONS", "Asked", "Convention", "convention_of", "known"]

_BRIDGE: Final = "Megatron-Bridge src/megatron/bridge/training/utils/flop_utils.py num_floating_point_operations"
_VOCAB: Final = 128
"""Megatron's vocabularies are multiples of it times tp, or of what power of two divides them (`model_bridge.py`)."""


@dataclass(frozen=True, eq=False)
class Asked:
    """A model and its lengths, for which FLOPs per token are counted.

    `seq_len`: tokens of a whole sequence (over all context parallel ranks) or of a pack of several. `attended`: the
    mean over tokens of their own sequence's length (sum L^2 / sum L). `tp` pads vocabularies. `trainable`: trained
    parameters for each frozen one (LoRA), None where all are trained.
    """

    graph: ModelGraph
    seq_len: int
    attended: float
    tp: int = 1
    trainable: float | None = None

    @cached_property
    def mixers(self) -> tuple[tuple[Mixer, bool], ...]:
        """(block, True in a module of multi-token prediction) of all layers, in order.

        Blocks are attention, Mamba, MLP or experts; each is there as often as a token passes it.
        """
        return tuple(self._mixers())

    def _mixers(self) -> Iterator[tuple[Mixer, bool]]:
        for kind in (self.graph.kinds[layer.kind] for layer in self.graph.layers):
            further = isinstance(kind.block, Mtp)
            times = kind.block.depths if isinstance(kind.block, Mtp) else 1
            yield from ((branch.block, further) for branch in kind.branches for _ in range(times))

    @cached_property
    def own(self) -> tuple[Mixer, ...]:
        """Blocks (attention, Mamba, MLP, experts) of all layers but multi-token prediction: one a branch, in order."""
        return tuple(mixer for mixer, further in self.mixers if not further)

    @cached_property
    def num_further(self) -> int:
        """Number of tokens that multi-token prediction predicts in addition to the next."""
        kinds = (self.graph.kinds[self.graph.layers[layer].kind] for layer in self.graph.branches)
        return sum(kind.block.depths for kind in kinds if isinstance(kind.block, Mtp))

    @property
    def hidden(self) -> int:
        """Hidden size of the model."""
        return self.graph.architecture.hidden

    @property
    def vocab(self) -> int:
        """Size of the vocabulary, without padding."""
        return self.graph.architecture.vocab

    @property
    def family(self) -> str:
        """`model_type` of the model's configuration."""
        return self.graph.architecture.family


# ---- Megatron --------------------------------------------------------------------------------------------------------
def _megatron(asked: Asked, *, old: bool = False) -> float:
    """`old`: before Bridge 0.5.0 windows and packs were not seen, and only SiLU made a third matrix."""
    if asked.trainable is not None and _is_llama_70b(asked) and asked.attended < asked.seq_len:
        return _megatron_lora(asked)
    hybrid = asked.family == "nemotron_h"
    layers = sum(_megatron_mixer(mixer, asked, old=old) for mixer, _ in asked.mixers)
    heads = 2 * asked.hidden * _padded(asked) * (1 + asked.num_further)
    joins = 0 if hybrid else 2 * asked.num_further * (3 * asked.hidden + 2 * asked.hidden**2)
    return 3 * (layers + heads + joins)


def _is_llama_70b(asked: Asked) -> bool:
    return asked.family == "llama" and (asked.hidden, len(asked.mixers), asked.vocab) == (8192, 160, 128256)


def _megatron_lora(asked: Asked) -> float:
    """Frozen weights without their gradients; both products of attention over the whole square of each sequence."""
    weights = sum(_gated_weights(mixer) for mixer in asked.own) + asked.vocab * asked.hidden
    return 4 * weights + 12 * _num_attentions(asked) * asked.hidden * asked.attended


def _padded(asked: Asked) -> int:
    multiple = min(_VOCAB, asked.vocab & -asked.vocab) * asked.tp
    return -(-asked.vocab // multiple) * multiple


def _megatron_mixer(mixer: Mixer, asked: Asked, *, old: bool) -> float:
    match mixer:
        case Mamba2(hidden=hidden, num_groups=groups, state=state, num_heads=heads):
            inner = 2 * hidden
            return 2 * hidden * (2 * inner + 2 * groups * state + heads) + 7 * inner * state + 2 * inner * hidden
        case Attention():
            seen = asked.seq_len if old else _seen(mixer, asked)
            return 2 * (mixer.hidden * 2 * (mixer.q_size + mixer.kv_size) + mixer.q_size * seen)
        case LatentAttention():
            seen = asked.seq_len if old else asked.attended
            return 2 * (_latent(mixer, norms=1) + seen * (mixer.q_size + mixer.out_size) / 2)
        case Moe():
            third = mixer.gated and not (old and asked.family == "gpt_oss")
            routed = mixer.expert_hidden * mixer.top_k * mixer.expert_ffn
            return 2 * (2 + third) * (routed + mixer.hidden * mixer.shared_ffn) + 4 * mixer.hidden * mixer.latent
        case Mlp():
            return 2 * (2 + mixer.gated) * mixer.hidden * mixer.ffn
        case GatedDeltaNet() | CompressedAttention():
            raise AssertionError("no convention has a formula for it")


def _seen(mixer: Attention, asked: Asked) -> float:
    """Twice the positions that a token sees in the mean; a window of 128 is 128 before the token and the token."""
    window = mixer.window + 1
    if not mixer.window or window >= asked.seq_len:
        return asked.attended
    return 2 * (window - window * (window - 1) / (2 * asked.seq_len))


def _latent(mixer: LatentAttention, norms: int) -> int:
    """Weights of the projections. `norms`: what is added to each rank for its norm."""
    query = (mixer.q_rank * (mixer.hidden + mixer.q_size + norms) if mixer.q_rank else mixer.hidden * mixer.q_size)
    keys = mixer.kv_rank * (mixer.hidden + mixer.kv_size + norms) + mixer.hidden * mixer.rope
    return query + keys + mixer.out_size * mixer.hidden


# ---- Automodel -------------------------------------------------------------------------------------------------------
def _automodel(asked: Asked) -> float:
    """One formula a family (`get_flops_formula_for_hf_config`); of further tokens it knows those of hybrids."""
    further = asked.num_further if asked.family == "nemotron_h" else 0
    seen = [mixer for mixer, is_further in asked.mixers if further or not is_further]
    joined = asked.hidden * (asked.vocab * (1 + further) + 2 * asked.hidden * further)
    total = 6 * (joined + sum(_automodel_mixer(mixer, asked) for mixer in seen))
    return total if asked.trainable is None else total * (2 + asked.trainable) / 3


def _automodel_mixer(mixer: Mixer, asked: Asked) -> float:
    match mixer:
        case Mamba2(hidden=hidden, inner=inner, state=state):
            return hidden * mixer.in_proj + 7 * inner * state / 2 + inner * hidden
        case Attention():
            return _automodel_attention(mixer, asked)
        case LatentAttention():
            return _latent(mixer, norms=0) + asked.seq_len * (mixer.q_size + mixer.out_size) / 2
        case Moe():
            shared = min(mixer.shared_ffn, mixer.expert_ffn) if asked.family == "deepseek_v3" else mixer.shared_ffn
            router = mixer.num_experts if asked.family == "nemotron_h" else 0
            routed = mixer.expert_hidden * mixer.top_k * mixer.expert_ffn
            return (2 + mixer.gated) * (routed + mixer.hidden * shared) + mixer.hidden * (router + 2 * mixer.latent)
        case GatedDeltaNet() | CompressedAttention():
            raise AssertionError("no convention has a formula for it")
        case Mlp():
            return 3 * mixer.hidden * (_one_layer_of_experts(asked) or mixer.ffn)


def _one_layer_of_experts(asked: Asked) -> int:
    """Width of what a token meets in it, where a model's dense layers are taken for such: of DeepSeek-V3's shape.

    Published files say `moe_layer_freq: 1`, and the formula then asks no more for `first_k_dense_replace`.
    """
    moe = next((mixer for mixer in asked.own if isinstance(mixer, Moe)), None)
    return (moe.top_k + 1) * moe.expert_ffn if moe and asked.family == "deepseek_v3" else 0


def _automodel_attention(mixer: Attention, asked: Asked) -> float:
    """Llama's, Mixtral's and Nemotron-H's formulas take the width of queries for the hidden size."""
    wide = mixer.q_size if asked.family.startswith(("qwen", "gpt_oss")) else mixer.hidden
    groups = mixer.num_kv_heads / mixer.num_heads
    pairs: float = asked.seq_len
    if asked.family == "gpt_oss":
        window, seq = mixer.window, asked.seq_len
        pairs = seq + 1 if not window else (window * (window + 1) + 2 * (seq - window) * window) / seq
    return 2 * mixer.hidden * wide * (1 + groups) + wide * pairs


# ---- the whole square of attention -----------------------------------------------------------------------------------
def _torchtitan(asked: Asked) -> float:
    """Six for each parameter that a token meets but those of an untied embedding, and both products of attention."""
    graph = asked.graph
    met, experts = graph.count(), graph.count("routed_experts")
    if moe := next((mixer for mixer in asked.own if isinstance(mixer, Moe)), None):
        met += experts * moe.top_k // moe.num_experts - experts
    looked_up = 0 if graph.has_tied_head else graph.count("embedding")
    return 6 * (met - looked_up + asked.seq_len * sum(map(_both_products, asked.own)))


def _both_products(mixer: Mixer) -> int:
    """Multiplications of a pair of positions: query with key, weight with value."""
    match mixer:
        case Attention():
            return 2 * mixer.q_size
        case LatentAttention():
            return mixer.q_size + mixer.out_size
    return 0


def _kempnerforge(asked: Asked) -> float:
    weights = sum(map(_gated_weights, asked.own)) + asked.vocab * asked.hidden
    return 6 * weights + 12 * _num_attentions(asked) * asked.hidden * asked.seq_len


def _gated_weights(mixer: Mixer) -> int:
    match mixer:
        case Attention():
            return 2 * mixer.hidden * (mixer.q_size + mixer.kv_size)
        case Moe():
            return 3 * mixer.hidden * (mixer.top_k * mixer.expert_ffn + mixer.shared_ffn)
        case Mlp():
            return 3 * mixer.hidden * mixer.ffn
    return 0


def _llm_foundry(asked: Asked) -> float:
    """KempnerForge counted so until 2026-04-08."""
    return 6 * asked.graph.count() + 12 * _num_attentions(asked) * asked.hidden * asked.seq_len


def _num_attentions(asked: Asked) -> int:
    return sum(isinstance(mixer, Attention) for mixer in asked.own)


# ---- which there are -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Convention:
    """One framework's way of counting FLOPs for its TFLOP/s and MFU.

    `per_token`: FLOPs of training one token. `families`: names of models that it has a formula for, all if empty;
    `mixers`: blocks that it has one for. `peaks`: peak TFLOP/s (in 16 bits, in 8 bits) that it divides by for MFU, by a
    part of the GPU's name; the first that is in the name counts.
    """

    name: str
    source: str
    per_token: Callable[[Asked], float]
    families: tuple[str, ...] = ()
    mixers: tuple[type[Mixer], ...] = (Attention, LatentAttention, Mamba2, Moe, Mlp)
    peaks: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def knows(self, asked: Asked) -> bool:
        """True if the convention has a formula for the model's family and for all its blocks."""
        family = not self.families or asked.family in self.families
        return family and all(isinstance(mixer, self.mixers) for mixer, _ in asked.mixers)

    def peak_tflops(self, device: str, *, fp8: bool = False) -> float | None:
        """Peak TFLOP/s that the convention divides by for MFU on the GPU named `device`; None if it has none.

        `fp8`: True for the peak in 8 bits, else in 16 bits.
        """
        return next((peaks[fp8] for part, peaks in self.peaks.items() if part in device), None)


_TITAN_PEAKS: Final = {"A100": 312, "H100": 989, "H200": 989, "GB200": 2500, "GB300": 2500, "B300": 2250, "B200": 2250}
_KEMPNER_PEAKS: Final = {"H200": 989, "H100": 989, "A100": 312}
CONVENTIONS: Final = {one.name: one for one in (
    Convention("megatron", f"{_BRIDGE}, main 2026-08-22; Megatron-LM megatron/training/training.py of the same name",
               _megatron),
    Convention("megatron-bridge up to 0.4", f"{_BRIDGE}, 0.3.1", partial(_megatron, old=True)),
    Convention("automodel", "Automodel nemo_automodel/components/utils/flops_utils.py, 0.7.0; peaks: peak_tflops of "
               "examples/llm_benchmark", _automodel,
               families=("llama", "mixtral", "qwen2", "qwen3", "qwen3_moe", "deepseek_v3", "gpt_oss", "nemotron_h"),
               peaks={"H100": (989, 989), "A100": (312, 312), "GB200": (2500, 5000)}),
    Convention("torchtitan", "torchtitan models/utils.py get_dense_model_nparams_and_flops, get_moe_model_nparams_and_"
               "flops; peaks: tools/utils.py get_peak_flops (16 bits always), main 2026-08-21", _torchtitan,
               mixers=(Attention, LatentAttention, Moe, Mlp),
               peaks={part: (peak, peak) for part, peak in _TITAN_PEAKS.items()}),
    Convention("kempnerforge", "KempnerForge kempnerforge/metrics/mfu.py (peaks of 16 bits), main 2026-06-30",
               _kempnerforge, mixers=(Attention, Moe, Mlp),
               peaks={part: (peak, peak) for part, peak in _KEMPNER_PEAKS.items()}),
    Convention("llm-foundry", "llm-foundry scripts/train/benchmarking/collect_results.py parse_run, main 2025-07-21; "
               "peaks: Composer callbacks/speed_monitor.py GPU_AVAILABLE_FLOPS", _llm_foundry, mixers=(Attention, Mlp),
               peaks={"H100": (989.5, 1979), "A100": (312, 312)}),
)}
_OF_VERSION: Final = {("megatron", "core 0.16.1"): "megatron-bridge up to 0.4"}  # by whose, and how the version begins
_SPELLED: Final = {"llmfoundry": "llm-foundry"}  # by the implementation, which is a module of Python


def convention_of(whose: tuple[str, ...], version: str) -> Convention | None:
    """Convention by which a framework prints FLOPs; None if it prints none.

    `whose`: names of the implementation of the layers and of the framework; the first that has a convention counts.
    `version`: the framework's, such as "core 0.16.1 ...", which may select an older formula.
    """
    name = next((name for name in (_SPELLED.get(one, one) for one in whose) if name in CONVENTIONS), None)
    if name is None:
        return None
    older = (old for (of, begins), old in _OF_VERSION.items() if of == name and version.startswith(begins))
    return CONVENTIONS[next(older, name)]


def known(asked: Asked) -> Iterator[Convention]:
    """Conventions that have a formula for the model, in the order of `CONVENTIONS`."""
    return (convention for convention in CONVENTIONS.values() if convention.knows(asked))
