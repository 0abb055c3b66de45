"""Mixtral: the published count by component, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simcore.errors import InputError
from simcore.models.graph import ModelGraph, build, model_config


def graph(**changed: Any) -> ModelGraph:
    return build(model_config("mixtral-8x7b", changed, "model"), "hf")


def test_the_published_count() -> None:
    """46.7 B, of which 32 x 8 experts of three 4096 x 14336 matrices."""
    assert graph().count() == 46_702_792_704
    assert graph().count("routed_experts") == 32 * 8 * 3 * 4096 * 14336
    assert graph().count("router") == 32 * 8 * 4096


def test_the_router_comes_before_the_experts() -> None:
    names = [t.name for t in graph().tensors[1]]
    assert names.index("mlp.gate.weight") < names.index("mlp.experts.gate_up_proj")


@pytest.mark.parametrize(("changed", "told"), [
    ({"sliding_window": 4096}, "sliding_window: attention within a window is not modelled yet"),
    ({"num_experts_per_tok": 9}, "expected at most 8 experts, got 9")])
def test_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        graph(**changed)
