"""Time that the host is busy with a row, by the library that is called and the extent of CUDA graphs."""

from __future__ import annotations

import numpy as np
import pytest

from simcore.hardware.efficiency import load_efficiency
from simcore.placement.libraries import KernelLibraries
from simcore.recording.kernel_shape import MODULE_BITS, shape_of
from simcore.recording.rows import Module
from simcore.recording.tape import Kernel, Op, Stream
from simcore.timing.host_launch import launch_ns
from simcore.timing.kernel import HostRates

HOST = load_efficiency("h100").host
NO_DRIVES = HostRates(1e12, 0.0, 0.0)
ROWS = np.array([
    (Op.COMPUTE, 0, Kernel.GEMM, 1, Module.ATTN, 1), (Op.COMPUTE, 0, Kernel.PERMUTE, 1, Module.MOE_PREPROCESS, 1),
    (Op.COLLECTIVE, 0, 0, 1, Stream.COMPUTE, Module.ATTN), (Op.COMPUTE, 0, Kernel.GROUPED_GEMM, 1, Module.MOE, 1),
    (Op.ALLOC, 0, 0, 1, Stream.COMPUTE, 0), (Op.COLLECTIVE, 0, 0, 1, Stream.REDUCE, Module.ATTN),
    (Op.COMPUTE, 0, Kernel.OPTIMIZER, 1, Module.NONE, 1)])


def ns(**libraries: object) -> list[int]:
    """A product, a permutation, a collective in line, a grouped product, nothing, a reduction beside, an optimizer."""
    at = np.flatnonzero(ROWS[:, 0] == Op.COMPUTE)
    found: list[int] = launch_ns(HOST, ROWS, at, ROWS[at, 2], KernelLibraries(**libraries), NO_DRIVES).tolist()  # type: ignore[arg-type]
    return found


def of(*seconds: float) -> list[int]:
    return [int(s * 1e9) for s in seconds]


def test_modules_of_megatron_cost_more_than_operators_of_torch() -> None:
    operator, collective = HOST.operator.si, HOST.collective.si
    module = HOST.module.si
    assert ns() == of(operator, operator, collective, operator, 0, collective, operator)
    assert ns(module_calls=True) == of(module, HOST.permutation.si, collective, module, 0, collective, module)
    assert HOST.operator.si < HOST.module.si


def test_a_row_of_several_operators_costs_each_of_them() -> None:
    """A product's shape is no number of operators."""
    rows = np.array([(Op.COMPUTE, 0, Kernel.ELEMENTWISE, 1, Module.MOE | 98 << MODULE_BITS, 1),
                     (Op.COMPUTE, 0, Kernel.ELEMENTWISE, 1, Module.MOE, 1),
                     (Op.COMPUTE, 0, Kernel.GEMM, 1, shape_of(8, 8) << MODULE_BITS, 1)])
    at = np.arange(3)
    found = [launch_ns(HOST, rows, at, rows[:, 2], KernelLibraries(module_calls=calls), NO_DRIVES).tolist()
             for calls in (True, False)]
    assert found[0] == of(98 * HOST.operator.si, HOST.module.si, HOST.module.si)
    assert found[1] == of(98 * HOST.operator.si, HOST.operator.si, HOST.operator.si)


def test_products_of_a_group_that_are_launched_one_by_one_cost_an_operator_each() -> None:
    rows = np.array([(Op.COMPUTE, 0, Kernel.GROUPED_GEMM, 1, Module.MOE | shape_of(64, 8, count) << MODULE_BITS, 1)
                     for count in (1, 16)])
    found = [launch_ns(HOST, rows, np.arange(2), rows[:, 2], KernelLibraries(module_calls=True, launches_each=each),
                       NO_DRIVES).tolist() for each in (True, False)]
    assert found[0] == of(HOST.module.si, HOST.module.si + 15 * HOST.operator.si)
    assert found[1] == of(HOST.module.si, HOST.module.si)


@pytest.mark.parametrize(("graphs", "kept"), [
    (("attn",), "x.x...."), (("moe_preprocess", "moe"), ".x.x..."), (("mamba",), "......."),
    (("full_iteration",), "xxxxxx.")])
def test_a_graph_keeps_a_share_of_what_it_holds(graphs: tuple[str, ...], kept: str) -> None:
    plain, graphed = ns(module_calls=True), ns(module_calls=True, graphs=graphs)
    shares = [HOST.graphed.si if inside == "x" else 1.0 for inside in kept]
    assert graphed == pytest.approx([share * each for share, each in zip(shares, plain, strict=True)], abs=1)


def test_what_the_host_does_with_its_own_memory_takes_its_bytes() -> None:
    rows = np.array([(Op.HOST, 0, 0, 0, Stream.COMPUTE, 5 * 10**9), (Op.COPY, 0, 0, 10**9, Stream.COMPUTE, 0)])
    none = rows[:0, 0]
    for libraries in (KernelLibraries(), KernelLibraries(graphs=("full_iteration",))):
        found = launch_ns(HOST, rows, none, none, libraries, HostRates(1e11, 2e11, 5e11)).tolist()
        assert found[0] == 5 * 10**7
        for drives, ns in ((1, 25 * 10**6), (2, 10**7)):  # read, written
            there = rows[:1] + np.array([(0, 0, drives, 0, 0, 0)])
            assert launch_ns(HOST, there, none, none, libraries, HostRates(1e11, 2e11, 5e11)).tolist() == [ns]
    assert launch_ns(HOST, rows, none, none, KernelLibraries(),
                     HostRates(1e11, 2e11, 5e11)).tolist()[1] == int(HOST.operator.si * 1e9)


def test_deterministic_algorithms_fill_what_a_module_allocates() -> None:
    """Torch's own operators do not ask for an empty tensor."""
    plain, filled = ns(module_calls=True), ns(module_calls=True, fills=True)
    is_module = [time == int(HOST.module.si * 1e9) for time in plain]
    assert sum(is_module) == 3
    assert filled == pytest.approx(np.where(is_module, 1 + HOST.filling.si, 1) * plain, abs=1)
    assert ns(fills=True) == ns()


def test_a_copy_is_one_operator_of_torch_in_a_module_too() -> None:
    rows = np.array([(Op.COMPUTE, 0, Kernel.COPY, 1, Module.ATTN, 1)])
    at = np.zeros(1, dtype=np.int64)
    found = launch_ns(HOST, rows, at, rows[:, 2], KernelLibraries(module_calls=True), NO_DRIVES).tolist()
    assert found == of(HOST.operator.si)


@pytest.mark.parametrize("waits", [True, False])
def test_nobody_is_waited_for_in_the_call_of_a_message(waits: bool) -> None:
    """Waiting of ranks for one another is in a collective's time; with a host that stops it is part of the stop.

    It sends and receives in one batch.
    """
    rows = np.array([(Op.COLLECTIVE, 0, 0, 1, stream, 0) for stream in (Stream.SEND, Stream.RECEIVE, Stream.REDUCE)])
    none = np.zeros(0, dtype=np.int64)
    values = launch_ns(HOST, rows, none, none, KernelLibraries(module_calls=True, waits_for_messages=waits),
                      NO_DRIVES)
    collective = HOST.collective.si
    sent, received = (0.0, HOST.module.si) if waits else (collective, collective)
    assert values.tolist() == of(sent, received, collective)


def test_a_message_around_a_ring_is_a_modules_call() -> None:
    """As one to a stage for which the host stops (`timing/host_launch.py`, _call_s); in torch's own it is a call."""
    rows = np.array([(Op.COLLECTIVE, 0, comm, 1, Stream.COMPUTE, 0) for comm in (0, 1)])
    none = np.zeros(0, dtype=np.int64)
    for calls, first in ((True, HOST.module.si), (False, HOST.collective.si)):
        found = launch_ns(HOST, rows, none, none, KernelLibraries(module_calls=calls), NO_DRIVES, [0]).tolist()
        assert found == of(first, HOST.collective.si)


def test_a_copy_or_a_norm_is_as_many_operators_as_it_says() -> None:
    """Hooks of FSDP2 around a copy, Python of a layer with its first norm."""
    kernels = [Kernel.COPY, Kernel.COPY, Kernel.NORM, Kernel.NORM]
    rows = np.array([(Op.COMPUTE, 0, kernel, 0, count << MODULE_BITS, 1)
                     for kernel, count in zip(kernels, (0, 70, 0, 44), strict=True)])
    found = launch_ns(HOST, rows, np.arange(4), rows[:, 2], KernelLibraries(), NO_DRIVES).tolist()
    assert found == of(*(count * HOST.operator.si for count in (1, 70, 1, 44)))


def test_a_permutation_has_a_number_of_its_own_under_megatron_alone() -> None:
    rows = np.array([(Op.COMPUTE, 0, Kernel.PERMUTE, 0, 8 << MODULE_BITS, 1)])
    found = [launch_ns(HOST, rows, np.arange(1), rows[:, 2], KernelLibraries(module_calls=calls),
                       NO_DRIVES).tolist()
             for calls in (True, False)]
    assert found == [of(HOST.permutation.si + 8 * HOST.operator.si), of(8 * HOST.operator.si)]


def test_products_and_attention_of_transformer_engine_are_calls_of_modules() -> None:
    """Those that are named, of the modules that are named with them."""
    cases = [(Kernel.GEMM, Module.ATTN), (Kernel.ATTENTION, Module.ATTN), (Kernel.ELEMENTWISE, Module.ATTN),
             (Kernel.GEMM, Module.NONE)]
    rows = np.array([(Op.COMPUTE, 0, kernel, 1, module, 1) for kernel, module in cases])
    calls = (("gemm", "attn"), ("attention", "attn"), ("gemm", "mlp"))
    values = launch_ns(HOST, rows, np.arange(4), rows[:, 2], KernelLibraries(te_calls=calls), NO_DRIVES)
    module, operator = HOST.module.si, HOST.operator.si
    assert values.tolist() == of(module, module, operator, operator)
