"""Settings without effect: what the readers of recipes list as such, as far as it would surprise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simcore.lint.finding import Found
from simcore.lint.rule import Example, Rule
from simcore.lint.subject import Subject
from simcore.lint.without_effect import IGNORED, Ignored
from simcore.recipes.imported import Left

__all__ = ["RULES"]


def _find_ignored(subject: Subject) -> Iterator[Found]:
    """One statement for each row and block of the recipe, at the first of its keys."""
    by_block: dict[tuple[Ignored, str], list[Left]] = {}
    for left in subject.imported.left if subject.imported else ():
        row = next((row for row in IGNORED if left.kind == "no effect" and row.fits(subject.format, left)), None)
        if row is not None:
            by_block.setdefault((row, left.key.rpartition(".")[0]), []).append(left)
    for (row, _), keys in by_block.items():
        names = ", ".join(one.key for one in keys)
        yield Found(keys[0].where, f"no effect: {names}: {row.message}", row.instead, row.severity, row.source)


RULES: Final = (
    Rule("option-without-effect", "warning", "A setting is not read in this recipe.",
         "by setting, below",
         Example("accelerate", "fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}\n",
                 "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true, "
                 "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}\n"), _find_ignored),
)
