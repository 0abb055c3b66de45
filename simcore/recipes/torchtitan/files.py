"""Checkpoints of a job configuration: which files are read before the first step and written after it.

Source: torchtitan 0.2.2 `components/checkpoint.py`. Without `checkpoint.enable` nothing is read or written. With it a
run reads what `initial_load_path` names, or files of Hugging Face with `initial_load_in_hf`, and writes shards. A
folder of an earlier run of the same job is not known here.
"""

from __future__ import annotations

from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken
from simcore.recipes.rows import Off, read_rows
from simcore.recipes.torchtitan.model import RELEASE

__all__ = ["read_files"]

_FILE: Final = "components/checkpoint.py"
_SWITCHES: Final = ("checkpoint.enable", "checkpoint.enable_checkpoint")
"""The switch as of 0.2 and of 0.1."""
_WHOLE: Final = ("checkpoint.last_save_in_hf", "checkpoint.enable_ft_dataloader_checkpoints")


def read_files(reader: Reader, draft: Draft) -> None:
    """Writes `checkpoint.load` and `checkpoint.save`: none unless checkpoints are on, sharded where they are."""
    switch = next((taken for key in _SWITCHES if (taken := reader.flag(key)) is not None), None)
    path, hub = reader.text("checkpoint.initial_load_path"), reader.flag("checkpoint.initial_load_in_hf")
    mode, alone = reader.text("checkpoint.async_mode"), reader.flag("checkpoint.load_only")
    read_rows(reader, draft, [Off("checkpoint.create_seed_checkpoint", "a run that writes its first values and ends")])
    if switch is None or not switch.value:
        _read_none(draft, switch)
        draft.idle([one for one in (path, hub, mode, alone) if one], "checkpoints are off")
    else:
        begun = next((one for one in (path, hub) if one is not None and one.value), None)
        _read_begun(draft, begun, [one for one in (path, hub) if one is not None and one is not begun])
        _read_saved(draft, switch, alone, mode)
    for key in _WHOLE:
        whole = reader.flag(key)
        if whole is not None and whole.value and switch is not None and switch.value:
            draft.unmodelled(whole, "the last files, or those of the data loader, are written another way")
        else:
            draft.idle(whole, "not asked for")


def _read_none(draft: Draft, switch: Taken[bool] | None) -> None:
    for key in ("checkpoint.load", "checkpoint.save"):
        if switch is None:
            draft.default(key, "none", RELEASE, f"{_FILE}: enable=False")
        else:
            draft.put(key, switch, "none", f"{_FILE} CheckpointManager.__init__")


def _read_begun(draft: Draft, begun: Taken[Any] | None, others: list[Taken[Any]]) -> None:
    """Writes what is read before the first step; `others`: keys that say nothing, or that `begun` goes before."""
    if begun is None:
        draft.infer("checkpoint.load", "none", "no files to begin with are named: values are drawn on the device",
                    source=f"{_FILE} load")
    else:
        draft.put("checkpoint.load", begun, "sharded", f"{_FILE} dcp_load")
    draft.idle(others, "not given" if begun is None else f"{begun.key} says where files are")


def _read_saved(draft: Draft, switch: Taken[bool], alone: Taken[bool] | None, mode: Taken[str] | None) -> None:
    """Writes what is saved: nothing where files are only loaded (`_should_save`)."""
    if alone is not None and alone.value:
        draft.put("checkpoint.save", alone, "none", f"{_FILE} _should_save")
        draft.use(switch, why="files are read")
        draft.idle(mode, "nothing is written")
        return
    draft.idle(alone, "the default")
    draft.put("checkpoint.save", switch, "sharded", f"{_FILE} dcp_save")
    _read_mode(draft, mode)


def _read_mode(draft: Draft, mode: Taken[str] | None) -> None:
    """Reads `async_mode`: an asynchronous checkpoint holds a copy of a rank's state on its host meanwhile."""
    if mode is not None and mode.value.lower() != "disabled":
        draft.unmodelled(mode, "a copy of the rank's state on the host while it is written")
    else:
        draft.idle(mode, "files are written before the next step")
