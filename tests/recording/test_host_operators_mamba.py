"""The host's part of the scan, in operators of torch, as it was timed."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

import small
from checkout import ROOT
from simcore.program.outline import Phase
from simcore.recording.host_operators import GATED_NORM, MAMBA_MIXER, MAMBA_SCAN, Operators
from simcore.recording.kernel_shape import shapes_in
from simcore.recording.tape import Kernel, Op
from simcore.simulate import simulate

HOST = ROOT / "tests/truth" / "host"
TIMED = json.loads((HOST / "mamba-e9594ce1.json").read_text(encoding="utf-8"))
MIXED = json.loads((HOST / "mixer-core-0.16.1.json").read_text(encoding="utf-8"))
PYTHON_US, TORCH_US, TRITON_US = 16, 5, 18
CONVOLUTIONS = {"forward": 1, "backward": 2}
"""Kernels of the convolution: in backward it runs again first."""


def operators(framework: str, **mesh: int) -> Counter[str]:
    """Operators of all rows of the scan, by pass; a row without a number counts as one."""
    program = small.program_of(framework, mesh)
    rows, phases = np.array(program.columns.tolist()), program.outline.phase
    scans = (rows[:, 0] == Op.COMPUTE) & (rows[:, 2] == Kernel.MAMBA_SCAN)
    found: Counter[str] = Counter()
    for count, phase in zip(np.maximum(shapes_in(rows[scans, 4]), 1).tolist(), phases[scans].tolist(), strict=True):
        found[Phase(phase).name.lower()] += count
    return found


@pytest.mark.parametrize(("direction", "expected"), list(MAMBA_SCAN._asdict().items()))
def test_the_host_was_timed(direction: str, expected: int) -> None:
    """Python of the wrappers, and a launch of each kernel, by the time of one operator of torch with its launch."""
    triton, torch = (TIMED["launches"][whose][direction] for whose in ("triton", "torch"))
    python_us = TIMED["operators"][direction] * PYTHON_US
    launches_us = TRITON_US * triton + TORCH_US * (torch + CONVOLUTIONS[direction])
    assert (python_us + launches_us) / (PYTHON_US + TORCH_US) == pytest.approx(expected, abs=0.5)


def test_what_megatron_does_around_it_was_timed() -> None:
    """Three launches each way: exp, neg and a cast."""
    for direction, expected in MAMBA_MIXER._asdict().items():
        us = MIXED["operators"][direction] * PYTHON_US + 3 * TORCH_US
        assert us / (PYTHON_US + TORCH_US) == pytest.approx(expected, abs=0.6)


def test_the_gated_norm_was_timed() -> None:
    """One launch of Triton's each way, and in backward the sum of the weight's gradient."""
    for direction, launches_us in (("forward", TRITON_US), ("backward", TRITON_US + TORCH_US)):
        us = TIMED["norm"]["operators"][direction] * PYTHON_US + launches_us
        assert getattr(GATED_NORM, direction) == pytest.approx(us / (PYTHON_US + TORCH_US), abs=0.5)


@pytest.mark.parametrize(("framework", "mesh", "around"), [
    ("megatron", {}, MAMBA_MIXER), ("fsdp2", {"dp_shard": 2}, Operators(0, 0)), ("automodel", {}, Operators(0, 0))])
def test_all_frameworks_call_the_same_wrappers(framework: str, mesh: dict[str, int], around: Operators) -> None:
    """In one row a pass, or in one a kernel."""
    found = operators(framework, **mesh)
    each = MAMBA_SCAN.forward + around.forward
    passes = found["forward"] // each
    assert passes > 0
    assert found == {"forward": passes * each, "backward": passes * (MAMBA_SCAN.backward + around.backward)}


def test_a_small_hybrid_waits_for_its_host() -> None:
    report = simulate(small.scenario("megatron"))
    assert report.time is not None
    parts = report.time.parts
    assert parts["host"] > parts["forward"] + parts["backward"]
