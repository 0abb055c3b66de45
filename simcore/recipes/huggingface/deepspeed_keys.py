"""Keys of DeepSpeed's configuration that are followed, refused by name or without effect: release 0.19.6.

Names are those that `runtime/config.py` and `runtime/zero/config.py` read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, On, Row, Says, Unmodelled, read_rows

__all__ = ["FIELDS", "ZERO_FIELDS", "check_fields", "of_matrices", "read_experts", "read_numbers", "read_unread",
           "refuse_blocks", "switches", "without_effect"]

FIELDS: Final[Mapping[str, str]] = {
    "bf16": "enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads bf16_optimizer_states",
    "fp16": "enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis "
            "min_loss_scale fp16_master_weights_and_grads",
    "zero_optimization.offload_param": "device nvme_path buffer_count buffer_size max_in_cpu pin_memory",
    "zero_optimization.offload_optimizer": "device nvme_path buffer_count pin_memory pipeline_read pipeline_write "
                                           "fast_init ratio super_offload cpuadam_cores_perc",
    "compile": "deepcompile free_activation free_activation_threshold offload_activation offload_activation_pin_memory "
               "offload_opt_states double_buffer symmetric_memory debug_log offload_parameters sync_before_reduce "
               "sync_after_reduce sync_before_allgather sync_after_allgather keep_int_input_tensors "
               "keep_all_input_tensors passes",
    "hybrid_engine": "enabled max_out_tokens inference_tp_size release_inference_cache pin_parameters "
                     "tp_gather_partition_size enable_cuda_graph"}
"""Fields of blocks that take no other, at which DeepSpeed stops (0.19.6 `runtime/config_utils.py`: extra="forbid";
`runtime/precision_config.py`, `runtime/zero/offload_config.py`, `compile/config.py`, `runtime/config.py`)."""

_BLOCKS: Final = {
    "compression_training": "layers that are compressed while they train", "sparse_attention": "sparse attention",
    "quantize_training": "quantisation that is learnt", "weight_quantization": "weights that are quantised",
}
"""Blocks that ask for something by being there; engine.py reads them without a switch that all of them have."""
_UNMARKED: Final = ("stages 1 and 2 stop (The model has moe layers, but None of the param groups are marked as MoE; "
                    "deepspeed 0.19.6 runtime/zero/stage_1_and_2.py _configure_moe_settings), stage 3 too ('Parameter' "
                    "object has no attribute 'partition_numel'), stage 0 trains no expert")
_ZERO_BLOCKS: Final = {"zenflow": "ZenFlow (gradients of which a part is applied at once)",
                       "leaf_module": "modules that are fetched whole",
                       "zeropp_loco_param": "gradients that travel in 4 bits (ZeRO++)",
                       "stage3_model_persistence_threshold": "a limit on all parameters that stay gathered",
                       "model_persistence_threshold": "a limit on all parameters that stay gathered"}


ZERO_FIELDS: Final = (
    "stage allgather_bucket_size allgather_partitions allgather_sequential contiguous_gradients cpu_offload "
    "cpu_offload_param cpu_offload_use_pin_memory elastic_checkpoint enable_sanity_checks "
    "gather_16bit_weights_on_model_save ignore_unused_parameters legacy_stage1 load_from_fp32_weights "
    "log_trace_cache_warnings max_live_parameters max_reuse_distance memory_efficient_linear "
    "mics_hierarchical_params_gather mics_shard_size module_granularity_threshold offload_optimizer.* offload_param.* "
    "overlap_comm override_module_apply param_persistence_threshold pipeline_loading_checkpoint prefetch_bucket_size "
    "reduce_bucket_size reduce_scatter round_robin_gradients save_muon_momentum_buffer_in_memory "
    "stage3_allgather_sequential stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save "
    "stage3_max_live_parameters stage3_max_reuse_distance stage3_module_granularity_threshold "
    "stage3_param_persistence_threshold stage3_prefetch_bucket_size stage3_use_all_reduce_for_fetch_params "
    "sub_group_size use_all_reduce_for_fetch_params use_multi_rank_bucket_allreduce zero_hpz_partition_size "
    "zero_quantized_gradients zero_quantized_nontrainable_weights zero_quantized_weights")
"""Keys of zero_optimization but for those that ask for something by being there (0.19.6 `runtime/zero/config.py`)."""


TOP_KEYS: Final = (
    "activation_checkpointing aio amp autotuning bf16 checkpoint comet comms_logger communication_data_type compile "
    "compression_training csv_monitor curriculum_learning data_efficiency data_types dataloader_drop_last "
    "datastates_ckpt disable_allgather dump_state elasticity expert_parallel flops_profiler fp16 "
    "gradient_accumulation_steps gradient_allreduce_op gradient_clipping gradient_predivide_factor graph_harvesting "
    "hybrid_engine log_level managed_gradient_accumulation memory_breakdown nebula optimizer pipeline "
    "prescale_gradients progressive_layer_drop scheduler seq_parallel_communication_data_type sparse_attention "
    "sparse_gradients steps_per_print tensor_parallel tensorboard timers torch_autocast train_batch_size "
    "train_micro_batch_size_per_gpu use_data_before_expert_parallelism vocabulary_size wall_clock_breakdown wandb "
    "weight_quantization zero_allow_untested_optimizer zero_force_ds_cpu_optimizer zero_optimization")
"""Keys at the top that DeepSpeed 0.19.6 asks for (`tests/truth/deepspeed/top_keys.json`); it never looks at others."""


def read_unread(reader: Reader, draft: Draft, at: str) -> None:
    """Lists what is left of keys at the top that DeepSpeed never asks for, such as a comment or a misspelt name."""
    for one in reader.untouched():
        name = one.key.removeprefix(at).partition(".")[0]
        if one.key.startswith(at) and name not in TOP_KEYS.split():
            near = reader.near(one)
            draft.idle(reader.matching(one.key), "DeepSpeed 0.19.6 asks for no key of this name (runtime/config.py)"
                       + (f": did you mean {near!r}?" if near else ""))


def check_fields(reader: Reader, draft: Draft, at: str) -> None:
    """Tells of fields that a block of DeepSpeed's does not have."""
    for block, fields in FIELDS.items():
        if reader.has(f"{at}{block}") and not reader.is_mapping(f"{at}{block}") and block.startswith("zero"):
            one = reader.take(f"{at}{block}")
            draft.use(one)
            draft.fail(one.where if one else "", f"{at}{block}: expected a mapping, at anything else DeepSpeed 0.19.6 "
                                                 "stops (runtime/zero/config.py)")
        for name in reader.names(f"{at}{block}"):
            if name in fields.split():
                continue
            for one in reader.matching(f"{at}{block}.{name}", f"{at}{block}.{name}.*"):
                draft.use(one)
                draft.fail(one.where, f"{one.key}: the block {block} of DeepSpeed 0.19.6 has no such field, at which "
                                      "it stops (runtime/config_utils.py)")


def refuse_blocks(reader: Reader, draft: Draft, at: str, zero: str) -> None:
    """Refuses each block that asks for something by being there, at its first key."""
    blocks = {**{f"{at}{name}": what for name, what in _BLOCKS.items()},
              **{f"{zero}{name}": what for name, what in _ZERO_BLOCKS.items()}}
    for name, what in blocks.items():
        if found := reader.matching(name, f"{name}.*"):
            draft.refuse(found[0], what)
            draft.idle(found[1:], "details of what is refused")


def read_numbers(reader: Reader, draft: Draft, at: str, kind: Taken[str] | None) -> None:
    """Lists numbers of the update; refuses a way to make Muon's matrices orthogonal that is not modelled.

    `at`: prefix of the block of the optimizer; `kind`: its type, or None. Rule: deepspeed 0.19.6
    `runtime/zero/muon/original_muon.py`, NS_METHODS.
    """
    method = reader.text(f"{at}params.ns_method") if kind and kind.value.lower() == "muon" else None
    if method is not None and method.value != "gram":
        draft.refuse(method, f"Newton-Schulz steps by {method.value} (served: gram)")
    else:
        draft.idle(method, "the default")
    draft.idle(reader.matching(f"{at}params.*"), "numbers of the update")


def read_experts(reader: Reader, draft: Draft, at: str, *, is_alone: bool, has_optimizer: bool) -> None:
    """Reads DeepSpeed's expert parallelism, which takes an optimizer that DeepSpeed makes, from its configuration.

    `is_alone`: no Trainer hands over parameters, which AutoEP would have replaced by then.
    """
    block = f"{at}expert_parallel."
    switch = reader.flag(f"{block}enabled")
    if switch is None or not switch.value:
        draft.idle([*([switch] if switch else []), *reader.matching(f"{block}*")], "expert parallelism is off")
    elif not is_alone or not has_optimizer:
        who = "an optimizer of the script's" if is_alone else "the optimizer of transformers' Trainer"
        draft.use(switch)
        draft.fail(switch.where, f"{switch.key} with {who}, made of parameters that AutoEP replaces: {_UNMARKED}")
        draft.idle(reader.matching(f"{block}*"), "details of what stops")
    else:
        draft.infer("implementation", "autoep", f"{block}enabled", switch)
        read_rows(reader, draft, [Says(f"{block}autoep_size", "mesh.ep"),
                                  Says(f"{block}expert_tensor_parallel_size", "mesh.etp"), *_of_experts(block)])
        for one in reader.matching(f"{block}*"):
            draft.refuse(one, "experts that are found or routed otherwise than by the model's preset")


def _of_experts(block: str) -> list[Row]:
    return [On(f"{block}use_grouped_mm", "experts one after another in a loop"),
            Idle((f"{block}preset_model",), "the model's preset is that of its type"),
            Idle((f"{block}validate_folding_routing",), "no ranks split a tensor"),
            Idle((f"{block}disable_triton_grouped_mm",), "both grouped products keep the same tensors")]


def switches(at: str, zero: str, stage: int) -> list[Row]:
    """Rows of keys that are followed, or refused by name, at a stage of ZeRO; stage 0 has those outside its block."""
    of_1_and_2 = [On(f"{zero}use_multi_rank_bucket_allreduce", "gradients that are reduced for one rank at a time"),
                  Off(f"{zero}legacy_stage1", "the stage 1 of old releases")]
    own = [] if stage == 0 else [*(_of_stage_3(zero) if stage == 3 else of_1_and_2), *_of_every_stage(zero)]
    return [*own, *_of_the_engine(at)]


def _of_stage_3(zero: str) -> list[Row]:
    return [
        *(Off(f"{zero}{name}", what) for name, what in (
            ("mics_hierarchical_params_gather", "MiCS"),
            ("stage3_use_all_reduce_for_fetch_params", "parameters that are fetched by an all-reduce"),
            ("use_all_reduce_for_fetch_params", "parameters that are fetched by an all-reduce"),
            ("stage3_allgather_sequential", "parameters that are gathered one after another"),
            ("allgather_sequential", "parameters that are gathered one after another"))),
        *(Says(f"{zero}{prefix}module_granularity_threshold", "", idle={0: "the default"}, words={None: None},
               what="modules that are fetched whole below") for prefix in ("stage3_", "")),
        Idle((f"{zero}use_multi_rank_bucket_allreduce", f"{zero}legacy_stage1"), "keys of stages 1 and 2"),
    ]


def _of_every_stage(zero: str) -> list[Row]:
    return [
        *(Says(f"{zero}{name}", f"framework_options.{name}", "flag")
          for name in ("overlap_comm", "contiguous_gradients", "round_robin_gradients")),
        On(f"{zero}reduce_scatter", "gradients that are all-reduced"),
        *(Off(f"{zero}{name}", what) for name, what in (
            ("zero_quantized_weights", "parameters that travel in 8 bits (ZeRO++)"),
            ("zero_quantized_nontrainable_weights", "parameters that travel in 8 bits (ZeRO++)"),
            ("zero_quantized_gradients", "gradients that travel in 4 bits (ZeRO++)"),
            ("cpu_offload", "offload by the key of old releases (write offload_optimizer)"),
            ("cpu_offload_param", "offload by the key of old releases (write offload_param)"))),
    ]


def _of_the_engine(at: str) -> list[Row]:
    return [
        On(f"{at}managed_gradient_accumulation", "microbatches that the training script counts"),
        *(Off(f"{at}{name}.enabled", what) for name, what in (
            ("amp", "NVIDIA's apex"), ("torch_autocast", "autocast inside DeepSpeed"),
            ("progressive_layer_drop", "layers that are left out"), ("eigenvalue", "quantisation that is learnt"),
            ("hybrid_engine", "the engine for reinforcement learning"), ("autotuning", "trials of settings"),
            ("elasticity", "a batch that follows from the ranks at hand"),
            ("data_efficiency", "layers that drop tokens"), ("curriculum_learning", "sequences that grow"))),
        Off(f"{at}sparse_gradients", "sparse gradients"),
        Off(f"{at}use_data_before_expert_parallelism", "ranks of experts in another order: of deepspeed.moe.layer.MoE, "
            "a module of the script's own, which stage 3 refuses (0.19.6 runtime/engine.py "
            "_validate_zero3_moe_compatibility), or of AutoEP"),
        Says(f"{at}communication_data_type", "", "text", {None: None}, what="reductions in"),
        Says(f"{at}data_types.grad_accum_dtype", "", "text", {None: None}, what="gradients accumulated in"),
        Says(f"{at}data_types.buffer_dtype", "", "text", {None: None}, what="buffers in"),
    ]


def of_matrices(block: str) -> list[Row]:
    """Rows of `tensor_parallel` where ranks share matrices, but for their number; `block`: with a full stop behind."""
    return [
        Off(f"{block}tp_overlap_comm", "sums of gradients beside products (AsyncColumnParallel)"),
        Says(f"{block}tp.tp_grain_size", "", idle={1: "the default"}, words={None: None}, what="tp_grain_size"),
        Says(f"{block}preset_model", "", "text", {None: None}, what="another plan of matrices than transformers':"),
        Idle((f"{block}dtype", f"{block}keep_module_on_host", f"{block}tp.mpu", f"{block}tp.tp_group",
              f"{block}replace_with_kernel_inject", f"{block}kernel_inject"), "how a model is loaded, or of inference"),
    ]


def without_effect(at: str, zero: str) -> list[Row]:
    """Rows of keys on which nothing depends that is simulated."""
    return [
        Idle((f"{zero}stage3_gather_16bit_weights_on_model_save", f"{zero}stage3_gather_fp16_weights_on_model_save",
              f"{zero}gather_16bit_weights_on_model_save", f"{zero}elastic_checkpoint",
              f"{zero}load_from_fp32_weights", f"{zero}pipeline_loading_checkpoint", f"{at}checkpoint.*",
              f"{at}load_universal_checkpoint", f"{at}nebula.*", f"{at}datastates_ckpt", f"{at}datastates_ckpt.*"),
             "files: not part of a step"),
        Idle((f"{zero}allgather_partitions", f"{at}disable_allgather", f"{at}cuda_visible_devices"),
             "nothing reads it (0.19.6)"),
        Idle((f"{zero}ignore_unused_parameters", f"{zero}log_trace_cache_warnings", f"{zero}enable_sanity_checks"),
             "checks and warnings"),
        Idle((f"{zero}cpu_offload_use_pin_memory",), "read with cpu_offload alone"),
        Idle((f"{zero}override_module_apply",), "how values are first drawn"),
        Unmodelled((f"{zero}memory_efficient_linear",), "linear layers are counted as torch's"),
        Idle((f"{at}scheduler.*",), "numbers of the update"),
        Idle((f"{at}gradient_allreduce_op",), "gradients are added up, and divided or not: the same traffic"),
        Unmodelled((f"{at}wall_clock_breakdown", f"{at}memory_breakdown", f"{at}comms_logger.enabled",
                    f"{at}flops_profiler.enabled"),
                   "times and memory of each part, or collective, for which the host waits: not timed"),
        Idle((f"{at}steps_per_print", f"{at}dump_state", f"{at}timers.*", f"{at}comet.*",
              f"{at}tensorboard.*", f"{at}wandb.*", f"{at}csv_monitor.*", f"{at}comms_logger.*",
              f"{at}monitor_config.*", f"{at}comms_config.*", f"{at}flops_profiler.*"), "logging and measuring"),
        Idle((f"{at}zero_allow_untested_optimizer", f"{at}zero_force_ds_cpu_optimizer"), "which optimizers it "
             "takes for states on the device"),
        Idle((f"{at}activation_checkpointing.*",), "DeepSpeed's own checkpoints, which no model of transformers calls"),
        Idle((f"{zero}save_muon_momentum_buffer_in_memory",), "of Muon's states on NVMe, which are refused"),
        Idle((f"{at}dataloader_drop_last", f"{at}log_level", f"{at}vocabulary_size"), "data, logging, warnings"),
        Idle((f"{at}pipeline.*",), "of PipelineModule, which no model of transformers is"),
        Idle((f"{at}aio.*", f"{at}compile.*", f"{at}autotuning.*", f"{at}amp.*", f"{at}torch_autocast.*",
              f"{at}elasticity.*", f"{at}data_efficiency.*", f"{at}curriculum_learning.*",
              f"{at}progressive_layer_drop.*", f"{at}eigenvalue.*", f"{at}hybrid_engine.*", f"{at}graph_harvesting"),
             "settings of what is not asked for"),
    ]
