"""`rankscope calibrate` from outside: what it refuses, and a file that a scenario runs with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from simcore import cli, load, simulate
from simcore.calibration import machine
from simcore.data import data_folder
from simcore.efficiency import load_efficiency

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
    told = refusal(capsys, "--out", tmp_path / "mine.yaml")
    assert told.splitlines() == [
        "rankscope: --device: calibrate runs PyTorch, which is not there: pip install 'rankscope[calibrate]'"]
    assert not (tmp_path / "mine.yaml").exists()


def test_without_a_gpu_one_line_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    told = refusal(capsys, "--out", tmp_path / "mine.yaml")
    assert told.startswith("rankscope: --device: PyTorch finds no GPU here")
    assert len(told.splitlines()) == 1


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


@pytest.mark.slow
def test_a_written_file_runs_a_scenario(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "mine.yaml"
    code, _, err = ran(capsys, "--device", "cpu", "--model", "nemotron-3-tiny", "--quick", "--out", out)
    assert code == 0, err
    gemm = load_efficiency(out).kernels.gemm.compute
    assert gemm is not None
    assert gemm.kind == "fitted"
    assert "torch.mm" in gemm.source
    text = (data_folder("topologies") / "dgx-h100.yaml").read_text(encoding="utf-8")
    (tmp_path / "machine.yaml").write_text(text.replace("efficiency: h100", "efficiency: mine.yaml"), encoding="utf-8")
    (tmp_path / "job.yaml").write_text(
        "name: job\nmodel: nemotron-3-tiny\nframework: fsdp2\ntopology: machine.yaml\nmesh: {dp_shard: 8}\n"
        "training: {seq_len: 128}\n", encoding="utf-8")
    report = simulate(load(tmp_path / "job.yaml")[0])
    assert report.time is not None
