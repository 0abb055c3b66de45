"""Variables of the environment that a run of Bridge needs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from recipes.bridge.test_recipe import imported
from recipes.looked_into import messages
from simcore.recipes.megatron.determinism import DETERMINISTIC

_BASE: Final = "llama3_8b_pretrain_8gpu_h100_bf16_config model.deterministic_mode=true"
_UNFUSED: Final = f"{_BASE} model.cross_entropy_loss_fusion=false"
_SET: Final = ("env_vars.NCCL_ALGO={} env_vars.NVTE_ALLOW_NONDETERMINISTIC_ALGO={} "
               "env_vars.CUBLAS_WORKSPACE_CONFIG=:16:8")


@pytest.mark.parametrize(("words", "told"), [
    (_BASE, "Cross Entropy Fusion is currently not deterministic"),
    (f"{_UNFUSED} {_SET.format('NVLS', 0)}", "NCCL_ALGO must be one of"),
    (f"{_UNFUSED} {_SET.format('Ring', 1)}", "NVTE_ALLOW_NONDETERMINISTIC_ALGO must be one of"),
])
def test_what_does_not_repeat_is_refused(tmp_path: Path, words: str, told: str) -> None:
    """Megatron-Bridge 067f987d training/config.py:1043."""
    assert told in messages(imported(tmp_path, words))


def test_variables_that_a_deterministic_run_needs_are_told(tmp_path: Path) -> None:
    found = imported(tmp_path, _UNFUSED)
    assert not found.wrong
    needed = {f"env_vars.{name}" for name in DETERMINISTIC}
    assert {one.key for one in found.left if one.value == "not set" and "deterministic" in one.why} == needed
    found = imported(tmp_path, f"{_UNFUSED} {_SET.format('Ring', 0)}")
    assert not found.wrong
    assert not {one.key for one in found.left if one.value == "not set"} & needed
    found = imported(tmp_path, "llama3_70b_pretrain_32gpu_h100_bf16_deterministic_config")
    assert not found.wrong
