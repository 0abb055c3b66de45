"""Method of a LLaMA-Factory recipe: all parameters, or adapters, beside a packed base or not.

`lora_target: all` takes every linear layer but the head (ff6d4d12 `model/model_utils/misc.py`,
find_all_linear_modules). Routed experts are no linear layers in transformers 5, so that they get none.
"""

from __future__ import annotations

import re
from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.accelerate import Launch
from simcore.recipes.huggingface.fsdp import wrap_adapters
from simcore.recipes.huggingface.modules import LINEARS_BEHIND_TOWERS, family_of, linears_of
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.llamafactory.images import adapted_names
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Row, Says, read_rows

__all__ = ["read_method"]

_RELEASE: Final = "LLaMA-Factory ff6d4d12"
_ARGUMENTS: Final = "hparams/finetuning_args.py LoraArguments"
_PACKED: Final = "model/model_utils/quantization.py configure_quantization"
_ROWS: Final[tuple[Row, ...]] = (
    Says("use_rslora", "training.lora.use_rslora", "flag"),
    Says("use_dora", "training.lora.use_dora", "flag"),
    Off("create_new_adapter", "adapters beside others that are merged"),
    Off("use_llama_pro", "layers that are added (LLaMA Pro)"),
    Idle(("pissa_convert",), "files of the adapter, before the first step and after the last"),
    Idle(("pissa_*",), "first values of adapters"),
    Idle(("loraplus_*",), "learning rates of adapters: the same states"),
    Idle(("freeze_trainable_*", "freeze_extra_*", "oft_*", "module_dropout"), "of another method"),
)
_NO_ADAPTERS: Final[tuple[Row, ...]] = (
    Off("use_dora", "DoRA without adapters"), Off("use_rslora", "scaled adapters without any"),
    Off("pissa_init", "adapters' values without any"), Off("use_llama_pro", "layers that are added (LLaMA Pro)"),
    Idle(("freeze_trainable_*", "freeze_extra_*"), "of the method freeze"),
    Idle(("lora_*", "loraplus_*", "pissa_*", "additional_target", "create_new_adapter", "oft_*", "module_dropout"),
         "no adapters are asked for"),
)
_UNPACKED: Final = Idle(("quantization_*", "double_quantization"), "no base is packed")


def read_method(reader: Reader, draft: Draft, launch: Launch) -> str:
    """Writes the method, and returns it; adapters are the default."""
    kind = reader.text("finetuning_type")
    if kind is not None and kind.value not in ("full", "lora"):
        what = {"freeze": "a few layers that are trained", "oft": "orthogonal adapters (OFT)"}
        draft.refuse(kind, what.get(kind.value, f"the method {kind.value}"))
        draft.idle(reader.matching("lora_*", "loraplus_*", "pissa_*", "use_dora", "use_rslora", "additional_target",
                                   "freeze_*", "oft_*", "module_dropout", "quantization_*", "double_quantization",
                                   "create_new_adapter", "use_llama_pro", "adapter_*"), "settings of what is refused")
        return "full"
    if kind is not None and kind.value == "full":
        draft.infer("training.method", "full", "finetuning_type", kind)
        for name in ("quantization_bit", "adapter_name_or_path"):
            draft.refuse(reader.take(name), "a base with adapters that is trained in full")
        read_rows(reader, draft, (*_NO_ADAPTERS, _UNPACKED))
        return "full"
    method = "qlora" if _read_packed(reader, draft, launch) else "lora"
    rule = f"finetuning_type: {kind.value if kind else 'lora where it is not said'}"
    draft.infer("training.method", method, rule, kind, source=f"{_RELEASE} {_ARGUMENTS}")
    draft.refuse(reader.take("adapter_name_or_path"), "adapters that are read from files, which say their rank")
    draft.idle(reader.take("adapter_folder"), "where adapters lie")
    draft.refuse(reader.take("additional_target"), "modules that are trained beside the adapters")
    _read_sizes(reader, draft)
    _read_targets(reader, draft)
    read_rows(reader, draft, _ROWS)
    _check(draft, launch, method)
    return method


def _read_sizes(reader: Reader, draft: Draft) -> None:
    """Rank 8; alpha twice the rank; no dropout."""
    rank, alpha, dropout = reader.integer("lora_rank"), reader.number("lora_alpha"), reader.number("lora_dropout")
    size = rank.value if rank else 8
    if rank is not None:
        draft.put("training.lora.rank", rank)
    else:
        draft.default("training.lora.rank", size, _RELEASE, _ARGUMENTS)
    if alpha is not None:
        draft.put("training.lora.alpha", alpha)
    else:
        draft.default("training.lora.alpha", float(size * 2), _RELEASE, f"{_ARGUMENTS}: twice the rank")
    draft.put("training.lora.dropout", dropout)


def _read_targets(reader: Reader, draft: Draft) -> None:
    """Modules by name, separated by commas, or all linear ones; PEFT gets a list, which names fit by their ends."""
    named: Taken[Any] | None = reader.words("lora_target")
    words = [one.strip() for word in (named.value if named else ["all"]) for one in word.split(",")]
    family = family_of(draft.answers.settings.get("model") or draft.values.get("model"))
    if words == ["all"]:
        if not family:  # the model is unknown, which is told in any case
            draft.use(named, why="adapters of a model that is not known")
        elif family in LINEARS_BEHIND_TOWERS:
            draft.infer("training.lora.target_modules", adapted_names(draft, LINEARS_BEHIND_TOWERS[family]),
                        "every linear layer of the language model but the head", named,
                        source=f"{_RELEASE} model/model_utils/visual.py patch_target_modules")
        elif linears_of(family):
            draft.infer("training.lora.target_modules", list(linears_of(family)), "every linear layer but the head",
                        named, source=f"{_RELEASE} model/model_utils/misc.py find_all_linear_modules")
        elif named is not None:
            draft.refuse(named, f"all linear layers of the family {family}")
        else:
            draft.fail(draft.path, f"not yet: lora_target, all where it is not said: all linear layers of {family}")
    elif any(re.search(r"[\\()|*\[^$+?]", word) for word in words):
        draft.refuse(named, "modules by a pattern")
    else:
        draft.put("training.lora.target_modules", named, words)


def _read_packed(reader: Reader, draft: Draft, launch: Launch) -> bool:
    """True if the base is packed by bitsandbytes while it is read: NF4 with packed scales unless it is said."""
    bits = reader.integer("quantization_bit")
    if bits is None:
        read_rows(reader, draft, [_UNPACKED])
        return False
    packer = reader.text("quantization_method")
    if packer is not None and packer.value not in ("bnb", "bitsandbytes"):
        draft.refuse(packer, f"a base that {packer.value} packs")
        draft.idle(reader.matching("quantization_*", "double_quantization"), "settings of what is refused")
        draft.use(bits, why="the base is packed, which makes the method qlora")
        return True
    draft.idle(packer, "the default")
    if bits.value == 8:
        draft.infer("training.quantization.format", "int8", "quantization_bit", bits, source="LLM.int8()")
        read_rows(reader, draft, [Idle(("quantization_type", "double_quantization"), "about 4 bits")])
        if launch.shards in (Shards.FLAT, Shards.EACH) or draft.has_option(
                "stage3_param_persistence_threshold"):
            draft.fail(bits.where, f"quantization_bit 8 under {draft.values.get('framework')} is an error of "
                                   f"LLaMA-Factory: 4 bits alone ({_RELEASE} {_PACKED})")
    elif bits.value == 4:
        draft.use(bits, why="the base is packed, which makes the method qlora")
        _read_four(reader, draft, launch)
    else:
        draft.use(bits, why="the base is packed, which makes the method qlora")
        draft.fail(bits.where, f"quantization_bit: expected 4 or 8, got {bits.value} ({_RELEASE} {_PACKED})")
    read_rows(reader, draft, [Says("quantization_device_map", "", "text", {None: None}, what="devices by")])
    return True


def _read_four(reader: Reader, draft: Draft, launch: Launch) -> None:
    read_rows(reader, draft, [Says("quantization_type", "training.quantization.format", "text")])
    nested = reader.flag("double_quantization")
    if nested is not None:
        draft.put("training.quantization.double_quant", nested)
    else:
        draft.default("training.quantization.double_quant", value=True, release=_RELEASE,
                      source="hparams/model_args.py QuantizationArguments")
    if launch.shards is Shards.FLAT:
        draft.default("framework_options.bnb_4bit_quant_storage", "bfloat16", _RELEASE, f"{_PACKED}: the format of "
                                                                                        "products")


def _check(draft: Draft, launch: Launch, method: str) -> None:
    """Refuses adapters under FSDP whose formats the simulation does not have."""
    if launch.shards is Shards.EACH and method == "qlora":
        draft.fail(draft.path, "not yet: a packed base under FSDP 2, all of which accelerate 1.11.0 casts to fp32 "
                               "(utils/fsdp_utils.py fsdp2_prepare_model)")
    elif launch.shards is Shards.FLAT:
        wrap_adapters(draft)
