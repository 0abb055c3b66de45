"""Variables that axolotl's command sets for the ranks that it starts."""

from __future__ import annotations

from typing import Final

from simcore.recipes.draft import Draft

__all__ = ["write_environment"]

_VARIABLE: Final = "PYTORCH_ALLOC_CONF"
_SOURCE: Final = "utils/__init__.py set_pytorch_cuda_alloc_conf: by `axolotl train`, unless PYTORCH_ALLOC_CONF is set"


def write_environment(draft: Draft) -> None:
    """Writes expandable segments, unless another launcher starts `axolotl.cli.train`, or the variable is set.

    Ranks inherit the variables of the command, those of Ray too where the command starts it.
    """
    if draft.answers.launcher in ("", "axolotl") and _VARIABLE not in draft.answers.exported:
        draft.default("environment.expandable_segments", True, "axolotl 067b021c", _SOURCE)  # noqa: FBT003 - a value
