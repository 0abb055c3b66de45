"""NeMo Automodel's own reading of a recipe: its loader, its typed sections, its distributed section, its targets."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from oracle.started import started

TYPED = ("step_scheduler", "lr_scheduler", "optimizer", "loss_fn", "dataloader", "checkpoint")
"""Sections that `RecipeConfig` makes values of."""


def load() -> None:
    """Imports the package, once for all cases."""
    import nemo_automodel
    import nemo_automodel.recipes._dist_utils
    import nemo_automodel.recipes.llm.train_ft  # noqa: F401


def accept(folder: Path, files: list[str]) -> dict[str, object]:
    """Facts that Automodel reads in a recipe; raises what it raises, and TypeError for an argument of no target."""
    from nemo_automodel.components.config.loader import load_yaml_config
    from nemo_automodel.recipes._dist_utils import parse_distributed_section
    from nemo_automodel.recipes._typed_config import RecipeConfig

    ranks = _ranks(folder, files[0])
    raw = load_yaml_config(folder / files[0])
    config = RecipeConfig(raw)
    for name in TYPED:
        getattr(config, name)
    found = parse_distributed_section(raw.get("distributed").to_dict())
    others = found["tp_size"] * found["pp_size"] * found["cp_size"]
    if ranks % others or (ranks // others % found["ep_size"] and found["pp_size"] == 1):
        raise ValueError(f"{ranks} ranks are not shared out: {others} x data parallel, {found['ep_size']} for experts")
    told: dict[str, object] = {"ranks": ranks, "data_parallel": ranks // others, "experts": found["ep_size"],
                               "strategy": type(found["strategy_config"]).__name__,
                               "checkpointing": found["activation_checkpointing"]}
    if (peft := raw.get("peft", None)) is not None:
        told["rank"] = peft.instantiate().dim
    _bind(raw.get("model"))
    return told | {"batch": config.step_scheduler.global_batch_size, "optimizer": type(config.optimizer).__name__,
                   "loss": type(config.loss_fn).__name__ if config.loss_fn is not None else "by default"}


def _ranks(folder: Path, name: str) -> int:
    """Processes of all nodes, by the command line's own parser."""
    from nemo_automodel.cli.app import build_parser
    from torch.distributed.run import get_args_parser

    (found,) = started(folder / "launch.sh")
    if found[0] == "automodel":
        asked, rest = build_parser().parse_known_args(found[1:])
        if rest or Path(str(asked.config)).name != name:
            raise ValueError(f"not read: {found}")
        return int(asked.nproc_per_node)
    launched = get_args_parser().parse_args(found[1:])
    if not launched.module or launched.training_script_args != [name]:
        raise ValueError(f"not read: {found}")
    return int(launched.nnodes) * int(launched.nproc_per_node)


def _bind(node: Any) -> None:
    """Raises TypeError for arguments that a target does not take; targets within are looked at as well."""
    values = node.to_dict() if hasattr(node, "to_dict") else dict(node)
    target = values.pop("_target_", None)
    for value in values.values():
        if isinstance(value, dict):
            _bind(value)
    if callable(target):
        signature = inspect.signature(target)
        required = [one.name for one in signature.parameters.values() if one.default is one.empty
                    and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.name not in values]
        signature.bind_partial(*[None] * len(required[:1]), **values) if required else signature.bind(**values)
