"""Formats, optimizer, recomputation and loss of Megatron's arguments."""

from __future__ import annotations

from typing import Any, Final

from simcore.recipes.megatron.determinism import is_main
from simcore.recipes.megatron.fields import Setting, Writer
from simcore.recipes.megatron.without_effect import limit_of_gradients

__all__ = ["recompute_problem", "write_formats", "write_loss", "write_optimizer", "write_recompute"]

_OPTION: Final = "framework_options."
_PRECISION: Final = "training.precision."


def write_formats(writer: Writer) -> None:
    """Writes formats of compute and gradients, and settings of fp8 and fp4."""
    fields = writer.fields
    bf16, fp16, fp8, fp4 = fields.flag("bf16"), fields.flag("fp16"), fields.text("fp8"), fields.text("fp4")
    base = "bf16" if bf16.value else "fp16" if fp16.value else "fp32"
    if bf16.value and fp16.value:
        writer.draft.fail(fp16.taken[0].where, "--bf16 and --fp16 exclude each other")
    compute = "fp8" if fp8.value else "fp4" if fp4.value else base
    writer.write(f"{_PRECISION}compute", compute, bf16, fp16, fp8, fp4)
    _write_gradients(writer, base)
    if compute in ("fp8", "fp4") and base == "fp32":
        writer.write(f"{_PRECISION}params", "fp32", bf16, rule="neither --bf16 nor --fp16")
    _write_fp8(writer, fp8, is_on=bool(fp8.value))
    _write_fp4(writer, fp4, is_on=bool(fp4.value))
    _write_ends(writer, is_on=bool(fp8.value or fp4.value))


def _write_gradients(writer: Writer, base: str) -> None:
    """Writes the format of gradients, which is that of their buffer (Megatron-LM main training/arguments.py:1195-1217).

    In bf16 gradients are accumulated in fp32 unless --grad-reduce-in-bf16 or --main-grads-dtype says otherwise; in fp16
    only if asked for.
    """
    fields = writer.fields
    narrow, wide = fields.flag("grad_reduce_in_bf16"), fields.flag("accumulate_allreduce_grads_in_fp32")
    kept = fields.text("main_grads_dtype")
    is_kept = kept.value in (None, "fp32")
    settings: tuple[Setting[Any], ...] = (narrow, wide)
    grads = "fp32" if base == "fp32" or (wide.value and not narrow.value) else base
    if base == "bf16" and wide.value and not is_kept:
        writer.draft.fail(kept.taken[0].where, "--main-grads-dtype can only be fp32 when "
                                               "--accumulate-allreduce-grads-in-fp32 is set (training/arguments.py)")
    elif base == "bf16" and not narrow.value:
        grads = "fp32" if wide.value or is_kept else "bf16"
        settings += (kept,) if kept.taken and not wide.value else ()
    writer.write(f"{_PRECISION}main_grads", grads, *settings)
    writer.write(f"{_PRECISION}grad_reduce", grads, *settings)


def _write_fp8(writer: Writer, kind: Setting[Any], *, is_on: bool) -> None:
    fields = writer.fields
    recipe, gather = fields.text("fp8_recipe"), fields.flag("fp8_param_gather")
    margin, algorithm, wgrad = fields.integer("fp8_margin"), fields.text("fp8_amax_compute_algo"), fields.flag(
        "fp8_wgrad")
    history, reuses = fields.integer("fp8_amax_history_len"), fields.flag("reuse_grad_buf_for_mxfp8_param_ag")
    pads = (fields.flag("moe_router_padding_for_quantization"), fields.flag("moe_router_padding_for_fp8"))
    _write_head(writer, is_on=is_on)
    if not is_on:
        precise = fields.flag("use_precision_aware_optimizer").value
        if precise and recipe.value == "delayed":
            writer.write(f"{_OPTION}fp8_recipe", "delayed", recipe)
        elif precise:
            writer.use(recipe, why="nothing computes in fp8")
        writer.idle("nothing computes in fp8", gather, margin, algorithm, wgrad, history, reuses, *pads,
                    *(() if precise else (recipe,)))
        return
    writer.write(f"{_OPTION}fp8_format", kind.value, kind)
    writer.write(f"{_OPTION}fp8_recipe", recipe.value, recipe)
    writer.write(f"{_OPTION}fp8_param_gather", gather.value, gather)
    if recipe.value == "delayed":
        writer.write(f"{_OPTION}fp8_amax_history_len", history.value, history)
    else:
        writer.idle("only delayed scaling has a history", history)
    writer.idle("values of scales", margin, algorithm)
    writer.write_other(f"{_OPTION}fp8_wgrad", wgrad.value, True, wgrad)  # noqa: FBT003
    writer.write_other(f"{_OPTION}reuse_grad_buf_for_mxfp8_param_ag", reuses.value, False, reuses)  # noqa: FBT003
    writer.write_other(f"{_OPTION}moe_router_padding_for_quantization", any(one.value for one in pads),
                       False, *pads)  # noqa: FBT003


def _write_head(writer: Writer, *, is_on: bool) -> None:
    """Reads if the output head computes in 8 bits; a hybrid's does not (core/models/hybrid/hybrid_model.py)."""
    head = writer.fields.flag("fp8_output_proj")
    if not head.value:
        writer.idle("the default, as without it", head)
    elif not is_on:
        writer.use(head)
        writer.draft.fail(head.taken[0].where, "fp8_output_proj must be used together with fp8 mode "
                                               "(transformer_config.py:1571)")
    elif writer.fields.text("hybrid_layer_pattern").value or writer.fields.text("hybrid_override_pattern").value:
        writer.idle("a hybrid's head is core's own", head)
    else:
        writer.write(f"{_OPTION}fp8_output_proj", True, head)  # noqa: FBT003


def _write_fp4(writer: Writer, kind: Setting[Any], *, is_on: bool) -> None:
    fields = writer.fields
    recipe, gather = fields.text("fp4_recipe"), fields.flag("fp4_param_gather")
    if not is_on:
        writer.idle("nothing computes in fp4", recipe, gather)
        return
    writer.write(f"{_OPTION}fp4_format", kind.value, kind)
    writer.write(f"{_OPTION}fp4_recipe", recipe.value, recipe)
    writer.write(f"{_OPTION}fp4_param_gather", gather.value, gather)


def _write_ends(writer: Writer, *, is_on: bool) -> None:
    """First and last layers in bf16; their numbers are 1 by default."""
    fields = writer.fields
    ends, start, end = (fields.flag("first_last_layers_bf16"), fields.integer("num_layers_at_start_in_bf16"),
                        fields.integer("num_layers_at_end_in_bf16"))
    if not is_on:
        writer.idle("all layers are in bf16", ends, start, end)
        return
    writer.write(f"{_OPTION}first_last_layers_bf16", ends.value, ends)
    if ends.value:
        writer.write_other(f"{_OPTION}num_layers_at_start_in_bf16", start.value, 1, start)
        writer.write_other(f"{_OPTION}num_layers_at_end_in_bf16", end.value, 1, end)
    else:
        writer.idle("--first-last-layers-bf16 is off", start, end)


# ---- optimizer -------------------------------------------------------------------------------------------------------
def write_optimizer(writer: Writer) -> None:
    """Writes optimizer, formats of its states, and who holds them."""
    fields = writer.fields
    name, scatter = fields.text("optimizer"), fields.flag("use_distributed_optimizer")
    fsdp = fields.flag("use_megatron_fsdp")
    # Main says dist_muon as muon with the distributed optimizer (`validate_args`).
    layer_wise = name.value == "dist_muon" or (name.value == "muon" and scatter.value)
    if name.value not in ("adam", "sgd", "muon", "dist_muon"):
        writer.refuse("an optimizer that is not modelled (served: adam, sgd, muon)", name)
    writer.write("training.optimizer.name", "dist_muon" if layer_wise else name.value, name,
                 *((scatter,) if layer_wise else ()))
    momentum = fields.number("sgd_momentum")
    if name.value == "sgd":
        writer.write("training.optimizer.momentum", momentum.value, momentum)
    else:
        writer.idle("momentum is SGD's", momentum)
    _write_states(writer)
    clip = fields.number("clip_grad")
    row = limit_of_gradients(clip.name)
    if clip.value is not None and clip.value > 0:
        writer.idle(row.on, clip)
    else:
        writer.unmodelled(row.off, clip)
    writer.use(scatter, fsdp, why="Megatron-FSDP shards the optimizer by its own strategy" if fsdp.value else "")
    if not fsdp.value:
        writer.write(f"{_OPTION}use_distributed_optimizer", scatter.value and not layer_wise, scatter)
    whole = fields.flag("use_layer_wise_param_layout")
    if layer_wise and whole.taken:
        writer.write(f"{_OPTION}use_layer_wise_param_layout", whole.value, whole)
    else:
        writer.idle("it is of the layer-wise optimizer (dist_muon) alone", whole)


def _write_states(writer: Writer) -> None:
    fields = writer.fields
    precise, offloads, share = (fields.flag("use_precision_aware_optimizer"), fields.flag("optimizer_cpu_offload"),
                                fields.number("optimizer_offload_fraction"))
    master, first, second, grads = (fields.text(name) for name in (
        "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype", "main_grads_dtype"))
    writer.write_other(f"{_OPTION}use_precision_aware_optimizer", precise.value, False, precise)  # noqa: FBT003
    writer.write_other("training.optimizer.master", master.value, "fp32", master)
    if first.value != second.value:
        writer.refuse("moments of two formats", first, second)
    writer.write_other("training.optimizer.moments", first.value, "fp32", first, second)
    if not precise.value and grads.value not in (None, "fp32"):
        writer.draft.fail(grads.taken[0].where, "main_grads_dtype can only be fp32 when not using precision-aware "
                                                "optimizer (core optimizer/optimizer_config.py, __post_init__)")
    writer.use(grads, why="the format in which the optimizer takes gradients, which are those of their buffer")
    if offloads.value and share.value == 0:
        writer.use(offloads, share, why="a fraction of 0: the whole optimizer is on the device")
    elif offloads.value:
        part = {"space": "host"} if share.value in (None, 1) else {"space": "host", "fraction": share.value}
        writer.write("training.offload.optimizer", part if len(part) > 1 else "host", offloads, share)
    else:
        writer.idle("the optimizer is on the device", share)
        writer.use(offloads, why="off, as without it")


# ---- recomputation and loss ------------------------------------------------------------------------------------------
def recompute_problem(granularity: str | None, method: str | None, count: int | None) -> str:
    """Message about settings that contradict the granularity; "" for none.

    Megatron-LM d98e8a64 core/transformer/transformer_config.py, `__post_init__`; core 0.16.1 has the same rules.
    """
    if granularity not in ("full", "selective"):
        return ""
    if method not in ("block", "uniform") and (method is not None or granularity == "full"):
        return f"{granularity}: recompute_method must be block or uniform, got {method}"
    is_none = method == "block" and count == 0  # no layer of each stage; uniform groups of none would never end
    if granularity == "full" and (count is None or count < 1) and not is_none:
        return f"full: recompute_num_layers must be at least 1, got {count}"
    if granularity == "selective" and count is not None:
        return "selective: recompute_num_layers must not be given"
    return ""


def write_recompute(writer: Writer) -> None:
    """Writes recomputation: modules (selective; by default the attention core), or layers (full)."""
    fields = writer.fields
    kind, method, count, modules = (fields.text("recompute_granularity"), fields.text("recompute_method"),
                                    fields.integer("recompute_num_layers"), fields.words("recompute_modules"))
    old, experts = fields.flag("recompute_activations"), fields.flag("moe_layer_recompute")
    granularity = "selective" if old.value or experts.value else kind.value
    writer.use(experts, why="off, as without it")
    settings = (kind, method, count, modules, old)
    wrong = recompute_problem(granularity, method.value, count.value)
    if granularity == "selective" and method.value is not None and not wrong:  # training/arguments.py, validate_args
        wrong = "selective: recompute_method must not be given"
    if wrong:
        writer.draft.fail(next(one for setting in (kind, old, experts) for one in setting.taken).where, wrong)
    if granularity in (None, "None", "none"):
        writer.idle("nothing is recomputed without --recompute-granularity", method, count, modules)
        writer.use(kind, old, why="nothing is recomputed")
    elif granularity == "selective":
        named = [*(modules.value or ("core_attn",))]
        named += ["moe"] if experts.value and "moe" not in named else []  # transformer_config.py, __post_init__
        writer.write("training.recompute", named, modules, kind, old, experts)
        writer.idle("they are of --recompute-granularity full", method, count)
    elif granularity == "full" and method.value == "block" and count.value == 0:
        writer.use(*settings, why="of each stage no layer is recomputed")
        writer.idle("they are of --recompute-granularity selective", modules)
    elif granularity == "full" and method.value == "block":
        writer.write("training.recompute", {"mode": "block", "num_layers": count.value or 1}, *settings)
    elif granularity == "full" and (count.value or 1) > 1:
        writer.write("training.recompute", {"mode": "uniform", "num_layers": count.value}, *settings)
    elif granularity == "full":
        writer.write("training.recompute", "full", *settings)
    else:
        writer.refuse("expected full or selective", kind)


def write_loss(writer: Writer) -> None:
    """Writes whose cross entropy runs; without fusion it is core's own."""
    fields = writer.fields
    fused, kind = fields.flag("cross_entropy_loss_fusion"), fields.text("cross_entropy_fusion_impl")
    if fused.value and kind.value in ("te", "linear"):
        if kind.value == "linear":
            writer.refuse("head and loss in one kernel", kind)
        if kind.value == "te" and is_main(writer.draft):
            writer.draft.fail(kind.taken[0].where if kind.taken else writer.draft.path, "Transformer Engine cross "
                              "entropy loss fusion is disabled due to stability issues: --cross-entropy-fusion-impl "
                              "native, or no --cross-entropy-loss-fusion (main megatron/training/arguments.py:1696)")
        writer.write("training.loss", "te", kind, fused)
    else:
        writer.write("training.loss", "megatron", fused, *((kind,) if fused.value else ()))
        if not fused.value:
            writer.idle("it is read only with --cross-entropy-loss-fusion", kind)
    writer.write_other(f"{_OPTION}cross_entropy_loss_fusion", fused.value, True, fused)  # noqa: FBT003
