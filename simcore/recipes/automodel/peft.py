"""Adapters and packed bases of an Automodel recipe (blocks `peft`, `quantization`), and what is compiled or in fp8."""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader

__all__ = ["read_method"]

_OFF: Final = (
    ("fp8", "enabled", "products in 8 bits (torchao) under automodel"),
    ("compile", "enabled", "a model by torch.compile"),
    ("qat", "enabled", "training that is aware of quantisation"),
)
_TARGETS: Final = "_peft/module_matcher.py: every linear layer, and nothing else"


def read_method(reader: Reader, draft: Draft) -> None:
    """Reads what is trained: all parameters, adapters, or adapters beside a packed base."""
    for block, name, what in _OFF:
        switch = reader.flag(f"{block}.{name}")
        if switch is not None and switch.value:
            draft.refuse(switch, what)
        else:
            draft.idle(switch, "the default")
        draft.idle(reader.matching(f"{block}.*"), f"settings of {block}.{name} alone")
    draft.unmodelled(reader.matching("neftune.*"), "noise that is added to embeddings")
    packed = _read_quantization(reader, draft)
    if not reader.names("peft"):
        return
    target = reader.text("peft._target_")
    draft.infer("training.method", "qlora" if packed else "lora", "the recipe has a block peft", target)
    _read_adapters(reader, draft)
    _read_implementation(reader, draft)


def _read_adapters(reader: Reader, draft: Draft) -> None:
    draft.put("training.lora.rank", reader.integer("peft.dim"))
    draft.put("training.lora.alpha", reader.number("peft.alpha"))
    draft.put("training.lora.dropout", reader.number("peft.dropout"))
    draft.put("training.lora.dropout_position", reader.text("peft.dropout_position"))
    draft.put("training.lora.use_dora", reader.flag("peft.use_dora"))
    draft.put("training.lora.target_modules", reader.words("peft.target_modules"))
    draft.put("training.lora.exclude_modules", reader.words("peft.exclude_modules"))
    everything = reader.flag("peft.match_all_linear")
    if everything is not None and everything.value:
        draft.put("training.lora.target_modules", everything, ["*"], _TARGETS)
        draft.infer("training.lora.expert_adapters", "none", "match_all_linear: experts are no linear layer",
                    source=_TARGETS)
    else:
        draft.idle(everything, "the default")


def _read_implementation(reader: Reader, draft: Draft) -> None:
    draft.unmodelled(reader.flag("peft.use_triton"), "kernels are not told apart: adapters are counted as torch's")
    for name, what in (("moe_rank_scaling", "ranks of experts that are divided by the number of active ones"),
                       ("use_memory_efficient_lora", "adapters that compute their input's gradient again")):
        asked = reader.flag(f"peft.{name}")
        if asked is not None and asked.value:
            draft.refuse(asked, what)
        else:
            draft.idle(asked, "as release 0.7.0 is simulated")
    draft.idle(reader.matching("peft.lora_A_init"), "first values of adapters")
    draft.refuse(reader.take("peft.lora_dtype"), "a format of adapters of their own")


def _read_quantization(reader: Reader, draft: Draft) -> bool:
    """True if the base is packed in 4 bits by bitsandbytes."""
    four, eight = reader.flag("quantization.load_in_4bit"), reader.flag("quantization.load_in_8bit")
    if eight is not None and eight.value:
        draft.refuse(eight, "a base in 8 bits under automodel")
    else:
        draft.idle(eight, "the default")
    if four is None or not four.value:
        draft.idle(four, "the default")
        draft.idle(reader.matching("quantization.*"), "settings of a packed base alone")
        return False
    draft.use(four)
    draft.put("training.quantization.format", reader.text("quantization.bnb_4bit_quant_type"))
    draft.put("training.quantization.double_quant", reader.flag("quantization.bnb_4bit_use_double_quant"))
    storage = reader.text("quantization.bnb_4bit_quant_storage")
    draft.put("framework_options.bnb_4bit_quant_storage", storage)
    compute = reader.text("quantization.bnb_4bit_compute_dtype")
    if compute is not None and compute.value.removeprefix("torch.") != "bfloat16":
        draft.refuse(compute, f"products of a packed base in {compute.value}")
    else:
        draft.idle(compute, "the format of the products, as by default")
    return True
