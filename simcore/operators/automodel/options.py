"""Options of NeMo Automodel's layers: choices that upstream leaves open, and differences of its versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from simcore.recording.options import ImplementationOptions

__all__ = ["RELEASE_0_7_0", "SNAPSHOT_2026_06_08", "AutomodelOptions", "Dispatcher"]

Dispatcher = Literal["deepep", "hybridep", "torch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AutomodelOptions(ImplementationOptions):
    """Options of NeMo Automodel's own layers in one run.

    `attn_implementation`: attention of dense models; others take `BackendConfig.attn`. `flex`: that is flex, of
    GPT-OSS; `sdpa`: torch's, of Qwen 3.5; `sparse`: one that reads chosen keys alone. `masks_padding`: its batch has a
    mask of tokens. `dispatcher`: exchange of tokens between experts; without expert parallelism it is torch. `linear`:
    with "te", linear layers save x A of their adapters. `experts_unit`: the experts are a separate FSDP2 unit;
    `fp32_unit`: so is the gate of a delta net. `fake_balanced_gate`: experts are chosen in turn with equal weights.
    `fp8_recipe`: recipe of TransformerEngine's products in 8 bits, where a layer has some; `fp8_transposes`: the
    device's products read them along rows alone; `fp8_linears`, `fp8_experts`: which products they are. `rope`: with
    "quack", a fused rotation. `turns_adapters_from`: bytes, the limit of `adapters.split.is_turned`. `gathers_logits`:
    a head that tp splits gathers what it makes, as plans of transformers' do. `wide_logits`: the model itself casts its
    logits to fp32. `compiled`: torch.compile runs on each decoder layer of a dense model.

    Differences of versions: `keeps_norm_rstd`: norms save the reciprocal root; `wide_norms`: norms are an operator of
    several kernels in fp32 (`rms_norm: torch_fp32` of 0.7.0), which saves none; `fuses_lora_mlp`: an
    MLP with adapters is one node; `keeps_logits`: the training loop holds the logits until the step is over;
    `replays_dispatch`: a checkpoint keeps what the dispatch received; `keeps_router`: a checkpoint keeps the router's
    product and its top-k. `wide_inputs`: the head is given a hidden state in fp32, which autocast narrows, and
    FSDP2's hook casts the logits to fp32. `trains_stem`: a module of multi-token prediction takes the sequence's
    embeddings, whose table is trained. `agrees`: ranks that share parameters agree whether a layer has a compressed key
    (DeepSeek-V4). `attends`, `recurs`: a layer of the decoder has attention, a delta net.
    """

    attn_implementation: Literal["sdpa", "eager"] = "sdpa"
    flex: bool = False
    sdpa: bool = False
    sparse: bool = False
    masks_padding: bool = False
    dispatcher: Dispatcher = "deepep"
    linear: Literal["torch", "te"] = "torch"
    experts_unit: bool = False
    fp32_unit: bool = False
    fake_balanced_gate: bool = False
    rope: Literal["torch", "quack"] = "torch"
    turns_adapters_from: int = 0
    gathers_logits: bool = False
    wide_logits: bool = False
    compiled: bool = False
    fp8_recipe: str = ""
    fp8_transposes: bool = True
    fp8_linears: bool = False
    fp8_experts: bool = False
    keeps_norm_rstd: bool = True
    wide_norms: bool = False
    fuses_lora_mlp: bool = True
    wide_inputs: bool = False
    keeps_logits: bool = True
    replays_dispatch: bool = False
    keeps_router: bool = True
    trains_stem: bool = False
    agrees: bool = False
    attends: bool = True
    recurs: bool = True

    @property
    def frees_tables_by_mixer(self) -> bool:
        """True if a decoder has both attention and delta nets, as a Qwen 3.5's."""
        return self.attends and self.recurs


RELEASE_0_7_0: Final = AutomodelOptions(keeps_norm_rstd=False, wide_norms=True, fuses_lora_mlp=False,
                                        keeps_logits=False, replays_dispatch=True)
"""A multi-GPU FSDP2 run of 0.7.0."""
SNAPSHOT_2026_06_08: Final = AutomodelOptions(keeps_router=False)
"""77f112399: `recipes/llm/train_ft.py` has no `del out`, `moe/megatron/fused_a2a.py` no recorder, and apply_ac's
`ignore_router_for_ac` is False (`moe/parallelizer.py`, `distributed/config.py`)."""
