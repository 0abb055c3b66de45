"""Experts of TransformerEngine's operations: recompute of their activation is for one operation alone."""

from __future__ import annotations

from typing import Any

import pytest

from frameworks.megatron.experts.test_stash import answered

AGAIN: dict[str, Any] = {"recompute": ["moe_act"]}


@pytest.mark.parametrize("options", [{"first_last_layers_bf16": True}, {"fp8_recipe": "blockwise"}])
def test_an_activation_is_recomputed_in_the_fused_operation_alone(options: dict[str, Any]) -> None:
    """TransformerEngine d0067d0d pytorch/ops/basic/swiglu.py:523."""
    report = answered(options, **AGAIN)
    assert (report.status, report.problems[0].message[:32]) == ("illegal", "activation_recompute_in_mlp=True")


def test_swiglu_of_the_fused_operation_is_kept_all_the_same() -> None:
    peaks = [report.ranks[0].peak for report in (answered({}), answered({}, **AGAIN))]
    assert peaks[0] == peaks[1] is not None
