"""Adapters and packed bases of an axolotl recipe."""

from __future__ import annotations

from typing import Final

from simcore.errors import Problem
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.experts import experts_of
from simcore.recipes.huggingface.modules import LINEARS_WITH_TOWERS, family_of, linears_of
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Says, Unmodelled, read_rows

__all__ = ["ADAPTER_ROWS", "BASE_ROWS", "read_method"]

_KERNELS: Final = {
    "lora_mlp_kernel": "the fused MLP keeps less for backward than PEFT's layers, which are counted",
    "lora_qkv_kernel": "fused queries, keys and values keep their input once, PEFT's layers, which are counted, each",
    "lora_o_kernel": "the fused output keeps less for backward than PEFT's layer, which is counted"}
"""Fused layers (`kernels/lora.py`), each with how it is counted instead."""
_EMBEDDING: Final = "lora_embedding_kernel"
_OF_EMBEDDING: Final = "the fused embedding keeps less for backward than PEFT's layer, which is counted"
_WITHOUT: Final = "no embedding has an adapter"
_QUANTIZED: Final = "loaders/model.py _set_quantization_config"
_EXPERTS: Final = "quantize_moe_experts"
_KBIT: Final = "prepare_model_for_kbit_training"
_PREPARED: Final = "loaders/model.py _prepare_model_for_quantization, _convert_embedding_modules_dtype"
_OF_STAGE_3: Final = "zero_hpz_partition_size"
"""Option of the one stage of ZeRO beside which axolotl leaves PEFT's preparation out."""
_STORED: Final = "model_quantization_config"
_ALL: Final = "all-linear"
"""PEFT's word for all linear layers but the head (0.21.2 tuners/tuners_utils.py, _maybe_include_all_linear_layers)."""
_LINEAR: Final = "loaders/adapter.py find_all_linear_names: every linear layer but the head"
ADAPTER_ROWS: Final = (
    Says("lora_r", "training.lora.rank"),
    Says("lora_alpha", "training.lora.alpha", "number"),
    Says("lora_dropout", "training.lora.dropout", "number"),
    Says("peft_use_dora", "training.lora.use_dora", "flag"),
    Says("peft_use_rslora", "training.lora.use_rslora", "flag"),
    Says("lora_exclude_modules", "training.lora.exclude_modules", "words"),
    Off("lora_on_cpu", "adapters on the host"),
    Unmodelled(("relora",), "every jagged_restart_steps steps, before anything is computed, adapters are merged module "
               "by module and states are pruned (monkeypatch/relora.py): the steps between are counted"),
    Unmodelled(("relora_steps",), "adapters are merged every so many steps (a key of releases up to 0.9): the steps "
               "between are counted"),
    Idle(("relora_*", "relora_warmup_steps", "relora_anneal_steps", "peft.loftq_config.*",
          "peft_init_lora_weights"), "first values of adapters, restarts"),
)
BASE_ROWS: Final = (
    Says("bnb_config_kwargs.bnb_4bit_use_double_quant", "training.quantization.double_quant", "flag"),
    Says("bnb_config_kwargs.bnb_4bit_quant_type", "training.quantization.format", "text"),
)

_OF_FOUR: Final = (
    Says("bnb_config_kwargs.bnb_4bit_quant_storage", "framework_options.bnb_4bit_quant_storage", "text"),
    Idle(("bnb_config_kwargs.llm_int8_*",), "of 8 bits alone"),
)


def read_method(reader: Reader, draft: Draft, shards: Shards) -> None:
    """Writes what is trained: all parameters, adapters, or adapters beside a base of 4 or 8 bits."""
    adapter = reader.text("adapter")
    packed = [one for one in (reader.flag("load_in_4bit"), reader.flag("load_in_8bit")) if one is not None]
    on = [one for one in packed if one.value]
    for key, what in (("gptq", "a base in GPTQ"), ("use_onebitllms", "one-bit layers")):
        read_rows(reader, draft, [Off(key, what)])
    _read_checkpoint(reader, draft, on)
    experts = _packed_experts(reader, draft, on)
    if adapter is None:
        _none(reader, draft, packed, on)
        return
    if adapter.value not in ("lora", "qlora"):
        draft.refuse(adapter, f"adapters of kind {adapter.value}")
        draft.use(*packed)
        draft.idle(reader.matching("lora_*", "peft_*", "bnb_config_kwargs.*"), "settings of these adapters")
        return
    on = _packing(draft, adapter, packed)
    draft.infer("training.method", "qlora" if on else "lora",
                "adapters beside a packed base" if on else "adapters beside a base of 16 bits", adapter,
                *(one for one in packed if one in on or not one.value), source=_QUANTIZED)
    _read_packed(reader, draft, on, shards, experts)
    _read_kernels(reader, draft, on, shards)
    read_rows(reader, draft, ADAPTER_ROWS)
    for key in ("lora_target_parameters", "peft_layers_to_transform"):
        draft.refuse(reader.take(key), "parameters that are trained beside the adapters of whole modules")
    saved = reader.words("lora_modules_to_save")
    if saved is not None and saved.value and shards is not Shards.NONE:
        draft.refuse(saved, "modules that train beside adapters, and are shared out")
    elif saved is not None and saved.value:
        draft.put("training.lora.modules_to_save", saved)
    else:
        draft.idle(saved, "nothing is said")
    _read_targets(reader, draft, adapter.where)


def _packing(draft: Draft, adapter: Taken[str], packed: list[Taken[bool]]) -> list[Taken[bool]]:
    """Switch that packs the base: qlora packs it in 4 bits and takes no other, lora in 8."""
    four = adapter.value == "qlora"
    on = [one for one in packed if one.value]
    found = [one for one in on if (one.key == "load_in_4bit") == four]
    others = [one for one in on if one not in found]
    if four and others:
        draft.fail(others[0].where, "qlora beside load_in_8bit (utils/schemas/peft.py validate_qlora)")
        draft.use(*others)
    else:
        draft.idle(others, "read with qlora alone")
    if four and not found:
        draft.fail(adapter.where, "qlora without load_in_4bit (utils/schemas/peft.py validate_qlora)")
    return found


def _read_checkpoint(reader: Reader, draft: Draft, on: list[Taken[bool]]) -> None:
    """A checkpoint in few bits is served only where it is unpacked while it is read. `on`: switches that pack a base.

    loaders/model.py _set_quantization_config hands the block of arguments to the class that is named, or to none.
    """
    stored, unpacked = reader.take(_STORED), reader.flag(f"{_STORED}_kwargs.dequantize")
    others = reader.matching(f"{_STORED}_kwargs", f"{_STORED}_kwargs.*")
    if stored is None:
        draft.idle([*([unpacked] if unpacked else []), *others], f"nothing reads it without {_STORED}")
        return
    if on:
        draft.fail(stored.where, f"{_STORED} and {on[0].key} cannot be used together (utils/schemas/validation.py "
                                 "check_model_quantization_config_vs_bnb)")
    if stored.value not in ("Mxfp4Config", "FineGrainedFP8Config"):
        draft.fail(stored.where, f"{_STORED}: expected Mxfp4Config or FineGrainedFP8Config, got {stored.value}")
    if unpacked is not None and unpacked.value:
        draft.use(stored, unpacked, why="the checkpoint is unpacked to 16 bits while it is read")
        draft.idle(others, "of layers that stay in few bits: none does")
    else:
        draft.refuse(stored, "a base that stays in the format of its checkpoint")
        draft.idle([*([unpacked] if unpacked else []), *others], "of a base that is refused")


def _none(reader: Reader, draft: Draft, packed: list[Taken[bool]], on: list[Taken[bool]]) -> None:
    for one in packed:
        if one in on:
            draft.refuse(one, "a packed base that is trained in full")
        else:
            draft.idle(one, "the default")
    draft.idle(reader.matching("lora_*", "peft_*", "peft.*", "bnb_config_kwargs.*"), "no adapters are asked for")


def _packed_experts(reader: Reader, draft: Draft, on: list[Taken[bool]]) -> Taken[bool] | None:
    """Switch that packs experts as they are read, which axolotl takes beside a packed base and named targets alone.

    utils/schemas/config.py check_quantize_moe_experts. A model without experts has nothing that it packs.
    """
    switch = reader.flag("quantize_moe_experts")
    if switch is None or not switch.value:
        draft.idle(switch, "the default")
        return None
    wrong = ("lora_target_linear is not compatible with quantize_moe_experts" if reader.look("lora_target_linear") else
             "quantize_moe_experts requires adapter: lora or qlora" if reader.look("adapter") is None else
             "" if on else "quantize_moe_experts requires load_in_4bit or load_in_8bit")
    if wrong:
        draft.use(switch)
        draft.fail(switch.where, f"{wrong} (utils/schemas/config.py check_quantize_moe_experts)")
    elif experts_of(draft) == []:
        draft.idle(switch, "the model has no experts")
    else:
        return switch
    return None


def _read_packed(reader: Reader, draft: Draft, on: list[Taken[bool]], shards: Shards,
                 packed: Taken[bool] | None) -> None:
    """Format of the base: axolotl packs in NF4 with packed scales, and stores it as bf16.

    `bnb_config_kwargs` goes before that, for 4 bits alone. `packed`: packs experts too, and leaves PEFT's preparation
    out.
    """
    if family_of(draft.values.get("model")) == "falcon_h1":
        _read_falcon(reader, draft, on, shards)
    elif packed is not None and draft.has_option(_EXPERTS):
        draft.put(f"framework_options.{_EXPERTS}", packed, source="monkeypatch/moe_quant.py")
    elif packed is not None:
        draft.refuse(packed, "experts that are packed, and shared out")
    elif on and experts_of(draft):
        _read_experts(reader, draft, on, shards)
    if any(one.key == "load_in_8bit" for one in on):
        draft.infer("training.quantization.format", "int8", "load_in_8bit", source="LLM.int8() of bitsandbytes")
        draft.idle(reader.matching("bnb_config_kwargs.*"), f"read with load_in_4bit alone ({_QUANTIZED})")
        return
    if on and shards is Shards.FLAT:
        draft.default("framework_options.bnb_4bit_quant_storage", "bfloat16", "axolotl 067b021c", _QUANTIZED)
    if on:
        draft.refuse(reader.take("bnb_config_kwargs.llm_int8_skip_modules"), "layers that are not packed")
        read_rows(reader, draft, [*BASE_ROWS, *_OF_FOUR])
    else:
        draft.idle(reader.matching("bnb_config_kwargs.*"), "no base is packed")


def _read_experts(reader: Reader, draft: Draft, on: list[Taken[bool]], shards: Shards) -> None:
    """Writes that PEFT casts experts, one parameter, to fp32 beside a packed base, but where weights are shared out."""
    if draft.has_option(_KBIT):
        draft.infer(f"framework_options.{_KBIT}", "cast_back", "experts beside a packed base", *on, source=_PREPARED)
    elif shards is not Shards.FLAT and shards is not Shards.EACH and not draft.has_option(_OF_STAGE_3):
        draft.barred.append(Problem(reader.document.path, "not yet: experts that PEFT casts to fp32 beside a packed "
                                    f"base under ZeRO without shards of parameters ({_PREPARED})"))


def _read_falcon(reader: Reader, draft: Draft, on: list[Taken[bool]], shards: Shards) -> None:
    """Writes what is not packed of Falcon-H1: Mamba's output projection alone, so that the head is.

    And that of what PEFT casts to fp32 norms and embedding are cast back, which leaves other parameters of Mamba.
    """
    if not on:
        return
    if shards is not Shards.NONE or any(one.key == "load_in_8bit" for one in on):
        what = "beside shards" if shards is not Shards.NONE else "in 8 bits"
        draft.fail(reader.document.path, f"not yet: Falcon-H1 whose output head is packed {what} ({_QUANTIZED}: "
                                         "llm_int8_skip_modules is out_proj alone)")
        return
    draft.infer("framework_options.llm_int8_skip_modules", ["out_proj"], "Falcon-H1 in 4 bits", *on, source=_QUANTIZED)
    draft.infer(f"framework_options.{_KBIT}", "cast_back", "a base in 4 bits", *on, source=_PREPARED)


def _read_kernels(reader: Reader, draft: Draft, on: list[Taken[bool]], shards: Shards) -> None:
    """Tells of fused kernels, which axolotl switches on by itself if no key of theirs is given.

    utils/schemas/config.py check_auto_enable_lora_kernels: but for training by rl, LoRA beside 8 bits, remote code, and
    FSDP 1.
    """
    given = [one for key in (*_KERNELS, _EMBEDDING) if (one := reader.flag(key)) is not None]
    has_embedding = any("embed" in str(word) for word in reader.look("lora_target_modules") or ())
    for one in given:
        if not one.value:
            draft.idle(one, "PEFT's layer, which is counted")
        elif one.key == _EMBEDDING and not has_embedding:
            draft.idle(one, _WITHOUT)
        else:
            draft.unmodelled(one, _KERNELS.get(one.key, _OF_EMBEDDING))
    eight = any(one.key == "load_in_8bit" for one in on) and reader.look("adapter") == "lora"
    if given or eight or reader.look("trust_remote_code") or shards is Shards.FLAT or reader.look("rl") is not None:
        return
    for key, why in (*_KERNELS.items(), *([(_EMBEDDING, _OF_EMBEDDING)] if has_embedding else [])):
        draft.unmodelled_default(key, "true", why)


def _read_targets(reader: Reader, draft: Draft, where: str) -> None:
    """Modules that get adapters: all linear layers, a list of names, or a text, which PEFT takes for a pattern.

    `where`: place of the key that asks for adapters. Without either the list is empty, with which PEFT stops.
    """
    linear, named = reader.flag("lora_target_linear"), reader.words("lora_target_modules")
    text = reader.look("lora_target_modules")
    if isinstance(text, str) and text != _ALL and named is not None and not (linear and linear.value):
        draft.idle(linear, "the default")
        draft.infer("training.lora.target_modules", named.value[0], "a text is a pattern of whole names", named,
                    source="PEFT 0.21.2 tuners/tuners_utils.py match_target_against_key")
        return
    if text != _ALL and (linear is None or not linear.value):
        draft.idle(linear, "the default")
        if named is None and not reader.has("lora_target_parameters"):
            draft.fail(where, "no modules to adapt: expected lora_target_modules, or lora_target_linear: true "
                              "(loaders/adapter.py: PEFT gets an empty list, and stops)")
        draft.put("training.lora.target_modules", named)
        return
    family = family_of(draft.values.get("model"))
    if not family:  # the model is unknown, which is told in any case
        draft.use(linear, named, why="adapters of a model that is not known")
    elif linears := linears_of(family) or LINEARS_WITH_TOWERS.get(family, ()):
        names = list(dict.fromkeys([*linears, *(named.value if named and text != _ALL else ())]))
        draft.infer("training.lora.target_modules", names, "every linear layer", linear, named, source=_LINEAR)
    else:
        asking, other = (named, linear) if text == _ALL else (linear, named)
        draft.refuse(asking, f"all linear layers of the family {family}")
        draft.use(other, why="beside all linear layers, which are refused")
