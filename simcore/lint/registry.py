"""All rules, in the order of the page."""

from __future__ import annotations

from typing import Final

from simcore.lint import adapters, keys, layout, methods, options, training
from simcore.lint.rule import Rule

__all__ = ["RULES"]

RULES: Final[tuple[Rule, ...]] = (*keys.RULES, *layout.RULES, *adapters.RULES, *methods.RULES, *options.RULES,
                                  *training.RULES)
