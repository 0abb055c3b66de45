"""Method of a TRL recipe: all parameters, or adapters, by its own keys or by the `adapter_config.json` beside it.

[Note: one target] TRL makes one name out of a list of one, and PEFT takes a single text for a pattern that must fit the
whole path of a module: `q_proj` then fits nothing (TRL 1.16.0 `trainer/model_config.py` __post_init__; PEFT 0.21.2
`tuners/tuners_utils.py` check_target_module_exists).
"""

from __future__ import annotations

import re
from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.accelerate import Launch
from simcore.recipes.huggingface.fsdp import wrap_adapters
from simcore.recipes.huggingface.modules import NAMED_BY_PEFT, family_of, write_linears
from simcore.recipes.huggingface.shards import Shards
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Idle, Off, Row, Says, read_rows
from simcore.recipes.trl.formats import Formats
from simcore.recipes.trl.grpo.defaults import Release

__all__ = ["read_method"]

_MODEL: Final = "trainer/model_config.py ModelConfig"
_ROWS: Final[tuple[Row, ...]] = (
    Says("use_rslora", "training.lora.use_rslora", "flag"),
    Says("use_dora", "training.lora.use_dora", "flag"),
    Says("lora_task_type", "", "text", {None: None}, {"CAUSAL_LM": "the default"}, "adapters for"),
)
_OF_FILE: Final[tuple[Row, ...]] = (
    Says("peft_type", "", "text", {None: None}, {"LORA": "the kind that is read"}, "adapters of kind"),
    Says("r", "training.lora.rank"),
    Says("lora_alpha", "training.lora.alpha", "number"),
    Says("lora_dropout", "training.lora.dropout", "number"),
    Says("use_rslora", "training.lora.use_rslora", "flag"),
    Says("use_dora", "training.lora.use_dora", "flag"),
    Says("exclude_modules", "training.lora.exclude_modules", "words"),
    Says("bias", "", "text", {None: None}, {"none": "the default"}, "biases that train:"),
    *(Off(name, what) for name, what in (("lora_bias", "adapters with a bias"), ("use_qalora", "QALoRA"),
                                         ("ensure_weight_tying", "adapters that are tied"))),
    Idle(("auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "init_lora_weights", "task_type",
          "fan_in_fan_out", "loftq_config", "loftq_config.*", "peft_version", "corda_config", "eva_config",
          "megatron_config", "megatron_core", "qalora_group_size", "layers_pattern"), "files, or first values"),
)
_OTHERS: Final = ("modules_to_save", "target_parameters", "layers_to_transform", "layer_replication", "rank_pattern",
                  "alpha_pattern", "trainable_token_indices", "arrow_config", "alora_invocation_tokens")


def read_method(reader: Reader, draft: Draft, file: Reader | None, launch: Launch, formats: Formats,
                release: Release) -> None:
    """Writes the method and its settings. `file`: the reader of `adapter_config.json`, None if there is none."""
    wanted = reader.flag("use_peft")
    if file is None and (wanted is None or not wanted.value):
        draft.idle(wanted, "the default")
        for name in ("load_in_4bit", "load_in_8bit"):
            read_rows(reader, draft, [Off(name, "a packed base that is trained in full")])
        draft.idle(reader.matching("lora_*", "use_rslora", "use_dora", "bnb_4bit_*", "use_bnb_nested_quant"),
                   "no adapters are asked for")
        return
    packed = _read_packed(reader, draft, formats, release)
    method = "qlora" if packed else "lora"
    if file is not None:
        draft.infer("training.method", method, "adapters of a file", where=file.document.path)
        draft.idle(wanted, "there are adapters of a file")
        draft.idle(reader.matching("lora_*", "use_rslora", "use_dora"), "the file of the adapters says it")
        _read_file(file, draft)
    else:
        draft.infer("training.method", method, "use_peft", wanted)
        _read_keys(reader, draft, release)
    if launch.shards is Shards.FLAT:
        wrap_adapters(draft)


def _read_keys(reader: Reader, draft: Draft, release: Release) -> None:
    for key, name, default in (("lora_r", "rank", 16), ("lora_alpha", "alpha", 32), ("lora_dropout", "dropout", 0.05)):
        said: Taken[Any] | None = reader.integer(key) if name == "rank" else reader.number(key)
        if said is not None:
            draft.put(f"training.lora.{name}", said)
        else:
            draft.default(f"training.lora.{name}", default, release.name, _MODEL)
    for key in ("lora_modules_to_save", "lora_target_parameters"):
        draft.refuse(reader.take(key), "parameters that are trained beside the adapters of whole modules")
    read_rows(reader, draft, _ROWS)
    _read_targets(reader, draft, "lora_target_modules", makes_one=True)


def _read_file(file: Reader, draft: Draft) -> None:
    for name in _OTHERS:
        said = file.take(name)
        if said is not None and said.value not in ([], {}):
            draft.refuse(said, "more than adapters of one rank on whole modules")
        else:
            draft.idle(said, "nothing is said")
    _read_targets(file, draft, "target_modules", makes_one=False)
    read_rows(file, draft, _OF_FILE)


def _read_targets(reader: Reader, draft: Draft, key: str, *, makes_one: bool) -> None:
    """Modules by name; all linear ones; or PEFT's own choice. `makes_one`: [Note: one target]."""
    is_text = isinstance(reader.look(key), str)
    named = reader.words(key)
    family = family_of(draft.answers.settings.get("model") or draft.values.get("model"))
    if named is None:
        if family in NAMED_BY_PEFT:
            draft.default("training.lora.target_modules", list(NAMED_BY_PEFT[family]), "PEFT 0.21.2",
                          "utils/constants.py")
        elif family:
            draft.ask("training.lora.target_modules", "--set training.lora.target_modules=[...]",
                      f"modules with adapters, of which PEFT has none for the family {family}")
        return
    alone = is_text or (makes_one and len(named.value) == 1)
    if alone and named.value[0].lower() == "all-linear":
        _read_linear(draft, named, family)
    elif any(re.search(r"[\\()|*\[^$+?]", word) for word in named.value):
        draft.refuse(named, "modules by a pattern")
    elif alone and "." not in named.value[0]:
        draft.use(named)
        draft.fail(named.where, f"{key}: {named.value[0]} alone is a pattern for whole paths of modules, which "
                                "fits none (PEFT 0.21.2 tuners/tuners_utils.py check_target_module_exists)")
    else:
        draft.put("training.lora.target_modules", named)


def _read_linear(draft: Draft, named: Taken[list[str]], family: str) -> None:
    if not family:  # the model is unknown, which is told in any case
        draft.use(named, why="adapters of a model that is not known")
    elif not write_linears(draft, named, family):
        draft.refuse(named, f"all linear layers of the family {family}")


def _read_packed(reader: Reader, draft: Draft, formats: Formats, release: Release) -> bool:
    """True if the base is packed; its products are in the format of the checkpoint, which must have 16 bits."""
    four, eight = reader.flag("load_in_4bit"), reader.flag("load_in_8bit")
    on = [one for one in (four, eight) if one is not None and one.value]
    draft.idle([one for one in (four, eight) if one is not None and not one.value], "the default")
    if not on:
        draft.idle(reader.matching("bnb_4bit_*", "use_bnb_nested_quant"), "no base is packed")
        return False
    if formats.stored == "fp32":
        draft.refuse(on[0], "a packed base with products in fp32: dtype is float32 unless it says another")
        draft.idle(reader.matching("bnb_4bit_*", "use_bnb_nested_quant"), "of a base that is refused")
        draft.idle(on[1:], "of a base that is refused")
        return True
    draft.use(*on, why="packs the base, which makes the method qlora")
    if eight in on:
        draft.infer("training.quantization.format", "int8", "load_in_8bit", source="LLM.int8() of bitsandbytes")
        draft.idle(reader.matching("bnb_4bit_*", "use_bnb_nested_quant"), "about 4 bits")
        return True
    nested = reader.flag("use_bnb_nested_quant")
    if nested is not None:
        draft.put("training.quantization.double_quant", nested)
    else:
        draft.default("training.quantization.double_quant", value=False, release=release.name, source=_MODEL)
    read_rows(reader, draft, [
        Says("bnb_4bit_quant_type", "training.quantization.format", "text"),
        Says("bnb_4bit_quant_storage", "framework_options.bnb_4bit_quant_storage", "text")])
    return True
