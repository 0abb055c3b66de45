"""Checks of how the kernels of experts run: TransformerEngine's operation fuser, a shared expert beside exchanges."""

from __future__ import annotations

from collections.abc import Collection

from simcore.models.blocks import Mlp, Moe
from simcore.placement.job import Job

__all__ = ["check_fuser", "check_shared_overlap"]


def check_shared_overlap(job: Job, options: dict[str, object]) -> None:
    """Raises IllegalLayout or InputError if moe_shared_expert_overlap is on where it cannot be.

    The option overlaps the shared expert with the exchange of tokens. IllegalLayout with another dispatcher than
    alltoall (main: or flex) or with overlap_moe_expert_parallel_comm, InputError without a shared expert.
    """
    key = "moe_shared_expert_overlap"
    if not options.get(key):
        return
    if not any(isinstance(b.block, Moe) and b.block.shared_ffn for kind in job.graph.kinds for b in kind.branches):
        job.refuse_idle(options, key, "without a shared expert")
    kind = options.get("moe_token_dispatcher_type", "alltoall")
    is_main = job.scenario.framework_version == "main 2026-08-22"
    if kind not in ("alltoall", *("flex",) * is_main):
        raise job.illegal(f"framework_options.{key}", "moe_shared_expert_overlap only works with alltoall "
                          f"{'or flex ' * is_main}token dispatcher.", "main 2026-08-22 transformer_config.py:1820"
                          if is_main else "core 0.16.1 transformer_config.py:1093")
    if options.get("overlap_moe_expert_parallel_comm"):
        raise job.illegal(f"framework_options.{key}", "disable moe_shared_expert_overlap when enabling "
                          "overlap_moe_expert_parallel_comm", "core 0.16.1 transformer_config.py:1888")


def check_fuser(job: Job, options: dict[str, object], narrow: Collection[int]) -> None:
    """Raises NotYet if TE's operation fuser is on where it is not modelled. `narrow`: layers in 8 or 4 bits.

    TE's operations then replace its modules: a dense MLP's (core 0.16.1 `gpt_layer_specs.py`:494, main :539), and in
    main the experts' (`moe/experts.py`:287), as one operation, of which the kernels for mxfp8 are modelled. Raises
    IllegalLayout where the activation of experts is recomputed and they are not one operation.
    """
    key, blocks = "framework_options.use_transformer_engine_op_fuser", [
        branch.block for kind in job.graph.kinds for branch in kind.branches]
    if not options.get("use_transformer_engine_op_fuser"):
        return
    if not job.has_experts:
        lora = [spec.path for specs in job.graph.tensors for spec in specs if spec.module == "adapter"]
        if any(isinstance(block, Mlp) and not block.gated for block in blocks) or any("fc" in path for path in lora):
            raise job.not_yet(key, "a dense MLP of TransformerEngine's operations (TEFusedMLP) that has no gate, or "
                              "adapters")
        return
    if job.scenario.framework_version != "main 2026-08-22":
        if any(isinstance(block, Mlp) for block in blocks):
            raise job.not_yet(key, "a dense MLP of TransformerEngine's operations (TEFusedMLP) beside experts")
        return
    recomputed = job.scenario.training.recompute
    again = isinstance(recomputed, tuple) and "moe_act" in recomputed
    is_one = job.narrow == "fp4" or options.get("fp8_recipe") == "mxfp8"
    if again and (not is_one or _in_16_bits(job, narrow)):
        raise job.illegal(key, "activation_recompute_in_mlp=True requires the fused grouped MLP path, which is for "
                          "mxfp8 and nvfp4", "TransformerEngine d0067d0d pytorch/ops/basic/activation.py:405, "
                          "swiglu.py:523, pytorch/ops/fused/grouped_mlp.py:843")
    if options.get("fp8_recipe") != "mxfp8":
        raise job.not_yet(key, "experts of TransformerEngine's operations in other formats than mxfp8")
    if again and options.get("moe_paged_stash") and any(not block.gated for block in blocks if isinstance(block, Moe)):
        raise job.not_yet("training.recompute", "pages of experts whose squared ReLU is made again in backward")


def _in_16_bits(job: Job, narrow: Collection[int]) -> bool:
    """True if a layer with experts computes in 16 bits, `narrow`: numbers of those that do not."""
    kinds = job.graph.kinds
    return any(isinstance(branch.block, Moe) for layer in job.graph.layers if layer.index not in narrow
               for branch in kinds[layer.kind].branches)
