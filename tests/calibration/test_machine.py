"""The measured machine: its name, and machines that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from machines import FakeCuda, fake_torch
from simcore.calibration import machine
from simcore.calibration.machine import find_machine, optional
from simcore.errors import InputError
from simcore.hardware.topology import load_topology

DGX = load_topology("dgx-h100")


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "version"
    path.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\nGCC version: gcc 11.4.0\n")
    monkeypatch.setattr(machine, "_DRIVER", path)
    return path


def with_torch(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda) -> None:
    monkeypatch.setattr(machine, "optional", lambda name: fake_torch(cuda))


def test_a_gpu_is_told_with_driver_versions_and_date(monkeypatch: pytest.MonkeyPatch) -> None:
    with_torch(monkeypatch, FakeCuda())
    found = find_machine("cuda", DGX, "2026-01-02")
    assert found.told == "NVIDIA H100 80GB HBM3, driver 550.54.15, torch 2.9.0, CUDA 12.8, 2026-01-02"
    assert found.is_gpu
    assert found.count == 1


def test_a_driver_that_does_not_say_is_unknown(monkeypatch: pytest.MonkeyPatch, driver: Path) -> None:
    with_torch(monkeypatch, FakeCuda())
    driver.unlink()
    assert "driver unknown" in find_machine("cuda", DGX, "2026-01-02").told


def test_a_gpu_of_another_generation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with_torch(monkeypatch, FakeCuda(capability=(8, 0)))
    with pytest.raises(InputError, match=r"--topology: dgx-h100 has .* 9\.0\), this machine .* \(8\.0\)"):
        find_machine("cuda", DGX, "2026-01-02")


def test_no_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    monkeypatch.setattr(cuda, "is_available", lambda: False)
    with_torch(monkeypatch, cuda)
    with pytest.raises(InputError, match="finds no GPU here"):
        find_machine("cuda", DGX, "2026-01-02")


def test_a_cpu_needs_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with_torch(monkeypatch, FakeCuda())
    found = find_machine("cpu", DGX, "2026-01-02")
    assert not found.is_gpu
    assert found.told.startswith("CPU ")


def test_a_library_that_is_not_there_is_none() -> None:
    assert optional("no_such_library") is None
    assert optional("math") is not None
