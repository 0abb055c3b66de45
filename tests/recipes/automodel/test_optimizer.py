"""Optimizers of Automodel's recipes by the names of their classes, read and written."""

from __future__ import annotations

from pathlib import Path

import pytest

from automodel_recipe import changed, imported
from simcore.inputs.scenario import parse_scenario
from simcore.simulate import check


@pytest.mark.parametrize(("target", "optimizer"), [
    ("lion_pytorch.Lion, lr: 1e-5", {"name": "lion", "implementation": "for_loop"}),
    ("torch.optim.RMSprop, lr: 1e-5, momentum: 0.9", {"name": "rmsprop", "momentum": 0.9}),
    ("torch.optim.Adagrad, lr: 1e-5, foreach: false", {"name": "adagrad", "implementation": "for_loop"})])
def test_a_class_is_an_optimizer(target: str, optimizer: dict[str, object], tmp_path: Path,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = imported(changed("torch.optim.AdamW, lr: 2e-5, foreach: false", target))
    found.expect_complete()
    assert found.values["training"]["optimizer"] == optimizer
    assert check(parse_scenario(found.document())).problems == ()


def test_the_packages_muon_is_read_with_its_look_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = imported(changed("torch.optim.AdamW, lr: 2e-5, foreach: false",
                             "dion.Muon, lr: 5e-4, mu: 0.95, nesterov: true, scalar_opt: adamw, embed_lr: 1e-4"))
    assert found.values["training"]["optimizer"] == {"name": "muon", "implementation": "dion"}
    assert found.values["framework_options"]["nesterov"] is True


@pytest.mark.parametrize("target", ["dion.NorMuon, lr: 5e-4", "dion.Dion2, lr: 5e-4", "dion.Dion, lr: 5e-4",
                                    "dion.Muon, scalar_opt: lion", "dion.Muon, use_triton: true"])
def test_others_of_the_package_are_not_served_yet(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = imported(changed("torch.optim.AdamW, lr: 2e-5, foreach: false", target))
    assert [one for one in found.refused if "optimizer" in one.message]
