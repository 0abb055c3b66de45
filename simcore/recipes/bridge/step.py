"""Formats, recomputation, adapters, lengths, experts and graphs of Megatron-Bridge's configurations."""

from __future__ import annotations

from typing import Final

from simcore.frameworks.megatron.pipeline_layout import num_chunks
from simcore.recipes.bridge.named import COMMIT
from simcore.recipes.bridge.rows import give_up
from simcore.recipes.bridge.towers.omni import read_kept, reads_tiles
from simcore.recipes.draft import Draft
from simcore.recipes.megatron.step import recompute_problem
from simcore.recipes.megatron.without_effect import COPIES_BESIDE
from simcore.recipes.reader import Reader, Taken

__all__ = ["read_formats", "read_graphs", "read_lengths", "read_loss", "read_method",
           "read_recompute", "read_stages", "read_states"]  # fmt: skip

_OPTION: Final = "framework_options."
_RAGGED: Final = ("batches are padded to their longest sample (data/datasets/gpt_sft.py:620): they are counted at the "
                  "full length")
_PRESETS: Final = {"bf16_mixed": "", "bf16_with_fp8_current_scaling_mixed": "tensorwise",
                   "bf16_with_fp8_delayed_scaling_mixed": "delayed", "bf16_with_mxfp8_mixed": "mxfp8",
                   "bf16_with_fp8_subchannel_scaling_mixed": "blockwise",
                   "nemotron_h_bf16_with_fp8_current_scaling_mixed": "tensorwise",
                   "nanov2_bf16_with_fp8_current_scaling_mixed": "blockwise"}
_SPELT: Final = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
_SPECS: Final = "dataset.offline_packing_specs"
_STATED: Final = ("fp8_param_gather", "fp4_param_gather", "first_last_layers_bf16")
"""Switches that the simulation has by the recipe of fp8 where nothing says them (`frameworks/megatron/fp8.py`)."""
_ENDS: Final = {"nemotron_h_bf16_with_fp8_current_scaling_mixed": 2, "nanov2_bf16_with_fp8_current_scaling_mixed": 2,
                "bf16_with_fp8_current_scaling_mixed": 1}
"""Layers at each end in bf16, by preset (training/mixed_precision.py)."""


def read_formats(reader: Reader, draft: Draft) -> None:
    """Writes formats: mixed_precision wins over ddp (training/mixed_precision.py, setup)."""
    preset = None if reader.is_mapping("mixed_precision") else reader.text("mixed_precision")
    kind, recipe, narrow = (reader.text(f"mixed_precision.{name}") for name in ("fp8", "fp8_recipe", "fp4"))
    half, wide = reader.flag("mixed_precision.fp16"), reader.flag("mixed_precision.fp32")
    draft.use(half, reader.flag("mixed_precision.bf16"), preset, kind, narrow, why="parameters and products in bf16, "
              "unless fp16, fp8 or fp4 says otherwise")
    _read_wide(draft, wide)
    draft.use(recipe, why="read with mixed_precision.fp8 alone")
    name = preset.value.replace("-", "_") if preset else "bf16_mixed"
    if name not in _PRESETS:
        give_up(draft, preset.where if preset else draft.path, f"not yet: mixed_precision {name}")
    scaling = recipe.value if kind and recipe else _PRESETS.get(name, "")
    compute = "fp4" if narrow else "fp8" if scaling else "fp16" if half and half.value else "bf16"
    draft.infer("training.precision.compute", compute, "mixed_precision", preset, kind, narrow)
    grads = [reader.flag(f"{block}.grad_reduce_in_fp32") for block in ("mixed_precision", "ddp")]
    said = grads[0] if grads[0] is not None or preset is None else None
    wins = said or (None if preset else grads[1])
    has_own = draft.has_option("data_parallel_sharding_strategy")
    draft.idle([one for one in grads if one is not None and (has_own or one is not wins)],
               "Megatron-FSDP reads formats of its own (ddp.megatron_fsdp_main_grads_dtype)" if has_own else
               "mixed_precision wins (Bridge training/mixed_precision.py, setup)")
    base = "fp16" if half and half.value else "bf16"
    if has_own:
        _read_own_gradients(reader, draft, base)
    else:
        value = base if wins and not wins.value else "fp32"
        for key in ("main_grads", "grad_reduce"):
            draft.infer(f"training.precision.{key}", value, "grad_reduce_in_fp32", wins)
    if scaling:
        draft.infer(f"{_OPTION}fp8_recipe", scaling, "mixed_precision.fp8_recipe", recipe or preset)
    if preset and name in _ENDS:
        draft.infer(f"{_OPTION}first_last_layers_bf16", True, f"mixed_precision {name}", preset)  # noqa: FBT003
        for end in ("start", "end"):
            draft.infer(f"{_OPTION}num_layers_at_{end}_in_bf16", _ENDS[name], f"mixed_precision {name}", preset)
    _read_narrow(reader, draft, compute)
    _read_passed(reader, draft, base)


def _read_passed(reader: Reader, draft: Draft, base: str) -> None:
    """Reads formats in which parameters are made and stages send, and autocast; `base`: that of products in 16 bits."""
    names = {name: dtype_of(reader, f"mixed_precision.{name}") for name in ("params_dtype", "pipeline_dtype")}
    made, sent = names["params_dtype"], names["pipeline_dtype"]
    if made is not None and _SPELT.get(str(made.value).rpartition(".")[2], made.value) != base:
        draft.refuse(made, f"parameters that are made in {made.value}")
    else:
        draft.idle(made, "the format of products, as without it")
    staged = draft.values.get("mesh", {}).get("pp", 1) > 1
    if sent is not None and staged and _SPELT.get(str(sent.value).rpartition(".")[2], sent.value) != base:
        draft.unmodelled(sent, f"what stages send is counted in {base}")
    else:
        draft.idle(sent, "the format of products, as without it" if staged else "there is one stage")
    casts, cast = reader.flag("mixed_precision.autocast_enabled"), dtype_of(reader, "mixed_precision.autocast_dtype")
    draft.unmodelled(casts if casts and casts.value else None, "autocast around the layers, which compute in 16 bits "
                                                               "in any case")
    draft.idle(casts if casts and not casts.value else None, "off")
    draft.idle(cast, "read with autocast_enabled alone" if not (casts and casts.value) else "autocast's own")


def dtype_of(reader: Reader, key: str) -> Taken[str] | None:
    """Format that a key names: by its name, or as a run writes it (`_target_: torch.bfloat16`)."""
    return reader.text(f"{key}._target_" if reader.is_mapping(key) else key)


def _read_wide(draft: Draft, wide: Taken[bool] | None) -> None:
    if wide is not None and wide.value:
        draft.refuse(wide, "training in fp32")
    else:
        draft.idle(wide, "off, as without it")


def _read_own_gradients(reader: Reader, draft: Draft, base: str) -> None:
    """Writes formats of gradients under main's Megatron-FSDP, which reads settings of its own."""
    kept, sent = (reader.text(f"ddp.megatron_fsdp_{name}_dtype") for name in ("main_grads", "grad_comm"))
    value = kept.value if kept else base
    draft.infer("training.precision.main_grads", value, "megatron_fsdp_main_grads_dtype, else that of parameters", kept)
    draft.infer("training.precision.grad_reduce", sent.value if sent else value,
                "megatron_fsdp_grad_comm_dtype, else as they are kept", sent, kept)


def _read_narrow(reader: Reader, draft: Draft, compute: str) -> None:
    """Settings of fp8 and fp4 beside their recipe."""
    on = compute in ("fp8", "fp4")
    kind = reader.look("optimizer.optimizer")
    is_dealt = kind is not None and "muon" in str(kind)
    for name in ("fp8_param_gather", "first_last_layers_bf16", "fp8_wgrad", "fp8_dot_product_attention",
                 "fp8_multi_head_attention", "reuse_grad_buf_for_mxfp8_param_ag", "fp4_param_gather"):
        one = reader.flag(f"mixed_precision.{name}")
        matters = on and (compute == "fp4") >= name.startswith("fp4") and not (compute == "fp4" and name.startswith(
            ("fp8", "reuse")))
        if one is not None and matters and one.value and name.endswith("_param_gather") and draft.values.get(
                "framework_options", {}).get("use_distributed_optimizer") is False and not is_dealt:
            draft.refuse(one, "weights in 8 or 4 bits without the distributed optimizer")
            draft.infer(f"{_OPTION}{name}", False, "what it asks for is refused")  # noqa: FBT003 - a value
        elif one is not None and matters and (name in _STATED or one.value is not (name == "fp8_wgrad")):
            draft.put(f"{_OPTION}{name}", one)
        else:
            draft.idle(one, "the default, as without it" if matters else "nothing depends on it with these formats")
    is_keyed = reader.is_mapping("mixed_precision")
    if compute == "fp4" and is_keyed and reader.look("mixed_precision.fp4_param_gather") is None:
        draft.default(f"{_OPTION}fp4_param_gather", False, f"Bridge {COMMIT}",  # noqa: FBT003 - a value
                      "training/mixed_precision.py, MixedPrecisionConfig")
    _read_single(reader, draft, on=on)
    _read_head(reader, draft, compute)
    draft.idle(reader.flag("model.keep_mtp_spec_in_bf16"), "a field of HybridModelProvider that neither Bridge nor "
               "Megatron-LM d98e8a64 reads: multi-token prediction computes as the layers do")
    ends = reader.flag("model.first_last_layers_bf16")
    draft.idle(ends, "mixed_precision says it")
    for count in (reader.integer(f"mixed_precision.num_layers_at_{end}_in_bf16") for end in ("start", "end")):
        if count is not None and on and draft.values["framework_options"].get("first_last_layers_bf16"):
            draft.put(f"{_OPTION}{count.path[-1]}", count)
        else:
            draft.idle(count, "no layers are kept in bf16")
    for name in ("fp8", "fp4"):
        draft.use(reader.take(f"mixed_precision.{name}_param"), why=f"the same setting as {name}_param_gather "
                  "(training/mixed_precision.py:81), which says it")
    draft.use(reader.take("mixed_precision.fp4_recipe"), why="read with mixed_precision.fp4 alone, and nvfp4 there")
    draft.use(reader.flag("ddp.reuse_grad_buf_for_mxfp8_param_ag"), why="mixed_precision says it")


def _read_head(reader: Reader, draft: Draft, compute: str) -> None:
    """Reads if the output head computes in 8 bits; a hybrid's does not (core/models/hybrid/hybrid_model.py)."""
    head = reader.flag("model.fp8_output_proj")
    if head is None or not head.value:
        draft.idle(head, "the default, as without it")
    elif compute != "fp8":
        draft.use(head)
        draft.fail(head.where, "fp8_output_proj must be used together with fp8 mode (transformer_config.py:1571)")
    elif reader.has("model.hybrid_layer_pattern"):
        draft.idle(head, "a hybrid's head is core's own")
    else:
        draft.put(f"{_OPTION}fp8_output_proj", head)


def _read_single(reader: Reader, draft: Draft, *, on: bool) -> None:
    """Recipes of single linears, [pattern, recipe] each, which a file of Bridge's gives by its name."""
    single = reader.take("model.quant_recipe")
    if single is None or not on:
        draft.idle(single, "everything is in bf16")
    elif isinstance(single.value, list) and all(isinstance(one, list) and len(one) == 2 for one in single.value):
        draft.put(f"{_OPTION}quant_recipe", single, {str(pattern): recipe for pattern, recipe in single.value})
    else:
        draft.refuse(single, "recipes of single linears that are no list of [pattern, recipe]")


_DTYPES: Final = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.uint8": "fp8"}
"""Formats of moments as a YAML of overrides has them (main 067f987d
`training/utils/omegaconf_utils.py:499` makes them again), by the scenario's word."""


def read_states(reader: Reader, draft: Draft) -> None:
    """Writes who holds states of the optimizer, and their formats."""
    precise, momentum = reader.flag("optimizer.use_precision_aware_optimizer"), reader.number("optimizer.sgd_momentum")
    if momentum is not None and reader.look("optimizer.optimizer") == "sgd":
        draft.put("training.optimizer.momentum", momentum)
    else:
        draft.idle(momentum, "momentum is SGD's")
    first, second = reader.text("optimizer.exp_avg_dtype"), reader.text("optimizer.exp_avg_sq_dtype")
    draft.use(precise, why="off, as without it")
    draft.use(first, second, why="training.optimizer.moments says it" if first and _DTYPES.get(
        first.value, first.value) != "fp32" else "moments in fp32, as without it")
    draft.use(reader.text("optimizer.main_grads_dtype"), why="the format in which the optimizer takes gradients, which "
              "are those of their buffer (Megatron-LM core/optimizer/distrib_optimizer.py)")
    rest = reader.flag("optimizer.store_param_remainders")
    if precise is not None and precise.value:
        draft.put(f"{_OPTION}use_precision_aware_optimizer", precise)
    draft.use(rest, why="masters are what parameters lack, as with the precision-aware optimizer without it")
    if rest is not None and not rest.value:
        give_up(draft, rest.where, "not yet: optimizer.store_param_remainders: whole masters beside parameters")
    sums, squares = (_DTYPES.get(one.value, one.value) if one else "fp32" for one in (first, second))
    if first is not None and sums != "fp32":
        draft.put("training.optimizer.moments", first, sums)
    if second is not None and squares != sums:
        give_up(draft, second.where, "not yet: moments of two formats")
    offload = reader.flag("optimizer.optimizer_cpu_offload")
    share = reader.number("optimizer.optimizer_offload_fraction")
    copies = reader.flag("optimizer.overlap_cpu_optimizer_d2h_h2d")
    if copies is not None and copies.value and offload is not None and offload.value:
        draft.unmodelled(copies, COPIES_BESIDE)
    else:
        draft.idle(copies, "off, or the optimizer is on the device")
    if offload is not None and offload.value:
        part = "host" if share is None or share.value == 1 else {"space": "host", "fraction": share.value}
        draft.infer("training.offload.optimizer", part, "optimizer_cpu_offload and its fraction", offload, share)
    else:
        draft.use(offload, why="off, as without it")
        draft.idle(share, "the optimizer is on the device")


def read_recompute(reader: Reader, draft: Draft) -> None:
    """Writes recomputation, as in Megatron's arguments."""
    kind, method, count = (reader.text("model.recompute_granularity"), reader.text("model.recompute_method"),
                           reader.integer("model.recompute_num_layers"))
    modules = reader.words("model.recompute_modules")
    if kind is not None and (wrong := recompute_problem(
            kind.value, method.value if method else None, count.value if count else None)):
        draft.fail(kind.where, wrong)
    if kind is None:
        draft.idle([one for one in (method, count, modules) if one], "nothing is recomputed without a granularity")
    elif kind.value == "selective":
        draft.infer("training.recompute", list(modules.value) if modules and modules.value else ["core_attn"],
                    "recompute_modules", modules, kind)
        draft.idle([one for one in (method, count) if one], "they are of granularity full")
    else:
        size = count.value if count else 1
        by_block = method is not None and method.value == "block"
        value: object = {"mode": "block", "num_layers": size} if by_block else "full" if size == 1 else {
            "mode": "uniform", "num_layers": size}
        value = "none" if by_block and not size else value
        draft.infer("training.recompute", value, "recompute_granularity, method and num_layers", kind, method, count)
        draft.idle(modules, "they are of granularity selective")


def read_method(reader: Reader, draft: Draft) -> None:
    """Writes adapters (peft): LoRA, or DoRA."""
    target = reader.text("peft._target_")
    rank, alpha, dropout = (reader.integer("peft.dim"), reader.number("peft.alpha"), reader.number("peft.dropout"))
    wanted, unwanted = reader.words("peft.target_modules"), reader.words("peft.exclude_modules")
    if target is None:
        draft.idle([one for one in (rank, alpha, dropout, wanted, unwanted) if one], "there are no adapters")
        return
    kind = target.value.rpartition(".")[2]
    if kind not in ("LoRA", "DoRA") and not (kind == "VLMLoRA" and reads_tiles(reader)):
        give_up(draft, target.where, f"not yet: adapters of the kind {kind}")
    read_kept(reader, draft)
    draft.infer("training.method", "lora", "peft", target)
    draft.infer("training.lora.rank", rank.value if rank else 32, "peft.dim, 32 by default", rank, target)
    draft.infer("training.lora.alpha", alpha.value if alpha else 32.0, "peft.alpha, 32 by default", alpha, target)
    if dropout is not None and dropout.value:
        draft.put("training.lora.dropout", dropout)
    else:
        draft.use(dropout, why="none, as without it")
    if kind == "DoRA":
        draft.infer("training.lora.use_dora", value=True, rule="peft is DoRA")
    if wanted is not None and wanted.value:
        draft.put("training.lora.target_modules", wanted)
    if unwanted is not None and unwanted.value:
        draft.put("training.lora.exclude_modules", unwanted)
    draft.use(wanted, unwanted, why="none, as without it")
    draft.idle([one for name in ("lora_A_init_method", "lora_B_init_method") if (one := reader.text(f"peft.{name}"))],
               "initial values")
    position = reader.text("peft.dropout_position")
    draft.idle(position, "there is no dropout" if not (dropout and dropout.value) else "where dropout stands")
    if (dtype := reader.text("peft.lora_dtype")) is not None:
        draft.refuse(dtype, "adapters in a format of their own")
    fewer = reader.flag("peft.normalize_moe_lora")
    if fewer is not None and fewer.value:
        draft.refuse(fewer, "adapters of experts whose rank is dim over moe_router_topk")
    else:
        draft.idle(fewer, "off, as without it")


def _leave_padding(reader: Reader, draft: Draft, packs: Taken[bool] | None) -> None:
    """Lists samples that are as long as the longest of their batch. `packs`: the switch of packs, which is off."""
    pads = reader.look("dataset.dataset_kwargs.pad_to_max_length") or reader.look("dataset.pad_to_max_length")
    if pads or not str(reader.look("dataset._target_")).endswith("GPTSFTDatasetConfig"):
        draft.idle(packs, "off: samples are of the full length")
    elif packs is not None:
        draft.unmodelled(packs, _RAGGED)
    else:
        draft.unmodelled_default("dataset.enable_offline_packing", value=False, why=_RAGGED)


def read_lengths(reader: Reader, draft: Draft, *, owns: bool) -> None:
    """Writes the length; offline packs fill it, and hold one sequence each unless the data says otherwise.

    `owns`: the data set says the length where the model says the same, as in all launches but those of benchmarks.
    """
    own, data = reader.integer("model.seq_length"), reader.integer("dataset.seq_length")
    pack = reader.integer("dataset.offline_packing_specs.packed_sequence_size")
    packs = reader.flag("dataset.enable_offline_packing")
    if own is not None and data is not None and own.value != data.value:
        draft.fail(data.where, f"dataset.seq_length {data.value}, model.seq_length {own.value} ({own.where}): they are "
                               "equal (Bridge training/config.py:1642)")
    owner = data if owns else own
    length = owner or own or data
    if packs is not None and packs.value:
        draft.put("training.lengths", packs, "packed")
        length = pack or length
        if _SPECS.rpartition(".")[2] in reader.names("dataset") and reader.look(_SPECS) is None:
            draft.fail(packs.where, "offline_packing_specs must be set when enable_offline_packing is true (Bridge "
                                    f"{COMMIT} data/builders/gpt_sft.py:194)")
    else:
        draft.idle(pack, "no packs are made before the run")
        _leave_padding(reader, draft, packs)
    answer = draft.answers.seq_len
    for one in (own, data, pack if packs is not None and packs.value else None):
        draft.use(one, why=f"{answer.where} goes before it" if answer else "the length, as training.seq_len says it")
    if answer is not None:
        draft.answered("training.seq_len", answer)
    elif length is not None:
        draft.put("training.seq_len", length)
    else:
        draft.ask("training.seq_len", "--seq-len N", "tokens of a sequence")


def read_loss(reader: Reader, draft: Draft) -> None:
    """Writes whose cross entropy runs. TransformerEngine 2.18 is locked: its gradient is not written over logits."""
    fused, kind = reader.flag("model.cross_entropy_loss_fusion"), reader.text("model.cross_entropy_fusion_impl")
    if fused is not None and not fused.value:
        draft.put(f"{_OPTION}cross_entropy_loss_fusion", fused)
        draft.idle(kind, "it is read only with cross_entropy_loss_fusion")
    elif kind is not None:
        draft.put("training.loss", kind, {"te": "te"}.get(kind.value, "megatron"))
        draft.use(fused, why="on, as without it; cross_entropy_fusion_impl says which")
    else:
        draft.use(fused, why="on, as without it")


def read_graphs(reader: Reader, draft: Draft) -> None:
    """Writes CUDA graphs; a scope without an implementation captures nothing."""
    kind, warm = reader.text("model.cuda_graph_impl"), reader.integer("model.cuda_graph_warmup_steps")
    scope, modules = reader.words("model.cuda_graph_scope"), reader.words("model.cuda_graph_modules")
    older = [one for name in ("enable", "external") if (one := reader.flag(f"model.{name}_cuda_graph"))]
    asked = [one for one in older if one.value]
    draft.use(*older, why="off, as without it")
    if asked and (len(asked) > 1 or (kind is not None and kind.value != "none")):
        draft.fail(asked[0].where, "Do not use enable_cuda_graph or external_cuda_graph with cuda_graph_impl "
                                   "(Megatron-LM d98e8a64 core/transformer/transformer_config.py:2698)")
    if not asked and (kind is None or kind.value == "none"):
        draft.idle([one for one in (kind, warm, scope, modules) if one], "nothing is captured")
        return
    if asked:
        draft.infer(f"{_OPTION}cuda_graph_impl", "local" if "enable" in asked[0].key else "transformer_engine",
                    asked[0].key.rpartition(".")[2], *asked, kind)
    else:
        draft.put(f"{_OPTION}cuda_graph_impl", kind)
    draft.use(scope, modules, why="everything that the implementation captures")
    said = modules or scope
    named = [name for name in said.value if name != "full"] if said else []
    if named and said:
        draft.put(f"{_OPTION}cuda_graph_scope", said, named)
    if warm is not None and warm.value != 3:
        draft.put(f"{_OPTION}cuda_graph_warmup_steps", warm)
    else:
        draft.use(warm, why="3, as without it")


def read_stages(reader: Reader, draft: Draft) -> None:
    """Writes virtual stages, or a layout of the pipeline, which says them; both must agree."""
    layout, chunks = (reader.take("model.pipeline_model_parallel_layout"),
                      reader.integer("model.virtual_pipeline_model_parallel_size"))
    builder, pp = (reader.take("model._pipeline_model_parallel_layout_builder"),
                   reader.look("model.pipeline_model_parallel_size"))
    draft.use(builder, why="makes a layout where the launch changes stages (scripts/training/recipe_runner.py:373)")
    if layout is not None:
        stages = num_chunks(layout.value)
        if chunks is not None and isinstance(pp, int) and pp > 0 and stages % pp == 0 and stages != pp * chunks.value:
            draft.fail(chunks.where, "virtual_pipeline_model_parallel_size conflicts with "
                       f"pipeline_model_parallel_layout, which has {stages} chunks: {chunks.value} x {pp} stages "
                       "(Megatron-LM d98e8a64 transformer/transformer_config.py:2280)")
        draft.put(f"{_OPTION}pipeline_model_parallel_layout", layout)
        draft.use(chunks, why="pipeline_model_parallel_layout has as many")
    elif chunks is not None and chunks.value > 1:
        draft.put("training.pipeline.virtual_stages", chunks)
    else:
        draft.use(chunks, why="1, as without it")
    group = reader.integer("model.microbatch_group_size_per_vp_stage")
    several = chunks is not None and chunks.value > 1 if layout is None else num_chunks(layout.value) != pp
    if several:
        draft.put(f"{_OPTION}microbatch_group_size_per_vp_stage", group)
    else:
        draft.idle(group, "no rank has several stages")
