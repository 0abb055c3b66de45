"""Arguments of Megatron that change the step in ways that no scenario can say are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recipes.looked_into import messages
from recipes.megatron.test_recipe import EXPERTS, of


@pytest.mark.parametrize(("changes", "told"), [
    ({"skip_train": True}, "no training"), ({"modelopt_enabled": True}, "layers of modelopt"),
    ({**EXPERTS, "moe_input_jitter_eps": 0.01}, "noise on the router's input"),
    ({**EXPERTS, "moe_input_jitter_eps": 0.0}, "noise on the router's input"),
    ({**EXPERTS, "moe_apply_probs_on_input": True}, "probabilities on the experts' input"),
    ({"batch_invariant_mode": True}, "products that do not depend on the batch"),
    ({"swiglu": True, "activation_func_clamp_value": 7.0}, "only supported with MoE")])
def test_what_changes_the_step_is_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    assert told in messages(of(tmp_path, 8, **changes))


def test_what_switches_it_off_is_not(tmp_path: Path) -> None:
    found = of(tmp_path, 8, skip_train=False, batch_invariant_mode=False, modelopt_enabled=False)
    assert messages(found) == ""
