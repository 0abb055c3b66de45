"""Keys of Megatron-Bridge's configurations that depend on no other key, and keys without effect."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Final

from simcore.errors import Problem
from simcore.inputs.document import Document
from simcore.recipes.draft import Draft
from simcore.recipes.megatron.without_effect import (
    BESIDE,
    CHECKS,
    MAMBA_KERNELS,
    PARAMS_NORM,
    RERUN,
    SENDS,
    SMS,
    TIMERS,
    VALIDATES,
    is_interleaved,
    leave_beside,
    limit_of_gradients,
)
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, On, Row, Says, Unmodelled

__all__ = ["ROWS", "SMALL", "defaults", "expect_fields", "give_up", "read_small", "reason_of"]

_OPTION: Final = "framework_options."
_DEFAULT: Final = "as the simulation has it"


def _option(key: str, kind: Any = "flag", usual: Any = None, name: str = "") -> Says:
    return Says(f"model.{key}", f"{_OPTION}{name or key}", kind, idle={} if usual is None else {usual: _DEFAULT})


_EXCHANGE: Final = Says("model.cp_comm_type", f"{_OPTION}cp_comm_type", "text", {
    "p2p": "p2p", "a2a": "a2a", "a2a+p2p": "a2a+p2p", "all_gather": "all_gather", "allgather": "all_gather"},
    what="between ranks that share a sequence")
"""Attention that sees chosen keys takes the name without its line too (core transformer/transformer_config.py:3168).

Its bridge sets it, so p2p is no default there: core refuses it (3171)."""
SAID: Final[tuple[Row, ...]] = (
    Says("train.micro_batch_size", "training.micro_batch_size"),
    Says("train.global_batch_size", "training.global_batch_size"),
    _option("num_layers_in_first_pipeline_stage", "integer"), _option("num_layers_in_last_pipeline_stage", "integer"),
    _option("dsa_kernel_backend", "text", "none"),
    _option("account_for_embedding_in_pipeline_split", usual=False),
    _option("account_for_loss_in_pipeline_split", usual=False),
    _option("transformer_impl", "text", "transformer_engine"), _option("attention_backend", "text", "auto"),
    _option("bias_activation_fusion"), _option("apply_rope_fusion"), _option("masked_softmax_fusion", usual=True),
    _option("gradient_accumulation_fusion", usual=True), _option("deterministic_mode", usual=False),
    _option("use_transformer_engine_op_fuser", usual=False), _option("defer_embedding_wgrad_compute", usual=False),
    _option("deallocate_pipeline_outputs", usual=True),
    _option("moe_grouped_gemm", usual=True), _option("moe_permute_fusion", usual=True),
    _option("use_fused_weighted_squared_relu"),
    _option("disable_parameter_transpose_cache", usual=False), _EXCHANGE,
    _option("hierarchical_context_parallel_sizes", "list"),
    Says("optimizer.log_num_zeros_in_grad", f"{_OPTION}log_num_zeros_in_grad", "flag", idle={False: _DEFAULT}),
    Says("optimizer.optimizer", "training.optimizer.name", "text",
         {"adam": "adam", "sgd": "sgd", "muon": "dist_muon", "dist_muon": "dist_muon"}, what="the optimizer"),
    Says("optimizer.main_params_dtype", "training.optimizer.master", "text", {"bf16": "bf16", "fp16": "fp16"},
         {"fp32": _DEFAULT}, what="masters in"),
)
REFUSED: Final[tuple[Row, ...]] = (
    Off("model.attention_output_gate", "a gate of the attention's output"),
    Off("dist.use_torch_fsdp2", "PyTorch's FSDP2 in place of Megatron's (models/model_provider.py:222)"),
    Off("model.apply_dsa_kernel_fusion", "sparse attention"), Off("model.use_fused_mhc", "hyper-connections"),
    Off("optimizer.offload_optimizer_states", "optimizer states that wait on the host between steps"),
    Off("dataset.hybrid_context_parallel", "sequences that differ in the ranks that share them"),
    Off("train.skip_train", "no training: there is no step"),
    Off("validation.skip_train", "no training: there is no step"),
    Off("peft.a2a_experimental", "adapters whose parts are exchanged"),
    Off("peft.sequence_parallel_input_regather", "inputs of adapters that are gathered again"),
    Off("peft.experts_shared_outer_loras", "halves of adapters that experts share"),
    On("peft.share_expert_adapters", "an adapter for each expert"),
    Off("model.freeze_mtp_model", "frozen modules of multi-token prediction"),
    Off("model.freeze_audio_model", "towers beside text"),
    Off("model.qk_clip", "clipping of query and key"),
    Off("model.freeze_audio_projection", "towers beside text"),
)
IDLE: Final[tuple[Row, ...]] = (
    Idle(("_target_", "train._target_", "dataset._target_", "ddp._target_", "optimizer._target_", "scheduler._target_",
          "mixed_precision._target_", "comm_overlap._target_", "*.offline_packing_specs._target_"), "names of classes"),
    Idle(("model._pipeline_model_parallel_layout_builder",), "it is called where the launch changes stages"),
    Idle(("model.persist_layer_norm",), "of Apex's norm: TransformerEngine's is simulated"),
    Idle(("model.moe_a2a_overlap",), "nothing in Bridge or Megatron-LM d98e8a64 reads it; comm_overlap says it"),
    Idle(("logger.*", "profiling.*", "straggler*", "nvrx*", "tensor_inspect*", "ft.*"), "logging and measuring"),
    Idle(("model.should_pad_vocab", "model.make_vocab_size_divisible_by"),
         "the model's own rows count, unpadded (training/setup.py:741)"),
    Idle(("model.calculate_per_token_loss",), "by what the loss is divided"),
    Idle(("model.moe_pad_experts_for_cuda_graph_inference",), "decoding alone, which is no part of a step"),
    Idle(("validation.*", "dist.eval_context_parallel_size"), "evaluation, which is no part of a step"),
    Idle(("checkpoint.*", "inprocess_restart*", "dist.*"), "files, and how ranks find each other"),
    Idle(("rng.*", "model.use_te_rng_tracker"), "random numbers"),
    Idle(("rerun_state_machine.*",), "steps that are run again, and errors that are put in"),
    Idle(("model.csa_*", "model.cp_partition_mode"), "of layers of DeepSeek-V4, which core's main does not have"),
    Idle(("model.dsa_*",), "of an indexer of keys, with which no step is simulated"),
    Idle(("scheduler.*", "optimizer.lr", "optimizer.*_lr",
          "optimizer.adam_*", "optimizer.weight_decay",
          "optimizer.muon_momentum", "optimizer.muon_*nesterov*", "optimizer.muon_coefficient_type",
          "optimizer.muon_scale_mode", "optimizer.muon_extra_scale_factor", "optimizer.muon_split_qkv",
          "optimizer.lion_*",
          "optimizer.apply_wd_to_qk_layernorm", "optimizer.bf16", "optimizer.fp16",
          "optimizer.min_lr", "mixed_precision.*loss_scale*", "mixed_precision.hysteresis"),
         "values of the optimizer's step"),
    Idle(("train.train_iters", "train.manual_gc*", "train.exit_*", "train.eval_*", "train.check_weight_hash_*",
             "train.num_epochs",
          "train.train_samples", "train.train_sync_interval", "train.gpu_sniff_test_interval",
          "train.iterations_to_skip"),
         "length of the run and pauses"),
    Idle(("dataset.*", "tokenizer.*"), "which samples are read; their length is training.seq_len"),
    Idle(("ddp.average_in_collective", "ddp.gradient_reduce_div_fusion"), "values of gradients"),
    Idle(("model.bf16", "model.fp16", "model.fp8", "model.fp8_recipe", "model.fp8_param", "model.fp8_param_gather",
          "model.fp8_margin", "model.fp8_amax_*", "model.fp8_wgrad", "model.fp8_dot_product_attention",
          "model.fp8_multi_head_attention", "model.params_dtype*", "model.autocast_dtype*",
          "model.pipeline_dtype*"), "mixed_precision says it"),
    Idle(("model.init_method_std", "model.init_model_with_meta_device"), "before the first step"),
    Idle(("model.hf_model_revision",), "which files of the model are read"),
    Idle(("model.is_hybrid_model",), "a name: model.hybrid_layer_pattern says the layers"),
    Idle(("model.mtp_eval_in_bf16",), "evaluation, which is no part of a step"),
    Idle(("model.freeze_vision_*", "model.vision_cuda_graph_*", "model.max_vision_*", "model.temporal_patch_dim",
          "model.multimodal_attn_impl"), "of towers beside text: the model has none, or nothing of it is captured"),
    Idle(("comm_overlap.tp_comm_bootstrap_backend",), "how ranks find each other for user buffers"),
    Idle(("optimizer.reuse_grad_buf_for_mxfp8_param_ag",), "mixed_precision says it"),
    Idle(("model.rotary_base*", "model.rotary_interleaved",
          "model.rotary_scaling_factor", "model.moe_aux_loss_coeff", "model.mtp_loss_scaling_factor",
          "model.attention_softmax_in_fp32", "model.apply_query_key_layer_scaling",
          "model.yarn_*", "model.mscale*", "model.tp_only_amax_red",
          "model.max_position_embeddings", "model.layernorm_epsilon",
          "mixed_precision.fp8_margin", "mixed_precision.fp8_amax_*"),
         "values within kernels that run in any case"),
)
"""The catch-all `dataset.*` is read last, after what says lengths."""
_GATHER: Final = "the first parameters are gathered after the optimizer's step, not during it"
# TransformerEngine d0067d0d pytorch/module/layernorm_mlp.py:807 saves what core's two linears and activation do
_LAYER: Final = ("a layer as one module of TransformerEngine, which keeps the tensors of core's modules, which are "
                 "simulated; what its MLP frees during backward may differ")
_SHARP: Final = "sums within switches: rates are those of NCCL's own choice"
_TELL: Final = ("numbers that ranks of a model tell each other after each step (training/train.py:964): they are in "
                "the fixed time of a step")
SMALL: Final[Mapping[str, tuple[Any, str]]] = {
    "optimizer.overlap_param_gather_with_optimizer_step": (False, _GATHER),
    "comm_overlap.overlap_param_gather_with_optimizer_step": (False, _GATHER),
    "dist.use_tp_pp_dp_mapping": (False, "ranks of a pipeline lie in another order over the nodes, which changes "
                                         "traffic between nodes"),
    "model.moe_mlp_glu_interleave_size": (None, "the layout of experts' columns"),
    "model.use_transformer_engine_full_layer_spec": (False, _LAYER),
    "model.use_mamba_mem_eff_path": (True, MAMBA_KERNELS),
    "model.fused_single_qkv_rope": (False, "query, key and value are rotated out of one tensor by one kernel "
                                           "(core/transformer/attention.py:1362): they are split first, and joined"),
    "dist.enable_megatron_core_experimental": (False, "kernels that core calls experimental, such as one that pads the "
                                                      "routing map (core/transformer/moe/token_dispatcher.py:651): "
                                                      "torch's in their place are timed"),
    "dist.high_priority_stream_groups": ([], "exchanges go before others: all run at their rates"),
    "dist.use_sharp": (False, _SHARP),
    "dist.sharp_enabled_group": (None, _SHARP),
    "dist.distributed_backend": ("nccl", "exchanges by another library: NCCL's are timed"),
    "dist.disable_jit_fuser": (False, "pointwise operators of torch in place of compiled ones, which move and keep "
                                      "more: the compiled ones are simulated"),
    "train.check_optimizer_step_success": (True, _TELL),
    "train.skip_sync_grad_norm_across_mp": (False, _TELL),
    "tensor_inspect.enabled": (False, "statistics of tensors, for which kernels run and the host waits: not timed"),
    "logger.log_l2_norm_grad_to_tensorboard": (False, "norms of single gradients, for which the host waits: not timed"),
    "dataset.enable_in_batch_packing": (False, "samples of a microbatch in one row, whose lengths the recipe does not "
                                               "say: each is counted as a row of training.seq_len"),
    "dataset.inter_document_masking": (False, "attention within documents, whose lengths the recipe does not say: it "
                                              "is counted over whole rows"),
    "dist.nccl_communicator_config_path": (None, "ways and buffers of exchanges: rates and buffers are those of NCCL's "
                                                 "own choice"),
    "train.empty_unused_memory_level": (0, "cached blocks are given back within a step: memory reserved and time are "
                                           "those without that"),
    "dataset.skip_getting_attention_mask_from_dataset": (True, "a mask of sequence x sequence bytes, which goes to "
                                                               "every layer: none is counted"),
}
"""Keys that change what is run by little unless they have this value, and how they are counted instead."""
_MULTIPROCESSORS: Final = ("model.moe_*_num_sms*", "model.moe_hybridep_num_*")
_OF_MUON: Final = ("muon_tp_mode", "muon_num_ns_steps", "muon_fp32_matmul_prec", "muon_use_syrk",
                   "muon_scalar_optimizer")
_LOSSES: Final = "rerun_state_machine.check_for_nan_in_loss"
_OF_STAGES: Final = ("comm_overlap.align_param_gather", "ddp.align_param_gather", "dist.align_grad_reduce")
LOOKED_AT: Final[tuple[Row, ...]] = (
    limit_of_gradients("optimizer.clip_grad"),
    Unmodelled(("ddp.check_for_*", "rerun_state_machine.check_for_*"), CHECKS),
    Unmodelled(("rerun_state_machine.rerun_mode",), RERUN, VALIDATES),
    Unmodelled(("logger.timing_log_level",), TIMERS, (0, -1)),
    Unmodelled(("logger.log_params_norm",), PARAMS_NORM),
)
ROWS: Final[tuple[Row, ...]] = (*SAID, *REFUSED, *LOOKED_AT, *IDLE)


def read_small(reader: Reader, draft: Draft) -> None:
    """Lists keys that change what is run by little."""
    for key, (usual, why) in SMALL.items():
        one = reader.take(key)
        if one is not None and one.value == usual:
            draft.idle(one, "the default, as without it")
        else:
            draft.unmodelled(one, why)
    _read_sends(reader, draft)
    _read_beside(reader, draft)
    _read_losses(reader, draft)
    found = reader.matching(*_MULTIPROCESSORS)
    exchanges = [one for one in found if one.value is not None]
    draft.idle([one for one in found if one.value is None], "says nothing")
    if "moe_token_dispatcher_type" in draft.values.get("framework_options", {}):
        draft.unmodelled(exchanges, SMS)
    else:
        draft.idle(exchanges, "no tokens are exchanged")


def _read_beside(reader: Reader, draft: Draft) -> None:
    """Lists keys that change something beside a setting alone, by the rows of Megatron's arguments."""
    rows = {key: row for row in BESIDE for key in row.keys}
    for name in _OF_MUON:
        row = rows[f"--{name.replace('_', '-')}"]
        leave_beside(draft, row, reader.take(f"optimizer.{name}"))
    for key in _OF_STAGES:
        leave_beside(draft, rows["--*align-param-gather"], reader.take(key))


def _read_losses(reader: Reader, draft: Draft) -> None:
    """Lists whether losses are looked at, as they are by default; refuses it in a captured iteration, as Bridge does.

    Megatron-Bridge 067f987d training/losses.py:72; training/config.py:1509.
    """
    said = reader.flag(_LOSSES)
    options: Mapping[str, Any] = draft.values.get("framework_options", {})
    whole = "full_iteration" in (options.get("cuda_graph_impl"), *(options.get("cuda_graph_scope") or ()))
    if whole and (said is None or said.value):
        draft.fail(said.where if said else draft.path, "check_for_nan_in_loss must be disabled when using "
                   f"full_iteration CUDA graph: give {_LOSSES}=false (Bridge training/config.py:1510)")
    if said is None:
        draft.unmodelled_default(_LOSSES, value=True, why=CHECKS)
    elif said.value:
        draft.unmodelled(said, CHECKS)
    else:
        draft.idle(said, "off: no loss is looked at, as it is simulated")


def _read_sends(reader: Reader, draft: Draft) -> None:
    """Lists how stages send; training/comm_overlap.py:456 has interleaved ones send beside products, as is simulated.

    What it says goes before the model's own keys.
    """
    staged, interleaved = draft.values.get("mesh", {}).get("pp", 1) > 1, is_interleaved(draft.values)
    own, chosen = reader.flag("model.overlap_p2p_comm"), reader.flag("comm_overlap.overlap_p2p_comm")
    batches = [one for name in ("model.batch_p2p_comm", "model.batch_p2p_sync", "comm_overlap.batch_p2p_comm")
               if (one := reader.flag(name))]
    shapes = reader.flag("model.variable_seq_lengths")
    if not staged:
        draft.idle([one for one in (own, chosen, *batches, shapes) if one], "there is one stage")
        return
    draft.unmodelled(shapes if shapes and shapes.value else None, "shapes that stages tell each other before they send")
    draft.idle(shapes if shapes and not shapes.value else None, "off")
    if chosen is not None and chosen.value and not interleaved:
        draft.use(chosen)
        draft.fail(chosen.where, "Non-interleaved pipeline parallelism does not support overlapping p2p communication "
                                 "(core/pipeline_parallel/schedules.py:2183)")
    for one in (own, chosen):
        if one is not None and interleaved and not one.value:
            draft.unmodelled(one, SENDS)
        elif one is own or interleaved:
            draft.idle(one, "as it is simulated" if interleaved else "no rank has several stages")
        elif one is not None and not one.value:
            draft.idle(one, "no rank has several stages")
    draft.idle(batches, "sends of stages take as long one by one")


@lru_cache
def _table() -> Mapping[str, Any]:
    text = resources.files("simcore.recipes.bridge").joinpath("fields.json").read_text(encoding="utf-8")
    table: Mapping[str, Any] = json.loads(text)
    return MappingProxyType(table)


def defaults() -> Mapping[str, Sequence[Any]]:
    """Fields of the classes of model and step by dotted key: [default], or nothing where it is no literal."""
    table: Mapping[str, Sequence[Any]] = _table()["defaults"]
    return table


def expect_fields(draft: Draft, document: Document, given: Iterable[str]) -> None:
    """Records keys of a launch that no class of their block has (`tests/truth/list_bridge_fields.py`).

    Bridge stops at them, while patterns of keys without effect fit them.
    """
    for key in sorted(given):
        block, _, rest = key.partition(".")
        name, fields = rest.partition(".")[0], _table().get(block, ()) if block != "defaults" else ()
        if fields and name not in fields:
            near = difflib.get_close_matches(name, fields, 1, 0.8)
            draft.fail(document.where(tuple(key.split("."))), f"unknown key {key!r}: Bridge's {block} has no such field"
                       + (f"; did you mean {f'{block}.{near[0]}'!r}?" if near else ""))


def reason_of(key: str) -> str:
    """Reason why nothing depends on a key, whatever its value; "" for a key that another one reads."""
    fitting = (row.why for row in IDLE if isinstance(row, Idle) and any(fnmatchcase(key, one) for one in row.keys))
    return next(fitting, "")


def give_up(draft: Draft, where: str, message: str) -> None:
    """Refuses (NotYet) what several keys, or none, ask for together."""
    draft.refused.append(Problem(where, message))
