"""`rankscope calibrate` from outside: what it refuses, and a file that a scenario runs with."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from simcore import load, simulate
from simcore.calibration import machine
from simcore.cli import app as cli
from simcore.hardware.collective_curves import load_curves
from simcore.hardware.efficiency import load_efficiency

Ran = tuple[object, str, str]


def ran(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Ran:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["rankscope", "calibrate", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
    return end.value.code, *capsys.readouterr()


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    code, out, err = ran(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    return err


def test_without_pytorch_one_line_says_what_to_install(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "optional", lambda name: None)
    text = refusal(capsys, "--out", tmp_path / "mine.yaml")
    assert text.splitlines() == [
        "rankscope: --device: calibrate runs PyTorch, which is not there: pip install 'rankscope[calibrate]'"]
    assert not (tmp_path / "mine.yaml").exists()


def test_without_a_gpu_one_line_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    text = refusal(capsys, "--out", tmp_path / "mine.yaml")
    assert text.startswith("rankscope: --device: PyTorch finds no GPU here")
    assert len(text.splitlines()) == 1


def test_wrong_names_are_told_before_anything_is_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    assert "--model: unknown model 'nano'" in refusal(capsys, "--out", out, "--model", "nano")
    assert "--topology: no topology 'dgx'" in refusal(capsys, "--out", out, "--topology", "dgx")
    assert "--device" in refusal(capsys, "--out", out, "--device", "tpu")
    assert "--out" in refusal(capsys)


def test_a_file_that_is_there_stays(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "mine.yaml"
    out.write_text("mine", encoding="utf-8")
    assert "exists already; --force overwrites it" in refusal(capsys, "--out", out)
    assert out.read_text(encoding="utf-8") == "mine"


def test_what_could_not_be_written_is_told_before_anything_is_measured(
        capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "there is no folder" in refusal(capsys, "--out", tmp_path / "deep" / "mine.yaml")
    same = tmp_path / "mine.yaml"
    assert "--topology-out: is the same file as --out" in refusal(capsys, "--out", same, "--topology-out", same)
    assert "is a folder" in refusal(capsys, "--out", tmp_path, "--force")


def test_every_file_that_is_there_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("mine.yaml", "machine.yaml"):
        (tmp_path / name).touch()
    text = refusal(capsys, "--out", tmp_path / "mine.yaml", "--topology-out", tmp_path / "machine.yaml")
    assert len(text.splitlines()) == 2


@pytest.mark.slow
def test_the_files_that_are_written_run_a_scenario(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out, machine_out = tmp_path / "mine.yaml", tmp_path / "machine.yaml"
    code, told, err = ran(capsys, "--device", "cpu", "--model", "nemotron-3-tiny", "--out", out,
                          "--topology-out", machine_out, "--json")
    assert code == 0, err
    efficiency = load_efficiency(out)
    for name, share in efficiency.kernels:
        value = share.compute or share.memory
        assert value.kind == "fitted" or "within 2 times the shortest" in value.source or name == "attention"
    assert "our own chunked scan" in efficiency.kernels.mamba_scan.compute.source  # type: ignore[union-attr]
    assert efficiency.host.operator.kind == "measured"
    assert efficiency.kernels.attention.compute.source.startswith("taken over from h100: ")  # type: ignore[union-attr]
    assert set(json.loads(told)) >= {"machine", "efficiency", "topology", "readings", "points"}
    assert load_curves(tmp_path / "machine-curves.yaml").most_ranks("all_reduce") == 2
    (tmp_path / "job.yaml").write_text(
        "name: job\nmodel: nemotron-3-tiny\nframework: fsdp2\ntopology: machine.yaml\nmesh: {dp_shard: 8}\n"
        "training: {seq_len: 128}\n", encoding="utf-8")
    report = simulate(load(tmp_path / "job.yaml")[0])
    assert report.time is not None
    assert report.time.step_s > before(tmp_path)


def before(folder: Path) -> float:
    """Seconds of the same step on the machine whose peaks a CPU is far from."""
    (folder / "dgx.yaml").write_text(
        (folder / "job.yaml").read_text(encoding="utf-8").replace("machine.yaml", "dgx-h100"), encoding="utf-8")
    time = simulate(load(folder / "dgx.yaml")[0]).time
    assert time is not None
    return time.step_s
