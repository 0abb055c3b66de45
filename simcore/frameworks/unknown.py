"""Names that people give to frameworks which do not exist, and why they do not."""

from __future__ import annotations

import re

__all__ = ["why_no_framework"]

_STAGE = re.compile(r"(?:deepspeed|zero)[-_ ]?(?:stage[-_ ]?)?(\d+)", re.IGNORECASE)


def why_no_framework(name: str) -> tuple[str, str] | None:
    """(what is wrong, the rule) of a name that means a stage of ZeRO, None for others."""
    found = _STAGE.fullmatch(name)
    if found is None:
        return None
    stage, rule = int(found[1]), "deepspeed 0.19.6 runtime/zero/config.py ZeroStageEnum: 0 to 3"
    if stage > 3:
        return (f"there is no stage {stage} of ZeRO: stage 3 cuts parameters too, and nothing is left to cut (what "
                "stays lies on the host with training.offload)", rule)
    if stage == 0:
        return "stage 0 of ZeRO cuts nothing: it is framework ddp", rule
    return f"stage {stage} of ZeRO is framework zero{stage}", rule
