"""Arguments of Megatron that change the model or the step in ways that no scenario can say, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simcore.recipes.megatron.fields import Setting, Writer

__all__ = ["REFUSED", "Refusal", "refuse_rest", "refuse_shape"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Fields that are refused with another value than upstream's default, and why. `zero_counts`: 0 is not off."""

    fields: tuple[str, ...]
    why: str
    zero_counts: bool = False


_OTHER_MODELS: Final = (
    Refusal(("encoder_num_layers_and_decoder", "decoder_num_layers", "decoder_seq_length"),
            "encoder and decoder (T5)"),
    Refusal(("bert_binary_head", "ict_head_size", "biencoder_projection_dim"), "BERT and its retrievers"),
    Refusal(("img_h", "img_w", "patch_dim", "vision_backbone_type", "language_model_type", "vision_model_type",
             "freeze_LM", "freeze_ViT", "language_model_checkpoint"), "images beside text"),
    Refusal(("num_tokens_to_generate", "prompts", "prompt_file", "incoming_requests_per_sec",
             "incoming_requests_per_step", "use_legacy_static_engine"), "generation of text: only training is read"),
    Refusal(("perform_rl_step", "grpo_group_size", "grpo_prompts_per_step"), "a step of reinforcement learning"),
    Refusal(("flextron",), "several widths of one model in a step"),
    Refusal(("export_kd_teacher_load", "export_kd_cfg", "logits_load_dir"), "a teacher beside the model"),
    Refusal(("yaml_cfg",), "arguments in another file"),
)
"""Fields that make the run another than training one GPT: nothing else of it is read."""

REFUSED: Final = (
    Refusal(("qk_clip",), "clipping of query and key"),
    Refusal(("heterogeneous_layers_config_path", "heterogeneous_layers_config_encoded_json"),
            "layers that differ one by one"),
    Refusal(("qk_l2_norm", "no_rope_freq"), "layers of Llama 4"),
    Refusal(("fp32_residual_connection",), "residuals in fp32"),
    Refusal(("apply_residual_connection_post_layernorm",), "residuals from behind the norm"),
    Refusal(("use_legacy_models",), "the models before Megatron-Core"),
    Refusal(("enable_mhc_connections",), "hyper-connections"),
    Refusal(("use_torch_fsdp2",), "torch's FSDP2 under Megatron's own layers"),
    Refusal(("sft", "use_packed_sequence", "hybrid_context_parallel", "max_seqlen_per_dp_cp_rank"),
            "packs of conversations, whose lengths the arguments do not say"),
    Refusal(("freeze_all_layers", "freeze_base_for_mtp"), "frozen layers"),
    Refusal(("tensor_parallel_num_weight_shards", "expert_tensor_parallel_num_weight_shards"),
            "weights that tensor parallel ranks split further"),
    Refusal(("distribute_saved_activations",), "saved inputs that tensor parallel ranks split"),
    Refusal(("use_kitchen_attention", "kitchen_config_file", "kitchen_recipe_number", "te_precision_config_file",
             "fp4_quantizer_factory", "fp8_quantizer_factory"), "number formats by a file"),
    Refusal(("mtp_hsm", "mtp_standalone", "mtp_detach_heads"), "this kind of multi-token prediction"),
    Refusal(("logit_dtype", "fp16_lm_cross_entropy"), "logits in another format"),
    Refusal(("moe_single_grouped_weight", "moe_single_grouped_bias", "use_grouped_gemm_for_dense_mlp",
             "use_grouped_gemm_for_shared_expert"), "one tensor for the weights of all experts"),
    Refusal(("ddp_reduce_scatter_with_fp32_accumulation",
             "ddp_param_name_patterns_for_fp32_local_accumulation", "ddp_pad_buckets_for_high_nccl_busbw"),
            "buckets or reduction of gradients in this way"),
    Refusal(("gtp_remat_nccl_ub", "gtp_expert_remat_nccl_ub"), "buffers that NCCL registers"),
    Refusal(("mlp_chunks_for_training",), "an MLP in chunks"),
    Refusal(("moe_extended_tp", "moe_use_legacy_grouped_gemm"), "experts of Megatron before Megatron-Core 0.12"),
    Refusal(("export_force_local_attention", "export_real_quant_cfg", "export_quant_cfg", "export_qk_l2_norm",
             "export_offline_model", "modelopt_enabled"), "layers of modelopt"),
    Refusal(("skip_train",), "no training: there is no step"),
    Refusal(("moe_input_jitter_eps",), "noise on the router's input, which is kept for backward", zero_counts=True),
    Refusal(("moe_apply_probs_on_input",), "probabilities on the experts' input, a tensor of all their tokens more"),
    Refusal(("batch_invariant_mode",), "products that do not depend on the batch, by kernels of their own"),
    Refusal(("optimizer_cuda_graph",), "the optimizer's step in a CUDA graph"),
    Refusal(("use_te_activation_func", "moe_shared_expert_glu_interleave_size"),
            "TransformerEngine's own activation"),
)
"""Fields of a training of a GPT that no scenario can say."""
_WINDOW: Final = ("window_size", "window_attn_skip_freq")


def refuse_shape(writer: Writer) -> bool:
    """Refuses runs that are no training of a GPT or hybrid; True if it was one, and nothing else need be read."""
    found = [_refuse(writer, one) for one in _OTHER_MODELS]
    vocabulary = writer.fields.path("vocab_file")
    kind = writer.fields.path("tokenizer_type")
    if (vocabulary.value or "").endswith(".txt") or (kind.value or "").startswith("BertWordPiece"):
        writer.refuse("a vocabulary of word pieces: BERT or T5", *((kind,) if kind.taken else (vocabulary,)))
        found.append(True)
    return any(found)


def refuse_rest(writer: Writer, *, windowed: bool) -> None:
    """Refuses the rest of what no scenario can say. `windowed`: the family has windows of its own."""
    for one in REFUSED:
        _refuse(writer, one)
    clamp = writer.fields.number("activation_func_clamp_value")
    if clamp.value is not None and writer.fields.flag("swiglu").value and not writer.fields.integer(
            "num_experts").value:
        writer.draft.fail(clamp.taken[0].where, "activation_func_clamp_value for SwiGLU is only supported with MoE "
                                                "(Megatron-LM d98e8a64 core/transformer/transformer_config.py:2484)")
    writer.idle("a bound of values within the activation's kernel", clamp)
    if not windowed:
        _refuse(writer, Refusal(_WINDOW, "windows of attention in this family"))
        soft = writer.fields.text("softmax_type")
        if soft.value not in (None, "vanilla"):
            writer.refuse("sinks of attention in this family", soft)
        else:
            writer.use(soft, why="no sinks, as without it")


def _refuse(writer: Writer, refusal: Refusal) -> bool:
    """Refuses the fields of a row that a recipe gives; one that says no (false, 0, none) has no effect."""
    asked = [setting for name in refusal.fields for setting in [writer.fields.any(name)] if setting.taken]
    wanted = [setting for setting in asked if not _says_no(setting) or (
        refusal.zero_counts and setting.value is not None and setting.value is not False)]
    writer.idle("it switches off what is off anyway", *(setting for setting in asked if setting not in wanted))
    if wanted:
        writer.refuse(refusal.why, *wanted)
    return bool(wanted)


def _says_no(setting: Setting[object]) -> bool:
    return setting.value in (None, False, 0, "", "none", "None", "0")
