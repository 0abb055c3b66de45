"""GaLore and APOLLO by the Trainer's arguments.

[Note: optim_args] transformers 5.23 `trainer_optimizer.py`, _get_galore_optimizer and _get_apollo_optimizer: a text of
`key=value` pairs. `rank`, `proj_type`, `proj` and `scale_type` decide over states; the interval of new projectors does
not, as a step that makes them is simulated; the scale is a number of the update.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from simcore.recipes.draft import Draft
from simcore.recipes.reader import Reader, Taken

__all__ = ["INTERVAL", "LAYERWISE", "LOW_RANK", "read_low_rank", "write_settings"]

LOW_RANK: Final[Mapping[str, str]] = MappingProxyType({
    "galore_adamw": "galore", "galore_adamw_layerwise": "galore", "apollo_adamw": "apollo",
    "apollo_adamw_layerwise": "apollo"})
"""Optimizer of a scenario by the Trainer's name."""
LAYERWISE: Final = "framework_options.optimizer_in_bwd"
INTERVAL: Final = "a step that makes new projectors is simulated, whatever their interval"
_SETUP: Final = "transformers 5.23.0 trainer_optimizer.py _setup_low_rank_optimizer"
_KEYS: Final = {"galore": ("rank", "proj_type"), "apollo": ("rank", "proj_type", "proj", "scale_type")}
_NUMBERS: Final = ("update_proj_gap", "scale")


def read_low_rank(reader: Reader, draft: Draft, named: Taken[str]) -> None:
    """Writes the optimizer of the name `named`, which is one of `LOW_RANK`, with its targets and arguments.

    A layer-wise one becomes an optimizer inside backward.
    """
    name = LOW_RANK[named.value]
    draft.put("training.optimizer.name", named, name, _SETUP)
    _read_targets(reader, draft, named)
    _read_arguments(reader, draft, name)
    if named.value.endswith("_layerwise"):
        draft.infer(LAYERWISE, value=True, rule="a layer-wise optimizer", source=_SETUP)


def _read_arguments(reader: Reader, draft: Draft, name: str) -> None:
    """Pairs of `optim_args`: a text, or with axolotl a mapping; of a key that it does not know upstream is silent."""
    said = [*reader.matching("optim_args.*")] if reader.is_mapping("optim_args") else [
        one for one in [reader.text("optim_args")] if one is not None]
    pairs = {one.key.partition(".")[2]: str(one.value) for one in said} if reader.is_mapping("optim_args") else dict(
        part.partition("=")[::2] for one in said for part in one.value.replace(" ", "").split(","))
    draft.use(*said, why=INTERVAL if "update_proj_gap" in pairs else "numbers of the update")
    where = said[0].where if said else ""
    settings: dict[str, Any] = {key: pairs[key] for key in _KEYS[name] if key in pairs}
    unknown = [key for key in pairs if key not in (*_KEYS["apollo"], *_NUMBERS)]
    if unknown:
        draft.fail(where, f"not yet: optim_args: {', '.join(unknown)} of {name}")
    if not settings.get("rank", "1").isdigit():
        draft.fail(where, f"optim_args: expected a whole number, got rank={settings.pop('rank')}")
    write_settings(draft, settings | ({"rank": int(settings["rank"])} if "rank" in settings else {}), *said)


def write_settings(draft: Draft, settings: Mapping[str, Any], *said: Taken[Any] | None) -> None:
    """Writes keys of `training.optimizer.low_rank`, which `said` states."""
    for key, value in settings.items():
        draft.infer(f"training.optimizer.low_rank.{key}", value, "arguments of the optimizer", *said)


def _read_targets(reader: Reader, draft: Draft, named: Taken[str]) -> None:
    """Names that modules hold, or all linear ones."""
    targets: Taken[Any] | None = reader.words("optim_target_modules")
    if targets is None:
        draft.fail(named.where, f"You need to define `optim_target_modules` to use {named.value} optimizers ({_SETUP})")
    elif len(targets.value) == 1 and targets.value[0].replace("_", "-") == "all-linear":
        draft.put("training.optimizer.low_rank.target_modules", targets, "all-linear", _SETUP)
    elif isinstance(reader.look("optim_target_modules"), str):
        draft.refuse(targets, "modules by a pattern")
    else:
        draft.put("training.optimizer.low_rank.target_modules", targets)
