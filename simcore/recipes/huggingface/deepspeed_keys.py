"""Keys of DeepSpeed's configuration that are followed, refused by name or without effect: release 0.19.6.

Names are those that `runtime/config.py` and `runtime/zero/config.py` read.
"""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, On, Row, Says, Unmodelled

__all__ = ["refuse_blocks", "switches", "without_effect"]

_BLOCKS: Final = {
    "compression_training": "layers that are compressed while they train", "sparse_attention": "sparse attention",
    "quantize_training": "quantisation that is learnt", "weight_quantization": "weights that are quantised",
    "expert_parallel": "expert parallelism of DeepSpeed",
}
"""Blocks that ask for something by being there; engine.py reads them without a switch that all of them have."""
_ZERO_BLOCKS: Final = {"zenflow": "ZenFlow (gradients of which a part is applied at once)",
                       "leaf_module": "modules that are fetched whole",
                       "zeropp_loco_param": "gradients that travel in 4 bits (ZeRO++)",
                       "stage3_model_persistence_threshold": "a limit on all parameters that stay gathered",
                       "model_persistence_threshold": "a limit on all parameters that stay gathered"}


def refuse_blocks(reader: Reader, draft: Draft, at: str, zero: str) -> None:
    """Refuses each block that asks for something by being there, at its first key."""
    blocks = {**{f"{at}{name}": what for name, what in _BLOCKS.items()},
              **{f"{zero}{name}": what for name, what in _ZERO_BLOCKS.items()}}
    for name, what in blocks.items():
        if found := reader.matching(name, f"{name}.*"):
            draft.refuse(found[0], what)
            draft.idle(found[1:], "details of what is refused")


def switches(at: str, zero: str) -> list[Row]:
    """Rows of keys that are followed, or refused by name."""
    return [
        *(Says(f"{zero}{name}", f"framework_options.{name}", "flag")
          for name in ("overlap_comm", "contiguous_gradients", "round_robin_gradients")),
        On(f"{zero}reduce_scatter", "gradients that are all-reduced"),
        On(f"{zero}allgather_partitions", "parameters that are broadcast"),
        On(f"{zero}use_multi_rank_bucket_allreduce", "gradients that are reduced for one rank at a time"),
        On(f"{at}managed_gradient_accumulation", "microbatches that the training script counts"),
        *(Off(f"{zero}{name}", what) for name, what in (
            ("zero_quantized_weights", "parameters that travel in 8 bits (ZeRO++)"),
            ("zero_quantized_nontrainable_weights", "parameters that travel in 8 bits (ZeRO++)"),
            ("zero_quantized_gradients", "gradients that travel in 4 bits (ZeRO++)"),
            ("mics_hierarchical_params_gather", "MiCS"), ("legacy_stage1", "the stage 1 of old releases"),
            ("cpu_offload", "offload by the key of old releases (write offload_optimizer)"),
            ("cpu_offload_param", "offload by the key of old releases (write offload_param)"),
            ("stage3_use_all_reduce_for_fetch_params", "parameters that are fetched by an all-reduce"),
            ("stage3_allgather_sequential", "parameters that are gathered one after another"),
            ("allgather_sequential", "parameters that are gathered one after another"))),
        Says(f"{zero}stage3_module_granularity_threshold", "", idle={0: "the default"}, words={None: None},
             what="modules that are fetched whole below"),
        *(Off(f"{at}{name}.enabled", what) for name, what in (
            ("amp", "NVIDIA's apex"), ("torch_autocast", "autocast inside DeepSpeed"),
            ("progressive_layer_drop", "layers that are left out"), ("eigenvalue", "quantisation that is learnt"),
            ("hybrid_engine", "the engine for reinforcement learning"), ("autotuning", "trials of settings"),
            ("elasticity", "a batch that follows from the ranks at hand"),
            ("data_efficiency", "layers that drop tokens"), ("curriculum_learning", "sequences that grow"))),
        On(f"{at}compile.disable", "a compiled engine", "off"),
        *(Says(f"{at}{name}", "", idle={1: "one rank"}, words={None: None}, what=f"{name} of ranks:")
          for name in ("sequence_parallel_size", "tensor_parallel.autotp_size")),
        Off(f"{at}sparse_gradients", "sparse gradients"),
        Off(f"{at}disable_allgather", "parameters that are broadcast"),
        Off(f"{at}use_data_before_expert_parallelism", "expert parallelism of DeepSpeed"),
        Off(f"{at}prescale_gradients", "gradients that are scaled before they are reduced"),
        Says(f"{at}communication_data_type", "", "text", {None: None}, what="reductions in"),
        Says(f"{at}data_types.grad_accum_dtype", "", "text", {None: None}, what="gradients accumulated in"),
    ]


def without_effect(at: str, zero: str) -> list[Row]:
    """Rows of keys on which nothing depends that is simulated."""
    return [
        Idle((f"{zero}stage3_gather_16bit_weights_on_model_save", f"{zero}stage3_gather_fp16_weights_on_model_save",
              f"{zero}gather_16bit_weights_on_model_save", f"{zero}elastic_checkpoint",
              f"{zero}load_from_fp32_weights", f"{zero}pipeline_loading_checkpoint", f"{at}checkpoint.*",
              f"{at}load_universal_checkpoint", f"{at}nebula.*"),
             "files: not part of a step"),
        Idle((f"{zero}ignore_unused_parameters", f"{zero}log_trace_cache_warnings", f"{zero}enable_sanity_checks",
              f"{zero}cpu_offload_use_pin_memory", f"{zero}override_module_apply"), "checks and warnings"),
        Unmodelled((f"{zero}memory_efficient_linear",), "linear layers are counted as torch's"),
        Idle((f"{at}scheduler.*", f"{at}gradient_predivide_factor"), "numbers of the update"),
        Unmodelled((f"{at}wall_clock_breakdown", f"{at}memory_breakdown", f"{at}comms_logger.enabled"),
                   "times and memory of each part, or collective, for which the host waits: not timed"),
        Idle((f"{at}steps_per_print", f"{at}dump_state",
              f"{at}tensorboard.*", f"{at}wandb.*", f"{at}csv_monitor.*", f"{at}comms_logger.*",
              f"{at}monitor_config.*", f"{at}comms_config.*", f"{at}flops_profiler.*"), "logging and measuring"),
        Idle((f"{at}zero_allow_untested_optimizer", f"{at}zero_force_ds_cpu_optimizer"), "which optimizers it accepts"),
        Idle((f"{at}activation_checkpointing.*",), "DeepSpeed's own checkpoints, which no model of transformers calls"),
        Idle((f"{at}_comment",), "a comment"),
        Idle((f"{zero}save_muon_momentum_buffer_in_memory",), "about Muon, which is refused by the optimizer's name"),
        Idle((f"{at}dataloader_drop_last", f"{at}log_level"), "data and logging"),
        Idle((f"{at}aio.*", f"{at}compile.*", f"{at}autotuning.*", f"{at}amp.*", f"{at}torch_autocast.*",
              f"{at}elasticity.*", f"{at}data_efficiency.*", f"{at}curriculum_learning.*",
              f"{at}progressive_layer_drop.*", f"{at}eigenvalue.*", f"{at}hybrid_engine.*", f"{at}graph_harvesting",
              f"{at}seq_parallel_communication_data_type"), "settings of what is not asked for"),
    ]
