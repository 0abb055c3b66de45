"""Adapters and packed bases of an Automodel recipe (blocks `peft`, `quantization`), and what is compiled or in fp8."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final

from simcore.recipes.automodel.config_fields import DTYPES
from simcore.recipes.automodel.float8 import read_compile, read_float8
from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader
from simcore.recipes.rows import Idle, Off, Says, Unmodelled, read_rows

__all__ = ["ADAPTER_ROWS", "EFFICIENT_ROW", "PACKED_ROWS", "read_method"]

_OFF: Final = (
    Off("qat.enabled", "training that is aware of quantisation"),
    Idle(("qat.*",), "settings of what `enabled` switches"),
    Unmodelled(("neftune.*",), "noise that is added to embeddings"),
)
EFFICIENT_ROW: Final = Says("peft.use_memory_efficient_lora", "framework_options.use_memory_efficient_lora", "flag")
ADAPTER_ROWS: Final = (
    Says("peft.dim", "training.lora.rank"),
    Says("peft.alpha", "training.lora.alpha", "number"),
    Says("peft.dropout", "training.lora.dropout", "number"),
    Says("peft.dropout_position", "training.lora.dropout_position", "text"),
    Says("peft.use_dora", "training.lora.use_dora", "flag"),
    Says("peft.target_modules", "training.lora.target_modules", "words"),
    Says("peft.exclude_modules", "training.lora.exclude_modules", "words"),
    Unmodelled(("peft.use_triton",), "kernels are not told apart: adapters are counted as torch's"),
    Idle(("peft.lora_A_init",), "first values of adapters"),
)
PACKED_ROWS: Final = (
    Says("quantization.bnb_4bit_quant_type", "training.quantization.format", "text"),
    Says("quantization.bnb_4bit_use_double_quant", "training.quantization.double_quant", "flag"),
    Says("quantization.bnb_4bit_quant_storage", "framework_options.bnb_4bit_quant_storage", "text"),
    Says("quantization.bnb_4bit_compute_dtype", "training.precision.compute", "text", DTYPES, what="products in"),
)
_EXPERTS: Final = ("model.layers.0.mlp.experts", "model.layers.0.mixer.experts")
_TARGETS: Final = "_peft/module_matcher.py: every linear layer, and nothing else"


def read_method(reader: Reader, draft: Draft) -> None:
    """Reads what is trained: all parameters, adapters, or adapters beside a packed base."""
    read_float8(reader, draft)
    read_compile(reader, draft)
    read_rows(reader, draft, _OFF)
    packed = _read_quantization(reader, draft)
    if not reader.names("peft"):
        return
    draft.infer("training.method", "qlora" if packed else "lora", "the recipe has a block peft",
                reader.text("peft._target_"))
    has_dora = reader.look("peft.use_dora") is True
    by_function = Idle((EFFICIENT_ROW.key,), "DoRA's products are linears in any case") if has_dora else EFFICIENT_ROW
    read_rows(reader, draft, [*ADAPTER_ROWS, by_function])
    everything = reader.flag("peft.match_all_linear")
    if everything is not None and everything.value:
        draft.put("training.lora.target_modules", everything, ["*"], _TARGETS)
        draft.infer("training.lora.expert_adapters", "none", "match_all_linear: experts are no linear layer",
                    source=_TARGETS)
    else:
        draft.idle(everything, "the default")
    draft.refuse(reader.take("peft.lora_dtype"), "a format of adapters of their own")
    _read_scaling(reader, draft)


def _read_scaling(reader: Reader, draft: Draft) -> None:
    """The rank of experts over the number of active ones, where experts get adapters: by a target that fits them."""
    scaled, targets = reader.flag("peft.moe_rank_scaling"), draft.values["training"].get("lora", {}).get(
        "target_modules", ())
    if scaled is None or not scaled.value:
        draft.idle(scaled, "the default")
    elif any(fnmatchcase(path, pattern) for path in _EXPERTS for pattern in targets):
        draft.put("framework_options.moe_rank_scaling", scaled)
    else:
        draft.idle(scaled, "experts get no adapters")


def _read_quantization(reader: Reader, draft: Draft) -> bool:
    """True if the base is packed in 4 bits by bitsandbytes."""
    read_rows(reader, draft, [Off("quantization.load_in_8bit", "a base in 8 bits under automodel")])
    four = reader.flag("quantization.load_in_4bit")
    if four is None or not four.value:
        draft.idle(four, "the default")
        draft.idle(reader.matching("quantization.*"), "settings of a packed base alone")
        return False
    draft.use(four, why="packs the base, which makes the method qlora")
    read_rows(reader, draft, PACKED_ROWS)
    return True
