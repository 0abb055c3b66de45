"""Launches of the scan: the host pays for each of them."""

from __future__ import annotations

import numpy as np

import small
from simcore.operators.ssd import BACKWARD_LAUNCHES, FORWARD_LAUNCHES
from simcore.product import shapes_in
from simcore.simulate import simulate
from simcore.tape import Kernel, Op


def launches(framework: str, **mesh: int) -> set[int]:
    """Of every row of the scan."""
    rows = np.array(small.program_of(framework, mesh).columns.tolist())
    scans = rows[(rows[:, 0] == Op.COMPUTE) & (rows[:, 2] == Kernel.MAMBA_SCAN)]
    return set(shapes_in(scans[:, 4]).tolist())


def test_a_pass_in_one_row_says_how_many_kernels_it_stands_for() -> None:
    assert launches("megatron") == launches("fsdp2", dp_shard=2) == {FORWARD_LAUNCHES, BACKWARD_LAUNCHES}


def test_automodels_rows_are_kernels_already() -> None:
    assert launches("automodel") == {0}


def test_a_small_hybrid_waits_for_its_host() -> None:
    report = simulate(small.scenario("megatron"))
    assert report.time is not None
    parts = report.time.parts
    assert parts["host"] > parts["forward"] + parts["backward"]
