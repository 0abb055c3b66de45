"""The model of a recipe that names it by one key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Final

from simcore.inputs.block import shorten
from simcore.models.placeholders import is_placeholder, likely, meant
from simcore.recipes.draft import Draft
from simcore.recipes.huggingface.config_fields import is_listed
from simcore.recipes.huggingface.modules import family_of
from simcore.recipes.reader import Reader, Taken

__all__ = ["ask_for_model", "read_named_model", "read_remote_code"]

_WITH_CODE: Final = ("deepseek_v2", "deepseek_v3", "nemotron_h", "phi3")
"""Families whose checkpoints name code of their own: `auto_map` in config.json of microsoft/Phi-3-mini-4k-instruct,
deepseek-ai/DeepSeek-V2 and -V3, and nvidia's Nemotron-H on the hub."""


def read_named_model(reader: Reader, draft: Draft, key: str, *blocks: str, but: Sequence[str] = ()) -> None:
    """Writes the model that `key` names, unless `--set model` answers; asks for it where the recipe names none.

    `blocks`: keys of mappings whose fields go before those of the model's configuration, `but` those of these names.
    """
    named = reader.text(key)
    fields = [one for block in blocks for name in reader.names(block)
              if name not in but and (one := reader.take(f"{block}.{name}")) is not None]
    if (given := draft.answers.settings.get("model")) is not None:
        draft.idle([*([named] if named else []), *fields], f"the model is given as {given}")
    elif ask_for_model(draft, named, key):
        draft.idle(fields, "of a model that is asked for")
    elif named is not None:
        changed = [one for one in fields if not is_listed(draft, one)]
        draft.put("model.config" if changed else "model", named)
        for one in changed:
            draft.put(f"model.overrides.{one.path[-1]}", one)


def ask_for_model(draft: Draft, named: Taken[str] | None, key: str, model: str = "model") -> bool:
    """True if the recipe names no model at `key`, by a placeholder, or by a path of another machine: it is asked for.

    So is a model that is not built in, whose name has that of one which is. `model`: key of the scenario. The question
    names the preset that the recipe's path or the placeholder's words mean.
    """
    words = named.value if named else ""
    is_elsewhere = (PurePath(words).is_absolute() or words.startswith("~")) and not Path(words).expanduser().exists()
    if named is not None and not is_elsewhere and not is_placeholder(words):
        preset = "" if Path(words).exists() or "$" in words else likely(words)  # a shell variable is asked for
        if preset:
            draft.ask(model, f"--set {model}=NAME or PATH of its config.json, such as {preset}",
                      f"model ({key}: {shorten(words)} is not built in, and by its name may be a {preset})", named)
        return bool(preset)
    near = meant(words, "/".join(PurePath(draft.path).parts[-3:]))
    draft.ask(model, f"--set {model}=NAME or PATH of its config.json" + (f", such as {near}" if near else ""),
              f"model ({key}: {shorten(words)} {'is not here' if is_elsewhere else 'stands for one'})" if named else
              f"model ({key})", named)
    return True


def read_remote_code(reader: Reader, draft: Draft, *keys: str) -> None:
    """Lists `trust_remote_code`: with it transformers takes the checkpoint's own code, where it has some.

    transformers 5.23.0 `models/auto/auto_factory.py` from_pretrained; its own layers are simulated. `keys`: where it
    may stand.
    """
    family = family_of(draft.answers.settings.get("model") or draft.values.get("model"))
    for key in keys:
        trusted = reader.flag(key)
        if trusted is not None and trusted.value and family in _WITH_CODE:
            draft.unmodelled(trusted, "the checkpoint's own code runs; transformers' layers are counted")
        else:
            draft.idle(trusted, "transformers' layers run")
