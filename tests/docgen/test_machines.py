"""The page of machines says what the files say."""

from __future__ import annotations

import pytest

from checkout import ROOT
from simcore.docgen.machines import machines
from simcore.hardware.topology import load_topology, topology_names

PAGE = ROOT / "docs" / "machines.md"


def row(name: str) -> list[str]:
    [found] = [line for line in machines().splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in found.strip("|").split(" | ")]


def test_the_page_is_made_from_the_files() -> None:
    assert PAGE.read_text(encoding="utf-8") == machines()


@pytest.mark.parametrize("name", topology_names())
def test_every_machine_has_a_row(name: str) -> None:
    cells, machine = row(f"`{name}`"), load_topology(name)
    assert cells[2] == machine.device.name
    assert cells[-1] == f"`{machine.efficiency.name}`"


def test_a_gpu_tells_its_peaks_and_what_it_lacks() -> None:
    assert row("NVIDIA A100-SXM4-80GB") == [
        "NVIDIA A100-SXM4-80GB", "8.0", "108", "80", "79.15", "2039", "19.5", "156", "312", "312", "-", "-", "400"]
    assert row("NVIDIA GeForce GTX 1080 Ti")[6:] == ["11.3", "-", "-", "-", "-", "-", "250"]
    assert row("NVIDIA V100-PCIE-32GB")[6:10] == ["14", "-", "-", "112"]


def test_what_is_assumed_is_marked() -> None:
    assert row("`dgx-h100`")[4:] == ["50 (34.8)", "as needed", "1862.65", "64", "2.95 (2026-05-20)", "`h100`"]
    assert row("`h100-pcie`")[3:5] == ["PCIe 64 (~22.32)", "~25 (~17.4)"]
    assert row("`h100-1gpu`")[3:7] == ["", "", "1", "~238.42"]
