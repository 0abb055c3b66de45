"""What was known of each number before the fit of `fit_time.py`, and which numbers share a factor.

A number of a GPU is `base` times its factors. Where two kinds of GPU share a family their numbers move together, and a
kind of which no row speaks stays where its family is. `FACTORS` gives the spread of each factor's logarithm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

__all__ = ["FACTORS", "NUMBERS", "Number"]


@dataclass(frozen=True)
class Number:
    """`keys`: where it stands in the efficiency file of that name."""

    file: str
    keys: tuple[str, ...]
    base: float
    unit: str
    factors: tuple[str, ...]
    source: str


FAMILY: Final = {"a100": "ampere", "h100": "hopper", "h100-hbm2e": "hopper", "b200": "blackwell",
                 "b300": "blackwell", "gb200": "blackwell", "gb300": "blackwell"}
HOSTS: Final = {"a100": "x86-a100", "h100": "x86-h100", "h100-hbm2e": "x86-h100", "b200": "x86-b200",
                "b300": "x86-b200", "gb200": "grace", "gb300": "grace"}
GEMM: Final = {"a100": 0.86, "h100": 0.75, "h100-hbm2e": 0.65, "b200": 0.60, "b300": 0.66, "gb200": 0.62,
               "gb300": 0.72}
"""Isolated products of 8192 rows (aiconfigurator 095f58a5: 0.86 A100, 0.78 H100, 0.69 B200, 0.75 B300, 0.66 GB200,
0.76 GB300 of the dense peak), less what the power cap takes of long ones (SimuMax 4dcaae51: 0.49 on B200); that of 500
W is assumed."""
GROUPED: Final = {"ampere": 0.92, "hopper": 0.92, "blackwell": 0.75}
ATTENTION: Final = {"a100": 0.60, "h100": 0.53, "h100-hbm2e": 0.48, "b200": 0.50, "gb200": 0.50, "b300": 0.64,
                    "gb300": 0.64}
"""Isolated causal attention (aiconfigurator 095f58a5), of which 0.8 in training: B300 and GB300 have twice the rate of
exponents."""
FLASH2: Final = {"ampere": 0.60, "hopper": 0.30, "blackwell": 0.25}
LIMITED_TO: Final = {"h100-hbm2e": 0.90}
"""Share of the rate that a limit of 500 of 700 W leaves (`simcore/hardware/power.py`, rate_share: 0.90), where a share
is of the part without the limit. That torchtitan's long sequences on this part came out too fast was known."""
TRITON: Final = 1 / 1.83
"""Of flash-attention 2: forward takes 1.3 to 1.5 times as long, backward, of 2.5 times the FLOPs, about twice (arXiv
2307.08691, section 4.1, A100)."""
EFFICIENT: Final = 1 / 2
"""Of flash-attention 2: "around 2 times faster" than CUTLASS's kernel in xformers, which torch took over (as above)."""
SCAN_S: Final = {"ampere": 59e-9, "hopper": 40e-9, "blackwell": 41e-9}
"""Forward seconds of a token in 64 heads, isolated: vllm PR 27299 (H100), aiconfigurator 095f58a5 (B200)."""
SCAN_FLOPS: Final = 3_416_064
SCAN_BYTES: Final = 107_008
"""Of the same token, read and written by its six kernels (`simcore/operators/automodel/recurrent.py`)."""
HBM: Final = {"a100": 2.04e12, "h100": 3.35e12, "h100-hbm2e": 3.35e12, "b200": 8e12, "b300": 8e12,
              "gb200": 8e12, "gb300": 8e12}
MEMORY: Final = 0.8
PEAK: Final = {"a100": 312e12, "h100": 989.4e12, "h100-hbm2e": 989.4e12, "b200": 2250e12, "b300": 2250e12,
               "gb200": 2500e12, "gb300": 2500e12}
"""Dense bf16, of which a scan's share is told."""
FP8: Final = {"hopper": 0.95, "blackwell": 0.86}
FP4_SHARE: Final = {"b200": 0.78, "b300": 0.49, "gb200": 0.74, "gb300": 0.49}
"""0.61 in situ over all four (least squares over runs of Megatron-Bridge, as `STEP_S`), by how isolated products in 4
bits compare: 3732, 4035, 3740 and 4333 TFLOP/s (aiconfigurator 095f58a5, medians at 8192 rows), that is 0.60, 0.38,
0.57 and 0.38 of the share in 16 bits. The peak of B300 and GB300 is half as high again; their products gain a tenth."""
LIMITED: Final = tuple(file for file, family in FAMILY.items() if family != "ampere")
FP4: Final = tuple(file for file, family in FAMILY.items() if family == "blackwell")
"""GPUs with products in 8 and in 4 bits. What a power cap takes of a product depends on its format, since a
multiply-add of fewer bits draws less: so a GPU's share in 8 or 4 bits is not that in 16 bits times a number of its
family alone. Isolated products in 8 bits reach 0.58 (B200, B300, GB300) and 0.63 (GB200) of twice the rate in 16 bits
(aiconfigurator 095f58a5, medians at 8192 rows), by kernels for inference: as a share of each GPU's own before the fit
they made rows that were left out worse."""
FILLING: Final = ("by torch 2.13 a kernel for each empty tensor: two a module of TransformerEngine, 5 us a launch, "
                  "of 61 us")
SENDING: Final = {"x86-a100": 20 / 108, "x86-h100": 20 / 132, "x86-b200": 32 / 148, "grace": 32 / 148}
"""Of a GPU's multiprocessors: DeepEP's 20 (Megatron-LM d98e8a64 `transformer_config.py`, moe_deepep_num_sms),
HybridEP's 32 in most recipes of Bridge for Blackwell (067f987d `perf_recipes/_common.py`, moe_hybridep_num_sms; 16 in
a few)."""
_OPERATOR: Final = ("a loop over 128 experts in torch 2.13, timed on a CPU: 16 us of the host for each kernel, forward "
                    "and backward; about 5 us for a launch")

STEP_S: Final = 9e-3
"""Seconds of a step's loop in runs of Megatron-Bridge, fitted once, with 34 other numbers, to 282 configurations, no
golden test of Megatron-LM among them."""
STATISTICS_S: Final = {"x86-a100": 60e-3, "x86-h100": 35e-3, "grace": 33e-3}
"""What the same loop takes more in golden tests of Megatron-LM (least squares over tiny models: 69, 44 and 42 ms). They
log every step (d98e8a64 `tests/functional_tests/test_cases`: 296 of 298 cases have log-num-zeros-in-grad, 229
log-params-norm, nearly all memory and timers); Bridge's recipes for speed do not (067f987d
`perf_recipes/_common.py`)."""

SHRUNK: Final = 0.7
"""Of the spreads that were thought of before a fit: see [Note: shrinkage] in `fit_time.py`."""
_THOUGHT: Final[dict[str, float]] = {
    **{f"gemm {family}": 0.1 for family in GROUPED}, **{f"gemm {file}": 0.12 for file in FAMILY},
    **{f"grouped {family}": 0.2 for family in GROUPED},
    **{f"attention {family}": 0.2 for family in GROUPED}, **{f"flash2 {family}": 0.2 for family in GROUPED},
    **{f"triton {family}": 0.2 for family in GROUPED},
    "scan": 0.3, **{f"scan {family}": 0.2 for family in GROUPED},
    "memory": 0.1, "eager": 0.3, "permute": 0.3, "loss": 0.2, "optimizer": 0.15, "grouped memory": 0.15,
    "fp8 hopper": 0.15, "fp8 blackwell": 0.15, "fp4": 0.2,
    **{f"fp8 {file}": 0.12 for file in LIMITED}, **{f"fp4 {file}": 0.25 for file in FP4},
    "permutation": 0.8, **{f"{what} {host}": spread for host in dict.fromkeys(HOSTS.values())
       for what, spread in (("module", 0.2), ("collective", 0.25), ("operator", 0.2))},
    "step": 0.5, **{f"statistics {host}": 0.5 for host in STATISTICS_S},
    "operator": 0.3, "graphed": 0.3, "filling": 0.5, "contention": 0.3, "tensor": 0.2, "expert": 0.3,
}
_HELD: Final = frozenset((
    *(f"gemm {of}" for of in (*GROUPED, *FAMILY)), *(f"fp8 {file}" for file in LIMITED),
    *(f"{kernel} {family}" for kernel in ("attention", "flash2") for family in GROUPED), "memory", "eager", "permute",
    "loss", "optimizer", "grouped memory", "operator", *(f"operator {host}" for host in dict.fromkeys(HOSTS.values())),
    "module x86-b200", "collective x86-b200", "graphed", "filling", "contention"))
"""Factors that are not fitted: what was known before stands, since rows that were left out came out worse with them
(`docs/calibration.md`)."""
FACTORS: Final[dict[str, float]] = {name: SHRUNK * spread for name, spread in _THOUGHT.items() if name not in _HELD}


def _numbers() -> Iterator[Number]:
    for file, family in FAMILY.items():
        yield from _of_kernels(file, family)
        yield from _of_host(file, HOSTS[file])


def _of_kernels(file: str, family: str) -> Iterator[Number]:
    gemm = GEMM[file]
    products = (f"gemm {family}", f"gemm {file}")

    def compute(kernel: str, base: float, factors: tuple[str, ...], source: str) -> Number:
        return Number(file, ("kernels", kernel, "compute"), base, "%", factors, source)

    yield compute("gemm", gemm, products, "isolated products, less what a power cap takes")
    yield compute("grouped_gemm", gemm * GROUPED[family], (*products, f"grouped {family}"),
                  f"{GROUPED[family]} of dense products, many rows an expert")
    yield compute("attention", ATTENTION[file], (f"attention {family}",), "cuDNN and flash-attention 3, causal")
    flash2 = FLASH2[family] * LIMITED_TO.get(file, 1.0)
    yield compute("attention_flash2", flash2, (f"attention {family}", f"flash2 {family}"),
                  "flash-attention 2 uses the instructions of Ampere")
    yield compute("attention_triton", flash2 * TRITON,
                  (f"attention {family}", f"flash2 {family}", f"triton {family}"),
                  "the first flash-attention, written in Triton: slower than flash-attention 2 by 1.83")
    yield compute("attention_efficient", flash2 * EFFICIENT, (f"attention {family}", f"flash2 {family}"),
                  "the memory-efficient kernel of CUTLASS: slower than flash-attention 2 by 2")
    rest_s = 1.4 * SCAN_S[family] - SCAN_BYTES / HBM[file] / MEMORY  # a kernel takes time for FLOPs and for bytes
    scan = SCAN_FLOPS / max(rest_s, 0.2 * SCAN_S[family]) / PEAK[file]
    yield compute("mamba_scan", scan, ("scan", f"scan {family}"), "isolated SSD forward, 1.4 times slower in situ")
    yield from _of_memory(file)
    if family != "ampere":
        yield Number(file, ("low_precision", "fp8"), FP8[family], "%", (f"fp8 {family}", f"fp8 {file}"),
                     "SimuMax, aiconfigurator")
    if family == "blackwell":
        yield Number(file, ("low_precision", "fp4"), FP4_SHARE[file], "%", ("fp4", f"fp4 {file}"),
                     "NVFP4 products with their casts, by isolated products of each GPU")


def _of_memory(file: str) -> Iterator[Number]:
    for kernel in ("gemm", "attention", "attention_flash2", "attention_triton", "attention_efficient", "mamba_scan",
                   "norm", "elementwise", "copy"):
        yield Number(file, ("kernels", kernel, "memory"), MEMORY, "%", ("memory",), "fused pointwise kernels, SimuMax")
    yield Number(file, ("kernels", "elementwise_eager", "memory"), MEMORY / 1.3, "%", ("memory", "eager"),
                 "torch's own operators over views as they lie; between one and 1.76 times the time of a fused pass")
    yield Number(file, ("kernels", "grouped_gemm", "memory"), MEMORY, "%", ("memory", "grouped memory"), "as products")
    for kernel in ("permute", "embedding"):
        yield Number(file, ("kernels", kernel, "memory"), 0.51, "%", ("permute",), "SimuMax 4dcaae51, B200, permute")
    yield Number(file, ("kernels", "loss", "memory"), 0.32, "%", ("loss",), "SimuMax 4dcaae51, B200, cross-entropy")
    yield Number(file, ("kernels", "optimizer", "memory"), 0.67, "%", ("optimizer",), "0.6 to 0.7 of HBM, multi-tensor")


def _of_host(file: str, host: str) -> Iterator[Number]:
    module = {"x86-a100": 77e-6, "x86-h100": 50e-6, "x86-b200": 50e-6, "grace": 77e-6}[host]
    collective = {"x86-a100": 237e-6, "x86-h100": 195e-6, "x86-b200": 195e-6, "grace": 284e-6}[host]
    regression = "least squares over steps of tiny models (golden values of Megatron-LM), which wait for the host"
    yield Number(file, ("host", "module"), module, "us", (f"module {host}",), regression)
    yield Number(file, ("host", "collective"), collective, "us", (f"collective {host}",), regression)
    yield Number(file, ("host", "permutation"), 200e-6, "us", ("permutation",), "0.44 ms a layer of experts, two calls")
    yield Number(file, ("host", "step"), STEP_S, "ms", ("step",), "least squares over runs of Megatron-Bridge")
    logging = host if host in STATISTICS_S else "x86-h100"
    yield Number(file, ("host", "statistics"), STATISTICS_S[logging], "ms", (f"statistics {logging}",), regression)
    yield Number(file, ("host", "operator"), 20e-6, "us", ("operator", f"operator {host}"), _OPERATOR)
    yield Number(file, ("host", "graphed"), 0.24, "%", ("graphed",), "what was left with graphs of TransformerEngine")
    yield Number(file, ("host", "filling"), 0.16, "%", ("filling",), FILLING)
    yield Number(file, ("overlap", "contention"), 0.33, "%", ("contention",), "NCCL takes multiprocessors and memory")
    yield Number(file, ("overlap", "tensor"), 0.45, "%", ("tensor",), "user buffers of TransformerEngine")
    yield Number(file, ("overlap", "expert"), SENDING[host], "%", ("expert",), "multiprocessors that an exchange has")


NUMBERS: Final = tuple(replace(number, factors=tuple(name for name in number.factors if name in FACTORS))
                       for number in _numbers())
