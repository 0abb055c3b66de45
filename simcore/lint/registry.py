"""All rules, in the order of the page."""

from __future__ import annotations

from typing import Final

from simcore.lint.rule import Rule
from simcore.lint.rules import adapters, files, layout, methods, options, training

__all__ = ["RULES"]

RULES: Final[tuple[Rule, ...]] = (*files.RULES, *layout.RULES, *adapters.RULES, *methods.RULES, *options.RULES,
                                  *training.RULES)
