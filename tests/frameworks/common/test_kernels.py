"""Library of attention that torch runs: by the GPU where a scenario does not say, and its effect on time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import small
from simcore.errors import IllegalLayout, NotYet
from simcore.frameworks.common.kernels import FUSED
from simcore.operators.hf.options import HfOptions
from simcore.program.tile import AUX, OP, SLOT, STREAM
from simcore.recording.kernel_shape import shapes_in
from simcore.recording.tape import Kernel, Op
from simcore.simulate import simulate

ALIKE = {"config": "llama-3.2-3b", "overrides": {"num_key_value_heads": 24}}
HALF: dict[str, Any] = {"precision": {"params": "fp16", "compute": "fp16"}}


def _attention(topology: str = "dgx-h100", framework: str = "fsdp2", mesh: dict[str, int] | None = None,
               **given: Any) -> str:
    _, table = small.prepared(framework, {"dp_shard": 2} if mesh is None else mesh, topology=topology, **given)
    return table.libraries.attention


@pytest.mark.parametrize(("topology", "kernel"), [
    ("dgx-h100", "attention"), ("dgx-b200", "attention"), ("dgx-b300", "attention_flash2"),
    ("dgx-a100", "attention_flash2")])
def test_cudnn_comes_first_on_hopper_and_the_first_blackwell(topology: str, kernel: str) -> None:
    assert _attention(topology) == kernel


@pytest.mark.parametrize(("options", "kernel"), [
    ({"sdpa_backend": "flash"}, "attention_flash2"), ({"sdpa_backend": "cudnn"}, "attention"),
    ({"sdpa_backend": "efficient"}, "attention_efficient"),
    ({"attn_implementation": "flash_attention_2"}, "attention_flash2")])
def test_a_scenario_may_say(options: dict[str, Any], kernel: str) -> None:
    assert _attention(model=ALIKE, options=options) == kernel


def test_heads_whose_values_are_narrower_are_not_for_flash() -> None:
    """DeepSeek's queries are 192 wide, its values 128."""
    asked: dict[str, Any] = {"model": "deepseek-v2-lite", "implementation": "torchtitan"}
    assert _attention("dgx-h100", **asked) == "attention"
    assert _attention("dgx-a100", **asked) == "attention_efficient"
    with pytest.raises(IllegalLayout, match="same last dimension: 192 and 128 here"):
        _attention(options={"sdpa_backend": "flash"}, **asked)


def test_gpus_before_ampere_have_no_flash() -> None:
    assert _attention("v100-32gb", precision={"params": "fp16", "compute": "fp16"}) == "attention_efficient"


@pytest.mark.parametrize("topology", ["dgx-h100", "dgx-a100"])
def test_fp32_is_for_neither_cudnn_nor_flash(topology: str) -> None:
    wide: dict[str, Any] = {"precision": {"params": "fp32", "compute": "fp32"}}
    assert _attention(topology, **wide) == "attention_efficient"
    assert _backend(topology, model="llama-3.2-3b", **wide) == ("math", True)
    for backend in ("cudnn", "flash"):
        with pytest.raises(IllegalLayout, match="Half, BFloat16"):
            _attention(topology, **wide, options={"sdpa_backend": backend})
    with pytest.raises(IllegalLayout, match="fp16 and bf16 data type"):
        _attention(topology, **wide, options={"attn_implementation": "flash_attention_2"})


def test_packed_sequences_have_a_mask_which_flash_does_not_take() -> None:
    packed: dict[str, Any] = {"model": "llama-tiny", "lengths": "packed"}
    assert _attention("dgx-a100", **packed) == "attention_efficient"
    assert _attention("dgx-a100", **packed, options={
        "attn_implementation": "flash_attention_2"}) == "attention_flash2"
    with pytest.raises(IllegalLayout, match="does not support a mask"):
        _attention("dgx-a100", **packed, options={"sdpa_backend": "flash"})


@pytest.mark.parametrize(("framework", "mesh"), [("ddp", {"dp_replicate": 2}), ("zero2", {"dp_shard": 2})])
def test_every_framework_over_torch_asks_it(framework: str, mesh: dict[str, int]) -> None:
    assert _attention(framework=framework, mesh=mesh) == "attention"


def test_the_choice_is_listed_and_is_worth_time() -> None:
    cudnn, flash = (simulate(small.scenario("fsdp2", {"dp_shard": 8}, model="llama-3.1-8b", seq_len=8192,
                                              options={"sdpa_backend": told}))
                    for told in ("cudnn", "flash"))
    assert cudnn.time is not None
    assert flash.time is not None
    assert cudnn.time.step_s < flash.time.step_s
    auto = simulate(small.scenario("fsdp2", {"dp_shard": 2}, seq_len=4096))
    assert {a.value for a in auto.assumptions if a.what == "framework_options.sdpa_backend"} == {"cudnn"}


def _backend(topology: str, framework: str = "fsdp2", **given: Any) -> tuple[str | None, bool]:
    """torch's choice, and whether layers without a mask run plain operators."""
    mesh = {"dp_replicate" if framework == "ddp" else "dp_shard": 2}
    _, table = small.prepared(framework, mesh, topology=topology, **given)
    options = table.options
    return (table.default("framework_options.sdpa_backend"),
            isinstance(options, HfOptions) and options.math_attention)


@pytest.mark.parametrize("framework", ["fsdp2", "ddp", "zero2"])
def test_below_ampere_grouped_heads_have_no_kernel(framework: str) -> None:
    """torch 2.13 sdp_utils.cpp: flash begins with sm80, the memory-efficient kernel takes no groups."""
    asked: dict[str, Any] = {"precision": {"compute": "fp16"}}
    assert _backend("v100-32gb", framework, model="llama-3.2-3b", **asked) == ("math", True)
    assert _backend("rtx-2080-ti", framework, model="llama-3.2-3b", **asked) == ("math", True)
    assert _backend("v100-32gb", framework, model=ALIKE, **asked) == ("efficient", False)
    assert _backend("dgx-a100", framework, model="llama-3.2-3b", **asked) == ("flash", False)


def test_a_mask_repeats_keys_and_leaves_a_kernel() -> None:
    assert _backend("v100-32gb", model="llama-3.2-3b", lengths="packed", **HALF) == ("efficient", False)


def test_plain_operators_keep_a_score_in_fp32_for_each_pair_and_head() -> None:
    def peak(topology: str) -> int:
        report = simulate(small.scenario("ddp", {}, model="llama-3.2-3b", topology=topology, seq_len=1024,
                                         method="lora", **HALF))
        assert report.peak_rank is not None
        assert report.peak_rank.peak is not None
        return report.peak_rank.peak.allocated_bytes

    per_layer = 24 * 1024 * 1024 * 4 + 3 * 24 * 128 * 1024 * 4  # softmax's output; scaled query, repeated keys, values
    instead = (24 + 8 + 8) * 128 * 1024 * 2 + 24 * 1024 * 4  # query, key, value and log-sum-exp of a fused kernel
    assert peak("v100-32gb") - peak("dgx-a100") == 28 * (per_layer - instead)


def test_math_may_be_asked_and_efficient_may_not_where_it_cannot() -> None:
    asked: dict[str, Any] = {"model": "llama-3.2-3b", **HALF}
    assert _backend("dgx-h100", options={"sdpa_backend": "math"}, **asked) == (None, True)
    with pytest.raises(IllegalLayout, match="to have the same num_heads"):
        _attention("dgx-h100", options={"sdpa_backend": "efficient"}, **asked)
    with pytest.raises(NotYet, match="math in layers of torchtitan"):
        _attention(model="deepseek-v2-lite", implementation="torchtitan", options={"sdpa_backend": "math"})


def test_flash_attn_begins_with_ampere() -> None:
    asked: dict[str, Any] = {"model": "llama-3.2-3b", "precision": {"compute": "fp16"}}
    with pytest.raises(IllegalLayout, match="FlashAttention only supports Ampere GPUs or newer"):
        _attention("rtx-2080-ti", options={"attn_implementation": "flash_attention_2"}, **asked)


def test_cudnns_attention_begins_with_ampere() -> None:
    with pytest.raises(IllegalLayout, match=r"in the range \[sm80, sm121\]"):
        _attention("v100-32gb", precision={"params": "fp16", "compute": "fp16"}, options={"sdpa_backend": "cudnn"})


def pointwise_bytes(implementation: str, recompute: str, **options: Any) -> int:
    """That kernels of Llama-3.1-8B move in a step, norms included."""
    asked = small.scenario("fsdp2", {"dp_shard": 8}, model="llama-3.1-8b", implementation=implementation,
                           options=options, seq_len=4096, recompute=recompute)
    report = simulate(asked)
    assert report.time is not None, report.problems
    return sum(kernel.bytes_moved for kernel in report.time.kernels
               if kernel.kernel in ("elementwise", "elementwise_eager", "norm"))


@pytest.mark.parametrize(("implementation", "recompute"), [
    ("hf", "full"), ("hf", "none"), ("kempnerforge", "full"), ("kempnerforge", "none")])
def test_what_a_compiler_leaves_of_eager_bytes_is_what_it_leaves_torchtitan(implementation: str,
                                                                            recompute: str) -> None:
    eager = pointwise_bytes(implementation, recompute)
    compiled = pointwise_bytes("torchtitan", recompute, compile="model", wrap="layers_root")
    assert compiled / eager == pytest.approx(FUSED, rel=0.1)


def test_a_compiler_joins_what_nobody_says_is_alone() -> None:
    """A row that says it is one operator is one: sums of gradients, and a loss that is not compiled."""
    def asked(*, flag: bool) -> dict[str, Any]:
        return {"model": "llama-tiny", "implementation": "kempnerforge", "options": {"compile": flag}}

    rows = np.array(small.program_of("fsdp2", {"dp_shard": 2}, **asked(flag=True)).columns.tolist())
    pointwise = (rows[:, OP] == Op.COMPUTE) & (rows[:, SLOT] == Kernel.ELEMENTWISE)
    joined = pointwise & (shapes_in(rows[:, STREAM]) == 0)
    apart, together = rows[pointwise & ~joined, AUX].sum(), rows[joined, AUX].sum()
    assert 0 < apart < together
    for flag, share in ((False, 1.0), (True, FUSED)):
        report = simulate(small.scenario("fsdp2", {"dp_shard": 2}, **asked(flag=flag)))
        assert report.time is not None, report.problems
        moved = sum(k.bytes_moved for k in report.time.kernels if k.kernel.startswith("elementwise"))
        assert moved == pytest.approx(apart + share * together, rel=1e-3)
