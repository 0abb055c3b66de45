"""TransformerEngine's FusedAdam in Automodel's recipes: read, refused, and written again."""

from __future__ import annotations

from pathlib import Path

import pytest

from automodel_recipe import changed, imported, refusal
from simcore.inputs.scenario import parse_scenario


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _with(arguments: str) -> str:
    return changed("torch.optim.AdamW, lr: 2e-5, foreach: false",
                   f"transformer_engine.pytorch.optimizers.fused_adam.FusedAdam, lr: 2e-5{arguments}")


def test_its_arguments_are_the_optimizer_of_the_scenario() -> None:
    for lines, told in (
            ("", {"name": "adamw", "implementation": "te"}),
            (", adam_w_mode: false", {"name": "adam", "implementation": "te"}),
            (", master_weights: true, exp_avg_dtype: torch.bfloat16, exp_avg_sq_dtype: torch.bfloat16",
             {"name": "adamw", "implementation": "te", "master": "fp32", "moments": "bf16"}),
            (", store_param_remainders: true, master_weight_dtype: torch.float32",
             {"name": "adamw", "implementation": "te"})):
        found = imported(_with(lines))
        found.expect_complete()
        parse_scenario(found.document())
        assert found.values["training"]["optimizer"] == told, lines
        assert "store_param_remainders" not in found.values["framework_options"]
    kept = imported(_with(", master_weights: true, store_param_remainders: true"))
    assert kept.values["framework_options"]["store_param_remainders"] is True


def test_moments_of_two_formats_are_refused() -> None:
    assert "moments of two formats" in refusal(_with(", exp_avg_dtype: torch.bfloat16"))
    assert "a third moment" in refusal(_with(", amsgrad: true"))
