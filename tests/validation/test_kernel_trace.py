"""Traces of torch's profiler: steps, unions of kernels, kinds by name, and files that are none."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from simcore.errors import InputError
from simcore.validation.kernel_trace import COMMUNICATION, OTHER, is_trace, read_trace


def event(name: str, start: float, length: float, cat: str = "kernel") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": length}


def step(number: int, start: float, length: float) -> dict[str, Any]:
    return event(f"ProfilerStep#{number}", start, length, "user_annotation")


def content(*events: dict[str, Any], **about: Any) -> bytes:
    return json.dumps({**about, "traceEvents": list(events)}).encode()


PRODUCT, GATHER = "nvjet_hsh_128x256_64x4", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_kernels_count_once_where_streams_overlap() -> None:
    """Product 0 to 40 us, gather 30 to 60, copy 80 to 90: busy for 70, 30 of it a gather, 20 of that alone."""
    found = read_trace(content(step(3, 0, 100), event(PRODUCT, 0, 40), event(GATHER, 30, 30),
                               event("Memcpy DtoD (Device -> Device)", 80, 10, "gpu_memcpy"),
                               event("aten::mm", 0, 99, "cpu_op")), "t.json")
    assert (found.step_s, found.busy_s) == pytest.approx((100e-6, 70e-6))
    assert (found.collectives_s, found.exposed_s) == pytest.approx((30e-6, 20e-6))
    assert found.kinds == pytest.approx({"matrix products": 40e-6, COMMUNICATION: 30e-6, OTHER: 10e-6})
    assert (found.num_steps, found.num_kernels) == (1, 3)


def test_steps_are_read_by_their_median_and_what_is_around_them_is_not() -> None:
    found = read_trace(content(
        step(0, 100, 100), step(1, 200, 120), step(2, 320, 200), event(PRODUCT, 50, 30), event(PRODUCT, 110, 10),
        event(PRODUCT, 210, 20), event(PRODUCT, 330, 90)), "t.json")
    assert found.num_steps == 3
    assert (found.step_s, found.busy_s) == pytest.approx((120e-6, 20e-6))


@pytest.mark.parametrize(("name", "kind"), [
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>", "optimizer"),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<CopyFunctor<float, c10::BFloat16>>", OTHER),
    ("flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64>>", "attention"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_3", "attention"),
    ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80", "attention"),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "matrix products"),
    ("_chunk_scan_fwd_kernel", "scan and convolution"),
    ("void at::native::vectorized_elementwise_kernel<4, silu>", OTHER)])
def test_names_of_kernels_tell_their_kind(name: str, kind: str) -> None:
    assert list(read_trace(content(event(name, 0, 1)), "t.json").kinds) == [kind]


def test_a_gzipped_trace_names_its_rank_and_device() -> None:
    plain = content(event(PRODUCT, 0, 1), distributedInfo={"rank": 3}, deviceProperties=[{"name": "NVIDIA H200"}])
    found = read_trace(gzip.compress(plain), "t.json.gz")
    assert is_trace(gzip.compress(plain))
    assert is_trace(plain)
    assert (found.rank, found.device, found.ours) == (3, "NVIDIA H200", False)


@pytest.mark.parametrize(("wrong", "told"), [
    (b"{", "is no trace of torch's profiler"), (b"[]", "has no list of traceEvents"),
    (gzip.compress(b"{}", mtime=0)[:-4], "ends early"), (b"\x1f\x8bno", "cannot be unpacked"),
    (content(event("aten::mm", 0, 1, "cpu_op")), "has no kernels: record with ProfilerActivity.CUDA"),
    (content(event(PRODUCT, 0, -1)), "an event has no name, start"),
    (content({"ph": "X", "cat": "kernel", "name": PRODUCT, "ts": "now", "dur": 1}), "an event has no name, start"),
    (content(step(0, 10, 5), event(PRODUCT, 0, 1)), "no kernel inside of its steps")])
def test_what_is_no_trace_is_refused_by_its_name(wrong: bytes, told: str) -> None:
    with pytest.raises(InputError, match="^t.json: .*" + told):
        read_trace(wrong, "t.json")


def test_logs_and_errors_are_no_traces() -> None:
    assert not is_trace(b"step 3 loss 0.5")
    assert not is_trace(b'{"loss": 0.5}')
