"""The model of an axolotl recipe: which one, in which format, with which attention, loss and kernels."""

from __future__ import annotations

from typing import Any, Final

from simcore.frameworks.common.liger import LIGER_FAMILIES
from simcore.recipes.axolotl.preference import CLASSIFIER, read_rl
from simcore.recipes.axolotl.sharding import Sharding
from simcore.recipes.axolotl.unfrozen import read_unfrozen
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.attention import read_attention
from simcore.recipes.huggingface.modules import family_of
from simcore.recipes.huggingface.named_model import read_named_model, read_remote_code
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.huggingface.tf32 import read_tf32
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Says, Unmodelled, read_rows

__all__ = ["read_formats", "read_model"]

_RELEASE: Final = "axolotl 067b021c"
_FORMATS: Final = "utils/config/__init__.py resolve_dtype"
_HALF: Final = "utils/schemas/config.py bf16: auto"
# torch 2.13 cuda/__init__.py:is_bf16_supported tries to make a tensor of bf16 where the GPU is older than Ampere
_AUTO: Final = f"{_FORMATS}; torch 2.13 is_bf16_supported: also where a GPU emulates it"
_ADAPTERS: Final = "peft_autocast_adapter_dtype"
_AUTOCAST: Final = "core/builders/base.py: bf16 of the Trainer; accelerate 1.15.0 accelerator.py prepare_model"
_LEGACY: Final = {"flash_attention": "flash_attention_2", "sdp_attention": "sdpa", "eager_attention": "eager",
                  "xformers_attention": "xformers", "flex_attention": "flex_attention"}
"""Switches of older recipes (`utils/schemas/enums.py`, LEGACY_ATTN_FLAG_TO_IMPL)."""
_CUT: Final = "CutCrossEntropyPlugin"
_PLUGINS: Final = (_CUT, "LigerPlugin", "SwanLabPlugin", "LMEvalPlugin")
"""Plugins of which nothing else is simulated than keys of theirs: the last two log, and evaluate after training."""
_IN_TEXT: Final = ("liger_rms_norm", "liger_glu_activation", "liger_rope")
_LIGER: Final = ("liger_rms_norm", "liger_glu_activation", "liger_rope", "liger_layer_norm", "liger_rms_norm_gated")
_ROWS: Final = (
    Off("tiled_mlp", "an MLP that is computed in tiles"),
    Says("use_kernels", "framework_options.use_kernels", "flag", {True: True}, {False: "the default"}),
    Off("fp8", "products in 8 bits"),
    Off("use_scattermoe", "experts by ScatterMoE"),
    Off("use_sonicmoe", "experts by SonicMoE"),
    Off("flash_attn_cross_entropy", "a loss of flash-attn"),
    Off("flash_optimum", "BetterTransformer"),
    Unmodelled(("fused_attn_kernel",), "fused norms and rotation of query and key keep less for backward than "
               "transformers' layers, which are counted"),
    Off("llama4_linearized_experts", "experts that are separate linear layers"),
    Off("gemma4_hybrid_attn_impl", "attention of two kinds"),
    Off("process_reward_model", "a reward model"),
    Idle(("torch_compile_*", "flex_attn_compile_kwargs.*", "center_rewards_coefficient"),
         "settings of what is refused, or of the loss"),
)


_UNSAID: Final = ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", "mistralai/Mistral-Small-3.1-24B-Base-2503",
                  "mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistralai/Magistral-Small-2509",
                  "OpenGVLab/InternVL3_5-8B-HF")
"""Models with two weights whose config.json has no `tie_word_embeddings`, which transformers takes for true.

As the converters write it that are in transformers (`models/mistral3`, `models/internvl`, convert_*_to_hf.py)."""
_AGAIN: Final = ("loaders/model.py _resize_token_embeddings calls tie_weights(); transformers 5.23 Mistral3Config, "
                 "InternVLConfig: tie_word_embeddings is true if config.json does not say it, modeling_utils.py "
                 "tie_weights")


def read_model(reader: Reader, draft: Draft) -> None:
    """Writes the model, its attention, its loss; refuses what changes its layers otherwise."""
    read_named_model(reader, draft, "base_model", "model_config", "overrides_of_model_config")
    _tie(draft)
    read_remote_code(reader, draft, "trust_remote_code")
    config = reader.text("base_model_config")
    if config is not None and config.value != reader.look("base_model"):
        draft.refuse(config, "the configuration of another model")
    else:
        draft.idle(config, "the model's own")
    _read_kind(reader, draft)
    experts = reader.text("experts_implementation")
    if experts is not None and experts.value != "grouped_mm":
        draft.refuse(experts, f"experts by {experts.value}")
    else:
        draft.idle(experts, "grouped products, as they are counted")
    _read_attention(reader, draft)
    _read_loss(reader, draft)
    _read_fused(reader, draft)
    read_rows(reader, draft, _ROWS)


def _read_fused(reader: Reader, draft: Draft) -> None:
    """Tells of xformers' SwiGLU, which Llama's MLP becomes with flash-attn, and no other family's.

    loaders/patch_manager.py _apply_llama_flash_attn_patches; it has the same weights, gate and up as one.
    """
    fused = reader.flag("flash_attn_fuse_mlp")
    if fused is None or not fused.value:
        draft.idle(fused, "the default")
    elif reader.look("adapter") in ("lora", "qlora"):
        draft.use(fused)
        draft.fail(fused.where, "Fused modules are not supported with LoRA/QLoRA (utils/schemas/validation.py "
                                "check_fused_lora)")
    elif family_of(draft.values.get("model")) in ("llama", "ernie4_5"):
        draft.unmodelled(fused, "xformers' SwiGLU keeps less for backward than transformers' MLP, which is counted")
    else:
        draft.idle(fused, "of Llama's MLP alone")


def _tie(draft: Draft) -> None:
    """Head and embedding that axolotl ties again (`_AGAIN`), of a model that is named by itself."""
    named = draft.values.get("model")
    if named in _UNSAID:
        del draft.values["model"]
        draft.infer("model.config", named, "base_model")
        draft.infer("model.overrides.tie_word_embeddings", True, "config.json does not say it",  # noqa: FBT003 - a value
                    source=_AGAIN)


def _read_kind(reader: Reader, draft: Draft) -> None:
    """Refuses recipes that train in another way than by predicting the next token of a text."""
    read_rl(reader, draft)
    named, same = reader.text("model_type"), reader.text("type_of_model")
    if named is not None:
        draft.idle(same, "the same key by its older name, model_type, goes before it")
    named = named or same
    if named is not None and reader.look("reward_model") is True and named.value == CLASSIFIER:
        draft.use(named, why="the head is one number for each sequence, as reward_model asks for")
    elif named is not None and not named.value.endswith("ForCausalLM") and not reader.look("trust_remote_code"):
        draft.refuse(named, f"a model of class {named.value}")
    else:
        draft.idle(named, "which class of transformers reads the model: it has the same layers")
    noise = reader.number("neftune_noise_alpha")
    if noise is not None and noise.value <= 0:
        draft.use(noise)
        draft.fail(noise.where, "neftune_noise_alpha must be more than 0 (utils/schemas/validation.py)")
    else:
        draft.unmodelled(noise, "noise that is added to embeddings")
    for block in ("diffusion", "qat", "llmcompressor"):
        for one in reader.matching(f"{block}.*"):
            draft.refuse(one, f"training with {block}")
    read_unfrozen(reader, draft)


def _read_attention(reader: Reader, draft: Draft) -> None:
    """Writes `attn_implementation`, or what a switch of an older recipe asks for."""
    asked, found = reader.text("attn_implementation"), False
    for key, name in _LEGACY.items():
        switch = reader.flag(key)
        if switch is None:
            continue
        if asked is not None or not switch.value:
            draft.idle(switch, "attn_implementation decides" if asked is not None else "the default")
        else:
            read_attention(draft, switch, name, "utils/schemas/enums.py")
            found = True
    if asked is not None or not found:
        read_attention(draft, asked, asked.value if asked else "")


def _read_loss(reader: Reader, draft: Draft) -> None:
    """Writes the loss: cut cross entropy or Liger's, where their plugins are loaded."""
    plugins = reader.words("plugins")
    loaded = [plugin.rpartition(".")[2] for plugin in plugins.value] if plugins else []
    if other := [plugin for plugin in loaded if plugin not in _PLUGINS]:
        draft.refuse(plugins, f"the plugin {other[0]}")
        plugins = None
    cut = reader.flag("cut_cross_entropy")
    fused, entropy = reader.flag("liger_fused_linear_cross_entropy"), reader.flag("liger_cross_entropy")
    kernels = [one for name in _LIGER if (one := reader.flag(name)) is not None]
    has_liger = "LigerPlugin" in loaded
    if _CUT in loaded and (cut is None or cut.value):
        draft.infer("training.loss", "cut", "the plugin of cut cross entropy", cut, plugins)
        plugins = None
        draft.idle(fused, "the plugin of cut cross entropy decides")
    elif has_liger and fused is not None and fused.value:
        draft.infer("training.loss", "liger", "Liger's loss over the head's linear layer", fused, plugins)
        plugins = None
        draft.idle(cut, "its plugin is not loaded")
    else:
        draft.idle([one for one in (cut, fused) if one], "off, or its plugin is not loaded")
    if entropy is not None and entropy.value and has_liger:
        draft.refuse(entropy, "Liger's loss over whole logits")
    else:
        draft.idle(entropy, "off, or its plugin is not loaded")
    if has_liger:
        _read_liger(reader, draft, [one for one in kernels if one.value])
        draft.idle([one for one in kernels if not one.value], "off")
    else:
        draft.idle(kernels, "its plugin is not loaded")
    draft.idle(plugins, "kernels that are listed by their own keys, or logging and evaluation")


def _read_liger(reader: Reader, draft: Draft, kernels: list[Taken[bool]]) -> None:
    """Writes Liger's kernels, which axolotl puts into the classes of a family (integrations/liger/plugin.py)."""
    family = family_of(draft.answers.settings.get("model") or draft.values.get("model"))
    if family not in LIGER_FAMILIES or reader.has("processor_type"):
        draft.unmodelled(kernels, "Liger's kernels keep less than transformers' layers")
        return
    for one in kernels:
        if one.key in _IN_TEXT:
            draft.put(f"framework_options.{one.key}", one)
        else:
            draft.idle(one, f"{family} has no such norm")
    if "framework_options" in draft.values and any(key in draft.values["framework_options"] for key in _IN_TEXT):
        draft.infer("framework_options.liger_in_classes", True, "classes are replaced before the model is made",  # noqa: FBT003 - a value
                    source=f"{_RELEASE} integrations/liger/plugin.py pre_model_load")


def read_formats(reader: Reader, draft: Draft, sharding: Sharding) -> None:
    """Writes formats of parameters and products: bf16, which is `auto` where the recipe has no such key, or another.

    resolve_dtype: `auto` is off beside fp16, else on, on any GPU; a base of 8 bits without any is read in fp16.
    """
    is_missing = "bf16" not in reader.names()
    half, full = reader.take("bf16"), reader.take("fp16")
    more = [one for one in (reader.flag("bfloat16"), reader.flag("float16")) if one is not None]
    draft.idle(reader.take("torch_dtype"), "bf16 and fp16 decide")
    said = {one.key: one.value for one in more}
    fp16 = full is not None and full.value is True
    asked = "auto" if is_missing else half.value if half is not None else None
    bf16 = asked in (True, "full") or (asked == "auto" and not fp16)
    if bf16 or said.get("bfloat16"):
        name = "bf16"
    else:
        name = "fp16" if fp16 or said.get("float16") or reader.look("load_in_8bit") is True else "fp32"
    by: tuple[Taken[Any] | None, ...] = (half, full, *more)
    zero = sharding.zero
    if zero is not None and zero.compute:
        draft.use(*by, why="DeepSpeed's configuration says the format, which must be this one")
        if zero.compute != name:
            draft.fail(reader.document.path, f"DeepSpeed's configuration enables {zero.compute}, the recipe {name}")
    elif is_missing and bf16:
        draft.use(*by, *(zero.formats if zero else ()), why="beside bf16, which is auto")
        draft.default("training.precision.compute", name, _RELEASE, _HALF)
    else:
        draft.infer("training.precision.compute", name, "formats of the recipe", *by, *(zero.formats if zero else ()),
                    source=_AUTO if bf16 and asked == "auto" else _FORMATS)
    if sharding.shards in (Shards.NONE, Shards.EACH):  # accelerate keeps what FSDP 1 trains in fp32
        draft.infer("training.precision.params", name, "the checkpoint is read in this format", source=_FORMATS)
    mixed = (name == "bf16" and asked != "full") or (fp16 and not bf16)
    _read_adapters(reader, draft, sharding, name, mixed=mixed, by=by)
    read_tf32(reader, draft, casts=mixed, by_default=True)
    _read_drawn(reader, draft, name)


def _read_drawn(reader: Reader, draft: Draft, name: str) -> None:
    """Reads `reinit_weights`: values are drawn in the format of the model's configuration, taken to be bf16.

    loaders/model.py _load_model_from_config. `name`: the recipe's format.
    """
    drawn = reader.flag("reinit_weights")
    if drawn is None or not drawn.value:
        draft.idle(drawn, "a checkpoint is read")
    elif name == "bf16":
        draft.idle(drawn, "values are drawn in place of a checkpoint's, in the same format: not part of a step")
    else:
        draft.refuse(drawn, f"values that are drawn in the configuration's format beside a step in {name}")


def _read_adapters(reader: Reader, draft: Draft, sharding: Sharding, name: str, *, mixed: bool,
                   by: tuple[Taken[Any] | None, ...]) -> None:
    """Writes the format of adapters, and autocast, which casts those in fp32 for their products.

    `name`: format of the checkpoint and of products. `mixed`: transformers' Trainer is told so, but by `bf16: full`
    (core/builders/base.py _configure_precision_settings). Adapters beside a packed base are made in fp32.
    """
    method = draft.values.get("training", {}).get("method", "full")
    if method == "full":
        if sharding.shards is Shards.NONE and mixed and name != "fp32" and reader.has("processor_type"):
            draft.infer("framework_options.autocast", True, "mixed precision of the Trainer, which norms of a tower "  # noqa: FBT003 - a value
                        "tell from a model in 16 bits", *by, source=_AUTOCAST)
        return
    kept = reader.flag(_ADAPTERS)
    if sharding.shards not in (Shards.NONE, Shards.EACH):
        draft.idle(kept, "no adapters are cast here")
        return
    if kept is not None and not kept.value and method == "lora":
        draft.put("training.lora.dtype", kept, name)
        return
    draft.use(kept, why="adapters are in fp32, as by default")
    draft.default("training.lora.dtype", "fp32", "PEFT 0.21.2", "mapping_func.py autocast_adapter_dtype")
    if sharding.shards is Shards.NONE and mixed and name != "fp32":
        draft.infer("framework_options.autocast", True, "mixed precision of the Trainer", *by,  # noqa: FBT003 - a value
                    source=_AUTOCAST)
