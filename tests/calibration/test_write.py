"""An efficiency file that is written: it loads, says what it measured, and where the rest comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from simcore.calibration.ranks import Point
from simcore.calibration.reading import Value
from simcore.calibration.write import curves_text, efficiency_text, topology_text
from simcore.hardware.collective_curves import load_curves
from simcore.hardware.efficiency import Efficiency, efficiency_names, load_efficiency
from simcore.hardware.topology import load_topology, topology_names
from simcore.inputs.shipped import data_folder

TOLD = "NVIDIA H100 80GB HBM3, driver 550.54.15, torch 2.9.0, CUDA 12.8, 2026-01-02"
FOUND = {"kernels.gemm.compute": Value("61.5%", "fitted", f"torch.mm: 63 readings; {TOLD}"),
         "kernels.copy.memory": Value("90%", "fitted", f"copy; {TOLD}")}
REASONS = {"kernels.mamba_scan": "no such kernel", "host": "no GPU"}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(efficiency_text("mine", load_efficiency("h100"), FOUND, REASONS, TOLD), encoding="utf-8")
    return path


@pytest.fixture
def mine(written: Path) -> Efficiency:
    return load_efficiency(written)


def test_what_was_measured_is_in_it(mine: Efficiency) -> None:
    compute = mine.kernels.gemm.compute
    assert compute is not None
    assert compute.si == pytest.approx(0.615)
    assert compute.kind == "fitted"
    assert TOLD in compute.source
    assert mine.kernels.copy_.memory.si == pytest.approx(0.9)


def test_what_was_not_keeps_its_value_and_says_whose_it_is_and_why(mine: Efficiency) -> None:
    old, new = load_efficiency("h100"), mine
    scan, before = new.kernels.mamba_scan.compute, old.kernels.mamba_scan.compute
    assert scan is not None
    assert before is not None
    assert scan.value == before.value
    assert scan.kind == "assumed"
    assert scan.source.startswith(f"taken over from h100: {before.source}")
    assert scan.source.endswith("(no such kernel)")
    assert new.host.step.source.endswith("(no GPU)")
    assert new.overlap.tensor.source.endswith("(not measured)")
    assert (new.shortest.si, new.overlap.expert.si) == (old.shortest.si, old.overlap.expert.si)


def test_the_machine_stands_above_it_all(written: Path) -> None:
    assert written.read_text(encoding="utf-8").splitlines()[0].endswith(f"{TOLD}.")


def test_a_kernel_without_a_share_of_the_peak_gets_none(mine: Efficiency) -> None:
    assert mine.kernels.norm.compute is None


@pytest.mark.parametrize("name", efficiency_names())
def test_any_file_can_be_taken_over(tmp_path: Path, name: str) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(efficiency_text("all", load_efficiency(name), {}, {}, TOLD), encoding="utf-8")
    old, new = load_efficiency(name), load_efficiency(path)
    assert new.kernels.grouped_gemm.memory.value == old.kernels.grouped_gemm.memory.value
    assert new.low_precision.fp4 is None or old.low_precision.fp4 is not None


def test_a_share_that_the_old_file_lacks_is_written(tmp_path: Path) -> None:
    path = tmp_path / "fp8.yaml"
    found = {"low_precision.fp4": Value("50%", "fitted", "somewhere")}
    path.write_text(efficiency_text("fp8", load_efficiency("h100"), found, {}, TOLD), encoding="utf-8")
    fp4 = load_efficiency(path).low_precision.fp4
    assert fp4 is not None
    assert fp4.si == 0.5


@pytest.mark.parametrize("name", topology_names())
def test_a_topology_without_anything_measured_is_the_same_but_for_its_names(tmp_path: Path, name: str) -> None:
    base = load_topology(name)
    path = tmp_path / "machine.yaml"
    path.write_text(topology_text("machine", base, base.efficiency.name, "", {}, TOLD), encoding="utf-8")
    assert load_topology(path).model_copy(update={"name": name}) == base
    assert str(data_folder("topologies")) not in path.read_text(encoding="utf-8")  # curves are named, not located


def test_curves_of_ones_own_keep_their_path(tmp_path: Path) -> None:
    own = tmp_path / "h100-sxm.yaml"
    own.write_bytes((data_folder("topologies") / "nccl" / "h100-sxm.yaml").read_bytes())
    first = tmp_path / "first.yaml"
    first.write_text((data_folder("topologies") / "dgx-h100.yaml").read_text(encoding="utf-8").replace(
        "curves: h100-sxm", f"curves: {own}"), encoding="utf-8")
    assert f"curves: {own}\n" in topology_text("second", load_topology(first), "h100", "", {}, TOLD)


def test_a_topology_has_what_was_measured_and_names_the_files(tmp_path: Path) -> None:
    points = [Point(name, ranks, size, 1e-5 * ranks + size / 1e11)
              for name in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv")
              for ranks in (2, 8) for size in (512, 2**29)]
    (tmp_path / "mine.yaml").write_text(efficiency_text("mine", load_efficiency("h100"), FOUND, {}, TOLD))
    (tmp_path / "curves.yaml").write_text(curves_text(points, "8 GPUs", "2.27.3", TOLD))
    found = {"node.host_link.to_host": Value("44 GB/s", "fitted", f"copies; {TOLD}")}
    text = topology_text("machine", load_topology("dgx-h100"), "mine.yaml", "curves.yaml", found, TOLD)
    (tmp_path / "machine.yaml").write_text(text, encoding="utf-8")
    read = load_topology(tmp_path / "machine.yaml")
    assert read.efficiency.name == "mine"
    assert (read.node.host_link.to_host.value, read.node.host_link.to_host.kind) == ("44 GB/s", "fitted")
    assert read.node.host_link.to_device == load_topology("dgx-h100").node.host_link.to_device
    assert read.node.nvlink is not None
    curve = load_curves(str(read.node.nvlink.curves)).measured("all_reduce", 8)
    assert curve is not None
    assert curve.ns(512) == pytest.approx(80_005, abs=1)
    assert curve.ns(2**29) == pytest.approx(80_000 + 2**29 / 100, abs=10)


@pytest.mark.parametrize("name", ["1", "true", "a: b", "x'y"])
def test_any_name_of_a_file_stays_text(tmp_path: Path, name: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(efficiency_text(name, load_efficiency("h100"), {}, {}, TOLD), encoding="utf-8")
    assert load_efficiency(path).name == name
