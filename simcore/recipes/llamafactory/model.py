"""Model, attention and kernels of a LLaMA-Factory recipe."""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.config_fields import BALANCED
from simcore.recipes.huggingface.modules import family_of, is_dense
from simcore.recipes.huggingface.named_model import read_named_model, read_remote_code
from simcore.recipes.huggingface.trainer import SWITCHES
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Row, Unmodelled, leave_out, read_rows

__all__ = ["read_model"]

_ATTENTION: Final = {"disabled": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2"}
_AUTO: Final = "auto"
_SINKS: Final = "kernels-community/vllm-flash-attn3"
_RELEASE: Final = "LLaMA-Factory ff6d4d12"
_SOURCE: Final = f"{_RELEASE} model/model_utils/attention.py configure_attn_implementation"
_LIGER: Final = ("gemma", "gemma2", "gemma3", "gemma3_text", "glm", "glm4", "glm4v", "granite", "llama", "llava",
                 "mistral", "mixtral", "mllama", "olmo2", "paligemma", "phi3", "qwen2", "qwen2_vl", "qwen2_5_vl",
                 "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe", "gpt_oss")
"""Families in ff6d4d12 `model/model_utils/liger_kernel.py`; of others Liger is not asked for."""
_WEIGHED: Final = ("use_dft_loss", "use_eaft_loss")
"""Losses of its own (`train/trainer_utils.py` dft_loss_func, eaft_loss_func) that read the logits of the model."""
_ROWS: Final[tuple[Row, ...]] = (
    *SWITCHES,
    Off("use_unsloth", "layers of Unsloth"),
    Off("shift_attn", "attention that is shifted (LongLoRA)"),
    Off("upcast_layernorm", "norms in fp32 beside layers of 16 bits"),
    Off("upcast_lmhead_output", "logits that are cast to fp32 as they leave the head"),
    Off("train_from_scratch", "weights drawn anew"),
    Off("resize_vocab", "a vocabulary that follows from the tokenizer"),
    Off("use_asft_loss", "a second model beside the trained one (ASFT)"),
    Unmodelled(_WEIGHED, "each token's loss is weighed after transformers' cross entropy: backward, where whole logits "
               "are most, has the same of them; forward has up to one less"),
    Off("use_liger_kernel", "Liger's layers by the trainer's own argument (served: enable_liger_kernel)"),
    Unmodelled(("use_cache",), "keys and values that each forward pass keeps where no layer is recomputed"),
    Idle(("sortish_sampler",), "nothing reads it"),
    Idle(("use_v1_kernels",), "kernels for NPUs, none for a GPU (v1/plugins/model_plugins/kernels/interface.py)"),
    Idle(("rope_scaling",), "angles of the rotary embedding"),
    Idle(("model_revision", "cache_dir", "hf_hub_token", "ms_hub_token", "om_hub_token",
          "low_cpu_mem_usage", "use_fast_tokenizer", "split_special_tokens", "init_special_tokens", "offload_folder",
          "print_param_status"), "which files are read, and how"),
    Idle(("asft_alpha", "eaft_alpha"), "of losses that are not asked for"),
)


def read_model(reader: Reader, draft: Draft) -> None:
    """Writes the model, its attention and Liger's kernels; refuses what changes its layers otherwise."""
    read_named_model(reader, draft, "model_name_or_path")
    read_remote_code(reader, draft, "trust_remote_code")
    family = family_of(draft.answers.settings.get("model") or draft.values.get("model"))
    _read_attention(reader, draft, family)
    _read_liger(reader, draft, family)
    for name, what in (("mixture_of_depths", "a mixture of depths"), ("add_tokens", "a vocabulary that grows"),
                       ("add_special_tokens", "a vocabulary that grows"),
                       ("new_special_tokens_config", "a vocabulary that grows")):
        draft.refuse(reader.take(name), what)
    balancing = reader.number("moe_aux_loss_coef")
    if is_dense(draft.answers.settings.get("model") or draft.values.get("model")):
        draft.idle(balancing, "the model has no experts")
    else:
        leave_out(draft, Unmodelled((), BALANCED, (0,)), [balancing] if balancing else [])
    read_rows(reader, draft, _ROWS)


def _read_attention(reader: Reader, draft: Draft, family: str) -> None:
    """Writes the attention; `auto` is transformers' own choice, but for two families."""
    asked = reader.text("flash_attn") if not isinstance(reader.look("flash_attn"), bool) else None
    older = reader.flag("flash_attn") if asked is None else None
    if older is not None:  # the switch of releases up to 0.6 (llmtuner/model/patcher.py configure_attention)
        asked = Taken("fa2" if older.value else _AUTO, older.path, older.where, older.reader)
    name = asked.value if asked else _AUTO
    key = "framework_options.attn_implementation"
    if family == "gpt_oss":
        draft.infer(key, _SINKS, "GPT-OSS has this kernel whatever flash_attn says", asked, source=_SOURCE)
    elif family == "gemma2" and name == _AUTO:
        draft.ask(key, f"--set {key}=flash_attention_2 (or eager)",
                  "attention of Gemma 2: flash-attn where it is installed, else eager", asked)
    elif name == _AUTO:
        draft.idle(asked, "transformers chooses, as is simulated")
        if asked is None:
            draft.release_default("flash_attn", "auto", _RELEASE, "hparams/model_args.py: transformers chooses SDPA")
    elif name in _ATTENTION:
        draft.put(key, asked, _ATTENTION[name])
    else:
        draft.refuse(asked, f"attention by {name}")


def _read_liger(reader: Reader, draft: Draft, family: str) -> None:
    liger = reader.flag("enable_liger_kernel")
    if liger is None or not liger.value:
        draft.idle(liger, "the default")
        if liger is None:
            draft.release_default("enable_liger_kernel", "false", _RELEASE, "hparams/model_args.py")
    elif family and family not in _LIGER:
        draft.idle(liger, f"LLaMA-Factory has none of Liger's kernels for {family}")
    elif family == "glm":
        draft.idle(liger, "Liger's functions for GLM-4-0414 replace no class of GLM-4's first release")
    elif any(reader.look(name) for name in _WEIGHED):
        draft.refuse(liger, "Liger's kernels beside a loss that weighs tokens, which gets no logits then")
    else:
        draft.put("framework_options.use_liger_kernel", liger, source="ff6d4d12 model/model_utils/liger_kernel.py: "
                                                                      "with Liger's own loss")
        draft.infer("framework_options.liger_in_classes", True, "classes are replaced before the model is read",  # noqa: FBT003 - a value
                    source="ff6d4d12 model/loader.py:142")
