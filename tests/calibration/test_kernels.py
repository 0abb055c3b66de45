"""Timed kernels: PyTorch runs each of them, and its FLOPs and bytes are those that the cost model counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from machines import TOLD, cpu_bench
from simcore.calibration import passes, products
from simcore.calibration.attention import work_of
from simcore.calibration.kernels import KERNELS, collected, fp8_kept, kernel_values
from simcore.calibration.mamba import conv_work, scan_work
from simcore.calibration.reading import NotMeasured, Reading
from simcore.calibration.sizes import sizes_of
from simcore.frameworks.registry import hooks_of
from simcore.frameworks.setup import prepare
from simcore.hardware.topology import load_topology
from simcore.inputs.document import parse_document
from simcore.inputs.scenario import parse_scenario
from simcore.pipeline.schedule import actions
from simcore.placement.plan import place
from simcore.program.lower import lower
from simcore.program.record_layers import Workload
from simcore.program.tile import AMOUNT, AUX, OP, SLOT
from simcore.recording.kernel_shape import shape_of, shape_of_heads
from simcore.recording.rows import Kernel, Op
from simcore.timing.kernel import DTYPES, worked_flops
from simcore.timing.kernel import KERNELS as MODELLED

DGX = load_topology("dgx-h100")
SEQ = 256


def torch_bench(model: str = "nemotron-3-tiny") -> Any:
    return cpu_bench(pytest.importorskip("torch"), model)


def posted(framework: str, kernel: Kernel) -> set[tuple[int, int]]:
    """(FLOPs, bytes) of a kernel in a step of the tiny hybrid, its attention with a key for every head."""
    text = (f"name: small\nmodel: {{config: nemotron-3-tiny, overrides: {{num_key_value_heads: 4}}}}\n"
            f"framework: {framework}\ntopology: dgx-h100\nmesh: {{dp_shard: 4}}\ntraining: {{seq_len: {SEQ}}}\n")
    job, table = prepare(parse_scenario(parse_document(text, "small")))
    plan = place(job.graph, job.mesh, table, 0)
    program = lower(plan, Workload(1, SEQ, 1 << 16), actions(table.schedule, 0, 1), hooks_of(table))
    rows = program.columns[(program.columns[:, OP] == Op.COMPUTE) & (program.columns[:, SLOT] == kernel)]
    return {(int(row[AMOUNT]), int(row[AUX])) for row in rows}


def test_every_kernel_of_the_cost_model_is_timed() -> None:
    assert set(KERNELS) == set(MODELLED)


def test_scan_and_convolution_count_what_operators_post() -> None:
    block = sizes_of("nemotron-3-tiny").mamba
    assert block is not None
    assert set(scan_work(block, SEQ)[:2]) == posted("megatron", Kernel.MAMBA_SCAN)
    assert set(conv_work(block, SEQ)[:2]) == posted("megatron", Kernel.CONV)


def test_attention_counts_what_operators_post() -> None:
    core = sizes_of("nemotron-3-tiny").core
    assert core is not None
    assert set(work_of(core, SEQ)[:2]) == posted("fsdp2", Kernel.ATTENTION)


def test_a_kernel_of_another_year_is_never_read() -> None:
    with pytest.raises(NotMeasured, match="which no torch of today takes"):
        KERNELS["attention_triton"](torch_bench())


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [name for name in KERNELS if name not in (
    "attention", "attention_triton", "attention_efficient")])
def test_every_kernel_is_read_on_a_cpu(kernel: str) -> None:
    readings, stopped = collected(torch_bench(), KERNELS[kernel])
    assert stopped == ""
    assert {one.kernel for one in readings} == {kernel}
    assert all(one.seconds > 0 and one.moved > 0 for one in readings)
    assert len({one.shape for one in readings}) > 1


def test_what_a_model_lacks_is_told() -> None:
    bench = cpu_bench(None, "llama-tiny")
    for kernel, told in (("grouped_gemm", "no experts"), ("permute", "no experts"), ("mamba_scan", "no Mamba-2"),
                         ("conv", "no Mamba-2"), ("attention", "needs a GPU")):
        with pytest.raises(NotMeasured, match=told):
            collected(bench, KERNELS[kernel])


def test_a_loop_over_experts_gives_what_the_grouped_product_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = torch_bench()
    x, weight = bench.random(12, 16), bench.random(3, 32, 16)
    _, together = products._grouped(bench, x, weight)
    expected = together(x, weight)
    monkeypatch.delattr(bench.torch, "_grouped_mm")
    by, one_by_one = products._grouped(bench, x, weight)
    assert by == "a loop of torch.mm over experts"
    assert bench.torch.allclose(expected, bench.torch.cat(one_by_one(x, weight)), atol=1e-3)


def test_an_optimizer_without_a_fused_kernel_runs_foreach(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = torch_bench()
    made = bench.torch.optim.AdamW

    def refused(weights: Sequence[Any], *, fused: bool = False, foreach: bool = False) -> Any:
        if fused:
            raise RuntimeError("fused: not on this device")
        return made(weights, foreach=foreach)

    monkeypatch.setattr(bench.torch.optim, "AdamW", refused)
    assert {one.by for one in passes.optimizer(bench)} == {"torch's AdamW, foreach"}


def reading(flops: int, moved: int, kernel: str = "gemm") -> Reading:
    """Reading of a machine that reaches half of the peaks."""
    device = DGX.device
    peak = device.products if kernel == "gemm" else device.peak.fp32
    seconds = flops / (peak.si * (0.5 if kernel == "gemm" else 1)) + moved / (device.memory_bandwidth.si * 0.5)
    return Reading(kernel, "torch.mm", f"{flops}", "bf16", flops, moved, seconds)


def test_values_are_the_shares_of_the_topologys_peaks() -> None:
    bench = cpu_bench(None)
    values = kernel_values(bench, DGX, "gemm", [reading(10**12, 10**9), reading(10**10, 10**9)], 1e-6)
    assert {key: value.value for key, value in values.items()} == {
        "kernels.gemm.compute": "50%", "kernels.gemm.memory": "50%"}
    assert all(value.source == f"torch.mm: 2 of 2 readings, 1000000000000 to 10000000000, median error 0.0%; {TOLD}"
               for value in values.values())
    copied = kernel_values(bench, DGX, "copy", [reading(10**9, 10**9, "copy")], 1e-6)
    assert {key: value.value for key, value in copied.items()} == {"kernels.copy.memory": "50%"}


def test_readings_of_one_intensity_say_which_memory_share_they_took() -> None:
    values = kernel_values(cpu_bench(None), DGX, "gemm", [reading(10**12, 10**8), reading(10**13, 10**9)], 1e-6)
    assert set(values) == {"kernels.gemm.compute"}
    taken = DGX.efficiency.kernels.gemm.memory.value
    assert f"memory taken as {taken}" in values["kernels.gemm.compute"].source


def test_what_came_before_an_error_is_kept_and_the_error_told() -> None:
    def broken(bench: object) -> Any:
        yield reading(10**12, 10**9)
        raise RuntimeError("CUDA out of memory.\nTried to allocate 2 GiB")

    readings, stopped = collected(cpu_bench(None), broken)
    assert len(readings) == 1
    assert stopped == "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB"
    values = kernel_values(cpu_bench(None), DGX, "gemm", readings, 1e-6, stopped)
    assert "stopped by RuntimeError" in values["kernels.gemm.compute"].source


def test_nothing_read_is_not_measured() -> None:
    def broken(bench: object) -> Any:
        raise TypeError("unexpected keyword")

    with pytest.raises(NotMeasured, match="TypeError: unexpected keyword"):
        collected(cpu_bench(None), broken)


def test_a_share_is_of_what_the_device_works_off() -> None:
    """5 rows take a tile of 64: of the FLOPs that are counted one in 13 is asked for; small heads take longer."""
    narrow, heads = shape_of(5, 128 * 132), shape_of_heads(64, 64, 2**20)
    for kernel, packed, flops in (("gemm", narrow, 2 * 5 * 128 * 132 * 4096), ("attention", heads, 10**12)):
        worked = worked_flops(DGX.device, np.array([MODELLED.index(kernel)]), np.array([flops]),
                              np.array([DTYPES.index("bf16")]), np.array([packed]))[0]
        one = Reading(kernel, "x", "x", "bf16", flops, 1, worked / (DGX.device.products.si * 0.4), packed)
        assert worked > 1.3 * flops
        assert kernel_values(cpu_bench(None), DGX, kernel, [one], 1e-9)[f"kernels.{kernel}.compute"].value == "40%"


def test_fp8_is_what_is_left_of_the_share_of_products(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = DGX.device.peak.fp8
    assert peak is not None
    one = Reading("gemm", "torch._scaled_mm", "x", "fp8", 10**14, 1, 10**14 / (peak.si * 0.4))
    monkeypatch.setattr(products, "fp8_gemm", lambda bench: [one])
    assert fp8_kept(cpu_bench(None), DGX, 0.5).value == "80%"
    assert fp8_kept(cpu_bench(None), DGX, 0.3).value == "100%"
    with pytest.raises(NotMeasured, match=r"A100.* has no fp8"):
        fp8_kept(cpu_bench(None), load_topology("dgx-a100"), 0.5)
