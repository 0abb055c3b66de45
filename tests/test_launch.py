"""How long the host is busy with a row, by whose call it is and what a CUDA graph holds."""

from __future__ import annotations

import numpy as np
import pytest

from simcore.cost import KERNELS
from simcore.efficiency import load_efficiency
from simcore.launch import launch_ns
from simcore.libraries import Libraries

HOST = load_efficiency("h100").host
NAMES = ("gemm", "permute", "grouped_gemm")
IS_CALL = np.array([False, False, True, False, False])
ROWS = np.array([0, 1, 3])


def ns(**libraries: object) -> list[int]:
    """Rows: a product, a permutation, a collective, a grouped product, and one that is nothing."""
    kernels = np.array([KERNELS.index(name) for name in NAMES])
    found: list[int] = launch_ns(HOST, IS_CALL, ROWS, kernels, Libraries(**libraries)).tolist()  # type: ignore[arg-type]
    return found


def of(*seconds: float) -> list[int]:
    return [int(s * 1e9) for s in seconds]


def test_modules_of_megatron_cost_more_than_operators_of_torch() -> None:
    operator, collective = HOST.operator.si, HOST.collective.si
    assert ns() == of(operator, operator, collective, operator, 0)
    assert ns(module_calls=True) == of(HOST.module.si, HOST.permutation.si, collective, HOST.module.si, 0)
    assert HOST.operator.si < HOST.module.si


@pytest.mark.parametrize(("graphs", "kept"), [("modules", (True, False, False, False)), ("step", (True,) * 4)])
def test_a_graph_keeps_a_share_of_what_it_holds(graphs: str, kept: tuple[bool, ...]) -> None:
    plain, graphed = ns(module_calls=True), ns(module_calls=True, graphs=graphs)
    shares = [HOST.graphed.si if inside else 1.0 for inside in kept]
    assert graphed[:4] == pytest.approx([share * each for share, each in zip(shares, plain, strict=False)], abs=1)
