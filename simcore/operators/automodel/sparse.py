"""Families with experts in every layer, or in every one but the first, whose models NeMo Automodel 0.7.0 writes alike.

`components/models/*/model.py` with the asterisk for deepseek_v3, deepseek_v32, deepseek_v4, glm4_moe, glm4_moe_lite,
glm_moe_dsa, gpt_oss, hy_v3, ling_v2, mimo_v2_flash, minimax_m2, mistral4, qwen3_moe, qwen3_next, step3p5, qwen3_5_moe
and qwen3_vl_moe: attention, then an MLP or experts, each behind its norm, with rotary tables that the model makes of
position ids. Nemotron-H has a model of another kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["FROM_ZERO", "OF_GRIDS", "QWEN3_5", "SPARSE", "SparseFamily", "has_streams", "has_wide_head",
           "is_eager_sparse", "makes_tables", "shares_in_layer"]

QWEN3_5: Final = ("qwen3_5_text", "qwen3_5_moe_text")
"""Decoders of Qwen 3.5, dense and with experts: layers alike but for those (`components/models/qwen3_next`)."""
OF_GRIDS: Final = (*QWEN3_5, "qwen3_vl_moe_text")
"""Decoders whose tables are made of places in images, behind the tower if there is one."""
FROM_ZERO: Final = (*QWEN3_5, "qwen3_next", "step3p5")
"""Decoders whose layers have norms with weights around zero; Qwen3-Next's last norm is an ordinary one."""


@dataclass(frozen=True, slots=True)
class SparseFamily:
    """One such model. `model`: name of its class; `folder`: of its code, under `components/models`.

    `holds_stem`: its variable `inputs_embeds` holds the embedding's output while the layers run. `routes_alone`: only
    expert parallelism has been read. `wide`: the router's weights stay fp32 (`router_weights_fp32`); `wide_product`:
    its product is in fp32 (`gate_precision`); `wide_gate`: its parameter is fp32 (`gate_dtype`), and the whole block of
    experts, without those that are routed to, is an FSDP2 unit inside the layer. `holds_given`: its blocks' variable
    `mlp_in` holds what experts are given until a block returns. `corrects`: a buffer corrects the scores of its softmax
    for the choice, and no loss balances them (`softmax_with_bias`). `splits`: mesh axes other than ep that its class
    says it supports (`ModelCapabilities`), or that the repository's recipes ask for. `wide_head`: its head is fp32, and
    multiplies in it. `streams`: residual streams that layers mix (DeepSeek-V4), with attention to compressed keys.
    `makes_tables`: its layers' attention makes its own rotary tables. `shares_in_layer`: the shared expert is a module
    of the layer, beside `moe`, and its MLPs register the gate first (Step 3.5). `eager`: its attention and norms are
    torch's operators, with masks that the model makes, and its sinks a buffer (MiMo-V2-Flash).
    """

    model: str
    folder: str
    holds_stem: bool = False
    routes_alone: bool = True
    wide: bool = True
    wide_product: bool = True
    wide_gate: bool = False
    holds_given: bool = False
    corrects: bool = False
    wide_head: bool = False
    streams: bool = False
    makes_tables: bool = False
    shares_in_layer: bool = False
    eager: bool = False
    splits: tuple[str, ...] = ("cp", "pp")


SPARSE: Final = {
    "bailing_moe": SparseFamily("BailingMoeV2ForCausalLM", "ling_v2", holds_stem=True, splits=("pp",)),
    "deepseek_v3": SparseFamily("DeepseekV3ForCausalLM", "deepseek_v3", holds_stem=True),
    "deepseek_v32": SparseFamily("DeepseekV32ForCausalLM", "deepseek_v32", holds_stem=True, splits=("pp",)),
    "deepseek_v4": SparseFamily("DeepseekV4ForCausalLM", "deepseek_v4", wide=False, wide_product=False,
                                 wide_head=True, streams=True),
    "gpt_oss": SparseFamily("GptOssForCausalLM", "gpt_oss", routes_alone=False, wide=False, wide_product=False,
                             holds_given=True, splits=()),
    "glm4_moe": SparseFamily("Glm4MoeForCausalLM", "glm4_moe", splits=("pp",)),
    "glm4_moe_lite": SparseFamily("Glm4MoeLiteForCausalLM", "glm4_moe_lite", splits=()),
    "glm_moe_dsa": SparseFamily("GlmMoeDsaForCausalLM", "glm_moe_dsa"),
    "hy_v3": SparseFamily("HYV3ForCausalLM", "hy_v3", wide=False, wide_product=False, splits=("pp",)),
    "mimo_v2_flash": SparseFamily("MiMoV2FlashForCausalLM", "mimo_v2_flash", wide=False, eager=True),
    "minimax_m2": SparseFamily("MiniMaxM2ForCausalLM", "minimax_m2", wide_gate=True, splits=("pp",)),
    "mistral4": SparseFamily("Mistral4ForCausalLM", "mistral4", holds_stem=True, wide_product=False, corrects=True,
                             splits=("pp",)),
    "qwen3_5_moe_text": SparseFamily("Qwen3_5MoeForCausalLM", "qwen3_5_moe", holds_stem=True, wide=False,
                                     wide_product=False),
    "qwen3_next": SparseFamily("Qwen3NextForCausalLM", "qwen3_next", wide=False, wide_product=False, splits=()),
    "qwen3_vl_moe_text": SparseFamily("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", holds_stem=True, wide=False,
                                      wide_product=False, splits=("pp",)),
    "step3p5": SparseFamily("Step3p5ForCausalLM", "step3p5", holds_stem=True, wide=False, makes_tables=True,
                            shares_in_layer=True, splits=("pp",)),
    "qwen3_moe": SparseFamily("Qwen3MoeForCausalLM", "qwen3_moe", routes_alone=False, wide=False, wide_product=False),
}
"""By `model_type`."""


def has_wide_head(model_type: str) -> bool:
    """True for a model whose head is fp32."""
    return model_type in SPARSE and SPARSE[model_type].wide_head


def has_streams(model_type: str) -> bool:
    """True for a model with residual streams."""
    return model_type in SPARSE and SPARSE[model_type].streams


def makes_tables(model_type: str) -> bool:
    """True for a model whose layers make their own rotary tables."""
    return model_type in SPARSE and SPARSE[model_type].makes_tables


def shares_in_layer(model_type: str) -> bool:
    """True for a model whose shared expert is a module of the layer."""
    return model_type in SPARSE and SPARSE[model_type].shares_in_layer


def is_eager_sparse(model_type: str) -> bool:
    """True for a model whose attention is torch's operators."""
    return model_type in SPARSE and SPARSE[model_type].eager
