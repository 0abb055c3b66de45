"""Settings of adapters and packed bases that nothing reads, that are missing, or that copy whole modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simcore.lint.finding import Found
from simcore.lint.rule import Example, Rule
from simcore.lint.subject import Subject

__all__ = ["RULES"]

_NO_ADAPTERS: Final = "no adapters are asked for"
"""Reason by which readers list settings of adapters that nothing reads."""
_SWITCH: Final = {"axolotl": ("adapter", "adapter: lora"), "trl": ("use_peft", "use_peft: true")}
"""By format: key that asks for adapters, and how."""
_COPIES: Final = ("lora_modules_to_save", "modules_to_save")
_WHOLE: Final = ("embed_tokens", "lm_head", "wte", "embeddings")
"""Modules as large as the vocabulary."""


def _find_idle_settings(subject: Subject) -> Iterator[Found]:
    left = subject.imported.left if subject.imported and subject.format in _SWITCH else ()
    idle = [one for one in left if one.why == _NO_ADAPTERS and one.value not in ("false", "''", "null", "0")]
    if not idle:
        return
    switch, instead = _SWITCH[subject.format]
    names = ", ".join(one.key for one in idle)
    off = subject.has(switch)  # written as null or false: the adapters were switched off on purpose
    yield Found(idle[0].where, f"all parameters are trained: nothing reads {names}", f"{instead}, or leave them out",
                "note" if off else "warning")


def _find_unpacked(subject: Subject) -> Iterator[Found]:
    if subject.format != "axolotl" or subject.look("adapter") != "qlora" or subject.look("merge_lora"):
        return
    at = subject.line("load_in_4bit", "load_in_8bit", "adapter")
    if subject.look("load_in_8bit") is True:
        yield Found(subject.line("load_in_8bit"), "adapter qlora beside a base in 8 bits, which stops the run",
                    "adapter: lora, or load_in_4bit: true in its place")
    elif not subject.look("load_in_4bit"):
        yield Found(at, "adapter qlora without load_in_4bit, which stops the run",
                    "load_in_4bit: true, or adapter: lora")


def _find_copies(subject: Subject) -> Iterator[Found]:
    if not subject.look("use_peft", "adapter", "peft_type"):
        return
    for key in _COPIES:
        named = subject.look(key)
        for module in named if isinstance(named, list) else [named] if named else []:
            if str(module).rpartition(".")[2] in _WHOLE:
                yield Found(subject.line(key), f"{module} is copied as a whole and the copy is trained{_size(subject)}",
                            "leave it out unless new tokens were added; trainable_token_indices trains these alone")


def _size(subject: Subject) -> str:
    rows, columns = subject.config.get("vocab_size"), subject.config.get("hidden_size")
    if not isinstance(rows, int) or not isinstance(columns, int):
        return ""
    return f": {rows * columns / 1e6:,.0f} million parameters more, each with a gradient and states of the optimizer"


_LORA: Final = "lora_r: 16\nlora_alpha: 32\nlora_target_modules: [q_proj, v_proj]\n"

RULES: Final = (
    Rule("adapter-settings-without-adapter", "warning", "Settings of LoRA stand there, and all parameters are trained.",
         "axolotl 067b021c loaders/adapter.py load_adapter: without `adapter` none is made; TRL 1.16.0 "
         "trainer/utils.py get_peft_config: None without use_peft",
         Example("axolotl", _LORA, f"adapter: lora\n{_LORA}"), _find_idle_settings),
    Rule("qlora-without-packed-base", "error", "QLoRA is asked for, and the base is not packed into 4 bits.",
         "axolotl 067b021c utils/schemas/peft.py validate_qlora",
         Example("axolotl", f"adapter: qlora\n{_LORA}", f"adapter: qlora\nload_in_4bit: true\n{_LORA}"),
         _find_unpacked),
    Rule("lora-copies-module", "note", "A module as large as the vocabulary is copied and trained beside the adapters.",
         "PEFT 0.21.2 utils/other.py ModulesToSaveWrapper.update: a deep copy of the module",
         Example("axolotl", f"adapter: lora\n{_LORA}lora_modules_to_save: [embed_tokens]\n", f"adapter: lora\n{_LORA}"),
         _find_copies),
)
